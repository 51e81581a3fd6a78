"""The kinds of backends, and which object a reference to one means. Source: Gateway API v1 BackendObjectReference."""

from __future__ import annotations

from egressproxy.config.compile.interface import Reference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import (
    Backend,
    GatewayBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    WorkingGroupBackend,
    XBackendDestination,
)
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.model.published_object import Key

#: Those with a `destination`, which are subclasses of these.
DestinationBackend = Backend | WorkingGroupBackend | XBackendDestination
AnyBackend = DestinationBackend | XBackend

#: Every class of backends beside Services.
BACKEND_KINDS: tuple[type[AnyBackend], ...] = (
    Backend,
    WorkingGroupBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    XBackendDestination,
    XBackend,
    GatewayBackend,
)

#: (group, kind) of everything that a backendRef may name.
KNOWN_KINDS = frozenset({("", "Service"), *((kind.GROUP, kind.KIND) for kind in BACKEND_KINDS)})

#: Routes may call an XBackendDestination `Backend` (the prototype does), where no Backend of its group has the name.
_CALLED_BACKEND = (XBackendDestination, GatewayXBackendDestination)
_ALIASES = {(kind.GROUP, "Backend"): kind.KIND for kind in _CALLED_BACKEND}


def object_key(resources: ResourceSet, ref: Reference, namespace: str) -> Key:
    """The object that a reference means, whether it is there or not; it may be there under its other name."""
    key = (ref.group, ref.kind, namespace, ref.name)
    alias = _ALIASES.get((ref.group, ref.kind))
    if alias is None or resources.get(*key) is not None:
        return key
    other = (ref.group, alias, namespace, ref.name)
    return other if resources.get(*other) is not None else key
