"""Pipeline: the order of the phases of an exchange. It does no I/O, waits for nothing, and keeps no clock.

What h11 is for bytes, this is for exchanges. `request`, `tunnel` and `stream` are generators of actions: the driver of
the exchange takes the next one, carries it out, and leaves the result in the attribute that the action names. The next
phase follows from that. Equal results give equal actions, so tests and `explain` need neither sockets nor a loop.

A listener may have filters that run before a route is chosen (GEP-5224). Until then `route` is its `pre_route`, for
ENTER_GATE, OFFER_BODY, FILTER and RESPOND; behind them START_CLOCK comes in place of ENTER_GATE.

| action | the driver … | and leaves |
|---|---|---|
| IDENTIFY | learns who the client is; refuses loops and credentials that do not hold | `exchange.identity` |
| ENTER_GATE | asks the overload gate, behind policy, and starts the clock of `route` if there is one yet | `tenant` |
| OFFER_BODY | lets filters of the head ask for the body | |
| FILTER | runs `steps`, as they stand | `answer`: a filter's, or None |
| ADMIT_AGAIN | decides a request once more that has waited for a person | `route`; of a tunnel `listener`, too |
| FILTER_BODY | lets body filters of the route decide how they get the body | `body` |
| CALL | chooses a backend and asks it | `answer`, or `exchange.response` and `response_chain` |
| RESPOND | sends `answer`; the last action | |
| RESPOND_SELF | answers a client's question about its own egress; the last action | |
| SEND | sends the response through the body filters of `response_chain`; the last action | |
| SWITCH | makes a tunnel of the two connections (101); the last action | |
| ACCEPT | answers 200, and waits for the client's first bytes | `listener` of then, `speaks_http` |
| READ_HTTP | reads requests in the tunnel; the last action | |
| REFUSE_TLS | ends the tunnel with a TLS alert for `denied`; the last action | |
| START_CLOCK | starts the clock of `route` | |
| INTERCEPT | ends the client's TLS with a certificate of `certificates`; the last action | |
| TUNNEL | connects to `backend`, and relays; the last action | |
| NOTE_ECH | counts a ClientHello with ECH | |
| TERMINATE | ends the client's TLS with the listener's own certificate | |

A failure of an action is raised by the driver, and the generator is given up. `end` says what the error becomes, and
behind that the driver accounts for the exchange, once, unless a tunnel has it:

| last action | the driver … |
|---|---|
| RESPOND_INSTEAD | sends the response that a body filter has made |
| RESPOND_ERROR | answers with the error |
| END_EVENTS | ends a stream of events with one that tells of the error; breaks another body off |
| REFUSE | closes a stream, with a TLS alert where policy is the reason |
| BREAK_OFF | closes the connection, or resets the stream of HTTP/2: what was sent must not look whole |

Results are read into local names after a `yield`: type checker and compiler take an attribute that was tested before
it for unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from egressproxy.errors import ClientGone, Denied, GatewayError
from egressproxy.filters.body import BodyChain
from egressproxy.filters.chain import Chain
from egressproxy.filters.filter_step import FilterAnswered, FilterSteps
from egressproxy.filters.messages import MESSAGES, Messages
from egressproxy.gateway.backends.mirror_request import MirrorRequests
from egressproxy.gateway.backends.replayable_body import UNFILTERED, ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import HeldConnection
from egressproxy.gateway.exchange.admission import (
    HTTP_PORT,
    admit_http,
    check_grant,
    connect_not_served,
    name_request,
    name_stream,
    of_client,
    read_authority,
    route_of_stream,
    route_request,
    route_tunnel,
    stream_certificates,
    ways_to_http_port,
)
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.error_responses import ALLOW
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.exchange.retry_state import RetryState
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.overload.request_gate import Tenant
from egressproxy.gateway.route import SELF_SERVICE, Route, filtered_route
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import BACKEND_CHOICE, WAITED, Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead
from egressproxy.net.held_bytes import Hold
from egressproxy.protocols.tls.client_hello import ClientHello

IDENTIFY: Final = "identify"
ENTER_GATE: Final = "enter gate"
OFFER_BODY: Final = "offer the body"
FILTER: Final = "filter"
ADMIT_AGAIN: Final = "admit again"
FILTER_BODY: Final = "filter the body"
CALL: Final = "call"
RESPOND: Final = "respond"
RESPOND_SELF: Final = "respond about the gateway"
SEND: Final = "send"
SWITCH: Final = "switch protocols"
ACCEPT: Final = "accept"
READ_HTTP: Final = "read HTTP"
REFUSE_TLS: Final = "refuse TLS"
START_CLOCK: Final = "start the clock"
INTERCEPT: Final = "intercept"
TUNNEL: Final = "tunnel"
NOTE_ECH: Final = "note ECH"
TERMINATE: Final = "terminate TLS"
RESPOND_INSTEAD: Final = "respond instead"
RESPOND_ERROR: Final = "respond with the error"
END_EVENTS: Final = "end the events"
REFUSE: Final = "refuse the stream"
BREAK_OFF: Final = "break off"

#: The answer of the last hop that Max-Forwards allows (RFC 9110 section 7.6.2).
LAST_HOP: Final = LocalResponse(200, ((b"Allow", ALLOW),))


class Pipeline(HeldConnection):
    """The state of an exchange: what it holds and must release however it ends, where it stands, what comes next. One
    for each client connection, used for one exchange after the other.

    `certificates` are shown to the client of a tunnel that is opened.
    """

    __slots__ = (
        "answer", "backend", "backend_filter", "body", "certificates", "close", "denied", "exchange", "held_bytes",
        "is_handed_over", "is_stream", "listener", "mirror_requests", "on_complete", "request_chain",
        "request_filter", "response_chain", "response_filter", "retries_elsewhere", "retry_state", "route",
        "speaks_http", "steps", "tenant",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.upstream = None
        # As before as soon as each is given back (`Accounting.account`), which few exchanges have:
        self.request_filter: BodyFilter | None = None
        self.backend_filter: BodyFilter | None = None  # of the backend, of the attempt under way
        self.response_filter: BodyFilter | None = None
        self.request_chain: BodyChain | None = None  # of the route: that the body of the request has yet to pass
        self.on_complete: Callable[[], None] | None = None
        self.held_bytes: Hold | None = None  # of bodies
        self.tenant: Tenant | None = None  # for whom it is counted, while something is short (`gateway/overload`)
        # With these the connection ends; most are of tunnels:
        self.certificates: CertificateCache | None = None
        self.denied: Denied | None = None
        self.speaks_http = False
        self.is_stream = False  # of no HTTP: nothing can be answered
        self.retry_state: RetryState | None = None  # for the driver of the attempts, which takes it
        self.close = False  # the client's connection ends with this exchange
        self.is_handed_over = False  # a tunnel has the exchange, and completes it
        self.retries_elsewhere = False  # the caller of filters makes attempts of its own

    def reset(self) -> None:
        """Forget the rest, when what is held was given back."""
        self.exchange: Exchange | None = None  # the holder; None between two exchanges
        self.cluster = None
        self.target = None
        self.listener: ActiveListener | None = None
        self.route: Route | None = None
        self.backend: RouteBackend | None = None
        self.mirror_requests: MirrorRequests | None = None
        self.steps: FilterSteps | None = None
        self.answer: LocalResponse | None = None
        self.body: bytes | ReplayableBody | None = None
        self.response_chain: Chain | None = None

    @property
    def identity(self) -> CallerIdentity:
        return self.exchange.identity if self.exchange is not None else ANONYMOUS

    def when_complete(self, call: Callable[[], None]) -> None:
        """Call this when the exchange is complete, behind what was asked for before."""
        before = self.on_complete
        self.on_complete = call if before is None else partial(_both, before, call)

    def release_request(self, exchange: Exchange, hold: Hold) -> None:
        """The response is here: nothing of the request's body is held for a further attempt."""
        self.body = None
        exchange.take(UNFILTERED)
        hold.release_request()

    def release_bytes(self) -> None:
        """Nothing is held of bodies any more."""
        if self.held_bytes is not None:
            self.held_bytes.release()
            self.held_bytes = None

    def end_filters(self) -> None:
        """Release the body filters, whether they are at work or have ended."""
        filters = self.request_filter, self.backend_filter, self.response_filter
        self.request_filter = self.backend_filter = self.response_filter = self.request_chain = None
        for body_filter in filters:
            if body_filter is not None:
                body_filter.release()

    # --- an HTTP request -------------------------------------------------------------------------------------------
    def request(
        self,
        exchange: Exchange,
        head: RequestHead,
        port: Port,
        server_name: str,
        inside: OpenedTunnel | Redirection | None,
    ) -> Iterator[str]:
        """The actions for a request. Arguments and errors as of `name_request`; raises as `route_request`, too."""
        listener = self.listener = name_request(exchange, port, server_name, inside, head)
        if head.via or listener.authenticator is not None or head.method == b"TRACE":
            yield IDENTIFY
        if listener.variants is not None:
            listener = self.listener = listener.variants.of(exchange.identity)
        before = listener.pre_route
        if before is not None:
            self.route = before
            yield ENTER_GATE
            if before.reads_early:
                yield OFFER_BODY
            self.steps = before.head_steps
            yield FILTER
            answer = self.answer
            if answer is not None:
                yield RESPOND
                return
        route, exchange.path_prefix, noted = route_request(listener, exchange.authority, head)  # type: ignore[arg-type]
        self.route = route
        exchange.route = route.name
        exchange.series = route.series
        if noted:
            exchange.note_denials(*noted)
        if exchange.identity.grant is not None:
            check_grant(exchange.identity.grant, exchange, route)
        yield ENTER_GATE if before is None else START_CLOCK
        if head.max_forwards >= 0:
            if head.max_forwards == 0:
                self.answer = LAST_HOP
                yield RESPOND
                return
            head.max_forwards -= 1
        steps = route.head_steps
        if steps is not None:
            if route.kind == SELF_SERVICE:
                yield RESPOND_SELF
                return
            if route.reads_early:
                yield OFFER_BODY
            if head.upgrade and route.reads_messages and not self.retries_elsewhere:
                exchange.keep(MESSAGES, Messages(head.copy()))
            self.steps = steps
            yield FILTER
            answer = self.answer
            if answer is not None:
                yield RESPOND
                return
            if exchange.state:
                if exchange.take(WAITED):
                    yield ADMIT_AGAIN
                route = self._narrow(exchange)
        if route.filters_request and head.body != 0:
            yield FILTER_BODY
            if exchange.state:
                if exchange.take(WAITED):
                    yield ADMIT_AGAIN
                route = self._narrow(exchange)
        if route.retries is None or self.retries_elsewhere:
            yield CALL
        else:
            state = self.retry_state = RetryState(route.retries, exchange, route, self.body)
            yield from state.actions()
        answer = self.answer
        if answer is None:
            for steps in self.response_chain.response_phases:  # type: ignore[union-attr]  # the driver has set it
                self.steps = steps
                yield FILTER
                answer = self.answer
                if answer is not None:
                    break
        if answer is not None:
            yield RESPOND
        elif exchange.response.status == 101:
            yield SWITCH
        else:
            yield SEND

    def choose(self, exchange: Exchange) -> None:
        """CALL, and TUNNEL: choose a backend of the route. Raises GatewayError where none can serve."""
        backend = self.backend = self.route.choose()  # type: ignore[union-attr]  # set before ENTER_GATE
        exchange.backend = backend.name
        exchange.series = backend.series

    def _narrow(self, exchange: Exchange) -> Route:
        """The route without the backends that filters exclude. Raises Denied where none is left."""
        route: Route = self.route  # type: ignore[assignment]  # set before ENTER_GATE
        if BACKEND_CHOICE in exchange.state:
            route = self.route = filtered_route(route, exchange)
        return route

    # --- CONNECT ---------------------------------------------------------------------------------------------------
    def tunnel(
        self, exchange: Exchange, head: RequestHead, listener: ActiveListener, *, is_inside: bool
    ) -> Iterator[str]:
        """The actions for a CONNECT. `is_inside`: it came in a tunnel. Raises GatewayFault (405) where none is served,
        and as `route_tunnel`. Source: RFC 9110 section 9.3.6.

        In a tunnel to port 80 the first byte decides between TLS and HTTP, since clients tunnel both there: no method
        of HTTP begins with one that a TLS server would take.
        """
        exchange.is_tunnel = True
        if not listener.is_forward or is_inside:
            raise connect_not_served()
        authority = exchange.authority = read_authority(head.target, None)
        self.listener = listener
        if head.via or listener.authenticator is not None:
            yield IDENTIFY
        if listener.variants is not None:
            listener = self.listener = listener.variants.of(exchange.identity)
        is_admitted = authority.port == HTTP_PORT
        if is_admitted:
            ways_to_http_port(listener, authority)
            yield ENTER_GATE
            yield ACCEPT
            listener = self.listener
            if self.speaks_http:
                with suppress(Denied):  # each request will be refused; mode Report notes it of the tunnel, too
                    exchange.note_denials(*admit_http(of_client(exchange, listener), authority))
                yield READ_HTTP
                return
        is_refused, certificates = False, None
        try:
            if is_admitted and listener.variants is not None:
                listener = self.listener = listener.variants.of(exchange.identity)
            cas = listener.certificates_for(authority.host)
            if cas is not None:
                certificates = self.certificates = cas.for_client(exchange.identity)
            else:
                self.route, noted = route_tunnel(listener, authority)
                exchange.note_denials(*noted)
                if exchange.identity.grant is not None:
                    check_grant(exchange.identity.grant, exchange, self.route)
        except Denied as denied:
            if not is_admitted:
                raise
            denied.__traceback__ = denied.__context__ = None  # its frames lead back here: no cycle
            self.denied, is_refused = denied, True
        if is_refused:
            yield REFUSE_TLS
            return
        if not is_admitted:
            yield ENTER_GATE
        if certificates is not None:
            yield INTERCEPT
            return
        route: Route = self.route  # type: ignore[assignment]
        exchange.route = route.name
        exchange.series = route.series
        if is_admitted:
            yield START_CLOCK
        yield from self._through_route(exchange)

    def _through_route(self, exchange: Exchange) -> Iterator[str]:
        """The actions of a tunnel whose route is known and admitted."""
        steps = self.route.chain.request_headers  # type: ignore[union-attr]
        if steps is not None:
            self.steps = steps
            yield FILTER
            answer = self.answer
            if answer is not None:
                yield RESPOND
                return
            if exchange.state:
                if exchange.take(WAITED):
                    yield ADMIT_AGAIN
                self._narrow(exchange)
        self.choose(exchange)
        self.backend.note_denied(exchange)  # type: ignore[union-attr]  # `choose` sets it
        yield TUNNEL

    # --- a connection to a TLS or TCP listener -----------------------------------------------------------------------
    def stream(self, exchange: Exchange, state: OpenConnections, hello: ClientHello | None) -> Iterator[str]:
        """The actions for a stream that began with this ClientHello; None: of TCP. `state` gives the port of now, since
        a handshake may take long. Raises as `name_stream` and `route_of_stream`.
        """
        self.is_stream = True
        listener = self.listener = name_stream(exchange, state.port, hello)
        if hello is not None and hello.has_ech:
            yield NOTE_ECH
        if listener.terminate is not None:
            if listener.variants is None:  # the same for all clients: what is not served is told so before a handshake
                self._route_stream(exchange, listener)
            yield TERMINATE
        yield IDENTIFY
        if self.route is None:
            own = self.listener = of_client(exchange, listener)
            cas = stream_certificates(state.port, own, exchange.authority)
            if cas is not None:
                self.certificates = cas.for_client(exchange.identity)
                yield INTERCEPT
                return
            self._route_stream(exchange, own)
        yield ENTER_GATE
        yield from self._through_route(exchange)

    def _route_stream(self, exchange: Exchange, listener: ActiveListener) -> None:
        route, noted = route_of_stream(listener, exchange.authority)
        self.route = route
        exchange.note_denials(*noted)
        exchange.route = route.name
        exchange.series = route.series

    # --- an error ----------------------------------------------------------------------------------------------------
    def end(self, exchange: Exchange, error: GatewayError, *, is_lost: bool) -> str:
        """The last action of an exchange that has failed. `is_lost`: the client is gone."""
        if is_lost or isinstance(error, ClientGone):
            return BREAK_OFF
        if exchange.status:
            return BREAK_OFF if self.response_filter is None else END_EVENTS
        if self.is_stream:
            return REFUSE
        return RESPOND_INSTEAD if isinstance(error, FilterAnswered) else RESPOND_ERROR


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
