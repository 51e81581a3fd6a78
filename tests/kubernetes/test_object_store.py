"""What is kept of an object, and that nothing goes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.config.served_kinds import CONFIGURED, ServedKind
from egressproxy.kubernetes.object_store import ObjectStore, Scope, StoredObject, is_older, stored


def kind(name: str) -> ServedKind:
    return next(each for each in CONFIGURED if each.kind == name)


SECRETS, SLICES, PODS = (Scope(kind(name)) for name in ("Secret", "EndpointSlice", "Pod"))
KEY = ("", "Secret", "team", "key")


def kept(value: dict[str, Any], scope: Scope = SECRETS, version: str = "v1") -> dict[str, Any]:
    _, each = stored(value, scope, version)
    found: dict[str, Any] = json.loads(each.manifest)
    return found


def test_what_says_nothing_to_a_gateway_is_not_kept():
    made = kept({
        "metadata": {
            "name": "key", "namespace": "team", "resourceVersion": "7", "managedFields": [{}], "selfLink": "x",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "the value", "a": "b"},
        },
        "data": {"token": "eA=="},
        "status": {"phase": "x"},
    })  # fmt: skip
    assert made == {
        "apiVersion": "v1", "kind": "Secret", "data": {"token": "eA=="},
        "metadata": {"name": "key", "namespace": "team", "annotations": {"a": "b"}},
    }  # fmt: skip


def test_the_status_of_a_pod_is_input():
    made = kept({"metadata": {"name": "p", "namespace": "team"}, "status": {"podIP": "10.0.0.1"}}, PODS)
    assert made["status"] == {"podIP": "10.0.0.1"}


def test_of_a_pod_that_is_kept_that_is_read():
    made = kept(
        {
            "metadata": {
                "name": "p", "namespace": "team", "labels": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"serviceAccountName": "web", "hostNetwork": True, "containers": [{"name": "c"}]},
            "status": {
                "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{"restartCount": 7}],
                "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": "True", "lastProbeTime": None},
                ],
            },
        },
        PODS,
    )  # fmt: skip
    assert made["metadata"] == {
        "name": "p", "namespace": "team", "labels": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    assert made["spec"] == {"serviceAccountName": "web", "hostNetwork": True}
    assert made["status"] == {
        "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}],
    }  # fmt: skip


def test_older_endpoint_slices_are_read_in_the_newer_form():
    endpoint = {
        "addresses": ["10.0.0.1"],
        "topology": {"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "n"},
    }
    made = kept({"metadata": {"name": "s", "namespace": "team"}, "endpoints": [endpoint]}, SLICES, "v1beta1")
    assert made["apiVersion"] == "discovery.k8s.io/v1"
    assert made["endpoints"] == [{"addresses": ["10.0.0.1"], "zone": "a"}]


def each(version: str, value: str = "") -> StoredObject:
    return StoredObject(version, (value or version).encode(), b"")


@pytest.mark.parametrize(
    ("version", "than", "expected"), [("9", "10", True), ("10", "9", False), ("9", "9", False), ("a", "b", False)]
)
def test_versions_are_compared_as_numbers(version, than, expected):
    assert is_older(version, than) is expected


def test_an_object_never_goes_back():
    store = ObjectStore()
    store.put(SECRETS, KEY, each("10"))
    store.put(SECRETS, KEY, each("9"))
    store.replace(SECRETS, {KEY: each("8")})
    store.remove(SECRETS, KEY, "7")
    assert store.find(KEY) == each("10")
    store.remove(SECRETS, KEY, "11")
    assert store.find(KEY) is None


def test_a_revision_counts_what_a_compilation_would_see():
    store = ObjectStore()
    store.put(SECRETS, KEY, each("1", "same"))
    store.put(SECRETS, KEY, each("2", "same"))
    store.replace(SECRETS, {KEY: each("3", "same")})
    assert store.revision == 1
    store.replace(SECRETS, {})
    assert store.revision == 2


def test_what_cannot_be_an_object_is_refused():
    with pytest.raises(ValueError, match="no name"):
        stored({"metadata": {}}, SECRETS, "v1")
