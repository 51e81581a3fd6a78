from __future__ import annotations

import base64
from pathlib import Path

import pytest
import trustme

from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.ir.gateway import ListenerProtocol, TlsMode
from egressproxy.model.certificate import CertificateUse
from tests.config.compile.kit import (
    FORWARD,
    compiled,
    listener,
    of_listener,
    of_object,
    policy,
    said,
    status,
)
from tests.support.pki import Pki, chain


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


def test_an_unknown_protocol_closes_that_listener_alone():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 81, protocol: example.com/udp}"))
    assert [one.name for one in made.spec.listeners] == ["a"]
    assert of_listener(made, "Accepted", "b")[:2] == ("False", "UnsupportedProtocol")
    assert "supported are HTTP, HTTPS" in of_listener(made, "Accepted", "b")[2]
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("True", "ListenersNotValid")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("forwardproxy", "egressproxy.io/forward-proxy"), ("http", "HTTP"), ("HTPS", "HTTPS")],
)
def test_a_misspelt_protocol_gets_the_nearest_one(written: str, meant: str):
    made = compiled(gateway(f"{{name: a, port: 80, protocol: {written}}}"))
    assert of_listener(made, "Accepted")[2].endswith(f"did you mean {meant}?")


def test_listeners_of_one_port_are_told_apart_by_hostname():
    text = "{name: a, port: 80, protocol: HTTP, hostname: a.example}, {name: b, port: 80, protocol: HTTP}"
    assert [one.hostname for one in compiled(gateway(text)).spec.listeners] == ["a.example", ""]


def test_two_protocols_on_one_port_are_both_conflicted():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: TCP}"))
    assert not made.spec.listeners
    for name in "ab":
        assert of_listener(made, "Conflicted", name)[:2] == ("True", "ProtocolConflict")
        assert of_listener(made, "Programmed", name)[0] == "False"


PASSTHROUGH = "{name: sni, port: 8443, protocol: TLS, hostname: x.example, tls: {mode: Passthrough}}"
ENDED = "{name: end, port: 8443, protocol: TLS, hostname: y.example, tls: {certificateRefs: [{name: cert}]}}"
PROXY = "{name: proxy, port: 8443, protocol: egressproxy.io/forward-proxy, tls: {certificateRefs: [{name: cert}]}}"


@pytest.mark.parametrize(
    "listeners",
    [
        [HTTPS, PASSTHROUGH],
        [HTTPS.replace("web,", "web, hostname: '*.example',"), PASSTHROUGH, ENDED],
        [PASSTHROUGH, ENDED],
        [PROXY, PASSTHROUGH, ENDED],
    ],
)
def test_http_and_streams_inside_tls_share_a_port_by_hostname(pki: Pki, listeners: list[str]):
    made = compiled(gateway(", ".join(listeners)), secret(*pair(pki, "a.example")))
    assert len(made.spec.listeners) == len(listeners)
    for found in status(made, "Gateway", "default/gw")["listeners"]:
        assert said(found["conditions"], "Accepted")[:2] == ("True", "Accepted")
        assert said(found["conditions"], "Conflicted")[:2] == ("False", "NoConflicts")


@pytest.mark.parametrize(
    "listeners",
    [
        [HTTPS, PASSTHROUGH.replace("hostname: x.example, ", "")],
        [HTTPS.replace("web,", "web, hostname: x.example,"), PASSTHROUGH],
        [HTTPS.replace("web,", "web, hostname: y.example,"), ENDED],
        [PROXY, PASSTHROUGH.replace("hostname: x.example, ", "")],
        [PROXY, HTTPS.replace("web,", "web, hostname: x.example,")],
        ["{name: plain, port: 8443, protocol: HTTP}", PASSTHROUGH],
        ["{name: tcp, port: 8443, protocol: TCP}", PASSTHROUGH],
    ],
)
def test_what_a_hello_does_not_tell_apart_is_a_conflict_of_protocols(pki: Pki, listeners: list[str]):
    made = compiled(gateway(", ".join(listeners)), secret(*pair(pki, "a.example")))
    assert not made.spec.listeners
    for found in status(made, "Gateway", "default/gw")["listeners"]:
        assert said(found["conditions"], "Conflicted")[:2] == ("True", "ProtocolConflict")


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


# --- TLS that overlaps -----------------------------------------------------------------------------------------------


