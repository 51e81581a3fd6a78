"""Our CustomResourceDefinitions on a real API server, as an operator sees them with kubectl.

The server may be older than CEL: rules between fields are tried in tests/kubeapi/test_crds.py. One of Kubernetes 1.20
that a Go newer than 1.17 has compiled takes empty text for null; objects that have some are left out here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.config.resources.meta import without_nulls
from egressproxy.kubeapi.crds import OUR_KINDS, crd
from tests.kubeapi.crd_server import admitted
from tests.kubeapi.test_crds import manifests, read
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import wait_until

GROUP = "/apis/egressproxy.io/v1alpha1"
APPLY = "application/apply-patch+yaml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_api_server(tmp_path_factory.mktemp("apiserver")) as made:
        definitions = yaml.safe_dump_all(map(crd, OUR_KINDS))
        told = made.kubectl("create", "--validate=false", "-f", "-", text=definitions)
        assert told.count(" created") == len(OUR_KINDS), told
        wait_until(lambda: made.kubectl("get", "--raw", GROUP).count('"shortNames"') == len(OUR_KINDS))
        paths = [f"{GROUP}/{kind.plural}" for kind in OUR_KINDS]  # a definition is told before it is served
        wait_until(lambda: all(made.request("GET", path)[0] == 200 for path in paths))
        yield made


def path_of(manifest: dict[str, Any]) -> str:
    (kind,) = (each for each in OUR_KINDS if each.kind == manifest["kind"])
    return f"{GROUP}/{'namespaces/default/' if kind.is_namespaced else ''}{kind.plural}"


def has_empty(value: Any) -> bool:
    """Whether empty text stands anywhere."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value == "" or any(map(has_empty, inner))


def test_the_schemas_are_structural(server: RealApiServer):
    for kind in OUR_KINDS:
        _, found = server.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.resource}")
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_what_files_may_say_is_taken_and_stored_as_it_is_meant(server: RealApiServer):
    """Created, and applied by server-side apply; the answer is what `admitted` makes of it, so that it can stand in."""
    tried = 0
    for number, given in enumerate(each for each in manifests() if read(each) is not None and not has_empty(each)):
        manifest = {**given, "metadata": {"name": f"x-{number}"}}
        path = path_of(manifest)
        status, stored = server.request("POST", path, manifest)
        assert status == 201, (stored, manifest)
        assert read(stored) is not None
        assert stored["spec"] == admitted(manifest)["spec"]
        status, applied = server.request(
            "PATCH",
            f"{path}/y-{number}?fieldManager=test",
            without_nulls({**manifest, "metadata": {"name": f"y-{number}"}}),
            APPLY,
        )
        assert status == 201, (applied, manifest)
        tried += 1
    assert tried > 100


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("Backend", {"destination": {"type": "Fqdn", "fqdn": {"hostname": "a b"}}}, "spec.destination.fqdn.hostname"),
        ("Backend", {"destination": {"type": "Fqdn", "fqdn": {"port": 70000}}}, "spec.destination.fqdn.port"),
        ("Backend", {}, "spec.destination"),
        ("EgressPolicy", {"targetRefs": [], "mode": "Ajar"}, "spec.mode"),
        ("EgressPolicy", {"targetRefs": [], "limits": {"maxFields": "5"}}, "spec.limits.maxFields"),
        ("EgressPolicy", {"targetRefs": [], "dns": {"timeout": "5 s"}}, "spec.dns.timeout"),
        ("FilterType", {"type": "a.example/B:v1", "phases": ["never"]}, "spec.phases"),
        (
            "PayloadProcessingPipeline",
            {"processors": [{"name": "x", "type": "a.example/B:v1"}, {"name": "x", "type": "a.example/C:v1"}]},
            "spec.processors[1]",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_with_its_field(server: RealApiServer, kind: str, spec: dict[str, Any], field: str):
    manifest = {"apiVersion": "egressproxy.io/v1alpha1", "kind": kind, "metadata": {"name": "bad"}, "spec": spec}
    status, refused = server.request("POST", path_of(manifest), manifest)
    assert status == 422
    assert field in refused["message"]
    assert read(manifest) is None


def test_null_that_would_lift_a_restriction_reaches_the_gateway_which_refuses_it(server: RealApiServer):
    spec = {"targetRefs": [], "destinations": {"deny": None}, "tls": None}
    manifest = {
        "apiVersion": "egressproxy.io/v1alpha1",
        "kind": "EgressPolicy",
        "metadata": {"name": "null"},
        "spec": spec,
    }
    status, stored = server.request("POST", path_of(manifest), manifest)
    assert status == 201
    assert stored["spec"] == {"targetRefs": [], "destinations": {"deny": None}}
    assert read(stored) is None


BACKEND = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: shown}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: api.example.com}
    ports: [{number: 8443}]
