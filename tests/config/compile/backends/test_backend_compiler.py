from __future__ import annotations

import base64
from ipaddress import ip_address

import pytest

from egressproxy.config.reading.problems import Severity
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress, Protocol
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.certificate import CertificateUse
from tests.config.compile.kit import DYNAMIC, PLAIN, REVERSE, ROUTE, compiled, of_object, of_route, rule
from tests.support.pki import Pki


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def ours(destination: str, more: str = "") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: plain}}
spec:
  destination: {{{destination}}}
{more}
"""


def fqdn(tls: str, port: str = "number: 443") -> str:
    return ours(f"type: Fqdn, fqdn: {{hostname: a.example}}, ports: [{{{port}, tls: {{{tls}}}}}]")


def config_map(name: str, key: str, text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  {key}: |\n{lines}\n"


def weighted(*manifests: str) -> WeightedBackend:
    """The only backend of ROUTE."""
    (found,) = rule(compiled(REVERSE, ROUTE, *manifests)).backends
    return found


def served(*manifests: str) -> BackendIR:
    found = weighted(*manifests)
    assert found.backend is not None, found.error
    return found.backend


def refused(*manifests: str) -> str:
    found = weighted(*manifests)
    assert found.backend is None
    return found.error


def test_a_hostname_with_its_port_and_protocol():
    found = served(fqdn("mode: Simple", "number: 8443, protocol: HTTP11"))
    assert (found.destination, found.hostname, found.port) == (Destination.FQDN, "a.example", 8443)
    assert found.protocol is Protocol.HTTP11
    assert found.name == "default/plain"


def test_an_address_is_an_endpoint():
    found = served(ours("type: Ip, ip: {address: '::1'}, ports: [{number: 81}]"))
    assert found.destination is Destination.IP
    assert found.endpoints == (EndpointAddress(ip_address("::1"), 81),)


def test_a_dynamic_backend_has_neither_host_nor_port():
    found = served(DYNAMIC.replace("name: dynamic", "name: plain"))
    assert (found.destination, found.hostname, found.port, found.tls) == (Destination.DYNAMIC, "", 0, None)


def test_tls_says_how_the_server_is_verified(pki: Pki):
    tls = (
        "mode: Simple, sni: b.example, caBundleRef: [{kind: ConfigMap, name: ca}], subjectAltNames: [C.example], "
        "minVersion: '1.3', pins: ['sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=']"
    )
    found = served(fqdn(tls), config_map("ca", "ca.crt", pki.ca_pem)).tls
    assert found is not None
    assert (found.sni, found.names, found.min_version) == ("b.example", ("c.example",), "1.3")
    assert found.ca_pem.strip() == pki.ca_pem.strip()
    assert found.pins == ("sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",)


def test_revocation_lists_are_read_from_their_config_map(pki: Pki):
    found = served(
        fqdn("mode: Simple, crlRefs: [{kind: ConfigMap, name: crl}]"), config_map("crl", "crl.pem", pki.crl())
    )
    assert found.tls is not None
    assert "X509 CRL" in found.tls.crl_pem


def test_a_revocation_list_past_its_next_update_is_a_warning(pki: Pki):
    written = fqdn("mode: Simple, crlRefs: [{kind: ConfigMap, name: crl}]")
    made = compiled(REVERSE, ROUTE, written, config_map("crl", "crl.pem", pki.crl(expired=True)))
    (warning,) = made.warnings
    assert (warning.code, warning.severity) == ("CertificateExpired", Severity.WARNING)
    assert "the revocation list of ConfigMap default/crl should have been replaced on 2" in warning.message
    (ends,) = made.validities
    assert (ends.use, ends.name) == (CertificateUse.CRL, "crl")
    made = compiled(REVERSE, ROUTE, written, config_map("crl", "crl.pem", pki.crl()))
    assert not made.warnings
    assert [each.use for each in made.validities] == [CertificateUse.CRL]


def test_a_missing_revocation_list_makes_the_backend_unusable():
    made = compiled(REVERSE, ROUTE, fqdn("mode: Simple, crlRefs: [{kind: ConfigMap, name: crl}]"))
    assert rule(made).backends[0].backend is None
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "False"
    assert of_route(made, "ResolvedRefs")[0] == "False"


def test_a_client_certificate_comes_from_a_secret(pki: Pki):
    made = pki.certificate("client.example")
    crt, key = base64.b64encode(made.chain_pem.encode()).decode(), base64.b64encode(made.key_pem.reveal()).decode()
    secret = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: me}}\ndata: {{tls.crt: {crt}, tls.key: {key}}}"
    found = served(fqdn("mode: Mutual, clientCertificateRef: {name: me}"), secret).tls
    assert found is not None
    assert found.client_certificate == made.chain_pem
    assert found.client_key == made.key_pem


def test_a_missing_ca_makes_the_backend_unusable_and_says_so():
    text = fqdn("mode: Simple, caBundleRef: [{kind: ConfigMap, name: gone}]")
    assert "ConfigMap default/gone does not exist" in refused(text)
    made = compiled(REVERSE, ROUTE, text)
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[:2] == ("False", "NotFound")


def test_plain_text_has_to_be_written_out():
    text = ours("type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 80}]")
    assert "tls.mode" in refused(text)
    made = compiled(REVERSE, ROUTE, text)
    assert of_object(made, "Backend", "default/plain", "Accepted")[:2] == ("False", "TlsNotConfigured")


def test_plain_text_is_marked_as_insecure():
    made = compiled(REVERSE, ROUTE, PLAIN)
    assert of_object(made, "Backend", "default/plain", "Insecure")[:2] == ("True", "NotVerified")
    assert of_object(compiled(REVERSE, ROUTE, fqdn("mode: Simple")), "Backend", "default/plain", "Insecure") == (
        "",
        "",
        "",
    )


def test_a_backend_that_is_not_verified_is_marked_as_insecure():
    unverified = "tls: {mode: Simple, insecureSkipVerify: true}"
    for destination in (
        f"type: Fqdn, fqdn: {{hostname: a.example}}, ports: [{{number: 443, {unverified}}}]",
        f"type: Dynamic, ports: [{{number: 443, {unverified}}}]",
        f"type: Ip, ip: {{address: 10.0.0.1}}, ports: [{{number: 443, {unverified}}}]",
        f"type: Fqdn, fqdn: {{hostname: a.example}}, "
        f"ports: [{{number: 80, tls: {{mode: None}}}}, {{number: 443, {unverified}}}]",
    ):
        made = compiled(REVERSE, ROUTE, ours(destination))
        state, _, message = of_object(made, "Backend", "default/plain", "Insecure")
        assert state == "True"
        assert "not verified" in message


@pytest.mark.parametrize("protocol", sorted(set(Protocol) - {Protocol.SOCKS5}))
def test_every_protocol_is_served(protocol: Protocol):
    made = compiled(REVERSE, ROUTE, fqdn("mode: None", f"number: 80, protocol: {protocol.value}"))
    (found,) = rule(made).backends
    assert found.backend is not None
    assert found.backend.protocol is protocol
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "True"


def test_of_several_ports_the_reference_names_one():
    ports = "ports: [{number: 80, tls: {mode: None}}, {number: 81, tls: {mode: None}}]"
    text = ours(f"type: Fqdn, fqdn: {{hostname: a.example}}, {ports}")
    assert "has to name one" in refused(text)
    route = ROUTE.replace("name: plain}", "name: plain, port: 81}")
    assert rule(compiled(REVERSE, route, text)).backends[0].backend is not None
    other = ROUTE.replace("name: plain}", "name: plain, port: 82}")
    assert rule(compiled(REVERSE, other, text)).backends[0].error == "Backend default/plain has no port 82"


def test_a_missing_backend_is_not_found():
    made = compiled(REVERSE, ROUTE)
    assert rule(made).backends[0].backend is None
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    assert of_route(made, "Accepted")[0] == "True"


def test_a_kind_that_is_no_backend_is_an_invalid_kind():
    made = compiled(REVERSE, ROUTE.replace("kind: Backend", "kind: Bucket"))
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "InvalidKind")


def test_a_backend_of_another_namespace_needs_a_grant():
    route = ROUTE.replace("name: plain}", "name: plain, namespace: team}")
    backend = PLAIN.replace("{name: plain}", "{name: plain, namespace: team}")
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: team}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}]
  to: [{group: egressproxy.io, kind: Backend}]
"""
    refused = compiled(REVERSE, route, backend)
    assert rule(refused).backends[0].backend is None
    assert of_route(refused, "ResolvedRefs")[:2] == ("False", "RefNotPermitted")
    granted = rule(compiled(REVERSE, route, backend, grant)).backends[0].backend
    assert granted is not None
    assert granted.name == "team/plain"
    others = grant.replace("namespace: default}", "namespace: elsewhere}")
    assert rule(compiled(REVERSE, route, backend, others)).backends[0].backend is None


