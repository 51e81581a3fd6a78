"""GRPCRoutes: attachment, matching, weights, filters, sessions, and TLS to their backends."""

from __future__ import annotations

import collections
import time
from typing import Any

import pytest

from tests.conformance import objects as o
from tests.conformance.http2_asking import OK, UNAVAILABLE, UNIMPLEMENTED, Http2Asking, call
from tests.conformance.objects import INFRA, WEB, backend_tls, filters, gateway, http, https, mirror, policy_target
from tests.conformance.suite import Suite
from tests.support.manifests import GATEWAY_API, Manifest
from tests.support.waiting import WAIT_S

GW = "same-namespace"
GOOD = ("Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
SERVICE = "conformance.Echo"
CALLS = {"port": 8080, "targetPort": 3000, "appProtocol": "kubernetes.io/h2c"}
SAY, TELL, ASK = (f"/{SERVICE}/{method}" for method in ("Say", "Tell", "Ask"))
V1, V2, V3 = (f"grpc-infra-backend-v{number}" for number in (1, 2, 3))


def route(name: str, parent: Any, *rules: Manifest, **more: Any) -> Manifest:
    return o.route(name, parent, *rules, kind="GRPCRoute", **more)


def rule(to: Any, method: str = "", **more: Any) -> Manifest:
    """A rule for a method of the service, else for all; `headers` are pairs that have to be there."""
    match: Manifest = {"method": {"service": SERVICE, "method": method}} if method else {}
    pairs = more.pop("headers", {})
    if pairs:
        match["headers"] = [{"name": name, "value": value} for name, value in pairs.items()]
    return o.rule(to=to, match=match or None, **more)


def who(answer: Any) -> str | int:
    """The Service that answered, else the status."""
    found: str | int = answer.who
    return found


class TestAttachment:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        far = {"name": "web-backend", "namespace": WEB, "port": 8080}
        dated = lambda day: {"creationTimestamp": f"2024-01-0{day}T00:00:00Z"}  # noqa: E731
        pods = [pod.address for pod in suite.pods_of(V2)]
        suite.apply(
            gateway("grpc", http(hostname="bar.com"), http("named", hostname="*.foo.com", kinds=["GRPCRoute"])),
            route("exact", "grpc/http", rule(V1, "Say"), rule(V2, name="named")),
            route("hosts", "grpc", rule(V1), hosts="a.foo.com"),
            route("none", "grpc", rule(V1), hosts="none.example"),
            route("missing", "grpc/named", rule("missing"), hosts="missing.foo.com"),
            route("far", "grpc/named", rule(far), hosts="far.foo.com"),
            route("odd", "grpc/named", rule({"group": "x.example", "kind": "Odd", "name": "x"}), hosts="odd.foo.com"),
            route("nothing", "grpc/named", o.rule(to=None), hosts="nothing.foo.com"),
            route("shared", [GW, "all-namespaces"], rule(V1, "Say")),
            route("first", GW, rule(V2, "Tell")),
            route("second", "all-namespaces", rule(V3, "Tell")),
            route("stranger", GW, rule("web-backend", "Ask"), ns=WEB),
            route("granted", "grpc/named", rule({**far, "name": "grpc-far"}), hosts="granted.foo.com"),
            o.service("grpc-far", WEB, CALLS), o.slices("grpc-far", WEB, [{"port": 3000}], pods),
            o.grant("g", WEB, "GRPCRoute", INFRA, "Service", only="grpc-far"),
            gateway("sets", http(port=81), allowedListeners={"namespaces": {"from": "Same"}}),
            o.listener_set("set", "sets", http("calls", 80, kinds=["GRPCRoute"])),
            route("at-set", {"group": GATEWAY_API, "kind": "ListenerSet", "name": "set"}, rule(V3)),
            gateway("kinds", http()),
            o.route("web", "kinds", o.rule(), hosts="both.example", **dated(1)),
            route("younger", "kinds", rule(V1), hosts="both.example", **dated(2)),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("exact", GOOD),
            ("hosts", GOOD),
            ("shared", GOOD),
            ("granted", GOOD),
            ("at-set", GOOD),
            ("none", ("Accepted=False/NoMatchingListenerHostname",)),
            ("missing", ("Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")),
            ("far", ("Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")),
            ("odd", ("Accepted=True/Accepted", "ResolvedRefs=False/InvalidKind")),
            ("nothing", GOOD),
            ("younger", ("Accepted=False/HostnameConflict",)),
        ],
    )
    def test_status(self, suite: Suite, name: str, expected: tuple[str, ...]):
        suite.route(name, *expected, kind="GRPCRoute")

    def test_listeners(self, suite: Suite):
        suite.listener("grpc", "http", "Accepted=True", attached=1, kinds={"GRPCRoute", "HTTPRoute"})
        suite.listener("grpc", "named", "Accepted=True", attached=6, kinds={"GRPCRoute"})
        suite.listener("set", "calls", "Accepted=True", attached=1, kinds={"GRPCRoute"}, kind="ListenerSet")
        suite.route("shared", *GOOD, kind="GRPCRoute", parent=1)
        suite.route("stranger", "Accepted=False/NotAllowedByListeners", kind="GRPCRoute", ns=WEB)

    @pytest.mark.parametrize(
        ("where", "path", "host", "expected"),
        [
            ("grpc", SAY, "bar.com", V1), ("grpc", TELL, "bar.com", V2), ("grpc", "/other.Service/X", "bar.com", V2),
            ("grpc", SAY, "a.foo.com", V1), ("grpc", SAY, "b.foo.com", UNIMPLEMENTED),
            *(("grpc", SAY, f"{name}.foo.com", UNAVAILABLE) for name in ("missing", "far", "odd", "nothing")),
            ("grpc", SAY, "granted.foo.com", V2), ("sets", SAY, "a.example", V3),
            (GW, SAY, "a.example", V1), ("all-namespaces", SAY, "a.example", V1), (GW, TELL, "a.example", V2),
            ("all-namespaces", TELL, "a.example", V3), (GW, ASK, "a.example", UNIMPLEMENTED),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, where: str, path: str, host: str, expected: str | int):
        assert who(call(suite, where, path, host)) == expected


class TestMatching:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        header = lambda **pairs: {"headers": pairs}  # noqa: E731
        colors = [{"headers": [{"name": "color", "value": color}]} for color in ("blue", "green")]
        suite.apply(
            route("methods", GW, rule(V1, "Say"), rule(V2, "Tell"), hosts="methods.com"),
            route("named", GW, rule(V1, "Say", name="say"), rule(V2, "Tell", name="tell"), hosts="named.com"),
            route("part", GW, o.rule(to=V1, match={"method": {"service": SERVICE}}),
                  o.rule(to=V2, match={"method": {"method": "Tell"}}), o.rule(to=V3), hosts="part.com"),
            route("headers", GW, rule(V1, **header(version="one")), rule(V2, **header(version="two")),
                  rule(V1, **header(version="two", color="orange")), o.rule(to=V1, match=colors),
                  rule(V2, **header(color="red")), rule(V2, **header(color="yellow")), hosts="headers.com"),
            route("any", GW, o.rule(to=V1, match={"method": {"type": "RegularExpression", "method": "S.*"}}),
                  hosts="expressions.com"),
            gateway("names", http("bar", hostname="bar.com"), http("foo-bar", hostname="foo.bar.com"),
                    http("all-bar", hostname="*.bar.com"), http("all-foo", hostname="*.foo.com")),
            route("bar", "names/bar", rule(V1)), route("foo-bar", "names/foo-bar", rule(V2)),
            route("rest", ["names/all-bar", "names/all-foo"], rule(V3)),
            *cls.of_one_listener("exact", "abc.example.com", "*.example.com", "abc.example.com"),
            *cls.of_one_listener("wild", "*.example.com", "*.com", "*.example.com"),
        )  # fmt: skip

    @staticmethod
    def of_one_listener(name: str, listener: str, older: str, younger: str) -> list[Manifest]:
        """Two routes of which the listener leaves one and the same hostname."""
        return [
            gateway(name, http(hostname=listener, kinds=["GRPCRoute"])),
            route(f"{name}-1", name, rule(V1), hosts=older, creationTimestamp="2024-01-01T00:00:00Z"),
            route(f"{name}-2", name, rule(V2), hosts=younger, creationTimestamp="2024-01-02T00:00:00Z"),
        ]

    @pytest.mark.parametrize(
        ("host", "path", "metadata", "expected"),
        [
            ("methods.com", SAY, {}, V1), ("methods.com", TELL, {}, V2), ("methods.com", ASK, {}, UNIMPLEMENTED),
            ("methods.com", SAY + "/x", {}, UNIMPLEMENTED), ("methods.com", SAY.upper(), {}, UNIMPLEMENTED),
            ("named.com", SAY, {}, V1), ("named.com", TELL, {}, V2),
            ("part.com", SAY, {}, V1), ("part.com", TELL, {}, V1), ("part.com", "/other.Service/Tell", {}, V2),
            ("part.com", "/other.Service/Say", {}, V3),
            ("headers.com", SAY, {"version": "one"}, V1), ("headers.com", SAY, {"version": "two"}, V2),
            ("headers.com", SAY, {"version": "two", "color": "orange"}, V1),
            ("headers.com", SAY, {"version": "two", "color": "blue"}, V2),
            ("headers.com", SAY, {"color": "orange"}, UNIMPLEMENTED),
            ("headers.com", SAY, {"other": "one"}, UNIMPLEMENTED),
            ("headers.com", SAY, {"color": "blue"}, V1), ("headers.com", SAY, {"color": "green"}, V1),
            ("headers.com", SAY, {"color": "red"}, V2), ("headers.com", SAY, {"color": "yellow"}, V2),
            ("headers.com", SAY, {"color": "purple"}, UNIMPLEMENTED),
            ("expressions.com", SAY, {}, V1), ("expressions.com", TELL, {}, UNIMPLEMENTED),
        ],
    )  # fmt: skip
    def test_who_answers(self, suite: Suite, host: str, path: str, metadata: dict[str, str], expected: str | int):
        assert who(call(suite, GW, path, host, **metadata)) == expected

    @pytest.mark.parametrize(
        ("where", "host", "expected"),
        [
            ("names", "bar.com", V1), ("names", "bar.com:80", V1), ("names", "foo.bar.com", V2),
            ("names", "baz.bar.com", V3), ("names", "multiple.prefixes.bar.com", V3),
            ("names", "multiple.prefixes.foo.com", V3), ("names", "foo.com", UNIMPLEMENTED),
            ("names", "no.matching.host", UNIMPLEMENTED), ("exact", "abc.example.com", V2),
            ("wild", "abc.example.com", V2),
        ],
    )  # fmt: skip
    def test_hostnames(self, suite: Suite, where: str, host: str, expected: str | int):
        assert who(call(suite, where, SAY, host)) == expected
        suite.route("exact-1", *GOOD, kind="GRPCRoute")

    def test_one_connection_carries_the_calls_of_all_routes(self, suite: Suite):
        with Http2Asking(suite, GW) as asking:
            found = [who(asking.call(path, "methods.com")) for path in (SAY, TELL, ASK, SAY)]
        assert found == [V1, V2, UNIMPLEMENTED, V1]


class TestCalls:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        changed = filters(
            requestHeaderModifier={
                "set": [{"name": "X-Header-Set", "value": "set"}],
                "add": [{"name": "X-Header-Add", "value": "added"}],
                "remove": ["X-Header-Remove"],
            }
        )
        answered = filters(responseHeaderModifier={"set": [{"name": "X-Answer", "value": "set"}]})
        cookie = lambda **how: {"sessionPersistence": {"type": "Cookie", **how}}  # noqa: E731
        permanent = {"absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"}}
        suite.apply(
            route("weights", GW, rule([f"{V1}@70", f"{V2}@30", f"{V3}@0"]), hosts="weights.com"),
            route("zero", GW, rule([f"{V1}@0", f"{V2}@0"]), hosts="zero.com"),
            route("changed", GW, rule(V1, "Say", filters=changed), rule(V2, "Tell", filters=answered),
                  rule(V1, "Ask", filters=[*changed, mirror(V3)]), hosts="changed.com"),
            route("sessions", GW, rule(V1, "Say", **cookie()), rule(V1, "Tell", **cookie(**permanent)),
                  hosts="sessions.com"),
        )  # fmt: skip

    def test_weights(self, suite: Suite):
        with Http2Asking(suite, GW) as asking:
            found = collections.Counter(who(asking.call(SAY, "weights.com")) for _ in range(500))
        for service, share in ((V1, 0.7), (V2, 0.3), (V3, 0.0)):
            assert abs(found[service] / 500 - share) <= 0.05, found

    def test_a_rule_whose_weights_are_all_zero_is_unavailable(self, suite: Suite):
        suite.route("zero", *GOOD, kind="GRPCRoute")
        assert who(call(suite, GW, SAY, "zero.com")) == UNAVAILABLE

    @pytest.mark.parametrize(
        ("metadata", "wanted"),
        [
            ({}, {"x-header-set": "set", "x-header-add": "added"}),
            ({"other": "a"}, {"other": "a", "x-header-set": "set"}),
            ({"x-header-set": "old"}, {"x-header-set": "set"}),
            ({"x-header-add": "first"}, {"x-header-add": "first,added"}),
            ({"x-header-remove": "a"}, {"x-header-remove": None}),
        ],
    )
    def test_metadata_is_changed_on_its_way(
        self, suite: Suite, metadata: dict[str, str], wanted: dict[str, str | None]
    ):
        answer = call(suite, GW, SAY, "changed.com", **metadata)
        assert {name: answer.sent(name) for name in wanted} == wanted

    def test_metadata_is_changed_on_its_way_back(self, suite: Suite):
        answer = call(suite, GW, TELL, "changed.com")
        assert (answer.status, answer.get("x-answer"), who(answer)) == (OK, "set", V2)

    def test_a_mirror_sees_the_call(self, suite: Suite):
        assert who(call(suite, GW, ASK, "changed.com", x_header_add="first")) == V1
        deadline = time.monotonic() + WAIT_S
        while not (seen := [each for each in suite.log if each["service"] == V3 and each["path"] == ASK]):
            assert time.monotonic() < deadline, "no mirrored call"
            time.sleep(0.02)
        assert seen[0]["headers"]["x-header-set"] == ["set"]
        assert seen[0]["headers"]["content-type"] == ["application/grpc"]

    @pytest.mark.parametrize(("path", "permanent"), [(SAY, False), (TELL, True)])
    def test_session_by_cookie(self, suite: Suite, path: str, permanent: bool):
        first = call(suite, GW, path, "sessions.com")
        cookie = first.get("set-cookie") or ""
        attributes = {part.partition("=")[0].strip().lower() for part in cookie.split(";")[1:]}
        assert bool(attributes & {"expires", "max-age"}) is permanent, cookie
        assert first.echo is not None
        for _ in range(10):
            echo = call(suite, GW, path, "sessions.com", cookie=cookie.partition(";")[0]).echo
            assert echo is not None
            assert echo["pod"] == first.echo["pod"]


