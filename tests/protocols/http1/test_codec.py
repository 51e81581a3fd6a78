from __future__ import annotations

import re
import time
import tracemalloc

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.errors import BadRequest, GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.protocols.http1.chunked import NO_TRAILERS, EndOfMessage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.http1_reading import read_requests, read_responses
from tests.support.properties import examples

GET = b"GET /get HTTP/1.1\r\nHost: a.example\r\nX-A: 1\r\n\r\n"
POST = b"POST /post HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nX_Y: 1\r\n\r\nabc"
CHUNKED = (
    b"PUT http://a.example/chunked HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;x="y"\r\nabc\r\n2\r\n\r\n\r\n0\r\nX-Sum: 9\r\n\r\n'
)
CONNECT = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n\x16\x03\x01rest"

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def requests(data: bytes = b"") -> RequestReader:
    reader = RequestReader(HeadLimits())
    reader.feed(data)
    return reader


def responses(data: bytes = b"", method: bytes = b"GET") -> ResponseReader:
    reader = ResponseReader(HeadLimits())
    reader.expect(method)
    reader.feed(data)
    return reader


def drain(reader: ResponseReader) -> None:
    while reader.next() is not None:
        pass


def fault_of(reader: ResponseReader) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        drain(reader)
    return caught.value


# --- requests ------------------------------------------------------------------------------------------------------
def test_pipelined_requests_come_out_one_at_a_time_and_in_order() -> None:
    reading = read_requests(GET + POST + b"\r\n" + CHUNKED + GET)
    assert [m.head.method for m in reading.messages] == [b"GET", b"POST", b"PUT", b"GET"]  # type: ignore[union-attr]
    assert [m.body for m in reading.messages] == [b"", b"abc", b"abc\r\n", b""]
    assert reading.messages[2].trailers == b"\r\nX-Sum: 9"
    assert reading.error is None


def test_a_head_without_body_is_the_whole_message() -> None:
    reader = requests(GET)
    assert reader.has_partial_head
    assert isinstance(reader.next(), RequestHead)
    assert reader.next() is None
    assert repr(reader) == "RequestReader(IN_HEAD, buffered=0)"
    assert not reader.has_partial_head


def test_a_body_comes_in_the_pieces_it_arrived_in_and_is_followed_by_its_end() -> None:
    reader = requests(POST[:-1])
    assert isinstance(reader.next(), RequestHead)
    assert reader.next() == b"ab"
    assert reader.next() is None
    reader.feed(b"cGET")
    assert reader.next() == b"c"
    assert reader.next() is NO_TRAILERS
    assert reader.next() is None
    assert reader.buffered() == 3
    assert reader.has_partial_head


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (POST, -1, b"abc"),
        (POST, 3, b"abc"),
        (POST, 2, None),
        (POST[:-1], -1, None),
        (POST + GET, -1, None),
        (CHUNKED, -1, None),
        (GET, -1, None),
    ],
)
def test_a_body_is_taken_whole_where_all_of_it_is_here_and_nothing_else(
    line: bytes, limit: int, expected: bytes | None
):
    reader = requests(line)
    head = reader.next()
    assert isinstance(head, RequestHead)
    assert reader.take_whole_body(limit) == expected
    rest = [] if expected is not None or not head.body else [reader.next()]
    assert rest in ([], [line[line.index(b"\r\n\r\n") + 4 :][:3]], [b"abc\r\n"])
    if expected is not None:
        assert reader.next() is None
        reader.feed(GET)
        assert isinstance(reader.next(), RequestHead), "no end follows"


def test_a_valid_request_before_a_broken_one_is_read() -> None:
    reading = read_requests(GET + b"BROKEN\r\n\r\n" + GET)
    assert [m.head.method for m in reading.messages] == [b"GET"]  # type: ignore[union-attr]
    assert isinstance(reading.error, BadRequest)


def test_a_reader_that_has_refused_stays_broken() -> None:
    reader = requests(b"BROKEN\r\n\r\n" + GET)
    errors: list[GatewayError] = []
    for _ in range(3):
        with pytest.raises(BadRequest) as caught:
            reader.next()
        errors.append(caught.value)
        reader.feed(GET)
    assert len({(e.reason, e.message, e.status, e.close) for e in errors}) == 1
    assert not reader.has_partial_head


def test_bytes_behind_a_connect_are_not_touched() -> None:
    reader = requests(CONNECT)
    head = reader.next()
    assert isinstance(head, RequestHead)
    assert reader.buffered() == 7
    assert reader.take_rest() == b"\x16\x03\x01rest"
    assert reader.buffered() == 0


