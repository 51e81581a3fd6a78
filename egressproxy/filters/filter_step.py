"""FilterStep: a filter in one phase of a header or body chain, with counters, deadline and failures.

Trailers are forwarded if every filter of their direction sees them (RFC 9110 section 6.5). The gateway removes
forbidden trailers after all filters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Filter, Phase, sees_trailers
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.error_budget import OutOfService
from egressproxy.filters.filter_trace import is_traced, traced
from egressproxy.model.exchange import Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.fields import VALUE, Fields
from egressproxy.model.local_response import LocalResponse

R = TypeVar("R")
#: The gateway writes these itself: a second Content-Length is an error for clients (RFC 9112 section 6.3).
_FRAMING = frozenset((b"connection", b"content-length", b"transfer-encoding"))


class FilterStep:
    """One filter in one phase, or for trailers (`method_name`). `call`: its `method`, or the replacement while the
    filter is measured or out of service; `own`: the method itself. `mode_for`: the `body_mode_for`; None: `body_mode`
    applies to every body. `rest`: the later steps of the phase.
    """

    __slots__ = (
        "__weakref__", "budget", "call", "decodes", "fail_open", "filter", "is_of_users", "mark", "method", "mode_for",
        "only_reads", "own", "own_mark", "rest", "spec", "stats",
    )  # fmt: skip

    def __init__(self, placed: ConfiguredFilter, phase: Phase, rest: FilterSteps = (), method_name: str = "") -> None:
        self.method = method_name or phase.method
        method: Callable[..., object] = getattr(placed.filter, self.method)
        self.is_of_users = placed.watch is not None
        if placed.watch is not None:
            method = placed.watch.watched(method)
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
        """Put the filter back in service."""
        self.call = self.own
        self.mark = self.own_mark
        decides = type(self.filter).body_mode_for is not Filter.body_mode_for
        self.mode_for = self.filter.body_mode_for if decides else None


FilterSteps = tuple[FilterStep, ...]


class FilterAnswered(GatewayError):
    """A body method has returned a LocalResponse; an error if no client waits (mirror, authorization server)."""

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
    """The response without framing fields, and without a body where none may be. Raises ValueError or TypeError for an
    invalid response.
    """
    try:
        if not (
            isinstance(response.status, int) and isinstance(response.body, bytes) and isinstance(response.phrase, bytes)
        ):
            raise TypeError
        Fields.of(response.fields)  # checks them
        if VALUE.fullmatch(response.phrase) is None:
            raise ValueError("the phrase of a response is one line without control characters")
    except TypeError:
        from egressproxy.filters.author_errors import wrong_response

        raise wrong_response() from None
    kept = tuple(line for line in response.fields if line[0].lower() not in _FRAMING)
    step.stats.answered += 1
    body = b"" if response.status in (204, 304) else response.body  # RFC 9110 section 6.4.1: they have none
    is_same = len(kept) == len(response.fields) and body == response.body
    return response if is_same else replace(response, fields=kept, body=body)


def settle(step: FilterStep, error: BaseException, *, may_fail_open: bool) -> None:
    """Count the error of a step. Returns if the exchange may go on without the filter.

    Re-raises a refusal (any GatewayError), with the declaring object as its rule if it names none, and raises
    GatewayFault(FILTER_FAILED, 502) for a failure. A refusal with attributes of a wrong type is a failure. So is
    `sys.exit`: one request must not end the process.
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
    what, detail = failed(step.filter, step.method, step.spec.name, error)
    step.stats.fail(what, is_open=may_fail_open, is_counted=True)
    if timed_out:
        step.stats.timed_out += 1
    if step.budget is not None:
        step.budget.count(is_open=step.fail_open)
    if may_fail_open:
        return
    message = f"{name} did not answer in time" if timed_out else f"{name} failed"
    raise GatewayFault(Reason.FILTER_FAILED, message, status=502, rule=step.spec.source, detail=detail) from None


def _is_sound(error: GatewayError) -> bool:
    """Whether a refusal's attributes have the right types: users' filters may set anything."""
    texts = (error.message, error.rule, error.remedy, error.detail, error.policy, error.entry)
    return (
        isinstance(error.reason, Reason)
        and isinstance(error.status, int)
        and all(isinstance(each, str) for each in texts)
    )


