"""Gateways and listeners. `ConfigIR` is a whole configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from egressproxy.ir.identity import CertificateClientIR, IdentityIR
from egressproxy.ir.policy import NO_POLICY, ExtensionIR, PolicyIR, SubjectIR
from egressproxy.ir.route import ExternalAuthIR, HttpRouteIR, HttpRuleIR, MirrorIR, StreamRouteIR, WeightedBackend
from egressproxy.ir.telemetry import CollectorIR, TracingIR
from egressproxy.model.secret import SecretBytes


class ListenerProtocol(str, Enum):
    """Gateway API Listener `protocol`."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"
    TLS = "TLS"
    TCP = "TCP"
    FORWARD_PROXY = "egressproxy.io/forward-proxy"
    SOCKS5 = "egressproxy.io/socks5"
    TRANSPARENT = "egressproxy.io/transparent"
    DNS = "egressproxy.io/dns"

    @property
    def is_stream(self) -> bool:
        """Connections are passed on as streams of bytes, without HTTP."""
        return self in (ListenerProtocol.TLS, ListenerProtocol.TCP)

    @property
    def is_circuit_level(self) -> bool:
        """SOCKS5 or the kernel names the one destination of a connection, before the client speaks HTTP or TLS."""
        return self in (ListenerProtocol.SOCKS5, ListenerProtocol.TRANSPARENT)

    @property
    def is_forward(self) -> bool:
        """Clients name any destination, for each request or connection."""
        return self in (ListenerProtocol.FORWARD_PROXY, ListenerProtocol.DNS) or self.is_circuit_level


class TlsMode(str, Enum):
    """Gateway API Listener `tls.mode`."""

    TERMINATE = "Terminate"
    PASSTHROUGH = "Passthrough"


@dataclass(frozen=True, slots=True)
class CertificateIR:
    """A certificate chain and its key, PEM. `names` are its DNS SANs in lower case, for choice by SNI."""

    name: str
    chain_pem: str
    key_pem: SecretBytes
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientCertificatesIR:
    """The validation of client certificates. They must be signed by one of these CAs (PEM), and not be revoked by these
    lists (PEM); with lists, each CA in the chain needs one.

    `identity_ca_pem`: the CAs whose certificates identify clients; "": all accepted ones. Without `ca_pem` certificates
    are optional, and must be signed by one of `identity_ca_pem`. `takes_any`: every client is accepted, even without a
    certificate or with an invalid one (GEP-91). `trust_domains`: the SPIFFE trust domains whose ids identify clients.
    `known`: the clients by other certificates.
    """

    ca_pem: str
    takes_any: bool = False
    crl_pem: str = ""
    trust_domains: tuple[str, ...] = ()
    known: tuple[CertificateClientIR, ...] = ()
    identity_ca_pem: str = ""


@dataclass(frozen=True, slots=True)
class ListenerTlsIR:
    """TLS of a listener. `clients` is equal for all listeners of a port, since a connection may serve each of them."""

    mode: TlsMode = TlsMode.TERMINATE
    certificates: tuple[CertificateIR, ...] = ()
    clients: ClientCertificatesIR | None = None


@dataclass(frozen=True, slots=True)
class VariantIR:
    """The listener for clients with exactly these policies with `subjects` (namespace/name)."""

    policies: frozenset[str]
    listener: ListenerIR


@dataclass(frozen=True, slots=True)
class KeyUrlIR:
    """The URL of the keys of a token issuer, and the backend for the request (`callee`)."""

    issuer: str
    path: str
    callee: WeightedBackend


@dataclass(frozen=True, slots=True)
class PreRoutingIR:
    """`httpFilters` of a listener: filters of every request before a route is chosen (GEP-5224). Their priorities have
    the order of the list. `auths` are the authorization servers among them.
    """

    extensions: tuple[ExtensionIR, ...] = ()
    auths: tuple[ExternalAuthIR, ...] = ()


