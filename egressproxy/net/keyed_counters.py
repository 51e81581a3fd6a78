"""KeyedCounters: the numbers of one limit for each of its keys, in memory of a fixed size that all workers share.

An entry is 32 bytes: the key (16 bytes, a keyed hash), `until` and `used`. It is as new once `until` (monotonic
seconds) has passed, and only then may another key have it: what a key has spent is never forgotten early, however many
other keys come. A key that finds no room shares one entry with all that find none, so that it gets less, and never
more. An entry is looked for where its key leads to, and in the next ones (linear probing); it never becomes empty
again, so that the search may end at an empty one.

Limits of clients that are known share one such memory (`of_limit`): thousands of tables with a key or two each would be
as many pages of memory.

The caller holds `lock` from `find` until it has written.
"""

from __future__ import annotations

import mmap
import secrets
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from hashlib import blake2b
from struct import Struct
from typing import Final
from weakref import WeakValueDictionary

KEY_BYTES: Final = 16
ENTRY_BYTES: Final = 32
#: What the memory is known by that limits share, and how many keys have room in it.
SHARED: Final = bytes(KEY_BYTES)
SHARED_KEYS: Final = 1 << 18
#: Entries that are looked at for one key. With half of them taken, two are usual.
_PROBES: Final = 64
_CELLS: Final = ENTRY_BYTES // 8
#: Keys whose place is remembered, of all limits that share a memory, and the longest text of such a key in bytes.
_KNOWN: Final = 4096
_SHORT: Final = 256
#: Tables that are kept though nobody has them.
LATEST: Final = 512
_PAIR: Final = Struct("=qq")
_NO_LOCK: Final = nullcontext()


def table_bytes(keys: int) -> int:
    """The size of a table in which this many keys have room: twice as many entries, and one for all others."""
    return (_entries(keys) + 1) * ENTRY_BYTES


def _entries(keys: int) -> int:
    return 1 << max(1, 2 * keys - 1).bit_length()


