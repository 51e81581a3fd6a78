"""What a backend was asked over HTTP/2 is freed with its exchange, without the garbage collector, however it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import GatewayError
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http2.stream_transport import StreamTransport
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from tests.gateway.backends.test_http2_connections import UPGRADE, asked, dialled, h2c, started
from tests.support.conversation import Conversation, conversation
from tests.support.leftovers import Leftovers, leftovers_of

left = leftovers_of(
    ClientConnection, Http2Upstream, UpstreamStream, StreamTransport, Pipeline, Exchange, GatewayError,
)  # fmt: skip


def is_served(talk: Conversation) -> None:
    started(talk)


def is_reset(talk: Conversation) -> None:
    origin = asked(talk)
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()


def is_malformed(talk: Conversation) -> None:
    origin = asked(talk)
    origin.responds(1, b"x", (b"connection", b"close"))


def client_leaves(talk: Conversation) -> None:
    asked(talk)
    talk.client.resets()


def origin_leaves(talk: Conversation) -> None:
    origin = asked(talk)
    origin.peer.leaves()


def origin_breaks_the_rules(talk: Conversation) -> None:
    origin = asked(talk)
    origin.peer >> b"nonsense, and no frame"


def origin_goes_away(talk: Conversation) -> None:
    origin = started(talk)
    origin.peer >> bytes.fromhex("000008070000000000") + bytes(8)
    talk.until(lambda: origin.peer.has_eof)


def becomes_a_tunnel(talk: Conversation) -> None:
    talk.client >> UPGRADE
    origin = dialled(talk, takes_upgrades=True)
    origin.waits_for(1)
    origin.server.h2.send_headers(1, [(b":status", b"200")])
    origin.goes_on()
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    talk.client.leaves()
    origin.goes_on()
    origin.server.h2.end_stream(1)
    origin.goes_on()


@pytest.mark.parametrize(
    "happens",
    [
        is_served, is_reset, is_malformed, client_leaves, origin_leaves, origin_breaks_the_rules, origin_goes_away,
        becomes_a_tunnel,
    ],
)  # fmt: skip
def test_nothing_is_left_of_an_exchange(left: Leftovers, happens: Callable[[Conversation], None]):
    talk = conversation(h2c(), wire="sockets")
    talk.counts_octets = False
    happens(talk)
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()