def test_trailers_and_chunk_lines_in_single_bytes_cost_linear_time() -> None:
    head = CHUNKED[: CHUNKED.index(b"3;")]
    body = (b"1;" + b"e" * 4000 + b"\r\nx\r\n") * 3 + b"0\r\nX: " + b"t" * 50_000 + b"\r\n\r\n"
    started = time.process_time()
    (message,) = read_requests(head + body, range(len(head + body))).messages
    assert time.process_time() - started < 2
    assert message.is_whole


@pytest.mark.parametrize("extension", [b';a="' + b"\\a" * 100_000, b";a" * 100_000, b';a="b"' * 40_000 + b"\0"])
def test_extensions_without_an_end_cost_no_more_than_a_line(extension: bytes) -> None:
    reader = requests(CHUNKED[: CHUNKED.index(b"3;")] + b"3" + extension + b"\r\nabc\r\n0\r\n\r\n")
    assert isinstance(reader.next(), RequestHead)
    tracemalloc.start()
    with pytest.raises(BadRequest):
        reader.next()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1024 * 1024


def test_thousands_of_tiny_chunks_are_one_piece() -> None:
    head = CHUNKED[: CHUNKED.index(b"3;")]
    reader = requests(head + b"1\r\nx\r\n" * 4000)
    assert isinstance(reader.next(), RequestHead)
    assert reader.next() == b"x" * 4000


# --- responses -----------------------------------------------------------------------------------------------------
def test_responses_follow_each_other_on_one_connection() -> None:
    reader = responses()
    for _ in range(2):
        reader.feed(ANSWER)
        assert isinstance(reader.next(), ResponseHead)
        assert reader.next() == b"ok"
        assert reader.next() is NO_TRAILERS
        assert reader.next() is None
        assert not reader.buffered()
        reader.expect(b"GET")


@pytest.mark.parametrize(
    ("data", "method"),
    [
        (ANSWER + ANSWER, b"GET"),
        (ANSWER, b"HEAD"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil", b"GET"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\r\n", b"GET"),
    ],
)
def test_what_follows_a_response_is_surplus_and_never_read(data: bytes, method: bytes) -> None:
    reader = responses(data, method)
    heads = 0
    while (event := reader.next()) is not None:
        heads += isinstance(event, ResponseHead)
    assert heads == 1
    assert reader.buffered()
    reader.expect(b"GET")
    fault = fault_of(reader)
    assert (fault.reason, fault.retry) == (Reason.BAD_RESPONSE, RetrySafety.IF_REUSED)


def test_an_answer_that_came_before_the_question_is_a_fault() -> None:
    reader = ResponseReader(HeadLimits())
    reader.feed(ANSWER)
    assert reader.next() is None
    assert reader.buffered()
    reader.expect(b"GET")
    assert fault_of(reader).reason == Reason.BAD_RESPONSE


def test_interim_responses_are_events_and_bounded() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    reading = read_responses(interim * 16 + ANSWER)
    assert [m.head.is_interim for m in reading.messages] == [True] * 16 + [False]  # type: ignore[union-attr]
    assert reading.messages[-1].body == b"ok"
    fault = fault_of(responses(b"HTTP/1.1 100 Continue\r\n\r\n" * 60))
    assert fault.reason == Reason.BAD_RESPONSE


def test_nothing_is_read_behind_a_101_or_a_tunnel() -> None:
    start = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for reader in (responses(start + ANSWER), responses(b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER, b"CONNECT")):
        assert isinstance(reader.next(), ResponseHead)
        assert reader.next() is None
        reader.feed_eof(False)
        assert reader.next() is None
        assert reader.take_rest() == ANSWER


