"""ListenerSets that want the port of others: what status says, and who answers, before and after changes."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import pytest

from tests.conformance.objects import INFRA, gateway, listener_set, route, rule
from tests.conformance.objects import http as web
from tests.conformance.suite import Suite
from tests.support.manifests import Manifest
from tests.support.waiting import WAIT_S

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


def test_a_route_is_at_the_parents_that_it_names_and_at_no_other(suite: Suite):
    suite.apply(
        gateway("owner", web("own", 80, "own.example.com"), **ADMITS),
        listener_set("set", "owner", web("a", 80, "a.example.com")),
        route("at-gateway", "owner", rule("/gateway")),
        route("at-set", at("set"), rule("/set", "infra-backend-v2")),
    )
    suite.route("at-gateway", "Accepted=True/Accepted")  # one parent, as written
    suite.route("at-set", "Accepted=True/Accepted")
    suite.listener("owner", "own", *SERVED, attached=1)
    suite.listener("set", "a", *SERVED, attached=1, kind="ListenerSet")
    found = {
        (host, path): suite.ask("owner", path, f"{host}.example.com").who
        for host in ("own", "a")
        for path in ("/gateway", "/set")
    }
    assert found == {
        ("own", "/gateway"): "infra-backend-v1", ("own", "/set"): 404,
        ("a", "/gateway"): 404, ("a", "/set"): "infra-backend-v2",
    }  # fmt: skip


class TestTrafficDuringChanges:
    """Changes that leave somebody to serve a request cost none."""

    def test_who_serves_changes_and_no_request_is_lost(self, suite: Suite):
        shared = lambda name: listener_set(name, "owner", web("shared", 80, "x.example.com"))  # noqa: E731
        owner = gateway("owner", web("own", 80, "own.example.com"), web("wild", 80, "*.w.example.com"), **ADMITS)
        late = listener_set("late", "owner", web("a", 80, "a.w.example.com"))
        shares = route("shares", [at("alpha"), at("beta")], rule())
        suite.apply(owner, shared("alpha"), shared("beta"), late, shares, route("moves", "owner/wild", rule()))
        entry(suite, "beta", "shared", "Conflicted=True/HostnameConflict")
        hosts = ("x.example.com", "b.w.example.com")
        moves = route("moves", ["owner/wild", at("late")], rule(to="infra-backend-v2"))
        with Asking(suite, hosts) as asking:
            asking.goes_on()
            suite.apply(owner, shared("beta"), late, shares, moves)  # the set that had the hostname goes
            entry(suite, "beta", "shared", *SERVED)
            (parent,) = suite.get("HTTPRoute", "shares")["status"]["parents"]
            assert parent["parentRef"]["name"] == "beta"
            asking.goes_on()
            suite.apply(owner, shared("beta"), late, shares, route("other", "owner/wild", rule(to="infra-backend-v3")))
            asking.goes_on()
        assert asking.lost == []
        assert suite.ask("owner", host="b.w.example.com").who == "infra-backend-v3"

    def test_a_route_moves_from_its_gateway_to_a_set(self, suite: Suite):
        owner = gateway("owner", web("own", 80, "own.example.com"), web("wild", 80, "*.w.example.com"), **ADMITS)
        set_ = listener_set("set", "owner", web("a", 80, "*.example.com"))
        suite.apply(owner, set_, route("moves", "owner/wild", rule(), hosts="a.w.example.com"))
        # The more specific listener goes at the same moment.
        smaller = gateway("owner", web("own", 80, "own.example.com"), **ADMITS)
        with Asking(suite, ("a.w.example.com",)) as asking:
            asking.goes_on()
            suite.apply(smaller, set_, route("moves", at("set"), rule(), hosts="a.w.example.com"))
            asking.goes_on()
        assert asking.lost == []
        entry(suite, "set", "a", *SERVED)


class Asking:
    """Asks without a pause, each time on a connection of its own. `lost` has what was not answered with 200."""

    def __init__(self, suite: Suite, hosts: tuple[str, ...]) -> None:
        self.lost: list[object] = []
        self._suite, self._hosts = suite, hosts
        self._count, self._ends = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Asking:
        self._suite.address("owner")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join(WAIT_S)

    def goes_on(self, count: int = 50) -> None:
        """Until so many more were answered."""
        with self._changed:
            wanted = self._count + count
            assert self._changed.wait_for(lambda: self._count >= wanted, WAIT_S)

    def _ask(self) -> None:
        address = self._suite.address("owner")
        while not self._ends:
            for host in self._hosts:
                connection = http.client.HTTPConnection(address, 80, WAIT_S)
                try:
                    connection.request("GET", "/test", headers={"Host": host})
                    status = connection.getresponse().status
                    if status != 200:
                        self.lost.append((host, status))
                except (OSError, http.client.HTTPException) as error:
                    self.lost.append((host, error))
                finally:
                    connection.close()
            with self._changed:
                self._count += 1
                self._changed.notify_all()


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
