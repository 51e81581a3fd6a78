"""What a Snapshot is made of: ports and listeners, with their tables of routes."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.configured_filter import BackendWatches
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.identity.authenticator import Authenticator
from egressproxy.gateway.identity.authenticators import Authenticators
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache, CertificateCaches
from egressproxy.gateway.leaf_certificates.client_cas import ClientCas
from egressproxy.gateway.route import DefaultRoutes, Route
from egressproxy.gateway.subject_overrides import SubjectOverrides
from egressproxy.identity.peers import AddressTable, CertificateTable, workload
from egressproxy.ir.backend import ConnectionIR, EndpointAddress
from egressproxy.ir.gateway import CertificateIR, ClientCertificatesIR, ListenerIR, ListenerProtocol
from egressproxy.ir.identity import AddressClientIR
from egressproxy.ir.policy import LimitsIR, Mode, TimeoutsIR
from egressproxy.ir.telemetry import CollectorIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange_trace import Exporter, Tracer
from egressproxy.model.fields import CREDENTIAL_FIELDS, every_spelling
from egressproxy.model.own_names import OWN_HOST
from egressproxy.net.client_chains import is_for_identity
from egressproxy.net.tls_peer import verified_fields, verified_uris
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.routing.destinations import DestinationPolicy
from egressproxy.routing.hosts import HostMap
from egressproxy.routing.table import HttpTable
from egressproxy.telemetry.access_log import LineExporter
from egressproxy.telemetry.series import Series

#: By collector, and the cluster that leads to it.
Exporters = dict[tuple[CollectorIR, Cluster | None], Exporter]
#: TLS (by SNI) and TCP listeners: no HTTP there.
_LIMITS: Final = tuple(each.name for each in fields(LimitsIR))


@dataclass(slots=True, eq=False, repr=False)
class ActiveListener:
    """One listener of a Gateway."""

    spec: ListenerIR
    http: HttpTable[Route]
    hosts: HostMap[bool]  # the hostnames that any HTTPRoute serves and permits by itself, on port 80
    streams: HostMap[Route]
    defaults: DefaultRoutes | None  # a forward proxy: of what no route matches
    destinations: DestinationPolicy
    series: Series
    terminate: ssl.SSLContext | None  # a TLS listener that terminates does it with this
    certificate_caches: HostMap[CertificateCache | ClientCas] | None = None  # of hosts that are opened; None: of none
    authenticator: Authenticator | None = None  # says who its clients are; None: they need not be known
    tracer: Tracer | None = None
    variants: SubjectOverrides[ActiveListener] | None = None  # for clients that fit subjects of policies
    pre_route: Route | None = None  # filters that run before a route is chosen
    gateway: str = field(init=False)
    name: str = field(init=False)
    mode: Mode = field(init=False)
    timeouts: TimeoutsIR = field(init=False)
    is_forward: bool = field(init=False)
    is_stream: bool = field(init=False)
    scheme: bytes = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.gateway = spec.gateway
        self.name = spec.name
        self.mode = spec.policy.mode
        self.timeouts = spec.policy.timeouts
        self.is_forward = spec.protocol.is_forward
        self.is_stream = spec.protocol.is_stream
        self.scheme = b"https" if spec.protocol is ListenerProtocol.HTTPS else b"http"

    def certificates_for(self, host: str) -> CertificateCache | ClientCas | None:
        """What clients are shown in tunnels to this host (lower case), which are opened; None: they are not."""
        return self.certificate_caches.match(host) if self.certificate_caches is not None and host != OWN_HOST else None


@dataclass(slots=True, eq=False)
class Port:
    """One address and port: the listeners that share it, by hostname. Those that speak HTTP stand first.

    A port is all HTTP, or all streams (`is_stream`), or both inside TLS (`is_mixed`): then the ClientHello decides.
    `terms` say how connections are accepted and heads read: where a reload changes them, connections from before serve
    no further request. `limits` and `head_limits`, the strictest, hold before the listener of a connection is known.
    """

    address: str
    number: int
    listeners: tuple[ActiveListener, ...]
    by_host: HostMap[ActiveListener]
    tls: ssl.SSLContext | None  # TLS is terminated with this
    clients: ClientCertificatesIR | None  # the certificates that clients are asked for
    shown: Mapping[str, CertificateIR] = field(default_factory=dict)  # by name, "" the first, where there are several
    first: ActiveListener = field(init=False)
    limits: LimitsIR = field(init=False)
    head_limits: HeadLimits = field(init=False)
    is_stream: bool = field(init=False)
    is_mixed: bool = field(init=False)
    circuit_level: ListenerProtocol | None = field(init=False)  # SOCKS5, TRANSPARENT; None: another protocol
    is_dns: bool = field(init=False)
    extended_connect: bool = field(init=False)  # every listener of HTTP has it
    trust_domains: tuple[str, ...] = field(init=False)  # whose SPIFFE ids are believed
    certificates: CertificateTable | None = field(init=False)  # who shows which others
    without_credentials: Callable[[bytes], bytes] | None = field(init=False)  # trailers without tokens and keys
    senders: AddressTable | None = field(init=False)  # who says in a PROXY header whose a connection is
    terms: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        clients = self.clients
        self.first = self.listeners[0]
        self.limits = strictest_limits([listener.spec.policy.limits for listener in self.listeners])
        self.head_limits = HeadLimits(self.limits.max_head_bytes, self.limits.max_fields)
        self.is_stream = self.first.is_stream
        protocol = self.first.spec.protocol
        self.circuit_level = protocol if protocol.is_circuit_level else None
        self.is_dns = protocol is ListenerProtocol.DNS
        self.is_mixed = not self.is_stream and self.listeners[-1].is_stream
        self.extended_connect = all(
            listener.spec.policy.extended_connect for listener in self.listeners if not listener.is_stream
        )
        self.certificates = None
        self.trust_domains = ()
        if clients is not None and not clients.takes_any:
            self.trust_domains = clients.trust_domains
            self.certificates = CertificateTable(clients.known) if clients.known else None
        names = token_fields(self.listeners)
        lines = every_spelling(names)
        self.without_credentials = partial(_without_credentials, lines, "x-api-key" in names) if names else None
        networks = senders_of(self.listeners)
        self.senders = AddressTable((AddressClientIR(networks, "-", "-"),)) if networks else None
        self.terms = (
            self.is_stream, self.tls is not None, clients, None if self.is_stream else self.head_limits,
            self.extended_connect, self.circuit_level, self.is_dns, networks, names,
        )  # fmt: skip

    def leads_to_stream(self, name: str) -> bool:
        """On a mixed port: whether a client whose ClientHello names this host gets a stream; else it gets HTTP."""
        found = self.by_host.match(name)
        return found is not None and found.is_stream

    def identity_of(self, peer: ssl.SSLObject) -> CallerIdentity:
        """Who the client is whose TLS ends here, by its certificate; ANONYMOUS where that does not say it."""
        if self.clients is None or not is_for_identity(peer, self.clients):
            return ANONYMOUS
        found = workload(verified_uris(peer), self.trust_domains) if self.trust_domains else ANONYMOUS
        if found is ANONYMOUS and self.certificates is not None:
            return self.certificates.find(verified_fields(peer)) or ANONYMOUS
        return found

    def listener_for(self, host: str, server_name: str) -> ActiveListener:
        """The HTTP listener for this host (Gateway API, Listener.hostname). `server_name`: the SNI of the client's TLS.
        Raises GatewayFault: 404 where no listener has the host, 421 where the client's TLS was with another listener,
        or with a certificate that is not for this host while another one is (RFC 9110 section 15.5.20): what was shown,
        and what is asked of clients, say nothing about this host.
        """
        if self.shown and server_name != host and server_name and not self._has_shown(host, server_name):
            raise GatewayFault(Reason.MISDIRECTED, f"{host} has another certificate than was shown", status=421)
        if len(self.listeners) == 1 and not self.first.spec.hostname:
            return self.first
        found = self.by_host.match(host)
        if found is None:
            raise GatewayFault(Reason.NO_ROUTE, f"no listener for {host}", status=404)
        if server_name and self.by_host.match(server_name) is not found:
            raise GatewayFault(Reason.MISDIRECTED, f"{host} is not served on this connection", status=421)
        if found.is_stream:  # no request is for it that does not come in its own TLS
            raise GatewayFault(Reason.NO_ROUTE, f"no listener of HTTP for {host}", status=404)
        return found

    def _has_shown(self, host: str, server_name: str) -> bool:
        """Whether the certificate that this name was answered with is for the host, or none is."""
        wildcard = "*." + host.partition(".")[2]
        own = self.shown.get(host) or self.shown.get(wildcard)
        shown = self.shown.get(server_name) or self.shown.get("*." + server_name.partition(".")[2]) or self.shown[""]
        return own is None or own is shown or not {host, wildcard}.isdisjoint(shown.names)

    def opened_stream(self, host: str) -> ActiveListener:
        """The TLS listener of streams to this host, for requests in one that is opened. Raises GatewayFault (404)."""
        found = self.by_host.match(host)
        if found is None or found.defaults is None:
            raise GatewayFault(Reason.NO_ROUTE, f"TLS to {host} is not opened on this listener any more", status=404)
        return found

    def __repr__(self) -> str:
        return f"Port({self.address}:{self.number}, {len(self.listeners)} listeners)"


def senders_of(listeners: Sequence[ActiveListener]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks whose PROXY headers are read, before the listener is known: those that every one of a port names."""
    named = [each.spec.policy.identity.senders if each.spec.policy.identity else () for each in listeners]
    return tuple(network for network in named[0] if all(network in others for others in named))