class TestTls:
    """BackendTLSPolicy on the backends of GRPCRoutes, and calls over TLS."""

    HOST = "abc.example.com"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        (pod,) = suite.pods_of("grpc-tls")
        made: list[Manifest] = []
        for name in ("good", "mismatch", "wrong-ca"):
            ports: list[Manifest] = [{"name": "btls", "port": 443, "targetPort": pod.port, "protocol": "TCP"}]
            targets = [{"name": "btls", "port": pod.port, "protocol": "TCP"}]
            made += [o.service(name, INFRA, *ports), o.slices(name, INFRA, targets, [pod.address])]
        suite.apply(
            *made,
            backend_tls("good", policy_target("good", "btls")),
            backend_tls("mismatch", policy_target("mismatch", "btls"), hostname="mismatch.example.com"),
            backend_tls("wrong-ca", policy_target("wrong-ca", "btls"), ca="wrong-ca"),
            gateway("calls", http(), https("https")),
            route("to-tls", "calls", rule("good:443", "Say"), rule("mismatch:443", "Tell"), rule("wrong-ca:443", "Ask"),
                  hosts=cls.HOST),
        )  # fmt: skip

    @pytest.mark.parametrize("name", ["good", "mismatch", "wrong-ca"])
    def test_policy(self, suite: Suite, name: str):
        suite.policy(name, *GOOD, gateway="calls")
        suite.route("to-tls", *GOOD, kind="GRPCRoute")

    @pytest.mark.parametrize("path", [SAY, TELL, ASK])
    def test_who_answers(self, suite: Suite, path: str):
        answer = call(suite, "calls", path, self.HOST)
        if path != SAY:
            assert answer.who == UNAVAILABLE
            return
        assert answer.who == "grpc-tls"
        assert answer.echo is not None
        assert answer.echo["tls"]["sni"] == self.HOST

    def test_a_call_over_tls_is_encrypted_again(self, suite: Suite):
        with Http2Asking(suite, "calls", sni=self.HOST) as asking:
            assert [who(asking.call(path, self.HOST)) for path in (SAY, TELL)] == ["grpc-tls", UNAVAILABLE]
