"""BodyPlan: the body filters of one place and direction, and how a body goes through them. Values only; no I/O.

The path of each body is decided once, before any of it moves (`path_of`), from what its filters choose and from who
else needs the whole of it:

| `BodyPath` | when | what carries it out |
|---|---|---|
| UNREAD | no filter reads it | the connections are joined; a body that is here goes out with its head |
| STREAM | filters take it as it comes | `BodyFilter` between the two connections |
| WHOLE | one gets it whole, and nobody else needs it | one call of each filter (`ChosenSteps.pass_whole`) |
| BUFFERED | one gets it whole that is coded or too long to wait for, or a filter of the backend does | `Collector` |

Requests are carried out by `gateway/exchange/request_body`, responses by `response_body` beside it, and both by
`envoy/ext_proc_server` for Envoy. Of a body that is kept for further attempts (`ReplayableBody`), filters of the rule
see each byte once, and filters of a backend once for each attempt; mirrors get it between the two. Trailers follow the
body on its path, as far as all filters of it see them. A content coding is undone and redone inside `BodyChain`.
"""

from __future__ import annotations

from typing import Final

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.base import BodyMode, Phase
from egressproxy.filters.body import UNBOUND, BodyChain, ChosenSteps
from egressproxy.filters.content_coding import CODINGS, coding_of, head_of, is_readable, note_change, undecodable
from egressproxy.filters.filter_step import FilterStep, FilterSteps, settle, wrong_result
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import BodyLength, RequestHead, ResponseHead

#: The most cached choices of one plan: filters choose by kinds of messages, of which there are few.
MAX_CHOICES: Final = 64

#: Bytes of a request that are collected before its filters, of which the first gets it whole, take any of it.
SHORT_BODY: Final = 64 * 1024

#: Statuses of partial responses and deltas, and the fields that request them.
PARTS: Final = (206, 226)
_ASKS_FOR_PARTS: Final = (b"range", b"request-range", b"a-im")

# Names of this module: an attribute of an Enum costs a look-up each time.
_STREAM, _BUFFER = BodyMode.STREAM, BodyMode.BUFFER


class BodyPath:
    """How one body goes: the table in the docstring of the module."""

    UNREAD: Final = 0
    STREAM: Final = 1
    WHOLE: Final = 2
    BUFFERED: Final = 3


def path_of(chosen: ChosenSteps | None, fields: Fields, limit: int = -1, *, is_alone: bool = True) -> int:
    """The path of a body behind this head. `limit`: the bytes of it that a filter of the backend gets whole; -1: none
    does. `is_alone`: nobody but the filters of this place asks for it.
    """
    if chosen is not None and chosen.holds:
        is_plain = not (chosen.decodes and b"content-encoding" in fields)
        return BodyPath.WHOLE if is_alone and is_plain else BodyPath.BUFFERED
    if limit >= 0:
        return BodyPath.BUFFERED
    return BodyPath.UNREAD if chosen is None else BodyPath.STREAM


def is_short(chosen: ChosenSteps, length: BodyLength) -> bool:
    """Whether a WHOLE body of this length that is on its way is waited for, and then passes in one piece: the first
    filter gets it whole, and no filter sees trailers.
    """
    return not chosen.trailers and 0 < length <= min(SHORT_BODY, chosen.bounds[0]) and chosen.bounds[0] != UNBOUND


