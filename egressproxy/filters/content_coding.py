"""Content codings (RFC 9110 section 8.4): bodies are decoded before filters that need it, and encoded again afterwards.

Decoding is bounded: a body that grows beyond RATIO times its size ends the exchange. Every piece is flushed, so events
of an encoded stream are not delayed. `CodedBody` does both for one body in a chain of filters. Brotli and Zstandard are
imported at their first use.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Protocol

from egressproxy.errors import BadRequest, GatewayError, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.aws_chunked import AWS_CHUNKED, AwsChunks, MalformedChunks
from egressproxy.filters.base import Phase
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.message import RequestHead, ResponseHead

#: The supported codings: RFC 9110 section 8.4.1, RFC 7932, RFC 9659. `x-gzip` is another name of gzip.
CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"))
#: The most decoded bytes: this many, or this multiple of the encoded bytes. Envoy's decompressor has the same ratio.
#: Text without repetitions shrinks to a twentieth at most.
FREE_BYTES: Final = 1024 * 1024
RATIO: Final = 100
#: RFC 9659: no decoder needs a larger window for this coding.
_ZSTD_WINDOW: Final = 8 * 1024 * 1024
#: The encoded bytes per call of Zstandard, whose output per call is unbounded: these become at most 8 MiB.
_ZSTD_BYTES: Final = 256
#: Fields about the bytes of a body, which no longer hold when a filter has changed it: RFC 9530, RFC 3230, RFC 1864.
_DIGESTS: Final = (b"content-md5", b"digest", b"content-digest", b"repr-digest")
_DIGEST_LINES: Final = every_spelling(tuple(name.decode() for name in _DIGESTS))
#: The fields that `note_change` may change, after a lookahead for their first characters.
_DESCRIBED: Final = re.compile(rb"\r\n(?=[acder])(?:%s|accept-ranges|etag):" % b"|".join(_DIGESTS), re.IGNORECASE)
#: Request fields for codings, ranges and deltas (RFC 9110 section 14.2, RFC 3229). Apache reads Request-Range as Range.
_ASKED: Final = every_spelling(("accept-encoding", "range", "if-range", "request-range", "a-im"))
#: The most bytes of these fields that are parsed. Clients send about a hundred.
MAX_ASKED: Final = 1024
_IDENTITY: Final = b"\r\naccept-encoding: identity"


class Undecodable(Exception):
    """The body does not match its Content-Encoding, or is too large (`is_large`). The text is our own."""

    def __init__(self, why: str, *, is_large: bool = False) -> None:
        super().__init__(why)
        self.is_large = is_large


def coding_of(fields: Fields) -> bytes:
    """The coding of a body, in lower case; b"" for none. Several are joined by ", " and thus unsupported."""
    if b"content-encoding" not in fields:
        return b""
    named = b",".join(fields.get_all(b"content-encoding")).lower().split(b",")
    kept = [each.strip() for each in named if each.strip() not in (b"", b"identity")]
    return b", ".join(kept)


def is_readable(coding: bytes) -> bool:
    """Whether a request body in this coding can be decoded: one of CODINGS, aws-chunked, or aws-chunked around one."""
    outer, _, inner = coding.partition(b", ")
    return coding in CODINGS or (outer == AWS_CHUNKED and (not inner or inner in CODINGS))


def ask_for_readable(fields: Fields) -> None:
    """Request a readable response: only in supported codings, without `*` (section 12.5.3), and whole. A part of an
    encoded body cannot be decoded, and ranges chosen by the client would hide content (section 14.2: Range may be
    ignored).

    A missing Accept-Encoding permits any coding, so it is set to `identity` then.
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
    """The Accept-Encoding that replaces these lines, cached: clients repeat the same lines."""
    kept = []
    for each in b",".join(Fields(b"".join(lines)).get_all(b"accept-encoding")).split(b","):
        if each.partition(b";")[0].strip().lower() in CODINGS:
            kept.append(each.strip())
    return b"\r\naccept-encoding: " + b", ".join(kept) if kept else _IDENTITY


