"""HTTPRoute filters: redirects, rewrites, header modifiers, mirrors, CORS."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest

from tests.conformance.objects import filters, gateway, http, https, mirror, ref, route, rule
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest
from tests.support.waiting import WAIT_S

GW = "same-namespace"


def redirect(at: str, **how: Any) -> Manifest:
    return rule(at, to=None, filters=filters(requestRedirect=how))


def rewrite(at: str, **how: Any) -> Manifest:
    return rule(at, filters=filters(urlRewrite=how))


def full(value: str) -> Manifest:
    return {"type": "ReplaceFullPath", "replaceFullPath": value}


def prefix(value: str) -> Manifest:
    return {"type": "ReplacePrefixMatch", "replacePrefixMatch": value}


def pairs(**named: str) -> list[Manifest]:
    return [{"name": name.replace("_", "-"), "value": value} for name, value in named.items()]


class TestRedirectsAndRewrites:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        schemes: list[tuple[str, Any]] = [("nil", {}), ("http", {"scheme": "http"}), ("https", {"scheme": "https"})]
        ports: list[tuple[str, Any]] = [
            ("nil", {}),
            ("80", {"port": 80}),
            ("443", {"port": 443}),
            ("8080", {"port": 8080}),
        ]
        rules = [
            redirect(f"/scheme-{scheme}-port-{port}", hostname="example.org", **first, **second)
            for scheme, first in schemes
            for port, second in ports
        ]
        backend_level = lambda **named: {**ref("infra-backend-v1"), "filters": filters(**named)}  # noqa: E731
        suite.apply(
            gateway("three-ports", http(), http("http-8080", 8080), https("https")),
            route("schemes", "three-ports", *rules),
            route("redirect", GW, redirect("/hostname-redirect", hostname="example.org"),
                  redirect("/host-and-status", hostname="example.org", statusCode=301)),
            route("statuses", GW,
                  *(redirect(f"/status-{code}", statusCode=code) for code in (301, 302, 303, 307, 308)),
                  *(redirect(f"/scheme-{code}", scheme="https", statusCode=code) for code in (303, 307, 308))),
            route("paths", GW, redirect("/original-prefix", path=prefix("/replacement-prefix")),
                  redirect("/full", path=full("/full-path-replacement")),
                  redirect("/path-and-host", hostname="example.org", path=prefix("/replacement-prefix")),
                  redirect("/path-and-status", path=prefix("/replacement-prefix"), statusCode=301),
                  redirect("/full-path-and-host", hostname="example.org", path=full("/replacement-full")),
                  redirect("/to-root", path=prefix("/"))),
            route("rewrite", GW, rewrite("/one", hostname="one.example.org"), rewrite("/", hostname="example.org"),
                  rewrite("/prefix/one", path=prefix("/one")), rewrite("/full/one", path=full("/one")),
                  rewrite("/full/rewrite-path-and-modify-headers", path=full("/test")),
                  rewrite("/strip-prefix", path=prefix("/")), hosts="rewrite.example"),
            route("backend", GW,
                  rule("/backend-redirect", backend_level(requestRedirect={"path": prefix("/new"), "statusCode": 302})),
                  rule("/backend-rewrite", backend_level(urlRewrite={"hostname": "h.example", "path": prefix("/new")})),
                  hosts="backend.example"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("path", "status", "location"),
        [
            ("/hostname-redirect", 302, "http://example.org/hostname-redirect"),
            ("/host-and-status", 301, "http://example.org/host-and-status"),
            *((f"/status-{code}", code, f"http://example.com/status-{code}") for code in (301, 302, 303, 307, 308)),
            *((f"/scheme-{code}", code, f"https://example.com/scheme-{code}") for code in (303, 307, 308)),
            ("/original-prefix/lemon", 302, "http://example.com/replacement-prefix/lemon"),
            ("/original-prefix?q=1", 302, "http://example.com/replacement-prefix?q=1"),
            ("/full/path/original", 302, "http://example.com/full-path-replacement"),
            ("/path-and-host/lemon", 302, "http://example.org/replacement-prefix/lemon"),
            ("/path-and-status/lemon", 301, "http://example.com/replacement-prefix/lemon"),
            ("/full-path-and-host/lemon", 302, "http://example.org/replacement-full"),
            ("/to-root/lemon", 302, "http://example.com/lemon"),
            ("/to-root", 302, "http://example.com/"),
        ],
    )
    def test_redirect(self, suite: Suite, path: str, status: int, location: str):
        answer = suite.ask(GW, path)
        assert (answer.status, answer.get("location")) == (status, location)

    @pytest.mark.parametrize("port", [80, 8080, 443])
    def test_scheme_and_port_of_a_redirect(self, suite: Suite, port: int):
        asked = "https" if port == 443 else "http"
        for scheme in ("nil", "http", "https"):
            for number in ("nil", "80", "443", "8080"):
                path = f"/scheme-{scheme}-port-{number}"
                found = suite.ask("three-ports", path, port=port, sni="example.org" if port == 443 else "").get(
                    "location"
                )
                to = asked if scheme == "nil" else scheme
                default = {"http": 80, "https": 443}
                wanted = int(number) if number != "nil" else (port if scheme == "nil" else default[to])
                authority = "example.org" if wanted == default[to] else f"example.org:{wanted}"
                assert found == f"{to}://{authority}{path}"

    @pytest.mark.parametrize(
        ("path", "arrives", "host"),
        [
            ("/one", "/one", "one.example.org"), ("/", "/", "example.org"),
            ("/prefix/one/two", "/one/two", "rewrite.example"), ("/prefix/one?q=1", "/one?q=1", "rewrite.example"),
            ("/full/one/two?q=1", "/one?q=1", "rewrite.example"), ("/strip-prefix/three", "/three", "rewrite.example"),
            ("/strip-prefix", "/", "rewrite.example"),
        ],
    )  # fmt: skip
    def test_rewrite(self, suite: Suite, path: str, arrives: str, host: str):
        echo = suite.ask(GW, path, "rewrite.example").echo
        assert echo is not None
        assert (echo["path"], echo["host"]) == (arrives, host)

    def test_filters_of_a_backend(self, suite: Suite):
        answer = suite.ask(GW, "/backend-redirect/a", "backend.example")
        assert (answer.status, answer.get("location")) == (302, "http://backend.example/new/a")
        echo = suite.ask(GW, "/backend-rewrite/a", "backend.example").echo
        assert echo is not None
        assert (echo["path"], echo["host"]) == ("/new/a", "h.example")


class TestHeaderModifiers:
    VARIANTS = (
        ("set", {"set": pairs(X_Header_Set="set-overwrites-values")}),
        ("add", {"add": pairs(X_Header_Add="add-appends-values")}),
        ("remove", {"remove": ["X-Header-Remove"]}),
        ("multiple", {
            "set": pairs(X_Header_Set_1="header-set-1", X_Header_Set_2="header-set-2"),
            "add": pairs(X_Header_Add_1="header-add-1", X_Header_Add_2="header-add-2", X_Header_Add_3="header-add-3"),
            "remove": ["X-Header-Remove-1", "X-Header-Remove-2"],
        }),
        ("case", {"set": pairs(X_Header_Set="header-set"), "add": pairs(X_Header_Add="header-add"),
                  "remove": ["X-Header-Remove"]}),
    )  # fmt: skip
    CASES = (
        ("set", {}, {"x-header-set": "set-overwrites-values"}),
        ("set", {"Some-Other": "val"}, {"some-other": "val", "x-header-set": "set-overwrites-values"}),
        ("set", {"X-Header-Set": "old"}, {"x-header-set": "set-overwrites-values"}),
        ("add", {}, {"x-header-add": "add-appends-values"}),
        ("add", {"X-Header-Add": "first"}, {"x-header-add": "first,add-appends-values"}),
        ("remove", {"X-Header-Remove": "val"}, {"x-header-remove": None}),
        ("multiple", {"X-Header-Set-2": "old", "X-Header-Add-2": "val-2", "X-Header-Remove-2": "v", "Another": "a"},
         {"x-header-set-1": "header-set-1", "x-header-set-2": "header-set-2", "x-header-add-1": "header-add-1",
          "x-header-add-2": "val-2,header-add-2", "x-header-add-3": "header-add-3", "x-header-remove-2": None,
          "another": "a"}),
        ("case", {"x-header-set": "old", "x-header-add": "val", "x-header-remove": "val", "Another": "a"},
         {"x-header-set": "header-set", "x-header-add": "val,header-add", "x-header-remove": None, "another": "a"}),
    )  # fmt: skip

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        asked = lambda how: filters(requestHeaderModifier=how)  # noqa: E731
        answered = lambda how: filters(responseHeaderModifier=how)  # noqa: E731
        at = lambda made: [{**ref("infra-backend-v1"), "filters": made}]  # noqa: E731

        def each(name: str, made: Any) -> Manifest:
            return route(name, GW, *(made(f"/{path}", how) for path, how in cls.VARIANTS), hosts=f"{name}.example")

        suite.apply(
            each("rule", lambda path, how: rule(path, filters=asked(how))),
            each("backend", lambda path, how: rule(path, at(asked(how)))),
            each("answer", lambda path, how: rule(path, filters=answered(how))),
            each("back", lambda path, how: rule(path, at(answered(how)))),
            route("shares", GW, rule("/shares", [
                {**ref(f"infra-backend-v{number}"), "filters": asked({"add": pairs(Backend=f"v{number}")})}
                for number in (1, 2)
            ])),
        )  # fmt: skip

    @pytest.mark.parametrize("host", ["rule.example", "backend.example"])
    @pytest.mark.parametrize(("path", "fields", "wanted"), CASES)
    def test_request(self, suite: Suite, host: str, path: str, fields: dict[str, str], wanted: dict[str, str | None]):
        answer = suite.ask(GW, f"/{path}", host, **fields)
        assert {name: answer.sent(name) for name in wanted} == wanted

    @pytest.mark.parametrize("host", ["answer.example", "back.example"])
    @pytest.mark.parametrize(("path", "fields", "wanted"), CASES)
    def test_response(self, suite: Suite, host: str, path: str, fields: dict[str, str], wanted: dict[str, str | None]):
        given = ",".join(f"{name}:{value}" for name, value in fields.items())
        answer = suite.ask(GW, f"/{path}?set={given}" if given else f"/{path}", host)
        found = {name: answer.get(name) for name in wanted}
        assert {name: value and value.replace(", ", ",") for name, value in found.items()} == wanted

    def test_each_backend_of_a_rule_gets_its_own(self, suite: Suite):
        found = {(answer.who, answer.sent("backend")) for answer in suite.ask_many(GW, "/shares", 20)}
        assert found == {("infra-backend-v1", "v1"), ("infra-backend-v2", "v2")}


class TestMirrors:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        half = {"fraction": {"numerator": 1, "denominator": 2}}
        changed = filters(requestHeaderModifier={"set": pairs(X_Header_Set="set"), "add": pairs(X_Header_Add="added")})
        suite.apply(
            route("mirrors", GW, rule("/mirror", filters=[mirror("infra-backend-v2")]),
                  rule("/mirror-and-modify", filters=[*changed, mirror("infra-backend-v2")]),
                  rule("/two-mirrors", filters=[mirror("infra-backend-v2"), mirror("infra-backend-v3")]),
                  rule("/20-percent", filters=[mirror("infra-backend-v2", percent=20)]),
                  rule("/half", filters=[mirror("infra-backend-v2", **half)]),
                  rule("/35-percent", filters=[*changed, mirror("infra-backend-v2", percent=35)]),
                  rule("/nowhere", filters=[mirror("missing")])),
        )  # fmt: skip

    def seen(self, suite: Suite, service: str, path: str, count: int) -> list[dict[str, Any]]:
        """What the mirror saw of a path, once it is that many."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = [each for pod in suite.pods_of(service) for each in pod.seen if each["path"] == path]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    @pytest.mark.parametrize(
        ("path", "mirrors"),
        [("/mirror", (2,)), ("/mirror-and-modify", (2,)), ("/two-mirrors", (2, 3))],
    )
    def test_mirrors_see_the_request(self, suite: Suite, path: str, mirrors: tuple[int, ...]):
        answer = suite.ask(GW, path, X_Header_Add="first")
        assert answer.who == "infra-backend-v1"
        for number in mirrors:
            (seen,) = self.seen(suite, f"infra-backend-v{number}", path, 1)
            if path == "/mirror-and-modify":
                assert seen["headers"]["x-header-set"] == ["set"]
                assert ",".join(seen["headers"]["x-header-add"]) == "first,added"

    @pytest.mark.parametrize(("path", "share"), [("/20-percent", 0.2), ("/half", 0.5), ("/35-percent", 0.35)])
    def test_a_share_is_mirrored(self, suite: Suite, path: str, share: float):
        count = 200
        assert {answer.who for answer in suite.ask_many(GW, path, count)} == {"infra-backend-v1"}
        wanted = count * share
        assert wanted * 0.95 <= len(self.seen(suite, "infra-backend-v2", path, int(wanted))) <= wanted * 1.05

    def test_a_mirror_that_is_not_there_counts_for_references(self, suite: Suite):
        suite.route("mirrors", "Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")


