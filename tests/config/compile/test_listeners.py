from __future__ import annotations

import base64
from pathlib import Path

import pytest

from egressproxy.spec.gateway import ListenerProtocol, TlsMode
from tests.config.compile.kit import (
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_listener,
    of_object,
    said,
    status,
)
from tests.support.pki import Pki


def gateway(listeners: str, name: str = "gw", more: str = "") -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}}}
spec:
  gatewayClassName: egressproxy
  {more}
  listeners: [{listeners}]
"""


def secret(certificate: bytes, key: bytes, name: str = "cert", namespace: str = "default") -> str:
    crt, private = base64.b64encode(certificate).decode(), base64.b64encode(key).decode()
    return f"""
apiVersion: v1
kind: Secret
metadata: {{name: {name}, namespace: {namespace}}}
type: kubernetes.io/tls
data: {{tls.crt: {crt}, tls.key: {private}}}
"""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder: Path = tmp_path_factory.mktemp("pki")
    return Pki(folder)


def pair(pki: Pki, *names: str) -> tuple[bytes, bytes]:
    made = pki.certificate(*names)
    return made.chain_pem.encode(), made.key_pem.reveal()


HTTPS = "{name: web, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}"


def test_without_addresses_a_gateway_binds_where_the_process_was_told_to():
    assert listener(compiled(FORWARD, bind=("0.0.0.0", "::"))).addresses == ("0.0.0.0", "::")


def test_addresses_of_the_gateway_go_before_the_process():
    text = gateway("{name: a, port: 80, protocol: HTTP}", more="addresses: [{value: 127.0.0.5}]")
    assert listener(compiled(text, bind=("0.0.0.0",))).addresses == ("127.0.0.5",)


def test_an_address_that_is_a_hostname_keeps_the_gateway_closed():
    text = gateway("{name: a, port: 80, protocol: HTTP}", more="addresses: [{type: Hostname, value: a.example}]")
    made = compiled(text)
    assert not made.spec.listeners
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "UnsupportedAddress")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[0] == "False"


def test_a_gateway_of_another_controller_is_left_alone():
    other = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: egressproxy}
spec: {controllerName: example.com/other}
"""
    made = compiled(FORWARD, other)
    assert not made.spec.listeners
    assert not made.statuses


def test_a_class_with_our_controller_name_is_ours_and_accepted():
    ours = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
"""
    made = compiled(FORWARD.replace("gatewayClassName: egressproxy", "gatewayClassName: mine"), ours)
    assert listener(made).gateway == "default/gw"
    assert of_object(made, "GatewayClass", "mine", "Accepted")[0] == "True"
    features = [feature["name"] for feature in status(made, "GatewayClass", "mine")["supportedFeatures"]]
    assert "HTTPRoute" in features
    assert features == sorted(features)


def test_the_built_in_class_ends_where_classes_are_written():
    ours = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
"""
    made = compiled(FORWARD, ours)
    assert not made.spec.listeners
    assert made.warnings == ("Gateway default/gw is not served: there is no GatewayClass egressproxy",)


def test_an_unknown_protocol_closes_that_listener_alone():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 81, protocol: example.com/udp}"))
    assert [one.name for one in made.spec.listeners] == ["a"]
    assert of_listener(made, "Accepted", "b")[:2] == ("False", "UnsupportedProtocol")
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("True", "ListenersNotValid")


def test_a_gateway_without_any_good_listener_is_not_accepted():
    made = compiled(gateway("{name: b, port: 81, protocol: example.com/udp}"))
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "ListenersNotValid")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[:2] == ("False", "Invalid")


def test_listeners_of_one_port_are_told_apart_by_hostname():
    text = "{name: a, port: 80, protocol: HTTP, hostname: a.example}, {name: b, port: 80, protocol: HTTP}"
    assert [one.hostname for one in compiled(gateway(text)).spec.listeners] == ["a.example", ""]


