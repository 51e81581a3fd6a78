from __future__ import annotations

import time

import pytest

from egressproxy.errors import BadRequest, LimitExceeded, Reason
from egressproxy.model.message import CHUNKED
from egressproxy.protocols.http1.framing import MAX_NAME, HeadLimits
from tests.support.http1_reading import read_requests

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def request(*lines: bytes, start: bytes = b"GET /a HTTP/1.1", host: bytes = b"Host: a.example") -> bytes:
    return b"\r\n".join([line for line in (start, host, *lines) if line]) + b"\r\n\r\n"


def refused(data: bytes) -> BadRequest | LimitExceeded:
    """The error that reading this ends in; nothing may have been read before."""
    reading = read_requests(data)
    assert reading.messages == []
    assert isinstance(reading.error, BadRequest | LimitExceeded)
    assert reading.error.close
    assert b"smuggled" not in reading.error.message.encode()
    return reading.error


# --- framing -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 40", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 40"),
        (b"Connection: close", b"Content-Length: 40", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunkedx", b"Content-Length: 40"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: x", b"Transfer-Encoding: chunked"),
        (b"transfer-encoding: chunked", b"TRANSFER-ENCODING: identity"),
    ],
)
def test_framing_that_can_be_read_in_two_ways_is_refused(lines: tuple[bytes, ...]) -> None:
    error = refused(request(*lines, start=b"POST /a HTTP/1.1") + b"0\r\n\r\n" + SMUGGLED)
    assert (error.status, error.reason) == (400, Reason.BAD_FRAMING)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"gzip", 501),
        (b"gzip, chunked", 501),
        (b"identity, chunked", 501),
        (b"chunkedx", 501),
        (b"chunk", 501),
        (b"chunked, gzip", 400),
        (b"chunked, chunked", 400),
        (b",chunked", 400),
        (b"chunked,", 400),
        (b'"chunked"', 400),
        (b"chunked foo", 400),
        (b"chun\tked", 400),
        (b"\\x63hunked", 400),
        (b"chunked\x0b", 400),
        (b"\x0cchunked", 400),
        (b"chunked\x00", 400),
        (b"\xa0chunked", 400),
        (b"\xffchunked", 400),
        (b"", 400),
    ],
)
def test_a_transfer_encoding_is_chunked_or_refused(value: bytes, status: int) -> None:
    error = refused(request(b"Transfer-Encoding: " + value, start=b"POST /a HTTP/1.1") + b"0\r\n\r\n" + SMUGGLED)
    assert error.status == status


@pytest.mark.parametrize("value", [b"chunked", b"ChUnKeD", b" \tchunked\t "])
def test_the_coding_ignores_case_and_blanks_around_it(value: bytes) -> None:
    reading = read_requests(
        request(b"Transfer-Encoding:" + value, start=b"POST /a HTTP/1.1") + b"3\r\nabc\r\n0\r\n\r\n"
    )
    assert reading.messages[0].head.body == CHUNKED
    assert reading.messages[0].body == b"abc"
    assert b"ransfer" not in reading.messages[0].head.fields.block


@pytest.mark.parametrize(
    "value",
    [
        b"-5", b"-0", b"+5", b"0x5", b"5 5", b"5,5", b"5, 5", b"5.0", b"5;x", b"5\x0b", b'"5"', b"", b"5_0", b"1e3",
        b"\xd9\xa5", b"\xb2", b"99999999999999999999999999", b"9223372036854775813", b"9007199254740993", b"5" * 5000,
    ],
)  # fmt: skip
def test_a_content_length_is_digits_within_bounds(value: bytes) -> None:
    error = refused(request(b"Content-Length: " + value, start=b"POST /a HTTP/1.1") + b"hello" + SMUGGLED)
    assert error.status == 400


def test_lengths_up_to_the_bound_are_read() -> None:
    data = request(b"Content-Length: \t 9007199254740992 \t", start=b"POST /a HTTP/1.1")
    assert read_requests(data).messages[0].head.body == 2**53