def test_a_parent_is_resolved_with_the_backend():
    parent = PLAIN.replace("name: plain", "name: proxy").replace("a.example", "proxy.example")
    found = served(parent, ours("type: Dynamic", "  parent: {name: proxy}"))
    assert found.parent is not None
    assert (found.parent.name, found.parent.hostname, found.parent.port) == ("default/proxy", "proxy.example", 80)


@pytest.mark.parametrize("parent", ["plain", "gone", "dynamic"])
def test_a_parent_has_to_be_a_fixed_place_elsewhere(parent: str):
    text = ours("type: Dynamic", f"  parent: {{name: {parent}}}")
    assert "parent" in refused(text, DYNAMIC)
    made = compiled(REVERSE, ROUTE, text, DYNAMIC)
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[:2] == ("False", "InvalidParent")


def test_a_parent_with_extensions_is_refused_since_they_would_not_run():
    extension = (
        "  extensions: [{name: x, type: 'egressproxy.io/HeaderPolicy:v1', phase: backend-request, "
        "config: {request: {set: [{name: x-a, value: '1'}]}}}]"
    )
    parent = PLAIN.replace("name: plain", "name: proxy").replace("spec:", f"spec:\n{extension}")
    assert "extensions" in refused(ours("type: Dynamic", "  parent: {name: proxy}"), parent)


