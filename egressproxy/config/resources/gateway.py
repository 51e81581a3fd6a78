"""GatewayClass, Gateway, ListenerSet, ReferenceGrant. Source: gateway.networking.k8s.io/v1."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from egressproxy.config.resources.meta import (
    GATEWAY_GROUP,
    Group,
    Kind,
    LabelSelector,
    LocalObjectReference,
    Model,
    ObjectReference,
    Resource,
    SecretObjectReference,
)
from egressproxy.config.resources.values import Hostname, Label, Name, Port, Refused, Subdomain, check_unique
from egressproxy.spec.gateway import TlsMode

__all__ = [
    "AllowedListeners",
    "AllowedRoutes",
    "FrontendTls",
    "FrontendTlsPort",
    "FrontendTlsSettings",
    "FrontendValidation",
    "Gateway",
    "GatewayAddress",
    "GatewayBackendTls",
    "GatewayClass",
    "GatewayClassSpec",
    "GatewayInfrastructure",
    "GatewaySpec",
    "GatewayTls",
    "Listener",
    "ListenerNamespaces",
    "ListenerSet",
    "ListenerSetSpec",
    "ListenerTls",
    "ParametersReference",
    "ParentGatewayReference",
    "ReferenceGrant",
    "ReferenceGrantFrom",
    "ReferenceGrantSpec",
    "ReferenceGrantTo",
    "RouteGroupKind",
    "RouteNamespaces",
]


class ParametersReference(Model):
    group: Group
    """API group of the parameters."""
    kind: Kind
    """Kind of the parameters."""
    name: Name
    """Name of the parameters."""
    namespace: Label | None = None
    """Namespace of the parameters, where they have one."""


class GatewayClassSpec(Model):
    controller_name: Annotated[
        str,
        Field(
            min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$"
        ),
    ]
    parameters_ref: ParametersReference | None = None
    description: Annotated[str, Field(max_length=64)] | None = None


class GatewayClass(Resource):
    GROUP: ClassVar[str] = GATEWAY_GROUP
    KIND: ClassVar[str] = "GatewayClass"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1", "v1beta1")
    NAMESPACED: ClassVar[bool] = False

    spec: GatewayClassSpec


class RouteNamespaces(Model):
    """From where routes may attach to a listener."""

    from_: Annotated[Literal["All", "Selector", "Same", "None"], Field(alias="from")] = "Same"
    selector: LabelSelector | None = None


class RouteGroupKind(Model):
    group: Group = GATEWAY_GROUP
    kind: Kind


class AllowedRoutes(Model):
    """`kinds` empty: those that the listener's protocol carries."""

    namespaces: RouteNamespaces = RouteNamespaces()
    kinds: Annotated[tuple[RouteGroupKind, ...], Field(max_length=8)] = ()


class ListenerTls(Model):
    """Terminate needs a certificate (or options that name one); Passthrough has none."""

    mode: TlsMode = TlsMode.TERMINATE
    certificate_refs: Annotated[tuple[SecretObjectReference, ...], Field(max_length=64)] = ()
    options: dict[str, str] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="after")
    def _terminate_has_a_certificate(self) -> Self:
        if self.mode is TlsMode.TERMINATE and not self.certificate_refs and not self.options:
            raise Refused("mode Terminate needs a certificate", "add certificateRefs")
        return self


class Listener(Model):
    """One listener. `protocol` is open: one that is not served is a condition in status, not an error."""

    name: Subdomain
    hostname: Hostname | None = None
    port: Port
    protocol: Annotated[str, Field(min_length=1, max_length=255)]
    tls: ListenerTls | None = None
    allowed_routes: AllowedRoutes = AllowedRoutes()

    @model_validator(mode="after")
    def _fields_fit_the_protocol(self) -> Self:
        protocol = self.protocol.upper()
        if protocol in ("HTTP", "TCP", "UDP") and self.tls is not None:
            raise Refused(
                f"tls is not possible with protocol {self.protocol}", "remove tls, or use protocol HTTPS or TLS"
            )
        if protocol in ("TCP", "UDP") and self.hostname:
            raise Refused(f"a hostname is not possible with protocol {self.protocol}", "remove hostname")
        if protocol == "HTTPS" and self.tls is not None and self.tls.mode is not TlsMode.TERMINATE:
            raise Refused("protocol HTTPS needs tls.mode Terminate", "use protocol TLS for Passthrough")
        if protocol == "TLS" and self.tls is None:
            raise Refused("protocol TLS needs tls.mode", "add tls with mode Passthrough or Terminate")
        return self


class GatewayAddress(Model):
    """`type` IPAddress: an address to bind. Other types are reported in status."""

    type: Annotated[str, Field(min_length=1, max_length=253)] = "IPAddress"
    value: Annotated[str, Field(max_length=253)] | None = None

    @model_validator(mode="after")
    def _is_an_address(self) -> Self:
        if self.type == "IPAddress" and self.value:
            try:
                ip_address(self.value)
            except ValueError:
                raise Refused(f"{self.value} is not an IP address", "write it as 192.0.2.1 or 2001:db8::1") from None
        return self

    @property
    def ip(self) -> str:
        """The address in its canonical form; "" for other types, and where the choice is left to the process."""
        return str(ip_address(self.value)) if self.type == "IPAddress" and self.value else ""


