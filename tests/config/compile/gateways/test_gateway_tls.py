"""What a Gateway asks of its clients (`spec.tls.frontend`), and what it shows to its backends (`spec.tls.backend`)."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled
from egressproxy.ir.backend import BackendIR
from egressproxy.ir.gateway import ClientCertificatesIR
from tests.config.compile.backends.test_backend_tls import POLICY, ca
from tests.config.compile.backends.test_services import ROUTE, SERVICE
from tests.config.compile.gateways.test_listener_plan import HTTPS, gateway, pair, secret
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    REVERSE,
    compiled,
    listener,
    of_listener,
    of_object,
    of_route,
    policy,
    status,
)
from tests.config.compile.kit import (
    PLAIN as PLAIN_BACKEND,
)
from tests.support.pki import Pki

PKI = Pki()
SERVER = secret(*pair(PKI, "a.example"))
CA = "{group: '', kind: ConfigMap, name: ca}"
GONE = "{group: '', kind: ConfigMap, name: gone}"
PLAIN = "{name: plain, port: 80, protocol: HTTP}"


def validation(*refs: str, mode: str = "") -> str:
    return f"{{validation: {{{f'mode: {mode}, ' if mode else ''}caCertificateRefs: [{', '.join(refs)}]}}}}"


def frontend(default: str = "{}", per_port: str = "") -> str:
    return f"tls: {{frontend: {{default: {default}, perPort: [{per_port}]}}}}"


def made_with(default: str = "{}", per_port: str = "", *objects: str, listeners: str = HTTPS) -> Compiled:
    return compiled(gateway(listeners, more=frontend(default, per_port)), SERVER, *objects)


def clients(made: Compiled, name: str = "web") -> ClientCertificatesIR | None:
    tls = listener(made, name).tls
    assert tls is not None
    return tls.clients


def test_the_default_holds_for_listeners_with_tls_and_leaves_others_alone():
    made = made_with(validation(CA), "", ca(pem=PKI.ca_pem), listeners=f"{HTTPS}, {PLAIN}")
    assert clients(made) == ClientCertificatesIR(PKI.ca_pem.strip() + "\n", takes_any=False)
    assert listener(made, "plain").tls is None
    for condition in ("Accepted", "ResolvedRefs", "Programmed"):
        assert of_listener(made, condition, "web")[0] == "True"
        assert of_listener(made, condition, "plain")[0] == "True"
    assert of_object(made, "Gateway", "default/gw", "InsecureFrontendValidationMode") == ("", "", "")


@pytest.mark.parametrize(
    "written",
    [
        "{name: web, port: 8443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: cert}]}}",
        "{name: web, port: 8443, protocol: egressproxy.io/forward-proxy, tls: {certificateRefs: [{name: cert}]}}",
    ],
)
def test_every_listener_that_terminates_tls_asks(written: str):
    assert clients(made_with(validation(CA), "", ca(), listeners=written)) is not None


def test_what_is_passed_through_is_nothing_to_ask_in():
    written = "{name: web, port: 8443, protocol: TLS, tls: {mode: Passthrough}}"
    assert clients(made_with(validation(CA), "", ca(), listeners=written)) is None


def test_a_port_of_its_own_replaces_the_default():
    other = HTTPS.replace("web", "other").replace("8443", "9443")
    second = validation(CA.replace("name: ca", "name: second"))
    per_port = f"{{port: 9443, tls: {second}}}"
    made = made_with(validation(CA), per_port, ca(), ca("second", PKI.ca_pem), listeners=f"{HTTPS}, {other}")
    one, two = clients(made), clients(made, "other")
    assert one is not None
    assert two is not None
    assert two.ca_pem.strip() == PKI.ca_pem.strip() != one.ca_pem.strip()


def test_a_port_of_its_own_may_go_without():
    assert clients(made_with(validation(GONE), "{port: 8443, tls: {}}")) is None


def test_several_authorities_add_up_and_one_good_one_is_enough():
    second = "{group: '', kind: ConfigMap, name: second}"
    made = made_with(validation(CA, second), "", ca(), ca("second"))
    found = clients(made)
    assert found is not None
    assert found.ca_pem.count("BEGIN") == 2
    made = made_with(validation(GONE, CA), "", ca())
    assert clients(made) is not None
    assert of_listener(made, "ResolvedRefs")[:2] == ("False", "InvalidCACertificateRef")
    assert of_listener(made, "Accepted")[0] == "True"
    assert of_listener(made, "Programmed")[0] == "True"


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        (GONE, "InvalidCACertificateRef"),
        ("{group: '', kind: ConfigMap, name: nonsense}", "InvalidCACertificateRef"),
        ("{group: '', kind: Secret, name: cert}", "InvalidCACertificateRef"),
        ("{group: '', kind: Service, name: ca}", "InvalidCACertificateKind"),
        ("{group: other.example, kind: ConfigMap, name: ca}", "InvalidCACertificateKind"),
        ("{group: '', kind: ConfigMap, name: ca, namespace: elsewhere}", "RefNotPermitted"),
    ],
)
def test_without_an_authority_the_listener_stays_closed_and_plain_ones_are_served(ref: str, reason: str):
    made = made_with(validation(ref), "", ca(), ca("nonsense", "nonsense"), listeners=f"{HTTPS}, {PLAIN}")
    assert [one.name for one in made.spec.listeners] == ["plain"]
    assert of_listener(made, "ResolvedRefs", "web")[:2] == ("False", reason)
    assert of_listener(made, "Accepted", "web")[:2] == ("False", "NoValidCACertificate")
    assert of_listener(made, "Programmed", "web")[0] == "False"
    for condition in ("Accepted", "ResolvedRefs", "Programmed"):
        assert of_listener(made, condition, "plain")[0] == "True"


def test_an_authority_of_another_namespace_needs_a_grant():
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: elsewhere}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]
  to: [{group: "", kind: ConfigMap}]
"""
    ref = "{group: '', kind: ConfigMap, name: ca, namespace: elsewhere}"
    there = ca().replace("{name: ca}", "{name: ca, namespace: elsewhere}")
    assert clients(made_with(validation(ref), "", there, grant)) is not None


