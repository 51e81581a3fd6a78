"""Body chains: STREAM and BUFFER filters in one order, fed with the pieces of a body.

A STREAM filter is called for every piece. A BUFFER filter collects the pieces, up to its bound, and is called once.
Each filter gets the output of the one before it. A chain of STREAM filters copies nothing. A filter that lets a body
pass unread has no place in its chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.base import ORIGINAL_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS, BodyMode, Phase, sees_trailers
from egressproxy.filters.coded_body import CodedBody, head_of, undecodable
from egressproxy.filters.content_coding import CODINGS, coding_of, note_change
from egressproxy.filters.filter_step import FilterAnswered, Step, Steps, checked_answer, settle, start, wait
from egressproxy.filters.trailers import run_trailers
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.message import ResponseHead

__all__ = ["MAX_RESULT", "BodyChain", "BodyPlan"]

#: What one call of a body method may return, in bytes. A filter that returns more has failed.
MAX_RESULT: Final = 64 * 1024 * 1024


class ResultTooLarge(Exception):
    """A body method has returned more than MAX_RESULT bytes."""


class BodyPlan:
    """The body filters of one place and direction. `decodes`: one of them wants content codings undone.

    `trailers` are the steps that see the trailers behind the body; those whose filters look at the head, too, are in
    `heads`, and see them whatever becomes of the body.
    """

    __slots__ = ("decodes", "heads", "phase", "steps", "trailers")

    def __init__(self, steps: Steps, phase: Phase, trailers: Steps = (), heads: frozenset[Step] = frozenset()) -> None:
        self.steps = steps
        self.phase = phase
        self.trailers = trailers
        self.heads = heads
        self.decodes = any(step.decodes for step in steps)

    def begin(self, x: Exchange) -> BodyChain | None:
        """A chain for the body of one exchange; None if every filter lets it pass unread, and sees no trailers.

        Raises what a filter refuses with, and GatewayFault(FILTER_FAILED, 502) if one fails.
        """
        flows = []
        for step in self.steps:
            mode = step.filter.body_mode if step.mode_for is None else _mode_for(step, x, self.phase)
            if mode is None:
                continue
            if step.mark:
                x.note(step.mark, True)
            flows.append(_StepState(step, bytearray() if mode is BodyMode.BUFFER else None, step.call))
        if not flows and not self.heads:
            return None
        coding = b""
        if self.decodes:
            flows, coding = self._undoing(x, flows)
        chain = BodyChain(flows, self.phase, coding)
        if self.trailers:
            behind = {id(flow.step.filter) for flow in flows}
            chain.trailers = tuple([step for step in self.trailers if step in self.heads or id(step.filter) in behind])
        if not (chain.keeps_length or chain.holds):
            note_change(head_of(x, self.phase).fields)
        return chain

    def limit_for(self, x: Exchange) -> int:
        """The longest body that those take which get this one whole, in bytes; -1 if it flows. Raises as `begin`."""
        limit = -1
        for step in self.steps:
            mode = step.filter.body_mode if step.mode_for is None else _mode_for(step, x, self.phase)
            if mode is BodyMode.BUFFER and not 0 <= limit <= step.filter.max_buffer_bytes:
                limit = step.filter.max_buffer_bytes
        return limit

    def describe(self, x: Exchange) -> None:
        """Make the head of a response without a body, to HEAD or a 304, that of the response with its body: RFC 9110
        sections 9.3.2 and 15.4.5. Raises as `begin`.
        """
        for step in self.steps:
            mode = step.filter.body_mode if step.mode_for is None else _mode_for(step, x, self.phase)
            if mode is not None and not (step.only_reads or step.filter.keeps_length):
                note_change(x.response.fields)
                x.response.fields.remove(b"content-length")
                return

    def _undoing(self, x: Exchange, flows: list[_StepState]) -> tuple[list[_StepState], bytes]:
        """The coding to undo for these filters, b"" for none. Where it cannot be undone: those that go on without, as
        far as they fail open. Raises BadRequest (415), or UpstreamFault (502).
        """
        head = head_of(x, self.phase)
        coding = coding_of(head.fields)
        if not coding or not any(flow.step.decodes for flow in flows):
            return flows, b""
        is_part = isinstance(head, ResponseHead) and head.status == 206
        if coding in CODINGS and not is_part:
            return flows, coding
        for flow in flows:
            step = flow.step
            if step.decodes:
                step.stats.fail("UnknownCoding", is_open=step.fail_open)
                if not step.fail_open:
                    why = "only a part of a coded one is here" if is_part else "its Content-Encoding is unknown here"
                    raise undecodable(self.phase, why, step.spec.source, is_unknown=True)
        return [flow for flow in flows if not flow.step.decodes], b""

    def __repr__(self) -> str:
        return f"BodyPlan({self.phase.value}: {', '.join(step.spec.name for step in self.steps)})"


def _mode_for(step: Step, x: Exchange, phase: Phase) -> BodyMode | None:
    """What the filter decides for this body; None, too, where it fails and is declared to fail open."""
    try:
        mode = step.mode_for(x, phase)  # type: ignore[misc]  # the caller has looked
        if mode is None or isinstance(mode, BodyMode):
            return mode
        if isinstance(mode, Coroutine):
            mode.close()
        raise TypeError
    except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
        settle(step, error, may_fail_open=step.fail_open)
        return None


@dataclass(slots=True, eq=False)
class _StepState:
    """One step and its state for one body. `is_off`: it failed open. `has_changed`: its output differed from its input,
    so it can no longer fail open.
    """

    step: Step
    buffer: bytearray | None
    call: Callable[..., object]  # as the body began: what goes out of service meanwhile ends it as it has begun it
    is_off: bool = False
    has_changed: bool = False


class BodyChain:
    """The body filters of one exchange. Must not be fed again after an error.

    Attributes:
        keeps_length: what goes on is as long as what has come.
        holds: one of its filters gets the body whole: nothing goes on before the last piece has come.
        held: the bytes that they hold.
        trailers: the steps that see the trailers behind this body.
    """

    __slots__ = (
        "_coded", "_flows", "_may_answer", "_original", "_owed", "_phase", "held", "holds", "keeps_length", "trailers",
    )  # fmt: skip

    def __init__(self, flows: Sequence[_StepState], phase: Phase, coding: bytes = b"") -> None:
        """`coding` is undone for the filters, and done again behind them."""
        self._flows = flows
        self._phase = phase
        self._owed = 0  # bytes taken in and not yet passed on, where the length must stay
        only_reads = keeps_length = True
        holds = False
        for flow in flows:
            only_reads = only_reads and flow.step.only_reads
            keeps_length = keeps_length and flow.step.filter.keeps_length
            holds = holds or flow.buffer is not None
        self.keeps_length = only_reads or (keeps_length and not coding)
        self.holds = holds
        self._coded = CodedBody(coding, phase, is_kept=self.holds, only_reads=only_reads) if coding else None
        self.held = 0
        self.trailers: Steps = ()
        # The first filter sees the body as it came.
        wants = phase is Phase.REQUEST_BODY and any(flow.step.filter.needs_original for flow in flows[1:])
        self._original = bytearray() if wants and self.holds else None
        self._may_answer = self.holds or phase is Phase.REQUEST_BODY  # else the head of the response has gone

    def feed(self, x: Exchange, data: bytes, last: bool) -> bytes | asyncio.Task[bytes]:
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
                x.note(ORIGINAL_BODY, bytes(self._original))
        return self._feed_from(0, x, data, last)

    @property
    def is_empty(self) -> bool:
        """Nobody looks at the body itself."""
        return not self._flows

    @property
    def lets_trailers(self) -> bool:
        """Every filter that looks at the body sees its trailers, too: they go on as `run_trailers` leaves them."""
        return all(sees_trailers(flow.step.filter, self._phase) for flow in self._flows)

    @property
    def lets_status_text(self) -> bool:
        """What gRPC says in trailers goes on with its text: every filter sees it, or says that it may pass."""
        return all(
            flow.step.filter.ignores_trailers or sees_trailers(flow.step.filter, self._phase) for flow in self._flows
        )

    def expect_trailers(self, x: Exchange, block: bytes) -> None:
        """The next piece is the last, and these trailers follow: filters that see them are told by a note."""
        if self.trailers:
            x.note(REQUEST_TRAILERS if self._phase is Phase.REQUEST_BODY else RESPONSE_TRAILERS, block)

    def run_trailers(self, x: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
        """What filters leave of the trailers behind the body, or a task that says it. Not those which have failed open.

        Raises what a filter refuses with, and GatewayFault(FILTER_FAILED, 502) if one fails.
        """
        off = {id(flow.step.filter) for flow in self._flows if flow.is_off}
        return run_trailers([step for step in self.trailers if id(step.filter) not in off], x, block)

    def tail(self, x: Exchange, sent: bytes) -> bytes | None:
        """The end of the body that has gone on, its content coding undone; None where it is not known, and nothing fits
        behind it. `sent`: the end of the bytes that have gone on.
        """
        if self._coded is not None:
            return self._coded.tail
        return None if coding_of(head_of(x, self._phase).fields) else sent

    def ended(self, data: bytes) -> bytes:
        """What goes on to end the body with `data` instead of what was to come. `tail` must not be None."""
        return data if self._coded is None else self._coded.ended(data)

    def takes_whole(self, length: int) -> bool:
        """Whether a body of so many bytes may as well be fed in one piece: the first filter gets it whole, and none
        sees trailers.
        """
        if not self._flows or self.trailers:
            return False
        first = self._flows[0]
        return first.buffer is not None and self._coded is None and 0 < length <= first.step.filter.max_buffer_bytes

    async def feed_to_end(self, x: Exchange, data: bytes, last: bool) -> bytes:
        """As `feed`, and waits for the task."""
        return await _whole(self.feed(x, data, last))

    def _feed_from(self, index: int, x: Exchange, data: bytes, last: bool) -> bytes | asyncio.Task[bytes]:
        for position in range(index, len(self._flows)):
            flow = self._flows[position]
            if flow.is_off:
                continue
            if flow.buffer is not None:
                if flow.buffer or not last or len(data) > flow.step.filter.max_buffer_bytes:
                    self._collect(flow, flow.buffer, data)
                    if not last:
                        return b""
                    data = bytes(flow.buffer)
                    flow.buffer = bytearray()
                    self.held -= len(data)
            elif not data and not last:
                return b""
            step = flow.step
            step.stats.runs += 1
            try:
                result = flow.call(x, data, last)
                if isinstance(result, Awaitable):
                    return start(self._go_on(position, result, x, data, last), result)
                data = self._given(flow, data, result)
            except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
                _settle(flow, error)
        has_changed = self.holds and last and any(flow.has_changed for flow in self._flows)
        if has_changed:
            note_change(head_of(x, self._phase).fields)
        if self._coded is not None:
            return self._coded.coded(data, last, has_changed=has_changed)
        if self.keeps_length:
            self._owed -= len(data)
            if self._owed < 0 or (last and self._owed):
                raise self._broken_promise()
        return data

    def _broken_promise(self) -> GatewayFault:
        for flow in self._flows:
            flow.step.stats.fail("LengthNotKept", is_open=False)
        names = ", ".join(flow.step.spec.name for flow in self._flows)
        message = f"filter {names} did not keep the length of the body"
        return GatewayFault(
            Reason.FILTER_FAILED, message, status=502, rule=self._flows[-1].step.spec.source, close=True
        )

    async def _go_on(self, position: int, awaitable: Awaitable[object], x: Exchange, data: bytes, last: bool) -> bytes:
        flow = self._flows[position]
        try:
            data = self._given(flow, data, await wait(flow.step, awaitable))
        except Exception as error:
            _settle(flow, error)
        return await _whole(self._feed_from(position + 1, x, data, last))

    def _collect(self, flow: _StepState, buffer: bytearray, data: bytes) -> None:
        bound = flow.step.filter.max_buffer_bytes
        if len(buffer) + len(data) <= bound:
            buffer += data
            self.held += len(data)
            return
        flow.step.stats.rejected += 1
        message = f"the body is longer than the {bound} bytes that filter {flow.step.spec.name} takes"
        if self._phase is Phase.REQUEST_BODY:
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, rule=flow.step.spec.source, close=True)
        raise UpstreamFault(Reason.BAD_RESPONSE, message, status=502, rule=flow.step.spec.source)

    def _given(self, flow: _StepState, data: bytes, result: object) -> bytes:
        """What the filter has returned for `data`. Raises FilterAnswered, and TypeError for what is no result."""
        if not isinstance(result, bytes):
            if isinstance(result, LocalResponse) and self._may_answer:
                raise FilterAnswered(checked_answer(flow.step, result), flow.step)
            raise TypeError
        if len(result) > MAX_RESULT:
            raise ResultTooLarge
        if flow.step.only_reads:
            return data
        if (flow.step.fail_open or self.holds) and not flow.has_changed:
            flow.has_changed = result != data
        return result


async def _whole(outcome: bytes | asyncio.Task[bytes]) -> bytes:
    return outcome if isinstance(outcome, bytes) else await outcome


def _settle(flow: _StepState, error: BaseException) -> None:
    """A filter can fail open only while it has passed everything on unchanged."""
    settle(flow.step, error, may_fail_open=flow.step.fail_open and not flow.has_changed)
    flow.is_off = True