"""


def test_kubectl_prints_the_columns_and_explains_the_fields(server: RealApiServer):
    server.kubectl("create", "-f", "-", text=BACKEND)
    heads, row = server.kubectl("get", "egb", "shown", "-o", "wide").splitlines()
    expected = ["NAME", "TYPE", "DESTINATION", "ACCEPTED", "RESOLVEDREFS", "DEGRADED", "AGE", "PORTS"]
    assert heads.split() == expected
    assert row.split()[:3] == ["shown", "Fqdn", "api.example.com"]
    assert "backend.egressproxy.io/shown" in server.kubectl("get", "egressproxy", "-o", "name")
    field = "backends.egressproxy.io.spec.destination.ports"
    wait_until(lambda: "error: " not in server.kubectl("explain", field), "the schema is not published")
    explained = " ".join(server.kubectl("explain", field).split())
    assert "Ports that a reference may name, each once." in explained
    assert "TLS settings of this port." in explained


def test_status_is_a_subresource_with_conditions_by_type(server: RealApiServer):
    server.kubectl("create", "-f", "-", text=BACKEND.replace("shown", "told"))
    path = f"{GROUP}/namespaces/default/backends/told"

    def condition(kind: str, status: str) -> dict[str, Any]:
        time = "2026-01-01T00:00:00Z"
        return {"type": kind, "status": status, "reason": "Because", "message": "Why.", "lastTransitionTime": time}

    def write(manager: str, *conditions: dict[str, Any]) -> tuple[int, Any]:
        body = {
            "apiVersion": "egressproxy.io/v1alpha1", "kind": "Backend", "metadata": {"name": "told"},
            "spec": {"destination": {"type": "Dynamic"}}, "status": {"conditions": conditions},
        }  # fmt: skip
        return server.request("PATCH", f"{path}/status?fieldManager={manager}&force=true", body, APPLY)

    assert write("one", condition("Accepted", "True"))[0] == 200
    assert write("two", condition("Checked", "True"))[0] == 200
    status, found = write("one", condition("Accepted", "False"))
    assert status == 200
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]} == {
        "Accepted": "False", "Checked": "True",
    }  # fmt: skip
    assert found["spec"]["destination"]["type"] == "Fqdn"
    assert found["metadata"]["generation"] == 1
    assert server.kubectl("get", "egb", "told").splitlines()[1].split()[3] == "False"
    assert write("one", {"type": "Accepted", "status": "Maybe"})[0] == 422
    assert json.dumps(server.request("GET", path)[1]["status"]).count("Accepted") == 1


def test_two_owners_of_one_policy_each_have_their_extensions(server: RealApiServer, tmp_path: Path):
    path = f"{GROUP}/namespaces/default/egresspolicies/shared"

    def apply(manager: str, name: str, **more: Any) -> tuple[int, Any]:
        extension = {"name": name, "type": "egressproxy.io/Audit:v1"}
        body = {
            "apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "shared"},
            "spec": {"targetRefs": [], "extensions": [extension], **more},
        }  # fmt: skip
        return server.request("PATCH", f"{path}?fieldManager={manager}", body, APPLY)

    assert apply("one", "a")[0] == 201
    status, found = apply("two", "b")
    assert status == 200
    assert [each["name"] for each in found["spec"]["extensions"]] == ["a", "b"]
    assert apply("one", "a", mode="Report")[0] == 200
    assert apply("two", "b", mode="Open")[0] == 409
