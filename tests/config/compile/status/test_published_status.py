"""The status of backends in the form that each published type has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.config.compile.interface import CONTROLLER
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.processes.loader.answer import handed_over
from egressproxy.processes.loader.result import shown
from tests.config.compile.kit import REVERSE, compiled

TLS = "tls: {mode: ServerOnly, validation: {hostname: a.example, wellKnownCACertificates: System}}"
X_SHAPE = f"spec: {{type: ExternalHostname, externalHostname: {{hostname: a.example}}, port: {{number: 443}}, {TLS}}}"
DESTINATION = (
    "spec: {destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}}"
)
OURS, GATEWAY = "egressproxy.io/v1alpha1", "gateway.networking.k8s.io/v1alpha1"
X, PROTOTYPE = "gateway.networking.x-k8s.io/v1alpha1", "ainetworking.prototype.x-k8s.io/v0alpha0"
#: API version, kind and spec of each backend, and the lists in its status, "" for conditions of its own.
FORMS = [
    (X, "XBackend", X_SHAPE, "ancestors"),
    (GATEWAY, "Backend", X_SHAPE, "ancestors"),
    (GATEWAY, "Backend", DESTINATION, "controllers"),
    (GATEWAY, "XBackendDestination", DESTINATION, "controllers"),
    (PROTOTYPE, "Backend", DESTINATION, "controllers"),
    (PROTOTYPE, "XBackendDestination", DESTINATION, "controllers"),
    (OURS, "Backend", DESTINATION, ""),
]


def texts(version: str, kind: str, spec: str, *gateways: str) -> tuple[str, ...]:
    """A backend, and a route to it at each of these Gateways."""
    backend = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: b}}\n{spec}\n"
    ref = f"{{group: {version.partition('/')[0]}, kind: {kind}, name: b}}"
    route = f"""
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route}}
spec: {{parentRefs: [{", ".join(f"{{name: {name}}}" for name in gateways)}], rules: [{{backendRefs: [{ref}]}}]}}
"""
    made = [REVERSE.replace("name: gw", f"name: {name}").replace("8080", f"808{n}") for n, name in enumerate(gateways)]
    return (*made, backend, *((route,) if gateways else ()))


def status_of(*manifests: str) -> dict[str, Any]:
    """What the API shows of the backend."""
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    loaded = handed_over(resources, compiled(*manifests), None)
    (found,) = (each for each in loaded_objects(loaded.shown) if each["name"] == "b")
    status: dict[str, Any] = found["status"]
    return status


def loaded_objects(packed: bytes) -> list[dict[str, Any]]:
    return [{"name": each.name, "status": json.loads(each.status or b"{}")} for each in shown(packed)]


@pytest.mark.parametrize(("version", "kind", "spec", "section"), FORMS)
def test_each_backend_has_the_status_of_its_published_type(version: str, kind: str, spec: str, section: str):
    status = status_of(*texts(version, kind, spec, "one", "two"))
    entries = status[section] if section else [status]
    assert list(status) == [section or "conditions"]
    assert len(entries) == (2 if section == "ancestors" else 1)
    for entry in entries:
        assert {each["type"]: each["status"] for each in entry["conditions"]} == {
            "Accepted": "True", "ResolvedRefs": "True",
        }  # fmt: skip
        assert all(each["lastTransitionTime"] and each["observedGeneration"] == 1 for each in entry["conditions"])
    if section == "controllers":
        assert [entry["name"] for entry in entries] == [CONTROLLER]
    if section == "ancestors":
        assert [(entry["controllerName"], entry["ancestorRef"]) for entry in entries] == [
            (
                CONTROLLER,
                {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "default", "name": name},
            )
            for name in ("one", "two")
        ]


def test_a_backend_that_no_gateway_uses_has_no_ancestor_and_what_is_wrong_with_it_is_told():
    assert status_of(*texts(X, "XBackend", X_SHAPE)) == {"ancestors": []}
    assert status_of(*texts(GATEWAY, "Backend", DESTINATION))["controllers"]  # it names no Gateway
    broken = X_SHAPE.replace("wellKnownCACertificates: System", "caCertificateRefs: [{kind: ConfigMap, name: none}]")
    manifests = texts(X, "XBackend", broken.replace("name: none", 'name: none, group: ""'))
    found = all_warnings(load_text("\n---\n".join(manifests), "config.yaml"), compiled(*manifests))
    assert any(each.object == "XBackend default/b" and "none" in each.message for each in found), found


def test_what_is_wrong_with_a_backend_of_two_gateways_is_told_once():
    broken = X_SHAPE.replace(
        "wellKnownCACertificates: System", 'caCertificateRefs: [{group: "", kind: ConfigMap, name: none}]'
    )
    manifests = texts(X, "XBackend", broken, "one", "two")
    found = all_warnings(load_text("\n---\n".join(manifests), "config.yaml"), compiled(*manifests))
    assert len([each for each in found if each.object == "XBackend default/b"]) == 1
    assert [each["status"] for each in status_of(*manifests)["ancestors"][1]["conditions"]] == ["True", "False"]
