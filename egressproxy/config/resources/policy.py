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
from egressproxy.config.resources.parent import BackendParent
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
    RefusedValue,
    ServerAddress,
    SingleHostname,
    check_unique,
)
from egressproxy.ir.policy import Family, Mode, SniCheck

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
    """Name of the filter, unique in its object: logs, metrics and errors say it."""
    type: ExtensionType
    """What it is: domain/Kind:version. `egressproxy filters` lists the types that are known."""
    phase: PhaseName | None = None
    """When it runs. May be left out where the type has one phase."""
    priority: Int = 100
    """Order within the phase: lower first."""
    fail_open: Bool = False
    """Go on without the filter where it fails. By default the request is refused then."""
    pre_auth: Bool = False
    """Run before the client is known."""
    timeout: Duration | None = None
    """How long the filter may take."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter, checked against the schema of its type."""

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
    """Names, exact or as *.suffix (any name below the suffix, and not the suffix itself)."""
    ports: tuple[Port, ...] = ()
    """Ports that the entry is for. Left out: every port."""
    cidrs: tuple[Cidr, ...] = ()
    """Networks. In `allow`: for clients that name an address. In `deny`: for every address that is dialled."""
    sni: SniCheck = SniCheck.MATCH
    """Match: the server name in a tunnel's ClientHello has to be the host that was asked for. Any: it may be another
    one. For entries of `allow`.
    """

    @model_validator(mode="after")
    def _names_a_host(self) -> Self:
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")
        return self


def _not_null(value: object) -> object:
    if value is None:
        raise RefusedValue("nothing is written here", "write [] for an empty list, or remove the field")
    return value


class Destinations(Model):
    """Deny beats allow. `allow` None: this policy does not say; `allow: []` allows nothing."""

    allow: tuple[DestinationEntry, ...] | None = None
    """Destinations that clients may name. An empty list allows nothing; left out, this policy does not say."""
    deny: tuple[DestinationEntry, ...] = ()
    """Destinations that are refused, by whatever spelling and at whatever level. Deny beats allow."""

    _null = field_validator("allow", "deny", mode="before")(_not_null)


class AddressEntry(Model):
    """Addresses that may be dialled beside public ones: for these names, or for every name."""

    cidrs: tuple[Cidr, ...] = ()
    """Networks that may be dialled though they are not public."""
    hostnames: tuple[DestinationHostname, ...] = ()
    """The names that may lead there. Left out: every name."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.cidrs and not self.hostnames:
            raise RefusedValue("the entry names no address", "add cidrs, hostnames, or both")
        return self


class AddressRanges(Model):
    """Addresses, whatever name leads to them."""

    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks."""


class Addresses(Model):
    """`allow` opens what is not public, `deny` closes what is, `only` closes all that is not in it.

    `only` None: this policy does not say; `only: []` closes everything.
    """

    allow: tuple[AddressEntry, ...] = ()
    """Addresses that may be dialled beside the public ones."""
    deny: tuple[AddressRanges, ...] = ()
    """Addresses that are never dialled, public or not."""
    only: tuple[AddressRanges, ...] | None = None
    """Addresses beside which nothing is dialled that a name or a client leads to. An empty list closes everything."""

    _null = field_validator("allow", "deny", "only", mode="before")(_not_null)


class Dns(Model):
    """How names are resolved. `servers` empty: those of the system."""

    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=8)] = ()
    """Name servers: ip[:port], tls://ip[#name] or https://…. Default: those of the system."""
    transport: Literal["udp", "tcp", "tls", "https"] = "udp"
    """How servers without a scheme are asked. udp goes over to TCP after a truncated answer."""
    timeout: Duration | None = None
    """How long one lookup may take."""
    hosts: dict[SingleHostname, tuple[Address, ...]] = Field(default_factory=dict)
    """Addresses of names that no server is asked for."""
    min_ttl: Annotated[Duration | None, Field(alias="minTTL")] = None
    """Answers live at least as long."""
    max_ttl: Annotated[Duration | None, Field(alias="maxTTL")] = None
    """Answers live at most as long."""
    stale_ttl: Annotated[Duration | None, Field(alias="staleTTL")] = None
    """How long an expired answer serves on while the servers do not answer."""
    family: Family = Family.ANY
    """Any: both families. IPv4, IPv6: this one alone."""
    reverse_check: Literal["Off", "Report", "Enforce"] = "Off"
    """Compare the name of each address (PTR) with the one that was asked for."""

    @model_validator(mode="after")
    def _floor_is_below_ceiling(self) -> Self:
        if self.min_ttl is not None and self.max_ttl is not None and self.min_ttl.seconds > self.max_ttl.seconds:
            raise RefusedValue(f"minTTL {self.min_ttl} is above maxTTL {self.max_ttl}", "make minTTL at most maxTTL")
        return self