def test_https_listeners_of_one_port_with_hosts_in_common_say_so(pki: Pki):
    def https(name: str, hostname: str, port: int = 443) -> str:
        tls = "tls: {certificateRefs: [{name: cert}]}"
        return f'{{name: {name}, port: {port}, protocol: HTTPS, hostname: "{hostname}", {tls}}}'

    listeners = [
        https("foo", "foo.example.com"),
        https("bar", "bar.bar.example.com"),
        https("wildcard", "*.example.com"),
        https("parent", "example.com"),
        https("elsewhere", "foo.example.com", 9443),
    ]
    made = compiled(gateway(", ".join(listeners)), secret(*pair(pki, "*.example.com")))
    for name in ("foo", "bar", "wildcard"):
        assert of_listener(made, "OverlappingTLSConfig", name)[:2] == ("True", "OverlappingHostnames")
    for name in ("parent", "elsewhere"):
        assert of_listener(made, "OverlappingTLSConfig", name) == ("", "", "")
    assert {of_listener(made, "Accepted", name)[0] for name in ("foo", "bar", "wildcard", "parent")} == {"True"}
    assert len(made.spec.listeners) == 5


def test_a_listener_for_every_host_overlaps_all_others_of_its_port(pki: Pki):
    named = HTTPS.replace("name: web", "name: named, hostname: a.example")
    made = compiled(gateway(f"{HTTPS}, {named}"), secret(*pair(pki, "a.example")))
    assert of_listener(made, "OverlappingTLSConfig", "web")[2].endswith("named (a.example)")
    assert of_listener(made, "OverlappingTLSConfig", "named")[2].endswith("web (every host)")


def test_listeners_without_tls_do_not_overlap():
    text = "{name: a, port: 80, protocol: HTTP, hostname: a.example}, {name: b, port: 80, protocol: HTTP}"
    assert of_listener(compiled(gateway(text)), "OverlappingTLSConfig", "a") == ("", "", "")


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener_", "kinds"),
    [
        ("protocol: HTTP", ["HTTPRoute", "GRPCRoute"]),
        ("protocol: TCP", ["TCPRoute"]),
        ("protocol: TLS, tls: {mode: Passthrough}", ["TLSRoute"]),
        ("protocol: HTTP, allowedRoutes: {kinds: [{kind: GRPCRoute}]}", ["GRPCRoute"]),
        ("protocol: HTTP, allowedRoutes: {kinds: [{kind: Nonsense}, {kind: HTTPRoute}]}", ["HTTPRoute"]),
        ("protocol: HTTP, allowedRoutes: {kinds: [{kind: Nonsense}]}", []),
        ("protocol: example.com/none", []),
    ],
)
def test_supported_kinds_are_those_of_the_protocol_that_the_listener_allows(listener_: str, kinds: list[str]):
    made = compiled(gateway(f"{{name: a, port: 80, {listener_}}}"))
    (found,) = status(made, "Gateway", "default/gw")["listeners"]
    group = "gateway.networking.k8s.io"
    assert found["supportedKinds"] == [{"group": group, "kind": kind} for kind in kinds]


def test_terminated_and_passed_tls_share_a_port_by_hostname(pki: Pki):
    terminated = (
        "{name: a, port: 443, protocol: TLS, hostname: a.example, "
        "tls: {mode: Terminate, certificateRefs: [{name: cert}]}}"
    )
    passed = "{name: b, port: 443, protocol: TLS, hostname: b.example, tls: {mode: Passthrough}}"
    made = compiled(gateway(f"{terminated}, {passed}"), secret(*pair(pki, "a.example")))
    assert [(one.name, one.tls.mode) for one in made.spec.listeners if one.tls] == [
        ("a", TlsMode.TERMINATE),
        ("b", TlsMode.PASSTHROUGH),
    ]
    assert {of_listener(made, "Conflicted", name)[0] for name in "ab"} == {"False"}


def test_a_conflict_says_what_would_tell_listeners_apart():
    https = "{name: a, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: c}]}}"
    tls = "{name: b, port: 8443, protocol: TLS, tls: {mode: Passthrough}}"
    for first, remedy in (
        (https, "another hostname or port"),
        ("{name: a, port: 8443, protocol: TCP}", "another port"),
    ):
        message = of_listener(compiled(gateway(f"{first}, {tls}")), "Conflicted", "a")[2]
        assert message == f"listener b has protocol TLS on the same port: change a listener to {remedy}"


def test_listeners_of_a_gateway_that_exclude_each_other_are_invalid():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: TCP}"))
    for name in "ab":
        assert of_listener(made, "Accepted", name)[:2] == ("False", "Invalid")
        assert of_listener(made, "Programmed", name)[:2] == ("False", "ProtocolConflict")


def leaf_pair(leaf: trustme.LeafCert) -> tuple[bytes, bytes]:
    return chain(leaf).encode(), leaf.private_key_pem.bytes()


