"""Policies of unread kinds, of Kubernetes' experimental groups: their targets stay closed.

An unread policy may restrict its targets. An EgressPolicy that closes these targets stands in its place, without being
an object of the configuration; errors and logs name the policy. The rest of the configuration stays as it is. Source:
GEP-713 (policy attachment).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError

from egressproxy.config.reading.cluster_objects import CLOSED_POLICY, TARGETS
from egressproxy.config.resources.meta import ObjectMeta, Origin, Resource
from egressproxy.config.resources.policy import EgressPolicy, EgressPolicySpec, EgressPolicyTargetReference
from egressproxy.config.served_kinds import HARMLESS_POLICIES, is_experiment
from egressproxy.model.published_object import Key

_ATTACHES: Final = ("targetRefs", "targetRef", "targetSelectors")
_FIELDS: Final = ("group", "kind", "namespace", "name", "sectionName")
#: The extensions alone, whose unknown type is the reason of a refusal. `destinations` would give another.
_CLOSED: Final = {"extensions": CLOSED_POLICY["extensions"]}
_UNPRINTABLE: Final = re.compile(r"[^!-~]")


class LeftOutPolicy(EgressPolicy):
    """It closes `targets`; None: they cannot be read, and are all possible ones of its namespace."""

    @property
    def key(self) -> Key:
        return (self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.full_name}"

    def at_all_of(self, objects: Iterable[Resource]) -> LeftOutPolicy:
        """The policy with every possible target of its namespace, if those that it names cannot all be read."""
        if self.spec.target_refs:
            return self
        refs = tuple(
            EgressPolicyTargetReference(group=each.GROUP, kind=each.KIND, name=each.name)
            for each in objects
            if isinstance(each, TARGETS[EgressPolicy]) and each.namespace == self.namespace
        )
        return self.model_copy(update={"spec": self.spec.model_copy(update={"target_refs": refs})})


def left_out_policy(value: dict[str, Any], origin: Origin) -> LeftOutPolicy | None:
    """What stands for an object of a kind that is not read; None if it cannot restrict anything here."""
    api_version, kind, spec = value["apiVersion"], value["kind"], value.get("spec")
    if not is_experiment(api_version.rpartition("/")[0]) or kind in HARMLESS_POLICIES or not isinstance(spec, dict):
        return None
    written = [spec[name] for name in _ATTACHES if spec.get(name) not in (None, [])]
    if not written:
        return None
    entries = [entry for each in written for entry in (each if isinstance(each, list) else [each])]
    metadata = _metadata(value.get("metadata"))
    name = f"{kind} {metadata.namespace}/{metadata.name}"[:253]
    unknown = {"name": name, "type": _UNPRINTABLE.sub("?", f"{api_version.replace('/', f'/{kind}:')}")}
    closed = EgressPolicySpec.model_validate({**_CLOSED, "targetRefs": []})
    # One name in all phases: messages have it once.
    changes: dict[str, Any] = {"extensions": tuple(each.model_copy(update=unknown) for each in closed.extensions)}
    refs = tuple(map(_target, entries))
    if None not in refs:
        changes["target_refs"] = refs
    closed = closed.model_copy(update=changes)
    made = LeftOutPolicy.model_construct(api_version=api_version, kind=kind, metadata=metadata, spec=closed)
    made.written({}, origin)
    return made


def _metadata(written: object) -> ObjectMeta:
    try:
        return ObjectMeta.model_validate(written)
    except ValidationError:
        found = written if isinstance(written, dict) else {}
        name, namespace = str(found.get("name") or "unnamed"), found.get("namespace")
        return ObjectMeta.model_construct(name=name, namespace=namespace if isinstance(namespace, str) else "default")


def _target(written: object) -> EgressPolicyTargetReference | None:
    if not isinstance(written, dict) or written.get("kind") == "Namespace":
        return None
    try:
        kept = {name: written[name] for name in _FIELDS if written.get(name) is not None}
        return EgressPolicyTargetReference.model_validate(kept)
    except ValidationError:
        return None
