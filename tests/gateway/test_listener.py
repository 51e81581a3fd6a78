"""Limits of a listener's connections."""

from __future__ import annotations

from tests.gateway.conftest import Start
from tests.gateway.kit import exchange, forward


def test_one_connection_too_many_is_told_and_closed(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 1}))
    talk.counts_octets = False  # a connection is no exchange
    second = talk.connect()
    second.take(rb"HTTP/1.1 503 .*too many connections\n")
    second.is_closed()
    exchange(talk)
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    talk.client = talk.connect()
    exchange(talk, is_new=False)


def test_one_client_too_many_connections_does_not_keep_others_out(converse: Start):
    talk = converse(forward(limits={"connectionsPerClient": 1}))
    talk.counts_octets = False
    second = talk.connect()
    second.take(rb"HTTP/1.1 503 .*too many connections\n")
    talk.client = talk.connect(address="10.0.0.10")
    exchange(talk)
