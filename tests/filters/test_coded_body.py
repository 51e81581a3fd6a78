"""Bodies in a content coding, through filters that want them without; and what heads and trailers say of the result.

RFC 9110 sections 8.8 (validators), 9.3.2 (HEAD), 15.3.7 (parts), 15.4.5 (304); RFC 9530.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import brotli
import pytest
import zstandard

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters import BodyMode, Exchange, Filter, Phase, Rejected
from egressproxy.filters.body_plan import BodyPath, BodyPlan, path_of
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.filter_step import FilterAnswered, FilterStep
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead

TEXT = b"a body in a content coding. " * 9
CODERS: dict[bytes, tuple[Any, Any]] = {
    b"gzip": (gzip.compress, gzip.decompress),
    b"deflate": (zlib.compress, zlib.decompress),
    b"br": (brotli.compress, brotli.decompress),
    b"zstd": (zstandard.compress, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
}
MODES = pytest.mark.parametrize("mode", list(BodyMode))
PHASES = pytest.mark.parametrize("phase", [Phase.REQUEST_BODY, Phase.RESPONSE_BODY])
ABOUT = [(b"content-md5", b"x"), (b"Digest", b"y"), (b"Repr-Digest", b"z"), (b"Accept-Ranges", b"bytes")]
#: Grows to more than a hundred times its size.
BOMB = gzip.compress(bytes(8 * 1024 * 1024))


class Reader(Filter):
    """Does `act` with each decoded piece."""

    decodes = True

    def __init__(self, mode: BodyMode, act: Any = bytes.upper, *, only_reads: bool = False) -> None:
        self.body_mode = mode  # type: ignore[misc]
        self.act = act
        self.only_reads = only_reads
        self.seen = bytearray()

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        self.seen += data
        return self.act(data)

    response_body = request_body


def planned(reader: Filter, phase: Phase, *, opens: bool = False) -> BodyPlan:
    made = ConfiguredFilter(ExtensionIR("f", "test/Any:v1", phase.value, fail_open=opens), reader)
    return BodyPlan((FilterStep(made, phase, ()),), phase)


def begun(coding: bytes, *, status: int = 200, more: tuple[tuple[bytes, bytes], ...] = ()) -> Exchange:
    """An exchange whose request and response are in this coding."""
    x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    fields = [(b"content-encoding", coding)] if coding else []
    x.request = RequestHead(b"POST", b"/", Fields.of([*fields, *ABOUT, *more]))
    x.response = ResponseHead(status, b"OK", Fields.of([*fields, (b"etag", b'"x"'), *ABOUT]))
    return x


def sent(reader: Filter, phase: Phase, x: Exchange, body: bytes, *, cut: int = 7, opens: bool = False) -> bytes | None:
    """What goes on of a body that comes in pieces; None: it passes unread."""
    chain = planned(reader, phase, opens=opens).begin(x)
    if chain is None:
        return None
    pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
    made = [chain.feed(x, piece, False) for piece in pieces]
    made.append(chain.feed(x, b"", True))
    return b"".join(made)  # type: ignore[arg-type]


@MODES
@PHASES
@pytest.mark.parametrize("coding", CODERS)
def test_a_body_is_decoded_for_a_filter_and_coded_again_behind_it(coding: bytes, phase: Phase, mode: BodyMode):
    code, decode = CODERS[coding]
    x = begun(coding)
    assert decode(sent(Reader(mode), phase, x, code(TEXT))) == TEXT.upper()
    fields = (x.request if phase is Phase.REQUEST_BODY else x.response).fields
    assert fields.get(b"content-encoding") == coding
    assert b"digest" not in fields
    assert phase is Phase.REQUEST_BODY or fields.get(b"etag") == b'W/"x"'


@PHASES
@pytest.mark.parametrize("only_reads", [False, True])
@pytest.mark.parametrize("coding", CODERS)
def test_a_body_that_no_filter_changes_goes_on_as_it_came(coding: bytes, only_reads: bool, phase: Phase):
    x, body = begun(coding), CODERS[coding][0](TEXT)
    before = x.request.fields.block, x.response.fields.block
    assert sent(Reader(BodyMode.BUFFER, bytes, only_reads=only_reads), phase, x, body) == body
    assert (x.request.fields.block, x.response.fields.block) == before


def test_what_a_filter_only_reads_goes_on_as_it_came_while_it_comes():
    reader, x, body = Reader(BodyMode.STREAM, lambda _data: b"", only_reads=True), begun(b"gzip"), gzip.compress(TEXT)
    chain = planned(reader, Phase.RESPONSE_BODY).begin(x)
    assert chain is not None
    for at in range(0, len(body), 5):
        assert chain.feed(x, body[at : at + 5], False) == body[at : at + 5]
    assert chain.keeps_length
    assert reader.seen == TEXT


def test_an_event_in_a_coding_is_not_delayed():
    x, coder, reader = begun(b"gzip"), zlib.compressobj(wbits=31), zlib.decompressobj(31)
    chain = planned(Reader(BodyMode.STREAM), Phase.RESPONSE_BODY).begin(x)
    assert chain is not None
    for event in (b"data: one\n\n", b"data: two\n\n"):
        made = chain.feed(x, coder.compress(event) + coder.flush(zlib.Z_SYNC_FLUSH), False)
        assert reader.decompress(made) == event.upper()  # type: ignore[arg-type]
    made = chain.feed(x, coder.flush(), True)
    assert (reader.decompress(made), reader.eof) == (b"", True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "coding", "body", "http_status", "expected"),
    [
        (Phase.REQUEST_BODY, b"lzma", b"abc", 200, (415, Reason.CONTENT_CODING)),
        (Phase.REQUEST_BODY, b"gzip, br", b"abc", 200, (415, Reason.CONTENT_CODING)),
        (Phase.REQUEST_BODY, b"aws-chunked", b"abc", 200, (415, Reason.CONTENT_CODING)),
        (Phase.REQUEST_BODY, b"gzip", b"abc", 200, (400, Reason.CONTENT_CODING)),
        (Phase.REQUEST_BODY, b"gzip", BOMB, 200, (413, Reason.BODY_TOO_LARGE)),
        (Phase.RESPONSE_BODY, b"lzma", b"abc", 200, (502, Reason.BAD_RESPONSE)),
        (Phase.RESPONSE_BODY, b"gzip, gzip", gzip.compress(gzip.compress(TEXT)), 200, (502, Reason.BAD_RESPONSE)),
        (Phase.RESPONSE_BODY, b"gzip", gzip.compress(TEXT)[:-3], 200, (502, Reason.BAD_RESPONSE)),
        (Phase.RESPONSE_BODY, b"gzip", TEXT, 200, (502, Reason.BAD_RESPONSE)),
        (Phase.RESPONSE_BODY, b"gzip", BOMB, 200, (502, Reason.BAD_RESPONSE)),
    ],
    ids=[
        "unknown",
        "stacked",
        "aws",
        "plain",
        "bomb",
        "unknown answer",
        "stacked answer",
        "cut",
        "plain answer",
        "bombs",
    ],
)
@MODES
def test_a_body_that_cannot_be_read_is_refused(
    phase: Phase, coding: bytes, body: bytes, http_status: int, expected: tuple[int, Reason], mode: BodyMode
):
    reader = Reader(mode)
    with pytest.raises(GatewayError) as caught:
        sent(reader, phase, begun(coding, status=http_status), body, cut=4096)
    assert (caught.value.status, caught.value.reason) == expected
    assert len(reader.seen) <= max(1024 * 1024, 100 * len(body))


@pytest.mark.parametrize("status", [206, 226])
@pytest.mark.parametrize("coding", [b"", b"gzip"])
def test_a_part_that_nobody_has_asked_for_is_refused(status: int, coding: bytes):
    with pytest.raises(GatewayError, match=rf"part \({status}\)") as caught:
        sent(Reader(BodyMode.BUFFER), Phase.RESPONSE_BODY, begun(coding, status=status), b"abc")
    assert (caught.value.status, caught.value.reason) == (502, Reason.BAD_RESPONSE)


def test_a_part_of_a_coded_body_cannot_be_read_though_it_was_asked_for():
    x = begun(b"gzip", status=206, more=((b"range", b"bytes=5-"),))
    with pytest.raises(GatewayError, match="only a part"):
        sent(Reader(BodyMode.BUFFER), Phase.RESPONSE_BODY, x, gzip.compress(TEXT)[5:])


@pytest.mark.parametrize(("coding", "status"), [(b"lzma", 200), (b"", 206)])
def test_what_cannot_be_read_goes_past_a_filter_that_fails_open(coding: bytes, status: int):
    reader = Reader(BodyMode.BUFFER)
    made = sent(reader, Phase.RESPONSE_BODY, begun(coding, status=status), b"abc", opens=True)
    assert made in (None, b"abc")
    assert not reader.seen


def test_a_filter_of_a_coded_body_refuses_and_answers():
    def refuse(_data: bytes) -> bytes:
        raise Rejected("not this", status=451)

    with pytest.raises(Rejected):
        sent(Reader(BodyMode.BUFFER, refuse), Phase.RESPONSE_BODY, begun(b"gzip"), gzip.compress(TEXT))
    answers = Reader(BodyMode.BUFFER, lambda _data: LocalResponse(418), only_reads=True)
    with pytest.raises(FilterAnswered):
        sent(answers, Phase.RESPONSE_BODY, begun(b"gzip"), gzip.compress(TEXT))


@MODES
def test_a_head_without_a_body_is_described_as_the_one_with_its_body(mode: BodyMode):
    for reader, changes in ((Reader(mode), True), (Reader(mode, only_reads=True), False)):
        x = begun(b"")
        x.response.fields.set(b"content-length", b"7")
        planned(reader, Phase.RESPONSE_BODY).describe(x)
        assert (x.response.fields.get(b"etag") == b'W/"x"') is changes
        assert (b"content-length" not in x.response.fields) is changes


@pytest.mark.parametrize(
    ("reader", "passes"),
    [
        (Reader(BodyMode.STREAM), b"\r\nX-Sum: 1"),
        (Reader(BodyMode.STREAM, bytes, only_reads=True), b"\r\nContent-Digest: a\r\nrepr_digest: b\r\nX-Sum: 1"),
        (Reader(BodyMode.BUFFER), b"\r\nX-Sum: 1"),
        (Reader(BodyMode.BUFFER, bytes), b"\r\nContent-Digest: a\r\nrepr_digest: b\r\nX-Sum: 1"),
    ],
)
@PHASES
def test_digests_in_trailers_of_a_body_that_may_have_changed_go_no_further(reader: Reader, passes: bytes, phase: Phase):
    x = begun(b"")
    chain = planned(reader, phase).begin(x)
    assert chain is not None
    chain.feed(x, b"hi", True)
    assert chain.run_trailers(x, b"\r\nContent-Digest: a\r\nrepr_digest: b\r\nX-Sum: 1") == passes


GZIP = Fields.of([(b"content-encoding", b"gzip")])


@pytest.mark.parametrize(
    ("mode", "fields", "limit", "is_alone", "path"),
    [
        (None, Fields(), -1, True, BodyPath.UNREAD),
        (None, GZIP, -1, False, BodyPath.UNREAD),
        (None, Fields(), 0, True, BodyPath.BUFFERED),
        (BodyMode.STREAM, GZIP, -1, True, BodyPath.STREAM),
        (BodyMode.STREAM, Fields(), 9, False, BodyPath.BUFFERED),
        (BodyMode.BUFFER, Fields(), -1, True, BodyPath.WHOLE),
        (BodyMode.BUFFER, Fields(), -1, False, BodyPath.BUFFERED),
        (BodyMode.BUFFER, GZIP, -1, True, BodyPath.BUFFERED),
        (BodyMode.BUFFER, GZIP, 9, False, BodyPath.BUFFERED),
    ],
)
def test_each_body_has_one_path(mode: BodyMode | None, fields: Fields, limit: int, is_alone: bool, path: BodyPath):
    chosen = planned(Reader(mode), Phase.REQUEST_BODY).choose(begun(b"")) if mode is not None else None
    assert path_of(chosen, fields, limit, is_alone=is_alone) is path
