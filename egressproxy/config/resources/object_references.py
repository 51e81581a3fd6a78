"""References between objects: within a namespace, to Secrets, backends and parents, and targets of policies."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from egressproxy.config.resources.meta import GATEWAY_GROUP, Model
from egressproxy.config.resources.values import Label, Name, Port, RefusedValue

__all__ = [
    "BackendObjectReference",
    "Group",
    "Kind",
    "LocalObjectReference",
    "ObjectReference",
    "ParentReference",
    "PolicyTargetReference",
    "SecretObjectReference",
]

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
    """API group of the object; the core group where it is left out."""
    kind: Kind
    """Kind of the object, such as ConfigMap or Secret."""
    name: Name
    """Name of the object."""
    namespace: Label | None = None
    """Namespace of the object. Default: that of the one that refers to it; another one needs a ReferenceGrant."""


class SecretObjectReference(Model):
    """A reference to a Secret; another namespace needs a ReferenceGrant."""

    group: Group = ""
    """The core group, ""."""
    kind: Kind = "Secret"
    """Secret."""
    name: Name
    """Name of the Secret."""
    namespace: Label | None = None
    """Namespace of the Secret. Default: that of the one that refers to it; another one needs a ReferenceGrant."""


class BackendObjectReference(Model):
    """A reference to what requests are sent to. A Service needs its port (a rule of the CRD)."""

    group: Group = ""
    """API group of the backend; "" is the core group, that of Services."""
    kind: Kind = "Service"
    """Service, Backend, XBackend or XBackendDestination."""
    name: Name
    """Name of the backend."""
    namespace: Label | None = None
    """Namespace of the backend. Default: that of the one that refers to it; another one needs a ReferenceGrant."""
    port: Port | None = Field(default=None, validate_default=True)
    """Port of the backend. Required for a Service; a Backend with one port needs none."""

    @field_validator("port")
    @classmethod
    def _service_has_a_port(cls, port: int | None, info: Any) -> int | None:
        if port is None and info.data.get("group") == "" and info.data.get("kind") == "Service":
            raise RefusedValue(
                "a reference to a Service has to name a port", "add port, or group and kind if it is no Service"
            )
        return port


class ParentReference(Model):
    """What a route attaches to: a Gateway (or ListenerSet), one listener of it, or one port."""

    group: Group = GATEWAY_GROUP
    """API group of the parent."""
    kind: Kind = "Gateway"
    """Gateway or ListenerSet."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the route; whether another one may attach is for the listener to say.
    """
    name: Name
    """Name of the parent."""
    section_name: Name | None = None
    """The listener to attach to. Default: every listener that admits the route."""
    port: Port | None = None
    """Attach to the listeners of this port alone."""


class PolicyTargetReference(Model):
    """What a policy applies to, in its own namespace; `sectionName` narrows it to one listener, rule or port."""

    group: Group
    """API group of the target; "" is the core group."""
    kind: Kind
    """Gateway, ListenerSet, a kind of route, a kind of Backend, or Service."""
    name: Name
    """Name of the target, in the policy's namespace."""
    section_name: Name | None = None
    """One listener of a Gateway or ListenerSet, one named rule of a route, or one port."""