@pytest.mark.parametrize("second", [b"5", b"6", b""])
def test_a_second_content_length_is_refused_even_if_it_agrees(second: bytes) -> None:
    error = refused(request(b"Content-Length: 5", b"content-length: " + second, start=b"POST /a HTTP/1.1") + b"hello")
    assert error.reason == Reason.BAD_FRAMING


def test_a_coding_in_http_1_0_is_refused() -> None:
    error = refused(request(b"Transfer-Encoding: chunked", start=b"POST /a HTTP/1.0") + b"0\r\n\r\n" + SMUGGLED)
    assert (error.status, error.reason) == (400, Reason.BAD_FRAMING)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE", b"BREW"])
def test_content_belongs_to_its_request_whatever_the_method(method: bytes) -> None:
    data = request(b"Content-Length: %d" % len(SMUGGLED), start=method + b" /a HTTP/1.1") + SMUGGLED
    (message,) = read_requests(data).messages
    assert message.body == SMUGGLED
    assert message.is_whole


def test_framing_fields_are_never_among_the_fields() -> None:
    head = read_requests(request(b"Content-Length: 0", b"X-A: 1", start=b"POST /a HTTP/1.1")).head
    assert head.fields.block == b"\r\nX-A: 1"
    assert head.body == 0


@pytest.mark.parametrize(
    "line", [b"Transfer_Encoding: chunked", b"Content_Length: 5", b"content-length_: 5", b"TRANSFER_ENCODING__: x"]
)
def test_a_framing_field_with_an_underscore_ends_the_connection(line: bytes) -> None:
    """For who reads it as the framing, what follows is a body; for others the next request."""
    for others in ((line,), (line, b"X-Y: 1"), (b"X_Y: 1", line), (b"Content-Length: 0", line)):
        error = refused(request(*others) + SMUGGLED)
        assert (error.status, error.reason) == (400, Reason.BAD_FRAMING)


@pytest.mark.parametrize("size", [MAX_NAME, MAX_NAME + 1])
def test_a_field_name_has_a_bound(size: int) -> None:
    for name in (b"a" * size, b"a_" + b"b" * (size - 2)):
        if size <= MAX_NAME:
            assert name in read_requests(request(name + b": 1")).head.fields.block
            continue
        assert "longer than 1024" in refused(request(name + b": 1")).message


@pytest.mark.parametrize(
    ("line", "is_dropped"),
    [
        (b"X_Api_Key: evil", True),
        (b"X-Api_Key: evil", True),
        (b"Authorization_: evil", True),
        (b"Proxy_Authorization: evil", True),
        (b"X_Forwarded_For: evil", True),
        (b"X_Gateway_User: evil", True),
        (b"X-Egress_Identity: evil", True),
        (b"X-Smokescreen_Role_: evil", True),
        (b"session_id: 1", False),
        (b"X-Api-Key: good_one", False),
        (b"Authorization: Bearer a_b", False),
        (b"X-Forwarded-For: a_b", False),
    ],
)
def test_names_that_pass_for_sensitive_ones_by_an_underscore_are_dropped(line: bytes, is_dropped: bool) -> None:
    for others in ((line,), (line, b"X_Y: 1"), (b"X_Y: 1", line)):
        block = read_requests(request(*others)).head.fields.block
        assert (line not in block) == is_dropped
        assert block.count(b"X_Y: 1") == len(others) - 1


def test_a_url_without_a_host_is_refused_where_host_is_missing_too() -> None:
    assert refused(request(start=b"GET http:///a HTTP/1.0", host=b"")).reason is Reason.BAD_TARGET


def test_a_name_of_underscores_is_looked_at_once() -> None:
    began = time.process_time()
    for start in (b"x_forwarded_", b"content_length", b"x_gateway_role"):
        assert "longer than" in refused(request(start + b"_" * 60_000 + b"!: v")).message
        assert read_requests(request(*[start + b"_" * 1000 + b"!: v"] * 60)).head.fields.block
    assert time.process_time() - began < 1.5, "it took seconds where it was looked at anew for each of them"