def test_a_long_chain_of_parents_is_refused_rather_than_followed():
    chain = [
        PLAIN.replace("name: plain", f"name: p{n}").replace("spec:", f"spec:\n  parent: {{name: p{n + 1}}}")
        for n in range(300)
    ]
    last = PLAIN.replace("name: plain", "name: p300")
    assert "parents in a row" in refused(ours("type: Dynamic", "  parent: {name: p0}"), *chain, last)


def test_two_parents_of_each_other_are_refused():
    one = PLAIN.replace("spec:", "spec:\n  parent: {name: other}")
    other = one.replace("name: plain", "name: other").replace("{name: other}\n  dest", "{name: plain}\n  dest")
    assert "its own parent" in refused(one, other)


def test_an_x_backend_is_read_like_ours(pki: Pki):
    text = """
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: plain}
spec:
  type: ExternalHostname
  port: {port: 443}
  externalHostname: {hostname: a.example}
  tls:
    mode: ServerOnly
    validation: {hostname: b.example, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}
"""
    route = ROUTE.replace("egressproxy.io, kind: Backend", "gateway.networking.x-k8s.io, kind: XBackend")
    (found,) = rule(compiled(REVERSE, route, text, config_map("ca", "ca.crt", pki.ca_pem))).backends
    assert found.backend is not None
    assert (found.backend.destination, found.backend.hostname, found.backend.port) == (
        Destination.FQDN,
        "a.example",
        443,
    )
    assert found.backend.tls is not None
    assert found.backend.tls.sni == "b.example"
    assert found.backend.tls.ca_pem.strip() == pki.ca_pem.strip()


