"""ErrorBudget: a filter that fails too often is out of service for a while.

Its place refuses at once then, without running it, or goes on without it where it is declared to fail open. The first
call after that time runs it again, on trial: one more failure takes it out again. While a filter is in service the
budget costs nothing: a filter that is out has another `call` in its steps.

There is none by default: clients that can make a filter fail could switch it off for others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from egressproxy.filters.base import Filter
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.telemetry.event_aggregator import FilterNotices, FilterStats
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics


class OutOfService(Exception):
    """The filter is out of service, and its place is closed."""


class PlacedStep(Protocol):
    """A step in which a filter runs: see `filter_step.FilterStep`."""

    call: Callable[..., object]
    mode_for: Callable[..., object] | None
    mark: StateSlot[bool] | None
    fail_open: bool
    filter: Filter
    stats: FilterStats

    def put_back(self) -> None:
        """The filter is in service."""


class ErrorBudget:
    """That of one placed filter. `steps` are where it runs."""

    __slots__ = ("_failures", "_gauge", "_limit", "_notices", "_out_until", "_scope", "_window_s", "steps")

    def __init__(self, spec: ExtensionIR, metrics: FilterMetrics, notices: FilterNotices) -> None:
        self._limit = spec.budget_failures
        self._window_s = spec.budget_window_s
        self._failures: deque[float] = deque(maxlen=self._limit)  # monotonic seconds
        self._out_until = 0.0  # monotonic seconds; 0.0: it is in service
        self._notices = notices
        self._scope = spec.scope
        meter = FilterMeter(metrics, spec.name, "egressproxy.io/ErrorBudget:v1")
        self._gauge = meter.gauge(
            "egress_filter_out_of_service", "Workers in which a filter is out of service.", ("scope",)
        )
        self._gauge.set(0, self._scope)
        self.steps: WeakSet[PlacedStep] = WeakSet()

    def left_s(self) -> float:
        """Seconds for which the filter is out of service yet; 0.0 if it runs."""
        return max(0.0, self._out_until - monotonic()) if self._out_until else 0.0

    def place(self, step: PlacedStep) -> None:
        """The filter runs in one more step."""
        self.steps.add(step)
        if self._out_until:
            _take_out(self, step)

    def count(self, *, is_open: bool) -> None:
        """The filter has failed; `is_open`: exchanges go on without it."""
        if self._out_until:
            return  # of a call that had begun before
        now = monotonic()
        self._failures.append(now)
        if len(self._failures) < self._limit or now - self._failures[0] > self._window_s:
            return
        self._out_until = now + self._window_s
        for step in self.steps:
            _take_out(self, step)
        self._gauge.set(1, self._scope)
        what = "exchanges go on without it (failOpen)" if is_open else "exchanges are refused (502)"
        self._notices.warning(
            "FilterOutOfService",
            f"it has failed {self._limit} times in {self._window_s:g} s and is out of service for {self._window_s:g} s;"
            f" {what}",
        )

    def take_back(self) -> bool:
        """Run the filter again if its time is over. Returns whether it is."""
        if self._out_until and monotonic() < self._out_until:
            return False
        if self._out_until:
            self._out_until = 0.0
            now = monotonic()
            self._failures.extend(now for _ in range(self._limit - 1))
            if self._limit > 1:
                self._failures.popleft()  # one more failure, and it is out again
            for step in self.steps:
                step.put_back()
            self._gauge.set(0, self._scope)
            self._notices.normal("FilterBackInService", "it runs again; one more failure takes it out again")
        return True


def _take_out(budget: ErrorBudget, step: PlacedStep) -> None:
    out = _Out(budget, step)
    step.call = out
    step.mode_for = out.mode_for
    step.mark = None  # a filter that has not run needs no `complete`


class _Out:
    """What a step calls in place of a filter that is out of service."""

    __slots__ = ("_budget", "_step")

    def __init__(self, budget: ErrorBudget, step: PlacedStep) -> None:
        self._budget = budget
        self._step = step

    def __call__(self, exchange: Exchange, *piece: object) -> object:
        step = self._step
        if self._budget.take_back():
            if step.mark is not None:
                exchange.keep(step.mark, True)
            return step.call(exchange, *piece)
        step.stats.out_of_service += 1
        if not step.fail_open:
            raise OutOfService
        return piece[0] if piece else None

    def mode_for(self, exchange: Exchange, phase: object) -> object:
        """As `body_mode_for` of the filter."""
        step = self._step
        if self._budget.take_back():
            return step.filter.body_mode if step.mode_for is None else step.mode_for(exchange, phase)
        step.stats.out_of_service += 1
        if not step.fail_open:
            raise OutOfService  # the caller counts the run
        step.stats.runs += 1
        return None
