"""What has ended in a tunnel that is opened is freed at once, without the garbage collector."""

from __future__ import annotations

from collections import Counter

import pytest

from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.client_stream import ClientHttp2, ClientStream, OpenedHttp2
from egressproxy.gateway.exchange.interception import OpenedTls
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.net.tls import TlsStream
from tests.gateway.exchange.test_interception import INSIDE, Trusting, inside, opening
from tests.gateway.h2 import Http2Peer
from tests.gateway.kit import ESTABLISHED, OK, TlsClient, connect
from tests.support.conversation import Conversation, conversation
from tests.support.leftovers import Leftovers, leftovers_of
from tests.support.pki import Pki

left = leftovers_of(
    OpenedTls,
    OpenedHttp2,
    OpenedTunnel,
    ClientConnection,
    ClientHttp2,
    ClientStream,
    TlsStream,
    Pipeline,
    Exchange,
)


def start() -> Conversation:
    talk = conversation(opening(), wire="sockets")
    talk.counts_octets = False
    return talk


def gone(talk: Conversation) -> None:
    talk.until(lambda: not talk.ports[0].state.connections)


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_nothing_is_left_of_a_client_that_was_served(left: Leftovers, alpn: str):
    talk = start()
    tls = inside(talk, alpn=(alpn,))
    if alpn == "h2":
        peer = Http2Peer(tls)
        asked = peer.ask(scheme=b"https")
    else:
        tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin.take(rb"GET / HTTP/1\.1\r\n(?s:.*?)\r\n\r\n")
    talk.origin >> OK
    talk.until(lambda: len(talk.records) == 2)
    if alpn == "h2":
        assert bytes(peer.answer(asked).data) == b"hi"
    else:
        assert tls.reads().endswith(b"hi")
    talk.client.leaves()
    talk.origin.leaves()
    gone(talk)
    assert left.of(talk) == Counter()
    talk.close()


@pytest.mark.parametrize("how", ["distrusts", "leaves in the handshake", "leaves behind it", "is denied", "no TLS"])
def test_nothing_is_left_of_a_client_that_was_not_served(left: Leftovers, how: str):
    talk = start()
    host = "b.example" if how == "is denied" else "a.example"
    if how in ("leaves behind it", "is denied"):
        tls = inside(talk, host)
        if how == "is denied":
            tls >> INSIDE.replace(b"a.example", b"b.example")
            talk.until(lambda: len(talk.records) == 2)
    else:
        talk.client >> connect(f"{host}:443")
        talk.client << ESTABLISHED
        if how == "no TLS":
            talk.client >> b"SSH-2.0-client\r\n"
        elif how == "distrusts":
            tls = TlsClient(talk.client, Pki(), host)
            talk.client >> tls.hello()
            talk.until(lambda: bool(talk.client.received))
            with pytest.raises(OSError, match="certificate verify failed"):
                tls.last_flight()
            talk.client >> tls._outgoing.read()
        else:
            talk.client >> TlsClient(talk.client, Trusting(), host).hello()
            talk.until(lambda: bool(talk.client.received))
    talk.client.leaves()
    gone(talk)
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()
