"""SharedCounters: the numbers of limits, in memory that all workers share, so that a limit holds for all of them.

A row is found by the spec of its filter: equal specs have one row, in every worker and after a worker was replaced.
Nobody waits: where two workers decide in the same microsecond, both may take the last free place.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from egressproxy.net.file_lock import FileLock

__all__ = ["KEY_BYTES", "Row", "SharedCounters"]

log = logging.getLogger("egressproxy")

#: Different limits in the life of a run. Pages are taken as rows are.
MAX_ROWS: Final = 16384
KEY_BYTES: Final = 16
_CELL: Final = 8
_HEAD: Final = 8

N = TypeVar("N", int, float)


class Cells(Protocol[N]):
    """What a list and a view of memory have in common."""

    def __getitem__(self, index: int, /) -> N: ...

    def __setitem__(self, index: int, value: N, /) -> None: ...

    def __iter__(self) -> Iterator[N]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """Of one limit: `full_at` is one moment for all (monotonic seconds); `held` has a number for each worker, of which
    that at `mine` may be changed. Without a tally a row belongs to one process.
    """

    full_at: Cells[float] = field(default_factory=lambda: [0.0])
    held: Cells[int] = field(default_factory=lambda: [0])
    mine: int = 0


class SharedCounters:
    """`descriptor`: of the same `net.file_lock.memory_file` in each. `worker` counts from 1; a supervisor is 0."""

    def __init__(self, descriptor: int, workers: int, worker: int) -> None:
        self._turn = FileLock(descriptor)
        self._workers = workers
        self._mine = worker - 1
        self._row_bytes = KEY_BYTES + _CELL + workers * _CELL
        size = _HEAD + MAX_ROWS * self._row_bytes
        os.ftruncate(descriptor, size)
        self._memory = memoryview(mmap.mmap(descriptor, size))
        self._rows = self._memory[:_HEAD].cast("q")  # how many are taken
        self._known: dict[bytes, int] = {}

    def row(self, key: bytes) -> Row:
        """The row of this key (of 16 octets), the same for all who ask; one of one's own where there is no room."""
        with self._turn:
            for number in range(len(self._known), self._rows[0]):
                at = self._at(number)
                self._known[bytes(self._memory[at : at + KEY_BYTES])] = number
            number = self._known.get(key, len(self._known))
            if number == MAX_ROWS:
                log.warning("more than %d different limits in one run: a new one counts in each worker", MAX_ROWS)
                return Row()
            if number == self._rows[0]:
                at = self._at(number)
                self._memory[at : at + KEY_BYTES] = key
                self._known[key] = number
                self._rows[0] = number + 1
        at = self._at(number) + KEY_BYTES
        held = at + _CELL
        return Row(
            self._memory[at:held].cast("d"), self._memory[held : held + self._workers * _CELL].cast("q"), self._mine
        )

    def forget(self, worker: int) -> None:
        """What this worker held is free: it has ended."""
        for number in range(self._rows[0]):
            at = self._at(number) + KEY_BYTES + worker * _CELL
            self._memory[at : at + _CELL] = bytes(_CELL)

    def _at(self, number: int) -> int:
        return _HEAD + number * self._row_bytes

    def __repr__(self) -> str:
        return f"Tally({self._rows[0]} rows for {self._workers} workers)"
