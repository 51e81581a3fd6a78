"""The Kubernetes-shaped API as functions."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.config.reading.load import load_text
from egressproxy.kubeapi.list_options import Form, Options, resource
from egressproxy.kubeapi.read import documents
from egressproxy.kubeapi.read.objects import View
from egressproxy.model.published_object import PublishedObject
from tests.admin.kit import entry, view_of

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
metadata: {name: b, namespace: agents, labels: {team: x}}
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
ROUTES = "/apis/gateway.networking.k8s.io/v1/httproutes"


@pytest.fixture
async def view() -> View:
    resources = load_text(MANIFESTS).objects
    return await view_of(entry(each, STATUS if each.kind == "HTTPRoute" else None, 4) for each in resources)


def ask(view: View, path: str, form: Form = Form.PLAIN, **query: str) -> dict[str, Any]:
    asked = resource(path)
    assert asked is not None
    make = documents.get if asked.name else documents.listing
    made: dict[str, Any] = json.loads(make(asked, Options.of(query, asked.kind), form, view))
    return made


def names(body: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_a_list_over_all_namespaces_has_kind_version_and_items(view: View):
    body = ask(view, ROUTES)
    assert body["kind"] == "HTTPRouteList"
    assert body["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert body["metadata"] == {"resourceVersion": str(view.version)}
    assert names(body) == ["b", "a"]
    assert {item["apiVersion"] for item in body["items"]} == {"gateway.networking.k8s.io/v1"}


async def test_a_list_of_one_namespace_has_only_its_objects(view: View):
    assert names(ask(view, "/apis/gateway.networking.k8s.io/v1/namespaces/other/httproutes")) == ["a"]
    assert names(ask(view, "/apis/gateway.networking.k8s.io/v1/namespaces/empty/httproutes")) == []


async def test_one_object_carries_generation_version_uid_and_status(view: View):
    body = ask(view, "/apis/gateway.networking.k8s.io/v1/namespaces/agents/httproutes/b")
    metadata = body["metadata"]
    assert metadata["generation"] == 4
    assert metadata["namespace"] == "agents"
    assert 100 < int(metadata["resourceVersion"]) <= view.version
    assert len(metadata["uid"]) == 36
    assert body["status"] == STATUS
    assert "status" not in ask(view, "/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways/egress")


async def test_a_cluster_scoped_object_is_asked_for_without_a_namespace(view: View):
    assert ask(view, "/api/v1/namespaces/agents")["kind"] == "Namespace"


async def test_namespaces_that_nobody_wrote_down_are_listed_with_the_others(view: View):
    assert names(ask(view, "/api/v1/namespaces")) == ["agents", "default", "other"]
    for name in ("agents", "other"):  # written down or not
        body = ask(view, f"/api/v1/namespaces/{name}")
        assert body["metadata"]["labels"] == {"kubernetes.io/metadata.name": name}
        assert body["status"] == {"phase": "Active"}


async def test_a_secret_is_answered_with_its_data_redacted(view: View):
    body = ask(view, "/api/v1/namespaces/default/secrets/key")
    assert set(body["data"]) == {"token", "other"}
    assert {base64.b64decode(value) for value in body["data"].values()} == {b"redacted"}
    assert body["metadata"]["annotations"] == {"kapp.k14s.io/original": "redacted", "team": "redacted"}
    for shown in (
        body,
        json.loads(documents.everything(view)),
        ask(view, "/api/v1/secrets"),
        ask(view, "/api/v1/secrets", Form.TABLE),
    ):
        assert "CANARY" not in str(shown)
        assert "Q0FOQVJZ" not in str(shown)


async def test_a_secret_that_does_not_redact_itself_is_redacted_all_the_same():
    manifest = b'{"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "CANARY"}, "stringData": {"b": "CANARY"}}'
    view = await view_of([PublishedObject("", "Secret", "default", "s", manifest, 1, None)])
    body = ask(view, "/api/v1/namespaces/default/secrets/s")
    assert set(body["data"]) == {"a", "b"}
    assert "CANARY" not in str(body)


async def test_an_object_that_is_not_there_is_named(view: View):
    with pytest.raises(ApiError) as caught:
        ask(view, "/apis/egressproxy.io/v1alpha1/namespaces/default/backends/x")
    body = caught.value.body
    assert (caught.value.code, body["code"], body["reason"], body["kind"]) == (404, 404, "NotFound", "Status")
    assert body["message"] == 'backends.egressproxy.io "x" not found'
    assert body["details"] == {"name": "x", "group": "egressproxy.io", "kind": "backends"}


async def test_selectors_choose_from_a_list(view: View):
    assert names(ask(view, ROUTES, labelSelector="team=x")) == ["b"]
    assert names(ask(view, ROUTES, fieldSelector="metadata.namespace=other")) == ["a"]
    assert names(ask(view, ROUTES, labelSelector="!team", fieldSelector="metadata.name=b")) == []


async def test_a_list_comes_in_pieces(view: View):
    first = ask(view, ROUTES, limit="1")
    assert names(first) == ["b"]
    assert first["metadata"]["remainingItemCount"] == 1
    second = ask(view, ROUTES, limit="1", **{"continue": first["metadata"]["continue"]})
    assert names(second) == ["a"]
    assert "continue" not in second["metadata"]


async def test_a_list_that_goes_on_after_a_change_is_410(view: View):
    token = ask(view, ROUTES, limit="1")["metadata"]["continue"]
    later = View(view.version + 1, view.parts)
    with pytest.raises(ApiError) as caught:
        ask(later, ROUTES, limit="1", **{"continue": token})
    assert (caught.value.code, caught.value.body["reason"]) == (410, "Expired")


async def test_a_version_to_come_is_504_with_when_to_ask_again(view: View):
    with pytest.raises(ApiError) as caught:
        ask(view, ROUTES, resourceVersion=str(view.version + 1))
    assert (caught.value.code, caught.value.retry_after_s) == (504, 1)
    assert ask(view, ROUTES, resourceVersion="1")["items"]
    with pytest.raises(ApiError):
        ask(view, ROUTES, resourceVersion="1", resourceVersionMatch="Exact")


async def test_a_table_has_columns_and_a_row_for_each_object(view: View):
    body = ask(view, ROUTES, Form.TABLE)
    assert (body["kind"], body["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(column["name"], column["priority"]) for column in body["columnDefinitions"]]
    assert columns[:4] == [("Name", 0), ("Hostnames", 0), ("Parents", 0), ("Accepted", 0)]
    assert ("Backends", 1) in columns
    assert [row["cells"][:4] for row in body["rows"]] == [["b", "", "egress", "True"], ["a", "", "egress", "True"]]
    assert body["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert "object" not in ask(view, ROUTES, Form.TABLE, includeObject="None")["rows"][0]
    assert ask(view, ROUTES, Form.TABLE, includeObject="Object")["rows"][0]["object"]["spec"]


async def test_metadata_alone_can_be_had(view: View):
    body = ask(view, ROUTES, Form.METADATA)
    assert body["kind"] == "PartialObjectMetadataList"
    assert set(body["items"][0]) == {"kind", "apiVersion", "metadata"}


async def test_everything_is_one_list(view: View):
    body = json.loads(documents.everything(view))
    assert body["kind"] == "List"
    assert len(body["items"]) == 7