def test_two_protocols_on_one_port_are_both_conflicted():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: TCP}"))
    assert not made.spec.listeners
    for name in "ab":
        assert of_listener(made, "Conflicted", name)[:2] == ("True", "ProtocolConflict")
        assert of_listener(made, "Programmed", name)[0] == "False"


def test_a_forward_proxy_with_tls_does_not_share_a_port_with_one_without(pki: Pki):
    tls = "{certificateRefs: [{name: cert}]}"
    made = compiled(
        gateway(
            "{name: a, port: 80, protocol: egressproxy.io/forward-proxy}, "
            f"{{name: b, port: 80, protocol: egressproxy.io/forward-proxy, hostname: x.example, tls: {tls}}}"
        ),
        secret(*pair(pki, "proxy.example")),
    )
    assert not made.spec.listeners


def test_a_forward_proxy_has_no_hostname():
    made = compiled(gateway("{name: a, port: 80, protocol: egressproxy.io/forward-proxy, hostname: a.example}"))
    assert not made.spec.listeners
    assert of_listener(made, "Accepted")[:2] == ("False", "UnsupportedValue")


def test_the_younger_gateway_loses_a_port_that_is_taken():
    older = gateway("{name: a, port: 80, protocol: HTTP}", "older").replace(
        "{name: older}", '{name: older, creationTimestamp: "2024-01-01T00:00:00Z"}'
    )
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", "a-first-by-name"), older)
    assert [one.gateway for one in made.spec.listeners] == ["default/older"]
    assert of_listener(made, "Accepted", gateway="default/a-first-by-name")[:2] == ("False", "PortUnavailable")


def test_every_address_overlaps_a_wildcard():
    text = gateway("{name: a, port: 80, protocol: HTTP}", "b", "addresses: [{value: 0.0.0.0}]")
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", "a"), text)
    assert [one.gateway for one in made.spec.listeners] == ["default/a"]


def test_https_terminates_with_the_certificate_of_the_secret(pki: Pki):
    found = listener(compiled(gateway(HTTPS), secret(*pair(pki, "Web.Example", "*.web.example"))))
    assert found.protocol is ListenerProtocol.HTTPS
    assert found.tls is not None
    assert found.tls.mode is TlsMode.TERMINATE
    assert found.tls.certificates[0].name == "default/cert"
    assert found.tls.certificates[0].names == ("web.example", "*.web.example")


def test_a_missing_certificate_closes_the_listener():
    made = compiled(gateway(HTTPS))
    assert not made.spec.listeners
    assert of_listener(made, "ResolvedRefs")[:2] == ("False", "InvalidCertificateRef")
    assert of_listener(made, "Programmed")[:2] == ("False", "Invalid")


def test_a_key_of_another_certificate_closes_the_listener(pki: Pki):
    certificate, _ = pair(pki, "a.example")
    _, key = pair(pki, "b.example")
    made = compiled(gateway(HTTPS), secret(certificate, key))
    assert not made.spec.listeners
    found = of_listener(made, "ResolvedRefs")
    assert found[:2] == ("False", "InvalidCertificateRef")
    assert "does not belong" in found[2]


def test_text_that_is_no_certificate_closes_the_listener():
    made = compiled(gateway(HTTPS), secret(b"nonsense", b"secret-nonsense"))
    assert of_listener(made, "ResolvedRefs")[:2] == ("False", "InvalidCertificateRef")
    assert "nonsense" not in str(made.statuses)


def test_one_good_certificate_is_enough_and_status_names_the_bad_one(pki: Pki):
    text = gateway(HTTPS.replace("[{name: cert}]", "[{name: gone}, {name: cert}]"))
    made = compiled(text, secret(*pair(pki, "a.example")))
    assert listener(made).tls is not None
    assert of_listener(made, "ResolvedRefs")[:2] == ("False", "InvalidCertificateRef")
    assert of_listener(made, "Programmed")[0] == "True"


