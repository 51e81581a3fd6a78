"""Denials and faults in the shape of the client's provider, before an answer has begun and inside of a stream."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from egressproxy.filters import Exchange, Filter, Rejected
from egressproxy.filters.content_coding import ContentDecoder, new_encoder
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter


class Refuses(Filter):
    def request_headers(self, x: Exchange) -> None:
        if b"x-refuse" in x.request.fields:
            raise Rejected("not this one", remedy="ask another", retry_after_s=7, status=429)

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        if b"secret" in data:
            raise Rejected("the answer is not for you")
        return data


def start(converse: Start, backend: m.Manifest | None = None) -> Conversation:
    extensions = [scripted_filter("head", "request-headers"), scripted_filter("body", "response-body")]
    made = [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=extensions),
        backend or m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]
    return converse(made, filters={"head": Refuses(), "body": Refuses()})


def post(path: str, *fields: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("Content-Type: application/json", *fields))
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode()


def refused(talk: Conversation) -> tuple[bytes, dict[str, Any]]:
    head = talk.client.take(rb"HTTP/1.1 (\d{3}) .*?Content-Length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
    return head[0], json.loads(talk.client.take(rb"(?s).{%d}" % int(head[2]))[0])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"error": {"message": "not this one (ask another)", "type": "rate_limit_error"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "rate_limit_error"}}),
        ("/v1/responses/input_tokens", {"error": {"type": "rate_limit_error", "param": None}}),
        ("/v1/messages/count_tokens", {"type": "error", "error": {"type": "rate_limit_error"}}),
        ("/v1beta/models/g:generateContent", {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}),
        ("/model/m/converse", {"message": "not this one (ask another)"}),
        ("/other", {"error": {"status": 429, "message": "not this one"}}),
    ],
)
def test_a_denial_has_the_shape_that_the_path_tells(converse: Start, path: str, expected: dict[str, Any]):
    talk = start(converse)
    talk.client >> post(path, "X-Refuse: 1")
    head, said = refused(talk)
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nRetry-After: 7" in head
    assert (b"x-amzn-errortype: ThrottlingException" in head) is path.endswith("converse")
    for name, value in expected.items():
        assert value == said[name] if not isinstance(value, dict) else value.items() <= said[name].items()
    assert "filter_rejected" in json.dumps(said)


def said_of_its_api() -> m.Manifest:
    made = m.backend("a", "a.example", 80)
    made["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": ["AnthropicMessages"]}}
    return made


@pytest.mark.parametrize(
    "backend",
    [m.backend("a", "api.anthropic.com", 80), said_of_its_api()],
    ids=["its host", "protocolOptions.ai"],
)
def test_where_the_path_is_of_no_api_the_backend_tells_its_provider(converse: Start, backend: m.Manifest):
    talk = start(converse, backend)
    talk.client >> b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Refuse: 1\r\n\r\n"
    _, said = refused(talk)
    assert said["type"] == "error"


def test_a_forward_proxy_knows_the_hosts_of_providers(converse: Start):
    talk = converse([m.gateway(m.http_listener(8080)), m.policy()])
    talk.client >> b"GET http://generativelanguage.googleapis.com/v1beta/models HTTP/1.1\r\nHost: x\r\n\r\n"
    head, said = refused(talk)
    assert head.startswith(b"HTTP/1.1 404 ")
    assert said["error"]["status"] == "NOT_FOUND"
    assert said["error"]["details"][0]["reason"] == "no_route"


def streams(talk: Conversation, path: str, kind: str, first: bytes) -> None:
    """A stream has begun, and the client has the first piece."""
    talk.client >> post(path)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n\{\}")
    talk.origin >> f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    talk.origin >> b"%x\r\n%s\r\n" % (len(first), first)
    talk.client.take(rb"(?s)HTTP/1.1 200 OK\r\n.*?\r\n\r\n[0-9a-f]+\r\n" + re.escape(first) + rb"\r\n")


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", rb'data: (\{"error":.*?\})\n\n'),
        ("/v1/responses", rb'event: error\ndata: (\{"type":"error",.*?\})\n\n'),
        ("/v1/messages", rb'event: error\ndata: (\{"type":"error",.*?\})\n\n'),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", rb'data: (\{"error":.*?\})\n\n'),
    ],
)
def test_a_denial_inside_of_a_stream_is_its_last_event(converse: Start, path: str, end: bytes):
    talk = start(converse)
    streams(talk, path, "text/event-stream", b"data: {}\n\n")
    talk.origin >> b"8\r\nsecret\n\n\r\n"
    last = talk.client.take(rb"(?s)[0-9a-f]+\r\n" + end + rb"\r\n0\r\n\r\n")
    assert json.loads(last[1])["error"]["message"] == "the answer is not for you"
    talk.client.is_closed()
    assert talk.record()["reason"] == "filter_rejected"


@pytest.mark.parametrize(
    ("path", "kind", "first"),
    [
        ("/v1/chat/completions", "text/event-stream", b"data: {"),
        ("/v1/chat/completions", "application/json", b"{"),
        ("/other", "text/event-stream", b"data: {}\n\n"),
    ],
    ids=["half an event", "no stream", "no provider"],
)
def test_elsewhere_the_connection_breaks_off_visibly(converse: Start, path: str, kind: str, first: bytes):
    talk = start(converse)
    streams(talk, path, kind, first)
    talk.origin >> b"8\r\nsecret\n\n\r\n"
    talk.client.is_closed()
    assert talk.client.got == b""


def test_a_stream_of_the_backend_that_breaks_ends_with_an_error_event(converse: Start):
    talk = start(converse)
    streams(talk, "/v1/chat/completions", "text/event-stream", b"data: {}\n\n")
    talk.origin.resets()
    last = talk.client.take(rb"(?s)[0-9a-f]+\r\ndata: (.*?)\n\n\r\n0\r\n\r\n")
    assert json.loads(last[1])["error"]["type"] == "server_error"


class Decodes(Refuses):
    decodes = True


class OnlyReads(Decodes):
    only_reads = True


class RefusesAll(Filter):
    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        raise Rejected("the answer is not for you")


def coded_stream(converse: Start, body: Filter, coding: str, *pieces: bytes) -> tuple[Conversation, bytes]:
    """The body that the client gets of a coded stream with these pieces, each in a chunk of its own."""
    extensions = [scripted_filter("body", "response-body")]
    made = [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=extensions),
        m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]
    talk = converse(made, filters={"body": body})
    talk.client >> post("/v1/chat/completions", f"Accept-Encoding: {coding}")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n\{\}")
    head = f"Content-Type: text/event-stream\r\nContent-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + head.encode()
    encoder = new_encoder(coding.encode())
    for piece in pieces:
        coded = encoder.encode(piece, False)
        talk.origin >> b"%x\r\n%s\r\n" % (len(coded), coded)
    said = talk.client.take(rb"(?s)HTTP/1.1 200 OK\r\n.*?\r\n\r\n(.*)")[1]
    talk.client.is_closed()
    return talk, said


@pytest.mark.parametrize("pieces", [(b"secret\n\n",), (b"data: {}\n\n", b"secret\n\n")], ids=["at once", "later"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_in_a_coded_stream_the_last_event_is_coded_too(converse: Start, coding: str, pieces: tuple[bytes, ...]):
    talk, got = coded_stream(converse, Decodes(), coding, *pieces)
    assert got.endswith(b"0\r\n\r\n")
    body, at = b"", 0
    while size := int(got[at : got.index(b"\r\n", at)], 16):
        begin = got.index(b"\r\n", at) + 2
        body += got[begin : begin + size]
        at = begin + size + 2
    said = ContentDecoder(coding.encode()).decode(body, True)
    *before, last = said.removesuffix(b"\n\n").split(b"\n\n")
    assert before == [b"data: {}"] * (len(pieces) - 1)
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "the answer is not for you"
    assert talk.record()["reason"] == "filter_rejected"


@pytest.mark.parametrize("body", [OnlyReads(), RefusesAll()], ids=["it only reads", "it does not decode"])
def test_behind_coded_bytes_of_another_nothing_is_told(converse: Start, body: Filter):
    """The end of them is not known: an event there would be no part of them."""
    _, got = coded_stream(converse, body, "gzip", b"secret\n\n")
    assert b"data" not in got
    assert not got.endswith(b"0\r\n\r\n")


def test_a_denial_of_the_first_piece_is_an_event_too(converse: Start):
    talk = start(converse)
    talk.client >> post("/v1/chat/completions")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n\{\}")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.origin >> head + b"8\r\nsecret\n\n\r\n0\r\n\r\n"
    talk.client.take(rb"(?s)HTTP/1.1 200 OK\r\n.*?\r\n\r\n[0-9a-f]+\r\ndata: \{\"error\":.*?\}\n\n\r\n0\r\n\r\n")
    assert talk.record()["reason"] == "filter_rejected"


def test_over_http2_a_denial_inside_of_a_stream_is_its_last_event(converse: Start):
    talk = start(converse)
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/v1/chat/completions", b"x", (b"content-type", b"application/json"), body=b"{}")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n2\r\n\{\}\r\n0\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.origin >> b"a\r\ndata: {}\n\n\r\n"
    client.settle()
    talk.origin >> b"8\r\nsecret\n\n\r\n"
    answer = client.answer(stream)
    assert (answer.is_whole, answer.reset) == (True, None)
    first, last = bytes(answer.data).split(b"\n\n", 1)
    assert first == b"data: {}"
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "the answer is not for you"
    assert talk.record()["reason"] == "filter_rejected"
