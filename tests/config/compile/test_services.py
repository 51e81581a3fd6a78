from __future__ import annotations

from ipaddress import ip_address

import pytest

from egressproxy.config.compile import Compiled
from egressproxy.spec.backend import BackendSpec, Endpoint, Protocol
from tests.config.compile.kit import REVERSE, compiled, of_route, rule, said, status
from tests.support.pki import Pki

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

POLICY = """
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: tls}
spec:
  targetRefs: [{group: "", kind: Service, name: svc}]
  validation: {hostname: svc.example, wellKnownCACertificates: System}
"""


def service_of(made: Compiled) -> BackendSpec:
    found = rule(made).backends[0]
    assert found.backend is not None, found.error
    return found.backend


def test_ready_endpoints_serve_with_the_port_of_their_slice():
    found = service_of(compiled(REVERSE, ROUTE, SERVICE, SLICE))
    assert found.endpoints == (Endpoint(ip_address("10.0.0.1"), 8080), Endpoint(ip_address("10.0.0.2"), 8080))


def test_the_port_is_found_by_its_name():
    made = compiled(REVERSE, ROUTE.replace("port: 80", "port: 81"), SERVICE, SLICE)
    assert {endpoint.port for endpoint in service_of(made).endpoints} == {9090}


def test_a_service_without_endpoints_is_a_valid_reference():
    made = compiled(REVERSE, ROUTE, SERVICE)
    assert service_of(made).endpoints == ()
    assert of_route(made, "ResolvedRefs")[0] == "True"


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
        (SERVICE.replace("port: 80,", "port: 80, appProtocol: kubernetes.io/h2c,"), "UnsupportedProtocol"),
    ],
)
def test_a_service_that_cannot_be_used_is_a_condition_of_the_route(service: str, reason: str):
    made = compiled(REVERSE, ROUTE, *filter(None, [service]))
    assert rule(made).backends[0].backend is None
    assert of_route(made, "ResolvedRefs")[:2] == ("False", reason)


def test_app_protocol_ws_is_http_1():
    made = compiled(REVERSE, ROUTE, SERVICE.replace("port: 80,", "port: 80, appProtocol: kubernetes.io/ws,"))
    assert service_of(made).protocol is Protocol.HTTP11


def test_a_tls_policy_says_how_a_service_is_verified():
    found = service_of(compiled(REVERSE, ROUTE, SERVICE, POLICY)).tls
    assert found is not None
    assert (found.sni, found.ca_pem, found.insecure_skip_verify) == ("svc.example", "", False)


def test_a_tls_policy_for_a_port_goes_before_one_for_the_service():
    section = POLICY.replace("name: svc}", "name: svc, sectionName: web}").replace("name: tls", "name: web")
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY, section.replace("svc.example", "web.example"))
    found = service_of(made).tls
    assert found is not None
    assert found.sni == "web.example"


def test_without_its_ca_the_service_is_not_used_in_plain_text():
    text = POLICY.replace(
        "wellKnownCACertificates: System", "caCertificateRefs: [{group: '', kind: ConfigMap, name: gone}]"
    )
    made = compiled(REVERSE, ROUTE, SERVICE, text)
    assert rule(made).backends[0].backend is None
    (ancestor,) = status(made, "BackendTLSPolicy", "default/tls")["ancestors"]
    assert said(ancestor["conditions"], "ResolvedRefs")[:2] == ("False", "InvalidCACertificateRef")
    assert said(ancestor["conditions"], "Accepted")[:2] == ("False", "NoValidCACertificate")


def test_the_older_of_two_tls_policies_holds():
    older = POLICY.replace("{name: tls}", '{name: zz, creationTimestamp: "2024-01-01T00:00:00Z"}')
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("svc.example", "younger.example"), older)
    found = service_of(made).tls
    assert found is not None
    assert found.sni == "svc.example"
    (ancestor,) = status(made, "BackendTLSPolicy", "default/tls")["ancestors"]
    assert said(ancestor["conditions"], "Accepted")[:2] == ("False", "Conflicted")


def test_names_of_type_uri_are_refused_rather_than_ignored():
    text = POLICY.replace("wellKnown", "subjectAltNames: [{type: URI, uri: 'spiffe://a/b'}], wellKnown")
    assert rule(compiled(REVERSE, ROUTE, SERVICE, text)).backends[0].backend is None


def test_a_ca_from_a_config_map_is_used():
    pki = Pki()
    lines = "\n".join(f"    {line}" for line in pki.ca_pem.splitlines())
    ca = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca}}\ndata:\n  ca.crt: |\n{lines}\n"
    text = POLICY.replace(
        "wellKnownCACertificates: System", "caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]"
    )
    found = service_of(compiled(REVERSE, ROUTE, SERVICE, text, ca)).tls
    assert found is not None
    assert found.ca_pem.strip() == pki.ca_pem.strip()
