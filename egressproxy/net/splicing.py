"""Pipe: bytes from one socket to another that never leave the kernel, for long transfers. One serves all, since it is
empty again after each step: what the taker does not take is read out of it, and after an error it is closed, so that no
byte can reach another's connection. Source: splice(2), pipe(7).
"""

from __future__ import annotations

import fcntl
import os

#: splice(2): SPLICE_F_MOVE | SPLICE_F_NONBLOCK; Python has names for them from 3.14 on.
_FLAGS = 1 | 2
#: fcntl(2): F_SETPIPE_SZ.
_SET_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)


class PipeError(Exception):
    """The pipe did not give back what went into it: those bytes are lost."""


class Pipe:
    """Empty between two calls of `take`, each of which `give` or `close` follows; `is_empty` says so. `capacity`: bytes
    at most; the kernel may allow less (fs.pipe-user-pages-soft).
    """

    __slots__ = ("_inside", "_reading", "_writing", "capacity")

    def __init__(self, capacity: int) -> None:
        """Raises OSError: no descriptor is left."""
        self.capacity = capacity
        self._inside = 0  # what was taken and not given yet
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._writing, _SET_SIZE, capacity)
        except OSError:
            self.capacity = 65_536  # pipe(7): what most pipes hold

    def take(self, fd: int) -> int:
        """How many bytes came out of this socket; 0 at its end. OSError as of recv(2); EINVAL: it cannot be spliced."""
        size = self._inside = os.splice(fd, self._writing, self.capacity, flags=_FLAGS)
        return size

    def give(self, fd: int, size: int) -> bytes:
        """Give this socket what was taken; returns what it does not take. Raises OSError, as send(2) does, and
        PipeError; the pipe is closed then.
        """
        left = size
        rest = b""
        try:
            try:
                while left:
                    left -= os.splice(self._reading, fd, left, flags=_FLAGS)
            except (BlockingIOError, InterruptedError):
                rest = self._empty(left)
        except BaseException:
            self.close()
            raise
        self._inside = 0
        return rest

    def _empty(self, size: int) -> bytes:
        """Read out what is left."""
        try:
            rest = os.read(self._reading, size)
        except BlockingIOError:
            rest = b""
        if len(rest) != size:
            raise PipeError(f"a pipe had {len(rest)} bytes left of {size}")
        return rest

    def close(self) -> None:
        if not self.is_closed:
            reading, self._reading = self._reading, -1
            os.close(reading)
            os.close(self._writing)
            self._writing = -1

    @property
    def is_closed(self) -> bool:
        return self._reading < 0

    @property
    def is_empty(self) -> bool:
        """It is open, and nothing was left behind in it."""
        return not self._inside and self._reading >= 0
