"""`traffic` of an EgressPolicy: timeouts, retries, hedging, connections; settings of endpoints are in `resilience`."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.resilience import CircuitBreaker, HealthCheck, LoadBalancer
from egressproxy.config.resources.values import Count, Duration, Percent, PositiveDuration
from egressproxy.ir.policy import Priority


class TrafficTimeouts(Model):
    """Timeouts; 0s disables."""

    connect: Duration | None = None
    """To open a connection, including the wait for a free one at the limit."""
    tls_handshake: Duration | None = None
    """For TLS with a client or a backend."""
    request_headers: Duration | None = None
    """For a client to send a whole head, and a line of a chunked body (with its extensions) or its trailers."""
    request: Duration | None = None
    """For the whole exchange."""
    backend_request: Duration | None = None
    """For one attempt at a backend."""
    idle: Duration | None = None
    """For idle connections and stalled bodies."""
    tunnel_idle: Duration | None = None
    """For idle tunnels, and event streams of MCP servers."""


class RetryBudget(Model):
    """At most this share of the requests of `interval` may be retries, `minPerSecond` in any case."""

    percent: Percent = 20
    """The share of requests that may be retries."""
    interval: Duration = Duration("10s", 10.0)
    """The time window of the count."""
    min_per_second: Count = 10
    """Retries that are always possible."""


class RetryOn(Model):
    """Names are Envoy Gateway's."""

    triggers: tuple[
        Literal["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"], ...
    ] = ()
    """gRPC statuses to retry, for responses without messages."""


class Retries(Model):
    attempts: Count = 1
    """Attempts after the first; 100 at most."""
    codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = ()
    """Statuses to retry; an error in the first event of a stream counts as its status. Failed connections count
    without being listed.
    """
    retry_on: RetryOn = RetryOn.model_construct()
    """Further conditions for a retry."""
    backoff: Duration | None = None
    """Pause before the first retry; it doubles with each."""
    max_backoff: Duration | None = None
    """The longest pause. Default: ten times the backoff."""
    budget: RetryBudget | None = None
    """A limit on the share of retries."""


class Hedging(Model):
    """Hedging: slow requests are also sent to another endpoint. Names are gRPC's (hedgingPolicy)."""

    hedging_delay: PositiveDuration
    """The time without a response until the next attempt begins; earlier attempts continue."""
    max_attempts: Annotated[int, Field(strict=True, ge=2, le=5)] = 2
    """Attempts at the same time, the first one included."""
    non_fatal_status_codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = (500, 502, 503, 504)
    """Statuses that are held back while another attempt is in progress."""
    methods: Annotated[tuple[Literal["GET", "HEAD", "OPTIONS", "PUT", "DELETE"], ...], Field(min_length=1)] = (
        "GET",
        "HEAD",
        "OPTIONS",
    )
    """The methods to hedge; idempotent ones only."""


class Connections(Model):
    """Limits of kept-alive connections to backends. 0s and 0: no limit."""

    max_age: Duration | None = None
    """The age after which a connection takes no further request."""
    max_requests: Count | None = None
    """The number of requests after which a connection takes no further one."""
    share_tenants: StrictBool | None = None
    """Whether connections are reused across tenants. By default a connection serves one namespace (or one client
    without a namespace), if `identity` is configured.
    """


class Http2(Model):
    """Settings for HTTP/2 clients."""

    extended_connect: StrictBool | None = None
    """WebSockets over HTTP/2 (RFC 8441); of Gateways and listeners."""


class Traffic(Model):
    priority: Priority | None = None
    """The priority of requests during overload. Default: Normal."""
    timeouts: TrafficTimeouts = TrafficTimeouts.model_construct()
    """Timeouts."""
    retries: Retries | None = None
    """Retries of requests whose rule has no `retry`."""
    hedging: Hedging | None = None
    """Slow requests are also sent to a second endpoint; the first good response wins."""
    connections: Connections = Connections.model_construct()
    """Limits of connections to backends."""
    http2: Http2 = Http2.model_construct()
    """Settings for HTTP/2 clients."""
    half_close: StrictBool | None = None
    """Whether HTTP/1.1 clients may half-close (FIN) at any time and still get the response. Default: a FIN after the
    request means that the client has left.
    """
    circuit_breaker: CircuitBreaker | None = None
    """Limits of concurrent use of one endpoint."""
    load_balancer: LoadBalancer | None = None
    """The choice of an endpoint. Default: round robin."""
    health_check: HealthCheck | None = None
    """Health checks, which exclude failing endpoints."""