class GatewayInfrastructure(Model):
    labels: dict[str, str] = Field(default_factory=dict, max_length=8)
    annotations: dict[str, str] = Field(default_factory=dict, max_length=8)
    parameters_ref: LocalObjectReference | None = None


class FrontendValidation(Model):
    """Client certificates: by whom they have to be signed."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(min_length=1, max_length=16)]
    mode: Literal["AllowValidOnly", "AllowInsecureFallback"] = "AllowValidOnly"


class FrontendTls(Model):
    validation: FrontendValidation | None = None


class FrontendTlsPort(Model):
    port: Port
    tls: FrontendTls


class FrontendTlsSettings(Model):
    """TLS towards clients: for every TLS listener, and for some ports instead."""

    default: FrontendTls
    per_port: Annotated[tuple[FrontendTlsPort, ...], Field(max_length=64)] = ()

    @model_validator(mode="after")
    def _ports_arecheck_unique(self) -> Self:
        check_unique([entry.port for entry in self.per_port], "port", "perPort")
        return self


class GatewayBackendTls(Model):
    """The client certificate that the Gateway shows to backends."""

    client_certificate_ref: SecretObjectReference | None = None


class GatewayTls(Model):
    frontend: FrontendTlsSettings | None = None
    backend: GatewayBackendTls | None = None


class ListenerNamespaces(Model):
    from_: Annotated[Literal["All", "Selector", "Same", "None"], Field(alias="from")] = "None"
    selector: LabelSelector | None = None


class AllowedListeners(Model):
    """From where ListenerSets may attach; by default from nowhere."""

    namespaces: ListenerNamespaces = ListenerNamespaces()


class GatewaySpec(Model):
    gateway_class_name: Name
    listeners: Annotated[tuple[Listener, ...], Field(min_length=1, max_length=64)]
    addresses: Annotated[tuple[GatewayAddress, ...], Field(max_length=16)] = ()
    infrastructure: GatewayInfrastructure | None = None
    allowed_listeners: AllowedListeners = AllowedListeners()
    tls: GatewayTls | None = None
    default_scope: Literal["All", "None"] = "None"

    @model_validator(mode="after")
    def _listeners_are_told_apart(self) -> Self:
        _told_apart(self.listeners)
        return self


class Gateway(Resource):
    """What is bound, and what may attach to it."""

    GROUP: ClassVar[str] = GATEWAY_GROUP
    KIND: ClassVar[str] = "Gateway"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1", "v1beta1")

    spec: GatewaySpec


class ParentGatewayReference(Model):
    group: Group = GATEWAY_GROUP
    kind: Kind = "Gateway"
    name: Name
    namespace: Label | None = None


class ListenerSetSpec(Model):
    parent_ref: ParentGatewayReference
    listeners: Annotated[tuple[Listener, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _listeners_are_told_apart(self) -> Self:
        _told_apart(self.listeners)
        return self


class ListenerSet(Resource):
    """Listeners that are added to a Gateway from outside."""

    GROUP: ClassVar[str] = GATEWAY_GROUP
    KIND: ClassVar[str] = "ListenerSet"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1",)

    spec: ListenerSetSpec


class ReferenceGrantFrom(Model):
    group: Group
    kind: Kind
    namespace: Label


class ReferenceGrantTo(Model):
    """`name` None: every object of that kind."""

    group: Group
    kind: Kind
    name: Name | None = None


class ReferenceGrantSpec(Model):
    from_: Annotated[tuple[ReferenceGrantFrom, ...], Field(alias="from", min_length=1, max_length=16)]
    to: Annotated[tuple[ReferenceGrantTo, ...], Field(min_length=1, max_length=16)]


class ReferenceGrant(Resource):
    """Lets objects of other namespaces refer to objects of this one."""

    GROUP: ClassVar[str] = GATEWAY_GROUP
    KIND: ClassVar[str] = "ReferenceGrant"
    VERSIONS: ClassVar[tuple[str, ...]] = ("v1", "v1beta1", "v1alpha2")

    spec: ReferenceGrantSpec


def _told_apart(listeners: tuple[Listener, ...]) -> None:
    """Unique names; and one listener per port, protocol and hostname (rules of the CRD)."""
    check_unique([listener.name for listener in listeners], "name", "listeners")
    seen: dict[tuple[int, str, str], str] = {}
    for listener in listeners:
        place = (listener.port, listener.protocol.lower(), listener.hostname or "")
        if place in seen:
            raise Refused(
                f"listeners {seen[place]} and {listener.name} have the same port, protocol and hostname",
                "give each its own hostname or port",
            )
        seen[place] = listener.name
