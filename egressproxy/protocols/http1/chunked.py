"""The chunked transfer coding, taken off: bytes in, pieces of body and trailers out (RFC 9112 section 7.1).

Strict: one to sixteen hexadecimal digits, extensions of valid syntax (dropped, and bounded), CRLF and nothing else,
trailers checked like header fields. Nothing here repeats the peer's bytes in a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.fields import CREDENTIAL_FIELDS, Fields
from egressproxy.protocols.http1.framing import (
    BARE_CR_OR_LF,
    FIELD_LINE,
    IDENTITY_FIELDS,
    MAX_LENGTH,
    TCHAR,
    HeadLimits,
    Malformed,
    field_section_fault,
)

#: Bytes of a chunk's size, extensions and line end.
MAX_CHUNK_LINE: Final = 4096

#: Bytes of extensions in a whole body, beyond one per byte of data: nobody sends more (CVE-2023-39326 was this).
MAX_EXTENSIONS: Final = 16384
#: Chunks in one segment, beyond which they have to hold so many bytes each on the average.
MAX_TINY_CHUNKS: Final = 4096
MIN_TINY_SIZE: Final = 4

#: Size, extensions. Blanks may stand around ";" and "=" only. What it remembers to come back to grows with the line:
#: it is given MAX_CHUNK_LINE bytes to look at.
_CHUNK_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16}+)"
    rb'((?:[\t ]*+;[\t ]*+%b++(?:[\t ]*+=[\t ]*+(?:%b++|"(?:[\t !#-\[\]-~\x80-\xff]++|\\[\t -~\x80-\xff])*"))?)*)\r\n'
    % (TCHAR, TCHAR)
)

#: What an unfinished line may look like: enough to refuse endless digits and other rubbish at once.
_LINE_START: Final = re.compile(rb"[0-9A-Fa-f]{1,16}+(?:\r?\Z|[\t ]*+(?:;|\Z))")

#: A field section, and the empty line behind it.
_TRAILERS: Final = re.compile(rb"((?:" + FIELD_LINE + rb")*)\r\n\r\n")

#: Fields that must not come late: framing, routing, authentication, request control, content format (RFC 9110 6.5.1),
#: and those of identity, which are nobody's to send.
_FORBIDDEN_TRAILERS: Final = frozenset(
    b"transfer-encoding content-length content-encoding content-type content-range trailer host "
    b"connection keep-alive proxy-connection te upgrade http2-settings via forwarded x-real-ip "
    b"proxy-authorization www-authenticate proxy-authenticate proxy-authentication-info cookie set-cookie "
    b"cache-control expect max-forwards pragma range if-match if-none-match if-modified-since if-unmodified-since "
    b"if-range age date expires location retry-after vary ".split()
    + IDENTITY_FIELDS.encode().split()
    + [name.encode() for name in CREDENTIAL_FIELDS]
)


@dataclass(frozen=True, slots=True, eq=False)
class EndOfMessage:
    """The body is whole. `trailers` holds the fields behind it that may be passed on, or None."""

    trailers: Fields | None


#: Chunk lines without extensions, with their line ends, which the expression above has read: what each says. The chunks
#: of a stream have few sizes, and to read such a line costs more than to look for it.
_lengths: Final[dict[bytes, int]] = {}
MAX_KNOWN: Final = 4096
MAX_KNOWN_LINE: Final = 8

#: The end of nearly every message.
NO_TRAILERS: Final = EndOfMessage(None)


class _Part:
    SIZE: Final = 0
    DATA: Final = 1
    DATA_END: Final = 2
    TRAILERS: Final = 3


def _remember(line: bytes, length: int) -> None:
    if len(_lengths) >= MAX_KNOWN:
        _lengths.clear()
    _lengths[line] = length


class ChunkedDecoder:
    """Decodes one body. `named` are the fields that the message's Connection field listed: no trailers either."""

    __slots__ = ("_extensions", "_left", "_limits", "_named", "_part", "_scanned", "_total")

    def __init__(self, limits: HeadLimits, named: frozenset[bytes]) -> None:
        self._limits = limits
        self._named = named
        self._part = _Part.SIZE
        self._left = 0  # bytes of the current chunk that are still to come
        self._total = 0  # bytes of data announced so far
        self._extensions = 0  # bytes of extensions so far
        self._scanned = 0  # bytes of an unfinished line, or trailer section, known to hold no end

    @property
    def open_line(self) -> int:
        """How much data is before the chunk's line, or the trailers, that are not whole; -1: none have begun."""
        return self._total if self._scanned else -1

    def copy(self) -> ChunkedDecoder:
        """One that is as far as this one, to look ahead with."""
        made = ChunkedDecoder(self._limits, self._named)
        made._part = self._part
        made._left = self._left
        made._total = self._total
        made._extensions = self._extensions
        made._scanned = self._scanned
        return made

    def decode(self, buffer: bytes | bytearray, at: int) -> tuple[bytes | EndOfMessage | None, int]:
        """What `buffer` holds from `at` on: all its data in one piece, or the end, or None; and the new offset. What is
        not consumed has to be given again, with more behind it. Raises Malformed, once data before the fault is
        returned.
        """
        size = len(buffer)
        if self._part == _Part.SIZE and type(buffer) is bytes:
            # One whole chunk and nothing else, of a size that was read before: an event of a stream.
            start = buffer.find(b"\n", at, at + MAX_KNOWN_LINE) + 1
            length = _lengths.get(buffer[at:start], 0) if start > at else 0
            end = start + length
            if length and end + 2 == size and buffer.endswith(b"\r\n"):
                self._total += length
                return buffer[start:end], size
        pieces: list[bytes] = []
        try:
            while at < size:
                part = self._part
                if part == _Part.DATA:
                    end = min(at + self._left, size)
                    piece = buffer[at:end]
                    pieces.append(piece if type(piece) is bytes else bytes(piece))
                    self._left -= end - at
                    at = end
                    if not self._left:
                        self._part = _Part.DATA_END
                elif part == _Part.DATA_END:
                    if buffer.startswith(b"\r\n", at):
                        at += 2
                        self._part = _Part.SIZE
                    elif size - at == 1 and buffer.startswith(b"\r", at):
                        break
                    else:
                        raise Malformed(Reason.BAD_FRAMING, "a chunk's data does not end where its size says")
                elif part == _Part.SIZE:
                    line = None
                    if not self._scanned or self._may_be_finished(buffer, at):
                        line = _CHUNK_LINE.match(buffer, at, at + MAX_CHUNK_LINE)
                    if line is None:
                        self._check_unfinished_line(buffer, at)
                        break
                    digits, extensions = line.groups()
                    start = line.end()
                    length = int(digits, 16)
                    end = start + length
                    if not extensions and start < end <= size - 2 and buffer.startswith(b"\r\n", end):
                        if start - at <= MAX_KNOWN_LINE:
                            _remember(bytes(buffer[at:start]), length)
                        # all of the chunk is here: one step in place of three
                        pieces.append(bytes(buffer[start:end]))
                        self._total += end - start
                        at = end + 2
                    else:
                        at = self._begin_chunk(line)
                elif pieces:
                    break
                else:
                    section = self._trailers(buffer, at)
                    if section is None:
                        break
                    return self._end(section.group(1)), section.end()
        except Malformed:
            if not pieces:  # otherwise the data first: the next call comes to the same fault
                raise
        if not pieces:
            return None, at
        # Thousands of chunks of a byte or three in one segment are there to keep us busy: 2 us each.
        if len(pieces) > MAX_TINY_CHUNKS and sum(map(len, pieces)) < MIN_TINY_SIZE * len(pieces):
            raise Malformed(Reason.BAD_FRAMING, f"more than {MAX_TINY_CHUNKS} tiny chunks at once")
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), at

    def _begin_chunk(self, line: re.Match[bytes]) -> int:
        """Start on the chunk whose line this is; the offset at which to go on."""
        length, extensions = int(line.group(1), 16), self._extensions + len(line.group(2))
        if length > MAX_LENGTH:
            raise Malformed(Reason.BAD_FRAMING, "a chunk is too large")
        if extensions > MAX_EXTENSIONS + self._total:
            raise Malformed(Reason.BAD_FRAMING, "more chunk extensions than data")
        self._extensions = extensions
        if not length:
            # the trailer section starts with this line's CRLF, so that it looks like every other field section
            self._part = _Part.TRAILERS
            return line.end() - 2
        self._total += length
        self._left = length
        self._part = _Part.DATA
        return line.end()

    def _may_be_finished(self, buffer: bytes | bytearray, at: int) -> bool:
        """Whether the line that was unfinished the last time has an end now: only then it is worth to be read anew."""
        if buffer.find(b"\n", at + self._scanned, at + MAX_CHUNK_LINE) < 0:
            return False
        self._scanned = 0
        return True

    def _check_unfinished_line(self, buffer: bytes | bytearray, at: int) -> None:
        end = buffer.find(b"\n", at, at + MAX_CHUNK_LINE)
        if end >= 0 or not _LINE_START.match(buffer, at):
            raise Malformed(Reason.BAD_FRAMING, "malformed chunk size or extension")
        if len(buffer) - at >= MAX_CHUNK_LINE:
            raise Malformed(Reason.BAD_FRAMING, f"a chunk's extensions are longer than {MAX_CHUNK_LINE} bytes")
        self._scanned = len(buffer) - at

    def _trailers(self, buffer: bytes | bytearray, at: int) -> re.Match[bytes] | None:
        """The trailer section, or None if it is not finished."""
        limits = self._limits
        start = at + max(self._scanned - 3, 0)
        end = buffer.find(b"\r\n\r\n", start)
        if (len(buffer) if end < 0 else end) - at > limits.max_head_bytes:
            raise Malformed(Reason.HEAD_TOO_LARGE, f"the trailers are longer than {limits.max_head_bytes} bytes", 431)
        if end < 0:
            if BARE_CR_OR_LF.search(buffer, start):
                raise Malformed(Reason.BAD_FIELD, "a trailer's line ends in a bare CR or LF, or holds one")
            self._scanned = len(buffer) - at
            return None
        # counted first: so many lines at most are there to be given back
        if buffer.count(b"\r\n", at, end) <= limits.max_fields:
            section = _TRAILERS.match(buffer, at)
            if section is not None:
                return section
        raise field_section_fault(bytes(buffer[at:end]), limits.max_fields)

    def _end(self, block: bytes) -> EndOfMessage:
        """The end, with the trailers that may be passed on (RFC 9110 section 6.5.1)."""
        if not block:
            return NO_TRAILERS
        late = late_fields(block, self._named)
        return EndOfMessage(Fields(late)) if late else NO_TRAILERS


def late_fields(block: bytes, named: frozenset[bytes] = frozenset()) -> bytes:
    """The lines of a trailer section that may be passed on: not those in `named`, nor what must come early."""
    return b"".join([b"\r\n" + line for line in block.split(b"\r\n")[1:] if _may_come_late(line, named)])


def _may_come_late(line: bytes, named: frozenset[bytes]) -> bool:
    name = line.partition(b":")[0].lower()
    hyphenated = name.replace(b"_", b"-").strip(b"-")  # some origins do not tell the two apart
    is_forbidden = hyphenated in _FORBIDDEN_TRAILERS or hyphenated.startswith((b"x-forwarded-", b"x-egress-"))
    return not (is_forbidden or name in named)
