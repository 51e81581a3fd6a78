"""Several parents, and destinations that go past them: which way an exchange takes."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, ip_network
from typing import Any

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.backends.parent_connect import ParentUnreachable
from egressproxy.gateway.backends.parent_selection import MAX_KNOWN, MAX_PAUSE_S, NoProxy, ParentSelector
from egressproxy.ir.backend import BackendIR, Destination, NoProxyRule
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation

TWO = {"name": "one", "fallbacks": [{"name": "two"}]}
PLAIN = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
TUNNEL = b"CONNECT a.example:22 HTTP/1.1\r\nHost: a.example:22\r\nVia: 1.1 gw\r\n"


def objects(parent: dict[str, Any] = TWO, **more: Any) -> list[m.Manifest]:
    one, two = m.backend("one", "one.example", 3128), m.backend("two", "two.example", 3129)
    login = m.secret("login", {"username": "robot", "password": "word"})
    return forward(one, two, login, parent=parent, **more)


def refusal() -> UpstreamFault:
    return UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503)


def established(talk: Conversation, host: str, port: int) -> None:
    talk.dialled(host, port)
    talk.origin.take(rb"CONNECT .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"


# --- fail-over ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [GET, GET.replace(b"http://", b"https://"), connect("a.example:22")])
def test_where_one_cannot_be_connected_to_the_next_is_asked(converse: Start, request_: bytes):
    talk = converse(objects())
    talk.client >> request_
    talk.refused("one.example", 3128, refusal())
    talk.dialled("two.example", 3129)
    talk.origin.take(rb"(GET http://a.example/|CONNECT a.example:(22|443)) HTTP/1.1\r\n.*?\r\n\r\n")


def test_each_is_shown_its_own_credentials(converse: Start):
    other = {"name": "two", "credentialsRef": {"name": "login"}, "allowPlaintext": True}
    for request_ in (GET, connect("a.example:22")):
        talk = converse(objects({"name": "one", "fallbacks": [other]}))
        talk.client >> request_
        assert talk.pending_dial() is not None
        talk.refused("one.example", 3128, refusal())
        talk.dialled("two.example", 3129)
        assert b"Proxy-Authorization: Basic cm9ib3Q6d29yZA==\r\n" in talk.origin.take(rb".*?\r\n\r\n")[0]


def test_one_that_is_put_aside_costs_no_other_request_a_dial(converse: Start):
    talk = converse(objects())
    talk.client >> connect("a.example:22")
    talk.refused("one.example", 3128, refusal())
    established(talk, "two.example", 3129)
    talk.client << ESTABLISHED
    for _ in range(3):
        talk.client = talk.connect()
        talk.client >> connect("a.example:22")
        established(talk, "two.example", 3129)
        talk.client << ESTABLISHED
    talk.after(1.2)
    talk.client = talk.connect()
    talk.client >> connect("a.example:22")
    established(talk, "one.example", 3128)
    talk.client << ESTABLISHED


def test_one_whose_name_cannot_be_resolved_is_passed_over(converse: Start):
    talk = converse(objects())
    talk.names.faults["one.example"] = lambda: UpstreamFault(Reason.DNS_SERVFAIL, "no answer", status=503)
    talk.client >> GET
    talk.dialled("two.example", 3129)
    talk.origin.take(rb"GET http://a.example/ .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("answer", [b"403 Forbidden", b"407 Proxy Authentication Required", b"503 Busy"])
def test_what_a_parent_answers_is_not_asked_of_the_next(converse: Start, answer: bytes):
    talk = converse(objects())
    talk.client >> connect("a.example:22")
    talk.dialled("one.example", 3128)
    talk.origin << TUNNEL + b"\r\n"
    talk.origin >> b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n"
    assert talk.client.answer()[0] == 502
    assert talk.pending_dial() is None


def test_one_that_closes_when_it_is_asked_is_not_put_aside(converse: Start):
    talk = converse(objects())
    for _ in range(2):
        talk.client = talk.connect()
        talk.client >> connect("a.example:22")
        talk.dialled("one.example", 3128)
        talk.origin.take(rb"CONNECT .*?\r\n\r\n")
        talk.origin.ends()
        established(talk, "two.example", 3129)
        talk.client << ESTABLISHED


def test_where_none_can_be_connected_to_the_last_one_is_named(converse: Start):
    talk = converse(objects())
    talk.client >> connect("a.example:22")
    talk.refused("one.example", 3128, refusal())
    talk.refused("two.example", 3129, refusal())
    status, _, _, error = talk.client.answer()
    assert (status, error["message"]) == (503, "refused (parent proxy agents/two)")
    assert talk.open == 0


def test_a_deny_of_any_of_them_closes_what_would_go_through_them(converse: Start):
    deny = {"allow": [{"hostnames": ["a.example"]}], "deny": [{"hostnames": ["two.example"]}]}
    talk = converse(objects(destinations=deny))
    talk.client >> connect("a.example:22")
    assert talk.client.answer()[0] == 403
    assert talk.pending_dial() is None


class Clock:
    """`told` has what was told of parents."""

    now = 100.0

    def __init__(self) -> None:
        self.told: list[tuple[str, Reason | None, str]] = []

    def tell(self, parent: BackendIR, reason: Reason | None, message: str) -> None:
        self.told.append((parent.name, reason, message))


def parents(*names: str) -> tuple[ParentSelector[str], Clock]:
    clock = Clock()
    parents = [(BackendIR(name, Destination.FQDN), name) for name in names]
    return ParentSelector(parents, None, (), lambda: clock.now, clock.tell), clock


def reached(found: ParentSelector[str], down: set[str]) -> list[str]:
    """The ways that one exchange has tried."""
    tried: list[str] = []

    async def attempt(name: str) -> str:
        tried.append(name)
        if name in down:
            raise ParentUnreachable(Reason.CONNECT_REFUSED, name)
        return name

    try:
        asyncio.run(found.reach("a.example", 443, attempt))
    except ParentUnreachable:
        tried.append("none")
    return tried


def test_the_time_for_which_one_is_put_aside_grows_and_ends_with_a_success():
    found, clock = parents("one", "two")
    assert reached(found, {"one"}) == ["one", "two"]
    pauses = []
    for _ in range(10):
        start = clock.now
        while reached(found, {"one"}) == ["two"]:
            clock.now += 0.5
        pauses.append(clock.now - start)
    assert pauses == [1, 2, 4, 8, 16, 32, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    clock.now += MAX_PAUSE_S
    assert reached(found, set()) == ["one"]
    assert reached(found, {"one"}) == ["one", "two"]
    clock.now += 1
    assert reached(found, {"one"}) == ["one", "two"], "it begins with the first time again"


def test_it_is_told_when_one_is_put_aside_and_when_it_returns():
    found, clock = parents("one", "two")
    reached(found, {"one"})
    assert dict(found.put_aside()) == {"one": 1.0, "two": 0.0}
    reached(found, {"one"})
    assert clock.told == [("one", Reason.CONNECT_REFUSED, "one: it is put aside for 1 s (upstream_refused)")]
    clock.now += 1
    reached(found, set())
    assert clock.told[1:] == [("one", None, "the parent proxy one can be connected to again")]
    assert dict(found.put_aside()) == {"one": 0.0, "two": 0.0}
    reached(found, set())
    assert len(clock.told) == 2


def test_what_many_exchanges_find_at_the_same_time_counts_once():
    found, clock = parents("one", "two")

    async def attempt(name: str) -> str:
        await asyncio.sleep(0)
        if name == "one":
            raise ParentUnreachable(Reason.CONNECT_REFUSED, name)
        return name

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(found.reach("a.example", 443, attempt) for _ in range(50)))

    assert asyncio.run(all_at_once()) == ["two"] * 50
    clock.now += 1
    assert reached(found, set()) == ["one"]


def test_one_exchange_tries_it_again_while_others_stay_with_the_next():
    found, clock = parents("one", "two")
    reached(found, {"one"})
    clock.now += 1
    inner: list[str] = []

    async def attempt(name: str) -> str:
        if name == "one":
            inner.append(found.present("a.example", 443))
            inner.append(await found.reach("a.example", 443, other))
        return name

    async def other(name: str) -> str:
        return name

    assert asyncio.run(found.reach("a.example", 443, attempt)) == "one"
    assert inner == ["two", "two"]


def test_where_all_are_put_aside_each_is_tried_once():
    found, clock = parents("one", "two", "three")
    assert reached(found, {"one", "two", "three"}) == ["one", "two", "three", "none"]
    clock.now += 0.25
    assert reached(found, {"one", "two"}) == ["one", "two", "three"]


# --- noProxy --------------------------------------------------------------------------------------------------------
RULES = (
    NoProxyRule(hostnames=("in.example", "*.corp.example")),
    NoProxyRule(hostnames=("a.example",), ports=(8443,)),
    NoProxyRule(cidrs=(ip_network("10.0.0.0/8"), ip_network("fd00::/8"))),
)


@pytest.mark.parametrize(
    ("host", "port", "is_direct"),
    [
        ("in.example", 80, True),
        ("x.in.example", 80, False),
        ("corp.example", 80, False),
        ("a.b.corp.example", 80, True),
        ("evilcorp.example", 80, False),
        ("a.example", 8443, True),
        ("a.example", 443, False),
        ("10.1.2.3", 443, True),
        ("11.1.2.3", 443, False),
        ("fd00::1", 443, True),
        ("2001:db8::1", 443, False),
        ("10.example", 443, False),
    ],
)
def test_names_suffixes_networks_and_ports(host: str, port: int, is_direct: bool):
    found = NoProxy(RULES)
    assert [found.holds(host, port), found.holds(host, port)] == [is_direct, is_direct]


def test_what_is_remembered_is_bounded():
    found = NoProxy(RULES)
    for number in range(MAX_KNOWN + 10):
        assert found.holds(f"a{number}.corp.example", 443)
    assert len(found._known) <= MAX_KNOWN


PAST = {"name": "one", "noProxy": [{"hostnames": ["a.example"]}, {"cidrs": ["10.0.0.0/8"]}]}


@pytest.mark.parametrize("parent", [PAST, {**PAST, "fallbacks": [{"name": "two"}]}])
def test_what_is_listed_goes_past_the_parent_and_the_rest_does_not(converse_on: Start, parent: dict[str, Any]):
    talk = converse_on(objects(parent, allow=("a.example", "b.example")))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET.replace(b"a.example", b"b.example")
    talk.dialled("one.example", 3128)
    talk.origin.take(rb"GET http://b.example/ .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_tunnel_to_what_is_listed_is_dialled(converse_on: Start):
    talk = converse_on(objects(PAST))
    talk.client >> connect("a.example:22")
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED


@pytest.mark.parametrize("request_", [GET.replace(b"a.example", b"10.1.2.3"), connect("10.1.2.3:22")])
def test_it_opens_no_address_that_the_policy_closes(converse: Start, request_: bytes):
    talk = converse(objects(PAST, destinations={"allow": [{"cidrs": ["10.0.0.0/8"]}]}))
    talk.client >> request_
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "resolved_denied")
    assert talk.pending_dial() is None


@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_a_listed_name_that_leads_inside_is_closed(converse: Start, request_: bytes):
    talk = converse(objects(PAST))
    talk.names.zone["a.example"] = (IPv4Address("10.1.2.3"),)
    talk.client >> request_
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "resolved_denied")
    assert talk.pending_dial() is None


@pytest.mark.parametrize("place", ["policy", "backend"])
def test_a_backend_whose_name_is_listed_is_reached_directly(converse: Start, place: str):
    one = m.backend("one", "one.example", 3128)
    if place == "policy":
        talk = converse(reverse(objects=(one,), parent=PAST))
    else:
        own = m.backend("own", "a.example", 80, parent=PAST)
        talk = converse(reverse(m.prefix_rule("/", "own"), objects=(one, own)))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    talk.dialled("a.example", 80)
