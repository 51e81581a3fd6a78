"""SharedCounters: the numbers of limits, in memory that all workers share, so that a limit holds for all of them.

A row is found by the hash of its filter's spec: equal specs have one row, in every worker and after a worker was
replaced. A limit that counts for each key has a table behind the rows (`net/keyed_counters`). Who decides holds
`lock`, so that of two workers one takes the last free place.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary, finalize

from egressproxy.net.file_lock import FileLock
from egressproxy.net.keyed_counters import KeyedCounters, table_bytes

log = logging.getLogger("egressproxy")

#: Different limits in the life of a run. Memory is used only for rows that are taken.
MAX_ROWS: Final = 16384
KEY_BYTES: Final = 16
#: The memory is cells of 8 bytes: how many rows are taken, then the rows. A row is its key, `full_at` and `held`.
_CELL: Final = 8
_KEY_CELLS: Final = KEY_BYTES // _CELL
#: Limits with keys at one time, and the memory of their tables, of which only what is written to is used.
MAX_TABLES: Final = 512
MAX_TABLE_BYTES: Final = 1 << 30
#: An entry of the list of tables: its key, where it begins, how many keys have room, its size in bytes, and by how many
#: each worker has it mapped: one that nobody has gives its place to another limit when there is no other. In front of
#: the list: how many there are, where the next one begins, and the secret of their hashes (32 bytes).
_BEGIN, _KEYS, _SIZE, _USERS = range(_KEY_CELLS, _KEY_CELLS + 4)
_SECRET_CELLS: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one limit. The default is that of a process that serves alone.

    `full_at[0]` is when the bucket is full again (monotonic seconds). `held` counts exchanges in progress for each
    worker; a worker changes only `held[mine]`. `lock` is held by who decides, where several processes share the row.
    """

    full_at: list[float] | memoryview[float] = field(default_factory=lambda: [0.0])
    held: list[int] | memoryview[int] = field(default_factory=lambda: [0])
    mine: int = 0
    lock: AbstractContextManager[None] | None = None


class SharedCounters:
    """`descriptor`: a `net.file_lock.memory_file`, one for all processes. `worker`: from 1; the supervisor is 0."""

    def __init__(self, descriptor: int, workers: int, worker: int) -> None:
        self._lock = FileLock(descriptor)
        self._workers = workers
        self._mine = worker - 1
        self._descriptor = os.dup(descriptor)
        self._list_at = 1 + MAX_ROWS * (_KEY_CELLS + 1 + workers)
        self._first_entry = self._list_at + 2 + _SECRET_CELLS
        self._entry_cells = _USERS + workers
        size = _CELL * (self._first_entry + MAX_TABLES * self._entry_cells)
        self._tables_at = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with self._lock:
            if os.fstat(descriptor).st_size < self._tables_at:  # another process may have put tables behind it
                os.ftruncate(descriptor, self._tables_at)
            self._memory = memoryview(mmap.mmap(descriptor, size))
            self._numbers = self._memory.cast("q")
            secret = self._memory[(self._list_at + 2) * _CELL :][: _SECRET_CELLS * _CELL]
            if not any(secret):
                secret[:] = secrets.token_bytes(len(secret))
            self._secret = bytes(secret)
        self._known: dict[bytes, int] = {}
        self._tables: WeakValueDictionary[bytes, KeyedCounters] = WeakValueDictionary()
        self._crowded = [0]

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
        return Row(self._memory.cast("d")[at : at + 1], held, self._mine, self._lock)

    def keyed(self, key: bytes, keys: int) -> KeyedCounters:
        """The table of the limit with this key (16 bytes), the same in every worker, for this many of its own keys.

        A limit that is given room for more keys has a new one. Without room: a private one and a warning. What is spent
        is remembered for as long as a worker has the table, and after that until another limit needs the place.
        """
        found = self._tables.get(key)
        if found is not None and found.keys == keys:
            return found
        with self._lock:
            entry = self._entry(key, keys)
            if entry >= 0:
                self._numbers[entry + _USERS + self._mine] += 1
        if entry < 0:
            log.warning("there is no room for more limits with keys: a new one counts in each worker by itself")
            found = KeyedCounters(keys, crowded=self._crowded)
        else:
            memory = self._mapped(self._numbers[entry + _BEGIN], table_bytes(keys))
            found = KeyedCounters(
                keys, memory, self._secret, self._lock, self._mine + 1, self._workers, crowded=self._crowded
            )
            finalize(found, self._let_go, entry).atexit = False
        self._tables[key] = found
        return found

    def _let_go(self, entry: int) -> None:
        """Nobody here has the table any more. No lock: this may interrupt who holds it, and no other process writes."""
        self._numbers[entry + _USERS + self._mine] -= 1

    @property
    def crowded(self) -> int:
        """How often keys have found no room, in this process."""
        return self._crowded[0]

    def _entry(self, key: bytes, keys: int) -> int:
        """Of the table of this limit, its first cell in the list; -1 if there is no room for a new one."""
        numbers, unused = self._numbers, []
        for at in self._entries():
            if self._memory[at * _CELL :][:KEY_BYTES] == key and numbers[at + _KEYS] == keys:
                return at
            if not any(numbers[at + _USERS : at + _USERS + self._workers]):
                unused.append(at)
        size = -(-table_bytes(keys) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        taken, begin = numbers[self._list_at], numbers[self._list_at + 1] or self._tables_at
        if taken < MAX_TABLES and begin + size <= MAX_TABLE_BYTES:
            os.ftruncate(self._descriptor, begin + size)
            at = self._first_entry + taken * self._entry_cells
            numbers[at + _BEGIN], numbers[at + _SIZE] = begin, size
            numbers[self._list_at], numbers[self._list_at + 1] = taken + 1, begin + size
        else:
            fitting = (each for each in unused if numbers[each + _SIZE] >= size)
            at = min(fitting, key=lambda each: numbers[each + _SIZE], default=-1)
            if at < 0:
                return -1
            with mmap.mmap(self._descriptor, numbers[at + _SIZE], offset=numbers[at + _BEGIN]) as former:
                former.madvise(mmap.MADV_REMOVE)  # all 0, and no memory
        self._memory[at * _CELL :][:KEY_BYTES] = key
        numbers[at + _KEYS] = keys
        return at

    def _entries(self) -> range:
        """The first cell of each."""
        taken = self._numbers[self._list_at]
        return range(self._first_entry, self._first_entry + taken * self._entry_cells, self._entry_cells)

    def _mapped(self, begin: int, size: int) -> memoryview:
        return memoryview(mmap.mmap(self._descriptor, size, offset=begin))

    def forget(self, worker: int) -> None:
        """Free what this worker (counted from 1) held, because it has exited."""
        numbers = self._numbers
        with self._lock:
            for at in self._entries():
                keys = numbers[at + _KEYS]
                KeyedCounters(keys, self._mapped(numbers[at + _BEGIN], table_bytes(keys))).forget(worker)
                numbers[at + _USERS + worker - 1] = 0
        for number in range(self._numbers[0]):
            self._numbers[self._at(number) + _KEY_CELLS + worker] = 0

    def _at(self, number: int) -> int:
        """The first cell of a row."""
        return 1 + number * (_KEY_CELLS + 1 + self._workers)

    def _key(self, number: int) -> memoryview:
        return self._memory[self._at(number) * _CELL :][:KEY_BYTES]
