"""Chain: the filters of one place, compiled into one flat tuple of steps per phase.

A phase without filters is None and costs nothing. Steps that do not wait are plain calls in a loop. The first step that
waits turns the rest of the phase into a task with a deadline per step, so the caller need not be a task; cancelling the
task cancels the filter.

Order: `turn` (request-headers of a Backend before its backend-request), `preAuth` first, priority, level (Gateway,
Route, Backend), then the order in which the specs are given (age, name); around what sends credentials, see
`added_filters`. If a filter fails, the exchange ends with 502 and the filter's name. The text of its exception is
not repeated, because it may contain a secret; the log has the type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from egressproxy.filters.added_filters import DECODABLE, ORIGINAL, DecodableAnswers, OriginalHead, arranged, keeper
from egressproxy.filters.base import OfMessages, Phase
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.configured_filter import ConfiguredFilter, in_order, placed_filters
from egressproxy.filters.filter_step import (
    FilterStep,
    FilterSteps,
    checked_answer,
    failed,
    let_trailers,
    settle,
    start,
    trailer_steps,
    wait,
    wrong_result,
)
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR
from egressproxy.model.exchange import EMPTY_STATE, Exchange, StateSlot
from egressproxy.model.local_response import LocalResponse

_BODY_PHASES: Final = frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY))
_OF_A_BACKEND: Final = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))


@dataclass(frozen=True, slots=True)
class Chain:
    """The phases of one place: a tuple of steps for `run`, or a BodyPlan to `begin`; None where no filter runs."""

    request_headers: FilterSteps | None = None
    request_body: BodyPlan | None = None
    connect: FilterSteps | None = None
    backend_request: FilterSteps | None = None
    backend_response: FilterSteps | None = None
    response_headers: FilterSteps | None = None
    response_body: BodyPlan | None = None
    #: The request-body filters of a Backend, run once for each attempt. Those of responses are in response_body.
    backend_request_body: BodyPlan | None = None
    #: The filters with a `complete`, for `finish`.
    complete: tuple[ConfiguredFilter, ...] = ()
    #: The filters of unknown types that fail open: requests go on without them.
    skipped: tuple[ExtensionIR, ...] = ()
    #: Every response-header filter lets gRPC's status message pass.
    ignores_trailers: bool = True
    #: There are filters of the request head, or of the response head, and all of these see trailers, too. A backend may
    #: have none.
    lets_request_trailers: bool = False
    lets_backend_trailers: bool = False
    lets_response_trailers: bool = False
    #: The buffer limit, in bytes, of backend_request filters that need the body whole; -1: no filter does.
    needs_body: int = -1
    #: Whether a filter of the backend gets the request's body.
    takes_body: bool = field(init=False)
    #: This chain without backend_response; None if it has none: a self-reference would be a cycle.
    _after_attempts: Chain | None = field(init=False, repr=False, compare=False)
    #: Whether places with equal filters do not share this chain.
    is_of_one_place: bool = False
    #: For the messages of a WebSocket, the filters that read them; NO_READERS: none needs to; None: a filter cannot.
    messages: Chain | None = None
    #: backend_response and response_headers, if not None.
    response_phases: tuple[FilterSteps, ...] = field(init=False)

    def __post_init__(self) -> None:
        phases = tuple(steps for steps in (self.backend_response, self.response_headers) if steps is not None)
        object.__setattr__(self, "response_phases", phases)
        object.__setattr__(self, "takes_body", self.backend_request_body is not None or self.needs_body >= 0)
        after = None if self.backend_response is None else replace(self, backend_response=None)
        object.__setattr__(self, "_after_attempts", after)

    @property
    def stops_request_trailers(self) -> bool:
        """Whether a filter looks at the head of a request and not at trailers, which some origins read as fields."""
        return self.request_headers is not None and not self.lets_request_trailers

    @property
    def stops_backend_trailers(self) -> bool:
        """As `stops_request_trailers`, of filters of the backend."""
        return self.backend_request is not None and not self.lets_backend_trailers

    @property
    def after_attempts(self) -> Chain:
        """This chain after the attempts of a request, in which backend_response has run already."""
        return self._after_attempts or self


NO_READERS: Final = Chain()
#: The chain of a place without filters.
NO_FILTERS: Final = Chain(messages=NO_READERS)


def approvals(chain: Chain, exchange: Exchange) -> list[tuple[ExtensionIR, str]]:
    """The filters at which this exchange waits for approval, and the condition as a sentence. No filter is run."""
    body = chain.request_body.steps if chain.request_body is not None else ()
    filters = {id(step.filter): step for step in (*(chain.request_headers or ()), *body)}
    return [(step.spec, says) for step in filters.values() if (says := step.filter.approval(exchange))]


def compile_chain(specs: Iterable[ExtensionIR], make: Callable[[ExtensionIR], ConfiguredFilter]) -> Chain:
    """Sort the specs, build them with `make` (usually `FilterInstances.place`), flatten. Raises errors of `make`."""
    ordered = in_order(specs)
    skipped = tuple(spec for spec in ordered if not spec.is_known and spec.fail_open)
    filters, is_of_one_place = placed_filters([spec for spec in ordered if spec.is_known or not spec.fail_open], make)
    chain = _compiled(filters, skipped, is_of_one_place=is_of_one_place)
    roles = {placed.filter.of_messages for placed in filters}
    if not skipped and roles <= {OfMessages.HEAD}:
        return replace(chain, messages=NO_READERS)
    if skipped or OfMessages.ASKS not in roles or OfMessages.CLOSED in roles:
        return chain
    reading = [placed for placed in filters if placed.filter.of_messages is not OfMessages.HEAD]
    return replace(chain, messages=_compiled(reading, (), is_of_one_place=is_of_one_place))


def _compiled(filters: Sequence[ConfiguredFilter], skipped: tuple[ExtensionIR, ...], *, is_of_one_place: bool) -> Chain:
    phases: dict[str, Any] = {"skipped": skipped, "is_of_one_place": is_of_one_place}
    in_phase = {phase: [placed for placed in filters if phase in placed.phases()] for phase in Phase}
    around = keeper(in_phase)
    trailers = _TrailerPlaces(filters)
    for phase in Phase:
        running: Sequence[ConfiguredFilter] = in_phase[phase]
        if phase in _BODY_PHASES:
            # A Backend's filters run after the rule's on a request, and before them on a response.
            own = [placed for placed in running if placed.spec.level >= BACKEND_LEVEL]
            rest = [placed for placed in running if placed.spec.level < BACKEND_LEVEL]
            if phase is Phase.REQUEST_BODY:
                plan = trailers.plan(arranged(own, phase), phase, trailers.backend_only)
                if plan is not None:
                    phases["backend_request_body"] = plan
                    phases.setdefault("backend_request", ())  # where it runs
                plan = trailers.plan(rest, phase, trailers.request)
            else:
                plan = trailers.plan(arranged([*own, *rest], phase), phase, trailers.response)
            if plan is not None:
                phases[phase.method] = plan
            continue
        if phase in _OF_A_BACKEND:
            running = arranged(running, phase, around)
        if running:
            phases[phase.method] = _steps(running, phase)
    body: BodyPlan | None = phases.get("response_body")
    if body is not None and any(step.decodes and not step.filter.asks_for_plain for step in body.steps):
        of_backend: FilterSteps = phases.get("backend_request", ())
        asking = ConfiguredFilter(DECODABLE, DecodableAnswers())
        phases["backend_request"] = (FilterStep(asking, Phase.BACKEND_REQUEST, of_backend), *of_backend)
    noted: FilterSteps = phases.get("request_headers", ())
    if noted and any(placed.filter.needs_original or placed.filter.waits_for_people for placed in filters):
        keeping = ConfiguredFilter(ORIGINAL, OriginalHead())
        phases["request_headers"] = (FilterStep(keeping, Phase.REQUEST_HEADERS, noted), *noted)
    looking = (*phases.get("backend_response", ()), *phases.get("response_headers", ()))
    phases["lets_request_trailers"] = let_trailers(trailers.request, Phase.REQUEST_BODY)
    phases["lets_backend_trailers"] = not phases.get("backend_request") or let_trailers(
        trailers.backend_heads, Phase.REQUEST_BODY
    )
    phases["lets_response_trailers"] = let_trailers(trailers.response, Phase.RESPONSE_BODY)
    phases["ignores_trailers"] = all(step.filter.ignores_trailers for step in looking)
    phases["needs_body"] = min(
        (step.filter.max_buffer_bytes for step in phases.get("backend_request", ()) if step.filter.needs_body),
        default=-1,
    )
    # Each instance once, though a spec may occur twice in the chain.
    phases["complete"] = completing = tuple(dict.fromkeys(placed for placed in filters if placed.mark is not None))
    for placed in completing:
        placed.stats_in(Phase(placed.spec.phase))  # create the failure counters, at 0
    return Chain(**phases)


def _steps(running: Sequence[ConfiguredFilter], phase: Phase) -> FilterSteps:
    steps: FilterSteps = ()
    for placed in reversed(running):
        steps = (FilterStep(placed, phase, steps), *steps)
    return steps


class _TrailerPlaces:
    """The filters of one place that see heads, and the phases in which they see trailers, once in each direction."""

    def __init__(self, filters: Sequence[ConfiguredFilter]) -> None:
        asking, sending = frozenset((Phase.REQUEST_HEADERS,)), frozenset((Phase.BACKEND_REQUEST,))
        answering = frozenset((Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS))
        self._all = filters
        self.request = [placed for placed in filters if placed.phases() & asking]
        self.backend_heads = [placed for placed in filters if placed.phases() & sending]
        self.backend_only = [placed for placed in self.backend_heads if placed not in self.request]
        self.response = [placed for placed in filters if placed.phases() & answering]

    def plan(
        self, running: Sequence[ConfiguredFilter], phase: Phase, looking: Sequence[ConfiguredFilter]
    ) -> BodyPlan | None:
        """The plan for the body and its trailers; `running` see the body, `looking` the head. None: no filters."""
        ordered = [*running, *(placed for placed in looking if placed not in running)]
        if looking is self.request:
            ordered = [placed for placed in ordered if placed not in self.backend_only]
        if phase is Phase.RESPONSE_BODY:  # a Backend's filters run before the rule's
            ordered.sort(key=lambda placed: placed.spec.level < BACKEND_LEVEL)
        else:
            ordered.sort(key=self._all.index)
        steps = trailer_steps(arranged(ordered, phase), phase)
        if not running and not steps:
            return None
        of_heads = {id(placed.filter) for placed in looking}
        heads = frozenset(step for step in steps if id(step.filter) in of_heads)
        return BodyPlan(_steps(running, phase), phase, steps, heads)


#: The result of a phase that did not simply pass: a response, or a task that returns one or None.
Outcome = LocalResponse | asyncio.Task[LocalResponse | None]


def run(steps: FilterSteps, exchange: Exchange) -> Outcome | None:
    """Run one header phase; None: all filters passed. Raises a filter's refusal; GatewayFault (502) if one fails."""
    try:
        for step in steps:
            mark = step.mark
            if mark is not None:
                state = exchange.state  # a filter may have made it
                if state:
                    state[mark] = True
                else:  # as `Exchange.keep`
                    made: dict[StateSlot[Any], Any] = {mark: True}
                    exchange.state = made
            step.stats.runs += 1
            call = step.call  # by a name of its own, as everywhere here: `step.call(…)` looks for a method first
            result = call(exchange)
            if result is not None:
                break
        else:
            return None
        if isinstance(result, LocalResponse):
            return checked_answer(step, result)
        if isinstance(result, Awaitable):
            return start(step, _go_on(step, result, exchange), result)
        raise wrong_result(step.method, result)
    except BaseException as error:  # without an await here, only the filter can raise
        settle(step, error, may_fail_open=step.fail_open)
        return run(step.rest, exchange)