# --- lines ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data",
    [
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding : chunked\r\nContent-Length: 40\r\n\r\n0\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost : a.example\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost\t: a.example\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 40\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nExpect:\r\n\t100-continue\r\nContent-Length: 35\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-\r\nEncoding: chunked\r\n\r\n",
        b"GET /a HTTP/1.1\r\n Host: a.example\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\n   \r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\rTransfer-Encoding: chunked\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: a\rb\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\n\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nContent-Length 35\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nContent-Length\x85: 35\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX\x01A: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX\xefA: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX A: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX(A): b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\n:\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\n: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: a\x7fb\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: a\x00b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: a\x0bb\r\n\r\n",
    ],
)
def test_a_field_line_that_breaks_the_grammar_is_refused(data: bytes) -> None:
    error = refused(data)
    assert (error.status, error.reason) == (400, Reason.BAD_FIELD)


def test_a_proxy_header_that_nobody_asked_for_is_named():
    error = refused(b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 3128\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (error.status, error.reason) == (400, Reason.BAD_REQUEST_LINE)
    assert "identity.proxyProtocol.from" in str(error)


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        (b"GET\t/a HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET  /a HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a  HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a b HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET  HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b" /a HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GE\x00T /a HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b'G=":<>(e),[T];?" /a HTTP/1.1', 400, Reason.BAD_REQUEST_LINE),
        (b"M" * 33 + b" /a HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"BROKEN", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a HTTP/1.1 ", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a HTTP/1.1x", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a HTTP/1.10", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a HTTP/01.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a HTTP/1,1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a http/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a\rb HTTP/1.1", 400, Reason.BAD_REQUEST_LINE),
        (b"GET /a", 505, Reason.BAD_VERSION),
        (b"GET /a HTTP/0.9", 505, Reason.BAD_VERSION),
        (b"GET /a HTTP/2.0", 505, Reason.BAD_VERSION),
        (b"GET /a HTTP/1.2", 505, Reason.BAD_VERSION),
        (b"PRI * HTTP/2.0", 505, Reason.BAD_VERSION),
        (b"GET /a\xffb HTTP/1.1", 400, Reason.BAD_TARGET),
        (b"GET /\x00 HTTP/1.1", 400, Reason.BAD_TARGET),
        (b"GET /a\x7f HTTP/1.1", 400, Reason.BAD_TARGET),
        (b"GET /a#fragment HTTP/1.1", 400, Reason.BAD_TARGET),
        (b"GET /a\\b HTTP/1.1", 400, Reason.BAD_TARGET),
    ],
)
def test_a_request_line_has_one_reading_or_none(line: bytes, status: int, reason: Reason) -> None:
    error = refused(request(start=line))
    assert (error.status, error.reason) == (status, reason)


@pytest.mark.parametrize("data", [b"GET /a HTTP/1.1\nHost: a.example\n\n", b"GET /a HTTP/1.1\nHost: a.example\r\n\r\n"])
def test_a_bare_line_feed_does_not_end_a_request_line(data: bytes) -> None:
    assert refused(data).reason == Reason.BAD_REQUEST_LINE


@pytest.mark.parametrize("data", [b"GET /a\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET /a HTTP/1.1\r\nHost: x\n", b"\rZ"])
def test_what_can_become_no_request_is_refused_before_its_end(data: bytes) -> None:
    refused(data)


def test_methods_are_kept_as_they_come() -> None:
    assert read_requests(request(start=b"get /a HTTP/1.1")).head.method == b"get"
    assert read_requests(request(start=b"BREW /a HTTP/1.1")).head.method == b"BREW"


def test_four_empty_lines_may_come_first() -> None:
    assert read_requests(b"\r\n" * 4 + request()).head.target == b"/a"
    assert refused(b"\r\n" * 5 + request()).reason == Reason.BAD_REQUEST_LINE


