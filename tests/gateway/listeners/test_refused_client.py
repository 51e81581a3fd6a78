"""A client that finds no room is told so in its own version of HTTP."""

from __future__ import annotations

from egressproxy.gateway.listeners.refused_client import MAX_WAITING, WAIT_S
from tests.gateway.conftest import Start
from tests.gateway.kit import GET, exchange, forward
from tests.support.conversation import Conversation, Peer
from tests.support.http2_client import Http2Client


def full(start: Start) -> Conversation:
    talk = start(forward(limits={"connections": 1}))
    talk.counts_octets = False
    return talk


def is_told(peer: Peer) -> None:
    peer.take(rb"HTTP/1.1 503 Service Unavailable\r\n.*Retry-After: 1\r\n.*too many connections\n")
    peer.is_closed()


def test_a_client_of_http1_in_http1(converse: Start):
    talk = full(converse)
    peer = talk.connect()
    peer >> GET
    is_told(peer)


def test_a_client_of_http2_by_goaway(converse: Start):
    talk = full(converse)
    peer, client = talk.connect(), Http2Client()
    client.get(b"/")
    said = client.outgoing()
    peer >> said[:3]
    peer >> said[3:]
    talk.until(lambda: peer.has_eof)
    client.take(bytes(peer.got))
    assert client.goaways == [(0, 0, b"")]
    peer.received.clear()
    peer.is_closed()


def test_one_that_says_nothing_after_a_moment(converse: Start):
    talk = full(converse)
    peer = talk.connect()
    talk.after(WAIT_S - 0.2)
    peer.hears_nothing()
    talk.after(0.4)
    is_told(peer)


def test_one_that_has_ended_its_side_at_once(converse: Start):
    talk = full(converse)
    peer = talk.connect()
    peer.ends()
    is_told(peer)


def test_so_many_are_waited_for_and_the_rest_is_told_at_once(converse: Start):
    talk = full(converse)
    waiting = [talk.connect() for _ in range(MAX_WAITING)]
    told = talk.connect()
    is_told(told)
    waiting[0].hears_nothing()
    told.leaves()
    waiting[1].leaves()
    talk.connect().hears_nothing()
    for peer in waiting:
        peer.leaves()
    talk.after(2)
    assert talk.connection_manager.clients.refused == 0


def test_one_that_does_not_end_is_cut(converse: Start):
    talk = full(converse)
    peer = talk.connect()
    peer >> GET
    peer.take(rb"HTTP/1.1 503 .*too many connections\n")
    talk.after(2 * WAIT_S)
    assert peer.is_gone


def test_it_takes_no_place(converse: Start):
    talk = full(converse)
    is_told(talk.connect() >> GET)
    exchange(talk)
    assert talk.metrics.connections_rejected == {"connection_limit": 1}


def test_a_flood_is_told_nothing(converse: Start):
    talk = full(converse)
    talk.connection_manager.clients.max_refused = 3
    told = [talk.connect() for _ in range(3)]
    talk.connect().is_closed()
    told[0].leaves()
    is_told(talk.connect() >> GET)
    for peer in told:
        peer.leaves()
    talk.after(2)
    assert talk.connection_manager.clients.refused == 0
