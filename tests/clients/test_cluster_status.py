"""What gateways write into an API server's objects, beside what other controllers have written there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, X = "gateway.networking.k8s.io", "gateway.networking.x-k8s.io"
PROTOTYPE = "ainetworking.prototype.x-k8s.io"
OURS, OTHER = "egressproxy.io/gateway-controller", "example.com/other"
APPLY = "application/apply-patch+yaml"
WHEN = "2026-01-01T00:00:00Z"

ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT = {"type": "string"}
CONDITIONS = {
    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object", "required": ["type"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), TEXT),
            "observedGeneration": {"type": "integer"},
        },
    },
}  # fmt: skip


def a_list(kind: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "array", **kind, "items": {"type": "object", "properties": {"conditions": CONDITIONS, **fields}}}


ATOMIC = {"x-kubernetes-list-type": "atomic"}
BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
REFERENCE = {"type": "object", "properties": dict.fromkeys(("group", "kind", "namespace", "name", "sectionName"), TEXT)}


def of_references(name: str) -> dict[str, Any]:
    return a_list(ATOMIC, controllerName=TEXT, **{name: REFERENCE})


CONTROLLERS = a_list(BY_NAME, name=TEXT)
CONTROLLERS["items"]["required"] = ["name"]
LISTENERS = a_list(
    BY_NAME, name=TEXT, attachedRoutes={"type": "integer"}, supportedKinds={"type": "array", "items": ANY}
)
LISTENERS["items"]["required"] = ["name"]
FEATURES = {
    "type": "array", "maxItems": 64, **BY_NAME,
    "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
}  # fmt: skip
#: Of the kinds of others, as far as a gateway writes into them: version and fields of the status.
KINDS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    (GATEWAY, "GatewayClass"): ("v1", {"conditions": CONDITIONS, "supportedFeatures": FEATURES}),
    (GATEWAY, "Gateway"): (
        "v1",
        {
            "conditions": CONDITIONS, "listeners": LISTENERS, "attachedListenerSets": {"type": "integer"},
            "addresses": {"type": "array", **ATOMIC, "items": ANY},
        },
    ),
    (GATEWAY, "HTTPRoute"): ("v1", {"parents": of_references("parentRef")}),
    (X, "XBackend"): ("v1alpha1", {"ancestors": of_references("ancestorRef")}),
    (GATEWAY, "Backend"): ("v1alpha1", {"parents": of_references("parentRef")}),  # as XBackend had it before
    (PROTOTYPE, "Backend"): ("v0alpha0", {"controllers": CONTROLLERS}),
}  # fmt: skip


def plural(kind: str) -> str:
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def definition(group: str, kind: str, version: str, fields: dict[str, Any]) -> dict[str, Any]:
    served = {
        "name": version, "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {
                "type": "object", "properties": {"spec": ANY, "status": {"type": "object", "properties": fields}},
            }
        },
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group, "names": {"kind": kind, "plural": plural(kind)}, "versions": [served],
            "scope": "Cluster" if kind == "GatewayClass" else "Namespaced",
        },
    }  # fmt: skip


def path_of(group: str, kind: str, namespace: str = "team") -> str:
    place = "" if kind == "GatewayClass" else f"/namespaces/{namespace}"
    return f"/apis/{group}/{KINDS[group, kind][0]}{place}/{plural(kind)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_api_server(tmp_path_factory.mktemp("apiserver")) as made:
        for namespace in ("team", "other"):
            made.kubectl("create", "namespace", namespace)
        definitions = yaml.safe_dump_all([definition(*name, *what) for name, what in KINDS.items()])
        told = made.kubectl("create", "--validate=false", "-f", "-", text=definitions)
        told += made.kubectl("create", "--validate=false", "-f", str(ROOT / "deploy/crds"))
        assert "error" not in told.lower(), told
        paths = [path_of(*name) for name in KINDS]
        wait_until(lambda: all(made.request("GET", path)[0] == 200 for path in paths), "a kind is not served")
        yield made


def put(server: RealApiServer, value: dict[str, Any], namespace: str = "team") -> str:
    """Apply an object as its owner; returns its path."""
    metadata = {name: text for name, text in value["metadata"].items() if name != "namespace"}
    value = {**value, "metadata": metadata}
    group = value["apiVersion"].rpartition("/")[0]
    path = f"{path_of(group, value['kind'], namespace)}/{value['metadata']['name']}"
    status, told = server.request("PATCH", f"{path}?fieldManager=owner&force=true", value, APPLY)
    assert status in (200, 201), told
    return path


def conditions_of(entry: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in entry.get("conditions", ())}


class Sourced(GatewayProcess):
    """A gateway whose configuration is the API server's."""

    def __init__(self, folder: Path, server: RealApiServer, *arguments: str, namespace: str = "team") -> None:
        folder.mkdir(exist_ok=True)
        options = ("--source", "kubernetes", "--kubeconfig", str(server.kubeconfig), *arguments)
        super().__init__(folder, None, arguments=options, environment={"POD_NAMESPACE": namespace})