def test_a_secret_may_hold_the_authority():
    text = ca(pem=PKI.ca_pem).replace("ConfigMap", "Secret").replace("\ndata:", "\nstringData:")
    found = clients(made_with(validation(CA.replace("ConfigMap", "Secret")), "", text))
    assert found is not None
    assert found.ca_pem.strip() == PKI.ca_pem.strip()


@pytest.mark.parametrize("is_default", [True, False])
def test_letting_everybody_in_is_a_condition_of_the_gateway(is_default: bool):
    open_to_all = validation(CA, mode="AllowInsecureFallback")
    made = made_with(
        open_to_all if is_default else "{}", "" if is_default else f"{{port: 8443, tls: {open_to_all}}}", ca()
    )
    found = clients(made)
    assert found is not None
    assert found.takes_any
    said = of_object(made, "Gateway", "default/gw", "InsecureFrontendValidationMode")
    assert said[:2] == ("True", "ConfigurationChanged")
    assert ("the default" if is_default else "port 8443") in said[2]
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("True", "Accepted")


def test_where_any_certificate_cannot_be_taken_the_listener_stays_closed():
    insecure = frontend(validation(CA, mode="AllowInsecureFallback"), "")
    manifests = (gateway(HTTPS, more=insecure), SERVER, ca())
    assert compiled(*manifests).spec.listeners
    made = compiled(*manifests, can_take_any_certificate=False)
    assert not made.spec.listeners
    assert of_listener(made, "Accepted")[:2] == ("False", "UnsupportedValue")


# --- what backends are shown ---------------------------------------------------------------------------------------
OWN = pair(PKI, "gateway.example")
MINE = secret(*OWN, name="mine")


def showing(ref: str = "{name: mine}", base: str = REVERSE) -> str:
    field = f"tls: {{backend: {{clientCertificateRef: {ref}}}}}"
    return base.replace("  gatewayClassName", f"  {field}\n  gatewayClassName")


def backend_of(made: Compiled) -> BackendIR:
    found = listener(made).http_routes[0].rules[0].backends[0]
    assert found.backend is not None, found.error
    return found.backend