def test_a_certificate_of_another_namespace_needs_a_grant(pki: Pki):
    text = gateway(HTTPS.replace("{name: cert}", "{name: cert, namespace: certs}"))
    certificate = secret(*pair(pki, "a.example"), namespace="certs")
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: certs}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]
  to: [{group: "", kind: Secret, name: cert}]
"""
    refused = compiled(text, certificate)
    assert not refused.spec.listeners
    assert of_listener(refused, "ResolvedRefs")[:2] == ("False", "RefNotPermitted")
    assert listener(compiled(text, certificate, grant)).tls is not None
    other = grant.replace("name: cert}", "name: other}")
    assert not compiled(text, certificate, other).spec.listeners


def test_client_certificates_that_are_not_checked_keep_the_listener_closed(pki: Pki):
    frontend = "tls: {frontend: {default: {validation: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}}"
    made = compiled(
        gateway(f"{HTTPS}, {{name: plain, port: 80, protocol: HTTP}}", more=frontend), secret(*pair(pki, "a.example"))
    )
    assert [one.name for one in made.spec.listeners] == ["plain"]
    assert of_listener(made, "Accepted", "web")[:2] == ("False", "UnsupportedValue")
    assert "client certificates" in of_listener(made, "Programmed", "web")[2]


def test_a_port_of_its_own_may_go_without_client_certificates(pki: Pki):
    validation = "{validation: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}"
    frontend = f"tls: {{frontend: {{default: {validation}, perPort: [{{port: 8443, tls: {{}}}}]}}}}"
    made = compiled(gateway(HTTPS, more=frontend), secret(*pair(pki, "a.example")))
    assert listener(made).name == "web"


def test_passthrough_needs_no_certificate():
    made = compiled(gateway("{name: sni, port: 443, protocol: TLS, hostname: '*.a.example', tls: {mode: Passthrough}}"))
    found = listener(made)
    assert found.tls is not None
    assert found.tls.mode is TlsMode.PASSTHROUGH


def test_kinds_that_the_protocol_cannot_carry_are_named():
    made = compiled(
        gateway("{name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: HTTPRoute}]}}")
    )
    assert of_listener(made, "ResolvedRefs")[:2] == ("False", "InvalidRouteKinds")
    kinds = status(made, "Gateway", "default/gw")["listeners"][0]["supportedKinds"]
    assert [kind["kind"] for kind in kinds] == ["HTTPRoute"]


def test_a_listener_set_adds_listeners_where_the_gateway_admits_it():
    added = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
    refused = compiled(REVERSE, added)
    assert [one.name for one in refused.spec.listeners] == ["web"]
    assert of_object(refused, "ListenerSet", "default/more", "Accepted")[:2] == ("False", "NotAllowed")
    admitting = REVERSE.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    made = compiled(admitting, added)
    assert [one.name for one in made.spec.listeners] == ["web", "default/more/extra"]
    assert of_object(made, "ListenerSet", "default/more", "Programmed")[0] == "True"
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 1
    route = ROUTE.replace("{name: gw}", "{kind: ListenerSet, name: more}")
    assert [bool(one.http_routes) for one in compiled(admitting, added, PLAIN, route).spec.listeners] == [False, True]


def test_a_listener_set_loses_a_conflict_against_its_gateway():
    added = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 8080, protocol: HTTP}]
"""
    admitting = REVERSE.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    made = compiled(admitting, added)
    assert [one.name for one in made.spec.listeners] == ["web"]
    (extra,) = status(made, "ListenerSet", "default/more")["listeners"]
    assert said(extra["conditions"], "Conflicted")[:2] == ("True", "HostnameConflict")


def test_fields_that_do_nothing_are_named_in_status():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", more="infrastructure: {labels: {a: b}}"))
    assert "infrastructure does nothing" in of_object(made, "Gateway", "default/gw", "Accepted")[2]
