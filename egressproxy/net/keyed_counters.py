"""KeyedCounters: the numbers of one limit for each of its keys, in memory of a fixed size that all workers share.

An entry is 32 bytes: the key (16 bytes, a keyed hash), `until` and `used`. Another key may reuse an entry only once
`until` (monotonic seconds) has passed, so a flood of keys cannot reset a key's usage early. All keys without room share
one overflow entry, so they get less, never more. The search uses linear probing; entries never become empty again, so
it may end at an empty entry.

Limits of known clients share one such memory (`of_limit`): thousands of tables with a key or two each would take as
many pages of memory.

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
#: The key of the memory that limits share, and the number of keys with room in it.
SHARED: Final = bytes(KEY_BYTES)
SHARED_KEYS: Final = 1 << 18
#: The most entries probed for one key. In a half-full table, two are usual.
_PROBES: Final = 64
_CELLS: Final = ENTRY_BYTES // 8
#: The most keys whose position is cached, over all limits of a memory, and the longest text of such a key in bytes.
_KNOWN: Final = 4096
_SHORT: Final = 256
#: The most unused tables that are kept.
LATEST: Final = 512
#: Rounding in sums of intervals.
_ROUNDING: Final = 1e-6
_PAIR: Final = Struct("=qq")
_NO_LOCK: Final = nullcontext()


def table_bytes(keys: int) -> int:
    """The bytes of a table with room for `keys` keys: twice as many entries, and the overflow entry."""
    return (_entries(keys) + 1) * ENTRY_BYTES


def _entries(keys: int) -> int:
    return 1 << max(1, 2 * keys - 1).bit_length()


class KeyedCounters:
    """`memory` has `table_bytes` bytes, all 0 at first. `secret` makes the hash unpredictable, so that clients cannot
    choose colliding keys. `lock` excludes the other `workers` processes that share the memory, of which this one is
    number `mine` (from 1; alone: 0). `crowded` counts keys without room, for several tables together. Set `remembers`
    only if no key's text is secret.
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
        #: `cells[at]` is `until` and `cells[at + 1]` is `used` of the entry that `find` returned.
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
        #: Text of a key -> the bytes of its entry, the key, and the result of `find`.
        self._known: dict[bytes, tuple[memoryview, bytes, int]] = {}

    def of_limit(self, limit: bytes) -> KeyedCounters:
        """A view of this memory for one limit (named by 16 bytes), whose keys differ from those of other limits."""
        made = copy(self)
        made.limit = limit
        made._base = self  # `SharedCounters` counts use on the base
        return made

    def key(self, text: bytes, owner: int = 0) -> bytes:
        """The key of a text that a limit counts apart. `owner`: the worker (0 to 255) of the entry; 0: shared."""
        made = blake2b(text, digest_size=KEY_BYTES - 1, key=self._secret, person=self.limit)
        return made.digest() + bytes((owner,))

    def find(self, key: bytes, now: float) -> int:
        """The index in `cells` of a key's entry: existing, new, or the overflow entry. `now`: monotonic seconds."""
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
            at = mask + 3  # after the last
            if cells[at] <= now:
                cells[at + 1] = 0.0
            return at
        numbers[free], numbers[free + 1] = first, second
        cells[free + 2] = cells[free + 3] = 0.0
        return free + 2

    def find_text(self, text: bytes, now: float) -> int:
        """`find` for the key of this text, with a cache: a key never has two entries."""
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

    def take_token(self, text: bytes, now: float, limit: int, interval_s: float) -> float:
        """Take a token from the bucket of this text: it holds `limit`, and gets one more each `interval_s` seconds.
        Returns 0.0, or the seconds until there is one. The entry's `until` is when the bucket is full.
        """
        with self.lock:
            at = self.find_text(text, now)
            until = max(self.cells[at], now)
            wait_s = until - now - interval_s * (limit - 1 + _ROUNDING)
            if wait_s <= 0.0:
                self.cells[at] = until + interval_s
            return max(0.0, wait_s)

    def is_shared_entry(self, at: int) -> bool:
        """Whether `at` is the overflow entry of all keys without room."""
        return at > self._mask

    @property
    def crowded(self) -> int:
        """The number of times that a key found no room, in this process, over all tables that count together."""
        return self._crowded[0]

    def peek(self, key: bytes, now: float) -> tuple[float, float]:
        """`until` and `used` of a key, (0.0, 0.0) for an expired or missing entry. Changes nothing."""
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


class OwnCounters:
    """The tables of a single serving process, by limit. A table lives while it is referenced, and the LATEST tables
    longer: a limit that one reload removes may come back with the next.
    """

    __slots__ = ("_crowded", "_latest", "_made", "_secret")

    def __init__(self) -> None:
        self._made: WeakValueDictionary[bytes, KeyedCounters] = WeakValueDictionary()
        self._latest: OrderedDict[bytes, KeyedCounters] = OrderedDict()
        self._secret = secrets.token_bytes(32)
        self._crowded = [0]

    def keyed(self, key: bytes, keys: int) -> KeyedCounters:
        """The table of the limit `key`, with room for `keys` keys; created at the first call."""
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
        """The number of times that keys found no room."""
        return self._crowded[0]

    def __repr__(self) -> str:
        return f"OwnCounters({len(self._made)} limits)"