def note_change(fields: Fields) -> None:
    """Adapt the fields of a changed body: drop digests and Accept-Ranges, and weaken the ETag, so that clients cannot
    use it for conditional updates (RFC 9110 sections 8.8.1 and 13.1.1).
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
    """The block of trailers without digests (RFC 9530 section 6.5 allows these in trailers)."""
    return _DIGEST_LINES.sub(b"", trailers)


@dataclass(slots=True, eq=False)
class ContentDecoder:
    """Decodes one body. Raises Undecodable."""

    _coding: bytes  # `is_readable`
    _decoder: _Decoder | None = None  # created at the first bytes: an empty body is not encoded
    _taken: int = 0
    _given: int = 0
    _is_over: bool = False

    def decode(self, data: bytes, last: bool) -> bytes:
        """The decoded piece; with `last` the body must be complete."""
        self._taken += len(data)
        parts = []
        while data:
            if self._is_over:
                if self._coding not in (b"gzip", b"x-gzip"):
                    raise Undecodable(f"bytes follow its {self._name} data")
                self._decoder, self._is_over = None, False  # RFC 1952 section 2.2: several members
            if self._decoder is None:
                self._decoder = _decoder(self._coding)
            allowed = max(FREE_BYTES, RATIO * self._taken) - self._given
            try:
                part, data = self._decoder.decode(data, allowed)
            except Undecodable:
                raise
            except MalformedChunks as error:
                raise Undecodable(f"it is no {self._name} data: {error}") from None
            except Exception:  # each library has its own errors
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
        """The decoded `data`, not much more than `allowed` bytes, and the rest after the end of the encoded data."""


def _decoder(coding: bytes) -> _Decoder:
    if coding.startswith(AWS_CHUNKED):
        return _AwsChunked(coding.partition(b", ")[2])
    if coding == b"br":
        return _Brotli()
    if coding == b"zstd":
        return _Zstandard()
    return _Zlib(zlib.MAX_WBITS if coding == b"deflate" else 16 + zlib.MAX_WBITS)


class _Zlib:
    """gzip, and deflate in the zlib format or raw, as some servers send it."""

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
    """aws-chunked: chunks, whose content may have a coding of its own ("": none), and trailers."""

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
        return made, b""  # the library raises an error for bytes after the end


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
    """Encodes a body piece by piece, with a library's functions."""

    code: Callable[[bytes], bytes]
    flush: Callable[[], bytes]
    finish: Callable[[], bytes]

    def encode(self, data: bytes, last: bool) -> bytes:
        """The encoded `data`, flushed; with `last` also the end of the body."""
        return self.code(data) + (self.finish() if last else self.flush())


def new_encoder(coding: bytes) -> ContentEncoder:
    """An encoder for one of CODINGS, at a fast level."""
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


class CodedBody:
    """A body that nobody has changed goes on as it came, where that is known before any of it has gone: filters only
    read it (`only_reads`), or all of it is kept for one that gets it whole (`is_kept`).
    """

    __slots__ = ("_coding", "_decoder", "_encoder", "_kept", "_only_reads", "_phase", "_piece", "_tail")

    def __init__(self, coding: bytes, phase: Phase, *, is_kept: bool, only_reads: bool) -> None:
        """`coding` is one of CODINGS, or, with `only_reads`, one that `is_readable`."""
        self._coding = coding
        self._phase = phase
        self._decoder = ContentDecoder(coding)
        self._encoder: ContentEncoder | None = None
        self._only_reads = only_reads
        self._kept = bytearray() if is_kept else None
        self._piece = b""
        self._tail = b""

    def decoded(self, data: bytes, last: bool) -> bytes:
        """What this piece holds. Raises LimitExceeded (413), BadRequest (400) or UpstreamFault (502)."""
        self._piece = data
        if self._kept is not None:
            self._kept += data
        try:
            return self._decoder.decode(data, last)
        except Undecodable as error:
            if error.is_large and self._phase is Phase.REQUEST_BODY:
                message = f"the request body is too large: {error}"
                raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True) from None
            raise undecodable(self._phase, str(error), "-") from None

    def skipped(self, data: bytes) -> bytes:
        """What goes on of a piece that holds nothing whole yet."""
        return data if self._only_reads and self._kept is None else b""

    def coded(self, data: bytes, last: bool, *, has_changed: bool) -> bytes:
        """What goes on for `data`, which the filters have returned for the last piece."""
        if self._kept is None:
            if self._only_reads:
                return self._piece
            if not data and not last:
                return b""
        elif not last:
            return b""
        elif not has_changed:
            return bytes(self._kept)
        if self._encoder is None:
            if not data and last:
                return b""  # an empty body
            self._encoder = new_encoder(self._coding)
        self._tail = data[-4:] or self._tail
        return self._encoder.encode(data, last)

    @property
    def held(self) -> int:
        """Bytes of the body as it came that are kept."""
        return len(self._kept) if self._kept is not None else 0

    @property
    def tail(self) -> bytes | None:
        """The end of what has gone on, before it was coded; None where that went on as it came: nothing fits behind."""
        return None if self._only_reads else self._tail

    def ended(self, data: bytes) -> bytes:
        """What goes on to end the body with `data` instead of what was to come. `tail` must not be None."""
        if self._encoder is None:
            self._encoder = new_encoder(self._coding)
        return self._encoder.encode(data, True)


def head_of(exchange: Exchange, phase: Phase) -> RequestHead | ResponseHead:
    return exchange.response if phase is Phase.RESPONSE_BODY else exchange.request


def undecodable(phase: Phase, why: str, rule: str, *, is_unknown: bool = False) -> GatewayError:
    """The error for a body that filters have to read and cannot. `is_unknown`: no body in this coding can be read."""
    if phase is Phase.REQUEST_BODY:
        message, status = f"the request body cannot be read: {why}", 415 if is_unknown else 400
        error: GatewayError = BadRequest(Reason.CONTENT_CODING, message, status=status)
        error.remedy = "send it without a Content-Encoding, or with one of gzip, deflate, br and zstd"
    else:
        error = UpstreamFault(Reason.BAD_RESPONSE, f"the body of the response cannot be read: {why}")
    error.rule = rule
    return error