@dataclass(frozen=True, slots=True)
class ListenerIR:
    """One listener of one Gateway that can be programmed. Several may share an address and port.

    `addresses` are IP literals to bind, and `udp://` with such a literal for datagrams. `hostname` "" means every
    host; `*.suffix` is a wildcard.
    `default_backend`: for forward-proxy listeners, and TLS listeners with interception, the Dynamic backend (with its
    policy) for allowed requests without a route. `key_urls` are those of the issuers in `policy.identity`.
    `subjects` are the policies' subjects, by policy, and `variants` the listeners for matching clients. The other
    fields are for all other clients. A client with a set of policies without a variant is refused.
    """

    gateway: str
    name: str
    addresses: tuple[str, ...]
    port: int
    protocol: ListenerProtocol
    hostname: str = ""
    tls: ListenerTlsIR | None = None
    http_routes: tuple[HttpRouteIR, ...] = ()
    tls_routes: tuple[StreamRouteIR, ...] = ()
    tcp_routes: tuple[StreamRouteIR, ...] = ()
    policy: PolicyIR = NO_POLICY
    extensions: tuple[ExtensionIR, ...] = ()
    default_backend: WeightedBackend | None = None
    auths: tuple[ExternalAuthIR, ...] = ()  # of requests without a route
    key_urls: tuple[KeyUrlIR, ...] = ()
    pre_routing: PreRoutingIR | None = None
    tracing: TracingIR | None = None
    subjects: tuple[tuple[str, tuple[SubjectIR, ...]], ...] = ()
    variants: tuple[VariantIR, ...] = ()

    @property
    def identity(self) -> IdentityIR | None:
        """The identity settings, or None. Certificates identify clients here, too, if they do at another listener of
        the port.
        """
        clients = self.tls.clients if self.tls is not None else None
        says_who = clients is not None and bool(clients.trust_domains or clients.known)
        return IdentityIR() if self.policy.identity is None and says_who else self.policy.identity


@dataclass(frozen=True, slots=True)
class ConfigIR:
    """`generation` counts the configurations that were put into service, from 1. `collectors` are those of the access
    log and of metrics.
    """

    listeners: tuple[ListenerIR, ...] = ()
    generation: int = 0
    system_roots: str = ""
    collectors: tuple[CollectorIR, ...] = ()


def every_listener(config: ConfigIR) -> Iterator[ListenerIR]:
    """All listeners; variants follow their listener."""
    for listener in config.listeners:
        yield listener
        for variant in listener.variants:
            yield variant.listener


def extensions(config: ConfigIR) -> Iterator[ExtensionIR]:
    """The filters of listeners, rules and backends, mirrors and authorization servers, once for each such place."""
    for listener in every_listener(config):
        yield from _with_called(listener.extensions)
        if listener.pre_routing is not None:
            yield from _with_called(listener.pre_routing.extensions)
            yield from _of_backends(auth.backend for auth in listener.pre_routing.auths)
        if listener.default_backend is not None:
            yield from listener.default_backend.extensions
        yield from _of_backends(auth.backend for auth in listener.auths)
        for route in listener.http_routes:
            for rule in route.rules:
                yield from extensions_of(rule)
        for stream in (*listener.tls_routes, *listener.tcp_routes):
            yield from _with_called(stream.extensions)
            yield from _of_backends(stream.backends)


def chains(config: ConfigIR) -> Iterator[tuple[ExtensionIR, ...]]:
    """The filters of each listener and rule, and of each of these with one of its backends, which run together."""
    for listener in every_listener(config):
        yield listener.extensions
        if listener.pre_routing is not None:
            yield listener.pre_routing.extensions
        for route in listener.http_routes:
            for rule in route.rules:
                yield rule.extensions
                yield from (backend.extensions for backend in rule.backends)


def extensions_of(rule: HttpRuleIR) -> Iterator[ExtensionIR]:
    """The filters of one rule, of its backends, mirrors and authorization server, and of what these filters call."""
    yield from _with_called(rule.extensions)
    yield from _of_backends(rule.backends)
    yield from _of_mirrors(rule.mirrors)
    yield from _of_backends(auth.backend for auth in rule.auths)


def _of_backends(backends: Iterable[WeightedBackend]) -> Iterator[ExtensionIR]:
    for backend in backends:
        yield from _with_called(backend.extensions)
        yield from _of_mirrors(backend.mirrors)


def _of_mirrors(mirrors: Iterable[MirrorIR]) -> Iterator[ExtensionIR]:
    for mirror in mirrors:
        yield from _with_called(mirror.extensions)
        yield from _of_backends((mirror.backend,))


def _with_called(specs: Iterable[ExtensionIR]) -> Iterator[ExtensionIR]:
    for spec in specs:
        yield spec
        yield from _of_backends(callee for _, callee in spec.calls if isinstance(callee, WeightedBackend))
