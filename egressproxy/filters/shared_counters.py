"""SharedCounters: the numbers of limits, in memory that all workers share, so that a limit holds for all of them.

A row is found by the hash of its filter's spec: equal specs have one row, in every worker and after a worker was
replaced. Counting takes no lock: if two workers decide in the same microsecond, both may take the last free place.
"""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass, field
from typing import Final

from egressproxy.net.file_lock import FileLock

__all__ = ["KEY_BYTES", "Row", "SharedCounters"]

log = logging.getLogger("egressproxy")

#: Different limits in the life of a run. Memory is used only for rows that are taken.
MAX_ROWS: Final = 16384
KEY_BYTES: Final = 16
#: The memory is cells of 8 bytes: how many rows are taken, then the rows. A row is its key, `full_at` and `held`.
_CELL: Final = 8
_KEY_CELLS: Final = KEY_BYTES // _CELL


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one limit. The default is that of a process that serves alone.

    `full_at[0]` is when the bucket is full again (monotonic seconds). `held` counts exchanges in progress for each
    worker; a worker changes only `held[mine]`.
    """

    full_at: list[float] | memoryview[float] = field(default_factory=lambda: [0.0])
    held: list[int] | memoryview[int] = field(default_factory=lambda: [0])
    mine: int = 0


class SharedCounters:
    """`descriptor` is that of one `net.file_lock.memory_file`, the same file in every process. `worker` counts from 1;
    the supervisor is 0.
    """

    def __init__(self, descriptor: int, workers: int, worker: int) -> None:
        self._lock = FileLock(descriptor)
        self._workers = workers
        self._mine = worker - 1
        size = _CELL * (1 + MAX_ROWS * (_KEY_CELLS + 1 + workers))
        os.ftruncate(descriptor, size)
        self._memory = memoryview(mmap.mmap(descriptor, size))
        self._numbers = self._memory.cast("q")
        self._known: dict[bytes, int] = {}

    def row(self, key: bytes) -> Row:
        """The row of this key (16 bytes), the same in every worker. Without room: a private row and a warning."""
        with self._lock:
            for number in range(len(self._known), self._numbers[0]):
                self._known[bytes(self._key(number))] = number
            number = self._known.get(key, len(self._known))
            if number == MAX_ROWS:
                log.warning(
                    "more than %d different limits in one run: a new one counts in each worker by itself", MAX_ROWS
                )
                return Row()
            if number == self._numbers[0]:
                self._key(number)[:] = key
                self._known[key] = number
                self._numbers[0] = number + 1
        at = self._at(number) + _KEY_CELLS
        held = self._numbers[at + 1 : at + 1 + self._workers]
        return Row(self._memory.cast("d")[at : at + 1], held, self._mine)

    def forget(self, worker: int) -> None:
        """Free what this worker (counted from 1) held, because it has exited."""
        for number in range(self._numbers[0]):
            self._numbers[self._at(number) + _KEY_CELLS + worker] = 0

    def _at(self, number: int) -> int:
        """The first cell of a row."""
        return 1 + number * (_KEY_CELLS + 1 + self._workers)

    def _key(self, number: int) -> memoryview:
        return self._memory[self._at(number) * _CELL :][:KEY_BYTES]

    def __repr__(self) -> str:
        return f"SharedCounters({self._numbers[0]} rows for {self._workers} workers)"
