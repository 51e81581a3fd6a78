"""HTTPRoutes: attachment to Gateways, references, matching."""

from __future__ import annotations

import pytest

from tests.conformance.objects import APP, INFRA, WEB, gateway, grant, http, route, rule, tls
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest

GOOD = ("Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")


class TestAttachment:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        far = {"name": "web-backend", "namespace": WEB, "port": 8080}
        suite.apply(
            route("simple", "same-namespace", rule("/simple")),
            route("cross", "backend-namespaces", rule(to="web-backend"), ns=WEB),
            route("shared", ["same-namespace", "all-namespaces"], rule("/shared")),
            route("first", "same-namespace", rule("/", "infra-backend-v2")),
            route("second", "all-namespaces", rule("/", "infra-backend-v3")),
            route("stranger", "same-namespace", rule("/stranger", "web-backend"), ns=WEB),
            route("no-section", "same-namespace/none", rule("/none")),
            route("no-port", {"name": "same-namespace", "port": 81}, rule("/none")),
            route("not-both", {"name": "same-namespace", "sectionName": "http", "port": 81}, rule("/none")),
            route("no-grant", "same-namespace", rule("/no-grant", far)),
            route("half", "same-namespace", rule("/half-bad", far), rule("/half-good", "infra-backend-v1")),
            route("missing", "same-namespace", rule("/missing", "nothing-here")),
            route("unknown-kind", "same-namespace", rule("/unknown", {"group": "x", "kind": "Odd", "name": "x"})),
            route("unused", "same-namespace", rule("/unused", ["infra-backend-v1@0", "infra-backend-v2@0"])),
            route("nothing", "same-namespace", rule("/left-out", to=None), rule("/empty", to=None, backendRefs=[])),
            gateway("tls-only", tls("tls", port=8443, kinds=["TLSRoute"])),
            route("wrong-kind", "tls-only", rule("/")),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("where", "path", "who"),
        [
            ("same-namespace", "/simple", "infra-backend-v1"),
            ("backend-namespaces", "/", "web-backend"),
            ("same-namespace", "/shared", "infra-backend-v1"),
            ("all-namespaces", "/shared", "infra-backend-v1"),
            ("same-namespace", "/", "infra-backend-v2"),
            ("all-namespaces", "/", "infra-backend-v3"),
            ("same-namespace", "/no-grant", 500),
            ("same-namespace", "/half-bad", 500),
            ("same-namespace", "/half-good", "infra-backend-v1"),
            ("same-namespace", "/missing", 500),
            ("same-namespace", "/unknown", 500),
            ("same-namespace", "/unused", 500),
            ("same-namespace", "/left-out", 500),
            ("same-namespace", "/empty", 500),
            ("same-namespace", "/stranger", "infra-backend-v2"),
        ],
    )
    def test_who_answers(self, suite: Suite, where: str, path: str, who: str | int):
        assert suite.ask(where, path).who == who

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("simple", GOOD),
            ("no-section", ("Accepted=False/NoMatchingParent",)),
            ("no-port", ("Accepted=False/NoMatchingParent",)),
            ("not-both", ("Accepted=False/NoMatchingParent",)),
            ("no-grant", ("Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")),
            ("half", ("Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")),
            ("missing", ("Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")),
            ("unknown-kind", ("Accepted=True/Accepted", "ResolvedRefs=False/InvalidKind")),
            ("unused", GOOD),
            ("nothing", GOOD),
            ("wrong-kind", ("Accepted=False/NotAllowedByListeners", "ResolvedRefs=True/ResolvedRefs")),
        ],
    )
    def test_what_status_says(self, suite: Suite, name: str, expected: tuple[str, ...]):
        suite.route(name, *expected)

    def test_both_parents_and_the_counts(self, suite: Suite):
        for parent in (0, 1):
            suite.route("shared", *GOOD, parent=parent)
        suite.route("stranger", "Accepted=False/NotAllowedByListeners", ns=WEB)
        suite.listener("all-namespaces", "http", attached=2, kinds={"HTTPRoute", "GRPCRoute"})
        suite.listener("tls-only", "tls", "Accepted=True", attached=0, kinds={"TLSRoute"})
        suite.gateway("same-namespace", "Accepted=True/Accepted", "Programmed=True/Programmed")


