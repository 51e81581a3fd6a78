"""What Gateways, their listeners and ListenerSets say of themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.objects import (
    APP,
    INFRA,
    WEB,
    gateway,
    grant,
    http,
    https,
    listener_set,
    route,
    rule,
    secret_ref,
    tls,
)
from tests.conformance.suite import Suite
from tests.support import manifests as m

GOOD = ("Accepted=True/Accepted", "Programmed=True/Programmed")
SERVED = ("Accepted=True/Accepted", "Programmed=True/Programmed", "ResolvedRefs=True/ResolvedRefs")
BAD_CERTIFICATE = ("ResolvedRefs=False/InvalidCertificateRef", "Programmed=False")
NOT_PERMITTED = ("ResolvedRefs=False/RefNotPermitted", "Programmed=False")
CONFLICT = ("Accepted=False/Invalid", "Programmed=False", "Conflicted=True/ProtocolConflict")
BOTH = {"HTTPRoute", "GRPCRoute"}
NAME_OF_253 = "-".join(["gateway"] * 31) + "-long"


class TestGateways:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        nothing = {"group": "example.com", "kind": "Nothing", "name": "nothing"}
        suite.apply(
            gateway("parameters", http(), infrastructure={"parametersRef": nothing}),
            gateway("no-kind", http(kinds=["Invalid"])),
            gateway("one-kind", http(kinds=["Invalid", "HTTPRoute"])),
            gateway("no-protocol", {"name": "odd", "port": 80, "protocol": "example.com/odd"}),
            gateway("half-protocol", {"name": "odd", "port": 80, "protocol": "example.com/odd"}, http(port=8080)),
            gateway(NAME_OF_253[:253], http()),
            gateway("no-value", http(), addresses=[{"type": "IPAddress"}]),
            m.secret("malformed", {"tls.crt": "-", "tls.key": "-"}, namespace=INFRA, kind="kubernetes.io/tls"),
            gateway("certificates", *(
                https(name, port, cert=[ref]) for name, port, ref in (
                    ("missing", 443, secret_ref("missing")), ("group", 444, secret_ref("site", group="odd.example")),
                    ("kind", 445, secret_ref("site", kind="Odd")), ("malformed", 446, secret_ref("malformed")),
                    ("far", 447, secret_ref("site", namespace=WEB)),
                )
            )),
            route("at-missing", "certificates/missing", rule()),
            gateway("overlaps", https("foo", hostname="foo.example.com"), https("bar", hostname="bar.bar.example.com"),
                    https("wild", hostname="*.example.com"), https("apex", hostname="example.com"),
                    https("elsewhere", 9443, "foo.example.com")),
            gateway("conflicts", tls("tls", 443, "abc.example.com", kinds=["TLSRoute"]), https("https", 8443),
                    tls("passes", 8443)),
            route("http-at-tls", "conflicts/tls", rule(), hosts="abc.example.com"),
            route("tls-at-tls", "conflicts/tls", rule(to="tls-backend:443"), kind="TLSRoute", hosts="abc.example.com"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("same-namespace", GOOD),
            ("parameters", ("Accepted=False/InvalidParameters",)),
            ("no-protocol", ("Accepted=False/ListenersNotValid",)),
            ("half-protocol", ("Accepted=True/ListenersNotValid",)),
            (NAME_OF_253[:253], GOOD),
            ("no-value", GOOD),
            ("overlaps", GOOD),
        ],
    )
    def test_gateway(self, suite: Suite, name: str, expected: tuple[str, ...]):
        status = suite.gateway(name, *expected)
        if expected is GOOD:
            assert status["addresses"]

    @pytest.mark.parametrize(
        ("name", "section", "expected", "kinds"),
        [
            ("no-kind", "http", ("ResolvedRefs=False/InvalidRouteKinds",), ()),
            ("one-kind", "http", ("ResolvedRefs=False/InvalidRouteKinds",), {"HTTPRoute"}),
            ("no-protocol", "odd", ("Accepted=False/UnsupportedProtocol",), ()),
            ("half-protocol", "odd", ("Accepted=False/UnsupportedProtocol",), ()),
            ("half-protocol", "http", ("Accepted=True",), {"HTTPRoute"}),
            ("certificates", "missing", BAD_CERTIFICATE, {"HTTPRoute"}),
            ("certificates", "group", BAD_CERTIFICATE, {"HTTPRoute"}),
            ("certificates", "kind", BAD_CERTIFICATE, {"HTTPRoute"}),
            ("certificates", "malformed", BAD_CERTIFICATE, {"HTTPRoute"}),
            ("certificates", "far", NOT_PERMITTED, {"HTTPRoute"}),
            ("overlaps", "foo", (*SERVED, "OverlappingTLSConfig=True/OverlappingHostnames"), None),
            ("overlaps", "bar", (*SERVED, "OverlappingTLSConfig=True/OverlappingHostnames"), None),
            ("overlaps", "wild", (*SERVED, "OverlappingTLSConfig=True/OverlappingHostnames"), None),
            ("overlaps", "apex", (*SERVED, "-OverlappingTLSConfig"), None),
            ("overlaps", "elsewhere", (*SERVED, "-OverlappingTLSConfig"), None),
            ("conflicts", "tls", SERVED, {"TLSRoute"}),
            ("conflicts", "https", CONFLICT, None),
            ("conflicts", "passes", CONFLICT, None),
        ],
    )
    def test_listener(self, suite: Suite, name: str, section: str, expected: tuple[str, ...], kinds: Any):
        suite.listener(name, section, *expected, kinds=kinds)

    def test_routes_at_odd_listeners(self, suite: Suite):
        suite.listener("certificates", "missing", attached=1)
        suite.route("http-at-tls", "Accepted=False/NotAllowedByListeners", "ResolvedRefs=True/ResolvedRefs")
        suite.route("tls-at-tls", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs", kind="TLSRoute")
        for section, count in (("tls", 1), ("https", 0), ("passes", 0)):
            suite.listener("conflicts", section, attached=count)
        assert suite.is_refused("conflicts", port=8443, sni="abc.example.com")
        answer = suite.ask(
            "conflicts", host="abc.example.com", sni="abc.example.com", context=suite.client(suite.backend_pki)
        )
        assert answer.echo is not None
        assert answer.echo["tls"]["sni"] == "abc.example.com"


def test_secrets_of_other_namespaces_need_a_grant(suite: Suite):
    refs = [
        ("all", APP, "site"),
        ("specific", WEB, "site"),
        ("no-name", WEB, "other"),
        ("no-grant", INFRA + "-2", "site"),
    ]
    suite.apply(
        *(gateway(name, https(cert=[secret_ref(secret, namespace=ns)])) for name, ns, secret in refs),
        grant("all", APP, "Gateway", INFRA, "Secret"),
        grant("specific", WEB, "Gateway", INFRA, "Secret", only="site"),
        grant("wrong-source", INFRA + "-2", "Gateway", APP, "Secret"),
        grant("wrong-kind", INFRA + "-2", "HTTPRoute", INFRA, "Secret"),
    )
    for name, _, _ in refs:
        suite.listener(name, "https", *(NOT_PERMITTED if name.startswith("no-") else SERVED), kinds=BOTH)


class TestChanges:
    """Conditions follow each change, with the object's new generation."""

    def test_listeners_come_and_go_and_get_another_hostname(self, suite: Suite):
        suite.apply(
            gateway("changing", http(hostname="a.example.com")), route("r", "changing", rule(), hosts="b.example.com")
        )
        first = suite.get("Gateway", "changing")["metadata"]["generation"]
        suite.route("r", "Accepted=False/NoMatchingListenerHostname")
        suite.listener("changing", "http", attached=0)
        suite.change(gateway("changing", http(hostname="b.example.com"), https()))
        assert suite.get("Gateway", "changing")["metadata"]["generation"] == first + 1
        suite.route("r", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
        suite.gateway("changing", *GOOD)
        suite.listener("changing", "http", *SERVED, attached=1, kinds=BOTH)
        suite.listener("changing", "https", *SERVED, attached=1, kinds=BOTH)
        assert suite.ask("changing", host="b.example.com").who == "infra-backend-v1"
        suite.change(
            gateway("changing", https()), route("r", "changing", rule(to="infra-backend-v2"), hosts="b.example.com")
        )
        assert [each["name"] for each in suite.gateway("changing", *GOOD)["listeners"]] == ["https"]
        assert suite.get("HTTPRoute", "r")["metadata"]["generation"] == 2
        assert suite.ask("changing", host="b.example.com", sni="b.example.com").who == "infra-backend-v2"
        assert suite.is_refused("changing", host="b.example.com")

    def test_many_listeners_at_once(self, suite: Suite):
        plain, secured = range(7001, 7011), range(7101, 7106)
        listeners = [http(f"http-{port}", port) for port in plain] + [https(f"https-{port}", port) for port in secured]
        suite.apply(gateway("many", http(), infrastructure={"labels": {"a": "b"}}), route("r", "many", rule()))
        suite.change(gateway("many", http(), *listeners))
        suite.gateway("many", *GOOD)
        for made in listeners:
            suite.listener("many", made["name"], *SERVED, attached=1)
            sni = "example.org" if made["protocol"] == "HTTPS" else ""
            assert suite.ask("many", port=made["port"], sni=sni).who == "infra-backend-v1"

    def test_a_listener_set_gets_another_hostname_and_goes(self, suite: Suite):
        admits = {"allowedListeners": {"namespaces": {"from": "Same"}}}
        made = route("r", self_parent("set"), rule(), hosts="b.example.com")
        suite.apply(
            gateway("owner", http(port=81), **admits),
            listener_set("set", "owner", http("a", 80, "a.example.com")),
            made,
        )
        suite.route("r", "Accepted=False/NoMatchingListenerHostname")
        suite.change(listener_set("set", "owner", http("a", 80, "b.example.com")))
        suite.gateway("set", *GOOD, kind="ListenerSet")
        suite.listener("set", "a", *SERVED, attached=1, kinds=BOTH, kind="ListenerSet")
        suite.route("r", "Accepted=True/Accepted")
        assert suite.ask("owner", host="b.example.com").who == "infra-backend-v1"
        suite.apply(gateway("owner", http(port=81), **admits), made)
        assert suite.gateway("owner", *GOOD).get("attachedListenerSets", 0) == 0
        assert suite.is_refused("owner", host="b.example.com")

    def test_what_belongs_to_others_gets_no_status(self, suite: Suite):
        mine = {"metadata": {"name": "mine"}, "spec": {"controllerName": "egressproxy.io/gateway-controller"}}
        other = {"metadata": {"name": "other"}, "spec": {"controllerName": "example.com/controller"}}
        kind = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass"}
        suite.apply(
            kind | mine,
            kind | other,
            gateway("ours", http(), gatewayClassName="mine"),
            gateway("foreign", http(), gatewayClassName="other"),
            route("r", ["ours"], rule()),
            route("at-foreign", ["foreign"], rule()),
        )
        suite.gateway("ours", *GOOD)
        suite.route("r", "Accepted=True/Accepted")
        assert suite.ask("ours").who == "infra-backend-v1"
        for kind_name, name in (("Gateway", "foreign"), ("HTTPRoute", "at-foreign")):
            assert not suite.get(kind_name, name).get("status")

    def test_static_addresses(self, suite: Suite):
        usable = suite.spare_address
        addresses = [
            {"type": "test/odd", "value": "odd"},
            {"type": "IPAddress", "value": "192.0.2.77"},
            {"type": "IPAddress", "value": usable},
        ]
        suite.apply(gateway("static", http(), addresses=addresses))
        suite.gateway("static", "Accepted=False/UnsupportedAddress")
        suite.change(gateway("static", http(), addresses=addresses[1:]))
        suite.gateway("static", "Accepted=True/Accepted", "Programmed=False/AddressNotUsable")
        suite.change(gateway("static", http(), addresses=addresses[2:]))
        status = suite.gateway("static", *GOOD)
        assert status["addresses"] == [{"type": "IPAddress", "value": usable}]
        suite.listener("static", "http", *SERVED)

    def test_a_class_keeps_its_generation(self, suite: Suite):
        made = m.manifest("gateway.networking.k8s.io/v1", "GatewayClass", "mine", "")
        made["spec"] = {"controllerName": "egressproxy.io/gateway-controller", "description": "old"}
        del made["metadata"]["namespace"]
        for description in ("old", "new"):
            made["spec"]["description"] = description
            suite.apply(made)
            path = "/apis/gateway.networking.k8s.io/v1/gatewayclasses/mine"
            found = json.loads(suite.process.admin(path)[1])
            conditions = {each["type"]: each for each in found["status"]["conditions"]}
            assert conditions["Accepted"]["status"] == conditions["SupportedVersion"]["status"] == "True"
            assert conditions["Accepted"]["observedGeneration"] == found["metadata"]["generation"]


class TestListenerSets:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        allow = lambda where: {"allowedListeners": {"namespaces": where}}  # noqa: E731
        selector = {"from": "Selector", "selector": {"matchLabels": {"gateway-conformance": "backend"}}}
        nothing = {"group": "example.com", "kind": "Nothing", "name": "nothing"}
        time = lambda made, day: made["metadata"].update(creationTimestamp=f"2024-01-0{day}T00:00:00Z") or made  # noqa: E731
        far = [secret_ref("site", namespace=WEB)]
        suite.apply(
            gateway("default", http()), listener_set("at-default", "default", http("a", 8080)),
            gateway("none", http(), **allow({"from": "None"})), listener_set("at-none", "none", http("a", 8080)),
            gateway("same", http(), **allow({"from": "Same"})), listener_set("at-same", "same", http("a", 8080)),
            listener_set("not-same", "same", http("b", 8081), ns=WEB),
            gateway("all", http(), **allow({"from": "All"})), listener_set("at-all", "all", http("a", 8080), ns=WEB),
            gateway("chosen", http(), **allow(selector)), listener_set("in-chosen", "chosen", http("a", 8080), ns=WEB),
            listener_set("not-chosen", "chosen", http("b", 8081)),
            gateway("bad", http(), infrastructure={"parametersRef": nothing}, **allow({"from": "All"})),
            listener_set("at-bad", "bad", http("a", 8080)),
            gateway("hosts", http("gw", 80, "gw.example.com"), http("wild", 80, "*.wild.com"),
                    **allow({"from": "All"})),
            time(listener_set("hosts-1", "hosts", http("lost", 80, "gw.example.com"),
                              http("won", 80, "one.example.com")), 1),
            time(listener_set("hosts-2", "hosts", http("lost", 80, "one.example.com"), http("wild", 80, "*.wild.com"),
                              ns=WEB), 2),
            gateway("crossing", http(port=81), **allow({"from": "All"})),
            listener_set("cross-2", "crossing", http("lost", 80, "x.example.com"),
                         http("own", 80, "b.example.com"), ns=WEB),
            listener_set("cross-1", "crossing", http("won", 80, "x.example.com"), ns=APP),
            route("cross-2", self_parent("cross-2", "own") | {"namespace": WEB}, rule(to="web-backend"), ns=WEB),
            route("cross-1", self_parent("cross-1") | {"namespace": APP}, rule(to="app-backend-v1"), ns=APP),
            gateway("protocols", https("gw", 8443), **allow({"from": "All"})),
            listener_set("protocols-1", "protocols", tls("lost", 8443), tls("won", 9443)),
            listener_set("protocols-2", "protocols", http("odd", 8080, kinds=["TLSRoute"])),
            gateway("grants", http(), **allow({"from": "All"})),
            listener_set("granted", "grants", https(cert=far)),
            listener_set("not-granted", "grants", https("other", 444, cert=[secret_ref("backend-ca", namespace=WEB)])),
            grant("g", WEB, "ListenerSet", INFRA, "Secret", only="site"),
            gateway("routes", http("gw", 80, "gw.example.com"), **allow({"from": "All"})),
            listener_set("routed", "routes", http("all", 80, "all.example.com", routes="All"),
                         http("same", 80, "same.example.com"),
                         http("some", 80, "some.example.com", routes="gateway-conformance=backend"),
                         http("kinds", 80, "kinds.example.com", kinds=["HTTPRoute"])),
            route("at-set", self_parent("routed"), rule()),
            route("from-web", self_parent("routed"), rule(to="web-backend"), ns=WEB),
            route("at-both", [self_parent("routed", "all"), "routes/all"], rule("/both", "infra-backend-v2")),
            route("at-gateway", "routes", rule(to="infra-backend-v3")),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "ns", "expected"),
        [
            ("at-default", INFRA, ("Accepted=False/NotAllowed", "Programmed=False/NotAllowed")),
            ("at-none", INFRA, ("Accepted=False/NotAllowed", "Programmed=False/NotAllowed")),
            ("at-same", INFRA, GOOD),
            ("not-same", WEB, ("Accepted=False/NotAllowed", "Programmed=False/NotAllowed")),
            ("at-all", WEB, GOOD),
            ("in-chosen", WEB, GOOD),
            ("not-chosen", INFRA, ("Accepted=False/NotAllowed", "Programmed=False/NotAllowed")),
            ("at-bad", INFRA, ("Accepted=False/ParentNotAccepted", "Programmed=False")),
            ("hosts-1", INFRA, ("Accepted=True", "Programmed=True/Programmed")),
            ("hosts-2", WEB, ("Accepted=False/ListenersNotValid", "Programmed=False/ListenersNotValid")),
            ("protocols-1", INFRA, ("Accepted=True", "Programmed=True/Programmed")),
            ("granted", INFRA, GOOD),
            ("not-granted", INFRA, ("Accepted=False/ListenersNotValid", "Programmed=False/ListenersNotValid")),
            ("routed", INFRA, GOOD),
        ],
    )
    def test_set(self, suite: Suite, name: str, ns: str, expected: tuple[str, ...]):
        suite.gateway(name, *expected, kind="ListenerSet", ns=ns)

    @pytest.mark.parametrize(
        ("name", "ns", "section", "expected"),
        [
            ("at-same", INFRA, "a", SERVED),
            ("hosts-1", INFRA, "won", SERVED),
            ("hosts-1", INFRA, "lost", "HostnameConflict"),
            ("hosts-2", WEB, "lost", "HostnameConflict"),
            ("hosts-2", WEB, "wild", "HostnameConflict"),
            ("cross-1", APP, "won", SERVED),
            ("cross-2", WEB, "lost", "HostnameConflict"),
            ("cross-2", WEB, "own", SERVED),
            ("protocols-1", INFRA, "lost", "ProtocolConflict"),
            ("protocols-1", INFRA, "won", SERVED),
            ("protocols-2", INFRA, "odd", ("ResolvedRefs=False/InvalidRouteKinds",)),
            ("granted", INFRA, "https", SERVED),
            ("not-granted", INFRA, "other", ("ResolvedRefs=False/RefNotPermitted", "Programmed=False")),
        ],
    )
    def test_listener(self, suite: Suite, name: str, ns: str, section: str, expected: Any):
        if isinstance(expected, str):
            expected = [f"{kind}/{expected}" for kind in ("Accepted=False", "Programmed=False", "Conflicted=True")]
        suite.listener(name, section, *expected, kind="ListenerSet", ns=ns)

    def test_counts(self, suite: Suite):
        for name, count in (
            ("default", 0),
            ("same", 1),
            ("chosen", 1),
            ("bad", 0),
            ("hosts", 1),
            ("grants", 1),
            ("crossing", 2),
        ):
            assert suite.get("Gateway", name)["status"].get("attachedListenerSets", 0) == count, name
        suite.listener("hosts", "gw", *SERVED)
        suite.listener("protocols", "gw", *SERVED)
        for section, count in (("all", 3), ("same", 1), ("some", 1), ("kinds", 1)):
            suite.listener("routed", section, *SERVED, attached=count, kind="ListenerSet")
        suite.listener("routed", "all", kinds=BOTH, kind="ListenerSet")
        suite.listener("routed", "kinds", kinds={"HTTPRoute"}, kind="ListenerSet")
        suite.route("at-both", "Accepted=True/Accepted", parent=0)
        suite.route("at-both", "Accepted=False/NoMatchingParent", parent=1)

    @pytest.mark.parametrize(
        ("host", "path", "who"),
        [
            ("all.example.com", "/both", "infra-backend-v2"), ("same.example.com", "/", "infra-backend-v1"),
            ("some.example.com", "/", "web-backend"), ("gw.example.com", "/", "infra-backend-v3"),
            ("none.example.com", "/", 404), ("same.example.com", "/both", "infra-backend-v1"),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, host: str, path: str, who: str | int):
        assert suite.ask("routes", path, host).who == who

    def test_sets_of_several_namespaces_serve_what_they_won(self, suite: Suite):
        for host, who in (("x.example.com", "app-backend-v1"), ("b.example.com", "web-backend")):
            assert suite.ask("crossing", host=host).who == who
        suite.route("cross-1", "Accepted=True/Accepted", ns=APP)
        suite.route("cross-2", "Accepted=True/Accepted", ns=WEB)


def self_parent(name: str, section: str = "") -> dict[str, str]:
    made = {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": name, "namespace": INFRA}
    return {**made, **({"sectionName": section} if section else {})}