# --- limits --------------------------------------------------------------------------------------------------------
def test_a_long_target_is_414_and_eight_thousand_octets_are_not() -> None:
    error = refused(request(start=b"GET /" + b"a" * 20000 + b" HTTP/1.1"))
    assert (error.status, error.reason) == (414, Reason.TARGET_TOO_LONG)
    assert refused(b"GET /" + b"a" * 20000).status == 414
    assert len(read_requests(request(start=b"GET /" + b"a" * 7999 + b" HTTP/1.1")).head.path) == 8000


def test_a_long_head_and_too_many_fields_are_431() -> None:
    for data in (
        request(b"X-Big: " + b"a" * 70000),
        request(b"X-Big: " + b"a" * 70000)[:66000],
        request(*[b"X-%d: v" % i for i in range(200)]),
    ):
        error = refused(data)
        assert isinstance(error, LimitExceeded)
        assert (error.status, error.reason) == (431, Reason.HEAD_TOO_LARGE)
    assert len(read_requests(request(*[b"X-%d: v" % i for i in range(127)])).head.fields) == 127


def test_limits_are_those_that_were_given() -> None:
    limits = HeadLimits(max_head_bytes=100, max_fields=2, max_target_bytes=10)
    assert read_requests(request(b"X: 1"), limits=limits).error is None
    for data, status in (
        (request(b"X: 1", b"Y: 1"), 431),
        (request(b"X: " + b"1" * 100), 431),
        (request(start=b"GET /1234567890 HTTP/1.1"), 414),
    ):
        error = read_requests(data, limits=limits).error
        assert error is not None
        assert error.status == status


def test_a_connection_field_with_thousands_of_options_is_only_read() -> None:
    options = b",".join(b"x%d" % i for i in range(5000))
    head = read_requests(request(b"Connection: " + options, b"X4999: 1", b"Y: 2")).head
    assert head.fields.block == b"\r\nY: 2"


# --- Host and target -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        b"a b", b"x/y", b"a@b", b"a.example:99999", b"a.example:", b"[::1", b"a.example\x00", b"a#f", b"\xe4.test",
        b"a,b", b"a.example, b.example", b"127.1", b"a..b",
    ],
)  # fmt: skip
def test_an_invalid_host_is_refused(value: bytes) -> None:
    error = refused(request(host=b"Host: " + value))
    assert error.status == 400
    assert error.reason in (Reason.BAD_HOST, Reason.BAD_FIELD)


@pytest.mark.parametrize(
    "start", [b"GET /a HTTP/1.1", b"GET http://a.example/ HTTP/1.1", b"CONNECT a.example:1 HTTP/1.1"]
)
def test_http_1_1_has_exactly_one_host(start: bytes) -> None:
    assert refused(request(start=start, host=b"")).reason == Reason.BAD_HOST
    assert refused(request(b"Host: a.example", start=start)).reason == Reason.BAD_HOST
    assert refused(request(b"Host: b.example", start=start)).reason == Reason.BAD_HOST


def test_http_1_0_has_at_most_one_host() -> None:
    assert read_requests(request(start=b"GET /a HTTP/1.0", host=b"")).head.host == b""
    assert read_requests(request(start=b"GET /a HTTP/1.0")).head.host == b"a.example"
    assert refused(request(b"Host: a.example", start=b"GET /a HTTP/1.0")).reason == Reason.BAD_HOST


def test_origin_form_takes_the_host_field() -> None:
    head = read_requests(request(start=b"GET /a?b=c HTTP/1.1", host=b"HOST:\t a.example:81 ")).head
    assert (head.scheme, head.host) == (b"", b"a.example:81")
    assert (head.path, head.target) == (b"/a?b=c", b"/a?b=c")
    assert head.fields.block == b""


