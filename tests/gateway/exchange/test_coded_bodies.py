"""Bodies in a content coding, through filters that want them without: what the drivers make of the coded body.

What filters get and what goes on has `tests/filters/test_coded_body.py`, as values.
"""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter, Phase
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_body_filter import dechunked
from tests.gateway.kit import OK, OK_PASSED, forward
from tests.support.conversation import scripted_filter

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
GET_RANGE = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: %s\r\nRange: bytes=5-\r\n\r\n"
TEXT = b"a body in a content coding. " * 9
MODES = pytest.mark.parametrize("mode", list(BodyMode))


class Upper(Filter):
    decodes = True

    def __init__(self, mode: BodyMode, direction: str) -> None:
        self.body_mode = mode  # type: ignore[misc]
        self.runs_in = frozenset([Phase(f"{direction}-body")])

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.upper()

    response_body = request_body


def placed(direction: str) -> Any:
    return forward(extensions=[scripted_filter("f", f"{direction}-body")])


@MODES
def test_a_response_is_decoded_for_a_filter_and_coded_again_for_the_client(converse: Start, mode: BodyMode):
    talk, body = converse(placed("response"), filters={"f": Upper(mode, "response")}), gzip.compress(TEXT)
    talk.client >> GET_RANGE % b"gzip"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    fields = b'Content-Encoding: gzip\r\nETag: "x"\r\nContent-Length: %d\r\n\r\n' % len(body)
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + fields
    talk.origin >> body
    talk.until(lambda: talk.idle == 1)
    head, _, got = talk.client.got.partition(b"\r\n\r\n")
    talk.client.received.clear()
    assert gzip.decompress(dechunked(got) if b"chunked" in head else got) == TEXT.upper()
    assert b"Content-Encoding: gzip" in head
    assert b'etag: W/"x"' in head


def test_the_backend_is_asked_for_what_can_be_undone_and_for_all_of_it(converse: Start):
    talk = converse(placed("response"), filters={"f": Upper(BodyMode.BUFFER, "response")})
    more = b"If_Range: x\r\n_Range: bytes=1-\r\nRequest-Range: bytes=5-\r\nA-IM: gzip\r\n\r\n"
    talk.client >> (GET_RANGE % b"lzma, gzip;q=0.5, *").removesuffix(b"\r\n") + more
    talk.dialled("a.example", 80)
    head = talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")[0].lower()
    assert b"accept-encoding: gzip;q=0.5\r\n" in head
    assert b"range" not in head
    assert b"a-im" not in head


@MODES
def test_a_request_is_decoded_for_a_filter_and_coded_again_for_the_backend(converse: Start, mode: BodyMode):
    talk, body = converse(placed("request"), filters={"f": Upper(mode, "request")}), gzip.compress(TEXT)
    talk.client >> POST + b"Content-Encoding: gzip\r\nDigest: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    talk.client >> body
    talk.dialled("a.example", 80)
    talk.until(lambda: talk.origin.got.endswith(b"0\r\n\r\n") or mode is BodyMode.BUFFER)
    head, _, sent = talk.origin.got.partition(b"\r\n\r\n")
    talk.origin.received.clear()
    assert gzip.decompress(dechunked(sent) if mode is BodyMode.STREAM else sent) == TEXT.upper()
    assert b"Content-Encoding: gzip" in head
    assert b"Digest" not in head
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_request_in_a_coding_that_cannot_be_undone_goes_nowhere(converse: Start):
    talk = converse(placed("request"), filters={"f": Upper(BodyMode.BUFFER, "request")})
    talk.client >> POST + b"Content-Encoding: lzma\r\nContent-Length: 3\r\n\r\nabc"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (415, "content_coding")
    talk.no_dial()


def test_a_response_that_is_not_what_its_coding_says_does_not_reach_the_client(converse: Start):
    talk = converse(placed("response"), filters={"f": Upper(BodyMode.BUFFER, "response")})
    talk.client >> GET_RANGE % b"gzip"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "upstream_bad_response")
