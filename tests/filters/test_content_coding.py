"""Content codings, by themselves and around body filters."""

from __future__ import annotations

import gzip
import zlib
from functools import cache

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.content_coding import (
    ContentDecoder,
    Undecodable,
    ask_for_readable,
    coding_of,
    new_encoder,
    note_change,
)
from egressproxy.model.fields import Fields

TEXT = b"the quick brown fox jumps over the lazy dog. " * 50


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


CODED = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", raw_deflate),
    "br": (b"br", brotli.compress),
    "zstd": (b"zstd", zstandard.compress),
}
ALL = pytest.mark.parametrize("name", CODED)


def decoded(coding: bytes, *pieces: bytes) -> bytes:
    decoder = ContentDecoder(coding)
    return b"".join(decoder.decode(piece, n == len(pieces)) for n, piece in enumerate(pieces, 1))


@ALL
@given(cuts=st.lists(st.integers(0, 200), max_size=6).map(sorted))
def test_a_body_is_decoded_wherever_it_is_cut(name: str, cuts: list[int]):
    coding, code = CODED[name]
    coded = code(TEXT)
    pieces = [coded[a:b] for a, b in zip([0, *cuts], [*cuts, len(coded)], strict=True)]
    assert decoded(coding, *pieces, b"") == TEXT


@ALL
def test_a_body_that_breaks_off_is_no_whole_one(name: str):
    coding, code = CODED[name]
    for end in (1, 5, len(code(TEXT)) - 1):
        with pytest.raises(Undecodable, match=r"breaks off|is no"):
            decoded(coding, code(TEXT)[:end])
    assert decoded(coding, b"") == b""


@ALL
def test_what_is_in_another_coding_is_refused(name: str):
    coding, _ = CODED[name]
    with pytest.raises(Undecodable):
        decoded(coding, b"\x07\xffplain text, and more of it")


@pytest.mark.parametrize("name", ["deflate", "br", "zstd"])
def test_bytes_behind_the_end_are_refused(name: str):
    coding, code = CODED[name]
    with pytest.raises(Undecodable):
        decoded(coding, code(TEXT) + b"more")
    with pytest.raises(Undecodable):
        decoded(coding, code(TEXT), b"more")


def test_gzip_goes_on_with_its_next_member():
    assert decoded(b"gzip", gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    assert decoded(b"gzip", gzip.compress(b"one "), gzip.compress(b"two")) == b"one two"
    with pytest.raises(Undecodable):
        decoded(b"gzip", gzip.compress(b"one ") + b"plain")


@cache
def bomb(name: str) -> bytes:
    return CODED[name][1](bytes(16 * 1024 * 1024))


@ALL
@pytest.mark.parametrize("size", [1, 4096, 10**9])
def test_a_bomb_ends_before_it_has_unfolded(name: str, size: int):
    coding, coded = CODED[name][0], bomb(name)
    decoder, given = ContentDecoder(coding), 0

    def unfold() -> None:
        nonlocal given
        for at in range(0, len(coded), size):
            given += len(decoder.decode(coded[at : at + size], False))

    with pytest.raises(Undecodable, match="100 times") as caught:
        unfold()
    assert caught.value.is_large
    assert given <= max(1024 * 1024, 100 * len(coded))


@ALL
def test_every_piece_is_flushed(name: str):
    coding, _ = CODED[name]
    encoder, decoder = new_encoder(coding), ContentDecoder(coding)
    for piece in (b"data: one\n\n", b"data: two\n\n"):
        assert decoder.decode(encoder.encode(piece, False), False) == piece
    assert decoder.decode(encoder.encode(b"data: three\n\n", True), True) == b"data: three\n\n"


@pytest.mark.parametrize(
    ("lines", "coding"),
    [
        ((), b""), ((b"identity",), b""), ((b"GZIP",), b"gzip"), ((b"gzip, identity",), b"gzip"),
        ((b"gzip, br",), b"gzip, br"), ((b"gzip", b"br"), b"gzip, br"), ((b"",), b""),
        ((b"aws-chunked",), b"aws-chunked"),
    ],
)  # fmt: skip
def test_the_coding_of_a_body(lines: tuple[bytes, ...], coding: bytes):
    assert coding_of(Fields.of([(b"Content-Encoding", line) for line in lines])) == coding


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        ((), b"identity"), ((b"gzip;q=0.5, lzma, BR",), b"gzip;q=0.5, BR"), ((b"*",), b"identity"),
        ((b"dcz", b"zstd"), b"zstd"), ((b"compress",), b"identity"),
    ],
)  # fmt: skip
def test_only_codings_that_can_be_undone_are_asked_for(lines: tuple[bytes, ...], asked: bytes):
    fields = Fields.of([(b"Accept-Encoding", line) for line in lines])
    ask_for_readable(fields)
    assert fields.get_all(b"accept-encoding") == [asked]


@pytest.mark.parametrize(
    "lines",
    [
        (b"Range: bytes=0-1", b"If-Range: x"), (b"range: bytes=0-1", b"Accept_Encoding: gzip"), (b"If_Range: x",),
        (b"Accept-Encoding: " + b"gzip, " * 1000, b"Range: bytes=0-1"),
    ],
)  # fmt: skip
def test_the_whole_is_asked_for_in_every_spelling(lines: tuple[bytes, ...]):
    fields = Fields(b"".join(b"\r\n" + line for line in (b"A: b", *lines, b"Arrange: c")))
    ask_for_readable(fields)
    assert list(fields) == [(b"a", b"b"), (b"arrange", b"c"), (b"accept-encoding", b"identity")]


def test_what_the_head_says_of_the_bytes_does_not_outlive_them():
    fields = Fields.of([
        (b"ETag", b'"a"'), (b"Digest", b"sha-256=x"), (b"Repr-Digest", b"x"), (b"Content-Digest", b"x"),
        (b"Content-MD5", b"x"), (b"Accept-Ranges", b"bytes"), (b"X-Other", b"y"),
    ])  # fmt: skip
    note_change(fields)
    assert list(fields) == [(b"x-other", b"y"), (b"etag", b'W/"a"')]
    note_change(fields)
    assert fields.get(b"etag") == b'W/"a"'


@pytest.mark.parametrize(
    "name", [b"Content-MD5", b"digest", b"CONTENT-DIGEST", b"Repr-Digest", b"accept-ranges", b"ETag"]
)
def test_each_field_that_says_something_of_the_bytes_is_seen_alone(name: bytes):
    fields = Fields.of([(b"X-Other", b"y"), (name, b'"a"')])
    note_change(fields)
    assert list(fields) in ([(b"x-other", b"y")], [(b"x-other", b"y"), (b"etag", b'W/"a"')])