class BodyPlan:
    """The body filters of one place and direction. `decodes`: a filter needs decoded content.

    `trailers` are the steps that see the trailers; those whose filters also see the head are in `heads`, and see
    trailers even if no filter reads the body.
    """

    __slots__ = ("_choices", "decodes", "heads", "phase", "steps", "trailers")

    def __init__(
        self, steps: FilterSteps, phase: Phase, trailers: FilterSteps = (), heads: frozenset[FilterStep] = frozenset()
    ) -> None:
        self.steps = steps
        self.phase = phase
        self.trailers = trailers
        self.heads = heads
        self.decodes = any(step.decodes for step in steps)
        self._choices: dict[int, ChosenSteps] = {}

    def begin(self, exchange: Exchange) -> BodyChain | None:
        """A chain for the body of one exchange; None if every filter lets it pass unread, and sees no trailers.

        Raises a filter's refusal, and GatewayFault(FILTER_FAILED, 502) if one fails.
        """
        chosen = self.choose(exchange)
        return None if chosen is None else self.chain(exchange, chosen)

    def choose(self, exchange: Exchange) -> ChosenSteps | None:
        """The filters that get this body, each asked once for its mode, without those that fail open on it.

        Raises as `begin`; BadRequest (415) or UpstreamFault (502) if the others cannot read it.
        """
        key, phase = 0, self.phase  # a base-3 number with a digit for each step
        for step in self.steps:
            mode_for = step.mode_for
            try:
                mode = step.filter.body_mode if mode_for is None else mode_for(exchange, phase)
                if mode is _BUFFER:
                    key = key * 3 + 2
                elif mode is None:
                    key *= 3
                    continue
                elif mode is _STREAM:
                    key = key * 3 + 1
                else:
                    raise wrong_result("body_mode_for", mode)
            except BaseException as error:  # without an await here, only the filter can raise
                key *= 3
                step.stats.runs += 1
                settle(step, error, may_fail_open=step.fail_open)
                continue
            mark = step.mark
            if mark is not None:
                state = exchange.state
                if state:
                    state[mark] = True
                else:
                    exchange.keep(mark, True)
        if not key and not self.heads:
            return None
        chosen: ChosenSteps | None = self._choices.get(key) or self._choice(key)
        if phase is Phase.RESPONSE_BODY and exchange.response.status in PARTS:
            chosen = self._without_part(exchange, chosen)
        if chosen is not None and chosen.decodes:
            head = head_of(exchange, phase)
            if b"content-encoding" in head.fields:
                chosen = self._readable(chosen, head, coding_of(head.fields))
        return chosen

    def _without_part(self, exchange: Exchange, chosen: ChosenSteps | None) -> ChosenSteps | None:
        """The filters for a response with a status in PARTS and an unrequested part: those that only count. Content
        filters are left out: they would see only a part, and their changes would shift it.

        Raises UpstreamFault (502) if a content filter does not fail open. Source: RFC 9110 section 15.3.7, RFC 3229.
        """
        if chosen is None or any(name in exchange.request.fields for name in _ASKS_FOR_PARTS):
            return chosen
        left = []
        for each in zip(chosen.steps, chosen.bounds, strict=True):
            step = each[0]
            if step.only_reads and not step.decodes:
                left.append(each)
                continue
            step.stats.fail("UnaskedPart", is_open=step.fail_open)
            if not step.fail_open:
                message = f"the backend has answered with a part ({exchange.response.status}) that it was not asked for"
                raise UpstreamFault(Reason.BAD_RESPONSE, message, rule=step.spec.source)
        return self._made(left) if left or self.heads else None

    def _choice(self, key: int) -> ChosenSteps:
        rest, chosen = key, []
        for step in reversed(self.steps):
            rest, digit = divmod(rest, 3)
            if digit:
                chosen.append((step, self._bound(step) if digit == 2 else UNBOUND))
        made = self._made(chosen[::-1])
        if len(self._choices) < MAX_CHOICES:
            self._choices[key] = made
        return made

    def _made(self, chosen: list[tuple[FilterStep, int]]) -> ChosenSteps:
        behind = {id(step.filter) for step, _ in chosen}
        trailers = tuple([step for step in self.trailers if step in self.heads or id(step.filter) in behind])
        return ChosenSteps(self.phase, chosen, trailers)

    def chain(self, exchange: Exchange, chosen: ChosenSteps) -> BodyChain:
        """The chain of these filters for the body of one exchange."""
        chain = BodyChain(chosen, coding_of(head_of(exchange, self.phase).fields) if chosen.decodes else b"")
        if not (chain.keeps_length or chain.holds):
            note_change(head_of(exchange, self.phase).fields)
        return chain

    def limit_for(self, exchange: Exchange) -> int:
        """The buffer limit in bytes of the filters that get this body whole; -1 if streamed. Raises as `begin`."""
        limit = -1
        for step in self.steps:
            mode = step.filter.body_mode if step.mode_for is None else _mode_for(step, exchange, self.phase)
            if mode is BodyMode.BUFFER and not 0 <= limit <= self._bound(step):
                limit = self._bound(step)
        return limit

    def _bound(self, step: FilterStep) -> int:
        own = step.filter
        return (self.phase is Phase.RESPONSE_BODY and own.max_answer_bytes) or own.max_buffer_bytes

    def describe(self, exchange: Exchange) -> None:
        """Change the head of a bodiless response (HEAD, 304) like the head of the full response: RFC 9110 sections
        9.3.2 and 15.4.5. Raises as `begin`.
        """
        for step in self.steps:
            mode = step.filter.body_mode if step.mode_for is None else _mode_for(step, exchange, self.phase)
            if mode is not None and not (step.only_reads or step.filter.keeps_length):
                note_change(exchange.response.fields)
                exchange.response.fields.remove(b"content-length")
                return

    def _readable(self, chosen: ChosenSteps, head: RequestHead | ResponseHead, coding: bytes) -> ChosenSteps:
        """The filters that can read a body in this coding. Raises BadRequest (415), or UpstreamFault (502)."""
        is_part = isinstance(head, ResponseHead) and head.status == 206
        if (
            not coding
            or (coding in CODINGS and not is_part)
            or (chosen.only_reads and self.phase is Phase.REQUEST_BODY and is_readable(coding))
        ):
            return chosen
        for step in chosen.steps:
            if step.decodes:
                step.stats.fail("UnknownCoding", is_open=step.fail_open)
                if not step.fail_open:
                    why = "only a part of a coded one is here" if is_part else "its Content-Encoding is unknown here"
                    raise undecodable(self.phase, why, step.spec.source, is_unknown=True)
        return self._made([each for each in zip(chosen.steps, chosen.bounds, strict=True) if not each[0].decodes])


def _mode_for(step: FilterStep, exchange: Exchange, phase: Phase) -> BodyMode | None:
    """The filter's mode for this body; also None if the filter fails open."""
    try:
        mode = step.mode_for(exchange, phase)  # type: ignore[misc]  # the caller has looked
        if mode is None or isinstance(mode, BodyMode):
            return mode
        raise wrong_result("body_mode_for", mode)
    except BaseException as error:  # without an await here, only the filter can raise
        step.stats.runs += 1
        settle(step, error, may_fail_open=step.fail_open)
        return None
