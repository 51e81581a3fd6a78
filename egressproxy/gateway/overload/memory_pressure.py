"""MemoryPressure: how near the process is to the limit of its memory, and what follows. A value: it is told numbers.

The hard part is to open again. What was resident in a burst is mostly not given back, however little is in use: a free
object lies beside one that lives. But what is free within the process is used again before more is asked for. So a
state does not depend on the limit alone: once a good part of the load has gone and the memory stays, what stays is what
the process keeps (`kept`), and the thresholds rise to above that. They never rise above the limit, unless the
process keeps more than that; then it has a twentieth more to work with, since a gateway that refuses everything for
good serves nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class OverloadState(IntEnum):
    """How short of memory the process is. Each state adds to the measures of the states before."""

    NORMAL = 0
    NO_KEEPALIVE = 1  # connections end with their response, idle ones are closed, memory is given back
    SHEDDING = 2  # requests of low priority are refused, and those of tenants that have more than their share
    REFUSING = 3  # every request is refused, and no connection is accepted

    @property
    def text(self) -> str:
        return self.name.lower()


#: Shares of the limit at which each state begins, beginning with NO_KEEPALIVE.
ENTER: Final = (0.85, 0.92, 0.95)
#: So far below a state ends, so that it does not change all the time.
HYSTERESIS: Final = 0.03
#: The same as shares of what lies between `kept` and the limit.
ENTER_ABOVE_KEPT: Final = (0.40, 0.65, 0.80)
HYSTERESIS_ABOVE_KEPT: Final = 0.15
#: The share of the limit that is left above the memory kept at rest, at least.
LEAST_ROOM: Final = 0.05
#: Growth below this share of the limit is none.
GROWTH: Final = 0.005
#: Memory that does not grow for so long, in seconds, is what the process keeps: where half of the load, or more, has
#: gone (it is given back meanwhile, as far as that goes); up to the limit, whatever the load is; and in any case.
CALM_S: Final = 1.5
STEADY_S: Final = 10.0
LONG_STEADY_S: Final = 300.0


@dataclass(slots=True, eq=False, repr=False)
class MemoryPressure:
    """`limit` in bytes. `state` is that of the last look."""

    limit: int
    kept: int = 0
    state: OverloadState = OverloadState.NORMAL
    _peak: int = 0  # the highest load since it began
    _steady_at: int = 0  # bytes, and since when it has not grown above
    _steady_since: float = 0.0
    _calm_since: float = 0.0

    def observe(self, resident: int, load: int, now: float) -> OverloadState:
        """`resident` bytes; `load`: connections of clients and requests in progress; `now`: seconds of the wheel.
        Returns the state from now on.
        """
        if not self.kept or resident < self.kept:
            self.kept = resident  # at first: what the process has before it serves anybody
        if resident > self._steady_at + self.limit * GROWTH or self.state is OverloadState.NORMAL:
            self._steady_at, self._steady_since = resident, now
        self._peak = max(self._peak, load)
        if load > self._peak // 2 or self._steady_since == now:
            self._calm_since = now
        steady_s = now - self._steady_since
        if now - self._calm_since >= CALM_S or steady_s >= LONG_STEADY_S:
            self.kept = max(self.kept, resident)
            self._peak = load
            self._steady_at, self._steady_since, self._calm_since = resident, now, now
        elif steady_s >= STEADY_S:
            self.kept = max(self.kept, min(resident, self.limit))
        self.state = self._state(resident)
        if self.state is OverloadState.NORMAL:
            self._peak = load
        return self.state

    @property
    def most(self) -> int:
        """What the process may have, in bytes: the limit, or a little more than it keeps."""
        return self.kept + self._room

    @property
    def _room(self) -> int:
        return max(self.limit - self.kept, int(self.kept * LEAST_ROOM))

    def _state(self, resident: int) -> OverloadState:
        room = self._room
        found = OverloadState.NORMAL
        for state in (OverloadState.NO_KEEPALIVE, OverloadState.SHEDDING, OverloadState.REFUSING):
            share, above = ENTER[state - 1], ENTER_ABOVE_KEPT[state - 1]
            if state <= self.state:  # a state ends at a lower share than it begins
                share -= HYSTERESIS
                above -= HYSTERESIS_ABOVE_KEPT
            if resident >= max(self.limit * share, self.kept + room * above):
                found = state
        return found
