"""How the endpoints of a backend are chosen, watched and spared: `traffic` of an EgressPolicy.

The words and meanings are those of Envoy Gateway's BackendTrafficPolicy. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LoadBalancerType(str, Enum):
    """`loadBalancer.type`."""

    ROUND_ROBIN = "RoundRobin"
    LEAST_REQUEST = "LeastRequest"
    RANDOM = "Random"
    CONSISTENT_HASH = "ConsistentHash"


class HashSource(str, Enum):
    """`loadBalancer.consistentHash.type`: what decides about the endpoint."""

    SOURCE_IP = "SourceIP"
    HEADER = "Header"
    COOKIE = "Cookie"


class CheckType(str, Enum):
    """`healthCheck.active.type`."""

    HTTP = "HTTP"
    TCP = "TCP"
    GRPC = "GRPC"  # grpc.health.v1.Health/Check


@dataclass(frozen=True, slots=True)
class LoadBalancerIR:
    """How an endpoint is chosen.

    `hash_name` is the field's (lower case) or cookie's. `hash_balance_percent`: an endpoint takes no request above
    this percentage of the average number of requests in flight; 0: any number. A new endpoint, and one that
    returns, reaches its full share after `slow_start_s`; 0: at once. `prefers_zone`: endpoints in the zone of this
    process are preferred while at least `min_in_zone` of them are healthy, in sets of at least `min_endpoints`.
    """

    type: LoadBalancerType = LoadBalancerType.ROUND_ROBIN
    hash_source: HashSource = HashSource.SOURCE_IP
    hash_name: str = ""
    hash_balance_percent: int = 0
    slow_start_s: float = 0.0
    prefers_zone: bool = False
    min_endpoints: int = 1
    min_in_zone: int = 1


@dataclass(frozen=True, slots=True)
class OutlierDetectionIR:
    """`healthCheck.passive`: after so many failures in a row an endpoint is ejected; 0 does not count these.

    Failures to connect, and connections that break, count as 5xx and gateway errors; with `splits_local_origin` as
    `consecutive_local_origin` alone. The first ejection lasts `base_ejection_s`, the second twice as long, up to
    `max_ejection_s`; an endpoint that does well for `interval_s` steps down by one.
    """

    consecutive_5xx: int = 5
    consecutive_gateway: int = 0
    consecutive_local_origin: int = 5
    splits_local_origin: bool = False
    interval_s: float = 3.0
    base_ejection_s: float = 30.0
    max_ejection_s: float = 300.0
    max_ejection_percent: float = 50.0


@dataclass(frozen=True, slots=True)
class HealthCheckIR:
    """`healthCheck.active`: each endpoint is asked every `interval_s`, less up to a tenth."""

    type: CheckType = CheckType.HTTP
    path: str = "/"
    method: str = "GET"
    hostname: str = ""
    statuses: tuple[int, ...] = (200,)
    interval_s: float = 3.0
    timeout_s: float = 1.0
    healthy_threshold: int = 1
    unhealthy_threshold: int = 3
    service: str = ""  # of gRPC


@dataclass(frozen=True, slots=True)
class CircuitBreakerIR:
    """`circuitBreaker`, of one endpoint in one process. None: the limits of every pool."""

    max_connections: int | None = None
    max_pending: int | None = None
    max_requests: int | None = None
    max_retries: int | None = None


@dataclass(frozen=True, slots=True)
class ResilienceIR:
    """All of it, for one backend at one place. Below `panic_percent` of usable endpoints all are used; 0: never."""

    load_balancer: LoadBalancerIR = LoadBalancerIR()
    outliers: OutlierDetectionIR | None = None
    check: HealthCheckIR | None = None
    breaker: CircuitBreakerIR | None = None
    panic_percent: float = 0.0


#: Round robin over every endpoint, whatever becomes of it.
NO_RESILIENCE = ResilienceIR()
