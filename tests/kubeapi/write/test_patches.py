from __future__ import annotations

import copy
from typing import Any

import pytest

from egressproxy.kubeapi.write.patches import json_patch, merge_patch, shape_of, strategic_merge_patch
from egressproxy.kubeapi.write.write import WriteRefused

GATEWAY = shape_of("gateway.networking.k8s.io", "Gateway")
SERVICE = shape_of("", "Service")


def listeners(*named: tuple[str, int]) -> dict[str, Any]:
    return {"spec": {"class": "c", "listeners": [{"name": name, "port": port} for name, port in named]}}


@pytest.mark.parametrize(
    ("target", "patch", "made"),
    [  # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_its_rfc(target: Any, patch: Any, made: Any):
    before = copy.deepcopy(target)
    assert merge_patch(target, patch) == made
    assert target == before


def test_a_json_patch_is_applied_and_leaves_what_it_was_given():
    target = listeners(("a", 1))
    made = json_patch(target, [{"op": "replace", "path": "/spec/listeners/0/port", "value": 2}])
    assert made == listeners(("a", 2))
    assert target == listeners(("a", 1))


@pytest.mark.parametrize(
    "patch",
    [
        {},
        [{"op": "test", "path": "/spec/class", "value": "x"}],
        [{"op": "remove", "path": "/nope"}],
        [{"op": "replace", "path": "/spec/listeners/7/port", "value": 2}],
        [{"op": "nonsense", "path": "/spec"}],
        [{"path": "/spec"}],
        ["text"],
    ],
)
def test_a_json_patch_that_cannot_be_applied_is_refused(patch: Any):
    with pytest.raises(WriteRefused) as caught:
        json_patch(listeners(("a", 1)), patch)
    assert caught.value.code in (400, 422)


def test_a_list_with_keys_is_merged_item_by_item():
    made = strategic_merge_patch(
        listeners(("a", 1), ("b", 2)),
        {"spec": {"listeners": [{"name": "b", "port": 3}, {"name": "c", "port": 4}]}},
        GATEWAY,
    )
    assert made == listeners(("a", 1), ("b", 3), ("c", 4))


def test_an_item_is_deleted_by_its_key():
    patch = {"spec": {"listeners": [{"name": "a", "$patch": "delete"}]}}
    assert strategic_merge_patch(listeners(("a", 1), ("b", 2)), patch, GATEWAY) == listeners(("b", 2))


def test_a_list_and_a_mapping_can_be_replaced():
    patch = {"spec": {"listeners": [{"$patch": "replace"}, {"name": "z", "port": 9}]}}
    assert strategic_merge_patch(listeners(("a", 1)), patch, GATEWAY) == listeners(("z", 9))
    assert strategic_merge_patch({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {}) == {"a": {"d": 3}}


def test_a_list_without_keys_is_taken_whole():
    assert strategic_merge_patch({"spec": {"x": [1, 2]}}, {"spec": {"x": [3]}}, GATEWAY) == {"spec": {"x": [3]}}


def test_an_order_is_kept():
    patch = {
        "spec": {"$setElementOrder/listeners": [{"name": "b"}, {"name": "a"}], "listeners": [{"name": "b", "port": 5}]}
    }
    assert strategic_merge_patch(listeners(("a", 1), ("b", 2)), patch, GATEWAY) == listeners(("b", 5), ("a", 1))


def test_plain_values_are_deleted_from_a_list_and_keys_retained():
    assert strategic_merge_patch({"f": ["a", "b"]}, {"$deleteFromPrimitiveList/f": ["a"]}, {}) == {"f": ["b"]}
    assert strategic_merge_patch({"a": 1, "b": 2}, {"$retainKeys": ["b", "c"], "c": 3}, {}) == {"b": 2, "c": 3}


def test_a_default_is_part_of_a_key():
    target = {"spec": {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}}
    made = strategic_merge_patch(target, {"spec": {"ports": [{"port": 53, "protocol": "TCP", "name": "x"}]}}, SERVICE)
    assert made["spec"]["ports"][1] == {"port": 53, "protocol": "TCP", "name": "x"}


def test_an_item_without_its_key_is_refused():
    with pytest.raises(WriteRefused, match="has not the key name"):
        strategic_merge_patch(listeners(("a", 1)), {"spec": {"listeners": [{"port": 3}]}}, GATEWAY)


def test_copies_of_copies_are_bounded():
    """Thirty of them make a thousand million of what there was."""
    patch = [{"op": "copy", "from": "", "path": f"/c{number}"} for number in range(40)]
    with pytest.raises(WriteRefused, match="copies more than") as refused:
        json_patch({"a": "b"}, patch)
    assert refused.value.code == 413
    assert json_patch({"a": "b"}, patch[:1]) == {"a": "b", "c0": {"a": "b"}}
