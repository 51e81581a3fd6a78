"""The kinds that the admin API serves: those that the configuration understands, with their names in a URL.

Plural and short names are those of the CRDs of Gateway API and of core Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from egressproxy.config.resources.kinds import KINDS as UNDERSTOOD
from egressproxy.config.resources.meta import Resource

__all__ = ["KINDS", "ServedKind", "group_versions", "served"]

_SHORT_NAMES: Final = {
    "Namespace": ("ns",),
    "ConfigMap": ("cm",),
    "Service": ("svc",),
    "ServiceAccount": ("sa",),
    "Pod": ("po",),
    "GatewayClass": ("gc",),
    "Gateway": ("gtw",),
    "ListenerSet": ("lset",),
    "BackendTLSPolicy": ("btlspolicy",),
    "ReferenceGrant": ("refgrant",),
}


@dataclass(frozen=True, slots=True)
class ServedKind:
    """The core group is ""; every version of a kind has the same shape."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    is_namespaced: bool
    short_names: tuple[str, ...]

    @property
    def singular(self) -> str:
        return self.kind.lower()


def _served(kind: type[Resource]) -> ServedKind:
    singular = kind.KIND.lower()
    if singular.endswith("y") and singular[-2] not in "aeiou":  # policies, but gateways
        plural = singular[:-1] + "ies"
    else:
        plural = singular + ("es" if singular.endswith("s") else "s")
    return ServedKind(kind.GROUP, kind.KIND, plural, kind.VERSIONS, kind.NAMESPACED, _SHORT_NAMES.get(kind.KIND, ()))


KINDS: Final = tuple(_served(kind) for kind in UNDERSTOOD)

_BY_PLURAL: Final = {(kind.group, version, kind.plural): kind for kind in KINDS for version in kind.versions}


def served(group: str, version: str, plural: str) -> ServedKind | None:
    """The kind behind a path, or None."""
    return _BY_PLURAL.get((group, version, plural))


def group_versions() -> dict[str, list[str]]:
    """Every group (the core group left out) and its versions, in the order of Kubernetes' version priority."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind.group:
            versions = found.setdefault(kind.group, [])
            versions += (version for version in kind.versions if version not in versions)
    return {group: sorted(versions, key=_priority) for group, versions in found.items()}


def _priority(version: str) -> tuple[int, list[int]]:
    """v1 before v1beta1 before v1alpha3 before v1alpha2 (Kubernetes API versioning, version priority)."""
    stability = 2 if "alpha" in version else 1 if "beta" in version else 0
    numbers = [int(part) for part in version.replace("alpha", " ").replace("beta", " ").lstrip("v").split()]
    return stability, [-number for number in numbers]
