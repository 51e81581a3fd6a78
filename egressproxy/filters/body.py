"""How filters get bodies: whole, with one call of each (`ChosenSteps.pass_whole`), or piece by piece (`BodyChain`).

A STREAM filter is called for every piece. A BUFFER filter collects the pieces, up to its bound, and is called once.
Each filter gets the output of the one before it. A chain of STREAM filters copies nothing. A filter that lets a body
pass unread has no place in its chain. Which filters get a body, and which way, is decided in `body_plan`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.base import ORIGINAL_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS, Filter, Phase, sees_trailers
from egressproxy.filters.content_coding import CodedBody, coding_of, head_of, note_change, without_digests
from egressproxy.filters.filter_step import (
    FilterAnswered,
    FilterStep,
    FilterSteps,
    checked_answer,
    run_trailers,
    settle,
    start,
    wait,
    wrong_result,
)
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse

#: The most bytes that a body method may return. A filter that returns more has failed.
MAX_RESULT: Final = 64 * 1024 * 1024
#: The bound of a filter that collects nothing.
UNBOUND: Final = sys.maxsize

#: A step, its buffer limit in bytes, and the same for the steps after it.
_Linked = tuple[tuple[FilterStep, int, "_Linked"], ...]


class ResultTooLarge(Exception):
    """A body method has returned more than MAX_RESULT bytes."""


class ChosenSteps:
    """The filters of one body in their chosen modes. Bodies with the same choices share one instance.

    Attributes:
        steps: the filters that get the body.
        bounds: the buffer limit of each step in bytes; UNBOUND for a streaming filter.
        trailers: the steps that see the trailers.
        decodes: a filter needs decoded content.
        only_reads, keeps_length: true for all filters.
        holds: a filter gets the body whole: nothing is forwarded before the last piece.
        keeping: the streaming filters that may buffer much of the body.
        wants_original: a filter after the first needs the original body.
        sends_more: a filter may have more of a response to send without new input.
    """

    __slots__ = (
        "_linked", "bounds", "decodes", "holds", "keeping", "keeps_length", "only_reads", "phase", "sends_more",
        "steps", "trailers", "wants_original",
    )  # fmt: skip

    def __init__(self, phase: Phase, chosen: Iterable[tuple[FilterStep, int]], trailers: FilterSteps) -> None:
        """`chosen` are the steps with their bounds."""
        self.phase = phase
        self.steps = tuple([step for step, _ in chosen])
        self.bounds = tuple([bound for _, bound in chosen])
        self.trailers = trailers
        self.decodes = any(step.decodes for step in self.steps)
        self.only_reads = all(step.only_reads for step in self.steps)
        self.keeps_length = self.only_reads or all(step.filter.keeps_length for step in self.steps)
        self.holds = any(bound != UNBOUND for bound in self.bounds)
        self.keeping = tuple(
            [
                step.filter
                for step, bound in zip(self.steps, self.bounds, strict=True)
                if bound == UNBOUND and (step.is_of_users or type(step.filter).held_bytes is not Filter.held_bytes)
            ]
        )
        self.wants_original = phase is Phase.REQUEST_BODY and any(step.filter.needs_original for step in self.steps[1:])
        self.sends_more = phase is Phase.RESPONSE_BODY and any(step.filter.sends_more for step in self.steps)
        linked: _Linked = ()
        for step, bound in reversed(list(zip(self.steps, self.bounds, strict=True))):
            linked = ((step, bound, linked), *linked)
        self._linked = linked

    def pass_whole(self, exchange: Exchange, body: bytes) -> bytes | asyncio.Task[bytes]:
        """`BodyChain.feed` for a body in one piece: returns and raises the same, with one call of each filter."""
        if self.wants_original:
            ORIGINAL_BODY.set(exchange, body)
        return self._pass(self._linked, exchange, body, body)

    def _pass(
        self, linked: _Linked, exchange: Exchange, came: bytes, data: bytes, has_changed: bool = False
    ) -> bytes | asyncio.Task[bytes]:
        """`came` is the body before the first filter."""
        for step, bound, rest in linked:
            if len(data) > bound:
                raise too_long(step, bound, self.phase)
            step.stats.runs += 1
            try:
                result = step.call(exchange, data, True)
                if result is data:
                    continue
                if type(result) is not bytes or step.only_reads or len(result) > MAX_RESULT:
                    if not isinstance(result, bytes) and isinstance(result, Awaitable):
                        going_on = self._go_on(step, result, rest, exchange, came, data, has_changed)
                        return start(step, going_on, result)
                    result = checked_result(step, data, result, may_answer=True)
                has_changed = has_changed or result != data
                data = result
            except BaseException as error:  # without an await here, only the filter can raise
                settle(step, error, may_fail_open=step.fail_open)
        if has_changed:
            note_change(head_of(exchange, self.phase).fields)
        if self.keeps_length and len(data) != len(came):
            raise length_not_kept(self.steps)
        return data

    async def _go_on(
        self,
        step: FilterStep,
        awaitable: Awaitable[object],
        rest: _Linked,
        exchange: Exchange,
        came: bytes,
        data: bytes,
        has_changed: bool,
    ) -> bytes:
        """Run the rest of the filters, from the one that waits."""
        try:
            result = checked_result(step, data, await wait(step, awaitable, exchange), may_answer=True)
            has_changed = has_changed or result != data
            data = result
        except Exception as error:
            settle(step, error, may_fail_open=step.fail_open)
        outcome = self._pass(rest, exchange, came, data, has_changed)
        return outcome if isinstance(outcome, bytes) else await outcome


@dataclass(slots=True, eq=False)
class _StepState:
    """The state of one step for one body. `is_off`: the filter failed open. A filter whose output `has_changed` the
    body cannot fail open.
    """

    step: FilterStep
    bound: int
    buffer: bytearray | None  # None: not a BUFFER filter
    call: Callable[..., object]  # fixed at the start of the body, even if the filter goes out of service
    is_off: bool = False
    has_changed: bool = False


class BodyChain:
    """The body filters of one exchange. Must not be fed again after an error.

    Attributes:
        keeps_length: the output has as many bytes as the input.
        holds: a filter gets the body whole: nothing is forwarded before the last piece.
        keeps: a streaming filter may buffer much of the body.
    """

    __slots__ = (
        "_chosen", "_coded", "_flows", "_may_answer", "_original", "_owed", "_phase", "_waited_for", "holds", "keeps",
        "keeps_length",
    )  # fmt: skip

    def __init__(self, chosen: ChosenSteps, coding: bytes = b"") -> None:
        """`coding` is decoded before the filters, and encoded again after them."""
        self._chosen = chosen
        self._phase = phase = chosen.phase
        self._flows = [
            _StepState(step, bound, None if bound == UNBOUND else bytearray(), step.call)
            for step, bound in zip(chosen.steps, chosen.bounds, strict=True)
        ]
        self._owed = 0  # bytes taken and not yet forwarded, if the length must stay
        self._waited_for = 0  # bytes in a filter that has not returned yet
        self.keeps_length = chosen.only_reads or (chosen.keeps_length and not coding)
        self.holds = chosen.holds
        self.keeps = bool(chosen.keeping)
        self._coded = CodedBody(coding, phase, is_kept=self.holds, only_reads=chosen.only_reads) if coding else None
        # The first filter sees the original body anyway.
        self._original = bytearray() if chosen.wants_original and self.holds else None
        self._may_answer = self.holds or phase is Phase.REQUEST_BODY  # else the response head was sent

    def feed(self, exchange: Exchange, data: bytes, last: bool) -> bytes | asyncio.Task[bytes]:
        """Take a piece of the body and return the bytes to send now; `last` is true once, and data may then be empty.

        An empty result before the last piece means that nothing is sent yet. A task must be done before the next piece
        is fed; cancelling it cancels the filter. Raises what a filter refuses with; FilterAnswered with the response
        of one; LimitExceeded(BODY_TOO_LARGE, 413) or UpstreamFault(BAD_RESPONSE, 502) above a buffer's bound;
        GatewayFault(FILTER_FAILED, 502) if a filter fails, or promised to keep the length and does not: the surplus
        would be read as another message.
        """
        self._owed += len(data)
        coded = self._coded
        if coded is not None:
            try:
                decoded = coded.decoded(data, last)
            except GatewayError as error:
                error.rule = self._flows[-1].step.spec.source
                raise
            if not decoded and not last:
                return coded.skipped(data)
            data = decoded
        if self._original is not None:
            self._original += data
            if last:
                ORIGINAL_BODY.set(exchange, bytes(self._original))
        return self._through(self._flows, exchange, data, last)

    @property
    def is_of_request(self) -> bool:
        return self._phase is Phase.REQUEST_BODY

    def held(self, exchange: Exchange) -> int:
        """The bytes that are buffered for or by these filters."""
        size = self._waited_for + sum([len(flow.buffer) for flow in self._flows if flow.buffer is not None])
        for keeping in self._chosen.keeping:
            size += keeping.held_bytes(exchange, self._phase)
        if self._coded is not None:
            size += self._coded.held
        return size if self._original is None else size + len(self._original)

    @property
    def sends_more(self) -> bool:
        return self._chosen.sends_more

    def feed_more(self, exchange: Exchange, own: object) -> bytes | asyncio.Task[bytes]:
        """`feed` for a filter that has more to send without new input."""
        for position, flow in enumerate(self._flows):
            if flow.step.filter is own and not flow.is_off:
                return self._through(self._flows[position:], exchange, b"", False, has_more=True)
        return b""

    @property
    def is_empty(self) -> bool:
        return not self._flows

    @property
    def lets_trailers(self) -> bool:
        """Whether trailers may be forwarded: every filter of the body sees them, too."""
        return all(sees_trailers(flow.step.filter, self._phase) for flow in self._flows)

    @property
    def lets_status_text(self) -> bool:
        """Whether gRPC's status message may be forwarded: every filter sees it, or ignores trailers."""
        return all(
            flow.step.filter.ignores_trailers or sees_trailers(flow.step.filter, self._phase) for flow in self._flows
        )

    def expect_trailers(self, exchange: Exchange, block: bytes) -> None:
        """The next piece is the last, and these trailers follow: filters that see them are told."""
        if self._chosen.trailers:
            exchange.keep(REQUEST_TRAILERS if self._phase is Phase.REQUEST_BODY else RESPONSE_TRAILERS, block)

    def run_trailers(self, exchange: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
        """The trailers after the filters that have not failed open, or a task. Raises as `feed`."""
        if not self.keeps_length and (not self.holds or any(flow.has_changed for flow in self._flows)):
            block = without_digests(block)  # of the original body
        off = {id(flow.step.filter) for flow in self._flows if flow.is_off}
        return run_trailers([step for step in self._chosen.trailers if id(step.filter) not in off], exchange, block)

    def tail(self, exchange: Exchange, sent: bytes) -> bytes | None:
        """The decoded end of the forwarded bytes (`sent`); None: unknown, so nothing can be appended."""
        if self._coded is not None:
            return self._coded.tail
        return None if coding_of(head_of(exchange, self._phase).fields) else sent

    def ended(self, data: bytes) -> bytes:
        """The bytes that end the body early, with `data` last. `tail` must not be None."""
        return data if self._coded is None else self._coded.ended(data)

    async def feed_to_end(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """`feed`, with a wait for the task."""
        outcome = self.feed(exchange, data, last)
        return outcome if isinstance(outcome, bytes) else await outcome

    def _through(
        self, flows: Sequence[_StepState], exchange: Exchange, data: bytes, last: bool, has_more: bool = False
    ) -> bytes | asyncio.Task[bytes]:
        """The output of these last filters of the chain. The first gets even b"" if it `has_more`."""
        for flow in flows:
            if flow.is_off:
                continue
            if flow.buffer is not None:
                bound = flow.bound
                if flow.buffer or not last or len(data) > bound:
                    if len(flow.buffer) + len(data) > bound:
                        raise too_long(flow.step, bound, self._phase)
                    flow.buffer += data
                    if not last:
                        return b""
                    data = bytes(flow.buffer)
                    flow.buffer = bytearray()
            elif not data and not last:
                if not has_more:
                    return b""
                has_more = False
            flow.step.stats.runs += 1
            try:
                result = flow.call(exchange, data, last)
                if result is data:
                    continue
                if not isinstance(result, bytes) and isinstance(result, Awaitable):
                    self._waited_for = len(data)
                    return start(flow.step, self._go_on(flow, result, exchange, data, last), result)
                data = self._given(flow, data, result)
            except BaseException as error:  # without an await here, only the filter can raise
                _settle(flow, error)
        has_changed = self.holds and last and any(flow.has_changed for flow in self._flows)
        if has_changed:
            note_change(head_of(exchange, self._phase).fields)
        if self._coded is not None:
            return self._coded.coded(data, last, has_changed=has_changed)
        if self.keeps_length:
            self._owed -= len(data)
            if self._owed < 0 or (last and self._owed):
                raise length_not_kept(self._chosen.steps)
        return data

    async def _go_on(
        self, flow: _StepState, awaitable: Awaitable[object], exchange: Exchange, data: bytes, last: bool
    ) -> bytes:
        try:
            data = self._given(flow, data, await wait(flow.step, awaitable, exchange))
        except Exception as error:
            _settle(flow, error)
        self._waited_for = 0
        outcome = self._through(self._flows[self._flows.index(flow) + 1 :], exchange, data, last)
        return outcome if isinstance(outcome, bytes) else await outcome

    def _given(self, flow: _StepState, data: bytes, result: object) -> bytes:
        """The filter's checked result for `data`. Raises FilterAnswered, and TypeError for an invalid result."""
        given = checked_result(flow.step, data, result, may_answer=self._may_answer)
        if (flow.step.fail_open or self.holds) and not flow.has_changed:
            flow.has_changed = given != data
        return given


def _settle(flow: _StepState, error: BaseException) -> None:
    """Handle a filter's error. A filter can fail open only while its output equals its input."""
    settle(flow.step, error, may_fail_open=flow.step.fail_open and not flow.has_changed)
    flow.is_off = True


def checked_result(step: FilterStep, data: bytes, result: object, *, may_answer: bool) -> bytes:
    """The bytes to forward for `data`. Raises FilterAnswered for a response if it `may_answer`, TypeError,
    ResultTooLarge.
    """
    if not isinstance(result, bytes):
        if isinstance(result, LocalResponse) and may_answer:
            raise FilterAnswered(checked_answer(step, result), step)
        raise wrong_result(step.method, result)
    if len(result) > MAX_RESULT:
        raise ResultTooLarge
    return data if step.only_reads else result


def too_long(step: FilterStep, bound: int, phase: Phase) -> GatewayError:
    """Count and return the error of a body above a filter's buffer limit."""
    step.stats.runs += 1
    step.stats.rejected += 1
    message = f"the body is longer than the {bound} bytes that filter {step.spec.name} takes"
    if phase is Phase.REQUEST_BODY:
        return LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, rule=step.spec.source, close=True)
    return UpstreamFault(Reason.BAD_RESPONSE, message, status=502, rule=step.spec.source)


def length_not_kept(steps: FilterSteps) -> GatewayFault:
    """Count and return the error of filters that declare `keeps_length` and change the length."""
    for step in steps:
        step.stats.fail("LengthNotKept", is_open=False)
    names = ", ".join(step.spec.name for step in steps)
    message = f"filter {names} did not keep the length of the body"
    return GatewayFault(Reason.FILTER_FAILED, message, status=502, rule=steps[-1].spec.source, close=True)
