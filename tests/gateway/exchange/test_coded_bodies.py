"""Bodies in a content coding, through filters that want them without."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

from egressproxy.filters.base import BodyMode, Filter, Phase, Rejected
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_body_filter import dechunked
from tests.gateway.kit import OK, OK_PASSED, forward
from tests.support.conversation import Conversation, scripted_filter

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
GET_RANGE = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: %s\r\nRange: bytes=5-\r\n\r\n"
TEXT = b"a body in a content coding. " * 9
CODERS: dict[bytes, tuple[Any, Any]] = {
    b"gzip": (gzip.compress, gzip.decompress),
    b"deflate": (zlib.compress, zlib.decompress),
    b"br": (brotli.compress, brotli.decompress),
    b"zstd": (zstandard.compress, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
}
MODES = pytest.mark.parametrize("mode", list(BodyMode))


class Reader(Filter):
    """Does `act` with each decoded piece."""

    decodes = True

    def __init__(
        self, mode: BodyMode, act: Any = bytes.upper, *, direction: str = "response", only_reads: bool = False
    ):
        self.body_mode = mode  # type: ignore[misc]
        self.act = act
        self.only_reads = only_reads
        self.runs_in = frozenset([Phase(f"{direction}-body")])
        self.seen = bytearray()

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        self.seen += data
        return self.act(data)

    response_body = request_body


def placed(direction: str = "response", **more: Any) -> Any:
    return forward(extensions=[scripted_filter("f", f"{direction}-body", **more)])


def answer(talk: Conversation, coding: bytes, body: bytes, *, status: bytes = b"200 OK", is_new: bool = True) -> None:
    talk.client >> GET_RANGE % b"gzip"
    if is_new:
        talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 %s\r\nContent-Encoding: %s\r\nETag: \"x\"\r\nContent-Length: %d\r\n\r\n" % (
        status, coding, len(body),
    )  # fmt: skip
    talk.origin >> body


def passed(talk: Conversation) -> tuple[bytes, bytes]:
    """The head and the body that the client has got."""
    talk.until(lambda: talk.idle == 1)
    head, _, body = talk.client.got.partition(b"\r\n\r\n")
    talk.client.received.clear()
    return head, dechunked(body) if b"chunked" in head else body


@MODES
@pytest.mark.parametrize("coding", CODERS)
def test_a_response_is_decoded_for_a_filter_and_coded_again_for_the_client(
    converse: Start, coding: bytes, mode: BodyMode
):
    code, decode = CODERS[coding]
    talk = converse(placed(), filters={"f": Reader(mode)})
    answer(talk, coding, code(TEXT))
    head, body = passed(talk)
    assert b"Content-Encoding: " + coding in head
    assert decode(body) == TEXT.upper()
    assert b'etag: W/"x"' in head


@pytest.mark.parametrize("only_reads", [False, True])
@pytest.mark.parametrize("coding", CODERS)
def test_a_response_that_no_filter_changes_goes_on_as_it_came(converse: Start, coding: bytes, only_reads: bool):
    code, _ = CODERS[coding]
    talk = converse(placed(), filters={"f": Reader(BodyMode.BUFFER, bytes, only_reads=only_reads)})
    answer(talk, coding, code(TEXT))
    head, body = passed(talk)
    assert (body, b'ETag: "x"' in head, b"Content-Length: %d" % len(body) in head) == (code(TEXT), True, True)


def test_what_a_filter_only_reads_goes_on_as_it_came_while_it_comes(converse: Start):
    reader = Reader(BodyMode.STREAM, lambda _data: b"", only_reads=True)
    talk = converse(placed(), filters={"f": reader})
    body = gzip.compress(TEXT)
    talk.client >> GET_RANGE % b"gzip"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n" % len(body)
    talk.origin >> head + b"\r\n" + body[:20]
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*Content-Length: %d\r\n\r\n" % len(body) + re.escape(body[:20]))
    for at in range(20, len(body), 5):
        talk.origin >> body[at : at + 5]
        talk.client << body[at : at + 5]
    assert reader.seen == TEXT


def test_the_backend_is_asked_for_what_can_be_undone_and_for_all_of_it(converse: Start):
    talk = converse(placed(), filters={"f": Reader(BodyMode.BUFFER)})
    more = b"If_Range: x\r\n_Range: bytes=1-\r\nRequest-Range: bytes=5-\r\nA-IM: gzip\r\n\r\n"
    talk.client >> (GET_RANGE % b"lzma, gzip;q=0.5, *").removesuffix(b"\r\n") + more
    talk.dialled("a.example", 80)
    head = talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")[0].lower()
    assert b"accept-encoding: gzip;q=0.5\r\n" in head
    assert b"range" not in head
    assert b"a-im" not in head


def test_an_event_in_a_coding_is_not_delayed(converse: Start):
    talk = converse(placed(), filters={"f": Reader(BodyMode.STREAM)})
    talk.client >> GET_RANGE % b"gzip"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    coder, reader, got = zlib.compressobj(wbits=31), zlib.decompressobj(31), b""
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?chunked\r\n\r\n")
    for event in (b"data: one\n\n", b"data: two\n\n"):
        talk.origin >> coder.compress(event) + coder.flush(zlib.Z_SYNC_FLUSH)
        talk.until(lambda: bool(talk.client.got))
        size, _, rest = talk.client.got.partition(b"\r\n")
        talk.client.received.clear()
        assert reader.decompress(rest[: int(size, 16)]) == event.upper()
    talk.origin >> coder.flush()
    talk.origin.ends()
    talk.until(lambda: talk.client.got.endswith(b"0\r\n\r\n"))
    got = dechunked(talk.client.got)
    talk.client.received.clear()
    assert reader.decompress(got) == b""
    assert reader.eof


@MODES
@pytest.mark.parametrize("coding", CODERS)
def test_a_request_is_decoded_for_a_filter_and_coded_again_for_the_backend(
    converse: Start, coding: bytes, mode: BodyMode
):
    code, decode = CODERS[coding]
    body = code(TEXT)
    talk = converse(placed("request"), filters={"f": Reader(mode, direction="request")})
    talk.client >> POST + b"Content-Encoding: %s\r\nDigest: x\r\nContent-Length: %d\r\n\r\n" % (coding, len(body))
    talk.client >> body
    talk.dialled("a.example", 80)
    talk.until(lambda: talk.origin.got.endswith(b"0\r\n\r\n") or mode is BodyMode.BUFFER)
    head, _, sent = talk.origin.got.partition(b"\r\n\r\n")
    talk.origin.received.clear()
    assert decode(dechunked(sent) if mode is BodyMode.STREAM else sent) == TEXT.upper()
    assert b"Content-Encoding: " + coding in head
    assert b"Digest" not in head
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("coding", [b"lzma", b"gzip, br", b"aws-chunked"])
def test_a_request_in_a_coding_that_cannot_be_undone_is_refused(converse: Start, coding: bytes):
    talk = converse(placed("request"), filters={"f": Reader(BodyMode.BUFFER, direction="request")})
    talk.client >> POST + b"Content-Encoding: %s\r\nContent-Length: 3\r\n\r\nabc" % coding
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (415, "content_coding")
    talk.no_dial()


def test_a_request_that_is_not_what_its_coding_says_is_refused(converse: Start):
    talk = converse(placed("request"), filters={"f": Reader(BodyMode.BUFFER, direction="request")})
    talk.client >> POST + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (400, "content_coding")
    talk.no_dial()


def test_a_request_that_unfolds_endlessly_is_refused(converse: Start):
    reader = Reader(BodyMode.STREAM, direction="request")
    talk = converse(placed("request"), filters={"f": reader})
    bomb = gzip.compress(bytes(256 * 1024 * 1024))
    talk.client >> POST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    talk.dialled("a.example", 80)
    talk.client >> bomb
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (413, "body_too_large")
    assert len(reader.seen) <= 100 * len(bomb)


@pytest.mark.parametrize(
    ("coding", "make", "status"),
    [
        (b"lzma", lambda: b"abc", b"200 OK"),
        (b"gzip, gzip", lambda: gzip.compress(gzip.compress(TEXT)), b"200 OK"),
        (b"gzip", lambda: gzip.compress(TEXT)[5:], b"206 Partial Content"),
        (b"gzip", lambda: gzip.compress(TEXT)[:-3], b"200 OK"),
        (b"gzip", lambda: TEXT, b"200 OK"),
        (b"gzip", lambda: gzip.compress(bytes(256 * 1024 * 1024)), b"200 OK"),
    ],
    ids=["unknown", "stacked", "part", "cut", "plain", "bomb"],
)
def test_a_response_that_cannot_be_read_does_not_reach_the_client(
    converse: Start, coding: bytes, make: Callable[[], bytes], status: bytes
):
    talk = converse(placed(), filters={"f": Reader(BodyMode.BUFFER)})
    answer(talk, coding, make(), status=status)
    got, _, _, error = talk.client.answer()
    assert (got, error["reason"]) == (502, "upstream_bad_response")


def test_a_response_in_an_unknown_coding_goes_past_a_filter_that_fails_open(converse: Start):
    reader = Reader(BodyMode.BUFFER)
    talk = converse(placed(failOpen=True), filters={"f": reader})
    answer(talk, b"lzma", b"abc")
    assert passed(talk)[1] == b"abc"
    assert not reader.seen
    assert talk.snapshot.filters.stats()[0].failed == 1


def test_a_filter_of_a_coded_response_refuses_and_answers(converse: Start):
    def refuse(_data: bytes) -> bytes:
        raise Rejected("not this", status=451)

    reader = Reader(BodyMode.BUFFER, refuse, only_reads=True)
    talk = converse(placed(), filters={"f": reader})
    answer(talk, b"gzip", gzip.compress(TEXT))
    assert talk.client.answer()[0] == 451
    reader.act = lambda _data: LocalResponse(418)
    answer(talk, b"gzip", gzip.compress(TEXT), is_new=False)
    assert talk.client.answer()[0] == 418


def test_a_part_that_nobody_has_asked_for_goes_past_a_filter_that_fails_open(converse: Start):
    reader = Reader(BodyMode.BUFFER)
    talk = converse(placed(failOpen=True), filters={"f": reader})
    answer(talk, b"identity", b"abc", status=b"206 Part")
    assert passed(talk)[1] == b"abc"
    assert not reader.seen
    assert talk.snapshot.filters.stats()[0].failed == 1
