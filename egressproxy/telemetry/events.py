"""Events: notices, collapsed as Kubernetes collapses its Events, bounded in number and age, and logged; not on the
request path. What recurs at one object counts as one Event until it was silent for a while. Messages are told apart up
to a bound. Source: client-go tools/record (EventCorrelator), events.k8s.io/v1 EventSeries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import time
from typing import Final

from egressproxy.telemetry.event_aggregator import (
    MAX_MESSAGE,
    MAX_SIMILAR,
    NOTICES_S,
    EventType,
    InvolvedObject,
    Notice,
)
from egressproxy.telemetry.log_rate import LogRate
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger("egressproxy.events")

#: How many Events are kept, and for how long after the last occurrence: kube-apiserver's --event-ttl.
MAX_EVENTS: Final = 1000
MAX_AGE_S: Final = 3600.0
#: A series that is silent for longer has ended: the aggregation interval of client-go.
WINDOW_S: Final = 600.0
#: The prefix of the latest message where several are counted together; that of client-go.
COMBINED: Final = "(combined from similar events): "

#: What one reason at one object is: regarding, related, type, reason.
_GroupKey = tuple[InvolvedObject, InvolvedObject | None, str, str]


@dataclass(slots=True, eq=False)
class Event:
    """One series, with a `number` for the life of the process. Further notices of its group find it by `message`, or
    COMBINED for the rest of them.
    """

    number: int
    group: _GroupKey
    message: str
    notice: Notice
    log_at: int = 1  # the count at which it is logged next


class Events:
    """The Events of a gateway with all its workers, on its event loop; `clock` gives seconds since the epoch.
    `metrics`' notices are taken `wait_s` seconds after the first one, then `on_change` is called. Without
    `logs_exchanges` an Event whose exchange is in the access log is not logged.
    """

    def __init__(
        self, metrics: Metrics, on_change: Callable[[], None] = lambda: None, wait_s: float = NOTICES_S,
        clock: Callable[[], float] = time, *, logs_exchanges: bool = True,
    ) -> None:  # fmt: skip
        self._metrics = metrics
        self._on_change = on_change
        self._wait_s = wait_s
        metrics.notices.wake = self._take_soon
        self._clock = clock
        self._logs_exchanges = logs_exchanges
        self._events: dict[int, Event] = {}  # those that happened last are at the end
        self._groups: dict[_GroupKey, dict[str, Event]] = {}  # of those that were not silent for long, by message
        self._numbers = count(1)
        self._log_rate = LogRate()
        self.version = 0  # a new number after every change

    def take(self) -> None:
        self.add(self._metrics.notices.take())

    def _take_soon(self) -> None:
        asyncio.get_running_loop().call_later(self._wait_s, self.take)

    def add(self, notices: Sequence[Notice], *, is_logged: bool = False) -> None:
        """Count a notice. `is_logged`: the log has it already, in full."""
        if not notices:
            return
        for notice in notices:
            event = self._event(notice)
            self._metrics.events[notice.severity, notice.reason] += notice.count
            self.version += 1
            if is_logged:
                event.log_at = event.notice.count * 2
            elif event.notice.count >= event.log_at and (self._logs_exchanges or not notice.is_of_exchange):
                self._log(event)
            if len(self._events) > MAX_EVENTS:  # now: behind many that are gone the oldest is slow to find
                self._forget_old()
        self._forget_old()
        self._on_change()

    def all(self) -> list[tuple[int, Notice]]:
        """The number and a copy of each Event, the latest at the end."""
        self._forget_old()
        return [(event.number, replace(event.notice)) for event in self._events.values()]

    def _event(self, notice: Notice) -> Event:
        """The series that this notice belongs to, with the notice counted."""
        key = (notice.regarding, notice.related, notice.severity, notice.reason)
        group = self._groups.setdefault(key, {})
        message = COMBINED if notice.is_combined else notice.message
        event = group.get(message)
        if event is None and message is not COMBINED and len(group) >= MAX_SIMILAR:
            self._close_silent(group, notice.last_s)
            if len(group) >= MAX_SIMILAR:
                message = COMBINED
                event = group.get(message)
        if event is not None and notice.first_s - event.notice.last_s > WINDOW_S:
            event = None
        if event is None:
            number = next(self._numbers)
            event = group[message] = self._events[number] = Event(number, key, message, replace(notice))
        else:
            known = event.notice
            known.count += notice.count
            known.first_s = min(known.first_s, notice.first_s)
            known.last_s = max(known.last_s, notice.last_s)
            self._events[event.number] = self._events.pop(event.number)
        if message is COMBINED:
            event.notice.message = f"{COMBINED}{notice.message}"[:MAX_MESSAGE]
        return event

    @staticmethod
    def _close_silent(group: dict[str, Event], now: float) -> None:
        for message, event in list(group.items()):
            if now - event.notice.last_s > WINDOW_S:
                del group[message]

    def _forget_old(self) -> None:
        oldest = self._clock() - MAX_AGE_S
        while self._events:
            event = next(iter(self._events.values()))
            if event.notice.last_s >= oldest and len(self._events) <= MAX_EVENTS:
                return
            del self._events[event.number]
            self.version += 1
            group = self._groups.get(event.group, {})
            if group.get(event.message) is event:
                del group[event.message]
                if not group:
                    del self._groups[event.group]

    def _log(self, event: Event) -> None:
        """Log a new series, and each doubling of its count, within the rate of log lines."""
        notice = event.notice
        event.log_at = notice.count * 2
        left_out = self._log_rate.admit(self._clock())
        if left_out is None:
            return
        level = logging.WARNING if notice.severity == EventType.WARNING else logging.INFO
        if left_out:
            log.log(level, "%d earlier events were not logged", left_out)
        times = "" if notice.count == 1 else f" ({notice.count} times)"
        fields = {"reason": notice.reason, "object": str(notice.regarding), "count": notice.count}
        log.log(
            level, "%s on %s%s: %s", notice.reason, notice.regarding, times, notice.message, extra={"fields": fields}
        )
