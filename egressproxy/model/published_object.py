"""PublishedObject: one object as the Kubernetes-shaped API shows it, from any source."""

from __future__ import annotations

from dataclasses import dataclass

#: (group, kind, namespace, name); the core group is "", and so is the namespace of a cluster-scoped kind.
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class PublishedObject:
    """One object at some moment.

    `manifest` is JSON in Kubernetes' shape, without status unless that is input; `status` is JSON, None where the
    object has none. `generation` is metadata.generation, 0 for a kind without. `created` is shown as
    metadata.creationTimestamp if the manifest has none, "" for nothing: it stays while the object exists, and does not
    count in comparisons.
    """

    group: str
    kind: str
    namespace: str
    name: str
    manifest: bytes
    generation: int = 0
    status: bytes | None = None
    created: str = ""

    @property
    def key(self) -> Key:
        return self.group, self.kind, self.namespace, self.name
