"""Durations and traces of filters, without cost for requests unless metrics or debug logs are read.

Filters that wait are always measured (`filter_step.wait`); of the others, which run in microseconds, only the first few
calls after each scrape. At log level debug each run of a filter is a line.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic, perf_counter
from traceback import format_exception
from typing import Any, Final, Protocol

from egressproxy.errors import GatewayError
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.telemetry.event_aggregator import FilterStats
from egressproxy.telemetry.log_rate import LogRate

log = logging.getLogger("egressproxy.filters")

#: The number of calls that are measured after a scrape.
SAMPLES: Final = 8

_shows_all = False
_log_rate: Final = LogRate()
_shows: Final[ContextVar[list[str] | None]] = ContextVar("egressproxy.filters.shows_failures", default=None)


class MeasuredStep(Protocol):
    """The interface of `filter_step.FilterStep` here."""

    call: Callable[..., object]
    own: Callable[..., object]
    stats: FilterStats


class Sampled:
    """A wrapper that measures a few calls of a filter's method."""

    __slots__ = ("_left", "_step")

    def __init__(self, step: MeasuredStep) -> None:
        self._step = step
        self._left = SAMPLES

    def __call__(self, *given: Any) -> object:
        step = self._step
        self._left -= 1
        if self._left <= 0 and step.call is self:
            step.call = step.own
        began = perf_counter()
        result = step.own(*given)
        if not isinstance(result, Awaitable):
            step.stats.took(perf_counter() - began)
        return result


def show_failures() -> None:
    """Log failures in this process with the text of their exceptions, which may hold secrets, and their tracebacks."""
    global _shows_all
    _shows_all = True


@contextmanager
def failures_shown() -> Iterator[list[str]]:
    """`show_failures` for what runs here; yields a list of the tracebacks so far."""
    shown: list[str] = []
    token = _shows.set(shown)
    try:
        yield shown
    finally:
        _shows.reset(token)


def shows_failures() -> bool:
    return _shows_all or _shows.get() is not None


def show_failure(what: str, error: BaseException | None) -> None:
    """Log a failure with its text and its traceback; without an error, what was done wrong alone. Where traffic may
    cause it, within the rate of log lines.
    """
    if (shown := _shows.get()) is not None:
        shown.append(what if error is None else "".join(format_exception(error)).rstrip())
    elif (left_out := _log_rate.admit(monotonic())) is None:
        return
    elif left_out:
        log.error("%d earlier failures of filters were not logged here; Events and metrics count them all", left_out)
    log.error("%s", what, exc_info=error)


def is_traced() -> bool:
    return log.isEnabledFor(logging.DEBUG)


def traced(name: str, phase: str, method: Callable[..., object]) -> Callable[..., object]:
    """The method with a log line for each call: result, time, and names of changed fields."""

    def call(exchange: Exchange, *piece: Any) -> object:
        before, began = _heads(exchange), perf_counter()
        try:
            result = method(exchange, *piece)
        except BaseException as error:
            _say(exchange, name, phase, _failure(error), began, before)
            raise
        if isinstance(result, Awaitable):
            return later(exchange, piece, result, began, before)
        _say(exchange, name, phase, _outcome(result, piece), began, before)
        return result

    async def later(
        exchange: Exchange, piece: tuple[Any, ...], waiting: Awaitable[object], began: float, before: tuple[Any, ...]
    ) -> object:
        try:
            result = await waiting
        except BaseException as error:
            _say(exchange, name, phase, _failure(error), began, before)
            raise
        _say(exchange, name, phase, _outcome(result, piece), began, before)
        return result

    return call


def _failure(error: BaseException) -> str:
    return "rejected" if isinstance(error, GatewayError) else f"failed ({type(error).__name__})"


def _outcome(result: object, piece: tuple[Any, ...]) -> str:
    if isinstance(result, LocalResponse):
        return f"answered ({result.status})"
    if piece and isinstance(result, bytes) and result != piece[0]:
        return f"passed ({len(piece[0])} to {len(result)} bytes)"
    return "passed"


def _heads(exchange: Exchange) -> tuple[Any, ...]:
    return (
        *((exchange.request.fields.block, exchange.request.path) if exchange.has_request else (b"", b"")),
        *((exchange.response.fields.block, exchange.response.status) if exchange.has_response else (b"", 0)),
    )


def _say(exchange: Exchange, name: str, phase: str, outcome: str, began: float, before: tuple[Any, ...]) -> None:
    took = (perf_counter() - began) * 1e6
    after = _heads(exchange)
    changed = [
        *_names("request", before[0], after[0]),
        *(["path"] if before[1] != after[1] else []),
        *_names("response", before[2], after[2]),
        *(["status"] if before[3] != after[3] else []),
    ]
    log.debug(
        "request %s: filter %s, %s: %s in %d us%s",
        exchange.request_id, name, phase, outcome, took, f"; changed {', '.join(changed)}" if changed else "",
    )  # fmt: skip


def _names(side: str, before: bytes, after: bytes) -> list[str]:
    """The names of changed fields."""
    if before == after:
        return []
    lines = set(Fields(before)) ^ set(Fields(after))
    return [f"{side} {name}" for name in sorted({name.decode("latin-1") for name, _ in lines})]
