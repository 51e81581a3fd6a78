"""PublishedObject: one object as the Kubernetes-shaped API shows it, wherever it comes from."""

from __future__ import annotations

from dataclasses import dataclass

#: (group, kind, namespace, name); the core group is "", and so is the namespace of a cluster-scoped kind.
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class PublishedObject:
    """One object as it is at some moment.

    `manifest` is JSON in Kubernetes' shape, without status unless that is input; `status` is JSON, None where the
    object has none. `generation` is metadata.generation, 0 for a kind without. `created` is shown as
    metadata.creationTimestamp where the manifest has none, "" for nothing: it stays while the object is there, and is
    no part of what makes an object another.
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