def test_a_reference_counts_while_its_grant_is_there(suite: Suite):
    far = route("far", "same-namespace", rule("/", {"name": "web-backend", "namespace": WEB, "port": 8080}))
    suite.apply(far, grant("g", WEB, "HTTPRoute", INFRA, "Service", only="web-backend"))
    assert suite.ask("same-namespace").who == "web-backend"
    suite.apply(far, grant("g", WEB, "HTTPRoute", INFRA, "Service", only="other"))
    assert suite.ask("same-namespace").who == 500
    suite.apply(far, grant("g", APP, "HTTPRoute", INFRA, "Service"), grant("h", WEB, "HTTPRoute", APP, "Service"))
    suite.route("far", "Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")


def test_of_two_tcp_routes_at_one_listener_the_older_has_the_connections(suite: Suite):
    def of_day(name: str, day: int, to: str) -> Manifest:
        return route(name, "tcp", rule(to=to), kind="TCPRoute", creationTimestamp=f"2024-01-0{day}T00:00:00Z")

    listeners = [{"name": "tcp", "port": 9001, "protocol": "TCP"}]
    suite.apply(
        gateway("tcp", *listeners),
        of_day("older", 1, "infra-backend-v1"),
        of_day("younger", 2, "infra-backend-v2"),
    )
    for name in ("older", "younger"):
        suite.route(name, *GOOD, kind="TCPRoute")
    suite.listener("tcp", "tcp", attached=2)
    assert {suite.ask("tcp", port=9001).who for _ in range(10)} == {"infra-backend-v1"}


