"""TLS over any transport, by our own driver: ciphertext in, plaintext out, callbacks only.

The loops' own TLS reports a connection that was cut exactly like one that was closed, so a truncated response would
pass for a complete one. Here the two differ: a close_notify gives `eof_received`, an end without it `connection_lost`
with TlsTruncated (RFC 8446 section 6.1, RFC 9112 section 9.8).

A `TlsStream` is the protocol of the transport below and the transport of the protocol above. The one below may be a
TlsStream itself: that is TLS inside a tunnel through an encrypted parent.

`tls_states` has the states. Three flags are independent of them: the protocol above has paused reading, its writing is
paused, and the transport below has ended its input (TCP's FIN), which a paused reader may see much later.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

from egressproxy.model.states import state_name
from egressproxy.net import tls_states as states
from egressproxy.net.tls_failures import TLS_EXPECTATION, TlsExpectation, TlsTruncated, is_eof
from egressproxy.net.tls_resumption import TlsResumption
from egressproxy.net.tls_states import BOTH_ENDED, CLOSED, ENDED, ENDING, FAILED, HANDSHAKE, JOINING, OPEN, PEER_ENDED

#: The most plaintext of one record (RFC 8446 section 5.1). A read of this size takes a whole record. An empty
#: ciphertext buffer afterwards then means that no record is left, which saves a read that would raise.
MAX_PLAINTEXT: Final = 16384

#: Bytes that pass through OpenSSL's buffers at a time: no limit towards upstreams, one record towards clients. The
#: buffers (BIO) never shrink (87 KB after 64 KiB), and a client may leave many connections idle.
UNBOUNDED: Final = (1 << 62) - 1  # compiled code has no quicker number that is larger

_READS: Final = (OPEN, ENDING, ENDED)
_WRITES: Final = (OPEN, PEER_ENDED)
_HAS_PEER_END: Final = (PEER_ENDED, BOTH_ENDED)
_HAS_OUR_END: Final = (ENDED, BOTH_ENDED)
_IS_EARLY: Final = (HANDSHAKE, JOINING)
_IS_UNHEARD: Final = (HANDSHAKE, JOINING, FAILED)
_OVER: Final = (FAILED, CLOSED)


#: Handshakes of this process, by side and result.
handshakes: Final[Counter[tuple[str, str]]] = Counter()
_SIDES: Final = ("upstream", "downstream")

#: Replaces the inner protocol once the connection is gone.
_GONE_PROTOCOL: Final = asyncio.Protocol()


class TlsStream(asyncio.Protocol, asyncio.Transport):
    """One TLS connection.

    `on_handshake(stream, error)` is called exactly once, with None when the handshake is done and the peer is verified.
    It may look at the `ssl_object`, `set_protocol` by ALPN, or close. Then `inner.connection_made(stream)` is called.
    With an error the connection is closed, and `inner` gets no callback; `tls_fault` translates the error for clients.

    `verify` is called with the SSLObject before `on_handshake`, and raises ssl.SSLCertVerificationError to refuse the
    peer (see `tls_contexts.ClientTls`). Time limits are the caller's: `abort_handshake`. `expected` is for error
    messages; `resumption` provides the session to resume, and stores the new session.
    """

    __slots__ = (
        "_error", "_expected", "_has_eof", "_in", "_inner", "_is_paused", "_is_write_paused", "_on_handshake", "_out",
        "_piece", "_read", "_resumption", "_ssl", "_state", "_transport", "_verify",
    )  # fmt: skip

    _transport: asyncio.Transport
    #: In front of the slot of asyncio's class, which lies elsewhere in a compiled object: nobody reads or writes it.
    _extra: ClassVar[None] = None

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None,
        inner: asyncio.Protocol,
        on_handshake: OnHandshake,
        verify: Callable[[ssl.SSLObject], None] | None = None,
        expected: TlsExpectation | None = None,
        resumption: TlsResumption | None = None,
    ) -> None:
        # Not asyncio's __init__: its `_extra` is unused, and has no slot in a compiled object.
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=server_hostname,
            session=resumption.session(context) if resumption is not None else None,
        )  # fmt: skip
        self._resumption = resumption
        self._read: Callable[[int], bytes] = self._ssl.read
        self._piece = MAX_PLAINTEXT if server_side else UNBOUNDED
        self._inner = inner
        self._on_handshake: OnHandshake | None = on_handshake
        self._verify = verify
        self._expected = expected
        self._state = HANDSHAKE
        self._error: Exception | None = None
        self._is_paused = False  # the inner protocol does not want plaintext
        self._is_write_paused = False
        self._has_eof = False  # TCP FIN from the peer

    # --- protocol of the transport below -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handshake()

    def data_received(self, data: bytes | memoryview) -> None:
        """Decrypt, and deliver whole records at once."""
        if len(data) > self._piece:
            whole = memoryview(data)
            for at in range(0, len(whole), self._piece):
                self.data_received(whole[at : at + self._piece])
            return
        self._in.write(data)
        if self._state in _READS:
            self._pump()
        elif self._state == HANDSHAKE:
            self._handshake()

    def eof_received(self) -> bool:
        """Handle TCP FIN: the connection ends, unless close_notify came before and the inner protocol still writes."""
        self._has_eof = True
        self._in.write_eof()
        if self._state in _READS:
            self._pump()
        elif self._state == HANDSHAKE:
            self._handshake()
        # A paused reader still has records to come: whether the end is clean shows when they are read.
        return self._state in _HAS_PEER_END or (self._is_paused and self._state in _READS)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport below is gone. Without close_notify the protocol above gets TlsTruncated."""
        was, self._state = self._state, FAILED if self._state in _IS_EARLY else CLOSED
        if self._resumption is not None:
            if was in _IS_UNHEARD:
                self._resumption.failed()  # a server may fail on resumption
            else:
                self._resumption.ended(self._ssl)
        if was in _IS_UNHEARD:
            self._report(exc or ConnectionResetError("the peer closed the connection in the TLS handshake"))
            self._inner = _GONE_PROTOCOL
            return
        if self._error is not None:
            exc = self._error
        elif exc is None and was in _READS:
            exc = TlsTruncated("the connection ended without close_notify")
        inner, self._inner = self._inner, _GONE_PROTOCOL  # breaks the reference cycle with its transport
        inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._state not in _IS_UNHEARD:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._state not in _IS_UNHEARD:
            self._inner.resume_writing()

    # --- transport of the protocol above -------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Encrypt and send; ignored after `write_eof` or closing. Raises RuntimeError before `connection_made`."""
        if not data or self._state not in _WRITES:
            if self._state in _IS_EARLY:
                raise RuntimeError("write before the TLS handshake is done")
            return
        try:
            if len(data) > self._piece:
                self._transport.writelines(list(self._records(memoryview(data))))
                return
            sent = self._ssl.write(data)
            if sent < len(data):
                rest = memoryview(data)[sent:]
                while rest:
                    sent = self._ssl.write(rest)
                    rest = rest[sent:]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._transport.write(self._out.read())

    def _records(self, rest: memoryview) -> Iterator[bytes]:
        while rest:
            sent = self._ssl.write(rest[: self._piece])
            rest = rest[sent:]
            yield self._out.read()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))  # few large records rather than many small ones

    def can_write_eof(self) -> bool:
        """TLS can end one direction (RFC 8446 section 6.1)."""
        return True

    def write_eof(self) -> None:
        """Half-close: send close_notify, and go on reading (RFC 8446 section 6.1)."""
        if self._state == PEER_ENDED:
            self._state = BOTH_ENDED
            self._send_close_notify()
        elif self._state == OPEN:
            if self._in.pending:
                self._state = ENDING  # OpenSSL drops records that it finds unread when it shuts down
            else:
                self._state = ENDED
                self._send_close_notify()

    def close(self) -> None:
        """Send close_notify, then close the transport when all is written. `connection_lost(None)` follows."""
        if self._state == HANDSHAKE:
            self.abort()
        elif self._state not in _OVER:
            if self._state not in _HAS_OUR_END:
                self._send_close_notify()
            self._mark_closed()
            self._transport.close()

    def abort(self) -> None:
        self._mark_closed()
        self._transport.abort()

    def _mark_closed(self) -> None:
        if self._state not in _OVER:
            self._state = FAILED if self._state in _IS_EARLY else CLOSED

    def abort_handshake(self) -> None:
        """End a handshake that took too long: `on_handshake` gets TimeoutError. Does nothing after the handshake."""
        if self._state == HANDSHAKE:
            self.abort()
            self._report(TimeoutError("the TLS handshake took too long"))

    @property
    def is_lost(self) -> bool:
        return self._inner is _GONE_PROTOCOL

    def is_closing(self) -> bool:
        return self._state >= FAILED or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Deliver no more plaintext. At most one read of the transport below is buffered, as ciphertext."""
        self._is_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again; buffered records follow in the next turn of the loop."""
        if not self._is_paused:
            return
        self._is_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        if self._in.pending or self._has_eof:
            asyncio.get_running_loop().call_soon(self._pump)  # never from within the caller

    def is_reading(self) -> bool:
        """Whether plaintext is delivered: no pause, and no end of either kind."""
        return not self._is_paused and self._state in _READS

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the inner protocol; `pause_writing` of a full buffer follows in the next turn of the loop."""
        self._inner = cast(asyncio.Protocol, protocol)
        if self._is_write_paused:  # only the former protocol was paused
            asyncio.get_running_loop().call_soon(self._repeat_pause)

    def _repeat_pause(self) -> None:
        if self._is_write_paused:
            self._inner.pause_writing()

    def get_protocol(self) -> asyncio.Protocol:
        return self._inner

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`ssl_object` and `tls_expectation` of this stream; other names of the transport below."""
        if name == "ssl_object":
            return self._ssl
        if name == TLS_EXPECTATION:
            return self._expected
        return self._transport.get_extra_info(name, default)

    # --- inside --------------------------------------------------------------------------------------------------
    def _handshake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ValueError) as error:
            self._fail(error)
            return
        self._flush()
        if self._verify is not None:
            try:
                self._verify(self._ssl)
            except ssl.SSLError as error:
                self._fail(error)
                return
        if self._resumption is not None:
            self._resumption.opened(self._ssl)
        handshakes[_SIDES[self._ssl.server_side], "resumed" if self._ssl.session_reused else "full"] += 1
        self._state = JOINING
        self._report(None)
        if self.is_closing():
            return
        self._state = OPEN
        self._inner.connection_made(self)
        if self._is_write_paused:
            self._inner.pause_writing()
        if self._in.pending or self._has_eof:
            self._pump()

    def _report(self, error: Exception | None) -> None:
        if error is not None and self._on_handshake is not None:
            handshakes[_SIDES[self._ssl.server_side], "failed"] += 1
        on_handshake, self._on_handshake = self._on_handshake, None
        if on_handshake is not None:
            on_handshake(self, error)

    def _pump(self) -> None:
        incoming = self._in
        while self._state in _READS and not self._is_paused:
            try:
                plain = self._read(MAX_PLAINTEXT)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                plain = b""
            except ssl.SSLError as error:
                if not is_eof(error):
                    self._fail(error)
                    return
                self._error = TlsTruncated("the connection ended without close_notify")
                self._state = CLOSED
                self._transport.close()
                return
            if not plain:
                self._peer_closed()
                break
            self._inner.data_received(plain)
            if not incoming.pending and not self._has_eof:
                break
        if self._out.pending:
            self._flush()  # an answer to KeyUpdate or a refused renegotiation
        if self._state == ENDING and not incoming.pending:
            self._state = ENDED
            self._send_close_notify()

    def _peer_closed(self) -> None:
        was, self._state = self._state, PEER_ENDED if self._state == OPEN else BOTH_ENDED
        if was == ENDING:
            self._send_close_notify()
        if not self._inner.eof_received():
            self.close()

    def _send_close_notify(self) -> None:
        with suppress(ssl.SSLError, OSError):  # sent; do not wait for the peer's close_notify
            self._ssl.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._out.pending:
            self._transport.write(self._out.read())

    def _fail(self, error: Exception) -> None:
        """Give up: send the alert that OpenSSL wrote, if the peer takes it at once."""
        if self._resumption is not None:
            self._resumption.failed()
        self._mark_closed()
        self._error = error.with_traceback(None)  # its frames hold us: no cycle
        is_free = self._transport.get_write_buffer_size() == 0
        self._flush()
        if is_free:
            self._transport.close()
        else:
            self._transport.abort()
        self._report(error)

    def __repr__(self) -> str:
        return f"TlsStream({state_name(states, self._state).lower()}{', paused' if self._is_paused else ''})"


OnHandshake = Callable[[TlsStream, Exception | None], None]
