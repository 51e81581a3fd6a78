"""Routes with a Service as parent (GAMMA): nothing here serves them, and it is said."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Problem, Severity
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{name: http, port: 80}]}
"""
MESH = ROUTE.replace("parentRefs: [{name: gw}]", "parentRefs: [{group: '', kind: Service, name: web, port: 80}]")
BOTH = ROUTE.replace("parentRefs: [{name: gw}]", "parentRefs: [{name: gw}, {group: '', kind: Service, name: web}]")


def found_problems(*manifests: str) -> list[Problem]:
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    return [each for each in all_warnings(resources, compiled(*manifests)) if each.object.startswith("HTTPRoute")]


@pytest.mark.parametrize("service", [SERVICE, "", SERVICE.replace("name: web", "name: other", 1)])
def test_a_route_for_a_mesh_alone_is_not_served_and_says_so(service: str):
    manifests = (REVERSE, PLAIN, MESH, *filter(None, [service]))
    made = compiled(*manifests)
    ((listener),) = made.spec.listeners
    assert not listener.http_routes
    (parent,) = made.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    assert parent["parentRef"]["kind"] == "Service"
    (condition,) = parent["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Accepted", "False", "UnsupportedValue")
    (found,) = found_problems(*manifests)
    assert found.severity is Severity.UNSERVED
    assert found.field_path == "spec.parentRefs[0]"
    assert "is for a mesh, and is not served here" in found.message


def test_a_route_of_a_gateway_and_a_mesh_is_served_by_the_gateway_and_the_rest_is_noted():
    made = compiled(REVERSE, PLAIN, SERVICE, BOTH)
    assert made.spec.listeners[0].http_routes
    parents = made.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    assert [parent["parentRef"]["kind"] for parent in parents] == ["Gateway"]
    (found,) = found_problems(REVERSE, PLAIN, SERVICE, BOTH)
    assert (found.severity, found.field_path) == (Severity.NOTE, "spec.parentRefs[1]")
