"""ConcurrencyRule: exchanges in progress, for each key; in all workers of this machine, in which it is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import monotonic

from egressproxy.filters.limits.keys import KeyText
from egressproxy.model.exchange import Exchange
from egressproxy.net.keyed_counters import KeyedCounters


@dataclass(slots=True, eq=False)
class ConcurrencyRule:
    """At most `limit` exchanges of one key at the same time. Each worker counts what it holds in an entry of its own,
    which is freed when it has exited.
    """

    name: str
    limit: int
    text: KeyText
    table: KeyedCounters
    allows: str
    allowed: int = 0
    denied: int = 0

    @property
    def message(self) -> str:
        """What a client is told that goes beyond it."""
        return f"more than {self.allows}"

    def enter(self, x: Exchange, model: str) -> int:
        """Count this exchange. Returns the place that `leave` needs, -1 if there are as many as may be."""
        table, now = self.table, monotonic()
        text = self.text(x, model)
        with table.lock:
            if table.mine:
                held = sum([table.peek(table.key(text, owner), now)[1] for owner in table.owners])
                at = table.find(table.key(text, table.mine), now) if held < self.limit else -1
            else:  # alone: what is held is what its own entry says
                at = table.find_text(text, now)
            if at >= 0 and table.cells[at + 1] < self.limit:  # those without room share one entry
                table.cells[at] = math.inf
                table.cells[at + 1] += 1
                self.allowed += 1
                return at
        self.denied += 1
        return -1

    def leave(self, at: int) -> None:
        """Count it down."""
        table = self.table
        with table.lock:
            table.cells[at + 1] -= 1
            if table.cells[at + 1] <= 0:
                table.cells[at] = 0.0

    def in_progress(self, x: Exchange, model: str) -> int:
        """Exchanges of the key of this one."""
        now = monotonic()
        text = self.text(x, model)
        return int(sum([self.table.peek(self.table.key(text, owner), now)[1] for owner in self.table.owners]))
