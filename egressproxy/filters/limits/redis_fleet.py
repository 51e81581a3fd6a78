"""RedisFleet: what all workers of this machine know of the machines that count in one Redis."""

from __future__ import annotations

import math
from typing import Final

from egressproxy.net.keyed_counters import KeyedCounters

#: Seconds for which a machine keeps to its share when the Redis is back: until the others have counted there what they
#: took without it. A link that was lost is made again within ten.
SHARING_S: Final = 15.0
#: How many keys its table has room for.
FLEET_KEYS: Final = 2


class RedisFleet:
    """How many machines there are, and until when each keeps to its share. `table` is that of all workers of this
    machine, so that one which has asked nothing yet knows it, too. `now`: monotonic seconds.
    """

    __slots__ = ("_cells", "_machines", "_until")

    def __init__(self, table: KeyedCounters, now: float) -> None:
        self._cells = table.cells
        with table.lock:
            self._machines = _entry(table, b"how many", now)
            self._until = _entry(table, b"until", now)

    @property
    def machines(self) -> int:
        """How many machines there are, this one included; 1 if the Redis has not told it yet."""
        return max(1, int(self._cells[self._machines]))

    def told(self, machines: int, now: float) -> None:
        """The Redis says that there are so many. While they share, those that it misses are still there."""
        known = self._cells[self._machines]
        if machines != known and (machines > known or not self.is_sharing(now)):
            self._cells[self._machines] = machines

    def is_sharing(self, now: float) -> bool:
        """Whether this machine passes no more than its share, whatever the Redis says."""
        return self._cells[self._until] > now

    def share(self, now: float) -> None:
        """The Redis is away, or just back: this machine keeps to its share until the others have paid."""
        self._cells[self._until] = now + SHARING_S


def _entry(table: KeyedCounters, name: bytes, now: float) -> int:
    """The place of a number that is never forgotten."""
    at = table.find(table.key(name), now)
    table.cells[at] = math.inf
    return at + 1
