"""Connections follow DNS: what happens to those that are kept when a name leads elsewhere."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.model.authority import IPAddress
from tests.envoy.ext_authz.test_filter import ALLOWED, ASKED, FORWARDED, guarded
from tests.envoy.ext_authz.test_filter import GET as QUESTIONED
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, connect, exchange, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation

OLD, NEW, OTHER = (IPv4Address(f"93.184.216.{n}") for n in (101, 102, 103))
TTL_S = 5.0


def leads_to(talk: Conversation, *addresses: IPAddress, host: str = "a.example") -> None:
    talk.names.zone[host] = addresses
    talk.names.ttl[host] = TTL_S


def asked(talk: Conversation) -> list[str]:
    """The names that are looked up from now on."""
    names, resolve = list[str](), talk.names.resolve

    def counted(host: str, client: str = "", identity: str = "") -> asyncio.Future[tuple[IPAddress, ...]]:
        names.append(host)
        return resolve(host, client, identity)

    talk.names.resolve = counted  # type: ignore[method-assign]
    return names


def warm(start: Start) -> Conversation:
    """A connection to OLD, idle, while the name leads to NEW by now."""
    talk = start(forward())
    leads_to(talk, OLD)
    exchange(talk)
    leads_to(talk, NEW)
    return talk


def dialled_new(talk: Conversation) -> None:
    dial = talk.pending_dial()
    assert dial is not None
    assert [address for address, _ in dial.endpoints] == list(talk.names.zone["a.example"])
    talk.dialled("a.example", 80)


def test_while_the_answer_holds_its_connection_is_used_and_nobody_is_asked(converse: Start):
    talk = warm(converse)
    names = asked(talk)
    talk.after(TTL_S - 0.5)
    exchange(talk, is_new=False)
    assert names == []


def test_the_request_that_finds_the_answer_ended_does_not_wait_and_the_next_goes_to_the_new_address(converse: Start):
    talk = warm(converse)
    old = talk.origin
    names = asked(talk)
    talk.names.hold("a.example")
    talk.after(TTL_S + 0.2)
    exchange(talk, is_new=False)
    exchange(talk, is_new=False)
    assert names == ["a.example"]
    (question,) = talk.names.held.pop("a.example")
    talk.act(lambda: question.set_result((NEW,)))
    old.is_closed()
    talk.client >> GET
    dialled_new(talk)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert (talk.open, talk.idle) == (1, 1)


def test_a_request_that_comes_later_than_the_grace_waits_for_the_answer(converse: Start):
    talk = warm(converse)
    old = talk.origin
    talk.names.hold("a.example")
    talk.after(TTL_S + 1)
    talk.client >> GET
    old.hears_nothing()
    questions = talk.names.held.pop("a.example")
    talk.act(lambda: [question.set_result((NEW,)) for question in questions])
    old.is_closed()
    dialled_new(talk)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_request_that_waited_uses_the_connection_whose_address_is_still_there(converse: Start):
    talk = warm(converse)
    leads_to(talk, OTHER, OLD)
    names = asked(talk)
    talk.after(TTL_S + 60 - 10)
    exchange(talk, is_new=False)
    assert set(names) == {"a.example"}
    talk.after(TTL_S - 1)
    names.clear()
    exchange(talk, is_new=False)
    assert names == []


def test_an_exchange_on_an_address_that_has_left_is_carried_to_its_end(converse: Start):
    talk = warm(converse)
    old, second = talk.origin, talk.connect()
    talk.after(TTL_S - 1)
    talk.client >> GET
    old << GET_SENT
    old >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\nh"
    talk.after(2)
    second >> GET
    dialled_new(talk)
    talk.origin << GET_SENT
    talk.origin >> OK
    second << OK_PASSED
    old.is_open()
    old >> b"i"
    talk.client << b"i"
    old.is_closed()
    assert (talk.open, talk.idle) == (1, 1)


def test_a_connection_whose_dial_began_before_the_change_carries_one_exchange(converse: Start):
    talk = converse(forward())
    leads_to(talk, OLD)
    talk.client >> GET
    assert talk.pending_dial() is not None
    late = talk.dialer.dials.pop(0)
    second = talk.connect()
    leads_to(talk, NEW)
    second >> GET
    dialled_new(talk)
    talk.origin << GET_SENT
    talk.origin >> OK
    second << OK_PASSED
    talk.dialer.dials.append(late)
    leads_to(talk, NEW, OLD)  # for the kit to find the name
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin.is_closed()
    assert (talk.open, talk.idle) == (1, 1)


@pytest.mark.parametrize("reason", [Reason.DNS_NXDOMAIN, Reason.DNS_TIMEOUT])
def test_where_no_answer_holds_any_more_no_connection_does(converse: Start, reason: Reason):
    talk = warm(converse)
    old = talk.origin
    talk.names.faults["a.example"] = lambda: UpstreamFault(reason, "no answer", status=503, retry=RetrySafety.SAFE)
    talk.after(TTL_S + 2)
    talk.client >> GET
    assert talk.client.answer()[0] == 503
    old.is_closed()


def test_a_client_that_may_not_have_the_name_looked_up_ends_no_connection_of_others(converse: Start):
    talk = warm(converse)
    talk.names.faults["a.example"] = lambda: UpstreamFault(Reason.DNS_ERROR, "too many names", status=503)
    talk.names.ttl["a.example"] = 0  # nothing is known of the name
    talk.after(TTL_S + 2)
    talk.client >> GET
    assert talk.client.answer()[0] == 503
    del talk.names.faults["a.example"]
    leads_to(talk, OLD)
    exchange(talk, is_new=False)


def test_an_address_that_policy_refuses_by_now_is_left(converse: Start):
    talk = warm(converse)
    old = talk.origin
    leads_to(talk, IPv4Address("10.0.0.1"))
    talk.after(TTL_S + 2)
    talk.client >> GET
    assert talk.client.answer()[3]["reason"] == "resolved_denied"
    old.is_closed()


def test_a_name_that_is_not_used_is_not_asked_for(converse: Start):
    talk = warm(converse)
    names = asked(talk)
    for _ in range(5):
        talk.after(TTL_S)
    assert names == []


def test_connections_to_what_a_client_named_by_its_address_follow_nobody(converse: Start):
    talk = converse(literal())
    names = asked(talk)
    for is_new in (True, False):
        talk.client >> GET.replace(b"a.example", b"93.184.216.7")
        if is_new:
            talk.dialled("93.184.216.7", 80)
        talk.origin.take(rb"GET / .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED
        talk.after(20)
    assert names == []


def literal() -> list[m.Manifest]:
    objects = forward()
    objects[1]["spec"]["destinations"]["allow"] = [{"cidrs": ["93.184.216.0/24"]}]
    return objects


# --- who else keeps connections --------------------------------------------------------------------------------------
def test_what_goes_through_a_parent_follows_the_name_of_the_parent(converse: Start):
    parent = m.backend("parent", "a.example", 3128)
    far = m.backend("far", "far.example", 80, parent={"name": "parent"})
    rule = m.prefix_rule("/", "far")
    talk = converse([m.gateway(m.http_listener(8080)), parent, far, m.http_route("route", rule)])
    sent = b"GET http://far.example/ HTTP/1.1\r\nHost: far.example\r\nVia: 1.1 gw\r\n\r\n"
    leads_to(talk, OLD)
    for address in (OLD, NEW):
        talk.client >> GET
        talk.dialled("a.example", 3128) << sent
        talk.origin >> OK
        talk.client << OK_PASSED
        leads_to(talk, NEW)
        talk.after(TTL_S + 2)
        if address is OLD:
            old = talk.origin
    old.is_closed()
    assert talk.open == 1


def test_what_goes_through_the_connect_of_a_parent_follows_the_name_of_the_first_hop(converse: Start):
    first = m.backend("first", "a.example", 3128)
    second = m.backend("second", "b.example", 3128, parent={"name": "first"})
    far = m.backend("far", "far.example", 443, tls=True, parent={"name": "second"})
    rule = m.http_route("route", m.prefix_rule("/", "far"))
    talk = converse([m.gateway(m.http_listener(8080)), first, second, far, rule])
    (cluster,) = talk.snapshot.clusters.values()
    chain = [cluster, cluster.parent, cluster.parent and cluster.parent.parent]
    (name,) = {target.name for each in chain if each is not None for target in each.targets.known.values()}
    assert "a.example" in repr(name)


def test_tunnels_go_on(converse: Start):
    talk = converse(forward())
    leads_to(talk, OLD)
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    leads_to(talk, NEW)
    talk.after(TTL_S + 2)
    second = talk.connect()
    second >> connect("a.example:443")
    old = talk.origin
    talk.dialled("a.example", 443)
    second << ESTABLISHED
    old.is_open()


def test_questions_to_an_authorization_server_follow_its_name(converse: Start):
    talk = converse(guarded())
    leads_to(talk, OLD, host="auth.example")
    servers = []
    for is_new in (True, False):
        talk.client >> QUESTIONED
        talk.dialled("auth.example", 9000)
        servers.append(talk.origin)
        talk.origin << ASKED
        talk.origin >> ALLOWED
        if is_new:
            talk.dialled("a.example", 80)
            backend = talk.origin
        backend << FORWARDED
        backend >> OK
        talk.client << OK_PASSED
        leads_to(talk, NEW, host="auth.example")
        talk.after(TTL_S + 2)
    servers[0].is_closed()


def test_copies_for_a_mirror_follow_its_name(converse: Start):
    mirror = {
        "type": "RequestMirror",
        "requestMirror": {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}},
    }
    talk = converse(reverse(m.prefix_rule("/", "a", filters=[mirror]), objects=(m.backend("b", "b.example", 80),)))
    leads_to(talk, OLD, host="b.example")
    mirror_requests = []
    for is_new in (True, False):
        talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        if is_new:
            backend = talk.dialled("a.example", 80)
        mirror_requests.append(talk.dialled("b.example", 80))
        for peer in (backend, mirror_requests[-1]):
            peer.take(rb"GET / .*?\r\n\r\n")
            peer >> OK
        talk.client << OK_PASSED
        leads_to(talk, NEW, host="b.example")
        talk.after(TTL_S + 2)
    mirror_requests[0].is_closed()