class TestCors:
    ORIGIN, METHOD, HEADERS = "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        cors = lambda path, **how: rule(path, filters=filters(cors=how))  # noqa: E731
        suite.apply(
            route("cors", GW,
                  cors("/cors-1", allowOrigins=["https://www.foo.com", "https://*.bar.com"],
                       allowMethods=["GET", "OPTIONS"], allowHeaders=["x-header-1", "x-header-2"],
                       exposeHeaders=["x-header-3", "x-header-4"], allowCredentials=True, maxAge=3600),
                  cors("/cors-2", allowOrigins=["https://www.foo.com"], allowMethods=["*"]),
                  cors("/any-origin", allowOrigins=["*"], allowMethods=["GET", "PUT"]),
                  cors("/any-credentials", allowOrigins=["*"], allowMethods=["*"], allowHeaders=["*"],
                       allowCredentials=True),
                  cors("/any-anonymous", allowOrigins=["*"], allowMethods=["*"], allowHeaders=["*"]),
                  cors("/not-credentials", allowOrigins=["https://www.foo.com"], allowCredentials=False)),
        )  # fmt: skip

    WITH: ClassVar = {"credentials": ("true",)}
    FULL: ClassVar = {
        "methods": ("GET,OPTIONS",), "headers": ("x-header-1,x-header-2",), "max-age": ("3600",),
        "credentials": ("true",),
    }  # fmt: skip
    ASKS = "x-header-1, x-header-2"

    @pytest.mark.parametrize(
        ("path", "origin", "method", "headers", "statuses", "wanted"),
        [
            ("/cors-1", "https://www.foo.com", "GET", ASKS, {200}, {"origin": ("https://www.foo.com",), **FULL}),
            ("/cors-1", "https://www.bar.com", "GET", ASKS, {200}, {"origin": ("https://www.bar.com",), **FULL}),
            ("/cors-1", "https://a.b.bar.com", "GET", ASKS, {200}, {"origin": ("https://a.b.bar.com",), **FULL}),
            ("/cors-1", "https://foobar.com", "GET", "", {200, 204, 403}, {"origin": (None,)}),
            ("/cors-1", "https://bar.com", "GET", "", {200, 204, 403}, {"origin": (None,)}),
            ("/cors-1", "http://www.foo.com", "GET", "", {200, 204, 403}, {"origin": (None,)}),
            ("/cors-2", "https://www.foo.com", "POST", "", {200},
             {"origin": ("https://www.foo.com",), "methods": ("POST", "*"), "credentials": (None,)}),
            ("/any-origin", "https://foobar.com", "PUT", "", {200},
             {"origin": ("https://foobar.com", "*"), "credentials": (None,)}),
            ("/any-origin", "https://foobar.com:12345", "PUT", "", {200},
             {"origin": ("https://foobar.com:12345", "*"), "credentials": (None,)}),
            ("/any-credentials", "https://other.foo.com", "PUT", ASKS, {200},
             {"origin": ("https://other.foo.com",), "methods": ("PUT",), "headers": ("x-header-1,x-header-2",),
              "credentials": ("true",)}),
            ("/any-anonymous", "https://other.foo.com", "PUT", ASKS, {200},
             {"origin": ("https://other.foo.com", "*"), "methods": ("PUT", "*"),
              "headers": ("x-header-1,x-header-2", "*"), "credentials": (None,)}),
            ("/not-credentials", "https://www.foo.com", "GET", "", {200},
             {"origin": ("https://www.foo.com",), "credentials": (None,)}),
        ],
    )  # fmt: skip
    def test_preflight(
        self, suite: Suite, path: str, origin: str, method: str, headers: str, statuses: Any, wanted: Any
    ):
        fields = {self.ORIGIN: origin, self.METHOD: method, **({self.HEADERS: headers} if headers else {})}
        answer = suite.ask(GW, path, method="OPTIONS", **fields)
        assert answer.status in statuses
        assert answer.echo is None
        self.check(answer, wanted)
        if path == "/cors-1" and answer.get("access-control-allow-origin"):
            assert (answer.get("access-control-expose-headers") or "").replace(" ", "") == "x-header-3,x-header-4"

    def test_preflight_says_just_the_method_where_a_list_has_it(self, suite: Suite):
        fields = {self.ORIGIN: "https://foobar.com", self.METHOD: "PUT"}
        answer = suite.ask(GW, "/any-origin", method="OPTIONS", **fields)
        assert "PUT" in (answer.get("access-control-allow-methods") or "")

    @pytest.mark.parametrize(
        ("path", "origin", "method", "wanted"),
        [
            ("/cors-1", "https://www.foo.com", "GET", {"origin": ("https://www.foo.com",), "credentials": ("true",)}),
            ("/cors-1", "https://www.bar.com", "GET", {"origin": ("https://www.bar.com",)}),
            ("/cors-1", "https://foobar.com", "GET", {"origin": (None,), "credentials": (None,)}),
            ("/any-origin", "https://f.com", "PUT", {"origin": ("https://f.com", "*"), "credentials": (None,)}),
            ("/any-origin", "https://f.com:123", "PUT", {"origin": ("https://f.com:123", "*"), "credentials": (None,)}),
            ("/any-credentials", "https://o.foo.com", "GET", {"origin": ("https://o.foo.com",), **WITH}),
            ("/any-anonymous", "https://o.foo.com", "GET", {"origin": ("https://o.foo.com",), "credentials": (None,)}),
            ("/not-credentials", "https://www.foo.com", "GET", {"credentials": (None,)}),
        ],
    )  # fmt: skip
    def test_plain_request(self, suite: Suite, path: str, origin: str, method: str, wanted: Any):
        answer = suite.ask(GW, path, method=method, Origin=origin, Authorization="Bearer test")
        assert answer.who == "infra-backend-v1"
        self.check(answer, wanted)

    def check(self, answer: Any, wanted: dict[str, tuple[str | None, ...]]) -> None:
        for name, valid in wanted.items():
            full = "access-control-max-age" if name == "max-age" else f"access-control-allow-{name}"
            found = answer.get(full)
            assert (found and found.replace(" ", "")) in valid, f"{full}: {found}"