def _kind(error: BaseException) -> str:
    """The type of the exception, and the Reason of a failed call. Never its message."""
    kind = type(error).__name__
    if isinstance(error, CallFailed) and isinstance(error.reason, Reason):
        return f"{kind} ({error.reason.value})"
    return kind


def failed(filter_: Filter, method: str, name: str, error: BaseException) -> tuple[str, str]:
    """See `author_errors.how_failed`, which most gateways do not import."""
    from egressproxy.filters.author_errors import how_failed

    return how_failed(filter_, method, name, error, _kind(error))


def wrong_result(method: str, result: object) -> TypeError:
    """See `author_errors.wrong_result`."""
    from egressproxy.filters import author_errors

    return author_errors.wrong_result(method, result)


async def wait(step: FilterStep, awaitable: Awaitable[R], exchange: Exchange) -> R:
    """Await a step's result, under its deadline. Raises DeadlinePassed, and the filter's errors."""
    is_for_people = step.filter.waits_for_people
    deadline = asyncio.timeout(None if is_for_people else step.spec.timeout_s or None)
    began = monotonic()
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
        if error.args:  # raised by the filter: closing a coroutine gives no arguments
            raise FilterExited(type(error).__name__) from None
        raise
    except Exception:
        raise
    except BaseException as error:
        raise FilterExited(type(error).__name__) from None  # a task would pass it to the loop and end it
    finally:
        if is_for_people:
            exchange.hold_for_people(-1)
        step.stats.runs += 1
        step.stats.took(monotonic() - began)
        trace: ExchangeTrace | None = exchange.trace
        if trace is not None:
            told = (("name", step.spec.name), ("type", step.spec.type), ("phase", step.stats.phase))
            attributes = tuple((f"egressproxy.filter.{key}", value) for key, value in told)
            trace.add_wait(exchange, f"filter {step.spec.name}", began, attributes)
        del deadline  # breaks a cycle: deadline, task, error, frames


def _is_cancelled_from_outside() -> bool:
    """Whether the current task is cancelled. Not inline in `wait`, so that its frame does not hold the task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def start(step: FilterStep, coroutine: Coroutine[Any, Any, R], waiting: object) -> asyncio.Task[R]:
    """Start a task that waits for a step. A cancellation before it awaits `waiting` closes that coroutine, without a
    warning.
    """
    step.stats.runs -= 1  # `wait` counts it at its end: until then nobody knows how
    task = asyncio.get_running_loop().create_task(coroutine)
    if isinstance(waiting, Coroutine):
        task.add_done_callback(lambda _task: waiting.close())
    return task


def trailer_steps(placed: Sequence[ConfiguredFilter], phase: Phase) -> FilterSteps:
    """The steps of the filters that see the trailers of REQUEST_BODY or RESPONSE_BODY, in order."""
    name = phase.method.replace("body", "trailers")
    return tuple([FilterStep(each, phase, (), name) for each in placed if sees_trailers(each.filter, phase)])


def let_trailers(looking: Sequence[ConfiguredFilter], phase: Phase) -> bool:
    """Whether all filters that see a head also see the trailers."""
    return bool(looking) and all(sees_trailers(each.filter, phase) for each in looking)


def run_trailers(steps: Sequence[FilterStep], exchange: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
    """Run the filters on these trailers. Returns the resulting trailers, or a task.

    A filter that fails open leaves the trailers unchanged. Raises a filter's refusal, and
    GatewayFault(FILTER_FAILED, 502) if one fails.
    """
    for position, step in enumerate(steps, 1):
        fields = Fields(block)
        step.stats.runs += 1
        try:
            result = step.call(exchange, fields)
            if isinstance(result, Awaitable):
                return start(step, _go_on(step, result, fields, steps[position:], exchange, block), result)
            block = _given(step, fields, result)
        except BaseException as error:  # without an await here, only the filter can raise
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
        block = _given(step, fields, await wait(step, awaitable, exchange))
    except Exception as error:
        settle(step, error, may_fail_open=step.fail_open)
    outcome = run_trailers(rest, exchange, block)
    return outcome if isinstance(outcome, bytes) else await outcome


def _given(step: FilterStep, fields: Fields, result: object) -> bytes:
    """The block of the fields. Raises TypeError for an invalid result. A filter out of service returns the fields."""
    if result is not None and result is not fields:
        raise wrong_result(step.method, result)
    return fields.block
