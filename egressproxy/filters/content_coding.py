"""Content codings (RFC 9110 section 8.4): bodies are decoded for the filters that ask for it, and coded again behind.

Decoding is bounded: what grows to more than RATIO times its size ends the exchange. Every piece is flushed: an event of
a coded stream is not delayed. Brotli and Zstandard are imported at their first use.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Protocol

from egressproxy.filters.aws_chunked import AWS_CHUNKED, AwsChunks, MalformedChunks
from egressproxy.model.fields import Fields, every_spelling

#: What is decoded: RFC 9110 section 8.4.1, RFC 7932, RFC 9659. `x-gzip` is another name of gzip.
CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"))
#: A body may grow to so many bytes, and beyond that to so many times the bytes that came. Envoy's decompressor has the
#: same ratio. Text shrinks to a twentieth at most, but for what repeats itself.
FREE_BYTES: Final = 1024 * 1024
RATIO: Final = 100
#: RFC 9659: no decoder needs a larger window for this coding.
_ZSTD_WINDOW: Final = 8 * 1024 * 1024
#: Zstandard has no bound on what one call returns: so many coded bytes at a time, which become 8 MiB at the very most.
_ZSTD_BYTES: Final = 256
#: Fields about the bytes of a body, which no longer hold when a filter has changed it: RFC 9530, RFC 3230, RFC 1864.
_DIGESTS: Final = (b"content-md5", b"digest", b"content-digest", b"repr-digest")
_DIGEST_LINES: Final = every_spelling(tuple(name.decode() for name in _DIGESTS))
#: Any field that `note_change` may change, each behind the first characters of all.
_DESCRIBED: Final = re.compile(rb"\r\n(?=[acder])(?:%s|accept-ranges|etag):" % b"|".join(_DIGESTS), re.IGNORECASE)
#: Fields with which a client says in which coding, and which part of a body, or which changes of it, it wants (RFC 9110
#: section 14.2, RFC 3229). Request-Range is what Apache takes for Range.
_ASKED: Final = every_spelling(("accept-encoding", "range", "if-range", "request-range", "a-im"))
#: Bytes of these that are read. Those of clients have a hundred.
MAX_ASKED: Final = 1024
_IDENTITY: Final = b"\r\naccept-encoding: identity"


class Undecodable(Exception):
    """The body is not what its Content-Encoding says, or too large. `is_large`: the latter. The text is ours."""

    def __init__(self, why: str, *, is_large: bool = False) -> None:
        super().__init__(why)
        self.is_large = is_large


def coding_of(fields: Fields) -> bytes:
    """The coding of a body, in lower case; b"" for none. Several are joined by ", ", as one that nobody knows."""
    if b"content-encoding" not in fields:
        return b""
    named = b",".join(fields.get_all(b"content-encoding")).lower().split(b",")
    kept = [each.strip() for each in named if each.strip() not in (b"", b"identity")]
    return b", ".join(kept)


def is_readable(coding: bytes) -> bool:
    """Whether the body of a request in this coding can be read: one of CODINGS, or aws-chunked, also around one."""
    outer, _, inner = coding.partition(b", ")
    return coding in CODINGS or (outer == AWS_CHUNKED and (not inner or inner in CODINGS))


def ask_for_readable(fields: Fields) -> None:
    """Ask for an answer that can be read here: in codings that can be undone alone, `*` not included (section 12.5.3),
    and whole: from the middle of a coded body nothing can be read, and in pieces of the client's choice nothing is
    found (section 14.2: Range may be ignored).

    Without Accept-Encoding any coding would do, so that it is set then, to `identity`.
    """
    block = fields.block
    first = _ASKED.search(block)
    if first is None:
        fields.block = block + _IDENTITY
        return
    start, end = first.span()
    lines = _ASKED.findall(block, end)
    if lines:
        rest = _ASKED.sub(b"", block)
        is_read = end - start + sum(map(len, lines)) <= MAX_ASKED
    else:  # one line is what clients send
        rest = block[:start] + block[end:]
        is_read = end - start <= MAX_ASKED
    fields.block = rest + (_readable((first[0], *lines)) if is_read else _IDENTITY)


@lru_cache(maxsize=256)
def _readable(lines: tuple[bytes, ...]) -> bytes:
    """The line of Accept-Encoding instead of these lines: clients say the same ones over and over."""
    kept = []
    for each in b",".join(Fields(b"".join(lines)).get_all(b"accept-encoding")).split(b","):
        if each.partition(b";")[0].strip().lower() in CODINGS:
            kept.append(each.strip())
    return b"\r\naccept-encoding: " + b", ".join(kept) if kept else _IDENTITY


def note_change(fields: Fields) -> None:
    """The body is no longer the one that its origin has described: its digests go, and its ETag is a weak one, with
    which no client replaces what it has not seen (RFC 9110 sections 8.8.1 and 13.1.1). Parts of it cannot be asked for.
    """
    if _DESCRIBED.search(fields.block) is None:
        return
    for name in (*_DIGESTS, b"accept-ranges"):
        if name in fields:
            fields.remove(name)
    tag = fields.get(b"etag")
    if tag is not None and tag.startswith(b'"'):
        fields.set(b"etag", b"W/" + tag)


def without_digests(trailers: bytes) -> bytes:
    """This block of trailers without those that are digests (RFC 9530 section 6.5 lets them come behind a body)."""
    return _DIGEST_LINES.sub(b"", trailers)


@dataclass(slots=True, eq=False)
class ContentDecoder:
    """Decodes one body. Raises Undecodable."""

    _coding: bytes  # one that `is_readable`
    _decoder: _Decoder | None = None  # not begun: an empty body has no coding
    _taken: int = 0
    _given: int = 0
    _is_over: bool = False

    def decode(self, data: bytes, last: bool) -> bytes:
        """What this piece holds; with `last` the body must be whole then."""
        self._taken += len(data)
        parts = []
        while data:
            if self._is_over:
                if self._coding not in (b"gzip", b"x-gzip"):
                    raise Undecodable(f"bytes follow its {self._name} data")
                self._decoder, self._is_over = None, False  # RFC 1952 section 2.2: one member after the other
            if self._decoder is None:
                self._decoder = _decoder(self._coding)
            allowed = max(FREE_BYTES, RATIO * self._taken) - self._given
            try:
                part, data = self._decoder.decode(data, allowed)
            except Undecodable:
                raise
            except MalformedChunks as error:
                raise Undecodable(f"it is no {self._name} data: {error}") from None
            except Exception:  # each library has errors of its own
                raise Undecodable(f"it is no {self._name} data") from None
            self._given += len(part)
            if len(part) > allowed:
                raise Undecodable(f"it grows to more than {RATIO} times its size", is_large=True)
            parts.append(part)
            self._is_over = self._decoder.is_over
        if last and self._decoder is not None and not self._is_over:
            raise Undecodable(f"its {self._name} data breaks off")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def _name(self) -> str:
        return self._coding.decode()


class _Decoder(Protocol):
    is_over: bool

    def decode(self, data: bytes, allowed: int) -> tuple[bytes, bytes]:
        """What `data` holds, not much more than `allowed` bytes, and what follows the end of the coded data."""


def _decoder(coding: bytes) -> _Decoder:
    if coding.startswith(AWS_CHUNKED):
        return _AwsChunked(coding.partition(b", ")[2])
    if coding == b"br":
        return _Brotli()
    if coding == b"zstd":
        return _Zstandard()
    return _Zlib(zlib.MAX_WBITS if coding == b"deflate" else 16 + zlib.MAX_WBITS)


class _Zlib:
    """gzip, and deflate in the zlib format; the latter also without it, as some servers send it."""

    __slots__ = ("_begin", "_inner", "_wbits", "is_over")

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._begin = b""
        self._inner: zlib._Decompress | None = None if wbits == zlib.MAX_WBITS else zlib.decompressobj(wbits)
        self.is_over = False

    def decode(self, data: bytes, allowed: int) -> tuple[bytes, bytes]:
        if self._inner is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return b"", b""
            is_zlib = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0  # RFC 1950 section 2.2
            self._inner = zlib.decompressobj(self._wbits if is_zlib else -self._wbits)
        made = self._inner.decompress(data, allowed + 1)
        self.is_over = self._inner.eof
        return made, self._inner.unused_data


class _AwsChunked:
    """The chunks, what they hold in a coding of its own ("": none), and the trailers behind it."""

    __slots__ = ("_chunks", "_inner", "is_over")

    def __init__(self, coding: bytes) -> None:
        self._chunks = AwsChunks()
        self._inner = ContentDecoder(coding) if coding else None
        self.is_over = False

    def decode(self, data: bytes, allowed: int) -> tuple[bytes, bytes]:
        made, rest = self._chunks.read(data)
        self.is_over = self._chunks.is_over
        if self._inner is not None:
            made = self._inner.decode(made, self.is_over)
        return made + self._chunks.trailers if self.is_over else made, rest


class _Brotli:
    __slots__ = ("_inner", "is_over")

    def __init__(self) -> None:
        import brotli  # type: ignore[import-untyped]

        self._inner = brotli.Decompressor()
        self.is_over = False

    def decode(self, data: bytes, allowed: int) -> tuple[bytes, bytes]:
        made = self._inner.process(data, output_buffer_limit=allowed + 1)
        while len(made) <= allowed and not self._inner.can_accept_more_data():
            more = self._inner.process(b"", output_buffer_limit=allowed + 1)
            if not more:
                break
            made += more
        self.is_over = self._inner.is_finished()
        return made, b""  # the library raises an error for bytes behind the end


class _Zstandard:
    __slots__ = ("_inner", "is_over")

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        self.is_over = False

    def decode(self, data: bytes, allowed: int) -> tuple[bytes, bytes]:
        parts, size = [], 0
        for at in range(0, len(data), _ZSTD_BYTES):
            part = self._inner.decompress(data[at : at + _ZSTD_BYTES])
            parts.append(part)
            size += len(part)
            if self._inner.eof:
                self.is_over = True
                return b"".join(parts), self._inner.unused_data + data[at + _ZSTD_BYTES :]
            if size > allowed:
                break
        return b"".join(parts), b""


@dataclass(frozen=True, slots=True)
class ContentEncoder:
    """Codes a body piece by piece, with these functions of a library."""

    code: Callable[[bytes], bytes]
    flush: Callable[[], bytes]
    finish: Callable[[], bytes]

    def encode(self, data: bytes, last: bool) -> bytes:
        """All of what a receiver needs to decode `data`, now; with `last` the end of the body, too."""
        return self.code(data) + (self.finish() if last else self.flush())


def new_encoder(coding: bytes) -> ContentEncoder:
    """An encoder for one of CODINGS, fast rather than thorough."""
    if coding == b"br":
        import brotli

        of_brotli = brotli.Compressor(quality=4, lgwin=18)
        return ContentEncoder(of_brotli.process, of_brotli.flush, of_brotli.finish)
    if coding == b"zstd":
        import zstandard

        of_zstd = zstandard.ZstdCompressor(level=1).compressobj()
        return ContentEncoder(
            of_zstd.compress, partial(of_zstd.flush, zstandard.COMPRESSOBJ_FLUSH_BLOCK), of_zstd.flush
        )
    of_zlib = zlib.compressobj(4, zlib.DEFLATED, zlib.MAX_WBITS if coding == b"deflate" else 16 + zlib.MAX_WBITS)
    return ContentEncoder(of_zlib.compress, partial(of_zlib.flush, zlib.Z_SYNC_FLUSH), of_zlib.flush)
