"""Requests that wait for a person, beside everything else that happens to them meanwhile, on each way in."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
from egressproxy.model.admin_requests import HoldDecision
from egressproxy.operators.approval.approval_hold import holds
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import reply
from tests.gateway.backends.test_failover import refuse
from tests.gateway.backends.test_retries import to_pods
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.exchange.test_grpc_answers import CONTENT, MESSAGE
from tests.gateway.exchange.test_hedging import asked
from tests.gateway.exchange.test_interception import INSIDE, SENT, inside, opening, start, undated
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, connect, forward
from tests.gateway.listeners.test_socks_connection import asks, greet, socks
from tests.gateway.test_kill_switch import Switch
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer

TYPE = "egressproxy.io/ApprovalHold:v1"
CLIENTS = {"address": {"clients": [{"cidrs": ["10.0.0.0/24"], "namespace": "agents", "serviceAccount": "worker"}]}}
POST = b"POST http://a.example/pay HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\n"
UPGRADE = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def hold(**config: Any) -> dict[str, Any]:
    return {"name": "hold", "type": TYPE, "config": config}


def held(*more: m.Manifest, config: dict[str, Any] | None = None, **sections: Any) -> list[m.Manifest]:
    return forward(*more, identity=CLIENTS, extensions=[hold(**(config or {}))], **sections)


def waiting(talk: Conversation) -> list[dict[str, Any]]:
    talk.settle()
    found: list[dict[str, Any]] = holds(talk.snapshot.filters.of_type(TYPE), None)["holds"]
    return found


def decide(talk: Conversation, key: str, *, approves: bool = True, why: str = "") -> int:
    decided: list[int] = []
    decision = HoldDecision(key, approves, "alice", why)
    talk.act(lambda: decided.append(holds(talk.snapshot.filters.of_type(TYPE), decision)["decided"]))
    talk.settle()
    return decided[0]


def the_one(talk: Conversation) -> str:
    (found,) = waiting(talk)
    talk.no_dial()
    return str(found["id"])


def refused(client: Peer) -> tuple[int, str, str]:
    status, _, _, error = client.answer()
    return status, error["reason"], error["message"]


# --- a decision is about one request ---------------------------------------------------------------------------------
def test_a_decision_is_used_once_and_for_nothing_else(converse: Start):
    talk = converse(held(config={"maxWaitingPerClient": 9}))
    talk.client >> POST + b"aaaa"
    first = the_one(talk)
    others = [talk.connect() for _ in range(3)]
    others[0] >> POST + b"bbbb"  # another body
    others[1] >> POST.replace(b"http://a.example/", b"http://A.EXAMPLE.:80/") + b"aaaa"  # another spelling
    others[2] >> POST + b"aaaa"  # the very same
    stranger = talk.connect(address="10.9.9.9")
    stranger >> POST + b"aaaa"
    assert len({each["id"] for each in waiting(talk)}) == 5
    digests = [each["requestSha256"] for each in waiting(talk)]
    assert [digests.count(each) for each in digests] == [3, 1, 3, 3, 1]  # a spelling is no other request
    assert decide(talk, first) == 1
    assert decide(talk, first) == 0
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /pay .*?\r\n\r\naaaa")
    assert len(waiting(talk)) == 4
    talk.no_dial()
    for peer in (*others, stranger):
        peer.hears_nothing()


def test_a_decision_holds_over_a_reload_that_keeps_the_filter_and_not_behind_it(converse: Start):
    objects = held(m.backend("more", "b.example", 80))
    talk = converse(held())
    talk.client >> GET
    key = the_one(talk)
    talk.reload(objects)
    assert the_one(talk) == key
    assert decide(talk, key) == 1
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.reload(held())
    assert decide(talk, key) == 0
    talk.client >> GET
    assert the_one(talk) != key


@pytest.mark.parametrize("request_", [GET, POST + b"aaaa", connect("a.example:443")], ids=["GET", "POST", "CONNECT"])
def test_what_a_reload_denies_meanwhile_is_denied_though_it_was_approved(converse: Start, request_: bytes):
    talk = converse(held())
    talk.client >> request_
    key = the_one(talk)
    talk.reload([m.gateway(m.forward_listener(3128)), m.policy(("b.example",), identity=CLIENTS, extensions=[hold()])])
    assert decide(talk, key) == 1
    assert refused(talk.client)[:2] == (403, "destination_not_allowed")
    talk.no_dial()


def test_a_filter_that_is_changed_denies_what_waits_there(converse: Start):
    talk = converse(held())
    talk.client >> GET
    key = the_one(talk)
    talk.reload(held(config={"timeout": "1h"}))
    assert refused(talk.client) == (
        403, "approval_denied",
        "this request was not approved: the configuration changed while it waited; send it again",
    )  # fmt: skip
    assert decide(talk, key) == 0
    talk.client >> GET
    assert the_one(talk)


def test_why_is_told_to_the_client_and_the_log_and_in_an_event(converse: Start):
    talk = converse(held())
    talk.client >> GET
    decide(talk, the_one(talk), approves=False, why="not on a Friday, naïvely")
    assert refused(talk.client) == (
        403, "approval_denied", "this request was not approved: not on a Friday, naïvely",
    )  # fmt: skip
    assert talk.record()["approval"]["why"] == "not on a Friday, naïvely"
    talk.client >> GET
    decide(talk, the_one(talk), why="since it is Monday")
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["approval"]["why"] == "since it is Monday"
    told = {(each.reason, each.message) for each in talk.metrics.notices.take()}
    assert any(reason == "ApprovalGranted" and "since it is Monday" in text for reason, text in told)
    assert any(reason == "ApprovalDenied" and "not on a Friday" in text for reason, text in told)


# --- the end ---------------------------------------------------------------------------------------------------------
def test_who_waits_when_the_process_drains_is_told_to_ask_again(converse: Start):
    talk = converse(held())
    other = talk.connect()
    talk.client >> POST + b"aaaa"
    other >> connect("a.example:443")
    assert len(waiting(talk)) == 2
    talk.act(talk.snapshot.filters.drain)
    for peer in (talk.client, other):
        status, _, fields, error = peer.answer()
        assert (status, error["reason"], fields["Retry-After"]) == (503, "drained", "1")
        assert "was not sent" in error["message"]
        peer.is_closed()
    talk.no_dial()
    late = talk.connect()  # what arrives while it drains
    late >> GET
    assert refused(late)[:2] == (503, "drained")
    assert waiting(talk) == []
    assert talk.record(0)["approval"]["outcome"] == "drained"


def test_a_client_that_is_killed_waits_no_more(converse: Start):
    talk = converse(held())
    talk.client >> GET
    key = the_one(talk)
    worker = KilledIdentities((KilledIdentity("system:serviceaccount:agents:worker"),))
    assert Switch(talk).kill(worker) == 1
    talk.settle()
    assert talk.client.is_gone
    assert waiting(talk) == []
    assert decide(talk, key) == 0
    talk.no_dial()


def test_an_identity_has_its_share_from_however_many_places_it_asks(converse: Start):
    talk = converse(held())
    peers = [talk.connect(address=f"10.0.0.{number % 250}") for number in range(1000)]
    talk.act(lambda: [peer._send(GET) for peer in peers])
    assert len(waiting(talk)) == 4
    answers = [peer.got for peer in peers]
    assert sum(each.startswith(b"HTTP/1.1 429 ") for each in answers) == 996
    stranger = talk.connect(address="10.9.9.9")
    stranger >> GET
    assert len(waiting(talk)) == 5  # others find room
    for peer in peers:
        if not peer.got:
            peer.leaves()
    assert len(waiting(talk)) == 1
    talk.connect() >> GET
    assert len(waiting(talk)) == 2


# --- attempts --------------------------------------------------------------------------------------------------------
def test_one_approval_is_for_all_attempts_of_a_failover(converse: Start):
    talk = converse([
        m.gateway(m.http_listener(8080)),
        m.policy(identity=CLIENTS, extensions=[hold()]),
        m.backend("a", "a.example", 80), m.backend("b", "b.example", 80), m.failover("any", "a", "b"),
        m.http_route("route", m.prefix_rule("/", "any")),
    ])  # fmt: skip
    talk.client >> b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"
    assert decide(talk, the_one(talk)) == 1
    refuse(talk, "a")
    talk.dialled("b.example", 80)
    assert waiting(talk) == []
    talk.origin.take(rb"POST /v1 .*?\r\n\r\nabcde")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["attempts"] == 2


def test_one_approval_is_for_all_attempts_of_retries(converse: Start):
    talk = converse([
        m.gateway(m.http_listener(8080)),
        m.policy(identity=CLIENTS, extensions=[hold()]),
        m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a", retry={"attempts": 2, "backoff": "0s"})),
    ])  # fmt: skip
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert decide(talk, the_one(talk)) == 1
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503, retry=RetrySafety.SAFE)
    talk.refused("a.example", 80, fault)
    talk.dialled("a.example", 80)
    assert waiting(talk) == []
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_one_approval_is_for_the_request_and_its_hedge(converse: Start):
    talk = converse([
        m.policy(identity=CLIENTS, extensions=[hold()], traffic={"hedging": {"hedgingDelay": "10ms"}}),
        *to_pods("10.0.0.1", "10.0.0.2"),
    ])  # fmt: skip
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert decide(talk, the_one(talk)) == 1
    _, first = asked(talk)
    _, hedge = asked(talk)
    assert waiting(talk) == []
    hedge >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    assert first.is_gone


# --- ways in ---------------------------------------------------------------------------------------------------------
def test_a_tunnel_of_socks_waits_and_is_refused_in_its_words(converse: Start):
    talk = converse(socks(extensions=[hold()]))
    greet(talk)
    talk.client >> asks("a.example", 443)
    talk.client.hears_nothing()
    assert decide(talk, the_one(talk), approves=False) == 1
    talk.client << reply(ReplyCode.NOT_ALLOWED)
    talk.client.is_closed()
    talk.client = talk.connect()
    greet(talk)
    talk.client >> asks("a.example", 443)
    assert decide(talk, the_one(talk)) == 1
    talk.dialled("a.example", 443)
    talk.client << reply(None)


def test_a_websocket_waits_with_its_head(converse: Start):
    talk = converse(held())
    talk.client >> UPGRADE
    assert decide(talk, the_one(talk)) == 1
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?Upgrade: websocket.*?\r\n\r\n")
    talk.origin >> SWITCHED
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    talk.client >> b"hello"
    talk.origin << b"hello"


def test_requests_in_a_tunnel_that_is_opened_wait_each_and_the_tunnel_does_not(converse: Start):
    talk = start(converse, opening(extensions=[hold()]))
    tls = inside(talk)
    for number, approves in enumerate((True, False)):
        tls >> INSIDE
        (found,) = waiting(talk)
        assert (found["method"], found["authority"], found["path"]) == ("GET", "a.example:443", "/")
        assert decide(talk, found["id"], approves=approves) == 1
        if approves:
            assert not number
            talk.dialled("a.example", 443)
            talk.origin << SENT
            talk.origin >> OK
            assert undated(tls.reads()) == OK_PASSED
        else:
            assert tls.reads().startswith(b"HTTP/1.1 403 ")


def test_a_call_of_grpc_waits_until_its_messages_are_whole(converse: Start):
    talk = converse(held())
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/s/M", b"a.example", CONTENT, body=MESSAGE, ends=False)
    assert waiting(talk) == []
    client.says(stream, b"", ends=True)
    (found,) = waiting(talk)
    assert (found["path"], found["body"], found["bodyBytes"]) == ("/s/M", "", len(MESSAGE))
    assert decide(talk, found["id"], approves=False) == 1
    fields = dict(client.answer(stream).fields)
    assert fields.get(b"grpc-status", fields.get(b":status")) in (b"7", b"403")
    talk.no_dial()


def test_a_stream_that_is_reset_waits_no_more_and_its_siblings_do(converse: Start):
    talk = converse(held())
    client = speak_http2(talk)
    streams = [client.ask(), client.ask(path=b"/other")]
    first = next(each for each in waiting(talk) if each["path"] == "/")
    client.resets(streams[0])
    (left,) = waiting(talk)
    assert left["path"] == "/other"
    assert decide(talk, first["id"]) == 0
    assert decide(talk, left["id"]) == 1
    talk.dialled("a.example", 80)


def test_tls_in_a_tunnel_to_port_80_waits_behind_the_200(converse: Start):
    hello = client_hello("a.example")
    talk = converse(held())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> hello
    assert decide(talk, the_one(talk)) == 1
    talk.dialled("a.example", 80)
    talk.origin << hello
