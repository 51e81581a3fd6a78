"""What header and body chains make of a placed filter: steps with counters, deadlines and failures.

Trailers go on where every filter that looks at their direction sees them (RFC 9110 section 6.5). What must not come
late is left out by the gateway, behind all filters.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from inspect import iscoroutine
from time import perf_counter
from traceback import walk_tb
from typing import Any, TypeVar

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Filter, Phase, sees_trailers
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.error_budget import OutOfService
from egressproxy.filters.filter_trace import is_traced, traced
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse

R = TypeVar("R")
#: The gateway writes these itself: a second Content-Length is an error for clients (RFC 9112 section 6.3).
_FRAMING = frozenset((b"connection", b"content-length", b"transfer-encoding"))


class FilterStep:
    """One filter in one phase, or with the trailers behind a body (`method_name`). `call`: its method, or what is
    called in its place while it is measured or out of service; `own`: its method. `mode_for`: its `body_mode_for`;
    None: its `body_mode` holds for every body. `rest`: the steps of the phase after it.
    """

    __slots__ = (
        "__weakref__", "budget", "call", "decodes", "fail_open", "file", "filter", "mark", "mode_for", "only_reads",
        "own", "own_mark", "rest", "spec", "stats",
    )  # fmt: skip

    def __init__(self, placed: ConfiguredFilter, phase: Phase, rest: FilterSteps = (), method_name: str = "") -> None:
        method: Callable[..., object] = getattr(placed.filter, method_name or phase.method)
        self.file: str | None = getattr(getattr(method, "__code__", None), "co_filename", None)
        self.own = self.call = traced(placed.spec.name, phase.value, method) if is_traced() else method
        self.filter = placed.filter
        self.mode_for: Callable[..., object] | None = None
        self.budget = placed.budget
        self.decodes = placed.filter.decodes
        self.only_reads = placed.filter.only_reads
        self.spec = placed.spec
        self.fail_open = placed.spec.fail_open
        self.own_mark = placed.mark
        self.stats = placed.stats_in(phase)
        self.rest = rest
        self.put_back()
        placed.steps.add(self)
        if placed.budget is not None:
            placed.budget.place(self)

    def put_back(self) -> None:
        """The filter is in service."""
        self.call = self.own
        self.mark = self.own_mark
        decides = type(self.filter).body_mode_for is not Filter.body_mode_for
        self.mode_for = self.filter.body_mode_for if decides else None


FilterSteps = tuple[FilterStep, ...]


class FilterAnswered(GatewayError):
    """A body method has answered with this; an error where no client waits (a mirror, an authorization server)."""

    is_quotable = False

    def __init__(self, answer: LocalResponse, step: FilterStep) -> None:
        message = f"filter {step.spec.name} answered in place of the server"
        super().__init__(Reason.FILTER_REJECTED, message, status=answer.status, rule=step.spec.source)
        self.answer = answer


class DeadlinePassed(Exception):
    """The filter's `timeout` is over."""


class FilterCancelled(Exception):
    """The filter was cancelled from the inside."""


class FilterExited(Exception):
    """The filter raised SystemExit, KeyboardInterrupt or another BaseException that is not an Exception."""


def checked_answer(step: FilterStep, response: LocalResponse) -> LocalResponse:
    """The response without fields of the framing. Raises ValueError or TypeError for what is not valid in it."""
    if not (
        isinstance(response.status, int) and isinstance(response.body, bytes) and isinstance(response.phrase, bytes)
    ):
        raise TypeError("the status of a response is an int, its body and its phrase are bytes")
    Fields.of(response.fields)  # checks them
    kept = tuple(line for line in response.fields if line[0].lower() not in _FRAMING)
    step.stats.answered += 1
    return response if len(kept) == len(response.fields) else replace(response, fields=kept)


def settle(step: FilterStep, error: BaseException, *, may_fail_open: bool) -> None:
    """Count what a step raised. Returns if the exchange may go on without the filter.

    Raises a refusal (any GatewayError) again, with the declaring object as its rule if it names none, and
    GatewayFault(FILTER_FAILED, 502) for a failure. A refusal that says something of another type than it should is
    one. A filter that calls `sys.exit` has failed like any other: one request must not end the process.
    """
    if isinstance(error, GatewayError) and _is_sound(error):
        if not isinstance(error, FilterAnswered):
            step.stats.rejected += 1
        if error.rule == "-":
            error.rule = step.spec.source
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: no cycle
    name = f"filter {step.spec.name}"
    if isinstance(error, OutOfService):
        message = f"{name} is out of service"
        left_s = step.budget.left_s() if step.budget is not None else 0.0
        detail = f"{name} has failed too often, and is tried again in {left_s:.0f} s"
        raise GatewayFault(Reason.FILTER_FAILED, message, status=502, rule=step.spec.source, detail=detail) from None
    timed_out = isinstance(error, DeadlinePassed)
    kind = _kind(error)
    step.stats.fail(kind, is_open=may_fail_open)
    if timed_out:
        step.stats.timed_out += 1
    if step.budget is not None:
        step.budget.count(is_open=step.fail_open)
    if may_fail_open:
        return
    message = f"{name} did not answer in time" if timed_out else f"{name} failed"
    detail = f"{name}: {kind}{_place(step, error)}"
    raise GatewayFault(Reason.FILTER_FAILED, message, status=502, rule=step.spec.source, detail=detail) from None


