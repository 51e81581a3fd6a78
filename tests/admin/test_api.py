"""The Kubernetes-shaped API as a function."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from egressproxy.admin.api import Document, answer, everything
from egressproxy.admin.state import Published
from egressproxy.config.load import load_text

MANIFESTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: egress, namespace: agents}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: b, namespace: agents}
spec: {parentRefs: [{name: egress}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a, namespace: other}
spec: {parentRefs: [{name: egress, namespace: agents}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: agents}
---
apiVersion: v1
kind: Secret
metadata:
  name: key
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "CANARY", kapp.k14s.io/original: "CANARY", team: a}
data: {token: Q0FOQVJZ}
stringData: {other: CANARY}
"""
STATUS = {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]}


def objects() -> list[Published]:
    return [
        (resource, 4, STATUS if resource.kind == "HTTPRoute" else None) for resource in load_text(MANIFESTS).objects
    ]


def get(path: str, **query: str) -> Document:
    return answer(path, query, objects(), "17", "127.0.0.1:15000")


def names(document: Document) -> list[str]:
    assert document.status == 200
    return [item["metadata"]["name"] for item in document.body["items"]]


def test_a_list_over_all_namespaces_has_kind_version_and_items():
    document = get("/apis/gateway.networking.k8s.io/v1/httproutes")
    assert document.body["kind"] == "HTTPRouteList"
    assert document.body["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert document.body["metadata"]["resourceVersion"] == "17"
    assert names(document) == ["b", "a"]
    assert {item["apiVersion"] for item in document.body["items"]} == {"gateway.networking.k8s.io/v1"}


def test_a_list_of_one_namespace_has_only_its_objects():
    assert names(get("/apis/gateway.networking.k8s.io/v1/namespaces/other/httproutes")) == ["a"]
    assert names(get("/apis/gateway.networking.k8s.io/v1/namespaces/empty/httproutes")) == []


def test_one_object_carries_generation_and_status():
    document = get("/apis/gateway.networking.k8s.io/v1/namespaces/agents/httproutes/b")
    assert document.status == 200
    assert document.body["metadata"]["generation"] == 4
    assert document.body["metadata"]["namespace"] == "agents"
    assert document.body["status"] == STATUS
    assert "status" not in get("/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways/egress").body


def test_a_cluster_scoped_object_is_asked_for_without_a_namespace():
    assert get("/api/v1/namespaces/agents").body["kind"] == "Namespace"
    assert names(get("/api/v1/namespaces")) == ["agents"]


def test_a_secret_is_answered_with_its_data_redacted():
    document = get("/api/v1/namespaces/default/secrets/key")
    assert document.status == 200
    assert set(document.body["data"]) == {"token", "other"}
    assert {base64.b64decode(value) for value in document.body["data"].values()} == {b"redacted"}
    assert document.body["metadata"]["annotations"] == {"kapp.k14s.io/original": "redacted", "team": "redacted"}
    for shown in (document.body, everything(objects(), "1").body, get("/api/v1/secrets").body):
        assert "CANARY" not in str(shown)
        assert "Q0FOQVJZ" not in str(shown)


def test_a_secret_that_does_not_redact_itself_is_redacted_all_the_same():
    class Careless:
        group, kind, namespace, name = "", "Secret", "default", "s"

        def to_manifest(self) -> dict[str, Any]:
            return {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "CANARY"}, "stringData": {"b": "CANARY"}}

    document = answer("/api/v1/namespaces/default/secrets/s", {}, [(Careless(), 1, None)], "1", "")
    assert set(document.body["data"]) == {"a", "b"}
    assert "CANARY" not in str(document.body)


@pytest.mark.parametrize(
    "path",
    [
        "/apis/nope/v1/things",
        "/apis/gateway.networking.k8s.io/v9/gateways",
        "/apis/gateway.networking.k8s.io/v1/nope",
        "/api/v2",
        "/apis/nope",
        "/api/v1/namespaces/default/secrets/key/more",
        "/apis/gateway.networking.k8s.io/v1/gateways/egress",
        "/api/v1/namespaces/x/namespaces/agents",
    ],
)
def test_what_is_not_served_is_a_status_404(path: str):
    document = get(path)
    assert document.status == document.body["code"] == 404
    assert document.body["kind"] == "Status"
    assert document.body["reason"] == "NotFound"


def test_an_object_that_is_not_there_is_named():
    document = get("/apis/egressproxy.io/v1alpha1/namespaces/default/backends/x")
    assert document.status == 404
    assert document.body["message"] == 'backends.egressproxy.io "x" not found'
    assert document.body["details"]["name"] == "x"


def test_a_parameter_that_would_change_the_answer_is_refused_and_not_ignored():
    for query in ({"watch": "true"}, {"labelSelector": "a=b"}, {"fieldSelector": "metadata.name=x"}):
        assert get("/api/v1/secrets", **query).status == 400
    assert get("/api/v1/secrets", limit="500", timeout="32s").status == 200


def test_discovery_lists_groups_versions_and_resources():
    assert get("/api").body["versions"] == ["v1"]
    groups = {group["name"]: group for group in get("/apis").body["groups"]}
    assert groups["gateway.networking.k8s.io"]["preferredVersion"]["version"] == "v1"
    assert get("/apis/egressproxy.io").body["versions"] == [
        {"groupVersion": "egressproxy.io/v1alpha1", "version": "v1alpha1"}
    ]
    listed = get("/apis/gateway.networking.k8s.io/v1").body
    assert listed["kind"] == "APIResourceList"
    by_name = {resource["name"]: resource for resource in listed["resources"]}
    assert by_name["gatewayclasses"]["namespaced"] is False
    assert by_name["httproutes"] == {
        "name": "httproutes",
        "singularName": "httproute",
        "namespaced": True,
        "kind": "HTTPRoute",
        "verbs": ["get", "list"],
    }
    assert "secrets" in {resource["name"] for resource in get("/api/v1").body["resources"]}


def test_everything_is_one_list():
    body = everything(objects(), "3").body
    assert body["kind"] == "List"
    assert len(body["items"]) == 5
