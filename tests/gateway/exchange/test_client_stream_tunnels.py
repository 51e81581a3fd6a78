"""CONNECT over HTTP/2: tunnels on streams."""

from __future__ import annotations

import ssl
from base64 import b64encode
from contextlib import suppress
from hashlib import sha1

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.protocols.http2.settings import STREAM_WINDOW
from tests.gateway.conftest import Start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import GET_SENT, OK, OK_PASSED, forward, reverse
from tests.support.conversation import Conversation
from tests.support.http2_client import head


def client_hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


HELLO = client_hello("a.example")


@pytest.fixture
def start(converse: Start) -> Start:
    """Conversations with a forward proxy, unless something else is said."""
    return lambda written=None: converse(forward() if written is None else written)


def tunnel(talk: Conversation) -> tuple[Http2Peer, int]:
    """A tunnel to a.example:443, through which a ClientHello has gone."""
    client = speak_http2(talk)
    stream = client.connects(b"a.example:443")
    talk.dialled("a.example", 443)
    assert client.answer(stream).status == 200
    client.says(stream, HELLO)
    talk.origin << HELLO
    return client, stream


def test_a_tunnel_both_ways(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    assert client.of(stream).fields == [(b":status", b"200")]
    assert talk.ports[0].state.tunnels == 1
    talk.origin >> b"from the origin"
    assert bytes(client.answer(stream).data) == b"from the origin"
    client.says(stream, b"more")
    talk.origin << b"more"
    client.says(stream, b"", ends=True)
    assert talk.origin.has_eof
    talk.origin >> b"rest"
    talk.origin.ends()
    answer = client.answer(stream)
    assert (bytes(answer.data), answer.is_whole, answer.reset) == (b"from the originrest", True, None)
    record = talk.record()
    assert (record["kind"], record["reason"]) == ("tunnel", "-")
    assert 0 < record["bytes_in"] - len(HELLO) - 4 < 100, "its head counts, too"
    assert not talk.client.is_gone
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]


