"""The kinds that the admin API serves: those of a configuration, and Events."""

from __future__ import annotations

from typing import Final

from egressproxy.config.served_kinds import CONFIGURED, OURS, ServedKind

_INVOLVED: Final = tuple(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_REGARDING: Final = tuple(name.replace("involvedObject", "regarding") for name in _INVOLVED)

#: (group, kind) of those that say where traffic goes, in the shapes of several drafts.
BACKENDS: Final = tuple(
    (kind.group, kind.kind) for kind in CONFIGURED if kind.kind in ("Backend", "XBackendDestination")
)

#: What nobody writes: made by the gateway while it runs. One Event is served in both groups.
OBSERVED: Final = (
    ServedKind("", "Event", ("v1",), ("ev",), fields=(*_INVOLVED, "reason", "type", "reportingComponent", "source")),
    ServedKind(
        "events.k8s.io", "Event", ("v1",), ("ev",), fields=(*_REGARDING, "reason", "type", "reportingController")
    ),
)

KINDS: Final = (*CONFIGURED, *OBSERVED)

_BY_PLURAL: Final = {(kind.group, version, kind.plural): kind for kind in KINDS for version in kind.versions}


def served(group: str, version: str, plural: str) -> ServedKind | None:
    """The kind with this group, version and plural name, as a URL has them; None where none is served."""
    return _BY_PLURAL.get((group, version, plural))


def group_versions() -> dict[str, list[str]]:
    """Every group but the core, ours first, with its versions, in the order of Kubernetes' version priority."""
    found: dict[str, list[str]] = {OURS: []}
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
