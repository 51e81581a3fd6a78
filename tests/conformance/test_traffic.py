"""Weights, time, retries, sessions, and streams: TLSRoutes and TCPRoutes."""

from __future__ import annotations

import collections
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
    route,
    rule,
    service,
    slices,
    tls,
)  # fmt: skip
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest

GW = "same-namespace"
GOOD = ("Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
ABC = "abc.example.com"


class TestRequests:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        retry = lambda attempts, *codes: {"attempts": attempts, "codes": list(codes)}  # noqa: E731
        every = (500, 502, 503, 504)
        cookie = lambda **how: {"sessionPersistence": {"type": "Cookie", **how}}  # noqa: E731
        pods = [pod.address for pod in suite.pods_of("infra-backend-v1")]
        headless = service("headless", INFRA, {"port": 8080, "targetPort": 3000})
        headless["spec"]["clusterIP"] = "None"
        manual = service("manual", INFRA, {"name": "first-port", "port": 8080, "targetPort": 3000})
        del manual["spec"]["selector"]
        suite.apply(
            headless, slices("headless", INFRA, [{"port": 3000}], pods),
            manual, slices("manual", INFRA, [{"name": "first-port", "port": 3000, "protocol": "TCP"}], pods),
            service("refusing", INFRA, {"port": 8080, "targetPort": 3000}),
            slices("refusing", INFRA, [{"port": 3000}], [suite.spare_address, pods[0]]),
            route("types", GW, rule("/headless", "headless"), rule("/manual", "manual")),
            route("weights", GW, rule("/weight", ["infra-backend-v1@70", "infra-backend-v2@30", "infra-backend-v3@0"]),
                  rule("/one-missing", ["infra-backend-v1@1", "missing@1"])),
            route("times", GW, rule("/request", timeouts={"request": "300ms"}),
                  rule("/backend", timeouts={"backendRequest": "300ms"}),
                  rule("/never", timeouts={"request": "0s", "backendRequest": "0s"})),
            route("retries", GW, rule("/500-3", retry=retry(3, 500)), rule("/all-2", retry=retry(2, *every)),
                  rule("/all-0", retry=retry(0, *every)), rule("/connection", "half-broken", retry=retry(2)),
                  rule("/no-code-3", retry={"attempts": 3}), rule("/refusing", "refusing", retry={"attempts": 100}),
                  rule("/slow", retry=retry(1, 504), timeouts={"request": "5s", "backendRequest": "300ms"})),
            route("sessions", GW, rule("/session", **cookie()),
                  rule("/weighted", ["infra-backend-v1@1", "infra-backend-v2@1"], **cookie(sessionName="mine")),
                  rule("/permanent", **cookie(absoluteTimeout="1h", cookieConfig={"lifetimeType": "Permanent"}))),
        )  # fmt: skip

    @pytest.mark.parametrize("path", ["/headless", "/manual"])
    def test_services_without_an_address(self, suite: Suite, path: str):
        assert suite.ask(GW, path).who == "infra-backend-v1"
        suite.route("types", *GOOD)

    def test_weights(self, suite: Suite):
        count = 500
        found = collections.Counter(answer.who for answer in suite.ask_many(GW, "/weight", count))
        for number, share in ((1, 0.7), (2, 0.3), (3, 0.0)):
            assert abs(found[f"infra-backend-v{number}"] / count - share) <= 0.05, found
        missing = collections.Counter(answer.who for answer in suite.ask_many(GW, "/one-missing", 100))
        assert set(missing) == {"infra-backend-v1", 500}

    @pytest.mark.parametrize(
        ("path", "who"),
        [
            ("/request", "infra-backend-v1"), ("/request?delay=2", 504), ("/backend", "infra-backend-v1"),
            ("/backend?delay=2", 504), ("/never?delay=0.5", "infra-backend-v1"),
        ],
    )  # fmt: skip
    def test_timeouts(self, suite: Suite, path: str, who: str | int):
        assert suite.ask(GW, path).who == who

    def test_retries_within_timeouts(self, suite: Suite):
        """An attempt that takes too long counts as one, and another is made."""
        for pod in suite.pods_of("infra-backend-v1"):
            pod.failed = suite.pods_of("infra-backend-v1")[0].failed  # counted together
        assert suite.ask(GW, "/slow?fail=504x1").who == "infra-backend-v1"
        assert suite.ask(GW, "/slow?delay=2").who == 504
        assert len([each for each in suite.log if each["path"] == "/slow?delay=2"]) == 2

    @pytest.mark.parametrize(
        ("path", "who"),
        [
            ("/500-3?fail=500x2", 1), ("/500-3?fail=500x3", 1), ("/500-3?fail=500x4", 500), ("/500-3?fail=503x1", 503),
            *((f"/all-2?fail={code}x1", 1) for code in (500, 502, 503, 504)),
            *((f"/all-2?fail={code}x3", code) for code in (500, 502, 503, 504)),
            ("/all-0?fail=500x1", 500), ("/all-0?fail=503x1", 503),
        ],
    )  # fmt: skip
    def test_retries(self, suite: Suite, path: str, who: int):
        for pod in suite.pods_of("infra-backend-v1"):
            pod.failed = suite.pods_of("infra-backend-v1")[0].failed  # counted together
        answer = suite.ask(GW, path)
        assert answer.who == (who if who > 3 else "infra-backend-v1")
        if who > 3:
            assert answer.echo is not None  # the backend's own answer

    def test_retries_of_connections(self, suite: Suite):
        assert [suite.ask(GW, "/connection").who for _ in range(10)] == ["half-broken"] * 10
        assert [suite.ask(GW, "/refusing").who for _ in range(10)] == ["infra-backend-v1"] * 10

    @pytest.mark.parametrize(("resets", "who"), [(2, "infra-backend-v1"), (3, "infra-backend-v1"), (4, 503)])
    def test_retries_of_connections_that_break(self, suite: Suite, resets: int, who: str | int):
        for pod in suite.pods_of("infra-backend-v1"):
            pod.failed = suite.pods_of("infra-backend-v1")[0].failed  # counted together
        assert suite.ask(GW, f"/no-code-3?fail=0x{resets}").who == who

    def test_session_by_cookie(self, suite: Suite):
        for path, permanent in (("/session", False), ("/permanent", True), ("/weighted", False)):
            first = suite.ask(GW, path)
            cookie = first.get("set-cookie") or ""
            attributes = {part.partition("=")[0].strip().lower() for part in cookie.split(";")[1:]}
            assert bool(attributes & {"expires", "max-age"}) is permanent, cookie
            assert first.echo is not None
            for _ in range(10):
                echo = suite.ask(GW, path, Cookie=cookie.partition(";")[0]).echo
                assert echo is not None
                assert echo["pod"] == first.echo["pod"]
        assert cookie.startswith("mine=")


def tcp(name: str, port: int, **more: Any) -> Manifest:
    return {"name": name, "port": port, "protocol": "TCP", **more}


def dated(made: Manifest, day: int) -> Manifest:
    made["metadata"]["creationTimestamp"] = f"2024-01-0{day}T00:00:00Z"
    return made


class TestStreams:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        to_tls: Any = "tls-backend:443"
        far = {"name": "web-backend", "namespace": WEB, "port": 8080}
        passes = lambda name, parent, host, to=to_tls: route(name, parent, rule(to=to), kind="TLSRoute", hosts=host)  # noqa: E731
        streams = lambda name, parent, *to, **more: route(name, parent, rule(to=list(to)), kind="TCPRoute", **more)  # noqa: E731
        suite.apply(
            gateway("tls", tls("tls", 443, "*.example.com"), tls("exact", 444, "other.example.com"), tls("any", 445),
                    tls("ends", 446, ABC, cert="site"), tls("mixed", 446, "other.example.com")),
            passes("simple", "tls/tls", ABC), passes("wild", "tls/any", "*.example.com"),
            passes("miss", "tls/exact", "abc.example.org"),
            passes("ends", "tls/ends", ABC, "infra-backend-v1"), passes("mixed", "tls/mixed", ["other.example.com"]),
            gateway("bad", tls("a", 443, "a.example.com"), tls("kinds", 444, kinds=["TLSRoute", "TCPRoute"]),
                    tls("ends-kinds", 445, cert="site", kinds=["TLSRoute"]), http("http", 80), https("https", 446)),
            passes("missing", "bad/a", "a.example.com", "missing:443"), passes("at-http", "bad/http", ABC),
            passes("at-https", "bad/https", ABC), passes("no-section", "bad/none", ABC),
            passes("odd", "bad/a", "a.example.com", {"group": "x.example", "kind": "Odd", "name": "x"}),
            passes("far", "bad/a", "a.example.com", far),
            gateway("tcp", tcp("one", 9001), tcp("two", 9002), tcp("three", 9003), tcp("four", 9004), http("web", 80)),
            streams("one", "tcp/one", "infra-backend-v1"),
            streams("two", {"name": "tcp", "port": 9002}, "infra-backend-v2"),
            streams("three", {"name": "tcp", "port": 9003, "sectionName": "three"}, "infra-backend-v3"),
            streams("split", "tcp/four", "infra-backend-v1@70", "infra-backend-v2@30"),
            streams("at-web", "tcp/web", "infra-backend-v1"),
            gateway("tcp-2", tcp("a", 9001), tcp("b", 9002), tcp("c", 9003)),
            streams("no-service", "tcp-2/a", "missing"), streams("far-tcp", "tcp-2/b", far),
            streams("granted", "tcp-2/c", {"name": "app-backend-v1", "namespace": APP, "port": 8080}),
            grant("g", APP, "TCPRoute", INFRA, "Service"),
            gateway("tcp-all", tcp("a", 9001), tcp("b", 9002)), streams("everywhere", "tcp-all", "infra-backend-v3"),
            gateway("tls-names", tls("tls", 443, "a.b.example.com"), tls("wide", 444)),
            dated(passes("n-1", "tls-names", "*.example.com", "missing:443"), 1),
            dated(passes("n-2", "tls-names", "*.b.example.com", "missing:443"), 2),
            dated(passes("n-3", "tls-names", "a.b.example.com"), 3),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("port", "sni", "who"),
        [
            (443, ABC, "tls-backend"), (443, "other.example.com", ""), (445, ABC, "tls-backend"),
            (445, "a.example.org", ""),
            (446, ABC, "infra-backend-v1"), (446, "other.example.com", "tls-backend"),
        ],
    )  # fmt: skip
    def test_tls_route(self, suite: Suite, port: int, sni: str, who: str):
        context = suite.client(suite.pki if who == "infra-backend-v1" else suite.backend_pki)
        if not who:
            assert suite.is_refused("tls", host=sni, sni=sni, port=port, context=context)
        else:
            assert suite.ask("tls", host=sni, sni=sni, port=port, context=context).who == who

    @pytest.mark.parametrize(
        ("name", "kind", "expected"),
        [
            ("simple", "TLSRoute", GOOD), ("miss", "TLSRoute", ("Accepted=False/NoMatchingListenerHostname",)),
            ("missing", "TLSRoute", ("Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")),
            ("odd", "TLSRoute", ("Accepted=True/Accepted", "ResolvedRefs=False/InvalidKind")),
            ("far", "TLSRoute", ("Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")),
            ("at-http", "TLSRoute", ("Accepted=False/NotAllowedByListeners",)),
            ("at-https", "TLSRoute", ("Accepted=False/NotAllowedByListeners",)),
            ("no-section", "TLSRoute", ("Accepted=False/NoMatchingParent",)),
            ("one", "TCPRoute", GOOD), ("at-web", "TCPRoute", ("Accepted=False/NotAllowedByListeners",)),
            ("no-service", "TCPRoute", ("Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")),
            ("far-tcp", "TCPRoute", ("Accepted=True/Accepted", "ResolvedRefs=False/RefNotPermitted")),
            ("granted", "TCPRoute", GOOD),
        ],
    )  # fmt: skip
    def test_status(self, suite: Suite, name: str, kind: str, expected: tuple[str, ...]):
        suite.route(name, *expected, kind=kind)

    def test_listeners(self, suite: Suite):
        suite.listener("bad", "kinds", "ResolvedRefs=False/InvalidRouteKinds", kinds={"TLSRoute"})
        suite.listener("bad", "ends-kinds", "ResolvedRefs=True/ResolvedRefs", kinds={"TLSRoute"})
        for section in ("http", "https"):
            suite.listener("bad", section, attached=0)
        for section in ("tls", "any", "ends", "mixed"):
            suite.listener("tls", section, "Accepted=True/Accepted", "Programmed=True", attached=1, kinds={"TLSRoute"})
        suite.listener("tls", "exact", attached=0)
        for section, count in (("one", 1), ("two", 1), ("three", 1), ("four", 1), ("web", 0)):
            suite.listener("tcp", section, attached=count)
        assert suite.is_dropped("bad", "a.example.com")

    @pytest.mark.parametrize("port", [443, 444])
    def test_the_most_specific_name_wins_over_the_oldest(self, suite: Suite, port: int):
        name = "a.b.example.com"
        context = suite.client(suite.backend_pki)
        assert suite.ask("tls-names", host=name, sni=name, port=port, context=context).who == "tls-backend"

    def test_tcp_route(self, suite: Suite):
        found = [suite.ask("tcp", port=9000 + number).who for number in (1, 2, 3)]
        assert found == ["infra-backend-v1", "infra-backend-v2", "infra-backend-v3"]
        assert suite.ask("tcp-2", port=9003).who == "app-backend-v1"
        assert suite.is_refused("tcp-2", port=9001)
        assert [suite.ask("tcp-all", port=port).who for port in (9001, 9002)] == ["infra-backend-v3"] * 2
        counted = collections.Counter(suite.ask("tcp", port=9004).who for _ in range(100))
        assert abs(counted["infra-backend-v1"] - 70) <= 2, counted


class TestNamesOfStreams:
    """As TLSRouteHostnameIntersection of Gateway API v1.7 has it."""

    SECOND = "grpc-tls:443"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        passes = lambda name, host, to="tls-backend:443": route(  # noqa: E731
            name, name.partition("-")[0], rule(to=to), kind="TLSRoute", hosts=host
        )
        suite.apply(
            gateway("exact", tls("tls", hostname=ABC)), gateway("narrow", tls("tls", hostname="*.example.com")),
            gateway("wide", tls("tls", hostname="*.com")), gateway("any", tls("tls")),
            passes("exact-1", "*.example.com"),
            passes("narrow-1", ABC), passes("narrow-2", "*.com", cls.SECOND),
            passes("wide-1", ABC), passes("wide-2", "*.example.com", cls.SECOND),
            passes("any-1", ABC), passes("any-2", "*.com", cls.SECOND),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "sni", "who"),
        [
            *((name, ABC, "tls-backend") for name in ("exact", "narrow", "wide", "any")),
            *((name, "other.example.com", "grpc-tls") for name in ("narrow", "wide", "any")),
            ("exact", "other.example.com", ""),
            *((name, "non.matching.com", "") for name in ("exact", "narrow", "wide")),
            ("any", "non.matching.org", ""),
        ],
    )
    def test_who_answers(self, suite: Suite, name: str, sni: str, who: str):
        if who:
            context = suite.client(suite.backend_pki)
            assert suite.ask(name, host=sni, sni=sni, context=context).who == who
        else:
            assert suite.is_dropped(name, sni)

    @pytest.mark.parametrize("name", ["exact-1", "narrow-1", "narrow-2", "wide-1", "wide-2", "any-1", "any-2"])
    def test_status(self, suite: Suite, name: str):
        suite.route(name, *GOOD, kind="TLSRoute")