class KeyedCounters:
    """`memory` has `table_bytes` bytes, all 0 at first. `secret` makes the hash unpredictable: nobody can choose keys
    that are looked for in the same place. `lock` is for those that share the memory: `workers` processes, of which this
    one is number `mine` (from 1); alone it is 0. `crowded` counts keys without room, for several tables together.
    `remembers`: set it where no text of a key is a secret.
    """

    __slots__ = (
        "__weakref__", "_base", "_bytes", "_crowded", "_known", "_mask", "_secret", "cells", "keys", "limit", "lock",
        "mine", "numbers", "owners", "remembers",
    )  # fmt: skip

    def __init__(
        self,
        keys: int,
        memory: memoryview | None = None,
        secret: bytes = b"",
        lock: AbstractContextManager[None] = _NO_LOCK,
        mine: int = 0,
        workers: int = 0,
        crowded: list[int] | None = None,
    ) -> None:
        if memory is None:
            memory = memoryview(mmap.mmap(-1, table_bytes(keys)))
            secret = secret or secrets.token_bytes(32)
        #: `cells[at]` is `until` and `cells[at + 1]` is `used` of the entry that `find` has found.
        self.cells = memory.cast("d")
        self.numbers = memory.cast("q")
        self.lock = lock
        self.keys = keys
        self.mine = mine
        self.owners = range(1, workers + 1) if workers else range(1)
        self._mask = _entries(keys) * _CELLS - 1
        self._secret = secret
        self.limit = b""
        self._crowded = [0] if crowded is None else crowded
        self._base: KeyedCounters | None = None
        self.remembers = False
        self._bytes = memory.cast("B")
        #: By the text of a key: the bytes of the entry that had it, the key, and what `find` returns.
        self._known: dict[bytes, tuple[memoryview, bytes, int]] = {}

    def of_limit(self, limit: bytes) -> KeyedCounters:
        """The same memory for the keys of one limit (16 bytes that it is known by): those of another are other keys."""
        made = copy(self)
        made.limit = limit
        made._base = self  # who counts what is used (`SharedCounters`) knows that one
        return made

    def key(self, text: bytes, owner: int = 0) -> bytes:
        """The key for what a limit counts apart. `owner`: the worker (0 to 255) whose own entry it is; 0: of all."""
        made = blake2b(text, digest_size=KEY_BYTES - 1, key=self._secret, person=self.limit)
        return made.digest() + bytes((owner,))

    def find(self, key: bytes, now: float) -> int:
        """Where a key's numbers are, for `cells`: its entry, a new one, or the shared one. `now`: monotonic seconds."""
        first, second = _PAIR.unpack(key)
        numbers, cells, mask = self.numbers, self.cells, self._mask
        at: int = first * _CELLS & mask
        free = -1
        for _ in range(_PROBES):
            if numbers[at] == first and numbers[at + 1] == second:
                if cells[at + 2] <= now:
                    cells[at + 3] = 0.0
                return at + 2
            if cells[at + 2] <= now:
                if free < 0:
                    free = at
                if numbers[at] == 0 == numbers[at + 1]:
                    break
            at = at + _CELLS & mask
        if free < 0:
            self._crowded[0] += 1
            at = mask + 3  # behind the last
            if cells[at] <= now:
                cells[at + 1] = 0.0
            return at
        numbers[free], numbers[free + 1] = first, second
        cells[free + 2] = cells[free + 3] = 0.0
        return free + 2

    def find_text(self, text: bytes, now: float) -> int:
        """As `find`, for the key of this text: nearly always where it was before, since a key never has two entries."""
        name = self.limit + text
        known = self._known.get(name)
        if known is not None:
            entry, key, found = known
            if entry == key:
                if self.cells[found] <= now:
                    self.cells[found + 1] = 0.0
                return found
        key = self.key(text)
        found = self.find(key, now)
        if self.remembers and found <= self._mask and len(text) <= _SHORT:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            begin = (found - 2) * 8
            self._known[name] = (self._bytes[begin : begin + KEY_BYTES], key, found)
        return found

    def is_shared_entry(self, at: int) -> bool:
        """Whether what `find` has found is the one entry of all keys without room."""
        return at > self._mask

    @property
    def crowded(self) -> int:
        """How often a key has found no room, in this process; of all tables that count together."""
        return self._crowded[0]

    def peek(self, key: bytes, now: float) -> tuple[float, float]:
        """`until` and `used` of a key, (0.0, 0.0) where it is as new. Changes nothing."""
        first, second = _PAIR.unpack(key)
        numbers, cells, mask = self.numbers, self.cells, self._mask
        at = first * _CELLS & mask
        for _ in range(_PROBES):
            if numbers[at] == first and numbers[at + 1] == second:
                return (cells[at + 2], cells[at + 3]) if cells[at + 2] > now else (0.0, 0.0)
            if numbers[at] == 0 == numbers[at + 1]:
                break
            at = at + _CELLS & mask
        return 0.0, 0.0

    def forget(self, owner: int) -> None:
        """Free the entries of a worker that has exited."""
        memory = self.numbers.cast("B")
        owners = bytes(memory[KEY_BYTES - 1 :: ENTRY_BYTES])
        at = owners.find(owner)
        while at >= 0:
            self.cells[at * _CELLS + 2] = self.cells[at * _CELLS + 3] = 0.0
            at = owners.find(owner, at + 1)

    def in_use(self, now: float) -> int:
        """Entries that are not as new, that of the keys without room included."""
        return sum(until > now for until in self.cells[2::_CELLS])


class OwnCounters:
    """The tables of a process that serves alone, by the limit that they belong to. They live as long as somebody has
    them, and the LATEST of them longer: a limit that a reload takes away may come back with the next.
    """

    __slots__ = ("_crowded", "_latest", "_made", "_secret")

    def __init__(self) -> None:
        self._made: WeakValueDictionary[bytes, KeyedCounters] = WeakValueDictionary()
        self._latest: OrderedDict[bytes, KeyedCounters] = OrderedDict()
        self._secret = secrets.token_bytes(32)
        self._crowded = [0]

    def keyed(self, key: bytes, keys: int) -> KeyedCounters:
        """That of the limit with this key, for this many of its own keys; made at the first call."""
        found = self._made.get(key)
        if found is None or found.keys != keys:
            found = self._made[key] = KeyedCounters(keys, secret=self._secret, crowded=self._crowded)
        self._latest[key] = found
        self._latest.move_to_end(key)
        if len(self._latest) > LATEST:
            self._latest.popitem(last=False)
        return found

    @property
    def crowded(self) -> int:
        """How often keys have found no room."""
        return self._crowded[0]

    def __repr__(self) -> str:
        return f"OwnCounters({len(self._made)} limits)"
