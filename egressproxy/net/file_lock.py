"""FileLock: which of several processes may do something now: a lock of a file in memory, which goes with a process that
is killed. An flock belongs to an opening of the file, so each opens it anew; it is never refused for a deadlock that
only seems to be, as a record lock is. Source: flock(2), fcntl(2).
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType


def memory_file(name: str) -> int:
    """A descriptor of a file without a place, for processes that inherit it or are sent it."""
    return os.memfd_create(name, os.MFD_CLOEXEC)


def opened_anew(descriptor: int) -> int:
    """A descriptor of another opening of the same file. Raises OSError."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def try_lock(descriptor: int) -> bool:
    """Whether nobody has held the lock of this file, and this opening holds it now. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileLock:
    """A context that one process at a time is in; entering blocks. The object lasts as long as its process.
    `descriptor`: of the same `memory_file` in each; it may be closed then.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = opened_anew(descriptor)

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
