"""A body that was looked at goes to everything that wants it, whole and in order: filters, servers, mirrors, HTTP/2."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.ai.mcp.filters import LOOK
from egressproxy.filters.base import BodyMode, Filter
from egressproxy.model.exchange import Exchange
from tests.ai.mcp.test_filters import CALL, post, to_mcp
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
LONG = CALL.replace(b'"arguments":{}', b'"arguments":{"text":"%b"}' % bytes(97 + at % 26 for at in range(3 * LOOK)))
BODIES = pytest.mark.parametrize("body", [CALL, LONG], ids=["short", "long"])


class Shouting(Filter):
    """Sees the body piece by piece, or whole."""

    def __init__(self, mode: BodyMode) -> None:
        self.body_mode = mode  # type: ignore[misc]

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.upper()


def upstream_body(talk: Conversation, length: int) -> bytes:
    """The body that the origin gets, with Content-Length or in chunks."""
    head = talk.origin.take(rb"POST /mcp .*?\r\n\r\n")[0]
    if b"Content-Length" in head:
        return talk.origin.take(rb".{%d}" % length)[0]
    body = b""
    while size := int(talk.origin.take(rb"([0-9a-f]+)\r\n")[1], 16):
        body += talk.origin.take(rb".{%d}\r\n" % size)[0][:-2]
    talk.origin << b"\r\n"
    return body


def sends(talk: Conversation, body: bytes) -> None:
    """Head, then the body in pieces."""
    request = post(body)
    at = request.index(b"\r\n\r\n") + 4
    talk.client >> request[:at]
    for start in range(at, len(request), 7000):
        talk.client >> request[start : start + 7000]


@BODIES
@pytest.mark.parametrize("mode", BodyMode)
def test_filters_of_the_body_get_all_of_it(converse: Start, body: bytes, mode: BodyMode):
    made = to_mcp()
    made[1] = m.policy(extensions=[scripted_filter("shout", "request-body")])
    talk = converse(made, filters={"shout": Shouting(mode)})
    sends(talk, body)
    talk.dialled("a.example", 80)
    assert upstream_body(talk, len(body)).lower() == body.lower()


@BODIES
def test_mirrors_get_all_of_it(converse: Start, body: bytes):
    mirror = {
        "type": "RequestMirror",
        "requestMirror": {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}},
    }
    made = to_mcp({**m.prefix_rule("/", "a"), "filters": [mirror]})
    talk = converse([*made, m.backend("b", "b.example", 80)])
    sends(talk, body)
    for host in ("a.example", "b.example"):
        talk.dialled(host, 80)
        assert upstream_body(talk, len(body)) == body
        talk.origin >> ACCEPTED
    talk.client.take(rb"HTTP/1.1 202 .*?\r\n\r\n")


@BODIES
def test_an_authorization_server_gets_all_of_it(converse: Start, body: bytes):
    ref = {"group": m.OURS, "kind": "Backend", "name": "auth"}
    auth: dict[str, Any] = {"protocol": "HTTP", "backendRef": ref, "forwardBody": {"maxSize": len(LONG)}, "http": {}}
    made = to_mcp({**m.prefix_rule("/", "a"), "filters": [{"type": "ExternalAuth", "externalAuth": auth}]})
    talk = converse([*made, m.backend("auth", "auth.example", 9000)])
    sends(talk, body)
    talk.dialled("auth.example", 9000)
    assert upstream_body(talk, len(body)) == body
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80)
    assert upstream_body(talk, len(body)) == body
    talk.origin >> ACCEPTED
    talk.client.take(rb"HTTP/1.1 202 .*?\r\n\r\n")


def test_what_is_more_than_an_authorization_server_may_see_is_refused(converse: Start):
    ref = {"group": m.OURS, "kind": "Backend", "name": "auth"}
    auth: dict[str, Any] = {"protocol": "HTTP", "backendRef": ref, "forwardBody": {"maxSize": 50}, "http": {}}
    made = to_mcp({**m.prefix_rule("/", "a"), "filters": [{"type": "ExternalAuth", "externalAuth": auth}]})
    talk = converse([*made, m.backend("auth", "auth.example", 9000)])
    (
        talk.client
        >> b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    talk.client >> b"%x\r\n%b\r\n0\r\n\r\n" % (len(CALL), CALL)
    talk.client.take(rb"HTTP/1.1 413 .*")
    talk.no_dial()


@BODIES
def test_streams_of_http_2_are_looked_at(converse: Start, body: bytes):
    talk = converse(to_mcp())
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/mcp", b"x", (b"content-type", b"application/json"), ends=False)
    for at in range(0, len(body), 9000):
        client.says(stream, body[at : at + 9000], ends=at + 9000 >= len(body))
    talk.dialled("a.example", 80)
    for _ in range(20):
        client.settle()
    assert upstream_body(talk, len(body)) == body
    talk.origin >> ACCEPTED
    assert client.answer(stream).status == 202
    record = talk.record()
    assert (record["mcp_method"], record["mcp_tool"]) == ("tools/call", "search")


def test_an_error_on_http_2_is_json_rpc(converse: Start):
    talk = converse(to_mcp(version="2025-06-18"))
    client = speak_http2(talk)
    fields = ((b"content-type", b"application/json"), (b"mcp-protocol-version", b"2025-03-26"))
    stream = client.ask(b"POST", b"/mcp", b"x", *fields, body=CALL)
    answer = client.answer(stream)
    assert answer.status == 400
    assert b'"id": "c1"' in answer.data
