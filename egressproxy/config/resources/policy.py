"""EgressPolicy, PayloadProcessingPipeline, and extensions (`egressproxy.io/v1alpha1`)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from egressproxy.config.resources.meta import (
    OUR_GROUP,
    BackendObjectReference,
    Model,
    ObjectReference,
    PolicyTargetReference,
    Resource,
    SecretObjectReference,
)
from egressproxy.config.resources.values import (
    Address,
    Bool,
    Cidr,
    DestinationHostname,
    Duration,
    ExtensionType,
    HeaderName,
    Int,
    Label,
    Name,
    Pin,
    Port,
    Refused,
    ServerAddress,
    SingleHostname,
    check_unique,
)
from egressproxy.spec.policy import Family, Mode, SniCheck

__all__ = [
    "AddressEntry",
    "AddressIdentity",
    "AddressRanges",
    "Addresses",
    "BasicIdentity",
    "CertificateIdentity",
    "CircuitBreaker",
    "Concurrency",
    "Connections",
    "DestinationEntry",
    "Destinations",
    "Dns",
    "EgressPolicy",
    "EgressPolicySpec",
    "Extension",
    "HealthCheck",
    "Identity",
    "Intercept",
    "LimitStore",
    "Limits",
    "LoadBalancing",
    "OutlierDetection",
    "PayloadProcessingPipeline",
    "PayloadProcessingPipelineSpec",
    "PhaseName",
    "PolicyTls",
    "Processor",
    "Rate",
    "Regions",
    "Retries",
    "RetryBudget",
    "Subject",
    "TokenIdentity",
    "Traffic",
    "TrafficTimeouts",
]

PhaseName = Literal[
    "request-headers",
    "request-body",
    "connect",
    "backend-request",
    "backend-response",
    "response-headers",
    "response-body",
]
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Percent = Annotated[int, Field(strict=True, ge=0, le=100)]


class Extension(Model):
    """A filter in one phase. `config` is checked against the schema of its type when the configuration is compiled; a
    type that is not known then is told in status.

    `phase` None: the type's own, where it has just one. Filters of a phase run by priority, lower first.
    """

    name: Name
    type: ExtensionType
    phase: PhaseName | None = None
    priority: Int = 100
    fail_open: Bool = False
    pre_auth: Bool = False
    timeout: Duration | None = None
    config: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called in messages, logs and metrics: its name."""
        return self.name


# --- destinations and addresses --------------------------------------------------------------------------------------


class DestinationEntry(Model):
    """Hosts by name or by network: an allowed one is for clients that name an address, a denied one for every address.

    `ports` empty: every port.
    """

    hostnames: tuple[DestinationHostname, ...] = ()
    ports: tuple[Port, ...] = ()
    cidrs: tuple[Cidr, ...] = ()
    sni: SniCheck = SniCheck.MATCH

    @model_validator(mode="after")
    def _names_a_host(self) -> Self:
        if not self.hostnames and not self.cidrs:
            raise Refused("the entry names no destination", "add hostnames or cidrs")
        return self


def _not_null(value: object) -> object:
    if value is None:
        raise Refused("nothing is written here", "write [] for an empty list, or remove the field")
    return value


class Destinations(Model):
    """Deny beats allow. `allow` None: this policy does not say; `allow: []` allows nothing."""

    allow: tuple[DestinationEntry, ...] | None = None
    deny: tuple[DestinationEntry, ...] = ()

    _null = field_validator("allow", "deny", mode="before")(_not_null)


class AddressEntry(Model):
    """Addresses that may be dialled beside public ones: for these names, or for every name."""

    cidrs: tuple[Cidr, ...] = ()
    hostnames: tuple[DestinationHostname, ...] = ()

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.cidrs and not self.hostnames:
            raise Refused("the entry names no address", "add cidrs, hostnames, or both")
        return self


class AddressRanges(Model):
    """Addresses, whatever name leads to them."""

    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]


class Addresses(Model):
    """`allow` opens what is not public, `deny` closes what is, `only` closes all that is not in it.

    `only` None: this policy does not say; `only: []` closes everything.
    """

    allow: tuple[AddressEntry, ...] = ()
    deny: tuple[AddressRanges, ...] = ()
    only: tuple[AddressRanges, ...] | None = None

    _null = field_validator("allow", "deny", "only", mode="before")(_not_null)


