"""The filter interface: the phases, what a filter may do in each, and how a filter type is declared.

A method that is not `async` must not block: it runs on the event loop. An `async` method runs under the extension's
`timeout`. To refuse, raise `Rejected`; to respond without asking a backend, return a `LocalResponse`. Any other
exception means that the filter failed: the client gets 502 with the filter's name, unless `failOpen` is set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, floor
from typing import Any, ClassVar, Final, NamedTuple

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.filters.calls import FilterCall
from egressproxy.filters.settings import CalledBackendRef, SecretRef, backend_refs, secret_refs
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange, FilterNote, StateSlot
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes
from egressproxy.net.keyed_counters import KeyedCounters
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

#: The result of a header-phase method: None, a LocalResponse, or (`async def`) an awaitable of one of these.
HeaderResult = LocalResponse | None | Awaitable[LocalResponse | None]
#: The result of a body method: the bytes to forward, a LocalResponse, or (`async def`) an awaitable of one of these.
BodyResult = bytes | LocalResponse | Awaitable[bytes | LocalResponse]
#: The result of a trailer method, which changes the fields in place.
TrailerResult = None | Awaitable[None]


class Phase(str, Enum):
    """The points of an exchange at which filters run, in this order. The values are those of `phase` in a manifest."""

    REQUEST_HEADERS = "request-headers"
    REQUEST_BODY = "request-body"
    CONNECT = "connect"
    BACKEND_REQUEST = "backend-request"
    BACKEND_RESPONSE = "backend-response"
    RESPONSE_HEADERS = "response-headers"
    RESPONSE_BODY = "response-body"

    @property
    def method(self) -> str:
        """The name of the Filter method that runs in this phase."""
        return self.value.replace("-", "_")


#: The client's original request, beside the version that other filters have changed: target and block of fields; body.
ORIGINAL_HEAD: Final[FilterNote[tuple[bytes, bytes]]] = FilterNote("original head")
ORIGINAL_BODY: Final[FilterNote[bytes]] = FilterNote("original body")
#: The trailers of a body as received, for filters that see trailers.
REQUEST_TRAILERS: Final[StateSlot[bytes]] = StateSlot("request trailers")
RESPONSE_TRAILERS: Final[StateSlot[bytes]] = StateSlot("response trailers")
#: The unfinished events that `sse` keeps, by the id of the filter: a stream may be read by several.
UNFINISHED_EVENTS: Final[StateSlot[dict[int, Any]]] = StateSlot("unfinished events")
#: Set for a response whose body is streamed through a filter that `sends_more`.
MORE: Final[FilterNote[Callable[[object], None]]] = FilterNote("more of the response")

#: The usual phases of request filters: on the client's head, or on the head for one backend.
REQUEST_HEADS = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST))
#: The response phase of a filter that is placed in a request phase.
RESPONSE_PHASE = {Phase.REQUEST_HEADERS: Phase.RESPONSE_HEADERS, Phase.BACKEND_REQUEST: Phase.BACKEND_RESPONSE}


class OfMessages(Enum):
    """What a filter does with a WebSocket whose messages can be given to filters, each as a request or an event."""

    CLOSED = "closed"  # no filter gets messages, and filters that have to see content refuse the upgrade
    HEAD = "head"  # the head of the upgrade alone matters
    READS = "reads"  # gets messages if another filter asks for them
    ASKS = "asks"


class BodyMode(Enum):
    """The form in which a body filter gets the body."""

    STREAM = "stream"  # piece by piece, as it arrives; each call returns what is sent instead
    BUFFER = "buffer"  # once, whole, up to `max_buffer_bytes`; a longer request is answered 413, a longer response 502


class Rejected(GatewayError):
    """A filter refuses the request: the exchange ends with this `status`, whatever `failOpen` says.

    `message` and `remedy` (what the client can do) are sent to the client in the body of the response. `reason` is the
    word in metrics and the access log. `retry_after_s` is sent as Retry-After in seconds; 0: no such field.
    Raised by `__init__`, it refuses the configuration.
    """

    is_quotable = False  # a filter may quote the request: Events leave the message out

    def __init__(
        self,
        message: str,
        *,
        status: int = 403,
        reason: Reason = Reason.FILTER_REJECTED,
        remedy: str = "",
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(reason, message, status=status, remedy=remedy, retry_after_s=retry_after_s)


class NextAttempt(UpstreamFault):
    """The response of this backend is unusable: the request goes to the next one, as after a retried status.

    Raised by `backend_response`. The rule's Failover, `retry` and budgets decide about the next attempt; without one,
    the client gets 502 with `why`, which must not hold a secret.
    """

    is_quotable = False

    def __init__(self, why: str) -> None:
        super().__init__(Reason.FILTER_REJECTED, f"a filter refused the response of the backend: {why}")


class RepeatRequest(NextAttempt):
    """The filter sends another request now: it goes to the same backend once more, whether or not the rule has retries.
    Without sessions and retries, and for a long body, the client gets `status` with `why`. `outcome` is that of the
    first attempt.
    """

    def __init__(self, outcome: str, why: str, status: int = 502) -> None:
        super().__init__(why)
        self.outcome, self.status = outcome, status


class UnusableReference(ValueError):
    """A value that a config refers to (a Secret, an environment variable) exists and does not fit the filter.

    Raised while the filter is built: its places are closed then, and the rest of the configuration is served. `ref` is
    the reference in the config, None if it is no Secret. The message must not hold the value.
    """

    def __init__(self, message: str, ref: SecretRef | None = None) -> None:
        super().__init__(message)
        self.ref = ref


class LimitState(NamedTuple):
    """The state of a limit: `left` of `limit`, and the seconds until all of it is available again (0: now, or
    unknown). `allows` is the limit in words. `is_whole`: the limit counts whole things.
    """

    name: str
    allows: str
    limit: float
    left: float
    reset_s: float = 0.0
    is_whole: bool = True

    def told(self) -> dict[str, Any]:
        """The state as JSON, rounded down to whole requests; after `resetSeconds` the whole limit is left."""
        # The rest of a bucket is a sum of floats: 4.9999999 is 5.
        is_whole = self.is_whole or self.left == int(self.left)
        left = floor(self.left + 1e-6) if is_whole else round(self.left, 4)
        reset = ceil(round(self.reset_s, 3))
        limit = int(self.limit) if self.limit == int(self.limit) else self.limit
        return {"name": self.name, "allows": self.allows, "limit": limit, "left": left, "resetSeconds": reset}


class Filter:
    """Base of every filter. Override the methods of the phases that it runs in; each may be `async def`, except
    `forecast`, `decision`, `explain` and `complete`.

    One instance serves all exchanges of the places that share its spec: keep the state of one exchange in `x.note`,
    never in `self`.

    Attributes:
        runs_in: the phases in which it runs; None: those that the placement and the type declare.
        body_mode: how the body methods get the body.
        max_buffer_bytes: the largest body that `BodyMode.BUFFER` collects, in bytes.
        max_answer_bytes: the same of a response; 0: as `max_buffer_bytes`.
        keeps_length: the body methods return as many bytes as they get, so Content-Length stays.
        only_reads: the body methods change nothing: what they return is ignored, and the body goes on as it came.
        needs_body: `backend_request` needs the whole body as the attempt sends it, in `x.body` (a signature covers it).
            The body is collected before a backend is chosen; 413 where it is longer than `max_buffer_bytes`.
        decodes: the body methods get the content of a body in a content coding (gzip, deflate, br, zstd), and what they
            return goes on in the same coding. A body in another coding is refused: 415 for a request, 502 for a
            response; with `failOpen` it passes unread. Requests then ask for codings that can be undone alone.
        asks_for_plain: one that `decodes` asks for bodies without any coding by itself, and for no parts of them.
        needs_original: `x.notes["original head"]` is the target (bytes) and the block of fields of the client's
            request, before any filter. Where a filter before it may have changed the body, `x.notes["original body"]`
            is the body as it came, in `request_body` (without content coding, where filters see it so).
        ignores_trailers: what gRPC says in trailers of how a call has ended may pass this filter of responses unseen,
            with its text: the filter hides nothing. Other trailers never do, and `grpc-status` always does.
        sends_credential: what `backend_request` adds is for the backend alone. Filters that other objects declare run
            before it, and behind its methods for responses, whatever their priority; no filter of a response sees it.
        signs_request: `backend_request` signs what is sent: it runs behind every other filter, whatever its priority.
        sends_more: `response_body` may have more to send when nothing has come for it. Where the body goes on as it
            comes, `x.notes["more of the response"]` is a function that, called with the filter, has the method called
            with b"".
        waits_for_people: it has a time limit of its own, and the extension's `timeout` does not hold. Since the request
            is decided again behind it, the head is kept as for `needs_original`.
        checks_models: `request_headers` and `request_body` refuse models that the client's API key is not for
            (`x.identity.grant`), and what may ask for a model unseen.
        of_messages: what it does with a WebSocket whose messages can be given to filters (`filters/messages`).
        sees_trailers: False for one whose `request_trailers` and `response_trailers` do not run, as if it had none.
    """

    body_mode: ClassVar[BodyMode] = BodyMode.STREAM
    max_buffer_bytes: int = 1024 * 1024
    max_answer_bytes: int = 0
    keeps_length: ClassVar[bool] = False
    only_reads: bool = False
    needs_body: bool = False
    decodes: bool = False
    asks_for_plain: bool = False
    checks_models: bool = False
    needs_original: bool = False
    ignores_trailers: bool = False
    sends_credential: bool = False
    signs_request: bool = False
    sends_more: bool = False
    sees_trailers: bool = True
    waits_for_people: bool = False
    of_messages: OfMessages = OfMessages.CLOSED
    runs_in: frozenset[Phase] | None = None

    def body_mode_for(self, exchange: Exchange, /, phase: Phase) -> BodyMode | None:
        """How this exchange's body of REQUEST_BODY or RESPONSE_BODY is given; None: it passes this filter unread.

        Called once for each body (on a Backend: for each attempt), before its first piece and before its head is sent
        on, so `x.response` is there for a response. Must not change anything or be `async`. Raises Rejected to refuse.
        """
        return self.body_mode

    def held_bytes(self, exchange: Exchange, /, phase: Phase) -> int:
        """The bytes of this exchange's body of REQUEST_BODY or RESPONSE_BODY that a streaming filter has buffered.
        Override it if these may be many: they count as held for the client, and bodies wait above its limit.
        """
        unfinished = exchange.state.get(UNFINISHED_EVENTS)
        return unfinished[id(self)].held if unfinished is not None and id(self) in unfinished else 0

    def request_headers(self, exchange: Exchange, /) -> HeaderResult:
        """Before a backend is chosen; may change `x.request`, and narrow the choice by `x.exclude_backend` and
        `x.prefer_backend`. For tunnels too (`x.is_tunnel`), whose fields say little.

        Returns a LocalResponse to respond without asking a backend. Raises Rejected to refuse.
        """

    def request_body(self, exchange: Exchange, /, data: bytes, last: bool) -> BodyResult:
        """A piece of the client's body; returns the bytes that are sent instead. Raises Rejected to refuse.

        STREAM: called for every piece; the one with `last` may be empty. BUFFER: called once, with the whole body,
        before a backend is chosen; it may change `x.request`. Returns a LocalResponse to respond with that.
        """
        return data

    def request_trailers(self, exchange: Exchange, /, fields: Fields) -> TrailerResult:
        """The fields behind the client's body, which may be changed: RFC 9110 section 6.5. Raises Rejected to refuse.

        Runs behind the last piece of the body, where there are trailers. What must not come late (framing, routing,
        authentication: section 6.5.1) is left out of what goes on, and so is all of it where a filter that looks at the
        request has no such method, or the body is collected before a backend is chosen.
        """

    def connect(self, exchange: Exchange, /) -> HeaderResult:
        """Before a socket is opened, with `x.authority`, `x.addresses` (all of them allowed) and `x.identity`.

        Must not change the head. Raises Rejected to refuse.
        """

    def backend_request(self, exchange: Exchange, /) -> HeaderResult:
        """Once for each attempt, with `x.backend` and `x.backend_is_secure`; changes to `x.request` hold for it alone.

        Returns a LocalResponse to respond without this backend. Raises Rejected to refuse.
        """

    def backend_response(self, exchange: Exchange, /) -> HeaderResult:
        """With the head that the backend sent, `x.response`, which may be changed. Returns and raises as above.

        Once for each attempt; raises NextAttempt to ask for another one.
        """

    def response_headers(self, exchange: Exchange, /) -> HeaderResult:
        """With the head for the client, `x.response`, which may be changed; also for another filter's LocalResponse.

        Does not run for error responses of the gateway: a refusal, an upstream that fails. Returns and raises as above.
        """

    def response_body(self, exchange: Exchange, /, data: bytes, last: bool) -> BodyResult:
        """As `request_body`, for the body to the client.

        BUFFER: the head waits until the whole body has passed. It may change `x.response`, raise Rejected with a status
        that the client gets, or return a LocalResponse. STREAM without a BUFFER filter beside it: the head has gone, a
        refusal breaks the response off, and a LocalResponse is a failure.
        """
        return data

    def response_trailers(self, exchange: Exchange, /, fields: Fields) -> TrailerResult:
        """As `request_trailers`, for the fields behind the body to the client. Where the head has gone, a refusal
        breaks the response off. The `grpc-status` of a call may change, and always goes on.
        """

    def at_place(self, behind: Sequence[tuple[str, frozenset[Phase]]]) -> Filter:
        """The filter for one chain: itself, or an instance of its own that shares state with the others.

        `behind` are the names and phases of the filters that run after it. A chain with a filter that overrides this
        serves one rule alone. Raises ValueError if the filter cannot run there.
        """
        return self

    def in_service(self) -> None:
        """A configuration with this filter is in service; its places are the calls of `at_place` since the last call of
        this method. Must not raise or wait.
        """

    def forecast(self, exchange: Exchange, /) -> None:
        """For `egressproxy explain`: raises what would refuse each request to `x.backend`. Must not change or count."""

    def approval(self, exchange: Exchange, /) -> str:
        """For `egressproxy explain`: how this exchange waits for a person, as a sentence; "" where it does not."""
        return ""

    def decision(self, exchange: Exchange, /) -> str:
        """For `egressproxy explain`: what is decided about this exchange, and by which rule; "" where nothing is."""
        return ""

    def explain(self, exchange: Exchange, /) -> list[LimitState]:
        """For `egressproxy explain`: the limits that hold for this exchange. Must not change or count anything."""
        return []

    def complete(self, exchange: Exchange, /) -> None:
        """At the end of each exchange in which another method ran: releases what was taken. Must not raise or wait."""

    def drain(self) -> None:
        """The process drains: end the wait of exchanges in this filter. Must not raise or wait."""

    def close(self) -> None:
        """The filter is out of service: a reload has replaced it, or the process ends. Cancel tasks and close resources
        here. Exchanges in flight may still run the filter. Called once, on the event loop; must not raise or wait.

        A task is begun at the first need, in a running loop, never in `__init__`: a configuration may only be checked.
        """


@dataclass(frozen=True, slots=True)
class FilterContext:
    """The arguments of a filter's constructor.

    Attributes:
        config: the validated config: an instance of the file's `Config`, or of the type's `config_model`.
        secrets: values by `SecretRef.label` ("name/key"); a missing Secret has no entry.
        name: the extension's name.
        scope: the object that shares this instance, "Kind namespace/name".
        source: the object that declares it, "Kind namespace/name".
        folder: the folder of that object's file, where relative paths start; "" if it is from no file.
        phase: the declared phase.
        row: the numbers of a type that `is_shared`, if several processes serve.
        calls: the backends that the config refers to, by `CalledBackendRef.label`. Empty while a configuration is only
            checked: `__init__` must not need them.
        keyed: gives the numbers of a limit, by what it is known by (16 bytes) and how many keys it has: the same for
            all workers, and kept across reloads. None: the filter makes its own.
        meter: makes counters, gauges and histograms of the filter's own, which /metrics shows over all workers.
        notices: tells an operator something, as an Event at `source`.
    """

    config: Any
    secrets: Mapping[str, SecretBytes]
    name: str
    scope: str
    source: str
    folder: str = ""
    phase: Phase = Phase.REQUEST_HEADERS
    row: Row | None = None
    calls: Mapping[str, FilterCall] = field(default_factory=dict)
    keyed: Callable[[bytes, int], KeyedCounters] | None = None
    meter: FilterMeter = field(default_factory=lambda: FilterMeter(FilterMetrics(), "test", ""))
    notices: FilterNotices = field(default_factory=lambda: FilterNotices(EventAggregator(), "test", ""))


@dataclass(frozen=True, slots=True)
class FilterType:
    """A filter type.

    Attributes:
        name: `domain/Kind:version`.
        phases: where it may be placed.
        config_model: a pydantic model, or a dataclass derived from `settings.FilterConfig`. Such a dataclass is checked
            once, where the configuration is compiled, and the process that serves does not import pydantic for it.
        build: makes the filter. Raises UnusableReference, or ValueError or OSError for what refuses the configuration.
        also: phases in which a placed filter runs besides its own (an injector that also masks responses).
        secret_refs: the Secrets that a config refers to; by default all SecretRef in it.
        backend_refs: the backends that a config refers to, each with its field in the config (`judge.backendRef`); by
            default all CalledBackendRef in it.
        summary: one sentence for `egressproxy filters`.
        revision: what decides, besides the spec, whether an instance is kept across a reload.
        is_shared: its counters are shared by all workers.
        backend_names: backends of rules that a config names (`name` or `namespace/name`), each with its field.
        machine_field: the field of a config that leads to the machine (a file, a variable of the environment, a
            program), "" for none: no object that was written through the API may have one.
        machine_problem: why this machine has not what that field names, "" where it has: `check` tells it.
        package: the installed package that makes it known, name and version; "" for a type of ours.
        stands_for: phases in which manifests of proposals place it, beside `phases`, each with the settings that it
            stands for: the filter runs in its own phases then.
        inspect: only for types that run the operator's code: says what is wrong without running it. Raises ValueError
            or OSError.
    """

    name: str
    phases: frozenset[Phase]
    config_model: type[Any]
    build: Callable[[FilterContext], Filter]
    also: frozenset[Phase] = frozenset()
    secret_refs: Callable[[Any], tuple[SecretRef, ...]] = secret_refs
    backend_refs: Callable[[Any], tuple[tuple[str, CalledBackendRef], ...]] = backend_refs
    summary: str = ""
    revision: Callable[[FilterContext], str] = lambda _context: ""
    is_shared: bool = False
    backend_names: Callable[[Any], tuple[tuple[str, str], ...]] = lambda _config: ()
    machine_field: Callable[[Any], str] = lambda _config: ""
    machine_problem: Callable[[Any], str] = lambda _config: ""
    inspect: Callable[[FilterContext], None] | None = None
    package: str = ""
    stands_for: Mapping[Phase, Mapping[str, str]] = field(default_factory=dict)

    @property
    def runs_code(self) -> bool:
        """Whether a config of this type names code of the operator: its `build` must not run on the event loop."""
        return self.inspect is not None


def overrides(cls: type[Filter], phase: Phase) -> bool:
    """Whether this class has a method of its own for the phase."""
    return getattr(cls, phase.method) is not getattr(Filter, phase.method)


def sees_trailers(each: Filter, phase: Phase) -> bool:
    """Whether this filter has a method of its own for the trailers behind the body of REQUEST_BODY or RESPONSE_BODY."""
    cls = type(each)
    if phase is Phase.REQUEST_BODY:
        return each.sees_trailers and cls.request_trailers is not Filter.request_trailers
    return each.sees_trailers and cls.response_trailers is not Filter.response_trailers
