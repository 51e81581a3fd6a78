"""Which lists have keys: their items are merged one by one, all other lists are taken whole.

Source: x-kubernetes-list-map-keys in the CRDs of Gateway API v1, patchMergeKey in k8s.io/api/core/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from egressproxy.kubeapi.kinds import BACKENDS, GATEWAY, OURS

#: Fields from the object down to the list -> fields that tell its items apart.
Shape = Mapping[tuple[str, ...], tuple[str, ...]]

_CONDITIONS: Final[Shape] = {("status", "conditions"): ("type",)}
_LISTENERS: Final[Shape] = {("spec", "listeners"): ("name",)}
_TARGETS: Final[Shape] = {("spec", "targetRefs"): ("group", "kind", "name", "sectionName")}
_EXTENSIONS: Final[Shape] = {("spec", "extensions"): ("name",)}
_BACKEND: Final[Shape] = {("spec", "destination", "ports"): ("number",), **_EXTENSIONS}

_SHAPES: Final[Mapping[tuple[str, str], Shape]] = {
    (GATEWAY, "Gateway"): {**_LISTENERS, ("spec", "tls", "frontend", "perPort"): ("port",)},
    (GATEWAY, "ListenerSet"): _LISTENERS,
    (GATEWAY, "BackendTLSPolicy"): _TARGETS,
    **dict.fromkeys(BACKENDS, _BACKEND),
    (OURS, "EgressPolicy"): _EXTENSIONS,
    (OURS, "PayloadProcessingPipeline"): {("spec", "processors"): ("name",)},
    ("", "Service"): {("spec", "ports"): ("port", "protocol")},
    ("", "ServiceAccount"): {("secrets",): ("name",), ("imagePullSecrets",): ("name",)},
    ("", "Pod"): {("spec", "containers"): ("name",), ("status", "podIPs"): ("ip",)},
}
_COMMON: Final[Shape] = {("metadata", "ownerReferences"): ("uid",), **_CONDITIONS}
#: What a key is where an item does not say it.
_DEFAULTS: Final = {"protocol": "TCP", "sectionName": ""}


def shape_of(group: str, kind: str) -> Shape:
    """The lists with keys of a kind, those of every object included."""
    return {**_COMMON, **_SHAPES.get((group, kind), {})}


def item_key(item: Any, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """What tells an item from the others; None for one that lacks it."""
    if not isinstance(item, Mapping):
        return None
    key = tuple(item.get(name, _DEFAULTS.get(name)) for name in names)
    return None if None in key or any(isinstance(each, dict | list) for each in key) else key
