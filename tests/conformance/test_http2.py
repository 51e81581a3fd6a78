"""HTTP/2 on either side of HTTPRoutes, backends by `appProtocol`, WebSockets, requests on the wrong connection."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from typing import Any

import pytest

from tests.conformance.http2_asking import UNKNOWN, Http2Asking
from tests.conformance.objects import backend_tls, filters, gateway, http, https, policy_target, route, rule
from tests.conformance.suite import Suite

GW = "same-namespace"
V1, V2, V3 = (f"infra-backend-v{number}" for number in (1, 2, 3))


class TestBackends:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        suite.apply(
            gateway("both", http(), https()),
            route("protocols", [GW, "both"], rule("/h2c", f"{V1}:8081"), rule("/plain"), rule("/ws", f"{V1}:8082"),
                  rule("/calls", "grpc-infra-backend-v1"),
                  rule("/rewritten", f"{V1}:8081", filters=filters(urlRewrite={"hostname": "one.example.org"})),
                  rule("/tls", "tls-backend:443"), rule("/mixed", [f"{V1}:8080@1", f"{V1}:8081@1"])),
            backend_tls("p", policy_target("tls-backend")),
        )  # fmt: skip

    @pytest.mark.parametrize("sni", ["", "example.org"])
    @pytest.mark.parametrize("client", ["HTTP/1.1", "HTTP/2"])
    @pytest.mark.parametrize(
        ("path", "is_http2", "host"),
        [
            ("/h2c", True, "example.org"),
            ("/h2c/a?b=c", True, "example.org"),
            ("/rewritten", True, "one.example.org"),
            ("/calls", True, "example.org"),
            ("/plain", False, "example.org"),
            ("/ws", False, "example.org"),
        ],
    )
    def test_what_the_backend_is_asked_in(
        self, suite: Suite, client: str, sni: str, path: str, is_http2: bool, host: str
    ):
        if client == "HTTP/2":
            with Http2Asking(suite, "both", sni=sni) as asking:
                answer = asking.ask(path, "example.org", X_Test="1")
        else:
            answer = suite.ask("both", path, "example.org", sni=sni, X_Test="1")
        assert answer.status == 200
        assert answer.echo is not None
        assert (answer.echo["is_http2"], answer.echo["path"], answer.echo["host"]) == (is_http2, path, host)
        assert answer.sent("x-test") == "1"

    @pytest.mark.parametrize("client", ["HTTP/1.1", "HTTP/2"])
    def test_statuses_and_fields_of_such_a_backend_arrive(self, suite: Suite, client: str):
        path = "/h2c?status=418&set=X-Answer:yes"
        if client == "HTTP/2":
            with Http2Asking(suite, GW) as asking:
                answer = asking.ask(path)
        else:
            answer = suite.ask(GW, path)
        assert (answer.status, answer.get("x-answer")) == (418, "yes")

    def test_a_backend_of_a_tls_policy_is_reached(self, suite: Suite):
        with Http2Asking(suite, GW) as asking:
            echo = asking.ask("/tls", "abc.example.com").echo
        assert echo is not None
        assert echo["tls"]["sni"] == "abc.example.com"

    def test_weights_between_backends_of_both_versions(self, suite: Suite):
        found = {(answer.echo or {}).get("is_http2") for answer in suite.ask_many(GW, "/mixed", 10)}
        assert found == {True, False}

    def test_status(self, suite: Suite):
        suite.route("protocols", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs")

    def test_one_connection_has_all_requests(self, suite: Suite):
        with Http2Asking(suite, GW) as asking:
            found = [asking.ask(path).status for path in ("/h2c", "/plain", "/none", "/h2c")]
        assert found == [200, 200, 404, 200]


class TestWebSockets:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        suite.apply(gateway("both", http(), https()), route("ws", ["both"], rule(to=f"{V1}:8082")))

    @pytest.mark.parametrize("sni", ["", "example.org"])
    def test_messages_come_back(self, suite: Suite, sni: str):
        """A text and a binary message, after RFC 6455: what a client masks is echoed as it is."""
        key = base64.b64encode(os.urandom(16))
        with socket.create_connection((suite.address("both"), 443 if sni else 80), 10) as raw:
            sock = suite.client().wrap_socket(raw, server_hostname=sni) if sni else raw
            sock.sendall(
                b"GET /ws HTTP/1.1\r\nHost: gateway\r\nOrigin: ws://gateway/test\r\nConnection: Upgrade\r\n"
                b"Upgrade: websocket\r\nSec-WebSocket-Key: " + key + b"\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            file = sock.makefile("rb")
            assert b" 101 " in file.readline()
            fields = {}
            while (line := file.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                fields[name.lower()] = value.strip()
            digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
            assert fields[b"sec-websocket-accept"] == base64.b64encode(digest)
            for kind, message in ((1, "Grüße".encode()), (2, bytes(range(7)))):
                frame = bytes([0x80 | kind, 0x80 | len(message)]) + b"\0\0\0\0" + message
                sock.sendall(frame)
                assert file.read(len(frame)) == frame
            file.close()
        (seen, *_) = [each for each in suite.log if each["path"] == "/ws" and "upgrade" in each["headers"]]
        assert seen["headers"]["origin"] == ["ws://gateway/test"]


class TestMisdirectedRequests:
    """RFC 9110, 15.5.20: a connection is for the listener of its handshake, whatever else its certificate covers."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        suite.apply(
            gateway("misdirected", https(), https("second", hostname="second-example.org"),
                    https("wild", hostname="*.wildcard.org"), https("fourth", hostname="fourth-example.wildcard.org"),
                    https("calls", hostname="calls.wildcard.org")),
            route("m-1", "misdirected", rule("/detect", V1), hosts="example.org"),
            route("m-2", "misdirected/second", rule("/detect", V2)),
            route("m-3", "misdirected/wild", rule("/detect", V3)),
            route("m-4", "misdirected/fourth", rule("/detect", f"{V1}:8081")),
            route("calls", "misdirected/calls", rule(to="grpc-infra-backend-v2"), kind="GRPCRoute"),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("sni", "asked"),
        [
            ("example.org", [("example.org", V1), ("second-example.org", 421), ("unknown-example.org", 404),
                             ("third-example.wildcard.org", 421), ("example.org:443", V1)]),
            ("second-example.org", [("second-example.org", V2), ("example.org", 421), ("unknown-example.org", 421),
                                    ("SECOND-example.org", V2), ("second-example.org:443", V2)]),
            ("third-example.wildcard.org", [
                ("third-example.wildcard.org", V3), ("fifth-example.wildcard.org", V3),
                ("fourth-example.wildcard.org", 421), ("second-example.org", 421), ("unknown-example.org", 421),
            ]),
            ("fourth-example.wildcard.org", [("fourth-example.wildcard.org", V1), ("fifth-example.wildcard.org", 421),
                                             ("example.org", 421)]),
            ("unknown-example.org", [("example.org", V1), ("unknown-example.org", 404), ("second-example.org", 421)]),
        ],
    )  # fmt: skip
    def test_requests_of_one_connection(self, suite: Suite, sni: str, asked: list[tuple[str, Any]]):
        """Each is answered for itself: the connection goes on."""
        with Http2Asking(suite, "misdirected", sni=sni) as asking:
            found = [(host, asking.ask("/detect", host).who) for host, _ in (*asked, asked[0])]
        assert found == [*asked, asked[0]]

    def test_nothing_of_a_misdirected_request_reaches_a_backend(self, suite: Suite):
        with Http2Asking(suite, "misdirected", sni="second-example.org") as asking:
            assert asking.ask("/detect/astray", "example.org").status == 421
            assert asking.call("/conformance.Echo/Astray", "calls.wildcard.org").status == UNKNOWN
        assert not [each["path"] for each in suite.log if "stray" in each["path"].lower()]
        with Http2Asking(suite, "misdirected", sni="calls.wildcard.org") as asking:
            assert asking.call("/conformance.Echo/Say", "calls.wildcard.org").who == "grpc-infra-backend-v2"

    def test_an_open_connection_is_for_the_listeners_that_there_are(self, suite: Suite):
        """A listener that comes takes its hostname from the one that had it, and gives it back."""
        before = [gateway("changing", https()), route("c-1", "changing/https", rule("/detect", V1))]
        suite.apply(*before)
        with Http2Asking(suite, "changing", sni="second-example.org") as asking:
            assert asking.ask("/detect", "second-example.org").who == V1
            suite.apply(
                gateway("changing", https(), https("second", hostname="second-example.org")),
                route("c-1", "changing/https", rule("/detect", V1)),
                route("c-2", "changing/second", rule("/detect", V2)),
            )
            assert answered(asking, "second-example.org") in {V2, 421, None}
        with Http2Asking(suite, "changing", sni="second-example.org") as asking:
            assert asking.ask("/detect", "second-example.org").who == V2
            assert asking.ask("/detect", "example.org").who == 421
            suite.apply(*before)
            assert answered(asking, "second-example.org") in {V1, 421, None}


def answered(asking: Http2Asking, host: str) -> str | int | None:
    """Who answers on a connection from before a change; None where the gateway has closed it."""
    try:
        return asking.ask("/detect", host).who
    except ConnectionError:
        return None