NAMED = HTTPS.replace("{name: web,", "{name: web, hostname: a.example,")
BAD = "egressproxy.io/InvalidCertificate"


@pytest.mark.parametrize(
    ("names", "span_s", "reason", "words"),
    [
        (("a.example",), (-9e5, -9e4), "CertificateExpired", "the certificate of Secret default/cert has expired on 2"),
        (("a.example",), (9e4, 9e5), "CertificateNotYetValid", "default/cert is not valid before 2"),
        (("b.example", "*.c.example"), (-9e5, 9e5), "HostnameNotCovered", "default/cert is for b.example, *.c.example"),
        (("*.example",), (-9e5, 9e4), "", ""),
    ],
)
def test_a_certificate_out_of_time_or_for_another_host_is_said_and_served(
    pki: Pki, names: tuple[str, ...], span_s: tuple[float, float], reason: str, words: str
):
    text = [gateway(NAMED), secret(*leaf_pair(pki.issue(*names, span_s=span_s)))]
    made = compiled(*text)
    assert listener(made).tls is not None
    assert of_listener(made, "Programmed")[0] == "True"
    assert of_listener(made, "ResolvedRefs")[0] == "True"
    assert of_listener(made, BAD)[:2] == (("True", reason) if reason else ("", ""))
    assert words in of_listener(made, BAD)[2]
    found = [w for w in status_warnings(load_text("\n---\n".join(text), "c.yaml"), made) if BAD in w.message]
    assert [w.field_path.startswith("spec.listeners[0].tls.certificateRefs") for w in found] == [True] * bool(reason)
    assert all(w.line for w in found)
    (end,) = made.validities
    assert (end.use, end.namespace, end.name) == (CertificateUse.LISTENER, "default", "cert")


def test_one_of_several_certificates_covers_the_hostname(pki: Pki):
    refs = NAMED.replace("{name: cert}", "{name: cert}, {name: other}")
    made = compiled(gateway(refs), secret(*pair(pki, "b.example")), secret(*pair(pki, "a.example"), "other"))
    assert of_listener(made, BAD) == ("", "", "")


def test_nothing_is_redirected_to_a_unix_socket():
    address = 'addresses: [{type: egressproxy.io/UnixSocket, value: "unix:///run/a.sock"}]'
    made = compiled(gateway("{name: l, port: 15901, protocol: egressproxy.io/transparent}", more=address))
    status_, reason, message = of_listener(made, "Accepted")
    assert (status_, reason) == ("False", "UnsupportedValue")
    assert "nothing can be redirected to a Unix socket" in message
    made = compiled(gateway("{name: l, port: 1080, protocol: egressproxy.io/socks5}", more=address))
    assert of_listener(made, "Accepted")[0] == "True"


def test_a_listener_of_dns_is_bound_for_datagrams_too():
    (made,) = compiled(gateway("{name: l, port: 53, protocol: egressproxy.io/dns}")).spec.listeners
    assert made.addresses == tuple(f"{before}{each}" for before in ("", "udp://") for each in made.addresses[:1])
    everywhere = gateway("{name: l, port: 53, protocol: egressproxy.io/dns}", more='addresses: [{value: "0.0.0.0"}]')
    words = "its own is not known; write nameServer.gatewayAddresses"
    of_gateway = compiled(everywhere, policy("nameServer: {addresses: Gateway}"))
    assert words in of_listener(of_gateway, "Accepted")[2]
    known = compiled(everywhere, policy("nameServer: {addresses: Gateway, gatewayAddresses: [192.0.2.7]}"))
    assert words not in of_listener(known, "Accepted")[2]
    address = 'addresses: [{type: egressproxy.io/UnixSocket, value: "unix:///run/a.sock"}]'
    of_unix = compiled(gateway("{name: l, port: 53, protocol: egressproxy.io/dns}", more=address))
    assert "no DNS client asks at a Unix socket" in of_listener(of_unix, "Accepted")[2]
    tls = "{name: l, port: 853, protocol: egressproxy.io/dns, tls: {certificateRefs: [{name: c}]}}"
    assert "DNS over TLS is not served" in of_listener(compiled(gateway(tls)), "Accepted")[2]


def test_a_forward_proxy_of_a_cluster_is_written_without_a_hyphen():
    """Gateway API's CRD admits letters and digits behind the slash of a protocol."""
    (listener,) = compiled(FORWARD.replace("forward-proxy", "forwardproxy")).spec.listeners
    assert listener.protocol is ListenerProtocol.FORWARD_PROXY
