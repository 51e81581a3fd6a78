"""XBackends of type EndpointSelector: which Pods they lead to, and what status says of them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress, Protocol
from tests.config.compile.kit import REVERSE, ROUTE, compiled, of_object, rule
from tests.support.compiling import compile_valid

X_ROUTE = ROUTE.replace("egressproxy.io, kind: Backend", "gateway.networking.x-k8s.io, kind: XBackend")
SPEC = "type: EndpointSelector, port: {number: 8080}, endpointSelector: {matchLabels: {app: web, tier: x}}"
READY = ", conditions: [{type: Ready, status: 'True'}]"
NOT_READY = ", conditions: [{type: Ready, status: 'False'}]"


def selecting(more: str = "") -> str:
    return f"""
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {{name: plain}}
spec: {{{SPEC}{more}}}
"""


def pod(name: str, status: str, labels: str = "app: web, tier: x, more: y", metadata: str = "") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}{metadata}}}
status: {{{status}}}
"""


def backend_of(made: Compiled) -> BackendIR:
    found = rule(made).backends[0]
    assert found.backend is not None, found.error
    return found.backend


def addresses(*manifests: str) -> list[str]:
    return [str(each.address) for each in backend_of(compiled(REVERSE, X_ROUTE, selecting(), *manifests)).endpoints]


def test_it_leads_to_the_pods_with_its_labels_at_its_port():
    found = backend_of(
        compiled(REVERSE, X_ROUTE, selecting(), pod("b", "podIP: 10.0.0.2"), pod("a", f"podIP: 10.0.0.1{READY}"))
    )
    assert (found.destination, found.service, found.protocol, found.tls) == (
        Destination.SERVICE, "default app=web,tier=x", Protocol.HTTP, None,
    )  # fmt: skip
    assert found.endpoints == (
        EndpointAddress(ip_address("10.0.0.1"), 8080),
        EndpointAddress(ip_address("10.0.0.2"), 8080),
    )


@pytest.mark.parametrize(
    "other",
    [
        pod("p", "podIP: 10.0.0.9", "app: web"),
        pod("p", "podIP: 10.0.0.9", "app: web, tier: z"),
        pod("p", "podIP: 10.0.0.9", metadata=", namespace: other"),
        pod("p", f"podIP: 10.0.0.9{NOT_READY}"),
        pod("p", "podIP: 10.0.0.9, conditions: [{type: Ready, status: Unknown}]"),
        pod("p", f"podIP: 10.0.0.9, phase: Succeeded{READY}"),
        pod("p", f"podIP: 10.0.0.9, phase: Failed{READY}"),
        pod("p", f"podIP: 10.0.0.9{READY}", metadata=", deletionTimestamp: '2026-01-01T00:00:00Z'"),
        pod("p", "podIP: nonsense"),
        pod("p", "phase: Running"),
    ],
)
def test_another_pod_or_one_that_is_not_ready_is_no_endpoint(other: str):
    assert addresses(pod("ready", "podIP: 10.0.0.1"), other) == ["10.0.0.1"]


def test_of_two_families_the_primary_address_counts():
    assert addresses(pod("p", "podIPs: [{ip: 'fd00::1'}, {ip: 10.0.0.1}]")) == ["fd00::1"]


def test_endpoint_slices_with_its_labels_may_stand_for_pods_in_files():
    piece = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {app: web, tier: x}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.3]}, {addresses: [10.0.0.4], conditions: {ready: false}}]
"""
    assert addresses(piece, piece.replace("name: s", "name: t").replace("tier: x", "tier: y")) == ["10.0.0.3"]


def test_its_tls_is_what_it_says():
    tls = ", protocol: HTTP2, tls: {mode: ServerOnly, validation: {hostname: web.test}}"
    found = backend_of(compiled(REVERSE, X_ROUTE, selecting(tls), pod("p", "podIP: 10.0.0.1")))
    assert (found.protocol, found.tls) == (Protocol.HTTP2, BackendTlsIR(sni="web.test"))


def test_tls_without_a_hostname_is_for_the_address_of_the_pod_and_status_says_so():
    said = ", tls: {mode: ServerOnly, validation: {hostname: web.test}}"
    for tls, is_noted in ((", tls: {mode: ServerOnly}", True), (said, False), (", tls: {mode: None}", False)):
        made = compiled(REVERSE, X_ROUTE, selecting(tls), pod("p", "podIP: 10.0.0.1"))
        message = of_object(made, "XBackend", "default/plain", "Accepted")[2]
        assert ("tls.validation.hostname" in message) is is_noted


def test_status_says_what_it_leads_to_and_plain_text_is_no_fault_of_it():
    made = compiled(REVERSE, X_ROUTE, selecting(), pod("p", "podIP: 10.0.0.1"))
    status, reason, message = of_object(made, "XBackend", "default/plain", "Accepted")
    assert (status, reason) == ("True", "Accepted")
    assert "Pods with app=web,tier=x:8080 (HTTP, no tls said)" in message
    assert "Insecure" not in str(made.statuses)


def test_it_is_the_configuration_that_says_which_pods_are_read():
    resources = load_text("\n---\n".join((REVERSE, X_ROUTE, selecting())), "config.yaml")
    compile_valid(resources, Catalog(), Defaults())
    assert ("", "Pod", "default", "app=web,tier=x") in resources.wanted


def test_that_no_pod_is_ready_is_a_warning_and_a_valid_reference():
    def warned(*pods: str) -> list[str]:
        resources = load_text("\n---\n".join((REVERSE, X_ROUTE, selecting(), *pods)), "config.yaml")
        made = compile_valid(resources, Catalog(), Defaults())
        assert backend_of(made).destination is Destination.SERVICE
        return [each.code for each in all_warnings(resources, made)]

    assert warned(pod("p", f"podIP: 10.0.0.1{NOT_READY}")) == ["NoPod"]
    assert warned(pod("p", "podIP: 10.0.0.1")) == []
