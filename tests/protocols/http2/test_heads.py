"""Field lists of HTTP/2: every list that RFC 9113 calls malformed is refused, and what is read is what HTTP/1 says."""

from __future__ import annotations

from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, ResponseHead
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http1.request_head import HOP_NAMES, split_hop_fields
from egressproxy.protocols.http2.field_coding import FieldDecoder
from egressproxy.protocols.http2.head_fields import ResponseHeads
from egressproxy.protocols.http2.heads import RequestFieldsReader, read_response_fields
from egressproxy.protocols.http2.remembered_fields import FieldList, RememberedFields
from tests.support.attributes import attributes

GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/a?b"), (b":authority", b"a.example")]
CONNECT = [(b":method", b"CONNECT"), (b":authority", b"a.example:443")]
OK = [(b":status", b"200")]
LIMITS = HeadLimits()
#: A block, what came in Via, a length, and whether the response has a body.
RESPONSES = [
    (b"\r\nServer: a\r\nDate: now", b"", 5, True),
    (b"\r\nServer: a\r\nDate: now", b"", 5, False),
    (b"\r\nServer: a\r\nDate: now", b"1.0 other", CHUNKED, True),
    (b"\r\nServer: a", b"1.0 other", 0, True),
    (b"\r\nX-Long: " + b"a" * 2000, b"", 7, True),
    (b"", b"", 5, True),
]


def reader(*, is_forward: bool = False, limits: HeadLimits = LIMITS) -> RequestFieldsReader:
    return RequestFieldsReader(limits, is_forward=is_forward)


def with_field(name: bytes, value: bytes, fields: FieldList = GET) -> FieldList:
    return [*fields, (name, value)]


def replaced(name: bytes, value: bytes | None) -> FieldList:
    return [(n, value if n == name else v) for n, v in GET if n != name or value is not None]  # type: ignore[misc]


def test_a_request_reads_as_in_http1():
    head = reader().read([*GET, (b"accept", b"*/*"), (b"x-a", b"")], ends_stream=True)
    assert (head.method, head.path, head.host, head.body) == (b"GET", b"/a?b", b"a.example", 0)
    assert head.scheme == b""
    assert head.fields.block == b"\r\naccept: */*\r\nx-a: "


def test_on_a_forward_proxy_it_names_its_destination():
    head = reader(is_forward=True).read(GET, ends_stream=True)
    assert (head.scheme, head.host) == (b"https", b"a.example")


def test_connect_names_host_and_port():
    head = reader(is_forward=True).read(CONNECT, ends_stream=False)
    assert (head.target, head.path) == (b"a.example:443", b"a.example:443")


def test_crumbs_of_a_cookie_are_one_field_where_the_first_stood():
    fields = [*GET, (b"cookie", b"a=1"), (b"x-a", b"b"), (b"cookie", b"c=2")]
    assert reader().read(fields, ends_stream=True).fields.block == b"\r\ncookie: a=1; c=2\r\nx-a: b"


def test_host_alone_is_enough_and_beside_authority_has_to_say_the_same():
    assert (
        reader().read([*replaced(b":authority", None), (b"host", b"b.example")], ends_stream=True).host == b"b.example"
    )
    assert reader().read([*GET, (b"host", b"A.example")], ends_stream=True).host == b"a.example"


@pytest.mark.parametrize(
    ("fields", "ends_stream", "body"),
    [
        (GET, True, 0),
        (GET, False, CHUNKED),
        (with_field(b"content-length", b"5"), False, 5),
        (with_field(b"content-length", b"0"), True, 0),
    ],
)
def test_how_the_body_ends(fields: FieldList, ends_stream: bool, body: int):
    assert reader().read(fields, ends_stream=ends_stream).body == body


def test_te_and_via_are_of_the_hop():
    head = reader().read([*GET, (b"te", b"trailers"), (b"via", b"2 other")], ends_stream=True)
    assert (head.te_trailers, head.via, head.fields.block) == (True, b"2 other", b"")


def test_what_would_speak_for_an_identity_is_dropped():
    head = reader().read([*GET, (b"x-egress-identity", b"root"), (b"x_egress_identity", b"root")], ends_stream=True)
    assert head.fields.block == b""


