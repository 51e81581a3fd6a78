"""BackendIR: every form of Backend, as one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from egressproxy.ir.policy import AddressesIR, ConnectionsIR, DnsIR, ExtensionIR, Network, SourceAddressIR
from egressproxy.ir.resilience import NO_RESILIENCE, ResilienceIR
from egressproxy.model.authority import IPAddress
from egressproxy.model.secret import SecretBytes


class Destination(str, Enum):
    """The type of a backend: a name, addresses, a Service, or the request's destination."""

    FQDN = "Fqdn"
    IP = "Ip"
    SERVICE = "Service"
    DYNAMIC = "Dynamic"  # the destination that the request named


class Protocol(str, Enum):
    """The protocol of a backend: `protocol` of a Backend, or a Service's appProtocol."""

    HTTP = "HTTP"  # ALPN decides
    HTTP11 = "HTTP11"
    HTTP2 = "HTTP2"
    H2C = "H2C"
    GRPC = "GRPC"
    MCP = "MCP"
    TCP = "TCP"
    SOCKS5 = "SOCKS5"  # a parent's


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """A configured address, dialled as written. `zone`, `for_zones` (hints.forZones): of EndpointSlice."""

    address: IPAddress
    port: int
    zone: str = ""
    for_zones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendTlsIR:
    """TLS origination. `sni` "" means: the host that is dialled. `ca_pem` "" means the system's roots.

    `names`: the subject alternative names accepted (any of them); empty: the SNI name. `min_version` is "1.2" or "1.3".
    `client_certificate` is certificate chain PEM; `client_key` its key. `ca_source` and `client_source` name their
    objects, for people. `trusted_pem` are certificates of servers that are accepted as they are, beside what CAs vouch
    for; equal to `ca_pem` if nothing else is accepted. `skip_names`: any name is accepted. `allow_expired`: so are
    certificates that have expired.
    """

    sni: str = ""
    ca_pem: str = ""
    names: tuple[str, ...] = ()
    client_certificate: str = ""
    client_key: SecretBytes | None = None
    min_version: str = "1.2"
    insecure_skip_verify: bool = False
    crl_pem: str = ""
    pins: tuple[str, ...] = ()
    trusted_pem: str = ""
    skip_names: bool = False
    allow_expired: bool = False
    ca_source: str = field(default="", compare=False)
    client_source: str = field(default="", compare=False)

    @property
    def is_verified(self) -> bool:
        """Whether the server's certificate says that it is the server."""
        return not (self.insecure_skip_verify or self.skip_names)


@dataclass(frozen=True, slots=True)
class McpIR:
    """`protocolOptions.mcp`."""

    version: str = ""  # the server's revision; "": unknown
    path: str = ""  # of the endpoint; "": the client's path


@dataclass(frozen=True, slots=True)
class AiIR:
    """`protocolOptions.ai`. `apis` are the names of the backend's APIs, the preferred one first."""

    apis: tuple[str, ...]
    prefix: str = ""  # the base path of the APIs, without a trailing slash; "": default
    drops: bool = True  # whether translation drops fields that only tune
    max_body_bytes: int = 32 * 1024 * 1024  # of a request that is changed or translated
    azure_api_version: str = ""  # `api-version` of Azure's paths of deployments; "": other paths


@dataclass(frozen=True, slots=True)
class ParentCredentials:
    """The value of Proxy-Authorization (RFC 9110 section 11.7.2), or for SOCKS5 the message with a login (RFC 1929)."""

    authorization: SecretBytes
    source: str = ""  # the Secret that it comes from, for people


@dataclass(frozen=True, slots=True)
class NoProxyRule:
    """Destinations without parent: names (lower case, exact or `*.suffix`), networks of addresses. No `ports`: all."""

    hostnames: tuple[str, ...] = ()
    cidrs: tuple[Network, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherParent:
    """A fallback parent, for when connecting to the earlier ones fails."""

    backend: BackendIR
    credentials: ParentCredentials | None = None
    dns: DnsIR | None = None
    identity_key: SecretBytes | None = None


@dataclass(frozen=True, slots=True)
class BackendIR:
    """A Backend object (or Service, XBackend …) as written, references resolved.

    `name` is "namespace/name". FQDN: `hostname` and `port`. IP and SERVICE: `endpoints`. DYNAMIC: neither; `tls` then
    verifies an `https://` (absolute-form) destination, None: by the defaults; `port` is the only port that a route to
    the backend permits, 0: all.
    `parent` is the upstream proxy, `parent_credentials` are its credentials, and `parent_dns` its DNS settings; None:
    those of the backend. `parent_identity_key` signs the client's identity, for a parent that is a gateway of ours.
    `other_parents` are fallbacks, in order. `no_proxy`, of a DYNAMIC backend, lists the destinations without parent.
    `extensions` are its own, as a part of its identity; the running ones, including these, are in
    `WeightedBackend.extensions`. Secrets are left out, except those of connection filters, so that a rotation closes no
    connections.
    `service` is the Service of a SERVICE ("namespace/name"), or its namespace and label selector of Pods ("namespace
    selector"): where `endpoints` come from.
    `kind` is the object's kind, with its group if any: "Backend.egressproxy.io". `shares_name`: a Backend of another
    group has the same name.
    """

    name: str
    destination: Destination
    hostname: str = ""
    port: int = 0
    endpoints: tuple[EndpointAddress, ...] = ()
    service: str = ""
    protocol: Protocol = Protocol.HTTP
    tls: BackendTlsIR | None = None
    parent: BackendIR | None = None
    parent_credentials: ParentCredentials | None = None
    parent_dns: DnsIR | None = None
    parent_identity_key: SecretBytes | None = None
    other_parents: tuple[OtherParent, ...] = ()
    no_proxy: tuple[NoProxyRule, ...] = ()
    extensions: tuple[ExtensionIR, ...] = ()
    kind: str = ""
    shares_name: bool = False
    mcp: McpIR | None = None  # of protocol MCP
    ai: AiIR | None = None  # of an AI provider; None: no translation
    source_address: SourceAddressIR | None = None  # its own; None: that of the policy

    def parents(self) -> Iterator[BackendIR]:
        """Every possible parent on the path, the next ones first."""
        for first in (self.parent, *(other.backend for other in self.other_parents)):
            if first is not None:
                yield first
                yield from first.parents()

    @property
    def label(self) -> str:
        """The name in metrics and the log, with the kind if the name is ambiguous."""
        return f"{self.name} ({self.kind})" if self.shares_name else self.name


@dataclass(frozen=True, slots=True)
class ConnectionIR:
    """The key of a pool: two uses of a backend with equal keys share connections.

    The same Backend under two routes with different DNS or address rules has two pools. `system_roots` is the mark of
    the system's CA certificates (`net.tls_contexts.system_roots`): where they change, connections are verified anew.
    """

    backend: BackendIR
    dns: DnsIR
    addresses: AddressesIR
    connect_s: float
    tls_handshake_s: float
    idle_s: float
    kept: ConnectionsIR
    resilience: ResilienceIR = NO_RESILIENCE
    system_roots: str = ""
    source_address: SourceAddressIR | None = None

    @property
    def is_per_identity(self) -> bool:
        """Whether a connection serves one client identity alone, since each has its own source, here or at a parent."""
        sources = (self.source_address, *(each.source_address for each in self.backend.parents()))
        return any(each is not None and each.pool for each in sources)
