"""ByteQueue: bytes that are kept for a while, in the pieces in which they came, but for small ones, which are joined: a
piece takes some fifty bytes more than it holds, and a peer may send two at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

#: A piece below this is joined with its neighbours, up to so many bytes.
SMALL_SIZE: Final = 512
JOINED_SIZE: Final = 16 * 1024
#: Neighbours that are not longer together become one in a list.
KEPT_SIZE: Final = 4096


def keep(pieces: list[bytes], data: bytes) -> None:
    """Put this piece behind a list that is mostly empty or short: it is cheaper than `ByteQueue`, and as bounded."""
    if pieces and len(pieces[-1]) + len(data) <= KEPT_SIZE:
        pieces[-1] += data
    else:
        pieces.append(data)


class ByteQueue:
    """In the order in which they came; false while there are none."""

    __slots__ = ("_small", "_whole")

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._small: bytearray | None = None  # behind the whole ones; never empty

    def append(self, data: bytes) -> None:
        """Keep this piece, which is not empty."""
        small = self._small
        if small is None:
            if len(data) >= SMALL_SIZE:
                self._whole.append(data)
            else:
                self._small = bytearray(data)
            return
        if len(data) < SMALL_SIZE:
            small += data
        if len(data) >= SMALL_SIZE or len(small) >= JOINED_SIZE:
            self._join()
        if len(data) >= SMALL_SIZE:
            self._whole.append(data)

    def popleft(self) -> bytes:
        """The first piece, which is kept no longer. Raises IndexError if there is none."""
        if not self._whole:
            self._join()
        return self._whole.popleft()

    def clear(self) -> None:
        """Keep nothing."""
        self._whole.clear()
        self._small = None

    def joined(self) -> bytes:
        """All bytes."""
        if self._small is None and len(self._whole) == 1:
            return self._whole[0]
        return b"".join([*self._whole, self._small or b""])

    def _join(self) -> None:
        if self._small is not None:
            self._whole.append(bytes(self._small))
            self._small = None

    def __bool__(self) -> bool:
        return self._small is not None or bool(self._whole)

    def __len__(self) -> int:
        """How many pieces; not how many bytes."""
        return len(self._whole) + (self._small is not None)

    def __iter__(self) -> Iterator[bytes]:
        self._join()
        return iter(self._whole)
