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
from hashlib import blake2b, shake_128

#: Points of each endpoint: with 100 the shares differ by about a tenth. Fewer for large sets, which would
#: take long to place.
POINTS = 100
MAX_POINTS = 16384
MIN_POINTS = 8
#: The low bits of a point say whose it is.
_OWNER = (1 << 20) - 1


class HashRing:
    """The circle for these endpoints (at most 2^20), each known by its place in `names`."""

    __slots__ = ("_points",)

    def __init__(self, names: Sequence[str]) -> None:
        each = max(MIN_POINTS, min(POINTS, MAX_POINTS // max(1, len(names))))
        points: list[int] = []
        for index, name in enumerate(names):
            drawn = struct.unpack(f"<{each}Q", shake_128(name.encode()).digest(8 * each))
            points += [(point & ~_OWNER) | index for point in drawn]
        points.sort()
        self._points = points

    def order(self, key: bytes) -> Iterator[int]:
        """The places of all endpoints, in the order in which this key prefers them."""
        points = self._points
        start = bisect_left(points, int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))
        seen: set[int] = set()
        for step in range(len(points)):
            owner = points[(start + step) % len(points)] & _OWNER
            if owner not in seen:
                seen.add(owner)
                yield owner
