"""A chunk's line, and the trailers, have to come whole in time: they hold nothing that anybody waits for."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import GET, GET_SENT, forward
from tests.support.manifests import Manifest

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
SENT = rb"POST / .*\r\n0\r\n(X[^\r]*\r\n)?(Z[^\r]*\r\n)?\r\n"
#: What comes at once, what comes bit by bit, and what makes it whole.
LINES = [
    pytest.param(b"3", b";extension" + b"x" * 100, b"\r\nabc\r\n0\r\n\r\n", id="extension"),
    pytest.param(b"3\r\nabc\r\n3", b";extension" + b"x" * 100, b"\r\nabc\r\n0\r\n\r\n", id="later extension"),
    pytest.param(b"0\r\n", b"X-Trailer: " + b"y" * 100, b":x\r\n\r\n", id="trailers"),
    pytest.param(b"3\r\nabc\r\n0;x", b"yyyyyyyyyyy" + b"y" * 100, b"\r\n\r\n", id="last extension"),
    pytest.param(b"3\r\nabc\r\n0\r\nX: y\r\n", b"Z: " + b"y" * 100, b"\r\n\r\n", id="second trailer"),
]


def timed(**timeouts: str) -> list[Manifest]:
    return forward(traffic={"timeouts": timeouts})


@pytest.mark.parametrize(("begin", "trickle", "rest"), LINES)
def test_a_line_of_a_request_that_trickles_is_a_408(converse: Start, begin: bytes, trickle: bytes, rest: bytes):
    talk = converse(timed(requestHeaders="5s", idle="60s"))
    talk.client >> POST + begin
    talk.dialled("a.example", 80)
    talk.client >> trickle[:9] + rest  # the same line of another request
    talk.origin.take(SENT)
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    talk.client >> POST + begin
    for octet in trickle[:9]:
        talk.after(0.5)
        talk.client >> bytes([octet])
    talk.client.is_open()
    talk.after(0.8)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (408, "client_timeout")


@pytest.mark.parametrize(("begin", "trickle", "rest"), LINES)
def test_a_line_of_a_request_that_comes_in_time_is_none(converse: Start, begin: bytes, trickle: bytes, rest: bytes):
    talk = converse(timed(requestHeaders="5s", idle="60s"))
    for _ in range(2):  # the second has the same line as the first
        talk.client >> POST + begin
        if not talk.origins:
            talk.dialled("a.example", 80)
        for octet in trickle[:9]:
            talk.after(0.4)
            talk.client >> bytes([octet])
        talk.client >> rest
        talk.origin.take(SENT)
        talk.after(20)
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")


def test_chunks_whose_lines_are_cut_may_come_slowly(converse: Start):
    talk = converse(timed(requestHeaders="5s", idle="60s"))
    talk.client >> POST
    talk.dialled("a.example", 80)
    talk.client >> b"3"
    for _ in range(10):
        talk.after(3)
        talk.client >> b"\r\nabc\r\n3"
    talk.client >> b"\r\nabc\r\n0\r\n\r\n"
    talk.origin.take(rb"POST / .*\r\n0\r\n\r\n")


def test_where_nobody_reads_the_line_its_time_does_not_run(converse: Start):
    talk = converse(timed(requestHeaders="5s", idle="60s"))
    talk.client >> POST
    talk.dialled("a.example", 80).stalls()  # type: ignore[attr-defined]
    for _ in range(8):
        talk.client >> b"10000\r\n" + bytes(65536) + b"\r\n3"
        talk.client >> b"\r\nabc\r\n"
    talk.client >> b"3"
    talk.after(20)
    talk.client.is_open()


@pytest.mark.parametrize(("begin", "trickle", "rest"), LINES)
def test_a_line_of_an_answer_that_trickles_breaks_it_off(converse: Start, begin: bytes, trickle: bytes, rest: bytes):
    talk = converse(timed(idle="5s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begin
    for octet in trickle[:30]:
        talk.after(0.5)
        if not talk.origin.is_gone:
            talk.origin >> bytes([octet])
    assert talk.origin.is_gone
    assert talk.client.is_gone
    assert talk.record()["reason"] == "upstream_timeout"


def test_an_answer_whose_lines_are_cut_may_come_slowly(converse: Start):
    talk = converse(timed(idle="5s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3"
    for _ in range(10):
        talk.after(3)
        talk.origin >> b"\r\nabc\r\n3"
    talk.origin >> b"\r\nabc\r\n0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*\r\n0\r\n\r\n")
