"""What readers remember of the heads before: it may never show in what they read, and never outlive its connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.errors import GatewayError
from egressproxy.model.fields import CutLines, Fields, every_spelling
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.protocols.http1 import head_grammar, request_head, response_head
from egressproxy.protocols.http1.chunked import EndOfMessage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.head_grammar import MAX_REMEMBERED, MAX_SHARED, PLACES, HeadGrammar
from tests.support.properties import examples

LIMITS = HeadLimits(max_head_bytes=2048, max_fields=12, max_target_bytes=256)
CUTS = (every_spelling(("x-a",)), every_spelling(("x-b", "cookie")))

LINES = st.sampled_from(
    [
        b"GET /a HTTP/1.1",
        b"GET /a HTTP/1.0",
        b"GET /ab HTTP/1.1",
        b"POST /a HTTP/1.1",
        b"GET http://b.example/ HTTP/1.1",
        b"CONNECT a.example:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /" + b"a" * 300 + b" HTTP/1.1",
        b"GET /a HTTP/1.2",
    ]
)
STATUS_LINES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 200 ",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 404 No",
        b"HTTP/1.1 2000",
    ]
)
FIELDS = st.sampled_from(
    [
        b"Host: a.example",
        b"Host: b.example",
        b"host:a.example",
        b"Content-Length: 0",
        b"Content-Length: 00",
        b"Connection: close",
        b"Connection: x-a",
        b"Proxy-Authorization: Basic YQ==",
        b"Via: 1.1 y",
        b"X-A: 1",
        b"x-a: 2",
        b"X_A: 3",
        b"X-B: " + b"b" * 200,
        b"X-B: " + b"b" * 600,
        b"Cookie: \xe9",
        b"Bad : 1",
        b"Bad: \x00",
        b" folded: 1",
        b"X-C:",
        b"Transfer-Encoding: chunked",
        b"TE: trailers",
        b"Upgrade: a",
        b"WWW-Authenticate: NTLM a",
    ]
)
SECTIONS = st.lists(FIELDS, max_size=7)


def heads(lines: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Heads of few kinds, one after the other, so that many come again."""
    head = st.builds(lambda line, fields: b"\r\n".join([line, *fields]) + b"\r\n\r\n", lines, SECTIONS)
    return st.lists(head, min_size=1, max_size=3).flatmap(
        lambda some: st.lists(st.sampled_from(some), min_size=2, max_size=8)
    )


def said(event: object) -> object:
    """What a head says, with what two filters and their like make of its fields."""
    if not isinstance(event, RequestHead | ResponseHead):
        return event
    block = event.fields.block
    for cut in CUTS:
        event.fields.cut(cut)
    event.fields.block += b"\r\nX-B: ours"
    event.fields.cut(CUTS[0])
    rest = event.fields.block
    event.fields.remove(b"x-b")
    if isinstance(event, RequestHead):
        hop = event.hop
        more: tuple[object, ...] = (
            event.method, event.target, event.path, event.host, event.scheme, str(event.authority), hop.via,
            hop.proxy_authorization, hop.expects_continue, hop.te_trailers, hop.upgrade, event.connection_close,
            sorted(hop.named),
        )  # fmt: skip
    else:
        more = event.status, event.phrase, event.http_1_0, event.connection_close, event.upgrade, event.via
    return type(event).__name__, event.body, block, rest, event.fields.block, more


def request_of(reader: RequestReader, head: bytes, cut: int) -> object:
    return outcome(reader, lambda: None, head, cut)


def response_of(reader: ResponseReader, head: bytes, cut: int) -> object:
    return outcome(reader, lambda: reader.expect(b"HEAD"), head, cut)


def outcome(reader: RequestReader | ResponseReader, prepare: Callable[[], None], head: bytes, cut: int) -> object:
    try:
        prepare()
        if 0 < cut < len(head):
            reader.feed(head[:cut])
            early = reader.next()
            if early is not None:
                return said(early)
            reader.feed(head[cut:])
        else:
            reader.feed(head)
        return said(reader.next())
    except GatewayError as error:
        return type(error), error.reason, str(error)


LONG = b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-C: " + b"c" * 200 + b"\r\nX-A: %d\r\n\r\n"
LONG_RESPONSE = b"HTTP/1.1 200 OK\r\nX-C: " + b"c" * 200 + b"\r\nX-A: %d\r\n\r\n"