MALFORMED_REQUESTS: dict[str, FieldList] = {
    "a length with an underscore": [*GET, (b"content_length", b"1")],
    "a name of 1,025 bytes": [*GET, (b"a" * 1025, b"1")],
    "a request line in the method": replaced(b":method", b"GET /smuggled HTTP/1.1"),
    "an empty method": replaced(b":method", b""),
    "no method": replaced(b":method", None),
    "a long method": replaced(b":method", b"A" * 33),
    "a space in the path": replaced(b":path", b"/a b"),
    "a path without slash": replaced(b":path", b"a"),
    "an absolute path": replaced(b":path", b"http://b.example/"),
    "an asterisk and GET": replaced(b":path", b"*"),
    "an empty path": replaced(b":path", b""),
    "no path": replaced(b":path", None),
    "a fragment": replaced(b":path", b"/a#b"),
    "a line in the path": replaced(b":path", b"/ HTTP/1.1\r\nX: y"),
    "a scheme that is a URL": replaced(b":scheme", b"http://internal.test/x?"),
    "no scheme": replaced(b":scheme", None),
    "ftp": replaced(b":scheme", b"ftp"),
    "userinfo": replaced(b":authority", b"a@b.example"),
    "a path in the authority": replaced(b":authority", b"a.example/b"),
    "an empty authority": replaced(b":authority", b""),
    "no authority": replaced(b":authority", None),
    "a line in the authority": replaced(b":authority", b"a.example\r\nX: y"),
    "another host": with_field(b"host", b"b.example"),
    "two hosts": [*GET, (b"host", b"a.example"), (b"host", b"a.example")],
    "a pseudo-field twice": [*GET[:1], *GET],
    "a pseudo-field of responses": [*GET, (b":status", b"200")],
    "an unknown pseudo-field": [*GET, (b":protocol", b"websocket")],
    "a pseudo-field behind a field": [(b"a", b"b"), *GET],
    "a late pseudo-field": [*GET, (b"a", b"b"), (b":path", b"/")],
    "an upper case name": with_field(b"X-A", b"b"),
    "an empty name": with_field(b"", b"b"),
    "a colon in a name": with_field(b"a: b", b"c"),
    "a space in a name": with_field(b"a b", b"c"),
    "a line in a name": with_field(b"a\r\nb", b"c"),
    "a line feed in a name": with_field(b"a\nb", b"c"),
    "NUL in a name": with_field(b"a\0", b"c"),
    "a line in a value": with_field(b"a", b"b\r\nx: y"),
    "a line feed in a value": with_field(b"a", b"b\nx: y"),
    "a carriage return in a value": with_field(b"a", b"b\rc"),
    "NUL in a value": with_field(b"a", b"b\0c"),
    "DEL in a value": with_field(b"a", b"b\x7fc"),
    "a blank before a value": with_field(b"a", b" b"),
    "a blank behind a value": with_field(b"a", b"b\t"),
    "connection": with_field(b"connection", b"close"),
    "transfer-encoding": with_field(b"transfer-encoding", b"chunked"),
    "keep-alive": with_field(b"keep-alive", b"5"),
    "upgrade": with_field(b"upgrade", b"h2c"),
    "proxy-connection": with_field(b"proxy-connection", b"keep-alive"),
    "te": with_field(b"te", b"gzip"),
    "two lengths": [*GET, (b"content-length", b"0"), (b"content-length", b"0")],
    "a signed length": with_field(b"content-length", b"+0"),
    "a length and no content": with_field(b"content-length", b"10"),
    "CONNECT with a path": [*CONNECT, (b":path", b"/")],
    "CONNECT with a scheme": [*CONNECT, (b":scheme", b"https")],
    "CONNECT without port": [(b":method", b"CONNECT"), (b":authority", b"a.example")],
    "CONNECT without authority": [(b":method", b"CONNECT"), (b"host", b"a.example:443")],
}


@pytest.mark.parametrize("is_forward", [False, True])
@pytest.mark.parametrize("fields", MALFORMED_REQUESTS.values(), ids=MALFORMED_REQUESTS)
def test_malformed_requests_are_refused(fields: FieldList, is_forward: bool):
    with pytest.raises(Malformed) as refused:
        reader(is_forward=is_forward).read(fields, ends_stream=True)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("fields", "limits", "status"),
    [
        ([*GET, *[(b"a", b"b")] * 6], HeadLimits(max_fields=5), 431),
        (with_field(b"a", b"b" * 5000), HeadLimits(max_head_bytes=4096), 431),
        (replaced(b":path", b"/" + b"a" * 100), HeadLimits(max_target_bytes=64), 414),
    ],
)
def test_limits_of_heads(fields: FieldList, limits: HeadLimits, status: int):
    with pytest.raises(Malformed) as refused:
        reader(limits=limits).read(fields, ends_stream=True)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("fields", "method", "ends_stream", "body"),
    [
        (OK, b"GET", True, 0),
        (OK, b"GET", False, CHUNKED),
        (with_field(b"content-length", b"5", OK), b"GET", False, 5),
        (with_field(b"content-length", b"5", OK), b"HEAD", True, 0),
        ([(b":status", b"204")], b"GET", True, 0),
        ([(b":status", b"103")], b"GET", False, 0),
    ],
)
def test_responses(fields: FieldList, method: bytes, ends_stream: bool, body: int):
    head = read_response_fields(fields, HeadLimits(), method, ends_stream=ends_stream)
    assert (head.body, head.connection_close) == (body, False)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b":status", b"20")],
        [(b":status", b"2000")],
        [(b":status", b"abc")],
        [(b":status", b"099")],
        [(b":status", b"101")],
        [*OK, (b":path", b"/")],
        [*OK, *OK],
        with_field(b"connection", b"close", OK),
        with_field(b"transfer-encoding", b"chunked", OK),
        with_field(b"A", b"b", OK),
        with_field(b"a", b"b\r\nc: d", OK),
        with_field(b"content-length", b"5", OK),
        with_field(b"content-length", b"+5", OK),
    ],
)
def test_malformed_responses_are_refused(fields: FieldList):
    with pytest.raises(Malformed):
        read_response_fields(fields, HeadLimits(), b"GET", ends_stream=True)


