"""ReferenceGrant: who of another namespace may refer to objects of this one. Source: Gateway API v1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from egressproxy.config.resources.meta import GATEWAY_GROUP, Model, Resource
from egressproxy.config.resources.object_references import Group, Kind
from egressproxy.config.resources.values import Label, Name


class ReferenceGrantFrom(Model):
    group: Group
    """API group of who may refer."""
    kind: Kind
    """Kind of who may refer."""
    namespace: Label
    """Namespace of who may refer."""


class ReferenceGrantTo(Model):
    """`name` None: every object of that kind."""

    group: Group
    """API group of what may be referred to."""
    kind: Kind
    """Kind of what may be referred to."""
    name: Name | None = None
    """Name of what may be referred to."""


class ReferenceGrantSpec(Model):
    from_: Annotated[tuple[ReferenceGrantFrom, ...], Field(alias="from", min_length=1, max_length=16)]
    """Who may refer to objects of this namespace."""
    to: Annotated[tuple[ReferenceGrantTo, ...], Field(min_length=1, max_length=16)]
    """Which objects of this namespace may be referred to."""


class ReferenceGrant(Resource, group=GATEWAY_GROUP, kind="ReferenceGrant", versions=("v1", "v1beta1", "v1alpha2")):
    """Lets objects of other namespaces refer to objects of this one."""

    spec: ReferenceGrantSpec
    """Who may refer to what."""