def _is_sound(error: GatewayError) -> bool:
    """Whether a refusal can be told: filters may make them of anything."""
    texts = (error.message, error.rule, error.remedy, error.detail, error.policy, error.entry)
    return (
        isinstance(error.reason, Reason)
        and isinstance(error.status, int)
        and all(isinstance(each, str) for each in texts)
    )


def _kind(error: BaseException) -> str:
    """The type of the exception; of a call that has failed also the reason, a word of our own. Never what it said."""
    kind = type(error).__name__
    if isinstance(error, CallFailed) and isinstance(error.reason, Reason):
        return f"{kind} ({error.reason.value})"
    return kind


def _place(step: FilterStep, error: BaseException) -> str:
    """` at FILE:LINE` of the last frame in the filter's own file, else of the last frame; never what it said."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    shown = [place for place in places if place[0] == step.file] or places
    if not shown:
        return ""
    file, line = shown[-1]
    return f" at {os.path.basename(file)}:{line}"


async def wait(step: FilterStep, awaitable: Awaitable[R], exchange: Exchange) -> R:
    """Await what a step has returned, under its deadline. Raises DeadlinePassed, and what the filter raises."""
    is_for_people = step.filter.waits_for_people
    deadline = asyncio.timeout(None if is_for_people else step.spec.timeout_s or None)
    began = perf_counter()
    if is_for_people:
        exchange.hold_for_people(1)
    try:
        async with deadline:
            return await awaitable
    except TimeoutError:
        if deadline.expired():
            raise DeadlinePassed from None
        raise
    except asyncio.CancelledError:
        if _is_cancelled_from_outside():
            raise
        raise FilterCancelled from None  # the filter cancelled itself: a failure, not a client that left
    except GeneratorExit as error:
        if error.args:  # one that closes a coroutine has none: the filter has raised it, and its text is for nobody
            raise FilterExited(type(error).__name__) from None
        raise
    except Exception:
        raise
    except BaseException as error:
        raise FilterExited(type(error).__name__) from None  # a task would pass it on to the loop, which ends with it
    finally:
        if is_for_people:
            exchange.hold_for_people(-1)
        step.stats.took(perf_counter() - began)
        del deadline  # it holds the task, which holds the error, whose frames hold us: no cycle


def _is_cancelled_from_outside() -> bool:
    """Here, and not in `wait`: a frame in the traceback of a cancelled task must not hold the task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def start(coroutine: Coroutine[Any, Any, R], waiting: object) -> asyncio.Task[R]:
    """Start a task. If it is cancelled before it awaits `waiting`, that coroutine is closed: no warning."""
    task = asyncio.get_running_loop().create_task(coroutine)
    if iscoroutine(waiting):
        task.add_done_callback(lambda _task: waiting.close())
    return task


def trailer_steps(placed: Sequence[ConfiguredFilter], phase: Phase) -> FilterSteps:
    """Those of the filters that see the trailers behind REQUEST_BODY or RESPONSE_BODY, in this order."""
    name = phase.method.replace("body", "trailers")
    return tuple([FilterStep(each, phase, (), name) for each in placed if sees_trailers(each.filter, phase)])


def let_trailers(looking: Sequence[ConfiguredFilter], phase: Phase) -> bool:
    """Whether all of those filters that look at a head see the trailers of its message, too."""
    return bool(looking) and all(sees_trailers(each.filter, phase) for each in looking)


def run_trailers(steps: Sequence[FilterStep], exchange: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
    """Show these trailers to the filters. Returns what they leave of them, or a task that does.

    A filter that fails open leaves them as they were. Raises what a filter refuses with, and
    GatewayFault(FILTER_FAILED, 502) if one fails.
    """
    for position, step in enumerate(steps, 1):
        fields = Fields(block)
        step.stats.runs += 1
        try:
            result = step.call(exchange, fields)
            if isinstance(result, Awaitable):
                return start(_go_on(step, result, fields, steps[position:], exchange, block), result)
            block = _given(fields, result)
        except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
            settle(step, error, may_fail_open=step.fail_open)
    return block


async def _go_on(
    step: FilterStep,
    awaitable: Awaitable[object],
    fields: Fields,
    rest: Sequence[FilterStep],
    exchange: Exchange,
    block: bytes,
) -> bytes:
    try:
        block = _given(fields, await wait(step, awaitable, exchange))
    except Exception as error:
        settle(step, error, may_fail_open=step.fail_open)
    outcome = run_trailers(rest, exchange, block)
    return outcome if isinstance(outcome, bytes) else await outcome


def _given(fields: Fields, result: object) -> bytes:
    """Raises TypeError for a result that is none. What is out of service gives the fields back."""
    if result is not None and result is not fields:
        raise TypeError
    return fields.block