class TestMatching:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        header = lambda **pairs: {"headers": [{"name": k.replace("_", "-"), "value": v} for k, v in pairs.items()]}  # noqa: E731
        query = lambda **pairs: {"queryParams": [{"name": k, "value": v} for k, v in pairs.items()]}  # noqa: E731
        path = lambda value, kind="PathPrefix": {"path": {"type": kind, "value": value}}  # noqa: E731
        v1, v2, v3 = (f"infra-backend-v{number}" for number in (1, 2, 3))
        suite.apply(
            route("part-1", "same-namespace", rule("/", v1), rule(match=header(version="one"), to=v1),
                  hosts=["example.com", "example.net"]),
            route("part-2", "same-namespace", rule("/v2", v2), rule(match=header(version="two"), to=v2),
                  hosts="example.com"),
            route("exact", "same-namespace", rule("/one", v1, exact=True), rule("/two", v2, exact=True),
                  hosts="exact.com"),
            route("order", "same-namespace", rule("/match/exact", v2, exact=True), rule("/match", v1),
                  rule("/match/prefix/one", v2), rule("/", v3), hosts="order.com"),
            route("headers", "same-namespace", rule(match=header(version="one"), to=v1),
                  rule(match=header(version="two"), to=v2), rule(match=header(version="two", color="orange"), to=v1),
                  rule(match=[header(color="blue"), header(color="green")], to=v1), hosts="headers.com"),
            route("query", "same-namespace", rule(match=query(animal="whale"), to=v1),
                  rule(match=query(animal="dolphin"), to=v2), rule(match=query(animal="dolphin", color="blue"), to=v3),
                  rule(match={**path("/path1"), **query(animal="whale")}, to=v2), hosts="query.com"),
            route("method", "same-namespace", rule(match={"method": "POST"}, to=v1),
                  rule(match={"method": "GET"}, to=v2),
                  rule(match={**path("/path1"), "method": "GET"}, to=v1),
                  rule(match={**path("/path4"), "method": "PATCH"}, to=v2),
                  rule(match={**path("/path4"), **header(version="four")}, to=v3), hosts="method.com"),
            route("named", "same-namespace", rule("/", v3, name="named"), hosts="named.com"),
            route("everywhere", "all-namespaces", rule("/", v1), rule("/long/path", v1, exact=True)),
            route("somewhere", "all-namespaces", rule("/", v2), hosts="test.com"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("host", "path", "fields", "who"),
        [
            ("example.com", "/", {}, 1), ("example.com", "/other", {}, 1), ("example.com", "/v2", {}, 2),
            ("example.com:8080", "/v2/", {}, 2), ("example.com", "/v2example", {}, 1),
            ("example.com", "/foo/v2", {}, 1),
            ("example.com", "/", {"version": "two"}, 2), ("example.com", "/", {"Version": "two"}, 2),
            ("example.com", "/v2", {"version": "one"}, 2), ("EXAMPLE.net", "/v2", {"version": "two"}, 1),
            ("exact.com", "/one", {}, 1), ("exact.com", "/two", {}, 2), ("exact.com", "/", {}, 404),
            ("exact.com", "/one/", {}, 404), ("exact.com", "/one/a", {}, 404), ("exact.com", "/ONE", {}, 404),
            ("order.com", "/match/exact", {}, 2), ("order.com", "/match/exact/one", {}, 1),
            ("order.com", "/match", {}, 1),
            ("order.com", "/match/prefix/one/any", {}, 2), ("order.com", "/matched", {}, 3),
            ("headers.com", "/", {"version": "one"}, 1), ("headers.com", "/", {"VERSION": "two"}, 2),
            ("headers.com", "/", {"version": "two", "color": "orange"}, 1), ("headers.com", "/", {"color": "blue"}, 1),
            ("headers.com", "/", {"color": "green"}, 1), ("headers.com", "/", {"color": "red"}, 404),
            ("headers.com", "/", {"version": "TWO"}, 404), ("headers.com", "/", {}, 404),
            ("query.com", "/?animal=whale", {}, 1), ("query.com", "/?animal=dolphin", {}, 2),
            ("query.com", "/?animal=dolphin&color=blue", {}, 3), ("query.com", "/?ANIMAL=whale", {}, 404),
            ("query.com", "/path1?animal=whale", {}, 2), ("query.com", "/", {}, 404),
            ("method.com", "/path1", {}, 1), ("method.com", "/", {}, 2),
            ("method.com", "/path4", {"version": "four"}, 3),
            ("named.com", "/", {}, 3),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, host: str, path: str, fields: dict[str, str], who: int):
        answer = suite.ask("same-namespace", path, host, **fields)
        assert answer.who == (who if who > 3 else f"infra-backend-v{who}")

    def test_a_route_of_the_hostname_goes_before_one_without_whatever_their_paths(self, suite: Suite):
        for host, who in (("test.com", "infra-backend-v2"), ("other.com", "infra-backend-v1")):
            assert suite.ask("all-namespaces", "/long/path", host).who == who

    def test_methods(self, suite: Suite):
        assert suite.ask("same-namespace", "/", "method.com", method="POST").who == "infra-backend-v1"
        assert suite.ask("same-namespace", "/", "method.com", method="HEAD").status == 404
        assert suite.ask("same-namespace", "/path4", "method.com", method="PATCH").who == "infra-backend-v2"


class TestHostnames:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        v1, v2, v3 = (f"infra-backend-v{number}" for number in (1, 2, 3))
        suite.apply(
            gateway("meet", http("one", hostname="very.specific.com"), http("two", hostname="*.wildcard.io"),
                    http("three", hostname="*.anotherwildcard.io")),
            route("specific", "meet", rule("/s1", v1), hosts=["non.matching.com", "*.nonmatchingwildcard.io",
                                                               "very.specific.com"]),
            route("wild-meets", "meet", rule("/s2", v2), hosts=["*.specific.com"]),
            route("meets-wild", "meet", rule("/s3", v3), hosts=["foo.bar.wildcard.io", "foo.wildcard.io"]),
            route("wild-wild", "meet", rule("/s4", v1), hosts="*.anotherwildcard.io"),
            route("none", "meet", rule("/s5", v2), hosts=["specific.but.wrong.com", "wildcard.io"]),
            gateway("names", http("bar", hostname="bar.com"), http("foo-bar", hostname="foo.bar.com"),
                    http("all-bar", hostname="*.bar.com"), http("all-foo", hostname="*.foo.com")),
            route("bar", "names/bar", rule(to=v1)), route("foo-bar", "names/foo-bar", rule(to=v2)),
            route("rest", ["names/all-bar", "names/all-foo"], rule(to=v3)),
            gateway("isolated", http("empty"), http("wild", hostname="*.example.com"),
                    http("wilder", hostname="*.foo.example.com"), http("exact", hostname="abc.foo.example.com")),
            *(route(f"at-{section}", f"isolated/{section}", rule(f"/{section}"))
              for section in ("empty", "wild", "wilder", "exact")),
            gateway("ports", http("p80", 80), http("p81", 81), http("p82", 82)),
            route("by-port", {"name": "ports", "port": 81}, rule(to=v1)),
            route("by-both", {"name": "ports", "port": 82, "sectionName": "p82"}, rule(to=v2)),
            gateway("precedence", http(hostname="a.b.example.com")), gateway("exact", http(hostname="*.b.example.com")),
            route("exact-1", "exact", rule(to=v1), hosts="*.b.example.com", creationTimestamp="2024-01-01T00:00:00Z"),
            route("exact-2", "exact", rule(to=v2), hosts="a.b.example.com", creationTimestamp="2024-01-02T00:00:00Z"),
            route("older", "precedence", rule(to=v1), hosts="*.example.com", creationTimestamp="2024-01-01T00:00:00Z"),
            route("longer", "precedence", rule(to=v2), hosts="*.b.example.com",
                  creationTimestamp="2024-01-02T00:00:00Z"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("where", "host", "path", "who"),
        [
            ("meet", "very.specific.com", "/s1", 1), ("meet", "very.specific.com:1234", "/s1", 1),
            ("meet", "non.matching.com", "/s1", 404), ("meet", "foo.nonmatchingwildcard.io", "/s1", 404),
            ("meet", "very.specific.com", "/non-matching", 404), ("meet", "very.specific.com", "/s2", 2),
            ("meet", "foo.specific.com", "/s2", 404), ("meet", "foo.wildcard.io", "/s3", 3),
            ("meet", "foo.bar.wildcard.io", "/s3", 3), ("meet", "bar.wildcard.io", "/s3", 404),
            ("meet", "one.anotherwildcard.io", "/s4", 1), ("meet", "one.two.anotherwildcard.io", "/s4", 1),
            ("meet", "anotherwildcard.io", "/s4", 404), ("meet", "wildcard.io", "/s5", 404),
            ("names", "bar.com", "/", 1), ("names", "foo.bar.com", "/", 2), ("names", "baz.bar.com", "/", 3),
            ("names", "multiple.prefixes.bar.com", "/", 3), ("names", "multiple.prefixes.foo.com", "/", 3),
            ("names", "foo.com", "/", 404), ("names", "no.matching.host", "/", 404),
            ("isolated", "bar.com", "/empty", 1), ("isolated", "bar.com", "/wild", 404),
            ("isolated", "bar.example.com", "/wild", 1), ("isolated", "bar.example.com", "/empty", 404),
            ("isolated", "bar.foo.example.com", "/wilder", 1), ("isolated", "bar.foo.example.com", "/wild", 404),
            ("isolated", "abc.foo.example.com", "/exact", 1), ("isolated", "abc.foo.example.com", "/wilder", 404),
            ("precedence", "a.b.example.com", "/", 2), ("exact", "a.b.example.com", "/", 2),
            ("exact", "b.b.example.com", "/", 1),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, where: str, host: str, path: str, who: int):
        assert suite.ask(where, path, host).who == (who if who > 3 else f"infra-backend-v{who}")

    def test_ports(self, suite: Suite):
        found = [suite.ask("ports", port=port).who for port in (80, 81, 82)]
        assert found == [404, "infra-backend-v1", "infra-backend-v2"]

    def test_counts(self, suite: Suite):
        for section, count in (("one", 2), ("two", 1), ("three", 1)):
            suite.listener("meet", section, "Accepted=True", attached=count)
        suite.route("none", "Accepted=False/NoMatchingListenerHostname")
        for section, count in (("p80", 0), ("p81", 1), ("p82", 1)):
            suite.listener("ports", section, attached=count)