@settings(max_examples=examples(400), deadline=None)
@given(heads(LINES), st.lists(st.integers(0, 120), min_size=8, max_size=8))
@example(
    [b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: 1\r\n\r\n"] * 3,
    [0] * 8,
)
@example(
    [b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: 1\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n"] * 3,
    [0] * 8,
)
@example([b"GET /a HTTP/1.0\r\nHost: a.example\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n"] * 3, [9] * 8)
@example([LONG % number for number in (1, 2, 2, 3, 10, 9, 9, 10)], [0] * 8)
def test_a_request_is_read_as_by_a_reader_that_knows_none(some: list[bytes], cuts: list[int]) -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    reader = RequestReader(LIMITS, grammar)
    for head, cut in zip(some, cuts, strict=False):
        fresh = RequestReader(LIMITS, request_head.new_request_grammar(LIMITS))
        expected = request_of(fresh, head, cut)
        assert request_of(reader, head, cut) == expected
        if reader.buffered() or not is_read(reader):  # refused, or with a body: another one goes on
            reader = RequestReader(LIMITS, grammar)


@settings(max_examples=examples(400), deadline=None)
@given(heads(STATUS_LINES), st.lists(st.integers(0, 120), min_size=8, max_size=8))
@example([b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n"] * 3, [0] * 8)
@example([LONG_RESPONSE % number for number in (1, 2, 2, 3, 10, 9, 9, 10)], [0] * 8)
def test_a_response_is_read_as_by_a_reader_that_knows_none(some: list[bytes], cuts: list[int]) -> None:
    grammar = response_head.new_response_grammar(LIMITS)
    reader = ResponseReader(LIMITS, grammar)
    for head, cut in zip(some, cuts, strict=False):
        fresh = ResponseReader(LIMITS, response_head.new_response_grammar(LIMITS))
        expected = response_of(fresh, head, cut)
        assert response_of(reader, head, cut) == expected
        if not is_read(reader):
            reader = ResponseReader(LIMITS, grammar)


def is_read(reader: RequestReader | ResponseReader) -> bool:
    """Whether the message is over, and another one may follow."""
    try:
        if isinstance(reader, ResponseReader):
            return type(reader.next()) is EndOfMessage
        return repr(reader) == "RequestReader(IN_HEAD, buffered=0)"
    except GatewayError:
        return False


def test_more_readers_than_places_read_their_own() -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    readers = [RequestReader(LIMITS, grammar) for _ in range(PLACES + 3)]
    for turn in range(3):
        for number, reader in enumerate(readers):
            reader.feed(b"GET /%d HTTP/1.1\r\nHost: a.example\r\nX-Reader: %d\r\n\r\n" % (turn // 2, number))
            head = reader.next()
            assert isinstance(head, RequestHead)
            assert (head.path, head.fields.get(b"x-reader")) == (b"/%d" % (turn // 2), b"%d" % number)


def held(reader: RequestReader | ResponseReader, grammar: HeadGrammar[object]) -> bytes:
    """All bytes that are remembered."""
    sections = [place for place in grammar._at_places if place.text != b"-"]
    texts = [reader._line, *reader._line_parts, *reader._hop_fields]
    for section in sections:
        texts += [section.text, section.block, *section.hop_fields]
        for _, before, after in (section.cut_lines or {}).values():
            texts += [before, after]
    for fields, _ in grammar._hops:
        texts += fields
    return b"".join(texts)


SECRET = b"GET /s3cret HTTP/1.1\r\nHost: s3cret.example\r\nProxy-Authorization: s3cret\r\nX-Key: s3cret\r\n\r\n"


def test_nothing_of_a_connection_that_is_over_is_remembered() -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    reader = RequestReader(LIMITS, grammar)
    for is_over in (False, True):
        for _ in range(3):
            reader.feed(SECRET)
            head = reader.next()
            assert isinstance(head, RequestHead)
            assert (head.path, head.fields.get(b"x-key")) == (b"/s3cret", b"s3cret")
            assert head.hop.proxy_authorization == b"s3cret"
            head.fields.cut(CUTS[0])
        assert (b"s3cret" in held(reader, grammar)) is not is_over, "a head that follows is not remembered either"
        reader.forget()
        assert b"s3cret" not in held(reader, grammar)
        assert reader._hop.proxy_authorization == b""


def test_fields_of_a_head_that_is_kept_for_a_tunnel_are_let_go() -> None:
    known: CutLines = {}
    fields = Fields(b"\r\nX-A: 1\r\nX-Key: s3cret", known)
    fields.cut(CUTS[0])
    assert known
    fields.forget()
    assert (fields.block, fields._cut_lines) == (b"", None)


@pytest.mark.parametrize(
    "write",
    [
        lambda fields: fields.add(b"authorization", b"Bearer s3cret"),
        lambda fields: fields.set(b"authorization", b"Bearer s3cret"),
        lambda fields: setattr(fields, "block", fields.block + b"\r\nAuthorization: Bearer s3cret"),
    ],
    ids=["add", "set", "block"],
)
def test_a_credential_that_is_injected_is_not_remembered(write: Callable[[Fields], None]) -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    reader = RequestReader(LIMITS, grammar)
    for _ in range(3):
        reader.feed(b"GET /a HTTP/1.1\r\nHost: a.example\r\nAuthorization: placeholder\r\n\r\n")
        head = reader.next()
        assert isinstance(head, RequestHead)
        head.fields.remove(b"authorization")
        write(head.fields)
        head.fields.cut(CUTS[0])
        head.fields.remove(b"x-b")
        assert list(head.fields) == [(b"authorization", b"Bearer s3cret")]
    assert b"placeholder" in held(reader, grammar)
    assert b"s3cret" not in held(reader, grammar)


@pytest.mark.parametrize(
    "field",
    [b"Proxy-Authorization: Basic czNjcmV0", b"Via: 1.1 s3cret", b"X-Egress-Identity: s3cret", b"Upgrade: s3cret"],
)
def test_what_may_be_a_credential_is_known_to_no_other_connection(field: bytes) -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    for reader in (RequestReader(LIMITS, grammar), RequestReader(LIMITS, grammar)):
        reader.feed(b"GET /a HTTP/1.1\r\nHost: a.example\r\n%b\r\n\r\n" % field)
        assert isinstance(reader.next(), RequestHead)
        assert not any(fields for fields, _ in grammar._hops)
        reader.forget()
    plain = RequestReader(LIMITS, grammar)
    plain.feed(b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n")
    head = plain.next()
    assert isinstance(head, RequestHead)
    assert (head.hop.proxy_authorization, head.hop.via, head.hop.egress_identity, head.hop.upgrade) == (b"",) * 4


def test_what_hosts_mean_is_known_to_all_connections_and_bounded() -> None:
    grammar = request_head.new_request_grammar(LIMITS)
    for number in range(3 * MAX_SHARED):
        reader = RequestReader(LIMITS, grammar)
        reader.feed(b"GET /a HTTP/1.1\r\nHost: h%d.example\r\nContent-Length: %d\r\n\r\n" % (number // 2, number // 2))
        head = reader.next()
        assert isinstance(head, RequestHead)
        assert (head.host, head.body) == (b"h%d.example" % (number // 2), number // 2)
        assert 0 < len(grammar._hops) <= MAX_SHARED
    long = RequestReader(LIMITS, grammar)
    known = len(grammar._hops)
    long.feed(b"GET /a HTTP/1.1\r\nHost: a.example\r\nConnection: %b\r\n\r\n" % (b"a" * head_grammar.MAX_SHARED_BYTES))
    assert isinstance(long.next(), RequestHead)
    assert len(grammar._hops) == known


def test_long_heads_are_read_each_time_and_not_remembered() -> None:
    limits = HeadLimits(max_target_bytes=8192)
    grammar = request_head.new_request_grammar(limits)
    reader = RequestReader(limits, grammar)
    for _ in range(3):
        reader.feed(
            b"GET /%b HTTP/1.1\r\nHost: a.example\r\nX-A: %b\r\n\r\n" % (b"p" * MAX_REMEMBERED, b"q" * MAX_REMEMBERED)
        )
        assert isinstance(reader.next(), RequestHead)
        assert len(held(reader, grammar)) < 100


BLOCKS = st.lists(
    st.sampled_from([b"\r\nX-A: 1", b"\r\nx_a: 2", b"\r\nX-B: 3", b"\r\nCookie: 4", b"\r\nX-C: 5"]), max_size=5
)
PATTERNS = [every_spelling((name,)) for name in ("x-a", "x-b", "x-c", "cookie", "x-d")]


@given(st.lists(BLOCKS, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=12))
def test_lines_are_cut_as_where_nothing_is_remembered(blocks: list[list[bytes]], cuts: list[tuple[int, int]]) -> None:
    known: CutLines = {}
    texts = [b"".join(block) for block in blocks]
    for block, pattern in cuts:
        text = texts[block % len(texts)]
        remembering, plain = Fields(text, known), Fields(text)
        for fields in (remembering, plain):
            fields.cut(PATTERNS[pattern])
            fields.cut(PATTERNS[pattern - 1])
            fields.block += b"\r\nX-A: added"
            fields.cut(PATTERNS[0])
        assert remembering.block == plain.block
        assert len(known) <= 4
