from __future__ import annotations

from ipaddress import ip_address

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Severity
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.backend import BackendIR, EndpointAddress, Protocol
from tests.config.compile.kit import REVERSE, compiled, of_route, rule
from tests.support.compiling import compile_valid

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: svc, port: 80}]}]
"""

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {ports: [{name: web, port: 80, targetPort: 8080}, {name: other, port: 81}]}
"""

SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-1, labels: {kubernetes.io/service-name: svc}}
addressType: IPv4
endpoints:
- {addresses: [10.0.0.2]}
- {addresses: [10.0.0.1], conditions: {ready: true}}
- {addresses: [10.0.0.3], conditions: {ready: false}}
ports: [{name: web, port: 8080}, {name: other, port: 9090}]
"""


def service_of(made: Compiled) -> BackendIR:
    found = rule(made).backends[0]
    assert found.backend is not None, found.error
    return found.backend


def test_ready_endpoints_serve_with_the_port_of_their_slice():
    found = service_of(compiled(REVERSE, ROUTE, SERVICE, SLICE))
    assert found.endpoints == (
        EndpointAddress(ip_address("10.0.0.1"), 8080),
        EndpointAddress(ip_address("10.0.0.2"), 8080),
    )


def test_zones_and_hints_of_endpoints_are_kept():
    zoned = SLICE.replace("[10.0.0.2]}", "[10.0.0.2], zone: b, hints: {forZones: [{name: b}, {name: a}]}}")
    found = service_of(compiled(REVERSE, ROUTE, SERVICE, zoned)).endpoints
    assert [(each.zone, each.for_zones) for each in found] == [("", ()), ("b", ("a", "b"))]


def test_the_port_is_found_by_its_name():
    made = compiled(REVERSE, ROUTE.replace("port: 80", "port: 81"), SERVICE, SLICE)
    assert {endpoint.port for endpoint in service_of(made).endpoints} == {9090}


def test_a_service_without_endpoints_is_a_valid_reference():
    made = compiled(REVERSE, ROUTE, SERVICE)
    assert service_of(made).endpoints == ()
    assert of_route(made, "ResolvedRefs")[0] == "True"


def test_a_service_that_no_slice_belongs_to_is_warned_of_once_and_one_with_an_empty_slice_is_not():
    def warned(*manifests: str) -> list[tuple[Severity, str, str, str]]:
        resources = load_text("\n---\n".join(manifests), "config.yaml")
        found = all_warnings(resources, compile_valid(resources, Catalog(), Defaults()))
        return [(each.severity, each.code, each.object, each.remedy) for each in found if each.code != "Insecure"]

    second = ROUTE.replace("{name: route}", "{name: second}")
    remedy = "add one in this namespace with the label kubernetes.io/service-name: svc"
    assert warned(REVERSE, ROUTE, second, SERVICE) == [
        (Severity.WARNING, "NoEndpointSlice", "Service default/svc", remedy)
    ]
    none_ready = SLICE[: SLICE.index("endpoints:")] + "endpoints: []\nports: [{name: web, port: 8080}]\n"
    assert warned(REVERSE, ROUTE, SERVICE, none_ready) == []
    assert warned(REVERSE, SERVICE) == []  # nothing leads to it


def test_slices_of_other_namespaces_do_not_count():
    text = SLICE.replace("{name: svc-1,", "{name: svc-1, namespace: other,")
    assert service_of(compiled(REVERSE, ROUTE, SERVICE, text)).endpoints == ()


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ("", "BackendNotFound"),
        (SERVICE.replace("port: 80,", "port: 82,"), "BackendNotFound"),
        (SERVICE.replace("spec: {", "spec: {type: ExternalName, externalName: a.example, "), "UnsupportedValue"),
        (SERVICE.replace("port: 80,", "port: 80, appProtocol: example.com/own,"), "UnsupportedProtocol"),
        (SERVICE.replace("port: 80,", "port: 80, protocol: UDP,"), "UnsupportedProtocol"),
        (SERVICE.replace("port: 80,", "port: 80, appProtocol: kubernetes.io/wss,"), "UnsupportedProtocol"),
        (SERVICE.replace("port: 80,", "port: 80, appProtocol: HTTPS,"), "UnsupportedProtocol"),
    ],
)
def test_a_service_that_cannot_be_used_is_a_condition_of_the_route(service: str, reason: str):
    made = compiled(REVERSE, ROUTE, *filter(None, [service]))
    assert rule(made).backends[0].backend is None
    assert of_route(made, "ResolvedRefs")[:2] == ("False", reason)


@pytest.mark.parametrize(
    ("written", "protocol"),
    [
        ("kubernetes.io/ws", Protocol.HTTP11),
        ("kubernetes.io/h2c", Protocol.H2C),
        ("http", Protocol.HTTP11),
        ("HTTP", Protocol.HTTP11),
        ("''", Protocol.HTTP),
        ("TCP", Protocol.TCP),
    ],
)
def test_the_protocol_of_a_port_is_its_app_protocol_in_any_case(written: str, protocol: Protocol):
    made = compiled(REVERSE, ROUTE, SERVICE.replace("port: 80,", f"port: 80, appProtocol: {written},"))
    assert service_of(made).protocol is protocol