class Dns(Model):
    """How names are resolved. `servers` empty: those of the system."""

    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=8)] = ()
    transport: Literal["udp", "tcp", "tls", "https"] = "udp"
    timeout: Duration | None = None
    hosts: dict[SingleHostname, tuple[Address, ...]] = Field(default_factory=dict)
    min_ttl: Annotated[Duration | None, Field(alias="minTTL")] = None
    max_ttl: Annotated[Duration | None, Field(alias="maxTTL")] = None
    stale_ttl: Annotated[Duration | None, Field(alias="staleTTL")] = None
    family: Family = Family.ANY
    reverse_check: Literal["Off", "Report", "Enforce"] = "Off"

    @model_validator(mode="after")
    def _floor_is_below_ceiling(self) -> Self:
        if self.min_ttl is not None and self.max_ttl is not None and self.min_ttl.seconds > self.max_ttl.seconds:
            raise Refused(f"minTTL {self.min_ttl} is above maxTTL {self.max_ttl}", "make minTTL at most maxTTL")
        return self


# --- TLS and identity ------------------------------------------------------------------------------------------------


class PolicyTls(Model):
    """The floor for TLS to backends."""

    min_version: Literal["1.2", "1.3"] | None = None
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    ca_bundle_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()


class Intercept(Model):
    """Names whose TLS is terminated with a certificate signed by this CA; the rest stays opaque."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(min_length=1)]
    ca_certificate_ref: SecretObjectReference


class CertificateIdentity(Model):
    """Client certificates; namespace and service account come from the SPIFFE id."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    trust_domains: Annotated[tuple[str, ...], Field(max_length=16)] = ()


class TokenIdentity(Model):
    """A bearer token (JWT), checked against the keys in `jwksRef` (key `jwks.json`)."""

    issuer: Annotated[str, Field(min_length=1, max_length=253)]
    audiences: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)] = ()
    jwks_ref: ObjectReference
    header: HeaderName = "Proxy-Authorization"


class BasicIdentity(Model):
    """User and password; the Secret maps `namespace.serviceAccount` to a password."""

    secret_ref: SecretObjectReference


class AddressIdentity(Model):
    """The source address, looked up among Pods or in `clients`."""

    pods: Bool = True
    clients: tuple[AddressIdentityEntry, ...] = ()


class AddressIdentityEntry(Model):
    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    namespace: Label
    service_account: Name


class Identity(Model):
    """Where a client's namespace and service account come from; the first that knows the client decides."""

    certificate: CertificateIdentity | None = None
    token: TokenIdentity | None = None
    basic: BasicIdentity | None = None
    address: AddressIdentity | None = None


# --- limits ----------------------------------------------------------------------------------------------------------


class Rate(Model):
    """At most `limit` in each `window`; `burst` more at once (default: as many as the limit)."""

    per: Literal["Gateway", "Route", "Backend", "Identity"]
    limit: Positive
    window: Duration = Duration("1s", 1.0)
    burst: Positive | None = None

    @field_validator("window")
    @classmethod
    def _has_length(cls, window: Duration) -> Duration:
        if not window.seconds:
            raise Refused("a window cannot be empty", "write 1s, 1m or 1h")
        return window


class Concurrency(Model):
    per: Literal["Gateway", "Route", "Backend", "Identity"]
    limit: Positive


class LimitStore(Model):
    """Where counts are kept: this process, or a Redis that several share."""

    type: Literal["Memory", "Redis"] = "Memory"
    backend_ref: BackendObjectReference | None = None
    secret_ref: SecretObjectReference | None = None

    @model_validator(mode="after")
    def _redis_has_a_backend(self) -> Self:
        if self.type == "Redis" and self.backend_ref is None:
            raise Refused("a store of type Redis needs backendRef", "add backendRef")
        return self


class Limits(Model):
    """0 or absent: no limit, or the built-in one for heads; absent `connectionsPerClient`: three quarters of
    `connections` and `tunnels`.
    """

    max_head_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] | None = None
    max_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    max_body_bytes: Count | None = None
    connections: Count | None = None
    connections_per_client: Count | None = None
    tunnels: Count | None = None
    requests: tuple[Rate, ...] = ()
    tokens: tuple[Rate, ...] = ()
    bytes: tuple[Rate, ...] = ()
    concurrency: tuple[Concurrency, ...] = ()
    store: LimitStore | None = None


# --- traffic ---------------------------------------------------------------------------------------------------------


class TrafficTimeouts(Model):
    """0s disables."""

    connect: Duration | None = None
    tls_handshake: Duration | None = None
    request_headers: Duration | None = None
    request: Duration | None = None
    backend_request: Duration | None = None
    idle: Duration | None = None
    tunnel_idle: Duration | None = None


class RetryBudget(Model):
    """At most this share of the requests of `interval` may be retries, `minPerSecond` in any case."""

    percent: Percent = 20
    interval: Duration = Duration("10s", 10.0)
    min_per_second: Count = 10


