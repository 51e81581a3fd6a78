"""ChosenSteps: the filters of a body in their chosen modes, and the fast path of a whole body.

Bodies with the same choices share one instance, so derived facts are computed once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Iterable
from typing import Final

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.base import ORIGINAL_BODY, Filter, Phase
from egressproxy.filters.coded_body import head_of
from egressproxy.filters.content_coding import note_change
from egressproxy.filters.filter_step import FilterAnswered, FilterStep, FilterSteps, checked_answer, settle, start, wait
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
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
    """The filters of one body.

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
                if bound == UNBOUND and type(step.filter).held_bytes is not Filter.held_bytes
            ]
        )
        self.wants_original = phase is Phase.REQUEST_BODY and any(step.filter.needs_original for step in self.steps[1:])
        self.sends_more = phase is Phase.RESPONSE_BODY and any(step.filter.sends_more for step in self.steps)
        linked: _Linked = ()
        for step, bound in reversed(list(zip(self.steps, self.bounds, strict=True))):
            linked = ((step, bound, linked), *linked)
        self._linked = linked

    def takes_whole(self, fields: Fields) -> bool:
        """Whether `pass_whole` fits the body of this head: it is buffered, and needs no decoding."""
        return self.holds and not (self.decodes and b"content-encoding" in fields)

    def collects(self, length: int) -> bool:
        """Whether to buffer a body of this length: the first filter gets it whole, and no filter sees trailers."""
        return not self.trailers and 0 < length <= self.bounds[0] != UNBOUND

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
                        return start(going_on, result)
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


def checked_result(step: FilterStep, data: bytes, result: object, *, may_answer: bool) -> bytes:
    """The bytes to forward for `data`. Raises FilterAnswered for a response if it `may_answer`, TypeError,
    ResultTooLarge.
    """
    if not isinstance(result, bytes):
        if isinstance(result, LocalResponse) and may_answer:
            raise FilterAnswered(checked_answer(step, result), step)
        raise TypeError
    if len(result) > MAX_RESULT:
        raise ResultTooLarge
    return data if step.only_reads else result


def too_long(step: FilterStep, bound: int, phase: Phase) -> GatewayError:
    """Count and return the error of a body above a filter's buffer limit."""
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
