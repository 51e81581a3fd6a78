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

from egressproxy.errors import GatewayError
from egressproxy.filters.base import ORIGINAL_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS, BodyMode, Phase, sees_trailers
from egressproxy.filters.chosen_steps import (
    MAX_RESULT,
    UNBOUND,
    ChosenSteps,
    checked_result,
    length_not_kept,
    too_long,
)
from egressproxy.filters.coded_body import CodedBody, head_of, undecodable
from egressproxy.filters.content_coding import CODINGS, coding_of, note_change, without_digests
from egressproxy.filters.filter_step import Step, Steps, settle, start, wait
from egressproxy.filters.trailers import run_trailers
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import ResponseHead

__all__ = ["MAX_RESULT", "BodyChain", "BodyPlan", "ChosenSteps"]

#: How many choices of one plan are kept: filters choose by kinds of messages, of which there are few.
MAX_CHOICES: Final = 64

# Names of this module: an attribute of an Enum costs a look-up each time.
_STREAM, _BUFFER = BodyMode.STREAM, BodyMode.BUFFER


class BodyPlan:
    """The body filters of one place and direction. `decodes`: one of them wants content codings undone.

    `trailers` are the steps that see the trailers behind the body; those whose filters look at the head, too, are in
    `heads`, and see them whatever becomes of the body.
    """

    __slots__ = ("_choices", "decodes", "heads", "phase", "steps", "trailers")

    def __init__(self, steps: Steps, phase: Phase, trailers: Steps = (), heads: frozenset[Step] = frozenset()) -> None:
        self.steps = steps
        self.phase = phase
        self.trailers = trailers
        self.heads = heads
        self.decodes = any(step.decodes for step in steps)
        self._choices: dict[int, ChosenSteps] = {}

    def begin(self, x: Exchange) -> BodyChain | None:
        """A chain for the body of one exchange; None if every filter lets it pass unread, and sees no trailers.

        Raises what a filter refuses with, and GatewayFault(FILTER_FAILED, 502) if one fails.
        """
        chosen = self.choose(x)
        return None if chosen is None else self.chain(x, chosen)

    def choose(self, x: Exchange) -> ChosenSteps | None:
        """Ask each filter how it gets the body of one exchange: once for each body. Returns and raises as `begin`."""
        key, phase = 0, self.phase  # a number of base 3, with a digit for each step
        for step in self.steps:
            mode_for = step.mode_for
            key *= 3
            try:
                mode = step.filter.body_mode if mode_for is None else mode_for(x, phase)
                if mode is None:
                    continue
                if mode is _BUFFER:
                    key += 2
                elif mode is _STREAM:
                    key += 1
                else:
                    raise _no_mode(mode)
            except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
                settle(step, error, may_fail_open=step.fail_open)
                continue
            if step.mark:
                x.keep(step.mark, True)
        if not key and not self.heads:
            return None
        return self._choices.get(key) or self._choice(key)

    def _choice(self, key: int) -> ChosenSteps:
        rest, chosen = key, []
        for step in reversed(self.steps):
            rest, digit = divmod(rest, 3)
            if digit:
                chosen.append((step, step.filter.max_buffer_bytes if digit == 2 else UNBOUND))
        made = self._made(chosen[::-1])
        if len(self._choices) < MAX_CHOICES:
            self._choices[key] = made
        return made

    def _made(self, chosen: list[tuple[Step, int]]) -> ChosenSteps:
        behind = {id(step.filter) for step, _ in chosen}
        trailers = tuple([step for step in self.trailers if step in self.heads or id(step.filter) in behind])
        return ChosenSteps(self.phase, chosen, trailers)

    def chain(self, x: Exchange, chosen: ChosenSteps) -> BodyChain:
        """The chain of these filters for the body of one exchange. Raises BadRequest (415), or UpstreamFault (502)."""
        coding = b""
        if chosen.decodes:
            coding = coding_of(head_of(x, self.phase).fields)
            if coding:
                chosen, coding = self._undoing(x, chosen, coding)
        chain = BodyChain(chosen, coding)
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

    def _undoing(self, x: Exchange, chosen: ChosenSteps, coding: bytes) -> tuple[ChosenSteps, bytes]:
        """The coding to undo for these filters, b"" for none. Where it cannot be undone: those that go on without, as
        far as they fail open. Raises BadRequest (415), or UpstreamFault (502).
        """
        head = head_of(x, self.phase)
        is_part = isinstance(head, ResponseHead) and head.status == 206
        if coding in CODINGS and not is_part:
            return chosen, coding
        for step in chosen.steps:
            if step.decodes:
                step.stats.fail("UnknownCoding", is_open=step.fail_open)
                if not step.fail_open:
                    why = "only a part of a coded one is here" if is_part else "its Content-Encoding is unknown here"
                    raise undecodable(self.phase, why, step.spec.source, is_unknown=True)
        left = [each for each in zip(chosen.steps, chosen.bounds, strict=True) if not each[0].decodes]
        return self._made(left), b""

    def __repr__(self) -> str:
        return f"BodyPlan({self.phase.value}: {', '.join(step.spec.name for step in self.steps)})"


