"""`traffic` of an EgressPolicy: timeouts, retries, hedging, connections; what is about endpoints is in `resilience`."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.resilience import CircuitBreaker, HealthCheck, LoadBalancer
from egressproxy.config.resources.values import Count, Duration, Percent, PositiveDuration
from egressproxy.ir.policy import Priority


class TrafficTimeouts(Model):
    """0s disables."""

    connect: Duration | None = None
    """To open a connection, and before that to wait for one where there are too many."""
    tls_handshake: Duration | None = None
    """For TLS with a client or a backend."""
    request_headers: Duration | None = None
    """For a client to send a whole head, and a line of a chunked body (with its extensions) or its trailers."""
    request: Duration | None = None
    """For the whole exchange."""
    backend_request: Duration | None = None
    """For one attempt at a backend."""
    idle: Duration | None = None
    """For kept-alive connections and bodies that stall."""
    tunnel_idle: Duration | None = None
    """For tunnels in which nothing moves, and event streams of MCP servers."""


class RetryBudget(Model):
    """At most this share of the requests of `interval` may be retries, `minPerSecond` in any case."""

    percent: Percent = 20
    """The share of requests that may be retries."""
    interval: Duration = Duration("10s", 10.0)
    """The time that requests are counted over."""
    min_per_second: Count = 10
    """Retries that are always possible."""


class RetryOn(Model):
    """Names are Envoy Gateway's."""

    triggers: tuple[
        Literal["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"], ...
    ] = ()
    """Statuses of calls of gRPC that are tried again, where an answer is its status alone."""


class Retries(Model):
    attempts: Count = 1
    """Attempts after the first; 100 at most."""
    codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = ()
    """Statuses of a backend that are tried again; a first event that tells of an error counts as the status of that.
    Connections that fail are without being named.
    """
    retry_on: RetryOn = RetryOn.model_construct()
    """What else is tried again."""
    backoff: Duration | None = None
    """Pause before the first retry; it doubles with each."""
    max_backoff: Duration | None = None
    """The longest pause. Default: ten times the backoff."""
    budget: RetryBudget | None = None
    """How many retries there may be in all."""


class Hedging(Model):
    """Requests that are not answered in time are sent to another endpoint, too. Names are gRPC's (hedgingPolicy)."""

    hedging_delay: PositiveDuration
    """How long an answer may take until the next attempt begins; the earlier ones go on."""
    max_attempts: Annotated[int, Field(strict=True, ge=2, le=5)] = 2
    """Attempts at the same time, the first one included."""
    non_fatal_status_codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = (500, 502, 503, 504)
    """Statuses that are not passed on while another attempt may still bring a better one."""
    methods: Annotated[tuple[Literal["GET", "HEAD", "OPTIONS", "PUT", "DELETE"], ...], Field(min_length=1)] = (
        "GET",
        "HEAD",
        "OPTIONS",
    )
    """The methods that this is for; idempotent ones only."""


class Connections(Model):
    """Of kept-alive connections to backends. 0s and 0: no limit."""

    max_age: Duration | None = None
    """A connection that is older takes no further request."""
    max_requests: Count | None = None
    """A connection that has carried as many takes no further one."""
    share_tenants: StrictBool | None = None
    """Connections serve clients of several tenants, one after the other. By default each serves one namespace (or one
    client that has none), where `identity` says who clients are.
    """


class Http2(Model):
    """Of clients that speak HTTP/2."""

    extended_connect: StrictBool | None = None
    """WebSockets over HTTP/2 (RFC 8441); of Gateways and listeners."""


class Traffic(Model):
    priority: Priority | None = None
    """Which requests go first where the gateway is overloaded. Default: Normal."""
    timeouts: TrafficTimeouts = TrafficTimeouts.model_construct()
    """How long things may take."""
    retries: Retries | None = None
    """What is tried again, for requests whose rule has no `retry` of its own."""
    hedging: Hedging | None = None
    """Requests that take long are sent to a second endpoint, too, and the first good answer is passed on."""
    connections: Connections = Connections.model_construct()
    """How long connections to backends are kept."""
    http2: Http2 = Http2.model_construct()
    """What clients of HTTP/2 may do."""
    half_close: StrictBool | None = None
    """Clients of HTTP/1.1 may end their side (FIN) at any time and still get the response. Default: a client that does
    so later than with its request has left.
    """
    circuit_breaker: CircuitBreaker | None = None
    """How much one endpoint of a backend is asked for at the same time."""
    load_balancer: LoadBalancer | None = None
    """How an endpoint of a backend is chosen. Default: they take turns."""
    health_check: HealthCheck | None = None
    """Endpoints that fail are left out."""
