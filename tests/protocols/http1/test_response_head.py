from __future__ import annotations

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.model.message import CHUNKED, UNTIL_CLOSE, ResponseHead
from egressproxy.protocols.http1.codec import ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.http1_reading import read_responses


def response(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((start, *lines)) + b"\r\n\r\n"


def head_of(data: bytes, method: bytes = b"GET") -> ResponseHead:
    reading = read_responses(data, method)
    assert reading.error is None, reading.error
    head = reading.messages[-1].head
    assert isinstance(head, ResponseHead)
    return head


def refused(data: bytes, method: bytes = b"GET") -> UpstreamFault:
    reading = read_responses(data, method)
    assert reading.messages == []
    assert isinstance(reading.error, UpstreamFault)
    assert (reading.error.status, reading.error.reason) == (502, Reason.BAD_RESPONSE)
    return reading.error


@pytest.mark.parametrize(
    ("start", "status", "phrase"),
    [
        (b"HTTP/1.1 200 OK", 200, b"OK"),
        (b"HTTP/1.1 200 ", 200, b""),
        (b"HTTP/1.1 200", 200, b""),
        (b"HTTP/1.0 404 Not  Found, sorry\t\xe4", 404, b"Not  Found, sorry\t\xe4"),
        (b"HTTP/1.1 999 Odd", 999, b"Odd"),
    ],
)
def test_status_lines(start: bytes, status: int, phrase: bytes) -> None:
    head = head_of(response(b"Content-Length: 0", start=start))
    assert (head.status, head.phrase) == (status, phrase)


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1  200 OK",
        b"HTTP/2.0 200 OK", b"HTTP/1.2 200 OK", b"http/1.1 200 OK", b"ICY 200 OK", b"<html>hi</html>", b"",
        b"HTTP/1.1 200 O\rK", b"HTTP/1.1 200 O\x00K", b"HTTP/1.1\t200 OK", b"\r\nHTTP/1.1 200 OK",
    ],
)  # fmt: skip
def test_what_is_no_status_line_is_a_fault(start: bytes) -> None:
    refused(response(b"Content-Length: 0", start=start))


@pytest.mark.parametrize("data", [b"<html>", b"ICY", b"HTTP/2", b"\n", b"HTTP/1.1 200 OK\n"])
def test_what_can_become_no_response_is_a_fault_before_its_end(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: abc",),
        (b"Content-Length: +5",),
        (b"Content-Length: 5, 5",),
        (b"Content-Length:",),
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: 5", b"Content-Length: 5"),
        (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked, gzip",),
        (b"Transfer-Encoding: gzip",),
        (b"Transfer-Encoding: identity",),
        (b"X-A: a", b" b", b"Content-Length: 2"),
        (b"X-A : a", b"Content-Length: 2"),
        (b"X-A: a\rSet-Cookie: evil=1", b"Content-Length: 2"),
        (b"X-A: a\nSet-Cookie: evil=1", b"Content-Length: 2"),
        (b"X-A: a\x00b",),
        (b"no colon",),
    ],
)
def test_a_response_that_can_be_read_in_two_ways_is_a_fault(lines: tuple[bytes, ...]) -> None:
    refused(response(*lines) + b"hello")


def test_a_coding_in_http_1_0_is_a_fault() -> None:
    refused(response(b"Transfer-Encoding: chunked", start=b"HTTP/1.0 200 OK"))


def test_too_many_and_too_large_fields_are_faults() -> None:
    refused(response(*[b"X-%d: v" % i for i in range(10000)]))
    refused(response(b"X-Big: " + b"a" * 2**20))
    refused(response(b"X-Big: " + b"a" * 2**20)[: 2**17])
    error = read_responses(response(b"A: 1", b"B: 2"), limits=HeadLimits(max_fields=1)).error
    assert isinstance(error, UpstreamFault)


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((b"Content-Length: 7",), 7),
        ((b"Transfer-Encoding: Chunked",), CHUNKED),
        ((), UNTIL_CLOSE),
        ((b"Content-Length: 0",), 0),
    ],
)
def test_how_the_body_ends(lines: tuple[bytes, ...], body: int) -> None:
    head = head_of(response(*lines))
    assert head.body == body
    assert head.fields.block == b""
    assert head.connection_close is (body == UNTIL_CLOSE)