class Retries(Model):
    attempts: Count = 1
    codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = ()
    backoff: Duration | None = None
    max_backoff: Duration | None = None
    budget: RetryBudget | None = None


class Connections(Model):
    """Of kept-alive connections to backends. 0s and 0: no limit."""

    max_age: Duration | None = None
    max_requests: Count | None = None


class CircuitBreaker(Model):
    max_connections: Positive | None = None
    max_requests: Positive | None = None
    max_pending_requests: Count | None = None


class OutlierDetection(Model):
    consecutive_errors: Positive = 5
    interval: Duration = Duration("10s", 10.0)
    ejection_time: Duration = Duration("30s", 30.0)
    max_ejection_percent: Percent = 50


class LoadBalancing(Model):
    type: Literal["RoundRobin", "LeastRequest", "Random", "ConsistentHash"] = "RoundRobin"
    hash_header: HeaderName | None = None

    @model_validator(mode="after")
    def _hash_has_a_source(self) -> Self:
        if self.hash_header is not None and self.type != "ConsistentHash":
            raise Refused(
                f"hashHeader is not used with type {self.type}", "use type ConsistentHash, or remove hashHeader"
            )
        return self


class HealthCheck(Model):
    type: Literal["HTTP", "TCP"] = "HTTP"
    path: Annotated[str, Field(pattern=r"^/")] = "/"
    host: str | None = None
    expected_statuses: tuple[Annotated[int, Field(strict=True, ge=100, le=599)], ...] = (200,)
    interval: Duration = Duration("10s", 10.0)
    timeout: Duration = Duration("2s", 2.0)
    healthy_threshold: Positive = 2
    unhealthy_threshold: Positive = 3


class Traffic(Model):
    timeouts: TrafficTimeouts = TrafficTimeouts()
    retries: Retries | None = None
    connections: Connections = Connections()
    circuit_breaker: CircuitBreaker | None = None
    outlier_detection: OutlierDetection | None = None
    load_balancing: LoadBalancing | None = None
    health_check: HealthCheck | None = None


# --- the policy ------------------------------------------------------------------------------------------------------


class Regions(Model):
    """Only backends of these regions."""

    allowed: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...]


class Subject(Model):
    """Clients that the policy is for; `serviceAccount` None: all of the namespace."""

    namespace: Label
    service_account: Name | None = None


class EgressPolicySpec(Model):
    """Every section is optional: a policy says something about what stands in it, and nothing about the rest."""

    target_refs: Annotated[tuple[PolicyTargetReference, ...], Field(min_length=1, max_length=64)]
    subjects: Annotated[tuple[Subject, ...], Field(max_length=256)] = ()
    mode: Mode | None = None
    destinations: Destinations | None = None
    addresses: Addresses | None = None
    dns: Dns | None = None
    tls: PolicyTls | None = None
    intercept: Intercept | None = None
    identity: Identity | None = None
    limits: Limits | None = None
    traffic: Traffic | None = None
    regions: Regions | None = None
    extensions: Annotated[tuple[Extension, ...], Field(max_length=256)] = ()

    _null = field_validator("destinations", "addresses", "subjects", "regions", mode="before")(_not_null)

    @field_validator("extensions")
    @classmethod
    def _names_are_unique(cls, extensions: tuple[Extension, ...]) -> tuple[Extension, ...]:
        check_unique((extension.name for extension in extensions), "name", "extensions")
        return extensions


class EgressPolicy(Resource):
    """What may leave, and how: for Gateways, listeners, routes or Backends.

    A null is refused where it would lift a restriction: `deny:` with nothing below it is an accident.
    """

    NULLS_ARE_ABSENT: ClassVar[bool] = False
    GROUP: ClassVar[str] = OUR_GROUP
    KIND: ClassVar[str] = "EgressPolicy"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1alpha1",)

    spec: EgressPolicySpec


class Processor(Model):
    """One step: in process (`type`, `config`) or remote (`backendRefs`)."""

    name: Name
    type: ExtensionType | None = None
    phase: PhaseName | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(max_length=16)] = ()
    timeout: Duration | None = None
    failure_mode: Literal["open", "closed"] = "closed"

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Self:
        if (self.type is None) == (not self.backend_refs):
            raise Refused("a processor has either type or backendRefs", "keep one of them")
        return self


class PayloadProcessingPipelineSpec(Model):
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=64)]


class PayloadProcessingPipeline(Resource):
    """An ordered list of processors, named by an HTTPRoute's ExtensionRef filter."""

    GROUP: ClassVar[str] = OUR_GROUP
    KIND: ClassVar[str] = "PayloadProcessingPipeline"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1alpha1",)

    spec: PayloadProcessingPipelineSpec


AddressIdentity.model_rebuild()
