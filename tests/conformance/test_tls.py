"""TLS on both sides: HTTPS listeners and SNI, client certificates, BackendTLSPolicy, a Gateway's own certificate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import objects as o
from tests.conformance.objects import INFRA, WEB, backend_tls, gateway, http, https, policy_target, route, rule, tls
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest

HTTPS_GW = "same-namespace-with-https-listener"
GOOD = ("Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
SERVED = ("Accepted=True/Accepted", "Programmed=True/Programmed", "ResolvedRefs=True/ResolvedRefs")
ABC = "abc.example.com"


class TestHttpsListeners:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        v1, v2, v3 = (f"infra-backend-v{number}" for number in (1, 2, 3))
        suite.apply(
            route("https-1", f"{HTTPS_GW}/https", rule(to=v1), hosts="example.org"),
            route("https-2", f"{HTTPS_GW}/with-hostname", rule(to=v2)),
            gateway("misdirected", https(), https("second", hostname="second-example.org"),
                    https("wild", hostname="*.wildcard.org"), https("fourth", hostname="fourth-example.wildcard.org")),
            route("m-1", "misdirected/https", rule("/detect", v1), hosts=["example.org", "second-example.org"]),
            route("m-2", "misdirected/second", rule("/detect", v2)),
            route("m-3", "misdirected/wild", rule("/detect", v3)),
            route("m-4", "misdirected/fourth", rule("/detect", "infra-backend-v1")),
            gateway("mixed", https(port=8884, hostname="*.example.com"), tls("passes", 8884, ABC)),
            route("mixed-http", "mixed/https", rule(to=v1)),
            route("mixed-tls", "mixed/passes", rule(to="tls-backend:443"), kind="TLSRoute", hosts=ABC),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("sni", "host", "who"),
        [
            ("example.org", "example.org", "infra-backend-v1"),
            ("unknown-example.org", "unknown-example.org", 404),
            ("second-example.org", "second-example.org", "infra-backend-v2"),
        ],
    )
    def test_https(self, suite: Suite, sni: str, host: str, who: str | int):
        assert suite.ask(HTTPS_GW, host=host, sni=sni).who == who

    @pytest.mark.parametrize(
        ("sni", "host", "who"),
        [
            ("example.org", "example.org", 1), ("example.org", "second-example.org", 421),
            ("example.org", "unknown-example.org", 404), ("second-example.org", "second-example.org", 2),
            ("second-example.org", "example.org", 421), ("second-example.org", "unknown-example.org", 421),
            ("unknown-example.org", "unknown-example.org", 404), ("unknown-example.org", "example.org", 1),
            ("unknown-example.org", "second-example.org", 421),
            ("third-example.wildcard.org", "third-example.wildcard.org", 3),
            ("third-example.wildcard.org", "fifth-example.wildcard.org", 3),
            ("third-example.wildcard.org", "fourth-example.wildcard.org", 421),
            ("fourth-example.wildcard.org", "fourth-example.wildcard.org", 1),
            ("fourth-example.wildcard.org", "fifth-example.wildcard.org", 421),
            ("third-example.wildcard.org", "example.org", 421),
        ],
    )  # fmt: skip
    def test_misdirected(self, suite: Suite, sni: str, host: str, who: int):
        answer = suite.ask("misdirected", "/detect", host, sni=sni)
        assert answer.who == (who if who > 3 else f"infra-backend-v{who}")

    def test_https_and_passthrough_on_one_port(self, suite: Suite):
        for section, kind in (("https", "HTTPRoute"), ("passes", "TLSRoute")):
            suite.listener("mixed", section, *SERVED, attached=1, kinds={kind})
        other = suite.ask("mixed", host="other.example.com", port=8884, sni="other.example.com")
        assert other.who == "infra-backend-v1"
        assert (
            suite.ask("mixed", host=ABC, port=8884, sni=ABC, context=suite.client(suite.backend_pki)).who
            == "tls-backend"
        )


def authority(name: str, **more: Any) -> Manifest:
    return {"group": "", "kind": "ConfigMap", "name": name, **more}


def asks(*refs: Manifest, **more: Any) -> Manifest:
    return {"validation": {"caCertificateRefs": list(refs), **more}}


class TestClientCertificates:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        per_port = lambda *ports: [{"port": port, "tls": how} for port, how in ports]  # noqa: E731
        plain = lambda name, **frontend: gateway(  # noqa: E731
            name, http(), https(), https("other", 8443), tls={"frontend": frontend}
        )
        fallback = {"mode": "AllowInsecureFallback"}
        good, other = asks(authority("client-ca")), asks(authority("wrong-ca"))
        suite.apply(
            plain("asked", default=good, perPort=per_port((8443, other))),
            plain("bad-default", default=asks(authority("missing")), perPort=per_port((8443, good))),
            gateway("bad-ports", https(), https("missing", 444), https("kind", 445), https("far", 446),
                    tls={"frontend": {"default": good, "perPort": per_port(
                        (444, asks(authority("missing"))), (445, asks(authority("client-ca", kind="Odd"))),
                        (446, asks(authority("client-ca", namespace=WEB))))}}),
            plain("fallback", default=asks(authority("client-ca"), **fallback),
                  perPort=per_port((8443, asks(authority("wrong-ca"), **fallback)))),
            route("all", ["asked", "bad-default", "bad-ports", "fallback"], rule()),
        )  # fmt: skip

    def test_the_right_certificate_is_demanded(self, suite: Suite):
        mine, foreign = suite.pki.issue("client.example"), suite.other_pki.issue("client.example")
        for port, good, bad in ((443, mine, foreign), (8443, foreign, mine)):
            ask = {"port": port, "sni": "example.org"}
            assert suite.ask("asked", context=suite.client(shows=good), **ask).who == "infra-backend-v1"
            assert suite.is_refused("asked", context=suite.client(shows=bad), **ask)
            assert suite.is_refused("asked", context=suite.client(), **ask)
        assert suite.ask("asked").who == "infra-backend-v1"
        suite.gateway(
            "asked", "Accepted=True/Accepted", "Programmed=True/Programmed", "-InsecureFrontendValidationMode"
        )

    def test_a_bad_default_closes_https_alone(self, suite: Suite):
        closed = (
            "ResolvedRefs=False/InvalidCACertificateRef",
            "Accepted=False/NoValidCACertificate",
            "Programmed=False",
        )
        suite.listener("bad-default", "http", *SERVED)
        suite.listener("bad-default", "https", *closed)
        suite.listener("bad-default", "other", *SERVED)
        assert suite.ask("bad-default").who == "infra-backend-v1"
        assert suite.is_refused("bad-default", sni="example.org")

    @pytest.mark.parametrize(
        ("section", "reason"),
        [("missing", "InvalidCACertificateRef"), ("kind", "InvalidCACertificateKind"), ("far", "RefNotPermitted")],
    )
    def test_a_bad_reference_of_a_port(self, suite: Suite, section: str, reason: str):
        closed = (f"ResolvedRefs=False/{reason}", "Accepted=False/NoValidCACertificate", "Programmed=False")
        suite.listener("bad-ports", section, *closed)
        suite.listener("bad-ports", "https", *SERVED)

    def test_fallback_lets_everybody_in(self, suite: Suite):
        suite.gateway("fallback", "Accepted=True/Accepted", "InsecureFrontendValidationMode=True/ConfigurationChanged")
        for port in (443, 8443):
            for shows in (suite.pki.issue("c.example"), suite.other_pki.issue("c.example"), None):
                answer = suite.ask("fallback", port=port, sni="example.org", context=suite.client(shows=shows))
                assert answer.who == "infra-backend-v1"


def san(kind: str, value: str) -> Manifest:
    return {"type": kind, "hostname" if kind == "Hostname" else "uri": value}


SPIFFE = "spiffe://abc.example.com/test-identity"
ODD_SPIFFE = "spiffe://def.example.com/test-identity"


class TestBackendTls:
    ALIASES = (
        "good", "mismatch", "wrong-ca", "missing-ca", "malformed-ca", "kind-ca", "twice", "twice-section", "both-ports",
        "san-dns", "san-dns-odd", "san-uri", "san-uri-odd", "san-both", "san-both-odd", "any-case",
    )  # fmt: skip

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        (pod,) = suite.pods_of("tls-backend")
        made: list[Manifest] = []
        for name in cls.ALIASES:
            ports: list[Manifest] = [{"name": "btls", "port": 443, "targetPort": pod.port, "appProtocol": "HTTPS"}]
            if name == "both-ports":
                ports += [{"name": "other", "port": 8443, "targetPort": pod.port}]
            if name == "any-case":
                del ports[0]["appProtocol"]
            targets = [{"name": each["name"], "port": pod.port, "protocol": "TCP"} for each in ports]
            made += [o.service(name, INFRA, *ports), o.slices(name, INFRA, targets, [pod.address])]
        on = lambda name, section="": policy_target(name, section)  # noqa: E731
        rules = [rule(f"/{name}", f"{name}:443") for name in cls.ALIASES]
        suite.apply(
            *made,
            route("to-tls", ["same-namespace", HTTPS_GW], *rules[:9], rule("/second-port", "both-ports:8443"),
                  hosts=ABC),
            route("to-sans", "same-namespace", *rules[9:], hosts=ABC),
            backend_tls("good", on("good")), backend_tls("mismatch", on("mismatch"), hostname="mismatch.example.com"),
            backend_tls("wrong-ca", on("wrong-ca"), ca="wrong-ca"),
            backend_tls("missing-ca", on("missing-ca"), ca="missing"),
            backend_tls("malformed-ca", on("malformed-ca"), ca="malformed-ca"),
            backend_tls("kind-ca", on("kind-ca"), ca=[authority("backend-ca", kind="Odd")]),
            backend_tls("twice-1", on("twice")), backend_tls("twice-2", on("twice"), hostname="other.example.com"),
            backend_tls("section-1", on("twice-section", "btls")),
            backend_tls("section-2", on("twice-section", "btls"), hostname="other.example.com"),
            backend_tls("whole", on("both-ports")),
            backend_tls("part", on("both-ports", "btls"), hostname="other.example.com"),
            backend_tls("san-dns", on("san-dns", "btls"), subjectAltNames=[san("Hostname", ABC)]),
            backend_tls("san-dns-odd", on("san-dns-odd", "btls"), subjectAltNames=[san("Hostname", "dce.example.com")]),
            backend_tls("san-uri", on("san-uri", "btls"), subjectAltNames=[san("URI", SPIFFE)]),
            backend_tls("san-uri-odd", on("san-uri-odd", "btls"), subjectAltNames=[san("URI", ODD_SPIFFE)]),
            backend_tls("san-both", on("san-both", "btls"),
                        subjectAltNames=[san("URI", SPIFFE), san("Hostname", ABC)]),
            backend_tls("san-both-odd", on("san-both-odd", "btls"),
                        subjectAltNames=[san("URI", ODD_SPIFFE), san("Hostname", "def.example.com")]),
            backend_tls("any-case", on("any-case")),
            gateway("terminates", tls("tls", 8443, ABC, cert="site")),
            route("terminated", "terminates", rule(to="good:443"), kind="TLSRoute", hosts=ABC),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("good", GOOD), ("mismatch", GOOD), ("wrong-ca", GOOD),
            ("missing-ca", ("Accepted=False/NoValidCACertificate", "ResolvedRefs=False/InvalidCACertificateRef")),
            ("malformed-ca", ("Accepted=False/NoValidCACertificate", "ResolvedRefs=False/InvalidCACertificateRef")),
            ("kind-ca", ("Accepted=False/NoValidCACertificate", "ResolvedRefs=False/InvalidKind")),
            ("twice-1", GOOD), ("twice-2", ("Accepted=False/Conflicted",)), ("section-1", GOOD),
            ("section-2", ("Accepted=False/Conflicted",)), ("whole", GOOD), ("part", GOOD), ("san-dns", GOOD),
            ("san-dns-odd", GOOD), ("san-uri", GOOD), ("san-uri-odd", GOOD), ("san-both", GOOD), ("san-both-odd", GOOD),
        ],
    )  # fmt: skip
    def test_policy(self, suite: Suite, name: str, expected: tuple[str, ...]):
        suite.policy(name, *expected)

    def test_policy_of_two_gateways(self, suite: Suite):
        suite.policy("good", *GOOD, gateway=HTTPS_GW)
        suite.policy("good", *GOOD, gateway="terminates")
        suite.route("to-tls", "Accepted=True/Accepted")
        suite.route("to-sans", *GOOD)

    @pytest.mark.parametrize(
        ("path", "sni"),
        [
            ("/good", ABC), ("/mismatch", ""), ("/wrong-ca", ""), ("/missing-ca", ""), ("/malformed-ca", ""),
            ("/kind-ca", ""), ("/twice", ABC), ("/twice-section", ABC), ("/both-ports", "other.example.com"),
            ("/second-port", ABC), ("/san-dns", ABC), ("/san-dns-odd", ""), ("/san-uri", ABC), ("/san-uri-odd", ""),
            ("/san-both", ABC), ("/san-both-odd", ""), ("/any-case", ABC),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, path: str, sni: str):
        answer = suite.ask("same-namespace", path, ABC)
        if not sni:
            assert answer.status in {500, 502, 503}
            return
        assert answer.who == "tls-backend"
        assert answer.echo is not None
        assert answer.echo["tls"]["sni"] == sni

    def test_https_is_encrypted_again(self, suite: Suite):
        echo = suite.ask(HTTPS_GW, "/good", ABC, sni=ABC).echo
        assert echo is not None
        assert echo["tls"]["sni"] == ABC
        echo = suite.ask("terminates", "/", ABC, port=8443, sni=ABC).echo
        assert echo is not None
        assert echo["tls"]["sni"] == ABC

    def test_generation(self, suite: Suite):
        suite.change(backend_tls("mismatch", policy_target("mismatch"), hostname="other.example.com"))
        assert suite.get("BackendTLSPolicy", "mismatch")["metadata"]["generation"] == 2
        suite.policy("mismatch", *GOOD)
        assert suite.ask("same-namespace", "/mismatch", ABC).who == "tls-backend"


def test_a_gateway_shows_its_certificate_to_backends(suite: Suite):
    shows = lambda gw, **ref: gateway(  # noqa: E731
        gw, http(), tls={"backend": {"clientCertificateRef": o.secret_ref(**{"name": "site"} | ref)}}
    )
    suite.apply(
        shows("shows"), gateway("plain", http()),
        *(shows(f"bad-{number}", **how) for number, how in enumerate(BAD_CERTIFICATES)),
        route("r", ["shows", "plain"], rule(to="tls-backend:443"), hosts=ABC),
        backend_tls("p", policy_target("tls-backend")),
    )  # fmt: skip
    suite.gateway("shows", "Accepted=True/Accepted", "ResolvedRefs=True")
    suite.policy("p", *GOOD, gateway="shows")
    for name, shown in (("shows", True), ("plain", False)):
        echo = suite.ask(name, "/", ABC).echo
        assert echo is not None
        assert bool(echo["tls"]["client"]) is shown
    for number, how in enumerate(BAD_CERTIFICATES):
        reason = "RefNotPermitted" if "namespace" in how else "InvalidClientCertificateRef"
        suite.gateway(f"bad-{number}", "Accepted=True/Accepted", f"ResolvedRefs=False/{reason}")


BAD_CERTIFICATES: tuple[dict[str, str], ...] = (
    {"name": "missing"}, {"group": "odd.example.com"}, {"kind": "Odd"}, {"namespace": WEB},
)  # fmt: skip
