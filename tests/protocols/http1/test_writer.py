"""Heads as they go out: framing, Host, Via and Connection are made here and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import text

from egressproxy.errors import GatewayFault
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead
from egressproxy.protocols.http1 import writer


def request(method: bytes = b"GET", body: int = 0) -> RequestHead:
    head = RequestHead(method, b"/", Fields.of([(b"X-Odd", b"1")]))
    head.body = body
    return head


def response(body: int, status: int = 200) -> ResponseHead:
    head = ResponseHead(status, b"OK", Fields.of([(b"Date", b"then")]))
    head.body = body
    return head


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        (b"GET", 0, b""),
        (b"POST", 0, b"Content-Length: 0\r\n"),
        (b"GET", 5, b"Content-Length: 5\r\n"),
        (b"POST", CHUNKED, b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_request_has_one_framing(method: bytes, body: int, framing: bytes):
    sent = writer.request_bytes(request(method, body), b"a.example", b"gw")
    assert sent == method + b" / HTTP/1.1\r\nHost: a.example\r\nX-Odd: 1\r\nVia: 1.1 gw\r\n" + framing + b"\r\n"


def test_a_request_says_what_it_wants_of_this_hop():
    upgrade, trailers, counted = request(), request(), request()
    upgrade.upgrade, trailers.te_trailers, counted.max_forwards = b"websocket", True, 0
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in writer.request_bytes(upgrade, b"a", b"gw")
    assert b"Connection: TE\r\nTE: trailers\r\n" in writer.request_bytes(trailers, b"a", b"gw")
    assert b"Max-Forwards: 0\r\n" in writer.request_bytes(counted, b"a", b"gw")


def test_via_is_appended_and_says_how_the_message_came():
    assert writer.via_line(b"", False, b"gw") == b"\r\nVia: 1.1 gw"
    assert writer.via_line(b"1.1 a", True, b"gw") == b"\r\nVia: 1.1 a, 1.0 gw"


@pytest.mark.parametrize(
    ("body", "http_1_0", "framing"),
    [
        (3, False, b"Content-Length: 3\r\n"),
        (3, True, b"Content-Length: 3\r\n"),
        (CHUNKED, False, b"Transfer-Encoding: chunked\r\n"),
        (UNTIL_CLOSE, False, b"Transfer-Encoding: chunked\r\n"),
        (CHUNKED, True, b""),
        (UNTIL_CLOSE, True, b""),
    ],
)
def test_a_response_has_one_framing(body: int, http_1_0: bool, framing: bytes):
    sent = writer.response_bytes(response(body), b"gw", close=False, http_1_0=http_1_0, has_body=True)
    assert sent == b"HTTP/1.1 200 OK\r\nDate: then\r\nVia: 1.1 gw\r\n" + framing + b"\r\n"


def test_a_response_gets_a_date_where_it_has_none_and_says_when_it_is_the_last():
    head = ResponseHead(200, b"OK", Fields.of([]))
    sent = writer.response_bytes(head, b"gw", close=True, http_1_0=False, has_body=False)
    assert sent.count(b"\r\nDate: ") == 1
    assert b"\r\nConnection: close\r\n" in sent


def test_an_answer_of_ours_is_whole():
    answer = LocalResponse(403, ((b"X-A", b"b"),), b"no", b"Denied: x")
    assert writer.answer_bytes(answer, close=False).startswith(b"HTTP/1.1 403 Denied: x\r\nX-A: b\r\nContent-Length: 2")
    assert writer.answer_bytes(answer, close=False).endswith(b"\r\n\r\nno")
    assert writer.answer_bytes(answer, close=False, with_body=False).endswith(b"\r\n\r\n")
    assert b"Content-Length" not in writer.answer_bytes(LocalResponse(204), close=False)
    assert writer.answer_bytes(LocalResponse(404), close=False).startswith(b"HTTP/1.1 404 Not Found\r\n")


@given(text(max_size=400))
def test_no_text_makes_a_phrase_that_breaks_the_line(said: str):
    phrase = writer.safe_phrase(said, 200)
    assert len(phrase) <= 200
    assert all(32 <= octet < 127 or octet == 9 for octet in phrase)


@pytest.mark.parametrize("status", [101, 200])
def test_a_phrase_that_a_filter_has_broken_is_left_out(status: int):
    head = response(0, status)
    head.phrase = b"OK\r\nSet-Cookie: a=b"
    sent = writer.response_bytes(head, b"gw", close=False, http_1_0=False, has_body=False)
    for each in (sent, writer.interim_bytes(head, b"gw")):
        assert b"Set-Cookie" not in each


def test_a_method_of_a_clients_own_is_written_and_what_is_none_is_refused():
    assert writer.request_bytes(request(b"PURGE"), b"a", b"gw").startswith(b"PURGE / HTTP/1.1\r\n")
    with pytest.raises(GatewayFault, match="no token"):
        writer.request_bytes(request(b"GET /admin"), b"a", b"gw")