@pytest.mark.parametrize("is_forward", [False, True])
@pytest.mark.parametrize("ends_stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        [*GET, (b"accept", b"*/*"), (b"via", b"1.1 a"), (b"cookie", b"a"), (b"cookie", b"b"), (b"te", b"trailers")],
        [*GET, (b"content-length", b"0")],
        [*GET, (b"expect", b"100-continue"), (b"proxy-authorization", b"Basic eA==")],
        [*replaced(b":method", b"OPTIONS"), (b"max-forwards", b"3")],
        CONNECT,
    ],
)
def test_what_is_remembered_is_read_as_it_was(fields: FieldList, *, ends_stream: bool, is_forward: bool):
    """What a filter changes in one head is not in the next."""

    def said(head: object) -> dict[str, object]:
        found = attributes(head)
        block = found.pop("fields").block  # type: ignore[attr-defined]
        return {name: value for name, value in found.items() if name != "hop"} | {"block": block}

    ours, remembered = reader(is_forward=is_forward), RememberedFields(fields)
    plain = said(reader(is_forward=is_forward).read(fields, ends_stream=ends_stream))
    for _ in range(3):
        head = ours.read(remembered, ends_stream=ends_stream)
        assert {**said(head), "authority": str(head.authority)} == {**plain, "authority": str(plain["authority"])}
        head.fields.add(b"x-filter", b"was here")
        head.path = head.host = b"changed"
        ours.read([*GET, (b"via", b"1.1 other")], ends_stream=True)
    other = said(reader(is_forward=is_forward).read(fields, ends_stream=not ends_stream))
    head = ours.read(remembered, ends_stream=not ends_stream)
    assert {**said(head), "authority": ""} == {**other, "authority": ""}


def test_what_is_refused_is_refused_again():
    ours, remembered = reader(), RememberedFields([*GET, (b"connection", b"close")])
    for _ in range(2):
        with pytest.raises(Malformed):
            ours.read(remembered, ends_stream=True)
    known = RememberedFields([*GET, (b"content-length", b"5")])
    assert ours.read(known, ends_stream=False).body == 5
    with pytest.raises(Malformed):
        ours.read(known, ends_stream=True)


@given(st.lists(st.sampled_from(RESPONSES), max_size=8))
def test_heads_that_repeat_have_the_code_of_those_that_do_not(responses: list[tuple[bytes, bytes, int, bool]]):
    ours = ResponseHeads()
    for block, via, length, has_body in responses:
        head = ResponseHead(200, b"OK", Fields(block))
        head.via, head.body = via, length
        date = [] if b"ate" in block else [(b"date", ANY)]
        expected = [
            *OK,
            (b"via", via + b", 1.1 gw" if via else b"1.1 gw"),
            *Fields(block),
            *([(b"content-length", b"%d" % length)] if has_body and length >= 0 else []),
            *date,
        ]
        assert FieldDecoder(100, 10_000).decode(ours.code(head, b"gw", has_body=has_body)) == expected


@pytest.mark.parametrize(("block", "via"), [(b"\r\nX-Long: " + b"a" * 2000, b""), (b"", b"1.1 " + b"a" * 2000)])
def test_nothing_long_of_a_response_is_kept(block: bytes, via: bytes):
    ours = ResponseHeads()
    head = ResponseHead(200, b"OK", Fields(block))
    head.via = via
    ours.code(head, b"gw", has_body=False)
    assert b"aaaa" not in repr(attributes(ours)).encode()


@given(
    st.sampled_from(sorted(HOP_NAMES)) | st.text("-acehikopstvx", min_size=1, max_size=12).map(str.encode),
    st.integers(0, 40),
    st.sampled_from([b"", b"-", b"x"]),
)
def test_no_field_of_the_hop_is_in_heads_that_are_not_searched_for_one(name: bytes, cut: int, more: bytes):
    name = name[:cut] + more + name[cut:]
    if name not in HOP_NAMES:
        block = b"\r\n%b: 1" % name
        assert split_hop_fields(block) == (block, ())
