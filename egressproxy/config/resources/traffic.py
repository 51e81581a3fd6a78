"""`traffic` of an EgressPolicy: timeouts, retries, connections, health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.values import Count, Duration, HeaderName, Percent, Positive, RefusedValue

__all__ = ["Retries", "Traffic", "TrafficTimeouts"]


class TrafficTimeouts(Model):
    """0s disables."""

    connect: Duration | None = None
    """To open a connection, and before that to wait for one where there are too many."""
    tls_handshake: Duration | None = None
    """For TLS with a client or a backend."""
    request_headers: Duration | None = None
    """For a client to send a whole head."""
    request: Duration | None = None
    """For the whole exchange."""
    backend_request: Duration | None = None
    """For one attempt at a backend."""
    idle: Duration | None = None
    """For kept-alive connections and bodies that stall."""
    tunnel_idle: Duration | None = None
    """For tunnels in which nothing moves."""


class RetryBudget(Model):
    """At most this share of the requests of `interval` may be retries, `minPerSecond` in any case."""

    percent: Percent = 20
    """The share of requests that may be retries."""
    interval: Duration = Duration("10s", 10.0)
    """The time that requests are counted over."""
    min_per_second: Count = 10
    """Retries that are always possible."""


class Retries(Model):
    attempts: Count = 1
    """Attempts after the first; 100 at most."""
    codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = ()
    """Statuses of a backend that are tried again. Connections that fail are without being named."""
    backoff: Duration | None = None
    """Pause before the first retry; it doubles with each."""
    max_backoff: Duration | None = None
    """The longest pause. Default: ten times the backoff."""
    budget: RetryBudget | None = None
    """How many retries there may be in all."""


class Connections(Model):
    """Of kept-alive connections to backends. 0s and 0: no limit."""

    max_age: Duration | None = None
    """A connection that is older takes no further request."""
    max_requests: Count | None = None
    """A connection that has carried as many takes no further one."""


class CircuitBreaker(Model):
    max_connections: Positive | None = None
    """Connections to one backend."""
    max_requests: Positive | None = None
    """Requests at one backend at the same time."""
    max_pending_requests: Count | None = None
    """Requests that wait for a connection to one backend."""


class OutlierDetection(Model):
    consecutive_errors: Positive = 5
    """Failures in a row after which an endpoint is left out."""
    interval: Duration = Duration("10s", 10.0)
    """How often endpoints are judged."""
    ejection_time: Duration = Duration("30s", 30.0)
    """For how long an endpoint is left out."""
    max_ejection_percent: Percent = 50
    """The share of endpoints that may be left out at the same time."""


class LoadBalancing(Model):
    type: Literal["RoundRobin", "LeastRequest", "Random", "ConsistentHash"] = "RoundRobin"
    """How an endpoint is chosen."""
    hash_header: HeaderName | None = None
    """For ConsistentHash: the field whose value decides."""

    def model_post_init(self, context: Any) -> None:
        """`hashHeader` belongs to ConsistentHash."""
        if self.hash_header is not None and self.type != "ConsistentHash":
            raise RefusedValue(
                f"hashHeader is not used with type {self.type}", "use type ConsistentHash, or remove hashHeader"
            )


class HealthCheck(Model):
    type: Literal["HTTP", "TCP"] = "HTTP"
    """HTTP: a GET has to be answered. TCP: a connection has to open."""
    path: Annotated[str, Field(pattern=r"^/")] = "/"
    """For type HTTP: the path that is asked for."""
    host: str | None = None
    """For type HTTP: the Host that is sent."""
    expected_statuses: tuple[Annotated[int, Field(strict=True, ge=100, le=599)], ...] = (200,)
    """For type HTTP: statuses of a healthy endpoint."""
    interval: Duration = Duration("10s", 10.0)
    """How often each endpoint is asked."""
    timeout: Duration = Duration("2s", 2.0)
    """How long an answer may take."""
    healthy_threshold: Positive = 2
    """Good answers in a row after which an endpoint is healthy again."""
    unhealthy_threshold: Positive = 3
    """Failures in a row after which an endpoint is not healthy."""


class Traffic(Model):
    timeouts: TrafficTimeouts = TrafficTimeouts()
    """How long things may take."""
    retries: Retries | None = None
    """What is tried again, for requests whose rule has no `retry` of its own."""
    connections: Connections = Connections()
    """How long connections to backends are kept."""
    circuit_breaker: CircuitBreaker | None = None
    """How much one backend is asked for at the same time."""
    outlier_detection: OutlierDetection | None = None
    """Endpoints that fail are left out for a while."""
    load_balancing: LoadBalancing | None = None
    """How endpoints are chosen."""
    health_check: HealthCheck | None = None
    """Endpoints are asked whether they are well."""