# --- TLS and identity ------------------------------------------------------------------------------------------------


class PolicyTls(Model):
    """The floor for TLS to backends."""

    min_version: Literal["1.2", "1.3"] | None = None
    """The oldest TLS version that is spoken to backends."""
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    """Public keys of which every server's chain has to have one."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked certificates."""
    ca_bundle_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps or Secrets (key ca.crt) with the CAs that alone may have signed servers' certificates."""


class Intercept(Model):
    """Names whose TLS is terminated with a certificate signed by this CA; the rest stays opaque."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(min_length=1)]
    """Names whose tunnels are opened."""
    ca_certificate_ref: SecretObjectReference
    """The Secret (tls.crt, tls.key) with the CA that signs the certificates shown to clients."""


class CertificateIdentity(Model):
    """Client certificates; namespace and service account come from the SPIFFE id."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """CAs that sign the certificates of clients."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked client certificates."""
    trust_domains: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    """SPIFFE trust domains that are believed."""


class TokenIdentity(Model):
    """A bearer token (JWT), checked against the keys in `jwksRef` (key `jwks.json`)."""

    issuer: Annotated[str, Field(min_length=1, max_length=253)]
    """The `iss` that a token has to have."""
    audiences: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)] = ()
    """Of which the token's `aud` has to name one."""
    jwks_ref: ObjectReference
    """The ConfigMap or Secret (key jwks.json) with the keys that tokens are signed with."""
    header: HeaderName = "Proxy-Authorization"
    """The field that carries the token."""


class BasicIdentity(Model):
    """User and password; the Secret maps `namespace.serviceAccount` to a password."""

    secret_ref: SecretObjectReference
    """The Secret that maps namespace.serviceAccount to a password."""


class AddressIdentity(Model):
    """The source address, looked up among Pods or in `clients`."""

    pods: Bool = True
    """Look the source address up among the Pods."""
    clients: tuple[AddressIdentityEntry, ...] = ()
    """Networks and who is in them."""


class AddressIdentityEntry(Model):
    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks of these clients."""
    namespace: Label
    """The namespace that they count as."""
    service_account: Name
    """The service account that they count as."""


class Identity(Model):
    """Where a client's namespace and service account come from; the first that knows the client decides."""

    certificate: CertificateIdentity | None = None
    """By client certificate."""
    token: TokenIdentity | None = None
    """By bearer token (JWT)."""
    basic: BasicIdentity | None = None
    """By user and password."""
    address: AddressIdentity | None = None
    """By source address."""


# --- limits ----------------------------------------------------------------------------------------------------------


class Rate(Model):
    """At most `limit` in each `window`; `burst` more at once (default: as many as the limit)."""

    per: Literal["Gateway", "Route", "Backend", "Identity"]
    """Whose count a request adds to."""
    limit: Positive
    """How many in each window."""
    window: Duration = Duration("1s", 1.0)
    """Length of the window."""
    burst: Positive | None = None
    """How many at once. Default: as many as the limit."""

    @field_validator("window")
    @classmethod
    def _has_length(cls, window: Duration) -> Duration:
        if not window.seconds:
            raise RefusedValue("a window cannot be empty", "write 1s, 1m or 1h")
        return window


class Concurrency(Model):
    per: Literal["Gateway", "Route", "Backend", "Identity"]
    """Whose count a request adds to."""
    limit: Positive
    """How many at the same time."""


class LimitStore(Model):
    """Where counts are kept: this process, or a Redis that several share."""

    type: Literal["Memory", "Redis"] = "Memory"
    """Memory: this machine's processes count together. Redis: several machines do."""
    backend_ref: BackendObjectReference | None = None
    """The backend of the Redis."""
    secret_ref: SecretObjectReference | None = None
    """The Secret with its password."""

    @model_validator(mode="after")
    def _redis_has_a_backend(self) -> Self:
        if self.type == "Redis" and self.backend_ref is None:
            raise RefusedValue("a store of type Redis needs backendRef", "add backendRef")
        return self