def backend(group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{group}/{KINDS[group, kind][0]}", "kind": kind, "metadata": {"name": "b"}, "spec": spec}


def test_backends_have_our_entry_beside_those_of_others(server: RealApiServer, tmp_path: Path):
    destination = {"type": "Fqdn", "fqdn": {"hostname": "a.example"}, "ports": [{"number": 443, "protocol": "HTTP"}]}
    external = {
        "type": "ExternalHostname", "externalHostname": {"hostname": "a.example"}, "port": {"number": 443},
        "tls": {
            "mode": "ServerOnly", "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"},
        },
    }  # fmt: skip
    forms = [
        (backend(X, "XBackend", external), "ancestors", "controllerName"),
        (backend(PROTOTYPE, "Backend", {"destination": destination}), "controllers", "name"),
        (backend(GATEWAY, "Backend", external), "parents", "controllerName"),
    ]
    put(server, m.gateway(m.forward_listener(free_port())))
    said = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "yes", "lastTransitionTime": WHEN}
    paths = []
    for value, section, owner in forms:
        path = put(server, value)
        paths.append((path, section, owner))
        reference = {"ancestors": "ancestorRef", "parents": "parentRef"}.get(section)
        entry = {owner: OTHER, "conditions": [said], **({reference: {"name": "gw"}} if reference else {})}
        written = {**{name: value[name] for name in ("apiVersion", "kind", "metadata")}, "status": {section: [entry]}}
        status, told = server.request("PATCH", f"{path}/status?fieldManager=other", written, APPLY)
        assert status == 200, str(told)
        group, kind = value["apiVersion"].rpartition("/")[0], value["kind"]
        ref = {"group": group, "kind": kind, "name": "b"}
        put(server, m.http_route(section, {"backendRefs": [ref]}, hostnames=[f"{section}.test"]))

    def entries(path: str, section: str, owner: str) -> dict[str, dict[str, Any]]:
        found = server.request("GET", path)[1].get("status", {}).get(section, ())
        return {each[owner]: each for each in found}

    with Sourced(tmp_path / "one", server):
        for path, section, owner in paths:
            wait_until(lambda: OURS in entries(path, section, owner), f"no entry of ours in {path}")  # noqa: B023
            found = entries(path, section, owner)
            assert conditions_of(found[OURS]) == {
                "Accepted": ("True", "Accepted"),
                "ResolvedRefs": ("True", "ResolvedRefs"),
            }
            assert conditions_of(found[OTHER]) == {"Accepted": ("True", "Accepted")}
            assert found[OTHER]["conditions"][0]["lastTransitionTime"] == WHEN
        # What another controller takes away of its own goes, and ours stays.
        path, section, owner = paths[1]
        gone = {**{name: forms[1][0][name] for name in ("apiVersion", "kind", "metadata")}, "status": {section: []}}
        assert server.request("PATCH", f"{path}/status?fieldManager=other", gone, APPLY)[0] == 200
        assert entries(path, section, owner).keys() == {OURS}
        # Without a route the Gateway is no ancestor any more.
        server.request("DELETE", f"{path_of(GATEWAY, 'HTTPRoute')}/ancestors")
        path, section, owner = paths[0]
        wait_until(lambda: entries(path, section, owner).keys() == {OTHER}, "our entry is still there")
