"""The status of an object in the form that the published type of its kind has.

The compiler knows conditions of a backend. Gateway API lists them by the Gateways whose routes lead there, and the
working group by the controllers that have looked at it. Sources: Gateway API XBackend, BackendStatus (GEP-4894); the AI
Gateway working group's BackendStatus.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from egressproxy.config.compile.interface import CONTROLLER, Status
from egressproxy.config.resources.backend import WorkingGroupBackend, XBackendDestination
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.model.published_object import Key

#: BackendStatus.ancestors holds at most so many entries.
MAX_ANCESTORS: Final = 32


def published_status(resource: Resource, status: Status | None, users: Iterable[Key]) -> Status | None:
    """The `status` of an object. `users` are the Gateways whose routes lead to it, if it is a backend.

    A backend in Gateway API's form that no Gateway uses has no entry: its type says so.
    """
    if status is None:
        return None
    if isinstance(resource, XBackend):
        return {"ancestors": [_ancestor(key, status["conditions"]) for key in sorted(users)[:MAX_ANCESTORS]]}
    if isinstance(resource, WorkingGroupBackend | XBackendDestination):
        return {"controllers": [{"name": CONTROLLER, "conditions": status["conditions"]}]}
    return status


def _ancestor(gateway: Key, conditions: list[dict[str, Any]]) -> dict[str, Any]:
    group, kind, namespace, name = gateway
    reference = {"group": group, "kind": kind, "namespace": namespace, "name": name}
    return {"ancestorRef": reference, "controllerName": CONTROLLER, "conditions": conditions}