def own_backend(tls: str, destination: str = "type: Fqdn, fqdn: {hostname: a.example}", name: str = "plain") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}}}
spec: {{destination: {{{destination}, ports: [{{number: 443, tls: {{{tls}}}}}]}}}}
"""


TO_BACKEND = ROUTE.replace("name: svc, port: 80", "group: egressproxy.io, kind: Backend, name: plain")


@pytest.mark.parametrize(
    "objects",
    [
        [ROUTE, SERVICE, POLICY],
        [TO_BACKEND, own_backend("mode: Simple")],
    ],
)
def test_backends_with_tls_are_shown_the_certificate_of_the_gateway(objects: list[str]):
    made = compiled(showing(), MINE, *objects)
    tls = backend_of(made).tls
    assert tls is not None
    assert tls.client_key is not None
    assert (tls.client_certificate.encode(), tls.client_key.reveal()) == OWN
    assert of_object(made, "Gateway", "default/gw", "ResolvedRefs")[:2] == ("True", "ResolvedRefs")


def test_a_gateway_without_one_shows_none():
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY)
    tls = backend_of(made).tls
    assert tls is not None
    assert not tls.client_certificate
    assert of_object(made, "Gateway", "default/gw", "ResolvedRefs")[0] == "True"


def test_a_backends_own_certificate_wins():
    other = pair(PKI, "other.example")
    text = own_backend("mode: Mutual, clientCertificateRef: {name: other}")
    tls = backend_of(compiled(showing(), MINE, secret(*other, name="other"), TO_BACKEND, text)).tls
    assert tls is not None
    assert tls.client_certificate.encode() == other[0]


def test_each_gateway_shows_its_own_so_their_connections_are_not_shared():
    second = showing("{name: other}").replace("{name: gw}", "{name: gw2}").replace("8080", "8081")
    other = secret(*pair(PKI, "other.example"), name="other")
    both = ROUTE.replace("[{name: gw}]", "[{name: gw}, {name: gw2}]")
    made = compiled(showing(), second, MINE, other, both, SERVICE, POLICY)
    found = [one.http_routes[0].rules[0].backends[0].backend for one in made.spec.listeners]
    assert len(set(found)) == 2


def test_a_destination_that_the_client_names_is_shown_nothing():
    to_dynamic = TO_BACKEND.replace("name: plain", "name: dynamic")
    text = DYNAMIC.replace("type: Dynamic", "type: Dynamic, ports: [{number: 443, tls: {mode: Simple}}]")
    made = compiled(showing(base=FORWARD), MINE, to_dynamic, text)
    tls = backend_of(made).tls
    assert tls is not None
    assert not tls.client_certificate


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("{name: gone}", "InvalidClientCertificateRef"),
        ("{name: mine, kind: ConfigMap}", "InvalidClientCertificateRef"),
        ("{name: mine, group: other.example}", "InvalidClientCertificateRef"),
        ("{name: nonsense}", "InvalidClientCertificateRef"),
        ("{name: mine, namespace: elsewhere}", "RefNotPermitted"),
    ],
)
def test_without_its_certificate_the_gateway_is_accepted_and_backends_with_tls_are_closed(ref: str, reason: str):
    nonsense = secret(b"nonsense", b"secret-nonsense", name="nonsense")
    made = compiled(showing(ref), MINE, nonsense, ROUTE, SERVICE, POLICY)
    assert of_object(made, "Gateway", "default/gw", "ResolvedRefs")[:2] == ("False", reason)
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("True", "Accepted")
    found = listener(made).http_routes[0].rules[0].backends[0]
    assert found.backend is None
    assert "client certificate" in found.error
    assert "client certificate" in of_route(made, "Accepted")[2]
    assert "secret-nonsense" not in str(made.statuses)
    plain = compiled(showing(ref), MINE, nonsense, TO_BACKEND, PLAIN_BACKEND)
    assert backend_of(plain).tls is None


def test_a_certificate_of_another_namespace_needs_a_grant():
    grant = """
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: elsewhere}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]
  to: [{group: "", kind: Secret, name: mine}]
"""
    there = secret(*OWN, name="mine", namespace="elsewhere")
    made = compiled(showing("{name: mine, namespace: elsewhere}"), there, grant, ROUTE, SERVICE, POLICY)
    assert backend_of(made).tls is not None
    assert of_object(made, "Gateway", "default/gw", "ResolvedRefs")[:2] == ("True", "ResolvedRefs")


def test_a_gateway_whose_only_listener_is_closed_by_a_policy_is_not_accepted_nor_are_its_sets():
    """The policy is found when the listeners have been judged already: status says what is served all the same."""
    added = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
    asks = f"{frontend(validation(CA))}\n  allowedListeners: {{namespaces: {{from: Same}}}}"
    lists = "identity: {certificate: {crlRefs: [{kind: ConfigMap, name: gone}]}}"
    made = compiled(gateway(HTTPS, more=asks), SERVER, ca(pem=PKI.ca_pem), added, policy(lists))
    assert not made.spec.listeners
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "ListenersNotValid")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[0] == "False"
    assert of_object(made, "ListenerSet", "default/more", "Accepted")[:2] == ("False", "ParentNotAccepted")
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 0
