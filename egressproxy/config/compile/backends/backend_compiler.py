"""Every shape of Backend, compiled to one: BackendIR. A Failover is none of its own: its endpoints are.

Ours, the working group's Backend and XBackendDestination, XBackend, and core Services. A backend that asks for
something which is not served (a protocol) is not used at all: what refers to it answers 500.
Sources: the AI Gateway working group's egress proposal, GEP-4488, Gateway API v1 BackendRef.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from egressproxy.config.compile.backends.backend_references import (
    BACKEND_KINDS,
    KNOWN_KINDS,
    AnyBackend,
    DestinationBackend,
    ResolvedBackend,
    backend_refs,
    endpoint_refs,
    object_key,
)
from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.backends.parent_compiler import ParentCompiler
from egressproxy.config.compile.backends.pods import Pods, selected_by
from egressproxy.config.compile.backends.published_forms import (
    PortForm,
    ai_options,
    check_tls,
    mcp_options,
    protocol_of,
    tls_field,
)
from egressproxy.config.compile.backends.services import Services
from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler
from egressproxy.config.compile.extensions.ranked_extension import AttachmentPoint, RankedExtension, ordered
from egressproxy.config.compile.interface import Reference, kind_of, scope_of
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.source_addresses import source_address
from egressproxy.config.compile.status import supported_features
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.meta import OUR_GROUP, Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.routes import BackendRef, GrpcRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.spellings import is_vendors
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress, Protocol
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR
from egressproxy.model.published_object import Key


@dataclass(slots=True, eq=False, repr=False)
class BackendCompiler:
    """Resolves backendRefs. Every object is read once, however many routes refer to it."""

    _resources: ResourceSet
    _references: References
    _services: Services
    tls_policies: BackendTlsPolicies
    _extensions: ExtensionCompiler
    parents: ParentCompiler = field(init=False)
    _pods: Pods = field(init=False)
    #: By (namespace, name): the backends of several kinds or groups that share it.
    same_names: dict[tuple[str, str], list[Key]] = field(init=False)
    _failovers: dict[Key, DestinationBackend] = field(default_factory=dict)
    _found: dict[tuple[Key, int | None, bool], ResolvedBackend | UnresolvedRef] = field(default_factory=dict)
    _with_http2: dict[int, ResolvedBackend] = field(default_factory=dict)
    _placed: dict[Key, tuple[RankedExtension, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pods = Pods(self._resources)
        self.parents = ParentCompiler(self._resources, self._references, self.resolve, self.target_key)
        named: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for backend in chain.from_iterable(self._resources.of(kind) for kind in BACKEND_KINDS):
            named[backend.namespace, backend.name].append(backend.key)
            if not isinstance(backend, XBackend) and backend.spec.destination.failover is not None:
                self._failovers[backend.key] = backend
        self.same_names = {name: keys for name, keys in named.items() if len(keys) > 1}

    def resolve(
        self, source: Resource, ref: Reference, protocols: Container[Protocol] = supported_features.UPSTREAM_PROTOCOLS
    ) -> ResolvedBackend:
        """The backend that a reference names, if it speaks one of these protocols. Raises UnresolvedRef."""
        if isinstance(source, GrpcRoute):
            return self._resolve_grpc(source, ref)
        key = self.target_key(source, ref)
        self._references.check_permitted(source, ref, key[1])
        if not source.NAMESPACED and key[:2] in KNOWN_KINDS and self._resources.get(*key) is None:
            raise self._references.not_found("BackendNotFound", *key, kinds=KNOWN_KINDS, needs_grant=False)
        is_stream = isinstance(source, TlsRoute | TcpRoute)
        problem = _NO_GRPC if protocols is supported_features.GRPC_PROTOCOLS else "is not supported yet"
        return self._resolved(key, getattr(ref, "port", None), protocols, problem, is_stream=is_stream)

    def _resolve_grpc(self, source: Resource, ref: Reference) -> ResolvedBackend:
        """The backend as a GRPCRoute reaches it: where it does not say what it speaks, that is HTTP/2."""
        key = self.target_key(source, ref)
        self._references.check_permitted(source, ref, key[1])
        port, protocols = getattr(ref, "port", None), supported_features.GRPC_PROTOCOLS
        found = self._resolved(key, port, protocols, _NO_GRPC)
        if found.spec.protocol is not Protocol.HTTP:
            return found
        made = self._with_http2.get(id(found))  # results live as long as this compiler
        if made is None:
            made = self._with_http2[id(found)] = replace(found, spec=replace(found.spec, protocol=Protocol.GRPC))
        return made

    def resolve_port(self, backend: Resource, port: int | None) -> ResolvedBackend:
        """A port of a Backend object; None: its only one. Raises UnresolvedRef."""
        return self._resolved(backend.key, port, frozenset(Protocol))

    def _resolved(
        self,
        key: Key,
        port: int | None,
        protocols: Container[Protocol],
        problem: str = "is not supported yet",
        *,
        is_stream: bool = False,
    ) -> ResolvedBackend:
        lookup_key = (key, port, is_stream)
        found = self._found.get(lookup_key)
        if found is None:
            try:
                found = self._read(*lookup_key)
            except UnresolvedRef as unresolved:
                found = unresolved
            self._found[lookup_key] = found
        if isinstance(found, UnresolvedRef):
            raise found.copy()
        spec = found.spec
        if spec.protocol is Protocol.SOCKS5 and spec.protocol not in protocols:
            remedy = f"name {spec.name} as the parent of a Backend or policy"
            raise UnresolvedRef("UnsupportedProtocol", f"{spec.name} is a SOCKS5 proxy, and not a backend", remedy)
        if spec.protocol not in protocols:
            raise UnresolvedRef("UnsupportedProtocol", f"protocol {spec.protocol.value} of {spec.name} {problem}")
        return found

    def target_key(self, source: Resource, ref: Reference) -> Key:
        """The object that a reference means, whether it is there or not."""
        return object_key(self._resources, ref, self._references.namespace_of(source, ref))

    def failover(self, source: Resource, ref: Reference) -> DestinationBackend | None:
        """The Failover that a reference names; None for anything else. Raises UnresolvedRef if it is not permitted."""
        if not self._failovers:
            return None
        key = self.target_key(source, ref)
        found = self._failovers.get(key)
        if found is not None:
            self._references.check_permitted(source, ref, key[1])
        return found

    def endpoint(self, failover: DestinationBackend, ref: Reference, *, for_grpc: bool = False) -> ResolvedBackend:
        """An endpoint of a Failover: a fixed place. `for_grpc`: as a GRPCRoute reaches it. Raises UnresolvedRef."""
        found = self._resolve_grpc(failover, ref) if for_grpc else self.resolve(failover, ref)
        policy = self.tls_policies.of_failover(failover)
        if policy is not None:
            message = f"{policy} asks for TLS to {failover}, which has no connections of its own"
            raise UnresolvedRef("UnsupportedValue", message, "name its endpoints in targetRefs")
        if found.spec.destination is Destination.DYNAMIC:
            message = f"{found.spec.name} is Dynamic: an endpoint of {failover} has to be a fixed place"
            raise UnresolvedRef("UnsupportedValue", message, "name a Backend of type Fqdn, Ip or Service")
        return found

    def endpoint_problems(self, failover: DestinationBackend, *, for_grpc: bool = False) -> list[UnresolvedRef]:
        """Why endpoints of a Failover cannot be used, each with its field. `for_grpc`: by a GRPCRoute."""
        problems = []
        for where, endpoint in endpoint_refs(failover):
            try:
                self.endpoint(failover, endpoint.backend_ref, for_grpc=for_grpc)
            except UnresolvedRef as unresolved:
                problems.append(unresolved.copy(where))
        return problems

    def plain_text_error(self, route: Resource, refs: Iterable[BackendRef]) -> str:
        """Why streams whose TLS ends here must not go on to these backends, "" if they may: one of them speaks TLS."""
        for ref in refs:
            port_key = (self._references.namespace_of(route, ref), ref.name, ref.port or 0)
            if (ref.group, ref.kind) == ("", "Service") and self._services.refuses_plain_text(*port_key):
                return f"port {ref.port} of Service {port_key[0]}/{ref.name} speaks TLS: add a BackendTLSPolicy for it"
        return ""

    def targets(self, route: Resource) -> set[Key]:
        """The Services and Backends that a route leads to, directly or by way of a Backend."""
        found: set[Key] = set()
        refs: list[tuple[Resource, Reference]] = [(route, ref) for _, ref in backend_refs(route)]
        for source, ref in refs:
            key = self.target_key(source, ref)
            try:
                self._references.check_permitted(source, ref, key[1])
            except UnresolvedRef:
                continue
            failover = self._resources.get(*key) if source is route else None  # none leads to another
            refs += ((failover, each.backend_ref) for _, each in endpoint_refs(failover) if failover is not None)
            if key[:2] in KNOWN_KINDS:
                found.add(key)
            backend = self._resources.get(*key)
            if isinstance(backend, DestinationBackend):
                service = backend.spec.destination.named_service
                if service is not None:
                    found.add(("", "Service", service.namespace or backend.namespace, service.name))
        return found

    def _read(self, key: Key, port: int | None, is_opaque: bool) -> ResolvedBackend:
        group, kind, namespace, name = key
        if (group, kind) == ("", "Service"):
            if self._resources.get(*key) is None:
                raise self._references.not_found("BackendNotFound", *key, kinds=KNOWN_KINDS)
            if port is None:
                raise UnresolvedRef("BackendNotFound", f"the reference to Service {namespace}/{name} names no port")
            service = self._services.backend(namespace, name, port, is_opaque=is_opaque)
            return ResolvedBackend(service, key, port)
        found = self._resources.get(*key)
        if isinstance(found, XBackend):
            return self._read_x_backend(found, port)
        if isinstance(found, DestinationBackend):
            return self._read_destination(found, port, is_stream=is_opaque)
        if (group, kind) not in KNOWN_KINDS:
            known = ", ".join(f"{k} ({g})" if g else k for g, k in sorted(KNOWN_KINDS))
            message = f"{kind} ({group or 'core'}) is no kind of backend; known are {known}"
            hint = self._references.suggestions.remedy(*key, "write one of the known kinds", KNOWN_KINDS)
            raise UnresolvedRef("InvalidKind", message, hint)
        raise self._references.not_found("BackendNotFound", *key, kinds=KNOWN_KINDS)

    def _read_x_backend(self, backend: XBackend, port: int | None) -> ResolvedBackend:
        spec, (form,) = backend.spec, self.tls_policies.forms(backend)
        selector = spec.endpoint_selector
        if spec.external_hostname is None and (selector is None or selector.is_of_draft):
            what = f"type {spec.type}" if selector is None else "an endpointSelector without matchLabels alone"
            remedy = "write matchLabels, refer to a Service, or to a Backend (egressproxy.io) of type Service"
            raise UnresolvedRef("UnsupportedValue", f"{what} of {backend} is not supported", remedy)
        _port_form(backend, (form,), port)
        if form.tls is None and selector is None:
            raise UnresolvedRef("TlsNotConfigured", _TLS_UNSAID.format(backend, form.number))
        check_tls(backend, form)
        if form.tls is not None and form.tls.mode == "None" and form.protocol == "WSS":
            raise UnresolvedRef("UnsupportedValue", f"protocol WSS of {backend} is over TLS: write tls.mode ServerOnly")
        made = BackendIR(
            name=backend.full_name,
            destination=Destination.FQDN if selector is None else Destination.SERVICE,
            hostname=spec.external_hostname.hostname if spec.external_hostname is not None else "",
            port=form.number,
            endpoints=self.selected(backend),
            service=selected_by(backend),
            protocol=protocol_of(backend, form, is_stream=False),
            tls=self.tls_policies.of_port(backend, form, "spec.tls"),
            kind=kind_of(backend.key),
            shares_name=self._shares_name(backend),
        )
        return ResolvedBackend(made, backend.key, form.number)

    def selected(self, backend: XBackend) -> tuple[EndpointAddress, ...]:
        """The Pods that an XBackend selects."""
        selector = backend.spec.endpoint_selector
        if selector is None or selector.match_labels is None:
            return ()
        return self._pods.endpoints(backend.namespace, selector.match_labels, backend.spec.port.value)

    def _read_destination(self, backend: DestinationBackend, port: int | None, *, is_stream: bool) -> ResolvedBackend:
        destination = backend.spec.destination
        if not isinstance(backend, Backend) and backend.spec.filters:
            raise UnresolvedRef("UnsupportedValue", f"filters of {backend} cannot be run: write extensions")
        if destination.type == "Failover":
            message = f"{backend} is of type Failover, which only backendRefs of HTTPRoutes and GRPCRoutes may name"
            remedy = "name its endpoints: no other Failover, mirror, authorization server, parent or stream leads there"
            raise UnresolvedRef("UnsupportedValue", message, remedy)
        if destination.type == "EndpointSelector" or is_vendors(destination.type):
            message = f"{backend}: a destination of type {destination.type} is not supported yet"
            raise UnresolvedRef("UnsupportedValue", message)
        form = _port_form(backend, self.tls_policies.forms(backend), port)
        number = form.number if form is not None else 0
        kind = Destination(destination.type)
        tls: BackendTlsIR | None = None
        protocol = Protocol.HTTP
        if form is not None:
            protocol = protocol_of(backend, form, is_stream=is_stream)
            check_tls(backend, form)
            tls = self.tls_policies.of_port(backend, form, tls_field(backend.spec, number))
            if form.tls is None and (kind is Destination.FQDN or not destination.ports):
                raise UnresolvedRef("TlsNotConfigured", _TLS_UNSAID.format(backend, number))
        endpoints: tuple[EndpointAddress, ...] = ()
        service: Key | None = None
        if destination.ip is not None:
            endpoints = (EndpointAddress(destination.ip.address, number),)
        named = destination.named_service
        if named is not None:
            service = ("", "Service", named.namespace or backend.namespace, named.name)
            inner = self._service(backend, service, number, is_secured=tls is not None)
            endpoints = inner.endpoints
            tls = tls if form is not None and form.tls is not None else inner.tls
            if protocol is Protocol.HTTP and inner.protocol is not Protocol.TCP:
                protocol = inner.protocol  # its appProtocol says more
        extensions = self.own_extensions(backend)
        made = BackendIR(
            name=backend.full_name,
            destination=kind,
            hostname=destination.fqdn.hostname if destination.fqdn is not None else "",
            port=number,
            endpoints=endpoints,
            service="/".join(service[2:]) if service is not None else "",
            protocol=protocol,
            tls=tls,
            extensions=tuple(map(_as_identity, ordered(extensions))),
            kind=kind_of(backend.key),
            shares_name=self._shares_name(backend),
            mcp=mcp_options(backend.spec, form) if form is not None else None,
            ai=ai_options(backend.spec, form) if form is not None else None,
            source_address=source_address(backend.spec.source_address, str(backend))
            if isinstance(backend, Backend)
            else None,
        )
        if not isinstance(backend, Backend):
            return ResolvedBackend(made, backend.key, number, extensions, service=service)
        spec, key = backend.spec, backend.key
        if spec.resolver is not None:
            try:
                self._references.ca_of(key, spec.resolver.ca_certificate_refs)
            except UnresolvedRef as unresolved:
                raise unresolved.copy("spec.resolver.caCertificateRefs") from None
        has_none = spec.parent is not None and spec.parent.direct
        found = ResolvedBackend(
            made, key, number, extensions, spec.region or "", spec.resolver, service=service, is_direct=has_none
        )
        if spec.parent is None or has_none:
            return found
        try:
            return self.parents.through(found, backend, spec.parent)
        except UnresolvedRef as unresolved:
            raise unresolved.copy("spec.parent") from None

    def is_ambiguous(self, backend: AnyBackend) -> bool:
        """Whether a backend of another kind or group has the same name in the same namespace."""
        return (backend.namespace, backend.name) in self.same_names

    def _shares_name(self, backend: AnyBackend) -> bool:
        """Whether messages add the kind to the name. Our own Backend keeps the name alone."""
        return backend.GROUP != OUR_GROUP and self.is_ambiguous(backend)

    def own_extensions(self, backend: DestinationBackend) -> tuple[RankedExtension, ...]:
        """Its `spec.extensions`, compiled once; what is wrong with them is noted in `faults`."""
        if backend.key not in self._placed:
            declared: Sequence[Extension] = backend.spec.extensions
            attachment = AttachmentPoint(BACKEND_LEVEL, scope_of(backend.key))
            self._placed[backend.key] = self._extensions.extensions(backend, declared, attachment)
        return self._placed[backend.key]

    def _service(self, backend: Resource, service: Key, port: int, *, is_secured: bool) -> BackendIR:
        own = BackendObjectReference.model_construct(group="", kind="Service", namespace=service[2], name=service[3])
        if self._references.find(backend, own) is None:
            raise self._references.not_found("BackendNotFound", *service)
        return self._services.backend(*service[2:], port, is_secured=is_secured)


_NO_GRPC = "carries no gRPC: write GRPC"
_TLS_UNSAID = "{} does not say how port {} is reached: write tls.mode, or tls.mode None if it really has no TLS"


def _port_form(backend: Resource, ports: Sequence[PortForm], number: int | None) -> PortForm | None:
    """The port that a reference means: the one it names, else the only one. None: Dynamic, without ports."""
    listed = ", ".join(str(port.number) for port in ports)
    if number is not None and ports:
        form = next((port for port in ports if port.number in (number, 0)), None)
        if form is None:
            raise UnresolvedRef("BackendNotFound", f"{backend} has no port {number}", f"it has {listed}")
        return form
    if len(ports) > 1:
        raise UnresolvedRef("BackendNotFound", f"{backend} has the ports {listed}: the reference has to name one")
    return ports[0] if ports else None


def _as_identity(spec: ExtensionIR) -> ExtensionIR:
    """As a part of what its backend is: without Secrets, which requests carry, unless it judges connections."""
    return spec if spec.phase == "connect" or not spec.secrets else replace(spec, secrets=())
