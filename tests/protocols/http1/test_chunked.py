from __future__ import annotations

import re
from typing import Any

import pytest

from egressproxy.errors import BadRequest, LimitExceeded, Reason
from egressproxy.protocols.http1 import chunked
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from tests.support.attributes import attributes
from tests.support.http1_reading import Reading, read_requests

HEAD = b"POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nConnection: X-Named\r\n\r\n"


def read(body: bytes, limits: HeadLimits | None = None) -> Reading:
    return read_requests(HEAD + body, limits=limits)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"0000000000000005\r\nhello\r\n000\r\n\r\n", b"hello"),
        (b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789"),
        (b'3;a=b;c="d"\r\nabc\r\n0;x\r\n\r\n', b"abc"),
        (b'3 ; a\t=\tb ;c = "d\\"\xe4;"\r\nabc\r\n0\r\n\r\n', b"abc"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
    ],
)
def test_chunks_are_joined_and_extensions_dropped(body: bytes, data: bytes) -> None:
    (message,) = read(body).messages
    assert message.body == data
    assert message.is_whole
    assert message.trailers == b""


@pytest.mark.parametrize(
    "body",
    [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0_5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\t\r\nhello\r\n0\r\n\r\n",
        b"Z\r\nhello\r\n0\r\n\r\n",
        b"5xyz\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b";a\r\nhello\r\n0\r\n\r\n",
        b"8000000000000000\r\nhello\r\n0\r\n\r\n",
        b"20000000000001\r\nhello\r\n0\r\n\r\n",
        b"00000000000000005\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\r\nhello\r\n0\r\n\r\n",
        b"5\rhello\r\n0\r\n\r\n",
        b"5;a=b\nhello\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"5;\x00a\r\nhello\r\n0\r\n\r\n",
        b'5;a="\r\nhello\r\n0\r\n\r\n"',
        b'5;a="b\r\nhello\r\n0\r\n\r\n',
        b"5;\r\nhello\r\n0\r\n\r\n",
        b"5;a=\r\nhello\r\n0\r\n\r\n",
        b"5;a b\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_chunk_line_has_one_reading_or_none(body: bytes) -> None:
    reading = read(body)
    (message,) = reading.messages
    assert message.body == b""
    assert not message.is_whole
    assert isinstance(reading.error, BadRequest)
    assert (reading.error.status, reading.error.reason) == (400, Reason.BAD_FRAMING)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"7\r\nhello\r\n0\r\n\r\n", b"hello\r\n"),
        (b"5\r\nhelloXX0\r\n\r\n", b"hello"),
        (b"5\r\nhello\n0\r\n\r\n", b"hello"),
        (b"5\r\nhello\rX0\r\n\r\n", b"hello"),
        (b"5\r\nhello\r\n5 \r\nhello\r\n0\r\n\r\n", b"hello"),
    ],
)
def test_data_before_a_fault_is_delivered_but_no_end(body: bytes, data: bytes) -> None:
    reading = read(body)
    assert reading.messages[0].body == data
    assert not reading.messages[0].is_whole
    assert isinstance(reading.error, BadRequest)


@pytest.mark.parametrize("body", [b"0" * 17, b"1" * 17, b"5\r\nhello\r\n" + b"0" * 100, b"g", b"5x", b"5 x"])
def test_a_hopeless_size_is_refused_without_waiting_for_its_line(body: bytes) -> None:
    assert isinstance(read(body).error, BadRequest)


@pytest.mark.parametrize(
    "body", [b"", b"5", b"5\r", b"5 ", b"5;", b"5;a=b", b"5\r\nhello", b"5\r\nhello\r", b"0\r\n", b"0\r\n\r"]
)
def test_what_is_not_finished_is_waited_for(body: bytes) -> None:
    reading = read(body)
    assert reading.error is None
    assert not reading.messages[0].is_whole


def test_extensions_are_bounded_in_a_line_and_in_a_body() -> None:
    assert isinstance(read(b"5;" + b"a" * 20000 + b"\r\nhello\r\n0\r\n\r\n").error, BadRequest)
    assert isinstance(read(b"5;" + b"a" * 20000).error, BadRequest)
    assert isinstance(read((b"1;" + b"a" * 200 + b"\r\nx\r\n") * 1000).error, BadRequest)
    assert read((b"1;" + b"a" * 200 + b"\r\nx\r\n") * 50 + b"0\r\n\r\n").error is None
    assert read((b"400;" + b"a" * 200 + b"\r\n" + b"x" * 1024 + b"\r\n") * 1000 + b"0\r\n\r\n").error is None


@pytest.mark.parametrize(
    "section",
    [
        b"XGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"X-T: y\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"X-T: y\n",
        b"X-T : y\r\n\r\n",
        b"X-T: y\r\n z\r\n\r\n",
        b"X-T: y\r\nX\x00: z\r\n\r\n",
        b"X-T: \x01\r\n\r\n",
    ],
)
def test_trailers_are_checked_like_fields(section: bytes) -> None:
    reading = read(b"5\r\nhello\r\n0\r\n" + section)
    assert reading.messages[0].body == b"hello"
    assert not reading.messages[0].is_whole
    assert isinstance(reading.error, BadRequest)
    assert reading.error.reason == Reason.BAD_FIELD


