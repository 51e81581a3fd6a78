"""The HTTP/1.1 codec: bytes in, events out. One strict reading of requests and of responses.

No asyncio, no sockets, no clock. A reader is fed what came, and asked for the next event until it needs more. Events
are a head, pieces of body (chunked coding taken off), and the end of a message; a head whose `body` is 0 is the whole
message, and no end follows it. The same bytes give the same events however they were cut into segments, with the
pieces of a body joined; the work is linear in the bytes fed. When a reader has refused something it stays broken.

What is checked here and in the modules beside this one, on raw bytes, before anything is acted on:

* request line: method a token of at most 32 bytes (its case kept), single spaces, target of visible ASCII without
  "#" and backslash, version HTTP/1.1 or HTTP/1.0; up to four empty lines before it are skipped;
* status line: HTTP/1.1 or HTTP/1.0, three digits, phrase without control bytes; the space behind the code may miss;
* field lines: CRLF alone ends a line, names are tokens with the colon at once behind them, no folding, no control
  bytes but HTAB in values, bounds on bytes and on the number of lines;
* Host: exactly one (HTTP/1.0: at most one), in the grammar of `model.authority`; beside CONNECT the target's host;
* framing: at most one Content-Length, 1*DIGIT up to 2^53; at most one Transfer-Encoding, `chunked` and nothing else;
  never both, no coding in HTTP/1.0, no content in CONNECT;
* target: origin-form; absolute-form with http or https, a host, no userinfo; authority-form for CONNECT and only there;
  `*` for OPTIONS and only there;
* chunks: see `chunked`.

llhttp is not on this path: it takes two Transfer-Encoding lines, a missing or second Host, HTTP/0.9 and HTTP/2.0,
double spaces, and a bare LF behind a request line, and it refuses methods that it does not know. The tests show that
it reads in the same way whatever is accepted here (but for optional blanks and trailers, where it is stricter).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from egressproxy.errors import BadRequest, LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.model.fields import Fields
from egressproxy.model.message import Hop, RequestHead, ResponseHead
from egressproxy.protocols.http1 import request_head, response_head
from egressproxy.protocols.http1.chunked import NO_TRAILERS, EndOfMessage
from egressproxy.protocols.http1.codec_states import BROKEN, IDLE, IN_CHUNKS, IN_HEAD, IN_LENGTH, IN_REST
from egressproxy.protocols.http1.framing import TCHAR, HeadLimits, Malformed, head_fault
from egressproxy.protocols.http1.head_grammar import FieldSection, HeadGrammar
from egressproxy.protocols.http1.message_reader import MessageReader

#: Empty lines that are skipped before a request line (RFC 9112 section 2.2).
MAX_EMPTY_LINES: Final = 4

#: Interim responses to one request; nobody needs more, and without a bound an upstream could send them for ever.
MAX_INTERIM: Final = 16

#: Method, version and spaces of a request line, on top of its target.
_LINE_OVERHEAD: Final = 64

#: What a request may begin with: its method, or an empty line.
_FIRST_BYTE: Final = re.compile(TCHAR + rb"|\r")

_STATUS_LINE_START: Final = b"HTTP/1."


class RequestReader(MessageReader[Hop]):
    """Reads the requests of one client connection, one at a time and in order.

    >>> reader = RequestReader(HeadLimits())
    >>> reader.feed(b"GET /a HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n")
    >>> reader.next()
    RequestHead(GET, body=0)

    Behind a CONNECT or an upgrade the caller decides before it asks for the next event: `take_rest` if the tunnel is
    made; if it is refused while something is `buffered`, the connection has to be closed: those bytes are no request.
    """

    __slots__ = ("_empty_lines", "_is_line_checked")

    def __init__(self, limits: HeadLimits, grammar: HeadGrammar[Hop] | None = None) -> None:
        """`grammar` is another one for these limits than that of all readers."""
        super().__init__(grammar or request_head.request_grammar(limits), IN_HEAD)
        self._empty_lines = 0
        self._is_line_checked = False

    @property
    def has_partial_head(self) -> bool:
        """Whether bytes of a head are buffered that `next` has not returned."""
        return self._state == IN_HEAD and self._at < len(self._buffer)

    def next(self) -> RequestHead | bytes | EndOfMessage | None:
        """The next event, or None: feed more. Raises BadRequest, LimitExceeded (413, 414, 431), always with `close`."""
        try:
            if self._state == IN_HEAD:
                buffer = self._buffer
                if self._at == len(buffer):
                    return None
                if buffer[self._at] == 0x0D:
                    self._skip_empty_lines()
                parts = self._head_parts()
                if parts is None:
                    self._refuse_or_wait()
                    return None
                method, target, minor, section = parts
                return self._head(method, target, minor, section)
            if self._fault is None:
                return self._next_of_body()
        except Malformed as fault:
            kind = LimitExceeded if fault.status in (413, 414, 431) else BadRequest
            self._fault = partial(kind, fault.reason, fault.message, status=fault.status, close=True)
            self._state = BROKEN
        assert self._fault is not None
        raise self._fault()

    def _head(self, method: bytes, target: bytes, minor: bytes, section: FieldSection) -> RequestHead:
        hop = self._hop_of(section.hop_fields, minor)
        fields = Fields(section.block, section.cut_lines)
        head = request_head.read_request_head(method, target, fields, hop, self._grammar.limits)
        self._empty_lines = 0
        self._is_line_checked = False
        if hop.body:
            self._begin_body(hop.body, hop.named)
        return head

    def _skip_empty_lines(self) -> None:
        while self._empty_lines < MAX_EMPTY_LINES and self._buffer.startswith(b"\r\n", self._at):
            self._at += 2
            self._empty_lines += 1

    def _head_fault(self, head: bytes) -> Malformed:
        return head_fault(head, self._grammar.limits, request_head.REQUEST_LINE, request_head.request_line_fault)

    def _check_start(self, buffer: bytes | bytearray, at: int) -> Reason:
        if not self._is_line_checked:
            line_end = buffer.find(b"\n", max(self._scanned, at))
            if line_end >= 0:
                line = bytes(buffer[at : line_end + 1])
                if not request_head.REQUEST_LINE.fullmatch(line):
                    raise request_head.request_line_fault(line, self._grammar.limits)
                self._is_line_checked = True
            elif len(buffer) - at > self._grammar.limits.max_target_bytes + _LINE_OVERHEAD:
                limit = self._grammar.limits.max_target_bytes
                raise Malformed(Reason.TARGET_TOO_LONG, f"the target is longer than {limit} bytes", 414)
            elif not _FIRST_BYTE.match(buffer, at):
                raise Malformed(Reason.BAD_REQUEST_LINE, "the connection does not speak HTTP/1")
        return Reason.BAD_FIELD if self._is_line_checked else Reason.BAD_REQUEST_LINE


class ResponseReader(MessageReader[response_head.ResponseHop]):
    """Reads the responses on one upstream connection, each announced by `expect`.

    Interim heads (1xx but 101) are events of their own; the final head follows. Behind a 101, and a 2xx to CONNECT,
    nothing is read any more: `take_rest`. A connection may be used again only if the message ended, its head has no
    `connection_close`, and nothing is `buffered`: surplus bytes belong to no response (RFC 9112 section 6.3).
    """

    __slots__ = ("_eof", "_interim", "_is_started", "_method")

    def __init__(self, limits: HeadLimits, grammar: HeadGrammar[response_head.ResponseHop] | None = None) -> None:
        super().__init__(grammar or response_head.response_grammar(limits), IDLE)
        self._method = b""
        self._interim = 0
        self._is_started = False  # something of this response has come
        self._eof: bool | None = None  # how the upstream ended: cleanly, or not

    def expect(self, method: bytes) -> None:
        """Announce the response to this method, which decides whether a body follows (RFC 9112 section 6.3)."""
        if self._state != IDLE or self._at < len(self._buffer):
            if self._state != BROKEN:
                self._break(Reason.BAD_RESPONSE, "the upstream spoke before it was asked", RetrySafety.IF_REUSED)
            return
        self._method = method
        self._interim = 0
        self._is_started = False
        self._state = IN_HEAD

    def feed_eof(self, clean: bool) -> None:
        """The upstream sends no more; `clean` is false after a reset, or an end of TLS without its close_notify."""
        if self._eof is None:
            self._eof = clean

    def next(self) -> ResponseHead | bytes | EndOfMessage | None:
        """The next event, or None: feed more (or the message is over). Raises UpstreamFault, now and on further calls:
        BAD_RESPONSE (a broken rule), UPSTREAM_INCOMPLETE (an end in the middle), UPSTREAM_CLOSED (an end before
        anything; retry: if reused).
        """
        event: ResponseHead | bytes | EndOfMessage | None = None
        try:
            if self._state == IN_HEAD:
                event = self._next_head()
            elif self._state == IN_REST:
                event = self._take(len(self._buffer))
                if event is None and self._eof:
                    self._state = IDLE
                    return NO_TRAILERS
            elif self._state != BROKEN:
                if self._state == IDLE:
                    return None
                event = self._next_of_body()
        except Malformed as fault:
            self._break(Reason.BAD_RESPONSE, f"the upstream's response is malformed: {fault.message}")
        if event is None and self._eof is not None and self._fault is None:
            self._break_off()
        if self._fault is not None:
            raise self._fault()
        return event

    def has_begun_body(self) -> bool:
        """Behind a final head: whether a byte of the body, or its end, is here. Raises UpstreamFault where the upstream
        ended before it, or sent no chunk.
        """
        has_begun = self._at < len(self._buffer) or (self._state == IN_REST and bool(self._eof))
        if self._chunks is not None:
            try:
                has_begun = self._chunks.copy().decode(self._buffer, self._at)[0] is not None
            except Malformed as fault:
                self._break(Reason.BAD_RESPONSE, f"the upstream's response is malformed: {fault.message}")
        if has_begun and self._fault is None:
            return True
        if self._eof is not None and self._fault is None:
            self._break_off()
        if self._fault is not None:
            raise self._fault()
        return False

    @property
    def needs_more(self) -> bool:
        """Within a body of which nothing is left: `next` gives None until more is fed."""
        return not self._buffer and self._eof is None and (self._state == IN_CHUNKS or self._left > 0)

    def settle_length(self) -> int:
        """The bytes of a chunked body of which the buffer holds all, and nothing behind it, trailers neither: from now
        on it is read as one of this length. -1 for any other body, and an empty one.
        """
        buffer = self._buffer
        if self._chunks is None or not buffer.endswith(b"\r\n0\r\n\r\n"):
            return -1
        chunks, at, pieces = self._chunks.copy(), self._at, []
        try:
            event, at = chunks.decode(buffer, at)
            while type(event) is bytes:
                pieces.append(event)
                event, at = chunks.decode(buffer, at)
        except Malformed:
            return -1  # that is told when it is read
        if event is not NO_TRAILERS or at != len(buffer) or not pieces:
            return -1
        self._buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._left = len(self._buffer)
        self._at = self._scanned = 0
        self._chunks = None
        self._state = IN_LENGTH
        return self._left

    def _next_head(self) -> ResponseHead | None:
        if not self._buffer:
            return None
        self._is_started = True
        parts = self._head_parts()
        if parts is None:
            self._refuse_or_wait()
            return None
        minor, code, phrase, section = parts
        hop = self._hop_of(section.hop_fields, minor)
        fields = Fields(section.block, section.cut_lines)
        head = response_head.read_response_head(code, phrase, fields, hop, self._method)
        length = head.body
        if length > 0:
            self._left = length
            self._state = IN_LENGTH
        elif head.is_interim:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise Malformed(Reason.BAD_RESPONSE, f"more than {MAX_INTERIM} interim responses")
        else:
            self._begin_body(length, hop.named)
        return head

    def _head_fault(self, head: bytes) -> Malformed:
        return head_fault(head, self._grammar.limits, response_head.STATUS_LINE, response_head.status_line_fault)

    def _check_start(self, buffer: bytes | bytearray, at: int) -> Reason:
        if not _STATUS_LINE_START.startswith(bytes(buffer[at : at + len(_STATUS_LINE_START)])):
            raise Malformed(Reason.BAD_RESPONSE, "the upstream does not speak HTTP/1")
        return Reason.BAD_FIELD

    def _break_off(self) -> None:
        """The upstream has ended in the middle (RFC 9112 section 8)."""
        if self._state == IN_HEAD and not self._is_started:
            self._break(
                Reason.UPSTREAM_CLOSED, "the upstream closed its connection without an answer", RetrySafety.IF_REUSED
            )
        else:
            self._break(Reason.UPSTREAM_INCOMPLETE, "the upstream's response broke off")

    def _break(self, reason: Reason, message: str, retry: RetrySafety = RetrySafety.NEVER) -> None:
        self._fault = partial(UpstreamFault, reason, message, retry=retry)
        self._state = BROKEN
