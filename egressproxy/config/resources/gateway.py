"""GatewayClass, Gateway, ListenerSet and ReferenceGrant. Source: gateway.networking.k8s.io/v1."""

from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from egressproxy.config.resources.hostnames import Hostname
from egressproxy.config.resources.meta import GATEWAY_GROUP, LabelSelector, Model, Resource
from egressproxy.config.resources.object_references import (
    Group,
    Kind,
    LocalObjectReference,
    ObjectReference,
    ParentGatewayReference,
    SecretObjectReference,
)
from egressproxy.config.resources.route_filters import HttpListenerFilter
from egressproxy.config.resources.values import Label, Name, Port, RefusedValue, Subdomain, check_unique
from egressproxy.ir.gateway import TlsMode
from egressproxy.model.unix_socket import UNIX_SOCKET, UnixSocket, parse_unix_socket


class ParametersReference(LocalObjectReference):
    namespace: Label | None = None
    """Namespace of the parameters, if namespaced."""


class GatewayClassSpec(Model):
    controller_name: Annotated[
        str,
        Field(
            min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$"
        ),
    ]
    """The controller of Gateways of this class."""
    parameters_ref: ParametersReference | None = None
    """Parameters of the class."""
    description: Annotated[str, Field(max_length=64)] | None = None
    """A description for people."""


class GatewayClass(Resource, group=GATEWAY_GROUP, kind="GatewayClass", versions=("v1", "v1beta1"), namespaced=False):
    spec: GatewayClassSpec
    """The controller of the class, and its parameters."""


class RouteNamespaces(Model):
    """The namespaces from which routes may attach to a listener."""

    from_: Annotated[Literal["All", "Selector", "Same", "None"], Field(alias="from")] = "Same"
    """All namespaces, the Same one, those of a Selector, or None."""
    selector: LabelSelector | None = None
    """For from: Selector, the labels of the namespaces."""


class RouteGroupKind(Model):
    group: Group = GATEWAY_GROUP
    """API group of the kind."""
    kind: Kind
    """A kind of route."""


class AllowedRoutes(Model):
    """The routes that may attach to a listener."""

    namespaces: RouteNamespaces = RouteNamespaces.model_construct()
    """The namespaces of routes that may attach."""
    kinds: Annotated[tuple[RouteGroupKind, ...], Field(max_length=8)] = ()
    """The kinds of routes that may attach. Default: the kinds of the protocol."""


class ListenerTls(Model):
    """TLS of a listener. Terminate needs a certificate (or options that name one); Passthrough has none."""

    mode: TlsMode = TlsMode.TERMINATE
    """Terminate: TLS ends at the gateway. Passthrough: TLS ends at the backend."""
    certificate_refs: Annotated[tuple[SecretObjectReference, ...], Field(max_length=64)] = ()
    """Secrets (tls.crt, tls.key) with the listener's certificates."""
    options: dict[str, str] = Field(default_factory=dict, max_length=16)
    """Further settings."""

    def model_post_init(self, context: Any) -> None:
        if self.mode is TlsMode.TERMINATE and not self.certificate_refs and not self.options:
            raise RefusedValue("mode Terminate needs a certificate", "add certificateRefs")


class Listener(Model):
    """One listener. An unsupported `protocol` is a condition in status, not an error."""

    name: Subdomain
    """Name of the listener, unique in its object: `sectionName` of routes and policies."""
    hostname: Hostname | None = None
    """The hostname in requests, exact or *.suffix. Default: every name."""
    port: Port
    """The port to bind."""
    protocol: Annotated[str, Field(min_length=1, max_length=255)]
    """The protocol of clients."""
    tls: ListenerTls | None = None
    """TLS of the listener."""
    allowed_routes: AllowedRoutes = AllowedRoutes.model_construct()
    """The routes that may attach."""
    http_filters: Annotated[tuple[HttpListenerFilter, ...], Field(max_length=16)] = ()
    """Filters of every request, in this order, before a route is chosen. For protocols HTTP and HTTPS."""

    def model_post_init(self, context: Any) -> None:
        check_unique((each.name for each in self.http_filters if each.name), "name", "httpFilters")
        protocol = self.protocol.upper()
        if protocol in ("HTTP", "TCP", "UDP") and self.tls is not None:
            raise RefusedValue(f"tls is not possible with protocol {self.protocol}", "remove tls, or use HTTPS or TLS")
        if protocol in ("TCP", "UDP") and self.hostname:
            raise RefusedValue(f"a hostname is not possible with protocol {self.protocol}", "remove hostname")
        if protocol == "HTTPS" and self.tls is not None and self.tls.mode is not TlsMode.TERMINATE:
            raise RefusedValue("protocol HTTPS needs tls.mode Terminate", "use protocol TLS for Passthrough")
        if protocol == "TLS" and self.tls is None:
            raise RefusedValue("protocol TLS needs tls.mode", "add tls with mode Passthrough or Terminate")