@pytest.mark.parametrize(
    ("target", "scheme", "host", "path"),
    [
        (b"http://b.example/a?q", b"http", b"b.example", b"/a?q"),
        (b"HTTP://b.example:81/", b"http", b"b.example:81", b"/"),
        (b"https://b.example", b"https", b"b.example", b"/"),
        (b"http://b.example?q=1", b"http", b"b.example", b"/?q=1"),
        (b"http://b.example?q=/x", b"http", b"b.example", b"/?q=/x"),
        (b"http://[::1]:81/a", b"http", b"[::1]:81", b"/a"),
        (b"http://b.example//c@d", b"http", b"b.example", b"//c@d"),
    ],
)
def test_absolute_form_is_split_and_host_counts_for_nothing(
    target: bytes, scheme: bytes, host: bytes, path: bytes
) -> None:
    head = read_requests(request(start=b"GET " + target + b" HTTP/1.1", host=b"Host: other.example")).head
    assert (head.scheme, head.host, head.path, head.target) == (scheme, host, path, target)
    assert b"host" not in head.fields


@pytest.mark.parametrize(
    "target",
    [
        b"ftp://a.example/", b"ws://a.example/", b"gopher://a.example:70/_x", b"http:a.example/a", b"http:/a.example/a",
        b"http://:80/a", b"http:///a", b"http://", b"javascript:alert(1)", b"http://a.example:80:80/", b"a.example:80",
        b"a.example", b"*", b"http://user:password@a.example/", b"http://user@a.example", b"http://a.example:0/",
        b"http://127.1/", b"http://0x7f000001/", b"http://2130706433/", b"http://a..b/", b"http://[::1/", b"http://a%2fb/",
    ],
)  # fmt: skip
def test_a_target_that_names_no_http_resource_is_refused(target: bytes) -> None:
    error = refused(request(start=b"GET " + target + b" HTTP/1.1"))
    assert (error.status, error.reason) == (400, Reason.BAD_TARGET)
    assert "password" not in error.message


def test_the_asterisk_belongs_to_options() -> None:
    head = read_requests(request(start=b"OPTIONS * HTTP/1.1")).head
    assert (head.path, head.host) == (b"*", b"a.example")
    assert read_requests(request(start=b"OPTIONS http://a.example HTTP/1.1")).head.path == b"*"
    assert read_requests(request(start=b"OPTIONS http://a.example/ HTTP/1.1")).head.path == b"/"


def test_an_empty_host_is_for_a_target_that_says_it() -> None:
    """RFC 9112 section 3.2: a client sends it where the target URI has no authority."""
    head = read_requests(request(start=b"GET http://a.example/ HTTP/1.1", host=b"Host:")).head
    assert (head.host, head.path) == (b"a.example", b"/")
    assert read_requests(request(host=b"Host: ")).head.host == b""


# --- CONNECT -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host",
    [
        b"Host: a.example:443",
        b"Host: a.example",
        b"Host: A.Example.:443",
        b"Host: a.example:1",
        b"Host: proxy:3128",
        b"Host:",
    ],
)
def test_connect_takes_its_authority_from_the_target(host: bytes) -> None:
    reading = read_requests(request(start=b"CONNECT a.example:443 HTTP/1.1", host=host) + b"\x16\x03")
    assert reading.head.host == reading.head.target == b"a.example:443"
    assert reading.rest == b"\x16\x03"


def test_connect_of_http_1_0_needs_no_host() -> None:
    assert read_requests(request(start=b"CONNECT a.example:443 HTTP/1.0", host=b"")).head.target == b"a.example:443"


@pytest.mark.parametrize(
    "target",
    [
        b"a.example", b"a.example:", b"a.example:0", b"a.example:99999999999", b"a.example:-1", b"a.example:4_43",
        b"a.example:0x1bb", b"a.example:443:443", b"a.example:https", b":443", b"http://a.example:443", b"*", b"/a",
        b"http://a.example/x",
        b"a.example:443/", b"user@a.example:443", b"[::1", b"[a.example]:443", b"[fe80::1%25lo]:443",
        b"*.a.example:443", b"%31%32%37.0.0.1:443", b"127.0.0.1\\@a.example:443", b"a.example#@b:443",
    ],
)  # fmt: skip
def test_connect_takes_host_and_port_and_nothing_else(target: bytes) -> None:
    error = refused(request(start=b"CONNECT " + target + b" HTTP/1.1"))
    assert (error.status, error.reason) == (400, Reason.BAD_TARGET)


