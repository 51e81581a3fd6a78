"""MessageReader: the common base of the readers of requests and responses; `codec` interprets the heads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from egressproxy.errors import GatewayError, Reason
from egressproxy.model.message import CHUNKED, UNTIL_CLOSE, BodyLength
from egressproxy.model.states import state_name
from egressproxy.protocols.http1 import codec_states as states
from egressproxy.protocols.http1.chunked import NO_TRAILERS, ChunkedDecoder, EndOfMessage
from egressproxy.protocols.http1.codec_states import IN_CHUNKS, IN_LENGTH, IN_REST
from egressproxy.protocols.http1.framing import BARE_CR_OR_LF, HopFields, Malformed
from egressproxy.protocols.http1.head_grammar import MAX_REMEMBERED, NOWHERE, FieldSection, HeadGrammar

H = TypeVar("H")  # Hop or ResponseHop


class MessageReader(Generic[H]):
    """The common part of both readers: the buffer, splitting of heads, and bodies.

    The buffer is the segment that came last, as it came. Only where a segment begins before the one before it was used
    up (an unfinished head or chunk line, pipelined requests) are they joined, in a bytearray, which grows in place.
    """

    __slots__ = (
        "_at", "_between", "_buffer", "_chunks", "_fault", "_grammar", "_hop", "_hop_fields", "_left", "_line",
        "_line_parts", "_minor", "_most_bytes", "_place", "_scanned", "_state", "open_line",
    )  # fmt: skip

    _hop: H

    def __init__(self, grammar: HeadGrammar[H], state: int) -> None:
        self._state = self._between = state  # also behind each message
        self._grammar = grammar
        self._place = grammar.new_place()
        self._most_bytes = grammar.limits.max_head_bytes + 4
        self._hop_fields: HopFields = ()  # the last hop fields, which peers repeat; parsed as `_hop`
        self._minor = b""
        self._line = b""  # the start line of the head before, and its parts
        self._line_parts = (b"", b"", b"")
        self._fault: Callable[[], GatewayError] | None = None  # makes the error, once the reader is broken
        self._buffer: bytes | bytearray = b""
        self._at = 0  # everything before this offset is used up
        self._scanned = 0  # no head ends before this offset
        self._left = 0  # bytes of body still to come
        self._chunks: ChunkedDecoder | None = None
        self.open_line = -1  # see ChunkedDecoder: of the body that is read

    def buffered(self) -> int:
        """Bytes fed and not yet turned into events."""
        return len(self._buffer) - self._at

    @property
    def first_byte(self) -> bytes:
        """The first byte that is buffered; b"" if nothing is."""
        return bytes(self._buffer[self._at : self._at + 1])

    @property
    def is_untouched(self) -> bool:
        """Whether no head was ever read."""
        return not self._minor

    def begins_with(self, start: bytes) -> bool:
        """Whether these bytes are the first that are buffered."""
        return self._buffer.startswith(start, self._at)

    def feed(self, data: bytes) -> None:
        buffer = self._buffer
        if not buffer:  # the usual case: a used-up segment is let go at once
            self._buffer = data
            return
        at = self._at
        if at == len(buffer):
            self._buffer = data
            self._at = 0
            self._scanned = 0
            return
        if type(buffer) is not bytearray:
            self._buffer = buffer = bytearray(buffer)
        if at:
            del buffer[:at]
            self._scanned = max(self._scanned - at, 0)
            self._at = 0
        buffer += data

    def take_rest(self) -> bytes:
        """The bytes behind a head that started a tunnel or an upgraded connection. The reader is empty afterwards."""
        rest = bytes(self._buffer[self._at :])
        self._release()
        self.forget()
        return rest

    def forget(self) -> None:
        """Clear the cache of the last head, and disable it."""
        grammar = self._grammar
        grammar.forget(self._place)
        self._place = NOWHERE
        self._line = b""
        self._line_parts = (b"", b"", b"")
        if self._hop_fields:
            self._hop_fields = ()
            self._hop = grammar.hop((), b"0")
            self._minor = b"-"

    def _release(self) -> None:
        """Let go of a used-up segment: idle connections hold no buffers."""
        self._buffer = b""
        self._at = 0
        self._scanned = 0

    def _begin_body(self, length: BodyLength, named: frozenset[bytes]) -> None:
        """What follows the head just read."""
        if length == 0:
            self._state = self._between
        elif length > 0:
            self._left = length
            self._state = IN_LENGTH
        elif length == CHUNKED:
            self._chunks = ChunkedDecoder(self._grammar.limits, named)
            self._state = IN_CHUNKS
        else:
            self._state = IN_REST

    def take_whole_body(self, limit: int = -1) -> bytes | None:
        """The body that a length announced, if the buffer holds it alone: no end follows. Else None, and where it is
        longer than `limit` bytes (-1: any length).
        """
        buffer, at = self._buffer, self._at
        if self._state != IN_LENGTH or len(buffer) - at != self._left or 0 <= limit < self._left:
            return None
        self._state = self._between
        self._left = self._at = self._scanned = 0
        self._buffer = b""
        return bytes(buffer[at:])

    def _next_of_body(self) -> bytes | EndOfMessage | None:
        """The next event of a body whose length is known, or that is chunked."""
        if self._state == IN_LENGTH:
            if not self._left:
                self._state = self._between
                return NO_TRAILERS
            return self._take(self._left)
        assert self._chunks is not None
        event, self._at = self._chunks.decode(self._buffer, self._at)
        if event is None:
            self.open_line = self._chunks.open_line
        elif type(event) is EndOfMessage:
            self._chunks = None
            self.open_line = -1
            self._state = self._between
            self._scanned = 0
        if self._at == len(self._buffer):
            self._release()
        return event

    def _take(self, limit: int) -> bytes | None:
        """At most `limit` buffered bytes; the segment itself if it fits exactly."""
        buffer, at = self._buffer, self._at
        size = len(buffer) - at
        if not size:
            return None
        if size <= limit:
            piece = bytes(buffer) if not at else bytes(buffer[at:])
            self._release()
        else:
            piece = bytes(buffer[at : at + limit])
            size = limit
            self._at = at + limit
        self._left -= size
        return piece

    def _head_parts(self) -> tuple[bytes, bytes, bytes, FieldSection] | None:
        """The head in the buffer, checked and taken apart: the three parts of its start line, and its fields. It is
        used up then. None if it is not finished or breaks a rule: look twice.
        """
        buffer, at = self._buffer, self._at
        if type(buffer) is not bytes:
            if buffer.find(b"\r\n\r\n", max(self._scanned, at)) < 0:
                return None
            self._buffer = buffer = bytes(buffer)
        grammar = self._grammar
        line = self._line
        if line and buffer.startswith(line, at):
            start = at + len(line)
            first, second, third = self._line_parts
        else:
            match = grammar.match_start_line(buffer, at)
            if match is None:
                return None
            start = match.end()
            first, second, third = match.groups(b"")
            if start - at <= MAX_REMEMBERED and self._place != NOWHERE:
                self._line = buffer[at:start]
                self._line_parts = (first, second, third)
        found = grammar.section(buffer, start - 2, self._place)
        if found is None:
            return None
        section, end = found
        if end - at > self._most_bytes:
            self._look_for_end()  # raises Malformed
        if end == len(buffer):
            self._buffer = b""
            end = 0
        self._at = self._scanned = end
        return first, second, third, section

    def _hop_of(self, hop_fields: HopFields, minor: bytes) -> H:
        """What the fields of this hop say, in a head of this minor version of HTTP/1. Raises Malformed."""
        known = self._hop_fields
        if (hop_fields is known or hop_fields == known) and minor == self._minor:
            return self._hop
        return self._new_hop(hop_fields, minor)

    def _new_hop(self, hop_fields: HopFields, minor: bytes) -> H:
        """What the fields of this hop say where they are not those of the head before. Raises Malformed."""
        hop = self._grammar.hop(hop_fields, minor)
        size = 0
        for each in hop_fields:
            size += len(each)
        if size <= MAX_REMEMBERED and self._place != NOWHERE:
            self._hop = hop
            self._hop_fields = hop_fields
            self._minor = minor
        else:
            self._minor = b"-"  # that of no head: what is remembered is looked at no more
        return hop

    def _refuse_or_wait(self) -> None:
        """Raise Malformed if what is buffered can be no head, however it goes on."""
        buffer, at = self._buffer, self._at
        if at == len(buffer):
            self._release()
            return
        end = self._look_for_end()
        if end >= 0:
            raise self._head_fault(bytes(buffer[at : end + 4]))
        reason = self._check_start(buffer, at)
        if BARE_CR_OR_LF.search(buffer, max(self._scanned, at)):
            raise Malformed(reason, "a line ends in a bare CR or LF, or holds one")
        self._scanned = max(at, len(buffer) - 3)

    @abstractmethod
    def _head_fault(self, head: bytes) -> Malformed:
        """Why this complete head is refused."""

    @abstractmethod
    def _check_start(self, buffer: bytes | bytearray, at: int) -> Reason:
        """Raise Malformed if no head begins like this. Returns the reason that a bare CR or LF in it is told as."""

    def _look_for_end(self) -> int:
        """Where the unfinished or refused head in the buffer ends, or -1. Raises Malformed if it is over its limit."""
        end = self._buffer.find(b"\r\n\r\n", max(self._scanned, self._at))
        limit = self._grammar.limits.max_head_bytes
        if (end if end >= 0 else len(self._buffer)) - self._at > limit:
            raise Malformed(Reason.HEAD_TOO_LARGE, f"the head is longer than {limit} bytes", 431)
        return end

    def __repr__(self) -> str:
        return f"{type(self).__name__}({state_name(states, self._state)}, buffered={self.buffered()})"


assert CHUNKED < 0 > UNTIL_CLOSE  # `if head.body` asks whether a body follows, whatever its framing