@pytest.mark.parametrize(
    ("method", "status", "lines", "kept"),
    [
        (b"HEAD", 200, (b"Content-Length: 4",), b"\r\nContent-Length: 4"),
        (b"HEAD", 200, (b"Transfer-Encoding: chunked",), b""),
        (b"HEAD", 200, (b"Content-Length: 4", b"Transfer-Encoding: chunked"), b""),
        (b"GET", 304, (b"Content-Length: 4",), b"\r\nContent-Length: 4"),
        (b"GET", 304, (), b""),
        (b"GET", 204, (b"Content-Length: 4",), b""),
        (b"GET", 204, (b"Transfer-Encoding: chunked",), b""),
        (b"GET", 101, (b"Content-Length: 5",), b""),
        (b"GET", 103, (b"Content-Length: 5",), b""),
        (b"CONNECT", 200, (b"Content-Length: 4", b"Transfer-Encoding: chunked"), b""),
        (b"CONNECT", 299, (b"Content-Length: nonsense",), b""),
    ],
)
def test_responses_that_have_no_body_whatever_their_fields_say(
    method: bytes, status: int, lines: tuple[bytes, ...], kept: bytes
) -> None:
    reading = read_responses(response(*lines, start=b"HTTP/1.1 %d X" % status) + b"", method)
    assert reading.error is None
    (message,) = reading.messages
    assert message.head.body == 0
    assert message.head.fields.block == kept


def test_a_refused_connect_has_a_body_like_any_response() -> None:
    (message,) = read_responses(response(b"Content-Length: 2", start=b"HTTP/1.1 403 No") + b"no", b"CONNECT").messages
    assert message.body == b"no"


def test_a_bad_length_is_a_fault_even_where_no_body_follows() -> None:
    refused(response(b"Content-Length: x"), b"HEAD")
    refused(response(b"Content-Length: 1", b"Content-Length: 2", start=b"HTTP/1.1 304 X"))


def test_hop_by_hop_fields_are_taken_out_and_the_others_keep_their_order() -> None:
    head = head_of(
        response(
            b"Set-Cookie: a=1", b"Connection: X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"set-cookie: b=2",
            b"Proxy-Connection: x", b"Proxy-Authenticate: Basic realm=x", b"Proxy-Authentication-Info: x", b"TE: x",
            b"Upgrade: h2c", b"Via: 1.0 a", b"Via: 1.1 b", b"Content-Length: 0", b"Set-Cookie: c=3", b"Trailer: X",
        )
    )  # fmt: skip
    assert head.fields.block == b"\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nSet-Cookie: c=3\r\nTrailer: X"
    assert head.via == b"1.0 a, 1.1 b"
    assert head.upgrade == b""


@pytest.mark.parametrize(
    ("start", "connection", "is_close"),
    [
        (b"HTTP/1.1 200 OK", b"keep-alive", False),
        (b"HTTP/1.1 200 OK", b"x, CLOSE", True),
        (b"HTTP/1.0 200 OK", b"x", True),
        (b"HTTP/1.0 200 OK", b"Keep-Alive", False),
        (b"HTTP/1.0 200 OK", b"keep-alive, close", True),
    ],
)
def test_whether_the_connection_may_be_used_again(start: bytes, connection: bytes, is_close: bool) -> None:
    head = head_of(response(b"Connection: " + connection, b"Content-Length: 0", start=start))
    assert head.connection_close is is_close
    assert head.http_1_0 is (b"1.0" in start)


def test_the_protocol_of_a_101_is_kept() -> None:
    start = b"HTTP/1.1 101 Switching Protocols"
    reading = read_responses(response(b"Connection: Upgrade", b"Upgrade: websocket", start=start) + b"\x81\x02hi")
    assert reading.messages[0].head.upgrade == b"websocket"
    assert reading.messages[0].head.fields.block == b""
    assert reading.rest == b"\x81\x02hi"
    assert head_of(response(b"Upgrade: websocket", start=start)).upgrade == b""