def test_connect_has_no_content() -> None:
    start = b"CONNECT a.example:443 HTTP/1.1"
    assert refused(request(b"Content-Length: 35", start=start) + SMUGGLED).reason == Reason.BAD_FRAMING
    assert refused(request(b"Transfer-Encoding: chunked", start=start)).reason == Reason.BAD_FRAMING
    assert read_requests(request(b"Content-Length: 0", start=start)).head.body == 0


# --- fields of this hop --------------------------------------------------------------------------------------------
def test_hop_by_hop_fields_are_taken_out_and_the_others_stay_as_they_came() -> None:
    head = read_requests(
        request(
            b"X-A: 1", b"Connection: keep-alive, X-Hop ,, X-Gone", b"Keep-Alive: timeout=5", b"X-a:2",
            b"Proxy-Connection: keep-alive", b"x-hop: 1", b"TE: trailers", b"Upgrade: foo", b"X-Hopper: 3",
            b"Cookie: a=b", b"HTTP2-Settings: AAMA", b"X-A:\t3 ", b"Trailer: X-Sum",
        )
    ).head  # fmt: skip
    assert head.fields.block == b"\r\nX-A: 1\r\nX-a:2\r\nX-Hopper: 3\r\nCookie: a=b\r\nX-A:\t3 \r\nTrailer: X-Sum"
    assert head.fields.get_all(b"x-a") == [b"1", b"2", b"3"]
    assert (head.upgrade, head.te_trailers, head.connection_close) == (b"", False, False)


def test_proxy_authorization_is_for_us_alone() -> None:
    head = read_requests(request(b"PROXY-authorization: Basic eDp5", b"Authorization: Bearer t")).head
    assert head.proxy_authorization == b"Basic eDp5"
    assert head.fields.block == b"\r\nAuthorization: Bearer t"
    assert "eDp5" not in repr(head)
    twice = read_requests(request(b"Proxy-Authorization: Basic a", b"proxy-authorization: Basic b")).head
    assert twice.proxy_authorization == b"Basic a, Basic b"
    assert twice.fields.block == b""


@pytest.mark.parametrize(
    ("value", "is_close"),
    [(b"close", True), (b"foo , ClOsE", True), (b"keep-alive", False), (b"Keep-Alive, Foo", False), (b"closed", False)],
)
def test_connection_close_is_an_option_in_any_case(value: bytes, is_close: bool) -> None:
    assert read_requests(request(b"Connection: " + value)).head.connection_close is is_close


def test_http_1_0_connections_never_persist() -> None:
    head = read_requests(request(b"Connection: keep-alive", start=b"GET /a HTTP/1.0")).head
    assert head.http_1_0
    assert head.connection_close


@pytest.mark.parametrize("name", [b"Content-Length", b"Transfer-Encoding", b"Host", b"Via", b"Expect"])
def test_naming_a_framing_field_in_connection_takes_nothing_from_the_framing(name: bytes) -> None:
    data = request(
        b"Connection: close, " + name, b"Content-Length: 5", b"Via: 1.1 x", b"Expect: 100-continue",
        start=b"POST /a HTTP/1.1",
    )  # fmt: skip
    (message,) = read_requests(data + b"hello").messages
    assert message.body == b"hello"
    assert message.head.host == b"a.example"  # type: ignore[union-attr]
    assert message.head.via == b"1.1 x"
    assert message.head.expect_continue  # type: ignore[union-attr]


def test_an_option_that_is_no_token_is_refused() -> None:
    assert refused(request(b'Connection: "close"')).reason == Reason.BAD_FIELD
    assert refused(request(b"Connection: a b")).reason == Reason.BAD_FIELD


def test_via_is_kept_apart() -> None:
    head = read_requests(request(b"Via: 1.0 a", b"X: 1", b"via: 1.1 b, 1.1 c")).head
    assert head.via == b"1.0 a, 1.1 b, 1.1 c"
    assert head.fields.block == b"\r\nX: 1"


