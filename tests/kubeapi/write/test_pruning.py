"""What of an object is kept."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import ObjectMeta, OpenModel
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubeapi.write import pruning
from egressproxy.kubeapi.write.pruning import pruned


def test_of_a_core_object_the_fields_of_kubernetes_are_kept():
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a", "labels": {"x": "y"}, "more": 1},
        "spec": {
            "sessionAffinity": "None",
            "ports": [{"port": 1, "nodePort": 2}, {"port": 3, "extra": 4}],
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1, "seconds": 2}},
            "selector": {"any": "label"},
            "other": {},
        },
        "import os": 1,
    }
    made, gone = pruned("", "Service", service)
    assert gone == [
        "metadata.more",
        "spec.ports[1].extra",
        "spec.sessionAffinityConfig.clientIP.seconds",
        "spec.other",
        "import os",
    ]
    assert made["spec"]["ports"] == [{"port": 1, "nodePort": 2}, {"port": 3}]
    assert made["spec"]["selector"] == {"any": "label"}
    assert made["metadata"] == {"name": "a", "labels": {"x": "y"}}
    assert "import os" in service


def test_our_own_kinds_are_for_their_schema_to_judge_but_for_metadata():
    made, gone = pruned(
        "egressproxy.io", "EgressPolicy", {"more": 1, "metadata": {"name": "a", "x": 1}, "spec": {"y": 1}}
    )
    assert made == {"more": 1, "metadata": {"name": "a"}, "spec": {"y": 1}}
    assert gone == ["metadata.x"]


@pytest.mark.parametrize("manifest", [{"metadata": []}, {"metadata": None}, {"spec": 5}, {"spec": [1, {"x": 1}]}])
def test_what_is_no_object_is_for_the_schema_to_refuse(manifest: dict[str, Any]):
    assert pruned("", "Service", manifest)[0].keys() == manifest.keys()


def test_every_kind_that_lets_unknown_fields_through_is_pruned():
    for kind in CONFIGURED:
        model = kind_class(f"{kind.group}/{kind.versions[0]}" if kind.group else kind.versions[0], kind.kind)
        assert model is not None
        is_open = model.model_config.get("extra") != "forbid"
        assert is_open is ((kind.group, kind.kind) in pruning._KINDS), kind


def test_what_is_read_of_a_kind_is_kept():
    def check(model: type[Any], fields: Any, where: str) -> None:
        for name, field in model.model_fields.items():
            alias = field.alias or name
            if fields is None or alias in ("apiVersion", "kind", "status"):
                continue
            assert alias in fields, f"{where}.{alias}"
            for inner in _models(field.annotation):
                check(inner, fields[alias], f"{where}.{alias}")

    for (group, kind), fields in pruning._KINDS.items():
        model = kind_class(f"{group}/v1" if group else "v1", kind)
        assert model is not None
        check(model, {**fields, "metadata": pruning._METADATA}, kind)
    check(ObjectMeta, pruning._METADATA, "metadata")


def _models(annotation: Any) -> list[type[Any]]:
    if isinstance(annotation, type) and issubclass(annotation, OpenModel):
        return [annotation]
    return [found for each in getattr(annotation, "__args__", ()) for found in _models(each)]
