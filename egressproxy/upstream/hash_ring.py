"""HashRing: consistent hashing. A key keeps its endpoint while endpoints come, go, or are left out.

Each endpoint has many points on a circle; a key belongs to the first endpoint at or behind its own point that may take
it. Leaving one out moves its keys alone, and needs no new ring. The points depend on the endpoint's name and nothing
else, so all workers, and all gateways of a fleet, agree. Source: Karger et al. 1997; with bounded loads (Mirrokni et
al. 2016) where the caller leaves out those that have too much.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

__all__ = ["HashRing"]

#: Points of each endpoint: with 160 the shares are within about a tenth of each other. Fewer for large sets.
POINTS = 160
MAX_POINTS = 65536
MIN_POINTS = 8
_EIGHT = struct.Struct(">8Q")
_ONE = struct.Struct(">Q")


class HashRing:
    """The circle for these endpoints, each known by its place in `names`."""

    __slots__ = ("_owners", "_points")

    def __init__(self, names: Sequence[str]) -> None:
        each = max(MIN_POINTS, min(POINTS, MAX_POINTS // max(1, len(names))))
        placed = sorted(
            (point, index)
            for index, name in enumerate(names)
            for turn in range(each // 8)
            for point in _EIGHT.unpack(blake2b(name.encode(), salt=turn.to_bytes(16, "big")).digest())
        )
        self._points = [point for point, _ in placed]
        self._owners = [index for _, index in placed]

    def order(self, key: bytes) -> Iterator[int]:
        """The places of all endpoints, in the order in which this key prefers them."""
        owners = self._owners
        point = _ONE.unpack(blake2b(key, digest_size=8).digest())[0]
        start = bisect_left(self._points, point)
        seen: set[int] = set()
        for step in range(len(owners)):
            owner = owners[(start + step) % len(owners)]
            if owner not in seen:
                seen.add(owner)
                yield owner

    def __repr__(self) -> str:
        return f"HashRing({len(self._points)} points)"