def test_te_trailers_counts_where_connection_lists_it() -> None:
    assert read_requests(request(b"TE: gzip, Trailers", b"Connection: TE")).head.te_trailers
    assert not read_requests(request(b"TE: gzip", b"Connection: TE")).head.te_trailers


@pytest.mark.parametrize(
    ("lines", "upgrade"),
    [
        ((b"Connection: Upgrade", b"Upgrade: websocket"), b"websocket"),
        ((b"Connection: keep-alive, upgrade", b"Upgrade: WebSocket"), b"WebSocket"),
        ((b"Connection: Upgrade", b"Upgrade: h2c, websocket"), b"websocket"),
        ((b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"), b""),
        ((b"Connection: Upgrade", b"Upgrade: TLS/1.0, HTTP/2.0"), b""),
        ((b"Upgrade: websocket",), b""),
        ((b"Connection: Upgrade",), b""),
        ((b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 5"), b""),
        ((b"Connection: Upgrade", b"Upgrade: websocket", b"Transfer-Encoding: chunked"), b""),
    ],
)
def test_an_upgrade_is_asked_for_in_full_or_ignored(lines: tuple[bytes, ...], upgrade: bytes) -> None:
    (message,) = read_requests(request(*lines)).messages
    assert message.head.upgrade == upgrade
    assert message.head.fields.block == b""


def test_protocols_to_upgrade_to_are_few() -> None:
    offered = b", ".join(b"p%d" % number for number in range(64))
    assert read_requests(request(b"Connection: Upgrade", b"Upgrade: " + offered)).head.upgrade == offered
    fault = refused(request(b"Connection: Upgrade", b"Upgrade: " + offered, b"Upgrade: one-more"))
    assert (fault.status, fault.reason) == (400, Reason.BAD_FIELD)
    assert "64 protocols" in fault.message


def test_an_upgrade_in_http_1_0_is_ignored() -> None:
    data = request(b"Connection: Upgrade", b"Upgrade: websocket", start=b"GET /a HTTP/1.0")
    assert read_requests(data).head.upgrade == b""


@pytest.mark.parametrize(
    ("version", "value", "length", "is_expected"),
    [
        (b"1.1", b"100-continue", 5, True),
        (b"1.1", b"100-Continue", 5, True),
        (b"1.1", b"100-continue", 0, False),
        (b"1.0", b"100-continue", 5, False),
        (b"1.1", b"y 100-continue", 5, False),
        (b"1.1", b"teapot", 5, False),
    ],
)
def test_the_one_known_expectation_passes_and_no_other(
    version: bytes, value: bytes, length: int, is_expected: bool
) -> None:
    data = request(
        b"Expect: " + value, b"Content-Length: %d" % length, b"X: 1", start=b"POST /a HTTP/" + version
    )  # fmt: skip
    (message,) = read_requests(data).messages
    assert message.head.expect_continue is is_expected  # type: ignore[union-attr]
    assert (message.head.fields.get(b"expect") == b"100-continue") is is_expected
    assert message.head.fields.get(b"x") == b"1"


def test_max_forwards_is_read_for_trace_and_options_only() -> None:
    head = read_requests(request(b"Max-Forwards: 5", b"X: 1", start=b"OPTIONS /a HTTP/1.1")).head
    assert (head.max_forwards, head.fields.block) == (5, b"\r\nX: 1")
    head = read_requests(request(b"Max-Forwards: 5")).head
    assert (head.max_forwards, head.fields.block) == (-1, b"\r\nMax-Forwards: 5")
    for lines in ((b"Max-Forwards: x",), (b"Max-Forwards: -1",), (b"Max-Forwards: 1", b"Max-Forwards: 2")):
        assert refused(request(*lines, start=b"TRACE /a HTTP/1.1")).reason == Reason.BAD_FIELD


def test_fields_that_claim_an_identity_are_never_passed_on():
    lines = (b"X-Forwarded-Client-Cert: x", b"X-Gateway-Role: admin", b"X-Forwarded-For: y")
    (message,) = read_requests(request(*lines)).messages
    assert list(message.head.fields) == [(b"x-forwarded-for", b"y")]