async def run_to_end(steps: FilterSteps | None, exchange: Exchange) -> LocalResponse | None:
    """Run one header phase and wait for it. Returns None if all filters passed, or none runs. Raises as `run`."""
    outcome = run(steps, exchange) if steps is not None else None
    return await outcome if isinstance(outcome, asyncio.Task) else outcome


def finish(completing: Sequence[ConfiguredFilter], exchange: Exchange) -> None:
    """Run `complete` of every filter of this chain that ran in this exchange. A second call does nothing."""
    state = exchange.state
    if not completing or state is EMPTY_STATE:
        return
    for placed in completing:
        mark = placed.mark
        if mark is not None and state.pop(mark, None):
            try:
                placed.filter.complete(exchange)
            except BaseException as error:
                what, _ = failed(placed.filter, "complete", placed.spec.name, error)
                placed.stats_in(Phase(placed.spec.phase)).fail(what, is_open=True)


async def _go_on(step: FilterStep, awaitable: Awaitable[object], exchange: Exchange) -> LocalResponse | None:
    """The rest of a phase, from the step that waits."""
    try:
        result = await wait(step, awaitable, exchange)
        if isinstance(result, LocalResponse):
            return checked_answer(step, result)
        if result is not None:
            raise wrong_result(step.method, result)
    except Exception as error:
        settle(step, error, may_fail_open=step.fail_open)
    return await run_to_end(step.rest, exchange)