class Limits(Model):
    """0 or absent: no limit, or the built-in one for heads; absent `connectionsPerClient`: three quarters of
    `connections` and `tunnels`.
    """

    max_head_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] | None = None
    """Size of a request's head; 431 beyond."""
    max_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Fields of a request's head; 431 beyond."""
    max_body_bytes: Count | None = None
    """Size of a request's body; 413 beyond."""
    connections: Count | None = None
    """Connections to one listener, in each worker."""
    connections_per_client: Count | None = None
    """Of these, the share of one client. Default: three quarters; 0: all of them."""
    tunnels: Count | None = None
    """Tunnels of one listener, in each worker."""
    requests: tuple[Rate, ...] = ()
    """Requests by time; 429 with Retry-After beyond."""
    tokens: tuple[Rate, ...] = ()
    """Tokens of language models by time."""
    bytes: tuple[Rate, ...] = ()
    """Bytes by time."""
    concurrency: tuple[Concurrency, ...] = ()
    """Requests at the same time."""
    store: LimitStore | None = None
    """Where `requests` and `concurrency` are counted."""


# --- traffic ---------------------------------------------------------------------------------------------------------


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

    @model_validator(mode="after")
    def _hash_has_a_source(self) -> Self:
        if self.hash_header is not None and self.type != "ConsistentHash":
            raise RefusedValue(
                f"hashHeader is not used with type {self.type}", "use type ConsistentHash, or remove hashHeader"
            )
        return self


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


# --- the policy ------------------------------------------------------------------------------------------------------


class Regions(Model):
    """Only backends of these regions."""

    allowed: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A backend without one is not used."""


class Subject(Model):
    """Clients that the policy is for; `serviceAccount` None: all of the namespace."""

    namespace: Label
    """The clients of this namespace."""
    service_account: Name | None = None
    """Of these, the ones with this service account. Left out: all."""


class EgressPolicySpec(Model):
    """Every section is optional: a policy says something about what stands in it, and nothing about the rest."""

    target_refs: Annotated[tuple[PolicyTargetReference, ...], Field(min_length=1, max_length=64)]
    """What the policy is for: Gateways, listeners, routes or Backends of its own namespace."""
    subjects: Annotated[tuple[Subject, ...], Field(max_length=256)] = ()
    """The clients that the policy is for. Left out: all."""
    mode: Mode | None = None
    """Enforce (the default), Report (let pass what `destinations` would refuse, count it and log it), or Open (allow
    what no `deny` names).
    """
    destinations: Destinations | None = None
    """Which destinations clients may name, and which are closed to all."""
    addresses: Addresses | None = None
    """Which resolved addresses may be dialled. By default public ones alone."""
    dns: Dns | None = None
    """How names are resolved."""
    parent: BackendParent | None = None
    """The proxy through which allowed destinations, and Dynamic and Fqdn backends that name no parent, are reached."""
    tls: PolicyTls | None = None
    """What TLS to backends has to be at least."""
    intercept: Intercept | None = None
    """Tunnels that are opened, to see what they carry."""
    identity: Identity | None = None
    """Where the namespace and service account of a client come from."""
    limits: Limits | None = None
    """How much may pass."""
    traffic: Traffic | None = None
    """Times, retries, and how connections to backends are used."""
    regions: Regions | None = None
    """In which regions backends may stand."""
    extensions: Annotated[tuple[Extension, ...], Field(max_length=256)] = ()
    """Filters that run for what the policy is for."""

    _null = field_validator("destinations", "addresses", "subjects", "regions", "parent", mode="before")(_not_null)

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
    """Name of the step, unique in the pipeline."""
    type: ExtensionType | None = None
    """In process: the type of the filter, as of an extension."""
    phase: PhaseName | None = None
    """When it runs."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter."""
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(max_length=16)] = ()
    """Remote: who is asked."""
    timeout: Duration | None = None
    """How long the step may take."""
    failure_mode: Literal["open", "closed"] = "closed"
    """closed: where the step fails the request is refused. open: it goes on without."""

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Self:
        if (self.type is None) == (not self.backend_refs):
            raise RefusedValue("a processor has either type or backendRefs", "keep one of them")
        return self


class PayloadProcessingPipelineSpec(Model):
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=64)]
    """The steps, in their order."""


class PayloadProcessingPipeline(Resource):
    """An ordered list of processors, named by an HTTPRoute's ExtensionRef filter."""

    GROUP: ClassVar[str] = OUR_GROUP
    KIND: ClassVar[str] = "PayloadProcessingPipeline"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1alpha1",)

    spec: PayloadProcessingPipelineSpec
    """The steps of the pipeline."""


AddressIdentity.model_rebuild()
