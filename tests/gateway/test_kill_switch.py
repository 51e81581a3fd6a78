"""What a client hears that is put out of service, on every way that it may go."""

from __future__ import annotations

from typing import Any

from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
from egressproxy.gateway.overload.process_limits import NO_LIMITS
from egressproxy.gateway.server.overload_manager import OverloadManager
from egressproxy.operators.approval.approval_hold import holds
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import reply
from tests.gateway.backends.test_parent_identity import second, signed
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import SWITCHED, UPGRADE
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, connect, exchange, forward
from tests.gateway.listeners.test_socks_connection import asks, greet, socks
from tests.support import manifests as m
from tests.support.conversation import Conversation

EVERYBODY = {"address": {"clients": [{"cidrs": ["0.0.0.0/0"], "namespace": "agents", "serviceAccount": "worker"}]}}
WORKER = KilledIdentities((KilledIdentity("system:serviceaccount:agents:worker"),))
OTHER = KilledIdentities((KilledIdentity("system:serviceaccount:agents:other"),))


class Switch:
    """A conversation, and what kills its clients."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.manager = OverloadManager(
            NO_LIMITS, talk.connection_manager, lambda: talk.ports, lambda: talk.snapshot.clusters.values(),
            talk.network.mirror_requests,
        )  # fmt: skip

    def kill(self, killed: KilledIdentities) -> int:
        self.manager.refuse_identities(killed)
        return sum(state.cut(killed) for port in self.talk.ports for state in port.states)


def known(converse: Start, *more: m.Manifest, **sections: Any) -> Switch:
    return Switch(converse(forward(*more, identity=EVERYBODY, **sections)))


def refused(talk: Conversation, request: bytes = GET) -> str:
    talk.client >> request
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "identity_killed")
    talk.no_dial()
    return str(error["message"])


def test_a_killed_client_is_refused_and_served_again_when_it_is_restored(converse: Start):
    switch = known(converse)
    talk = switch.talk
    exchange(talk)
    assert switch.kill(WORKER) == 0  # nothing is in progress
    assert "system:serviceaccount:agents:worker" in refused(talk)
    refused(talk, connect("a.example:80"))
    switch.kill(KilledIdentities())
    assert talk.connection_manager.accounting.gate is None  # nothing is paid any more
    talk.client = talk.connect()
    exchange(talk, is_new=False)


def test_others_go_on(converse: Start):
    switch = known(converse)
    assert switch.kill(OTHER) == 0
    exchange(switch.talk)


def test_a_request_in_progress_is_cut_and_logged_as_such(converse: Start):
    switch = known(converse)
    talk = switch.talk
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    assert switch.kill(WORKER) == 1
    talk.settle()
    assert talk.client.is_gone
    assert talk.origin.is_gone
    assert (talk.record()["reason"], talk.record()["identity"]) == ("identity_killed", WORKER.every[0].name)


def test_a_tunnel_is_cut_on_both_sides(converse: Start):
    switch = known(converse)
    talk = switch.talk
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client >> b"hello"
    talk.origin << b"hello"
    talk.act(lambda: switch.kill(WORKER))
    assert talk.until(lambda: talk.client.is_gone and talk.origin.has_eof)
    assert talk.record()["reason"] == "identity_killed"


def test_exchanges_of_http2_and_in_its_tunnels_are_cut(converse: Start):
    switch = known(converse)
    talk = switch.talk
    client = speak_http2(talk)
    client.ask()
    talk.dialled("a.example", 80)
    stream = client.connects(b"a.example:80")
    client.says(stream, GET_SENT.replace(b"Via: 1.1 gw\r\n", b""))
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    assert switch.kill(WORKER) == 2
    talk.settle()
    assert [each["reason"] for each in talk.records if each["method"] == "GET"] == ["identity_killed"] * 2


def test_the_client_of_another_gateway_is_killed_by_its_own_name(converse: Start):
    switch = Switch(converse(second()))
    talk = switch.talk
    talk.client >> GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n"
    talk.dialled("a.example", 80)
    assert switch.kill(KilledIdentities((KilledIdentity("system:serviceaccount:team:robot"),))) == 1
    talk.settle()
    assert talk.record()["reason"] == "identity_killed"
    talk.client = talk.connect()
    refused(talk, GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n")
    talk.client = talk.connect()
    exchange(talk)  # who has not signed anything goes on


def test_a_policy_puts_its_subjects_out_of_service_as_the_documentation_writes_it(converse: Start):
    deny = {"deny": [{"cidrs": ["0.0.0.0/0", "::/0"]}]}
    subjects = [{"namespace": "agents", "serviceAccount": "worker"}]
    policy = m.policy(name="out-of-service", subjects=subjects, destinations=deny)
    talk = known(converse, policy).talk
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "resolved_denied")
    tunnel = talk.connect()
    tunnel >> connect("203.0.113.9:443")
    assert tunnel.answer()[0] == 403
    talk.no_dial()


def test_a_websocket_a_tunnel_of_socks_and_what_waits_in_one_are_cut(converse: Start):
    switch = known(converse)
    talk = switch.talk
    talk.client >> UPGRADE
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?Upgrade: websocket.*?\r\n\r\n")
    talk.origin >> SWITCHED
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    talk.client >> b"hello"
    talk.origin << b"hello"
    talk.act(lambda: switch.kill(WORKER))
    assert talk.until(lambda: talk.client.is_gone and (talk.origin.has_eof or talk.origin.is_gone))
    assert talk.record()["reason"] == "identity_killed"

    switch = Switch(converse(socks(identity=EVERYBODY)))
    talk = switch.talk
    greet(talk)
    talk.client >> asks("a.example", 443)
    talk.dialled("a.example", 443)
    talk.client << reply(None)
    talk.client >> b"hello"
    talk.origin << b"hello"
    cut: list[int] = []
    talk.act(lambda: cut.append(switch.kill(WORKER)))
    assert cut == [1]
    assert talk.until(lambda: talk.client.is_gone and (talk.origin.has_eof or talk.origin.is_gone))
    talk.client = talk.connect()
    greet(talk)
    talk.client >> asks("a.example", 443)
    talk.client << reply(ReplyCode.NOT_ALLOWED)
    talk.no_dial()


def test_what_waits_for_a_person_is_cut_on_every_way_in(converse: Start):
    hold = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {}}
    for request, objects in (
        (connect("a.example:443"), forward(identity=EVERYBODY, extensions=[hold])),
        (UPGRADE, forward(identity=EVERYBODY, extensions=[hold])),
        (asks("a.example", 443), socks(identity=EVERYBODY, extensions=[hold])),
    ):
        switch = Switch(converse(objects))
        talk = switch.talk
        if request == asks("a.example", 443):
            greet(talk)
        talk.client >> request
        talk.settle()
        (found,) = talk.snapshot.filters.of_type(hold["type"])
        assert len(holds([found], None)["holds"]) == 1
        assert switch.kill(WORKER) == 1
        talk.settle()
        assert talk.client.is_gone
        assert holds([found], None)["holds"] == []
        talk.no_dial()