X_BACKEND = """
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {{name: plain}}
spec: {{{}}}
"""
X_ROUTE = ROUTE.replace("egressproxy.io, kind: Backend", "gateway.networking.x-k8s.io, kind: XBackend")
X_HOST = "type: ExternalHostname, externalHostname: {hostname: a.example}, port: {number: 8080}"


def test_a_websocket_over_tls_is_asked_for_in_http_1():
    (found,) = rule(
        compiled(REVERSE, X_ROUTE, X_BACKEND.format(f"{X_HOST}, protocol: WSS, tls: {{mode: ServerOnly}}"))
    ).backends
    assert found.backend is not None
    assert (found.backend.protocol, found.backend.tls) == (Protocol.HTTP11, BackendTlsIR())


def test_an_x_backend_of_protocol_h2c_has_no_tls():
    (found,) = rule(compiled(REVERSE, X_ROUTE, X_BACKEND.format(f"{X_HOST}, protocol: H2C"))).backends
    assert found.backend is not None
    assert (found.backend.protocol, found.backend.tls) == (Protocol.H2C, None)


@pytest.mark.parametrize(
    ("spec", "kind", "reason", "said"),
    [
        ("type: EndpointSelector, port: {number: 1}, endpointSelector: {selectorRef: {name: a}}", "Accepted",
         "UnsupportedValue", "an endpointSelector without matchLabels alone"),
        ("type: EndpointSelector, port: {number: 1}, endpointSelector: {matchLabels: {app: a}, "
         "matchExpressions: [{key: a, operator: Exists}]}", "Accepted", "UnsupportedValue", "write matchLabels"),
        (f"{X_HOST}, protocol: WSS, tls: {{mode: None}}", "Accepted", "UnsupportedValue", "tls.mode ServerOnly"),
        (X_HOST, "Accepted", "TlsNotConfigured", "write tls.mode"),
    ],
)  # fmt: skip
def test_what_an_x_backend_may_say_and_nobody_serves_is_a_condition(spec: str, kind: str, reason: str, said: str):
    made = compiled(REVERSE, X_ROUTE, X_BACKEND.format(spec))
    (found,) = rule(made).backends
    assert found.backend is None
    status, why, message = of_object(made, "XBackend", "default/plain", kind)
    assert (status, why) == ("False", reason)
    assert said in message


@pytest.mark.parametrize(
    ("version", "kind", "named"),
    [
        ("gateway.networking.k8s.io/v1alpha1", "Backend", "Backend"),
        ("ainetworking.prototype.x-k8s.io/v0alpha0", "XBackendDestination", "XBackendDestination"),
        ("ainetworking.prototype.x-k8s.io/v0alpha0", "XBackendDestination", "Backend"),
    ],
)
def test_the_working_groups_shapes_are_read_like_ours(version: str, kind: str, named: str):
    text = f"""
apiVersion: {version}
kind: {kind}
metadata: {{name: plain}}
spec: {{destination: {{type: FQDN, fqdn: {{hostname: a.example}}, ports: [{{number: 443, tls: {{mode: Simple}}}}]}}}}
"""
    route = ROUTE.replace("egressproxy.io, kind: Backend", f"{version.partition('/')[0]}, kind: {named}")
    (found,) = rule(compiled(REVERSE, route, text)).backends
    assert found.backend is not None
    assert (found.backend.hostname, found.backend.port) == ("a.example", 443)


def test_a_service_behind_our_backend_brings_its_endpoints():
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: svc}\nspec: {ports: [{port: 80}]}"
    slices = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-1, labels: {kubernetes.io/service-name: svc}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{port: 8080}]
