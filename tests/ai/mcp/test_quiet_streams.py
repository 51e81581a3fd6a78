"""Streams of events of MCP servers on which nothing is said: `timeouts.tunnelIdle` is for them, not `timeouts.idle`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ai.mcp.test_sessions import to_tools, tools
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer

GET = b"GET /mcp HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"7\r\ndata: x\r\n"


def quiet(**timeouts: str) -> list[m.Manifest]:
    traffic: dict[str, Any] = {"timeouts": {"idle": "10s", "tunnelIdle": "60s", **timeouts}}
    return [*to_tools("10.0.0.1", backend=tools()), m.policy(traffic=traffic)]


def reached(talk: Conversation) -> None:
    """The one endpoint is dialled, and has the request."""
    address, port = talk.dialer.dials[0].endpoints[0]
    talk.dialled(talk.names.name_of(address), port)
    talk.origin.take(rb"GET .*?\r\n\r\n")


def streaming(talk: Conversation, head: bytes = HEAD) -> Peer:
    """The stream has begun."""
    talk.client >> GET
    reached(talk)
    talk.origin >> head
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    return talk.origin


def test_a_quiet_stream_goes_on_until_the_time_of_tunnels_is_over(converse: Start):
    talk = converse(quiet())
    origin = streaming(talk)
    for _ in range(3):
        talk.after(45)
        origin >> EVENT
        talk.client << EVENT
    talk.after(75)
    talk.client.is_closed()
    assert talk.record()["reason"] == "upstream_timeout"


def test_without_an_end_it_goes_on(converse: Start):
    talk = converse(quiet(tunnelIdle="0s"))
    origin = streaming(talk)
    talk.after(200)
    origin >> EVENT
    talk.client << EVENT


def test_the_time_for_the_whole_request_holds(converse: Start):
    talk = converse(quiet(request="30s"))
    streaming(talk)
    talk.after(31)
    talk.client.is_closed()
    assert talk.record()["reason"] == "request_timeout"


def test_an_answer_that_is_no_stream_may_not_stall(converse: Start):
    talk = converse(quiet())
    streaming(talk, HEAD.replace(b"text/event-stream", b"application/json"))
    talk.after(21)
    talk.client.is_closed()
    assert talk.record()["reason"] == "upstream_timeout"


def test_a_client_that_has_ended_its_side_is_not_waited_for(converse: Start):
    """It has left, nearly always."""
    talk = converse(quiet())
    streaming(talk)
    talk.client.ends()
    talk.after(21)
    assert talk.record()["reason"] == "upstream_timeout"
    assert talk.open == 0


def test_a_client_that_does_not_read_is_not_waited_for(converse: Start):
    talk = converse(quiet())
    talk.counts_octets = False
    origin = streaming(talk)
    talk.client.stalls()  # type: ignore[attr-defined]
    for _ in range(8):
        origin >> b"8000\r\n" + bytes(0x8000) + b"\r\n"
    talk.after(31)
    assert talk.record()["reason"] == "upstream_timeout"
    assert talk.open == 0


@pytest.mark.parametrize("protocol", ["MCP", "HTTP11"])
def test_other_backends_have_nothing_of_it(converse: Start, protocol: str):
    backend = tools()
    backend["spec"]["destination"]["ports"][0]["protocol"] = protocol
    objects = quiet()
    objects[2] = backend
    talk = converse(objects)
    streaming(talk)
    talk.after(25)
    assert len(talk.records) == (protocol == "HTTP11")


def test_a_stream_of_http_2_goes_on_too(converse: Start):
    talk = converse(quiet())
    client = speak_http2(talk)
    stream = client.get(b"/mcp", b"x", (b"accept", b"text/event-stream"))
    client.settle()
    reached(talk)
    talk.origin >> HEAD
    assert client.answer(stream).status == 200
    talk.after(45)
    talk.origin >> EVENT
    assert bytes(client.answer(stream).data) == b"data: x"
    talk.after(85)
    assert client.answer(stream).reset is not None
