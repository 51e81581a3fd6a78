"""The ExternalAuth filter, of authorization servers that are asked in HTTP and in gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.authorization import DENIAL
from tests.conformance.echo import HTTP_PORT
from tests.conformance.http2_asking import Http2Asking
from tests.conformance.objects import INFRA, filters, ref, route, rule, service, slices
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest

GW = "same-namespace"


class TestExternalAuth:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        def asks(to: str = "infra-backend-v3", **how: Any) -> list[Manifest]:
            return filters(externalAuth={"protocol": "HTTP", "backendRef": ref(to), **{"http": {}, **how}})

        suite.apply(
            route("auth", GW, rule("/auth", filters=asks()),
                  rule("/prefix", filters=asks(http={"path": "/check"})),
                  rule("/headers", filters=asks(http={"allowedHeaders": ["X-Test-Header"]})),
                  rule("/nulls", filters=asks(http={"allowedHeaders": None, "path": None})),
                  rule("/answers", filters=asks(http={"allowedResponseHeaders": ["X-User-Id"]})),
                  rule("/body", filters=asks(forwardBody={"maxSize": 100})),
                  rule("/no-body", filters=asks(forwardBody={"maxSize": 0})),
                  rule("/nobody", filters=asks("nobody")), rule("/free")),
            route("half", GW, rule("/good", filters=asks()), rule("/bad", filters=asks("missing")),
                  hosts="half.example"),
            route("bad", GW, rule(filters=asks("missing")), hosts="bad.example"),
            route("port", GW, rule(filters=asks("infra-backend-v3:1")), hosts="port.example"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("path", "who"),
        [
            ("/auth", "infra-backend-v1"), ("/auth/a?status=403", 403), ("/auth?status=401", 401),
            ("/nulls", "infra-backend-v1"), ("/nulls?status=403", 403), ("/free", "infra-backend-v1"),
        ],
    )  # fmt: skip
    def test_decision(self, suite: Suite, path: str, who: str | int):
        asked = len(self.asked(suite))
        answer = suite.ask(GW, path)
        assert answer.who == who
        assert len(self.asked(suite)) == asked + (path != "/free")
        if isinstance(who, int):
            assert answer.echo is not None
            assert answer.echo["service"] == "infra-backend-v3"  # the denial's own body
            assert answer.echo["path"] == path

    def test_what_the_server_is_asked(self, suite: Suite):
        suite.ask(GW, "/prefix/a")
        assert self.asked(suite)[-1]["path"] == "/check/prefix/a"
        suite.ask(GW, "/headers", X_Test_Header="42", X_Other="1", Authorization="Bearer x")
        headers = self.asked(suite)[-1]["headers"]
        assert headers["x-test-header"] == ["42"]
        assert headers["authorization"] == ["Bearer x"]
        assert "x-other" not in headers

    def test_what_the_backend_is_told(self, suite: Suite):
        answer = suite.ask(GW, "/answers?set=X-User-Id:42,X-Other:1")
        assert answer.sent("x-user-id") == "42"
        assert answer.sent("x-other") is None

    @pytest.mark.parametrize(
        ("path", "size", "statuses", "forwarded"),
        [
            ("/body", 10, {200}, 10),
            ("/body", 200, {413, 403}, None),
            ("/no-body", 200, {200}, 0),
            ("/body", 0, {200}, 0),
        ],
    )
    def test_body(self, suite: Suite, path: str, size: int, statuses: set[int], forwarded: int | None):
        answer = suite.ask(GW, path, method="POST", body=b"x" * size)
        assert answer.status in statuses
        if forwarded is not None:
            assert len(self.asked(suite)[-1]["body"]) == forwarded
            assert answer.echo is not None
            assert len(answer.echo["body"]) == size

    def test_a_body_of_http2_without_its_length(self, suite: Suite):
        with Http2Asking(suite, GW) as asking:
            asked = len(self.asked(suite))
            assert asking.ask("/body", method="POST", body=b"x" * 200).status == 413
            assert len(self.asked(suite)) == asked
            assert asking.ask("/body", method="POST", body=b"x" * 100).status == 200
            assert asking.ask("/no-body", method="POST", body=b"x" * 200).status == 200
        assert [len(each["body"]) for each in self.asked(suite)[asked:]] == [100, 0]

    def test_servers_that_are_not_there_deny(self, suite: Suite):
        failures = {403, 500, 502, 503}
        for host, path in (("a", "/nobody"), ("bad.example", "/"), ("port.example", "/"), ("half.example", "/bad")):
            assert suite.ask(GW, path, host).who in failures, host
        assert suite.ask(GW, "/good", "half.example").who == "infra-backend-v1"
        suite.route("auth", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
        for name in ("bad", "port", "half"):
            suite.route(name, "Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")
        suite.route("half", "PartiallyInvalid=True")

    def asked(self, suite: Suite) -> list[dict[str, Any]]:
        """What the authorization servers saw, in order."""
        return [each for each in suite.log if each["service"] == "infra-backend-v3"]


class TestExternalAuthInGrpc:
    """The same, of a server that is asked in Envoy's ext_authz."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        def asks(to: Any = "grpc-infra-backend-v3", **how: Any) -> list[Manifest]:
            return filters(externalAuth={"protocol": "GRPC", "backendRef": ref(to), **{"grpc": {}, **how}})

        unnamed: Manifest = {"port": 9001, "targetPort": HTTP_PORT, "protocol": "TCP"}
        pods = [pod.address for pod in suite.pods_of("grpc-infra-backend-v3")]
        suite.apply(
            service("says-nothing", INFRA, unnamed),
            slices("says-nothing", INFRA, [{"name": "", "port": HTTP_PORT, "protocol": "TCP"}], pods),
            route("auth", GW, rule("/auth", filters=asks()),
                  rule("/nulls", filters=asks("says-nothing:9001", grpc={"allowedHeaders": None})),
                  rule("/headers", filters=asks(grpc={"allowedHeaders": ["X-Test-Header"]})),
                  rule("/body", filters=asks(forwardBody={"maxSize": 100})),
                  rule("/no-body", filters=asks(forwardBody={"maxSize": 0}))),
            route("bad", GW, rule(filters=asks("missing")), hosts="bad.example"),
        )  # fmt: skip

    @pytest.mark.parametrize("path", ["/auth", "/nulls"])
    def test_decision(self, suite: Suite, path: str):
        suite.route("auth", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")
        allowed = suite.ask(GW, path)
        assert allowed.who == "infra-backend-v1"
        assert allowed.sent("x-user-id") == "42"
        denied = suite.ask(GW, f"{path}/denied")
        assert (denied.status, denied.body, denied.get("x-auth-body")) == (403, DENIAL, "0")

    def test_headers(self, suite: Suite):
        assert suite.ask(GW, "/headers", X_Test_Header="hello").sent("x-auth-saw") == "hello"

    @pytest.mark.parametrize(
        ("path", "size", "status", "forwarded"),
        [
            ("/body", 10, 200, "10"),
            ("/body", 200, 413, None),
            ("/no-body", 200, 200, "0"),
            ("/no-body/denied", 200, 403, "0"),
        ],
    )
    def test_body(self, suite: Suite, path: str, size: int, status: int, forwarded: str | None):
        answer = suite.ask(GW, path, method="POST", body=b"x" * size)
        assert answer.status == status
        if status == 200:
            assert answer.sent("x-auth-body") == forwarded
            assert answer.echo is not None
            assert len(answer.echo["body"]) == size
        elif forwarded:
            assert answer.get("x-auth-body") == forwarded

    def test_a_server_that_is_not_there_denies(self, suite: Suite):
        assert suite.ask(GW, "/", "bad.example").who == 500
        suite.route("bad", "Accepted=True/Accepted", "ResolvedRefs=False/BackendNotFound")