def test_trailers_are_bounded() -> None:
    for section in (b"X: " + b"a" * 2**20, b"X: " + b"a" * 2**17 + b"\r\n\r\n", b"X: y\r\n" * 129 + b"\r\n"):
        error = read(b"0\r\n" + section).error
        assert isinstance(error, LimitExceeded)
        assert error.status == 431
    assert read(b"0\r\n" + b"X: y\r\n" * 3 + b"\r\n", HeadLimits(max_fields=3)).error is None
    assert read(b"0\r\n" + b"X: y\r\n" * 4 + b"\r\n", HeadLimits(max_fields=3)).error is not None


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5", b"Transfer-Encoding: chunked", b"transfer_encoding: chunked", b"Host: x",
        b"Connection: close", b"Authorization: Bearer t", b"Proxy-Authorization: Basic eDp5", b"Cookie: a",
        b"Set-Cookie: a", b"X-Api-Key: k", b"X-Forwarded-For: 127.0.0.1", b"X_Forwarded_Host: x", b"Forwarded: for=x",
        b"Via: 1.1 x", b"Content-Encoding: gzip", b"Expect: 100-continue", b"Upgrade: x", b"TE: trailers",
        b"Trailer: x", b"X-Named: 1", b"X-Gateway-User: root", b"X_Egress_Identity: root", b"X-Smokescreen-Role: root",
        b"X-Egress-Request-Id: 1", b"x_egress_new: 1", b"xi-api-key: k",
        b"X_Vault_Token: k", b"X-Amz-Security-Token: k",
    ],
)  # fmt: skip
def test_fields_that_must_not_come_late_are_dropped(line: bytes) -> None:
    (message,) = read(b"5\r\nhello\r\n0\r\nX-Sum: 9\r\n" + line + b"\r\nX-Sum: 8\r\n\r\n").messages
    assert message.is_whole
    assert message.trailers == b"\r\nX-Sum: 9\r\nX-Sum: 8"
    (message,) = read(b"0\r\n" + line + b"\r\n\r\n").messages
    assert message.trailers == b""


def test_thousands_of_chunks_of_an_octet_each_are_refused():
    body = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    reading = read_requests(head + body)
    assert reading.error is not None
    assert reading.error.reason is Reason.BAD_FRAMING


def test_thousands_of_small_chunks_are_read():
    body = b"8\r\nxxxxxxxx\r\n" * 5000 + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert read_requests(head + body).messages[0].body == b"x" * 40_000


@pytest.mark.parametrize("extension", [b";a" * 2000, b';a="' + b"\\a" * 1900 + b'"'])
def test_an_unfinished_line_that_comes_octet_by_octet_is_read_once_it_is_whole(
    extension: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        tries = 0

        def match(self, *where: Any) -> re.Match[bytes] | None:
            Counting.tries += 1
            return line.match(*where)

    line = chunked._CHUNK_LINE
    monkeypatch.setattr(chunked, "_CHUNK_LINE", Counting())
    decoder = chunked.ChunkedDecoder(HeadLimits(), frozenset())
    body = b"3" + extension + b"\r\nabc\r\n0\r\n\r\n"
    got, kept = [], b""
    for octet in range(len(body)):
        kept += body[octet : octet + 1]
        event, at = decoder.decode(bytearray(kept), 0)
        kept = kept[at:]
        if event is not None:
            got.append(event)
    assert got[:3] == [b"a", b"b", b"c"]
    assert isinstance(got[3], chunked.EndOfMessage)
    assert Counting.tries < 20


@pytest.mark.parametrize(
    ("before", "behind"),
    [(b"5;a=b\r\nhel", b"lo\r\n0\r\n\r\n"), (b"3\r\nabc\r\n2;c", b"=d\r\nde\r\n"), (b"0\r\nA: 1", b"\r\n\r\n")],
)
def test_a_copy_goes_on_where_its_original_stands(before: bytes, behind: bytes) -> None:
    decoder = chunked.ChunkedDecoder(HeadLimits(), frozenset((b"x-named",)))
    at = decoder.decode(before, 0)[1]
    copied = decoder.copy()
    assert attributes(copied) == attributes(decoder)
    event, size = copied.decode(before[at:] + behind, 0)
    assert event is not None
    assert (type(event), size) == (type(event), decoder.decode(before[at:] + behind, 0)[1])


def decoded(decoder: chunked.ChunkedDecoder, data: bytes) -> object:
    return decoder.decode(data, 0)[0]


@pytest.mark.parametrize("line", [b"5", b"05", b"0000000000000005", b"5;a=b"])
def test_a_chunk_of_a_size_that_was_read_before_is_read_in_the_same_way(line: bytes):
    first, again = (chunked.ChunkedDecoder(HeadLimits(), frozenset()) for _ in range(2))
    whole = line + b"\r\nhello\r\n"
    assert decoded(first, whole) == decoded(again, whole) == decoded(again, whole) == b"hello"
    assert decoded(again, line + b"\r\nhello") == b"hello"
    with pytest.raises(Malformed, match="does not end where its size says"):
        again.decode(b"--" + whole, 0)


def test_no_more_lines_are_known_than_their_bound():
    for size in range(1, chunked.MAX_KNOWN + 10):
        decoder = chunked.ChunkedDecoder(HeadLimits(), frozenset())
        assert decoded(decoder, b"%x\r\n%b\r\n" % (size, bytes(size))) == bytes(size)
    assert len(chunked._lengths) <= chunked.MAX_KNOWN