def _routability(text: str) -> str:
    """Source: GEP-5093, GatewayAddressRoutability."""
    prefix, slash, path = text.partition("/")
    is_prefixed = bool(prefix and slash and path) and prefix != GATEWAY_GROUP
    if text not in ("External", "Cluster") and not is_prefixed:
        raise RefusedValue(f"{text or 'the empty text'} is no routability", "write External, Cluster, or PREFIX/NAME")
    return text


class GatewayAddress(Model):
    """`type` IPAddress: an address to bind; egressproxy.io/UnixSocket: a Unix socket. Others are reported in status."""

    type: Annotated[str, Field(min_length=1, max_length=253)] = "IPAddress"
    """The type of the address."""
    value: Annotated[str, Field(max_length=253)] | None = None
    """The address."""
    routability: Annotated[str, Field(max_length=253), AfterValidator(_routability)] | None = None
    """Where the address has to be reachable from: External (the default), Cluster, or a vendor's scope."""

    def model_post_init(self, context: Any) -> None:
        if self.type == "IPAddress" and self.value:
            try:
                ip_address(self.value)
            except ValueError:
                remedy = "write it as 192.0.2.1 or 2001:db8::1"
                raise RefusedValue(f"{self.value} is not an IP address", remedy) from None
        if self.type == UNIX_SOCKET:
            try:
                parse_unix_socket(self.value or "")
            except ValueError as error:
                raise RefusedValue(f"{self.value or 'it'} is no Unix socket: {error}", "correct value") from None

    @property
    def ip(self) -> str:
        """The address in canonical form; "" for other types, and for the default of the process."""
        return str(ip_address(self.value)) if self.type == "IPAddress" and self.value else ""

    @property
    def unix(self) -> UnixSocket | None:
        return parse_unix_socket(self.value) if self.type == UNIX_SOCKET and self.value else None


class GatewayInfrastructure(Model):
    labels: dict[str, str] = Field(default_factory=dict, max_length=8)
    """Labels of resources created for the Gateway."""
    annotations: dict[str, str] = Field(default_factory=dict, max_length=8)
    """Annotations of resources created for the Gateway."""
    parameters_ref: LocalObjectReference | None = None
    """Parameters of resources created for the Gateway."""


class FrontendValidation(Model):
    """The CAs of client certificates."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(min_length=1, max_length=16)]
    """The CAs that sign client certificates."""
    mode: Literal["AllowValidOnly", "AllowInsecureFallback"] = "AllowValidOnly"
    """AllowValidOnly: clients without a valid certificate are refused. AllowInsecureFallback: they are accepted."""


class FrontendTls(Model):
    validation: FrontendValidation | None = None
    """The validation of client certificates."""


class FrontendTlsPort(Model):
    port: Port
    """The port."""
    tls: FrontendTls
    """The settings of this port instead of the default."""


class FrontendTlsSettings(Model):
    """TLS towards clients: for every TLS listener, and for some ports instead."""

    default: FrontendTls
    """The settings of unlisted ports."""
    per_port: Annotated[tuple[FrontendTlsPort, ...], Field(max_length=64)] = ()
    """The settings of single ports instead."""

    def model_post_init(self, context: Any) -> None:
        check_unique([entry.port for entry in self.per_port], "port", "perPort")


class GatewayBackendTls(Model):
    """The Gateway's client certificate for backends."""

    client_certificate_ref: SecretObjectReference | None = None
    """The Secret (tls.crt, tls.key) with the client certificate."""