"""
    found = served(ours("type: Service, service: {name: svc}, ports: [{number: 80}]"), service, slices)
    assert found.endpoints == (EndpointAddress(ip_address("10.0.0.1"), 8080),)
    assert found.name == "default/plain"


def test_an_unused_backend_has_its_status_too():
    made = compiled(REVERSE, PLAIN)
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "True"


def test_some_ports_that_cannot_be_used_degrade_the_backend():
    ports = "ports: [{number: 80, tls: {mode: None}}, {number: 81, protocol: example.com/own, tls: {mode: None}}]"
    made = compiled(REVERSE, ours(f"type: Fqdn, fqdn: {{hostname: a.example}}, {ports}"))
    assert of_object(made, "Backend", "default/plain", "Degraded")[:2] == ("True", "PortsNotUsable")


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("{number: 80, tls: {mode: None, sni: b.example, pins: []}}", "tls.sni with mode None: does nothing"),
        ("{number: 80, tls: {mode: None, minVersion: '1.2'}}", "tls.minVersion with mode None: does nothing"),
        (
            "{number: 443, tls: {mode: Simple, insecureSkipVerify: true, subjectAltNames: [b.example]}}",
            "tls.subjectAltNames with insecureSkipVerify: does nothing",
        ),
    ],
)
def test_what_says_nothing_beside_the_rest_of_tls_is_said(port: str, said: str):
    text = PLAIN.replace("{number: 80, tls: {mode: None}}", port)
    assert said in of_object(compiled(text), "Backend", "default/plain", "Accepted")[2]


def test_a_resolver_where_no_name_is_resolved_is_said():
    text = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: fixed}
spec:
  destination: {type: Ip, ip: {address: 192.0.2.1}, ports: [{number: 80}]}
  resolver: {servers: [192.0.2.53]}
"""
    assert "resolver does nothing for type Ip" in of_object(compiled(text), "Backend", "default/fixed", "Accepted")[2]


def test_every_reference_of_a_backend_that_leads_nowhere_is_told(pki: Pki):
    tls = (
        "mode: Mutual, caBundleRef: [{kind: ConfigMap, name: gone}, {kind: ConfigMap, name: ca}], "
        "crlRefs: [{kind: ConfigMap, name: ca}], clientCertificateRef: {name: nobody}"
    )
    key = "{name: i, type: CredentialInjector, phase: backend-request, config: {secretRef: {name: key, key: k}}}"
    written = fqdn(tls) + f"  parent: {{name: proxy}}\n  extensions: [{key}]\n"
    made = compiled(REVERSE, ROUTE, written, config_map("ca", "ca.crt", pki.ca_pem))
    status, reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert (status, reason) == ("False", "NotFound")
    port = "destination.ports[0].tls"
    assert message.removeprefix("spec.").split("; spec.") == [
        f"{port}.caBundleRef[0]: ConfigMap default/gone does not exist (in this namespace there is ca)",
        f"{port}.crlRefs[0]: ConfigMap default/ca has no entry crl.pem (it has ca.crt)",
        f"{port}.clientCertificateRef: Secret default/nobody does not exist "
        "(write it, or give it to `run` and `check`: --secret default/nobody=FOLDER or "
        "--secret-env default/nobody:KEY=VARIABLE)",
        "parent: the parent of Backend default/plain cannot be used: Backend default/proxy does not exist "
        "(in this namespace there is plain)",
        "extensions[0].config.secretRef: missing: Secret default/key with key k "
        "(write it, or give it to `run` and `check`: --secret default/key=FOLDER or "
        "--secret-env default/key:KEY=VARIABLE); "
        "until it is there, requests are refused",
    ]


def test_a_reference_into_a_namespace_with_nothing_in_it_says_so():
    away = ROUTE.replace("name: plain", "name: plain, namespace: typo")
    made = compiled(REVERSE, away, PLAIN)
    assert (
        "(nothing is in namespace typo; default/plain is there: leave namespace out)"
        in of_route(made, "ResolvedRefs")[2]
    )
    empty = "apiVersion: v1\nkind: Namespace\nmetadata: {name: typo}\n"
    assert "nothing is in" not in of_route(compiled(REVERSE, away, PLAIN, empty), "ResolvedRefs")[2]


def test_a_port_that_is_not_there_is_answered_with_those_that_are():
    made = compiled(REVERSE, ROUTE.replace("name: plain", "name: plain, port: 81"), PLAIN)
    assert "has no port 81 (it has " in of_route(made, "ResolvedRefs")[2]