@pytest.mark.parametrize(
    "status", [b"HTTP/1.1 200 OK", b"HTTP/1.1 103 Early Hints", b"HTTP/1.1 101 Switching Protocols"]
)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_an_upstream_does_not_speak_to_clients_in_our_name(status: bytes, count: int) -> None:
    forged = (b"X-Egress-Request-Id: 1", b"x_egress_reason: x", b"X-EGRESS_New:", b"x-Egress-: y")
    reader = ResponseReader(HeadLimits())
    reader.expect(b"GET")
    reader.feed(response(b"A: 1", *forged * count, b"X-Egres: 2", b"X-Egressive: 3", b"Via: 1.1 z", start=status))
    head = reader.next()
    assert isinstance(head, ResponseHead)
    assert head.fields.block == b"\r\nA: 1\r\nX-Egres: 2\r\nX-Egressive: 3"
    assert head.via == b"1.1 z"


@pytest.mark.parametrize(
    ("start", "line", "is_kept"),
    [
        (b"HTTP/1.1 401 Unauthorized", b"WWW-Authenticate: NTLM TlRMTVNTUAACAAAA", False),
        (b"HTTP/1.1 401 Unauthorized", b"www-authenticate: Basic realm=a, negotiate TlRMTVNTUAAC==", False),
        (b"HTTP/1.1 401 Unauthorized", b"WWW-Authenticate: NTLM", True),
        (b"HTTP/1.1 401 Unauthorized", b'WWW-Authenticate: Negotiate, Basic realm="x"', True),
        (b"HTTP/1.1 401 Unauthorized", b"WWW-Authenticate: Bearer", True),
        (b"HTTP/1.1 200 OK", b"Persistent-Auth: true", False),
        (b"HTTP/1.1 200 OK", b"WWW-Authenticate: Negotiate oYGgMIGd", False),
        (b"HTTP/1.1 302 Found", b"WWW-AUTHENTICATE:negotiate\toYGgMIGd", False),
        (b"HTTP/1.1 403 Forbidden", b"WWW-Authenticate: Basic realm=a, NTLM TlRMTVNTUAADAAAA", False),
        (b"HTTP/1.1 200 OK", b"WWW-Authenticate: Negotiate", True),
        (b"HTTP/1.1 200 OK", b"X-WWW-Authenticate: Negotiate oYGgMIGd", True),
        (b"HTTP/1.1 200 OK", b"X-Persistent-Auth: true", True),
    ],
)
def test_a_connection_that_is_somebodys_by_his_login_is_not_kept(start: bytes, line: bytes, is_kept: bool):
    head = head_of(response(line, b"Content-Length: 0", start=start))
    assert head.connection_close is not is_kept
    assert (b"persistent-auth" in head.fields) is False
    if b"uth" in line[4:12] and not line.startswith((b"P", b"X-P")):
        assert head.fields.block == b"\r\n" + line, "the client reads it as it came"


def test_a_step_of_a_login_goes_on_with_all_else_that_is_asked_for():
    asks = (b"WWW-Authenticate: Basic realm=a", b"WWW-Authenticate: NTLM TlRM", b"www-authenticate: Negotiate oYGg=")
    for more in ((), (b"Connection: keep-alive", b"Via: 1.1 x", b"Keep-Alive: timeout=5", b"TE: x")):
        start = b"HTTP/1.1 401 Unauthorized"
        head = head_of(response(*asks, *more, b"A: 1", b"Content-Length: 0", start=start))
        assert sorted(head.fields) == sorted([
            (b"a", b"1"), (b"www-authenticate", b"Basic realm=a"), (b"www-authenticate", b"NTLM TlRM"),
            (b"www-authenticate", b"Negotiate oYGg="),
        ])  # fmt: skip
        assert head.connection_close


def test_what_one_answer_says_of_a_login_is_not_said_of_the_next():
    reader = ResponseReader(HeadLimits())
    for line, closes in ((b"WWW-Authenticate: NTLM TlRM", True), (b"A: 1", False)):
        reader.expect(b"GET")
        reader.feed(response(line, b"Content-Length: 0"))
        head = reader.next()
        assert isinstance(head, ResponseHead)
        assert head.connection_close is closes
        assert head.fields.block == b"\r\n" + line
        reader.next()
