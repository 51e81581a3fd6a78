"""References between objects: within a namespace, to Secrets, backends and parents, and targets of policies."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from egressproxy.config.resources.meta import GATEWAY_GROUP, Model
from egressproxy.config.resources.values import Label, Name, Port, RefusedValue

Group = Annotated[str, Field(max_length=253)]
Kind = Annotated[str, Field(pattern=r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", max_length=63)]


class LocalObjectReference(Model):
    """A reference within the namespace."""

    group: Group
    """API group of the object; "" is the core group."""
    kind: Kind
    """Kind of the object."""
    name: Name
    """Name of the object, in the namespace of the one that refers to it."""


class ObjectReference(Model):
    """A reference to an object, the core group by default; another namespace needs a ReferenceGrant."""

    group: Group = ""
    """API group of the object. Default: "", the core group."""
    kind: Kind
    """Kind of the object, such as ConfigMap or Secret."""
    name: Name
    """Name of the object."""
    namespace: Label | None = None
    """Namespace of the object. Default: that of the one that refers to it; another one needs a ReferenceGrant."""


class SecretObjectReference(ObjectReference):
    """A reference to a Secret; another namespace needs a ReferenceGrant."""

    kind: Kind = "Secret"
    """Secret."""


class BackendObjectReference(ObjectReference):
    """A reference to what requests are sent to. A Service needs its port (a rule of the CRD)."""

    kind: Kind = "Service"
    """Service, Backend, XBackend or XBackendDestination."""
    port: Port | None = Field(default=None, validate_default=True)
    """Port of the backend. Required for a Service; a Backend with one port needs none."""

    @field_validator("port")
    @classmethod
    def _service_has_a_port(cls, port: int | None, info: Any) -> int | None:
        if port is None and info.data.get("group") == "" and info.data.get("kind") == "Service":
            raise RefusedValue(
                "a reference to a Service has to name a port",
                "add port; or, if a Backend is meant, group: egressproxy.io and kind: Backend",
            )
        return port


class ParentGatewayReference(Model):
    """The Gateway that a ListenerSet adds listeners to."""

    group: Group = GATEWAY_GROUP
    """API group of the parent."""
    kind: Kind = "Gateway"
    """Gateway; for routes, ListenerSet, too."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the object; whether another one may attach is for the parent to say."""
    name: Name
    """Name of the parent."""


class ParentReference(ParentGatewayReference):
    """What a route attaches to: a Gateway (or ListenerSet), one listener of it, or one port."""

    section_name: Name | None = None
    """The listener to attach to. Default: every listener that admits the route."""
    port: Port | None = None
    """Attach to the listeners of this port alone."""


class PolicyTargetReference(LocalObjectReference):
    """What a policy applies to, in its own namespace; `sectionName` narrows it to one listener, rule or port."""

    kind: Kind
    """Gateway, ListenerSet, a kind of route, a kind of Backend, or Service."""
    section_name: Name | None = None
    """One listener of a Gateway or ListenerSet, one named rule of a route, or one port."""