def test_a_close_delimited_body_ends_at_a_clean_end_only() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    (message,) = read_responses(head + b"hello", eof=True).messages
    assert (message.body, message.is_whole) == (b"hello", True)
    reading = read_responses(head + b"hello", eof=False)
    assert (reading.messages[0].body, reading.messages[0].is_whole) == (b"hello", False)
    assert reading.error is not None
    assert reading.error.reason == Reason.UPSTREAM_INCOMPLETE


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 2",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n",
    ],
)
def test_an_end_in_the_middle_is_never_a_clean_end(data: bytes, is_clean: bool) -> None:
    reading = read_responses(data, eof=is_clean)
    assert isinstance(reading.error, UpstreamFault)
    assert (reading.error.reason, reading.error.retry) == (Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_end_before_any_answer_may_be_tried_again_on_another_connection(is_clean: bool) -> None:
    reader = responses()
    assert reader.next() is None
    reader.feed_eof(is_clean)
    fault = fault_of(reader)
    assert (fault.reason, fault.retry) == (Reason.UPSTREAM_CLOSED, RetrySafety.IF_REUSED)


def test_an_end_behind_a_whole_response_is_no_fault() -> None:
    assert read_responses(ANSWER, eof=False).error is None


def test_an_end_that_is_known_before_the_body_is_read_changes_nothing() -> None:
    reader = responses(ANSWER)
    reader.feed_eof(True)
    assert isinstance(reader.next(), ResponseHead)
    assert reader.next() == b"ok"
    assert reader.next() is NO_TRAILERS
    assert reader.next() is None


def test_a_faulty_response_stays_faulty() -> None:
    reader = responses(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokXX0\r\n\r\n")
    assert isinstance(reader.next(), ResponseHead)
    assert reader.next() == b"ok"
    assert fault_of(reader).reason == Reason.BAD_RESPONSE
    reader.feed(ANSWER)
    reader.expect(b"GET")
    assert fault_of(reader).reason == Reason.BAD_RESPONSE


# --- properties ----------------------------------------------------------------------------------------------------
WHOLE = st.sampled_from([GET, POST, CHUNKED, b"\r\n" + GET, b"OPTIONS * HTTP/1.0\r\n\r\n"])
LAST = st.one_of(
    WHOLE,
    st.just(CONNECT),
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"GET / HTTP/1.1\nHost: x\n\n",
            b"GET /\rb HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /a\r\n\r\n",
            b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nA: b\n\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n A: b\r\n\r\n",
            b"\r\n" * 6 + GET,
            CHUNKED.replace(b"2\r\n", b"2 \r\n"),
            CHUNKED.replace(b"\r\n2\r\n", b"\rX2\r\n"),
            CHUNKED.replace(b"0\r\nX-Sum: 9", b"0\r\nX-Sum : 9"),
            CHUNKED.replace(b"0\r\nX-Sum: 9\r\n", b"0\r\nX-Sum: 9\n"),
        ]
    ),
)
CUTS = st.lists(st.integers(min_value=0, max_value=400), max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(whole=st.lists(WHOLE, max_size=3), last=LAST, cuts=CUTS)
def test_requests_read_the_same_however_they_are_cut(whole: list[bytes], last: bytes, cuts: list[int]) -> None:
    data = b"".join(whole) + last
    expected = read_requests(data)
    assert read_requests(data, cuts).as_value() == expected.as_value()
    assert read_requests(data, range(len(data))).as_value() == expected.as_value()


RESPONSES = [
    (ANSWER, b"GET"),
    (ANSWER, b"HEAD"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER, b"GET"),
    (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n", b"GET"),
    (b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello", b"GET"),
    (b"HTTP/1.1 200 OK\r\n\r\ntunnel", b"CONNECT"),
    (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nframes", b"GET"),
    (b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", b"GET"),
    (b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", b"GET"),
    (b"HTTP/1.1 200 OK\nX: a\n\n", b"GET"),
    (b"HTTP/1.1 2000 OK\r\n\r\n", b"GET"),
    (b"ICY 200 OK\r\n\r\n", b"GET"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"GET"),
]


@settings(max_examples=examples(200), deadline=None)
@given(case=st.sampled_from(RESPONSES), cuts=CUTS, eof=st.sampled_from([None, True, False]))
def test_responses_read_the_same_however_they_are_cut(
    case: tuple[bytes, bytes], cuts: list[int], eof: bool | None
) -> None:
    data, method = case
    expected = read_responses(data, method, eof=eof)
    assert read_responses(data, method, cuts, eof=eof).as_value() == expected.as_value()
    assert read_responses(data, method, range(len(data)), eof=eof).as_value() == expected.as_value()


class _Recorder:
    """What llhttp makes of one request."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True


def first_message(data: bytes) -> tuple[RequestHead, bytes, int] | None:
    """Head, body and length of the message that `data` begins with, if it is accepted."""
    reader = requests(data)
    body = b""
    try:
        head = reader.next()
        if not isinstance(head, RequestHead):
            return None
        if head.body:
            while not isinstance(event := reader.next(), EndOfMessage):
                if event is None:
                    return None
                assert isinstance(event, bytes)
                body += event
    except BadRequest:
        return None
    return head, body, len(data) - reader.buffered()


#: A tab behind a value (RFC 9110 section 5.6.3 OWS), blanks in a chunk extension (BWS).
LEGAL_BUT_REFUSED_BY_LLHTTP = re.compile(rb"(?:transfer-encoding|content-length):[^\r]*\t|[\t ][;=]|[;=][\t ]")

RUBBISH = st.one_of(
    st.sampled_from(
        [b"", b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b":", b";", b",", b"\xff", b"_", b"0", b"\r\n "]
    ),
    st.sampled_from([b"\r\nTransfer-Encoding: chunked", b"\r\nContent-Length: 1", b"\r\nConnection: close"]),
    st.binary(max_size=3),
)


@settings(max_examples=examples(1000), deadline=None)
@given(
    data=st.sampled_from([GET, POST, CHUNKED]),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), RUBBISH), min_size=1, max_size=3),
)
def test_llhttp_reads_whatever_is_accepted_here_in_the_same_way(
    data: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for at, removed, added in edits:
        at %= len(data)
        data = data[:at] + added + data[at + removed :]
    accepted = first_message(data)
    if accepted is None or accepted[0].method not in (b"GET", b"POST", b"PUT"):  # llhttp has a list of methods
        return
    head, body, length = accepted
    framing = data[:length].lower()
    if framing.count(b"transfer-encoding:") + framing.count(b"content-length:") > 1:
        return  # the second is a trailer: dropped here, refused by llhttp
    if LEGAL_BUT_REFUSED_BY_LLHTTP.search(framing):
        return
    recorder = _Recorder()
    httptools.HttpRequestParser(recorder).feed_data(data[:length])
    assert recorder.is_whole
    assert recorder.body == body
    assert [field for field in recorder.fields if field in list(head.fields)] == list(head.fields)


def test_the_end_of_a_message_says_what_it_holds() -> None:
    assert repr(NO_TRAILERS) == "EndOfMessage(trailers=None)"
    assert isinstance(NO_TRAILERS, EndOfMessage)
    assert "buffered=3" in repr(requests(b"GET"))
    assert "HEAD" in repr(responses())


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", 3),
        (b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", 5),
        (b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", 7),
        (b"0\r\n\r\n", -1),
        (b"3\r\nabc\r\n", -1),
        (b"3\r\nabc\r\n0\r\n", -1),
        (b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", -1),
        (b"9\r\n\r\n0\r\n\r\n", -1),
        (b"3\r\nabc\r\n0\r\n\r\n0\r\n\r\n", -1),
        (b"3\r\nabcd\r\n0\r\n\r\n", -1),
        (b"x\r\nabc\r\n0\r\n\r\n", -1),
    ],
)
def test_a_chunked_body_that_is_here_whole_may_be_read_as_one_with_a_length(body: bytes, length: int):
    def read(*, settles: bool) -> tuple[list[object], Reason | None]:
        reader = ResponseReader(HeadLimits())
        reader.expect(b"GET")
        reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        assert isinstance(reader.next(), ResponseHead)
        if settles:
            assert reader.settle_length() == length
        events: list[object] = []
        try:
            while (event := reader.next()) is not None:
                events.append(event)
        except UpstreamFault as fault:
            return events, fault.reason
        return [*events, reader.buffered()], None

    read_as_chunks, read_as_whole = read(settles=False), read(settles=True)
    assert str(read_as_chunks) == str(read_as_whole)
    if length > 0:
        reader = ResponseReader(HeadLimits())
        reader.expect(b"GET")
        reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        reader.next()
        reader.settle_length()
        assert len(reader.take_whole_body() or b"") == length
        assert reader.next() is None


_CHUNKED_PIECES = st.one_of(
    st.sampled_from(
        [
            b"0\r\n\r\n",
            b"0\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"3\r\nabc\r\n",
            b"7\r\n\r\n0\r\n\r\n\r\n",
            b"5\r\n\r\n0\r\n\r\n",
            b"00\r\n",
        ]
    ),
    st.sampled_from(
        [b"X-Sum: 1\r\n", b"2;x=y\r\nde\r\n", b"a\r\n", b"HTTP/1.1 200 OK\r\n", b"f" * 20 + b"\r\n", b"0;x\r\n\r\n"]
    ),
    st.binary(min_size=1, max_size=12).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data)),
)


@settings(max_examples=examples(500), deadline=None)
@given(body=st.lists(_CHUNKED_PIECES, max_size=6).map(b"".join), ends=st.booleans(), seen=st.integers(0, 40))
def test_what_is_told_of_a_chunked_body_is_what_a_reading_of_its_chunks_finds(body: bytes, ends: bool, seen: int):
    """`seen` bytes of it have been read before the rest comes."""
    body += b"0\r\n\r\n" if ends else b""

    def read(*, settles: bool) -> tuple[bytes, object]:
        reader = responses(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body[:seen])
        reader.next()
        pieces: list[bytes] = []
        told = -1
        try:
            while isinstance(event := reader.next(), bytes):
                pieces.append(event)
            if event is None:
                reader.feed(body[seen:])
                before = sum(map(len, pieces))
                told = reader.settle_length() if settles else -1
                while isinstance(event := reader.next(), bytes):
                    pieces.append(event)
        except UpstreamFault as fault:
            assert told == -1
            return b"".join(pieces), fault.reason
        said = b"".join(pieces)
        if told >= 0:
            assert (event, reader.buffered(), len(said) - before) == (NO_TRAILERS, 0, told)
        late = event.trailers.block if isinstance(event, EndOfMessage) and event.trailers is not None else event
        return said, (late, reader.buffered())

    assert read(settles=True) == read(settles=False)