def test_the_origin_ends_first(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    talk.origin >> b"bye"
    talk.origin.ends()
    assert client.answer(stream).is_whole
    client.says(stream, b"still")
    talk.origin << b"still"
    client.says(stream, b"", ends=True)
    talk.origin.is_closed()
    assert talk.record()["reason"] == "-"


def test_a_reset_of_the_client_breaks_the_origin_off(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    client.resets(stream)
    assert talk.origin.transport.was_aborted  # type: ignore[attr-defined]
    assert talk.record()["kind"] == "tunnel"


def test_a_reset_of_the_origin_resets_the_stream(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    talk.origin.resets()
    answer = client.answer(stream)
    assert (answer.is_whole, answer.reset) == (False, ErrorCodes.CONNECT_ERROR)
    other = client.connects(b"a.example:443")
    talk.dialled("a.example", 443)
    assert client.answer(other).status == 200, "the connection goes on"


def test_a_connection_that_is_lost_ends_its_tunnels(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    assert client.of(stream).status == 200
    talk.client.leaves()
    talk.origin.is_closed()
    assert talk.ports[0].state.tunnels == 0


def test_a_hello_that_names_another_host_is_refused(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:443")
    talk.dialled("a.example", 443)
    client.says(stream, client_hello("b.example"))
    answer = client.answer(stream)
    assert bytes(answer.data)[:1] == b"\x15", "an alert"
    assert answer.reset == ErrorCodes.CONNECT_ERROR
    assert talk.record()["reason"] == "sni_mismatch"
    assert talk.origin.got == b""


def test_a_denied_tunnel_is_answered(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"b.example:443")
    answer = client.answer(stream)
    assert (answer.status, answer.is_whole, answer.reset) == (403, True, ErrorCodes.NO_ERROR)


def test_a_destination_that_cannot_be_reached_is_answered(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:443")
    talk.refused("a.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "refused"))
    assert client.answer(stream).status == 502


def test_no_tunnel_on_a_reverse_listener(start: Start):
    talk = start(reverse())
    client = speak_http2(talk)
    assert client.answer(client.connects(b"a.example:443")).status == 405


def test_the_limit_of_tunnels(start: Start):
    talk = start(forward(limits={"tunnels": 1}))
    client, _ = tunnel(talk)
    stream = client.connects(b"a.example:443")
    assert client.answer(stream).status == 503
    assert talk.record()["reason"] == "tunnel_limit"


def test_what_the_client_does_not_take_pauses_the_origin(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    client.opens_windows = False
    talk.origin >> bytes(400_000)
    assert len(client.answer(stream).data) == 65535
    assert talk.origin.transport.is_paused  # type: ignore[attr-defined]
    client.opens_windows = True
    client.h2.acknowledge_received_data(65535, stream)
    assert len(client.answer(stream).data) == 400_000
    assert not talk.origin.transport.is_paused  # type: ignore[attr-defined]


def test_what_the_origin_does_not_take_uses_up_the_window(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    talk.origin.stalls()  # type: ignore[attr-defined]
    sent = 0
    while room := min(client.h2.local_flow_control_window(stream), 16384):
        client.says(stream, bytes(room))
        sent += room
    assert sent < 2 * STREAM_WINDOW
    talk.origin.reads_on()  # type: ignore[attr-defined]
    client.settle()
    assert client.h2.local_flow_control_window(stream)


def test_a_tunnel_survives_new_terms_and_its_connection_ends_with_it(start: Start):
    talk = start()
    client, stream = tunnel(talk)
    talk.reload(forward(limits={"maxHeadBytes": 8192}))
    assert client.answer(stream).reset is None
    assert client.goaways == [(stream, 0, b"")]
    client.says(stream, b"on")
    talk.origin << b"on"
    client.says(stream, b"", ends=True)
    talk.origin.ends()
    assert client.answer(stream).is_whole
    talk.client.is_closed()


# --- port 80 ---------------------------------------------------------------------------------------------------------
def test_http1_inside_a_tunnel_to_port_80(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:80")
    assert client.answer(stream).status == 200
    talk.no_dial()
    client.says(stream, b"GET / HTTP/1.1\r\nHost: a.exam")
    client.says(stream, b"ple\r\n\r\n")
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    data = client.answer(stream).data
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")
    data.clear()
    client.says(stream, b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n")
    assert client.answer(stream).data.startswith(b"HTTP/1.1 400 ")
    assert client.answer(stream).is_whole
    assert [record["kind"] for record in talk.records] == ["tunnel", "request", "request"]


def test_no_http2_inside_a_tunnel(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:80")
    client.says(stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert client.answer(stream).data.startswith(b"HTTP/1.1 505 ")


def test_an_idle_tunnel_to_port_80_does_not_hold_a_drain(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:80")
    client.says(stream, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    client.settle()

    def drain() -> None:
        talk.ports[0].state.is_closed = True
        talk.ports[0].close_idle()

    talk.act(drain)
    client.settle()
    talk.client.is_closed()


def test_a_tunnel_to_port_80_that_is_ended_unused(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.connects(b"a.example:80")
    client.says(stream, b"", ends=True)
    assert client.answer(stream).is_whole
    assert OK_PASSED not in client.of(stream).data
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]


# --- extended CONNECT ----------------------------------------------------------------------------------------------
WEBSOCKET = [
    (b":method", b"CONNECT"),
    (b":protocol", b"websocket"),
    (b":scheme", b"http"),
    (b":authority", b"a.example"),
    (b":path", b"/chat"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-protocol", b"chat"),
]
ENABLED = {"http2": {"extendedConnect": True}}


def asked_for(talk: Conversation) -> bytes:
    """The upstream was asked for a WebSocket. Returns the answer to the key."""
    talk.dialled("a.example", 80)
    match = talk.origin.take(
        rb"GET /chat HTTP/1.1\r\nHost: a.example\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: chat\r\n"
        rb"sec-websocket-key: ([A-Za-z0-9+/]{22}==)\r\nVia: 1.1 gw\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    return b64encode(sha1(match[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())


def test_a_websocket_over_http2(start: Start):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    assert client.h2.remote_settings.enable_connect_protocol == 1
    stream = client.asks(WEBSOCKET, ends=False)
    accept = asked_for(talk)
    client.says(stream, b"early")
    talk.origin >> (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\nhello"
    )
    answer = client.answer(stream)
    assert answer.fields == [(b":status", b"200"), (b"sec-websocket-protocol", b"chat"), (b"via", b"1.1 gw")]
    assert bytes(answer.data) == b"hello"
    talk.origin << b"early"
    client.says(stream, b"frame")
    talk.origin << b"frame"
    client.says(stream, b"", ends=True)
    talk.origin.ends()
    assert client.answer(stream).is_whole
    assert talk.record()["reason"] == "-"


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
], ids=("no-answer", "wrong-answer", "200"))  # fmt: skip
def test_what_is_no_websocket_does_not_look_like_one(start: Start, answer: bytes):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    stream = client.asks(WEBSOCKET, ends=False)
    asked_for(talk)
    talk.origin >> answer
    assert client.answer(stream).status == 502
    assert talk.record()["reason"] == "upstream_bad_response"
    assert talk.ports[0].state.tunnels == 0


def test_a_websocket_that_is_refused(start: Start):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    stream = client.asks(WEBSOCKET, ends=False)
    asked_for(talk)
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    answer = client.answer(stream)
    assert (answer.status, bytes(answer.data), answer.is_whole) == (403, b"no", True)


def test_another_protocol_is_not_understood(start: Start):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    fields = [(name, b"connect-udp" if name == b":protocol" else value) for name, value in WEBSOCKET]
    assert client.answer(client.asks(fields, ends=False)).status == 501


def test_half_an_extended_connect_is_none(start: Start):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    fields = [field for field in WEBSOCKET if field[0] != b":path"]
    assert client.answer(client.asks(fields, ends=False)).status == 400
    assert client.answer(client.asks([(b":protocol", b"websocket"), *head(b"GET", b"/", b"a.example")])).status == 400


def test_no_websocket_where_no_policy_says_so(start: Start):
    talk = start()
    client = speak_http2(talk)
    assert client.h2.remote_settings.enable_connect_protocol == 0
    stream = client.asks(WEBSOCKET, ends=False)
    answer = client.answer(stream)
    assert (answer.status, answer.reset) == (400, ErrorCodes.PROTOCOL_ERROR)


def test_a_policy_that_no_longer_says_so_ends_the_connection(start: Start):
    talk = start(forward(traffic=ENABLED))
    client = speak_http2(talk)
    talk.reload(forward())
    client.settle()
    assert client.goaways
    talk.client.is_closed()
