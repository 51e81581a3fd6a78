from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.config.compile.status.supported_features import UNSERVED
from egressproxy.config.schema import json_schema
from egressproxy.config.served_kinds import CONFIGURED, ServedKind
from egressproxy.kubeapi import openapi


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
        document = openapi.document_v3(path, schema, False)
        schemas = document["components"]["schemas"]
        assert {each.removeprefix("#/components/schemas/") for each in references(document)} <= schemas.keys()


def test_a_kind_can_be_explained(schema: bytes):
    document = openapi.document_v3("apis/gateway.networking.k8s.io/v1", schema, False)
    schemas = document["components"]["schemas"]
    gateway = schemas["io.k8s.networking.gateway.v1.Gateway"]
    assert gateway["x-kubernetes-group-version-kind"] == [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "version": "v1"}
    ]
    assert set(gateway["properties"]) == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert not any("null" in str(part.get("type")) for part in schemas.values())


def undescribed(schemas: dict[str, Any], base: str, root: str) -> set[str]:
    """The properties below a part that have no description, as `Part.property`."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [root]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        for field, shape in schemas[name].get("properties", {}).items():
            if not re.sub(r"Support: [^.]*\.$", "", shape.get("description", "")).strip():
                found.add(f"{name.rpartition('.')[2]}.{field}")
            left += [each.removeprefix(base) for each in references(shape)]
    return found


@pytest.mark.parametrize("kind", CONFIGURED, ids=lambda kind: f"{kind.kind}.{kind.group}")
def test_every_property_has_a_description(schema: bytes, kind: ServedKind):
    if not kind.group or kind.group == "discovery.k8s.io":
        return  # Kubernetes' own kinds are described by Kubernetes
    version = kind.versions[0]
    root = f"{'.'.join(reversed(kind.group.split('.')))}.{version}.{kind.kind}"
    v3 = openapi.document_v3(f"apis/{kind.group}/{version}", schema, False)["components"]["schemas"]
    assert undescribed(v3, "#/components/schemas/", root) == set()
    v2 = openapi.document_v2(schema, False)["definitions"]
    assert undescribed(v2, "#/definitions/", root) == set()


def test_what_is_not_served_is_published_with_what_happens_instead(schema: bytes):
    schemas = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, False)["components"]["schemas"]
    by_name = {name.rpartition(".")[2]: part for name, part in schemas.items()}
    for place, instead in UNSERVED.items():
        model, _, name = place.partition(".")
        field = by_name[model]["properties"][name]
        assert f"Not supported yet: {instead}." in field["description"], place
        assert field["x-egressproxy-support"] == {"level": "implementation-specific", "served": "no"}
    served = by_name["Traffic"]["properties"]["retries"]
    assert "Not supported" not in served["description"]


def test_the_level_of_a_field_of_gateway_api_is_published(schema: bytes):
    schemas = openapi.document_v3("apis/gateway.networking.k8s.io/v1", schema, False)["components"]["schemas"]
    by_name = {name.rpartition(".")[2]: part["properties"] for name, part in schemas.items() if "properties" in part}
    key = "x-egressproxy-support"
    retries = by_name["Retry"]["attempts"]
    assert retries["description"].endswith("Support: extended.")
    assert retries[key] == {"level": "extended", "served": "yes", "since": "0.1.0"}
    assert by_name["HttpRule"]["retry"][key]["level"] == "extended"
    assert by_name["HttpRule"]["backendRefs"][key]["level"] == "core"
    assert by_name["HttpFilter"]["urlRewrite"][key]["level"] == "extended"
    assert key not in by_name["HTTPRoute"]["spec"]
    said = {"level": "implementation-specific", "served": "yes", "since": "0.1.0"}
    assert by_name["HttpFilter"]["extensionRef"][key] == said
    assert by_name["GatewaySpec"]["infrastructure"][key] == {"level": "extended", "served": "no"}
    assert by_name["GatewaySpec"]["addresses"][key]["served"] == "partly"


def test_what_a_field_says_is_not_said_again_by_its_type(schema: bytes):
    schemas = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, False)["components"]["schemas"]
    (policy,) = (part for name, part in schemas.items() if name.endswith(".EgressPolicy"))
    spec = policy["properties"]["spec"]
    assert "Every section is optional" in spec["description"]
    assert "description" not in schemas[spec["allOf"][0]["$ref"].removeprefix("#/components/schemas/")]


def test_a_document_that_is_not_there_is_404(schema: bytes):
    with pytest.raises(ApiError) as caught:
        openapi.document_v3("apis/nope/v1", schema, False)
    assert caught.value.code == 404


def test_v2_has_all_kinds_in_one(schema: bytes):
    document = openapi.document_v2(schema, False)
    assert document["swagger"] == "2.0"
    assert {each.removeprefix("#/definitions/") for each in references(document)} <= document["definitions"].keys()
    assert "io.egressproxy.v1alpha1.EgressPolicy" in document["definitions"]


def test_who_may_write_is_told_who_validates(schema: bytes):
    path = "/apis/egressproxy.io/v1alpha1/namespaces/{namespace}/backends/{name}"
    read_only = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, False)["paths"][path]
    assert set(read_only) == {"get"}
    patch = openapi.document_v3("apis/egressproxy.io/v1alpha1", schema, True)["paths"][path]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}


def test_old_clients_that_check_manifests_themselves_find_every_field(schema: bytes):
    definitions = openapi.document_v2(schema, True)["definitions"]
    metadata = definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert {"managedFields", "ownerReferences", "finalizers", "generateName"} <= metadata.keys()
    service = definitions["io.k8s.api.core.v1.Service"]["properties"]
    assert service["spec"]["$ref"] in {f"#/definitions/{name}" for name in definitions}
    assert "properties" not in definitions[service["spec"]["$ref"].removeprefix("#/definitions/")]
    assert "spec" in definitions["io.k8s.api.core.v1.Namespace"]["properties"]
