"""Turn: who of several processes may write now.

A pipe takes only 4,096 octets (PIPE_BUF) as one; what is longer may be mixed with what others write. A lock of a file
in memory that all have inherited keeps them apart, and goes with a process that is killed. Source: pipe(7), fcntl(2).
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

__all__ = ["Turn"]


class Turn:
    """A context for blocking threads: entered by one process at a time. Takes the descriptor of `descriptor()` over."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def descriptor() -> int:
        return os.memfd_create("egressproxy-turn", os.MFD_CLOEXEC)

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
