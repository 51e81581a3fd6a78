"""`loadBalancer`, `healthCheck` and `circuitBreaker` of `traffic`: as in Envoy Gateway's BackendTrafficPolicy."""

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.values import (
    Bool,
    Count,
    Duration,
    HeaderName,
    Percent,
    Positive,
    PositiveDuration,
    RefusedValue,
    require_own_block,
)

Status = Annotated[int, Field(strict=True, ge=100, le=599)]


class CircuitBreaker(Model):
    """Of one endpoint, in each worker process. What is not written has no limit but that of every pool (4096)."""

    max_connections: Positive | None = None
    """Connections to one endpoint."""
    max_pending_requests: Count | None = None
    """Requests that wait for a connection to one endpoint; further ones are answered 503."""
    max_parallel_requests: Positive | None = None
    """Requests at one endpoint at the same time. With all endpoints full they are answered 503."""
    max_parallel_retries: Count | None = None
    """Retries to one backend at the same time; further requests are not retried."""


class HashHeader(Model):
    name: HeaderName
    """The field whose value decides."""


class HashCookie(Model):
    name: HeaderName
    """The cookie whose value decides. None is set for a client without one."""


class ConsistentHash(Model):
    type: Literal["SourceIP", "Header", "Cookie"]
    """What decides about the endpoint: the client's address, a header field, or a cookie."""
    header: HashHeader | None = None
    """For type Header."""
    cookie: HashCookie | None = None
    """For type Cookie."""
    hash_balance_factor: Annotated[int, Field(strict=True, ge=100, le=10000)] | None = None
    """An endpoint takes at most this percentage of the average number of requests in flight (Envoy's name)."""

    def model_post_init(self, context: Any) -> None:
        own = {"Header": "header", "Cookie": "cookie"}.get(self.type, "")
        require_own_block(f"type {self.type}", own, {"header": self.header, "cookie": self.cookie})


class SlowStart(Model):
    window: PositiveDuration
    """Time until an endpoint that is new, or returns, gets its full share."""


class ForceLocal(Model):
    min_endpoints_in_zone_threshold: Positive = 1
    """With fewer healthy endpoints in the zone all zones are used."""


class PreferLocal(Model):
    min_endpoints_threshold: Positive = 1
    """With fewer endpoints in all, zones make no difference."""
    force: ForceLocal = ForceLocal.model_construct()
    """How many endpoints the zone needs."""


class ZoneAware(Model):
    prefer_local: PreferLocal
    """Endpoints in the zone of the gateway (`run --zone`) are used while enough of them are healthy."""


class LoadBalancer(Model):
    type: Literal["RoundRobin", "LeastRequest", "Random", "ConsistentHash"] = "RoundRobin"
    """How an endpoint is chosen."""
    consistent_hash: ConsistentHash | None = None
    """For type ConsistentHash: what decides."""
    slow_start: SlowStart | None = None
    """An endpoint that is new, or returns, gets its share little by little."""
    zone_aware: ZoneAware | None = None
    """Endpoints in the gateway's own zone are preferred. Without it the hints of EndpointSlices hold."""

    def model_post_init(self, context: Any) -> None:
        own = "consistentHash" if self.type == "ConsistentHash" else ""
        require_own_block(f"type {self.type}", own, {"consistentHash": self.consistent_hash})


class HttpHealthCheck(Model):
    path: Annotated[str, Field(pattern=r"^/[!-~]*$")] = "/"
    """The path that is asked for."""
    method: Literal["GET", "HEAD", "OPTIONS"] = "GET"
    """How it is asked for."""
    hostname: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:\[\]_-]{1,260}$")] | None = None
    """The Host that is sent. Default: that of the backend, or the endpoint's address."""
    expected_statuses: Annotated[tuple[Status, ...], Field(min_length=1)] = (200,)
    """Statuses of a healthy endpoint."""


class GrpcHealthCheck(Model):
    service: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{0,127}$")] = ""
    """The service that is asked about. Default: the server as a whole."""


class ActiveHealthCheck(Model):
    type: Literal["HTTP", "TCP", "GRPC"]
    """HTTP: a request has to be answered. TCP: a connection has to open, with TLS where the backend has it.
    GRPC: grpc.health.v1.Health/Check has to say SERVING.
    """
    http: HttpHealthCheck | None = None
    """For type HTTP: what is asked for. Default: GET /, which has to be answered 200."""
    grpc: GrpcHealthCheck | None = None
    """For type GRPC."""
    interval: PositiveDuration = Duration("3s", 3.0)
    """How often each endpoint is asked; at random up to a tenth less, so that not all are asked at once."""
    timeout: PositiveDuration = Duration("1s", 1.0)
    """How long an answer may take."""
    healthy_threshold: Positive = 1
    """Good answers in a row after which an endpoint is healthy again."""
    unhealthy_threshold: Positive = 3
    """Failures in a row after which an endpoint takes no requests."""

    def model_post_init(self, context: Any) -> None:
        for name, block in (("http", self.http), ("grpc", self.grpc)):
            if block is not None and self.type != name.upper():
                raise RefusedValue(f"{name} does not belong to type {self.type}", f"remove {name}")


class PassiveHealthCheck(Model):
    """Outlier detection: what becomes of requests decides. 0 does not count these failures."""

    consecutive_5xx_errors: Annotated[Count, Field(alias="consecutive5XxErrors")] = 5
    """Statuses of 500 and above in a row; unless they are split, failures of local origin count as one."""
    consecutive_gateway_errors: Count = 0
    """Statuses 502, 503 and 504 in a row; unless they are split, failures of local origin count as one."""
    consecutive_local_origin_failures: Count = 5
    """Where they are split: connections in a row that fail, break, or bring no answer in time."""
    split_external_local_origin_errors: Bool = False
    """Failures of local origin are counted by themselves."""
    interval: PositiveDuration = Duration("3s", 3.0)
    """An endpoint that does well for so long steps its next ejection time down by one."""
    base_ejection_time: PositiveDuration = Duration("30s", 30.0)
    """For how long an endpoint is left out the first time; each further time is longer by this."""
    max_ejection_time: Duration = Duration("300s", 300.0)
    """The longest time that an endpoint is left out (Envoy's name)."""
    max_ejection_percent: Percent = 50
    """The share of endpoints that may be left out at the same time; one of several may be in any case."""


class HealthCheck(Model):
    active: ActiveHealthCheck | None = None
    """Endpoints are asked whether they are well."""
    passive: PassiveHealthCheck | None = None
    """Endpoints that fail requests in a row are left out for a while."""
    panic_threshold: Percent | None = None
    """With a smaller percentage of healthy endpoints all are used. Default: 0, requests are answered 503 then."""
