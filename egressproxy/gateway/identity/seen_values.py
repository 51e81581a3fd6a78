"""SharedSeenValues: what other gateways have signed of their clients is believed once, by all workers together."""

from __future__ import annotations

from hashlib import blake2b
from time import monotonic
from typing import Final

from egressproxy.model.forwarded_identity import MAX_AGE_S, MAX_SKEW_S, NotVerified, SeenValues
from egressproxy.net.keyed_counters import KEY_BYTES, KeyedCounters
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables

#: Values that have room at one time: 36 s of 7,280 a second, in 16 MiB that are taken with the first value. What finds
#: no room is remembered by the worker that has believed it.
MAX_SHARED: Final = 1 << 18
#: The same in all workers.
_TABLE: Final = blake2b(b"identities that gateways have signed", digest_size=KEY_BYTES).digest()
#: From the moment it comes a value may be shown again for as long, in seconds: it may be from ahead.
_HOLDS_S: Final = float(MAX_AGE_S + MAX_SKEW_S + 1)


class SharedSeenValues(SeenValues):
    """One per process; `tables` gives the memory that workers share."""

    __slots__ = ("_table", "_tables")

    def __init__(self, tables: KeyedTables) -> None:
        super().__init__()
        self._tables = tables
        self._table: KeyedCounters | None = None

    def take(self, time: int, mac: bytes, now: float) -> None:
        super().take(time, mac, now)
        table = self._table
        if table is None:
            table = self._table = self._tables(_TABLE, MAX_SHARED)
        key, moment = table.key(mac), monotonic()
        with table.lock:
            found = table.find(key, moment)
            if table.is_shared_entry(found):
                return
            if table.cells[found] > moment:
                raise NotVerified("repeated", "it was shown before")
            table.cells[found] = moment + _HOLDS_S
            table.cells[found + 1] = 1.0
