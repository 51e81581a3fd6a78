from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from egressproxy.admin import openapi
from egressproxy.admin.status import ApiError
from egressproxy.config.schema import json_schema


@pytest.fixture(scope="module")
def schema() -> bytes:
    return json.dumps(json_schema()).encode()


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_document_that_is_listed_is_whole(schema: bytes):
    paths = openapi.paths_v3()["paths"]
    assert paths["apis/gateway.networking.k8s.io/v1"] == {
        "serverRelativeURL": "/openapi/v3/apis/gateway.networking.k8s.io/v1"
    }
    for path in paths:
        document = openapi.document_v3(path, schema, "1", False)
        schemas = document["components"]["schemas"]
        assert {each.removeprefix("#/components/schemas/") for each in references(document)} <= schemas.keys()


def test_a_kind_can_be_explained(schema: bytes):
    document = openapi.document_v3("apis/gateway.networking.k8s.io/v1", schema, "1", False)
    schemas = document["components"]["schemas"]
    gateway = schemas["io.k8s.networking.gateway.v1.Gateway"]
    assert gateway["x-kubernetes-group-version-kind"] == [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "version": "v1"}
    ]
    assert set(gateway["properties"]) == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert not any("null" in str(part.get("type")) for part in schemas.values())


def test_what_a_field_says_is_not_said_again_by_its_type(schema: bytes):
    schemas = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, "1", False)["components"]["schemas"]
    (policy,) = (part for name, part in schemas.items() if name.endswith(".EgressPolicy"))
    spec = policy["properties"]["spec"]
    assert "Every section is optional" in spec["description"]
    assert "description" not in schemas[spec["allOf"][0]["$ref"].removeprefix("#/components/schemas/")]


def test_a_document_that_is_not_there_is_404(schema: bytes):
    with pytest.raises(ApiError) as caught:
        openapi.document_v3("apis/nope/v1", schema, "1", False)
    assert caught.value.code == 404


def test_v2_has_all_kinds_in_one(schema: bytes):
    document = openapi.document_v2(schema, "1", False)
    assert document["swagger"] == "2.0"
    assert {each.removeprefix("#/definitions/") for each in references(document)} <= document["definitions"].keys()
    assert "io.egressproxy.v1alpha1.EgressPolicy" in document["definitions"]


def test_who_may_write_is_told_who_validates(schema: bytes):
    path = "/apis/egressproxy.io/v1alpha1/namespaces/{namespace}/backends/{name}"
    read_only = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, "1", False)["paths"][path]
    assert set(read_only) == {"get"}
    patch = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, "1", True)["paths"][path]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}


def test_old_clients_that_check_manifests_themselves_find_every_field(schema: bytes):
    definitions = openapi.document_v2(schema, "1", True)["definitions"]
    metadata = definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert {"managedFields", "ownerReferences", "finalizers", "generateName"} <= metadata.keys()
    service = definitions["io.k8s.api.core.v1.Service"]["properties"]
    assert service["spec"]["$ref"] in {f"#/definitions/{name}" for name in definitions}
    assert "properties" not in definitions[service["spec"]["$ref"].removeprefix("#/definitions/")]
    assert "spec" in definitions["io.k8s.api.core.v1.Namespace"]["properties"]