class GatewayTls(Model):
    frontend: FrontendTlsSettings | None = None
    """TLS with clients."""
    backend: GatewayBackendTls | None = None
    """TLS with backends."""


class ListenerNamespaces(RouteNamespaces):
    from_: Annotated[Literal["All", "Selector", "Same", "None"], Field(alias="from")] = "None"


class AllowedListeners(Model):
    """The namespaces from which ListenerSets may attach; by default none."""

    namespaces: ListenerNamespaces = ListenerNamespaces.model_construct()
    """The namespaces of ListenerSets that may attach."""


class ListenersSpec(Model):
    """The common part of Gateways and ListenerSets."""

    listeners: Annotated[tuple[Listener, ...], Field(min_length=1, max_length=64)]
    """The listeners."""

    def model_post_init(self, context: Any) -> None:
        """Check unique names, and one listener per port, protocol and hostname (rules of the CRD)."""
        check_unique([listener.name for listener in self.listeners], "name", "listeners")
        seen: dict[tuple[int, str, str], str] = {}
        for listener in self.listeners:
            key = (listener.port, listener.protocol.lower(), listener.hostname or "")
            if key in seen:
                raise RefusedValue(
                    f"listeners {seen[key]} and {listener.name} have the same port, protocol and hostname",
                    "give each its own hostname or port",
                )
            seen[key] = listener.name


class GatewaySpec(ListenersSpec):
    gateway_class_name: Name
    """The GatewayClass, which names the controller of the Gateway."""
    addresses: Annotated[tuple[GatewayAddress, ...], Field(max_length=16)] = ()
    """Addresses to bind. Default: those of the process."""
    infrastructure: GatewayInfrastructure | None = None
    """Settings of resources created for the Gateway."""
    allowed_listeners: AllowedListeners = AllowedListeners.model_construct()
    """The namespaces of ListenerSets that may attach."""
    tls: GatewayTls | None = None
    """TLS of all listeners, and with all backends."""
    default_scope: Literal["All", "None"] = "None"
    """Whether routes without a parent attach to the Gateway."""


class Gateway(Resource, group=GATEWAY_GROUP, kind="Gateway", versions=("v1", "v1beta1")):
    """Listeners: addresses, ports and TLS to bind, and the routes that may attach."""

    spec: GatewaySpec
    """Listeners: addresses, ports and TLS to bind, and the routes that may attach."""


class ListenerSetSpec(ListenersSpec):
    parent_ref: ParentGatewayReference
    """The Gateway to which the listeners are added."""


class ListenerSet(Resource, group=GATEWAY_GROUP, kind="ListenerSet", versions=("v1",)):
    """Listeners that are added to a Gateway from outside."""

    spec: ListenerSetSpec
    """The Gateway, and the listeners to add."""


class ReferenceGrantFrom(Model):
    group: Group
    """API group of the referring objects."""
    kind: Kind
    """Kind of the referring objects."""
    namespace: Label
    """Namespace of the referring objects."""


class ReferenceGrantTo(Model):
    """The target of a grant: one object, or without `name` all objects of the kind."""

    group: Group
    """API group of the target."""
    kind: Kind
    """Kind of the target."""
    name: Name | None = None
    """Name of the target."""


class ReferenceGrantSpec(Model):
    from_: Annotated[tuple[ReferenceGrantFrom, ...], Field(alias="from", min_length=1, max_length=16)]
    """The objects that may refer to objects of this namespace."""
    to: Annotated[tuple[ReferenceGrantTo, ...], Field(min_length=1, max_length=16)]
    """The objects of this namespace that may be referred to."""


class ReferenceGrant(Resource, group=GATEWAY_GROUP, kind="ReferenceGrant", versions=("v1", "v1beta1", "v1alpha2")):
    """Lets objects of other namespaces refer to objects of this one."""

    spec: ReferenceGrantSpec
    """The allowed references."""