def _mode_for(step: Step, x: Exchange, phase: Phase) -> BodyMode | None:
    """What the filter decides for this body; None, too, where it fails and is declared to fail open."""
    try:
        mode = step.mode_for(x, phase)  # type: ignore[misc]  # the caller has looked
        if mode is None or isinstance(mode, BodyMode):
            return mode
        raise _no_mode(mode)
    except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
        settle(step, error, may_fail_open=step.fail_open)
        return None


def _no_mode(mode: object) -> TypeError:
    if isinstance(mode, Coroutine):
        mode.close()
    return TypeError()


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
    """

    __slots__ = (
        "_chosen",
        "_coded",
        "_flows",
        "_may_answer",
        "_original",
        "_owed",
        "_phase",
        "held",
        "holds",
        "keeps_length",
    )

    def __init__(self, chosen: ChosenSteps, coding: bytes = b"") -> None:
        """`coding` is undone for the filters, and done again behind them."""
        self._chosen = chosen
        self._phase = phase = chosen.phase
        self._flows = [
            _StepState(step, None if bound == UNBOUND else bytearray(), step.call)
            for step, bound in zip(chosen.steps, chosen.bounds, strict=True)
        ]
        self._owed = 0  # bytes taken in and not yet passed on, where the length must stay
        self.keeps_length = chosen.only_reads or (chosen.keeps_length and not coding)
        self.holds = chosen.holds
        self._coded = CodedBody(coding, phase, is_kept=self.holds, only_reads=chosen.only_reads) if coding else None
        self.held = 0
        # The first filter sees the body as it came.
        self._original = bytearray() if chosen.wants_original and self.holds else None
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
                x.keep(ORIGINAL_BODY, bytes(self._original))
        return self._through(self._flows, x, data, last)

    @property
    def sends_more(self) -> bool:
        """A filter may ask for `feed_more`."""
        return self._chosen.sends_more

    def feed_more(self, x: Exchange, own: object) -> bytes | asyncio.Task[bytes]:
        """As `feed`, where this filter has more to send, and nothing has come for it."""
        for position, flow in enumerate(self._flows):
            if flow.step.filter is own and not flow.is_off:
                return self._through(self._flows[position:], x, b"", False, has_more=True)
        return b""

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
        if self._chosen.trailers:
            x.keep(REQUEST_TRAILERS if self._phase is Phase.REQUEST_BODY else RESPONSE_TRAILERS, block)

    def run_trailers(self, x: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
        """What filters leave of the trailers behind the body, or a task that says it. Not those which have failed open.

        Raises what a filter refuses with, and GatewayFault(FILTER_FAILED, 502) if one fails.
        """
        if not self.keeps_length and (not self.holds or any(flow.has_changed for flow in self._flows)):
            block = without_digests(block)  # those of the body as it came
        off = {id(flow.step.filter) for flow in self._flows if flow.is_off}
        return run_trailers([step for step in self._chosen.trailers if id(step.filter) not in off], x, block)

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

    async def feed_to_end(self, x: Exchange, data: bytes, last: bool) -> bytes:
        """As `feed`, and waits for the task."""
        return await _whole(self.feed(x, data, last))

    def _through(
        self, flows: Sequence[_StepState], x: Exchange, data: bytes, last: bool, has_more: bool = False
    ) -> bytes | asyncio.Task[bytes]:
        """What goes on of a piece behind these filters, the last of the chain. The first is called with b"", too, if it
        `has_more`.
        """
        for flow in flows:
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
                if not has_more:
                    return b""
                has_more = False
            flow.step.stats.runs += 1
            try:
                result = flow.call(x, data, last)
                if result is data:
                    continue
                if not isinstance(result, bytes) and isinstance(result, Awaitable):
                    return start(self._go_on(flow, result, x, data, last), result)
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
                raise length_not_kept(self._chosen.steps)
        return data

    async def _go_on(
        self, flow: _StepState, awaitable: Awaitable[object], x: Exchange, data: bytes, last: bool
    ) -> bytes:
        try:
            data = self._given(flow, data, await wait(flow.step, awaitable))
        except Exception as error:
            _settle(flow, error)
        return await _whole(self._through(self._flows[self._flows.index(flow) + 1 :], x, data, last))

    def _collect(self, flow: _StepState, buffer: bytearray, data: bytes) -> None:
        bound = flow.step.filter.max_buffer_bytes
        if len(buffer) + len(data) <= bound:
            buffer += data
            self.held += len(data)
            return
        raise too_long(flow.step, bound, self._phase)

    def _given(self, flow: _StepState, data: bytes, result: object) -> bytes:
        """What the filter has returned for `data`. Raises FilterAnswered, and TypeError for what is no result."""
        given = checked_result(flow.step, data, result, may_answer=self._may_answer)
        if (flow.step.fail_open or self.holds) and not flow.has_changed:
            flow.has_changed = given != data
        return given


async def _whole(outcome: bytes | asyncio.Task[bytes]) -> bytes:
    return outcome if isinstance(outcome, bytes) else await outcome


def _settle(flow: _StepState, error: BaseException) -> None:
    """A filter can fail open only while it has passed everything on unchanged."""
    settle(flow.step, error, may_fail_open=flow.step.fail_open and not flow.has_changed)
    flow.is_off = True
