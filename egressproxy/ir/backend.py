"""Where requests go: every shape of Backend, read into one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from egressproxy.ir.policy import AddressesIR, ConnectionsIR, DnsIR, ExtensionIR, Network
from egressproxy.ir.resilience import NO_RESILIENCE, ResilienceIR
from egressproxy.model.authority import IPAddress
from egressproxy.model.secret import SecretBytes


class Destination(str, Enum):
    """What a backend is: a name, addresses, a Service, or what the request names."""

    FQDN = "Fqdn"
    IP = "Ip"
    SERVICE = "Service"
    DYNAMIC = "Dynamic"  # the destination that the request named


class Protocol(str, Enum):
    """What a backend speaks: `protocol` of a Backend, or what appProtocol of a Service means."""

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
    """An address that an operator wrote, dialled as written. `zone`, `for_zones` (hints.forZones): of EndpointSlice."""

    address: IPAddress
    port: int
    zone: str = ""
    for_zones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendTlsIR:
    """TLS origination. `sni` "" means: the host that is dialled. `ca_pem` "" means the system's roots.

    `names`: the subject alternative names accepted (any of them); empty: the SNI name. `min_version` is "1.2" or "1.3".
    `client_certificate` is certificate chain PEM; `client_key` its key. `ca_source` and `client_source` name
    the objects that these came from, for people.
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
    ca_source: str = field(default="", compare=False)
    client_source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class McpIR:
    """`protocolOptions.mcp`."""

    version: str = ""  # the one revision that the server speaks; "" for one that nothing is known of
    path: str = ""  # of its endpoint; "" where the client's path stays


@dataclass(frozen=True, slots=True)
class AiIR:
    """`protocolOptions.ai`. `apis` are those that the backend serves, the preferred one first, by their names there."""

    apis: tuple[str, ...]
    prefix: str = ""  # the path below which they are, without a slash at its end; "": none is said
    drops: bool = True  # whether what only tunes is left out of translated requests
    max_body_bytes: int = 32 * 1024 * 1024  # of a request that is changed or translated


@dataclass(frozen=True, slots=True)
class ParentCredentials:
    """The value of Proxy-Authorization (RFC 9110 section 11.7.2), or for SOCKS5 the message with a login (RFC 1929)."""

    authorization: SecretBytes
    source: str = ""  # the Secret that it comes from, for people


@dataclass(frozen=True, slots=True)
class NoProxyRule:
    """What no parent is asked for: names (lower case, exact or `*.suffix`), networks of addresses. No `ports`: all."""

    hostnames: tuple[str, ...] = ()
    cidrs: tuple[Network, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherParent:
    """A parent that is asked where those before it cannot be connected to."""

    backend: BackendIR
    credentials: ParentCredentials | None = None
    dns: DnsIR | None = None
    identity_key: SecretBytes | None = None


@dataclass(frozen=True, slots=True)
class BackendIR:
    """A Backend object (or Service, XBackend …) as written, references resolved.

    `name` is "namespace/name". FQDN: `hostname` and `port`. IP and SERVICE: `endpoints`. DYNAMIC: neither; `tls` then
    says how an `https://` (absolute-form) destination is verified, and None means by the defaults; `port` is the one
    that a route to it permits by itself, or 0 for every one.
    `parent` is the upstream gateway through which it is reached, `parent_credentials` what that is shown,
    and `parent_dns` how its name is looked up; None: as that of the backend. `parent_identity_key` signs
    who the client is, for a parent that is a gateway of ours. `other_parents` are asked in this order where it cannot
    be connected to. `no_proxy`, of a DYNAMIC one, lists what is reached directly.
    `extensions` are its own, as a part of its identity: what runs stands in `WeightedBackend.extensions`, these
    included. Secrets are left out, but for filters of connections: one that is rotated closes none.
    `kind` is the object's, with its group where it has one: "Backend.egressproxy.io". `shares_name`: one of our own
    group, or another one, has its name, too.
    """

    name: str
    destination: Destination
    hostname: str = ""
    port: int = 0
    endpoints: tuple[EndpointAddress, ...] = ()
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
    mcp: McpIR | None = None  # what a backend of protocol MCP says of it
    ai: AiIR | None = None  # what a provider of AI serves; None: nothing is translated for it

    def parents(self) -> Iterator[BackendIR]:
        """Every upstream gateway that may be on the way, the next ones first."""
        for first in (self.parent, *(other.backend for other in self.other_parents)):
            if first is not None:
                yield first
                yield from first.parents()

    @property
    def label(self) -> str:
        """What metrics and the log call it: its name, with the kind where the name alone could mean another."""
        return f"{self.name} ({self.kind})" if self.shares_name else self.name


@dataclass(frozen=True, slots=True)
class ConnectionIR:
    """What decides whether two uses of a backend may share connections: the key of a pool.

    The same Backend under two routes with different DNS or address rules has two pools. `system_roots` is the mark of
    the system's CA certificates (`net.system_roots`): where they change, connections are verified anew.
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