def token_fields(listeners: Sequence[ActiveListener]) -> tuple[str, ...]:
    """The fields other than the usual ones in which clients of some listener show tokens (`token.header`) or keys."""
    rules = [each.spec.policy.identity for each in listeners if each.spec.policy.identity is not None]
    names = {each.token_field for each in rules if each.token_field}
    if any(each.api_keys is not None for each in rules):
        names.update(CREDENTIAL_FIELDS)
    return tuple(sorted(names))


def _without_credentials(lines: re.Pattern[bytes], takes_keys: bool, trailers: bytes) -> bytes:
    left = lines.sub(b"", trailers)
    if takes_keys:  # which go in no other field either
        from egressproxy.identity.api_keys import without_keys  # here: few listeners take API keys

        left = without_keys(left)
    return left


def strictest_limits(each: Sequence[LimitsIR]) -> LimitsIR:
    """The least value of each limit among these; 0 (none) where no listener has it."""
    if len(set(each)) == 1:
        return each[0]

    def least(name: str) -> int:
        return min((value for value in (getattr(limits, name) for limits in each) if value), default=0)

    return LimitsIR(**{name: least(name) for name in _LIMITS})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """One configuration, live."""

    generation: int
    ports: dict[tuple[str, int], Port]
    clusters: dict[ConnectionIR, Cluster]
    filters: FilterInstances
    leaf_caches: CertificateCaches = field(default_factory=CertificateCaches)
    authenticators: Authenticators = field(default_factory=Authenticators)
    watches: BackendWatches | None = None  # on placeholders of credentials, where there are any
    exporters: Exporters = field(default_factory=dict)  # of spans, and of the access log
    line_exporter: LineExporter | None = None
    send_metrics: Callable[[bytes], Awaitable[tuple[int, str]]] | None = None


def replace_endpoints(
    clusters: dict[ConnectionIR, Cluster], updates: Mapping[tuple[str, int], tuple[EndpointAddress, ...]]
) -> bool:
    """Let Services lead to these addresses, by `BackendIR.service` and port, without another snapshot.

    The addresses of selected Pods are under port 0, since an XBackend has one port for all of them. Returns
    False where another snapshot is needed for some of them.
    """
    is_done = True
    for spec, cluster in list(clusters.items()):
        backend = spec.backend
        endpoints = updates.get((backend.service, backend.port))
        if (backend.service, 0) in updates:
            endpoints = tuple(replace(each, port=backend.port) for each in updates[backend.service, 0])
        if endpoints is None or endpoints == backend.endpoints:
            continue
        if cluster.replace_endpoints(endpoints):
            del clusters[spec]
            clusters[cluster.spec] = cluster
        else:
            is_done = False
    return is_done
