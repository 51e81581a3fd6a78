"""ListenerSets that want the port of others: what status says, and who answers, before and after changes."""

from __future__ import annotations

import http.client
from typing import Any

import pytest

from tests.conformance.objects import INFRA, gateway, listener_set, route, rule
from tests.conformance.objects import http as web
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest

SERVED = ("Accepted=True/Accepted", "Programmed=True/Programmed", "Conflicted=False/NoConflicts")
LOST = ("Accepted=False/ProtocolConflict", "Programmed=False/ProtocolConflict", "Conflicted=True/ProtocolConflict")
NOT_VALID = ("Accepted=False/ListenersNotValid", "Programmed=False/ListenersNotValid")
TAKEN = ("Accepted=False/PortUnavailable", "Programmed=False/PortUnavailable")
ADMITS: dict[str, Any] = {"allowedListeners": {"namespaces": {"from": "Same"}}}


def tcp(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "protocol": "TCP", "allowedRoutes": {"namespaces": {"from": "Same"}}}


def at(name: str, section: str = "") -> Manifest:
    made = {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": name, "namespace": INFRA}
    return {**made, **({"sectionName": section} if section else {})}


def dated(made: Manifest, day: int) -> Manifest:
    made["metadata"]["creationTimestamp"] = f"2024-01-0{day}T00:00:00Z"
    return made


def entry(suite: Suite, name: str, section: str, *expected: str) -> None:
    suite.listener(name, section, *expected, kind="ListenerSet")


class TestProtocolConflicts:
    """As ListenerSetProtocolConflict of Gateway API v1.5 has it."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _configured(cls, suite: Suite) -> None:
        suite.apply(
            gateway("owner", web("own", 80, "own.example.com"), web("wanted", 80, "wanted.example.com"), **ADMITS),
            listener_set("set-1", "owner", web("a", 80, "a.example.com"), tcp("wanted", 80),
                         web("older", 80, "older.example.com")),
            listener_set("set-2", "owner", tcp("wanted", 80)),
            listener_set("set-3", "owner", web("b", 80, "b.example.com"), tcp("older", 80)),
            listener_set("set-4", "owner", tcp("older", 80)),
            route("at-gateway", "owner", rule()),
            route("at-1", at("set-1"), rule(to="infra-backend-v2")),
            route("at-3", at("set-3"), rule(to="infra-backend-v3")),
            *(route(f"tcp-{n}", at(f"set-{n}"), rule(to="web-backend"), kind="TCPRoute") for n in (1, 2, 3, 4)),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("set-1", ("Accepted=True", "Programmed=True/Programmed")),
            ("set-2", NOT_VALID),
            ("set-3", ("Accepted=True", "Programmed=True/Programmed")),
            ("set-4", NOT_VALID),
        ],
    )
    def test_set(self, suite: Suite, name: str, expected: tuple[str, ...]):
        suite.gateway(name, *expected, kind="ListenerSet")

    @pytest.mark.parametrize(
        ("name", "section", "expected"),
        [
            ("set-1", "a", SERVED),
            ("set-1", "wanted", LOST),
            ("set-1", "older", SERVED),
            ("set-2", "wanted", LOST),
            ("set-3", "b", SERVED),
            ("set-3", "older", LOST),
            ("set-4", "older", LOST),
        ],
    )
    def test_entry(self, suite: Suite, name: str, section: str, expected: tuple[str, ...]):
        entry(suite, name, section, *expected)

    def test_the_gateway_counts_the_sets_with_a_good_listener(self, suite: Suite):
        status = suite.gateway("owner", "Accepted=True/Accepted", "Programmed=True/Programmed")
        assert status["attachedListenerSets"] == 2
        for section in ("own", "wanted"):
            suite.listener("owner", section, *SERVED)

    @pytest.mark.parametrize(
        ("host", "who"),
        [
            ("own.example.com", "infra-backend-v1"),
            ("wanted.example.com", "infra-backend-v1"),
            ("a.example.com", "infra-backend-v2"),
            ("older.example.com", "infra-backend-v2"),
            ("b.example.com", "infra-backend-v3"),
            ("nobody.example.com", 404),
        ],
    )
    def test_who_answers(self, suite: Suite, host: str, who: str | int):
        assert suite.ask("owner", host=host).who == who


class TestPortsThatChangeHands:
    """What is served is what status says, after each change."""

    def test_a_stream_listener_gets_the_port_when_the_older_http_goes_and_loses_it_again(self, suite: Suite):
        older = dated(listener_set("older", "owner", web("web", 80), web("other", 82)), 1)
        younger = dated(listener_set("younger", "owner", tcp("tcp", 80), web("side", 83)), 2)
        fixed = [
            gateway("owner", web(port=81), **ADMITS),
            younger,
            route("web", at("older"), rule(to="infra-backend-v1")),
            route("tcp", at("younger", "tcp"), rule(to="infra-backend-v2"), kind="TCPRoute"),
            route("side", at("younger", "side"), rule(to="infra-backend-v3")),
        ]
        suite.apply(*fixed, older)
        entry(suite, "younger", "tcp", *LOST)
        entry(suite, "younger", "side", *SERVED)
        assert suite.gateway("owner")["attachedListenerSets"] == 2
        assert [suite.ask("owner", port=port).who for port in (80, 83)] == ["infra-backend-v1", "infra-backend-v3"]

        address = suite.address("owner")
        open_one = http.client.HTTPConnection(address, 80, 20)
        open_one.request("GET", "/", headers={"Host": "example.com"})
        open_one.getresponse().read()
        suite.change(dated(listener_set("older", "owner", web("other", 82)), 1))
        entry(suite, "younger", "tcp", *SERVED)
        assert [suite.ask("owner", port=port).who for port in (80, 82, 83)] == [
            "infra-backend-v2", "infra-backend-v1", "infra-backend-v3",
        ]  # fmt: skip
        # A connection from before has no listener for HTTP any more: no request of it goes where it went.
        assert answered(open_one) != 200

        suite.change(older)
        entry(suite, "younger", "tcp", *LOST)
        entry(suite, "older", "web", *SERVED)
        assert [suite.ask("owner", port=port).who for port in (80, 83)] == ["infra-backend-v1", "infra-backend-v3"]

    def test_of_two_gateways_at_one_address_the_younger_ones_sets_lose_that_port_alone(self, suite: Suite):
        addresses = [{"type": "IPAddress", "value": suite.spare_address}]
        first = dated(gateway("first", web(port=80), addresses=addresses, **ADMITS), 1)
        rest = [
            dated(gateway("second", web(port=81), addresses=addresses, **ADMITS), 2),
            dated(listener_set("at-first", "first", web("web", 82)), 4),
            dated(listener_set("both", "second", tcp("tcp", 80), web("web", 83)), 3),
            dated(listener_set("none", "second", web("web", 82)), 3),
            route("first", ["first", at("at-first")], rule(to="infra-backend-v1")),
            route("tcp", at("both", "tcp"), rule(to="infra-backend-v2"), kind="TCPRoute"),
            route("web", [at("both", "web"), at("none")], rule(to="infra-backend-v3")),
        ]
        suite.apply(first, *rest)
        entry(suite, "both", "tcp", *TAKEN)
        entry(suite, "both", "web", *SERVED)
        entry(suite, "none", "web", *TAKEN)
        suite.gateway("both", "Accepted=True/ListenersNotValid", "Programmed=True/Programmed", kind="ListenerSet")
        suite.gateway("none", *NOT_VALID, kind="ListenerSet")
        assert [suite.gateway(name)["attachedListenerSets"] for name in ("first", "second")] == [1, 1]
        served = [suite.ask("first", port=port).who for port in (80, 82, 83)]
        assert served == ["infra-backend-v1", "infra-backend-v1", "infra-backend-v3"]

        suite.change(dated(gateway("first", web(port=84), addresses=addresses), 1))
        entry(suite, "both", "tcp", *SERVED)
        entry(suite, "none", "web", *SERVED)
        assert [suite.gateway(name)["attachedListenerSets"] for name in ("first", "second")] == [0, 2]
        served = [suite.ask("second", port=port).who for port in (80, 82, 83, 84)]
        assert served == ["infra-backend-v2", "infra-backend-v3", "infra-backend-v3", "infra-backend-v1"]


def answered(connection: http.client.HTTPConnection) -> int:
    """The status of one more request on an open connection, 0 where it was closed."""
    try:
        connection.sock.sendall(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
        got = http.client.HTTPResponse(connection.sock)
        got.begin()
        return got.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
