"""SocketTunnel: two plain sockets joined on the poller, with nothing above them.

Bytes go from one socket to the other through one buffer that all tunnels share, or for large reads through a pipe in
the kernel. Only bytes that the other side does not accept are copied, and reading pauses until they are sent. An open
tunnel costs only these objects.
"""

from __future__ import annotations

import errno
from abc import abstractmethod
from typing import Final

from egressproxy.errors import Reason
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.poller import READABLE, Poller
from egressproxy.net.sockets import END_FOLLOWS, SocketTransport
from egressproxy.net.splicing import Pipe
from egressproxy.net.watched_socket import (
    NOT_WATCHED,
    READABLE_OR_ENDED,
    WRITABLE_OR_ENDED,
    Socket,
    WatchedSocket,
    break_off,
)
from egressproxy.protocols.tunnel.tunnel import EndState, Tunnel, TunnelState

#: The most bytes of one read.
BUFFER_SIZE: Final = 256 * 1024

#: Reads of at least this size are followed by splice(2): below, two more system calls cost more than two copies.
LONG_SIZE: Final = 64 * 1024

#: The errors of a missing or forbidden splice(2) (seccomp).
_NOT_FOR_US: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP))

_buffer: Final = bytearray(BUFFER_SIZE)
_view: Final = memoryview(_buffer)
_shared: Pipe | None = None
_can_splice = True


def _pipe() -> Pipe | None:
    """The pipe that all tunnels share, or None if unavailable."""
    global _shared
    if _shared is None or not _shared.is_empty:
        if _shared is not None:
            _shared.close()
            _shared = None
        if not _can_splice:
            return None
        try:
            _shared = Pipe(BUFFER_SIZE)
        except OSError:
            return None
    return _shared


def _cannot_splice() -> None:
    """Disable splice(2), which this kernel does not support for such sockets."""
    global _can_splice, _shared
    _can_splice = False
    if _shared is not None:
        _shared.close()
        _shared = None


class SocketTunnel(Tunnel["SocketEnd"]):
    """`over` is called when both sockets are about to be closed."""

    __slots__ = ("poller",)

    poller: Poller

    @abstractmethod
    def over(self) -> None:
        """Handle the end; `bytes_in`, `bytes_out`, `reason` and `error` have the result."""

    @property
    def bytes_in(self) -> int:
        return self.client.bytes_in

    @property
    def bytes_out(self) -> int:
        return self.upstream.bytes_in - len(self.early) - len(self.client.unsent or b"") + self.own_bytes

    def start(
        self,
        client: SocketTransport,
        client_rest: bytes,
        upstream: PendingProtocol,
        *,
        client_has_ended: bool,
    ) -> None:
        """Take both sockets; `client_rest` was read from the client already, `client_has_ended`: so was its FIN."""
        transport = upstream.transport
        assert isinstance(transport, SocketTransport)
        self.poller = client.poller
        self.client = SocketEnd(self, client)
        self.upstream = SocketEnd(self, transport)
        self.client.other, self.upstream.other = self.upstream, self.client
        if client_rest:
            self.client.received(client_rest)
        if client_has_ended and not self.is_over:
            self.client.ended()
        if upstream.data and not self.is_over:
            self.upstream.received(b"".join(upstream.data))
        if upstream.has_ended and not self.is_over:
            self.upstream.ended()
        for end in (self.client, self.upstream):
            if end.watched != READABLE:
                end.watch()

    # --- called by the ends ------------------------------------------------------------------------------------------
    def both_ended(self) -> None:
        if self.client.unsent is None and self.upstream.unsent is None:
            self._finish()
        else:
            self.rest_begins()

    def sent(self, end: SocketEnd) -> None:
        """Continue after all buffered bytes of one side are sent."""
        if end.other.has_ended:
            if end.has_ended and end.other.unsent is None:
                self._finish()
                return
            if end is self.upstream or not self.holds_upstream:  # else held bytes come first
                end.shut_down()
        end.watch()
        end.other.watch()

    def broken(self, end: SocketEnd) -> None:
        """Reset the other side after a reset, since its data may be incomplete."""
        if not self.is_over:
            break_off(end.other.sock)
            self._finish()

    def refused(self, end: SocketEnd, error: OSError) -> None:
        """Handle a failed write. The data of an upstream that was reset after its FIN (EPIPE, see tcp(7)) is complete,
        and still goes to the client; the client's further bytes are dropped.
        """
        if end is self.client or error.errno != errno.EPIPE:
            self.broken(end)
            return
        end.unsent = None
        if end.has_ended and self.client.unsent is None:
            self._finish()

    def cut(self, reason: Reason) -> None:
        """End the tunnel now, for this reason; a side with unsent bytes gets a reset."""
        if not self.is_over:
            self.reason = reason
            for end in (self.client, self.upstream):
                if end.unsent is not None:
                    break_off(end.sock)  # the data must not look complete
            self._finish()

    def abort(self) -> None:
        """Reset the tunnel, visibly for the client."""
        if not self.is_over:
            break_off(self.client.sock)
            self._finish()

    def bytes_left(self) -> int:
        return len(self.client.unsent or b"") + len(self.upstream.unsent or b"")

    def _finish(self) -> None:
        self._state = TunnelState.OVER
        self.close()
        for end in (self.client, self.upstream):
            self.poller.forget(end.sock.fileno())
        self.poller.end_later(self._close)

    def _close(self) -> None:
        """Close the sockets, at the end of the turn."""
        try:
            self.over()
        finally:
            self.client.sock.close()
            self.upstream.sock.close()
            # Break the reference cycle of the three objects.
            del self.client.other
            del self.client
            del self.upstream


class SocketEnd(WatchedSocket):
    """One side: its socket and its unsent bytes, with the states of `EndState`."""

    __slots__ = ("_state", "bytes_in", "is_long", "other", "poller", "sock", "tunnel", "unsent", "watched")
    __deletable__ = ("other",)  # for mypyc

    other: SocketEnd
    sock: Socket
    unsent: bytearray | None

    def __init__(self, tunnel: SocketTunnel, transport: SocketTransport) -> None:
        self.tunnel = tunnel
        self.poller = tunnel.poller
        self.sock, self.unsent, self.watched = transport.detach()
        self.bytes_in = 0
        self._state = EndState.OPEN
        self.is_long = False  # reads are large enough for splice
        if self.watched != NOT_WATCHED:
            self.poller.hand_over(self.sock.fileno(), self)

    @property
    def has_ended(self) -> bool:
        return self._state == EndState.ENDED

    # --- events ------------------------------------------------------------------------------------------------------
    def ready(self, _fd: int, events: int) -> None:
        """Handle the poller's event: read once, and pass the bytes to the other side."""
        tunnel, other = self.tunnel, self.other
        if self.unsent is not None and events & WRITABLE_OR_ENDED:
            self.send_unsent()
            if tunnel.is_over:
                return
        if not events & READABLE_OR_ENDED:
            return
        if self._state != EndState.OPEN or other.unsent is not None:
            self.look_away(events, is_at_end=self._state == EndState.ENDED)
            return
        if self.is_long and self._splice():
            return
        while True:
            try:
                size = self.sock.recv_into(_buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                tunnel.broken(self)
                return
            if not size:
                self.ended()
                return
            if tunnel.guard is not None:
                self.received(bytes(_view[:size]))
                return
            tunnel.last_activity = tunnel.wheel.now
            self.bytes_in += size
            try:
                sent = other.sock.send(_view[:size])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                tunnel.refused(other, error)
                return
            if sent < size:
                other.keep(_view[sent:size])
                return
            self.is_long = size >= LONG_SIZE
            # Read again only if a FIN is known to follow: otherwise the read would raise.
            if not events & END_FOLLOWS or size == BUFFER_SIZE:
                return

    def _splice(self) -> bool:
        """Move bytes to the other side within the kernel. Returns false, without effect, if splice is unavailable.

        Only recv(2) reports an empty socket and the end of input reliably: splice(2) also stops at an urgent byte (RFC
        9293 section 3.8.5), which recv skips.
        """
        tunnel, other = self.tunnel, self.other
        self.is_long = False
        pipe = _pipe()
        if pipe is None:
            return False
        try:
            size = pipe.take(self.sock.fileno())
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _NOT_FOR_US:
                tunnel.broken(self)
                return True
            _cannot_splice()
            return False
        if not size:
            return False
        self.is_long = size >= LONG_SIZE
        tunnel.last_activity = tunnel.wheel.now
        self.bytes_in += size
        try:
            rest = pipe.give(other.sock.fileno(), size)
        except OSError as error:
            tunnel.refused(other, error)
            return True
        if rest:
            other.keep(rest)
        return True

    def failed(self, error: Exception) -> None:
        """Reset both sides: bytes may be lost, so no data must look complete."""
        tunnel = self.tunnel
        if not tunnel.is_over:
            break_off(self.sock)
            break_off(self.other.sock)
            tunnel.cut(Reason.INTERNAL)

    def received(self, data: bytes) -> None:
        """Pass bytes of this side through the guard to the other side."""
        tunnel = self.tunnel
        tunnel.last_activity = tunnel.wheel.now
        self.bytes_in += len(data)
        data = tunnel.admit(self, data)
        if data and not tunnel.is_over:
            self.other.send(data)

    def ended(self) -> None:
        """Handle the end of this side's input."""
        self._state = EndState.ENDED
        self.tunnel.half_ended(self)
        self.watch()

    # --- writing -----------------------------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        """Send bytes to this side; unsent bytes are buffered."""
        if self.unsent is not None:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.tunnel.refused(self, error)
            return
        if sent < len(data):
            self.keep(memoryview(data)[sent:])

    def keep(self, rest: bytes | memoryview) -> None:
        """Buffer unsent bytes, and pause reading from the other side until they are sent."""
        self.unsent = bytearray(rest)
        self.watch()
        self.other.watch()

    def all_sent(self) -> None:
        self.tunnel.sent(self)

    def send_failed(self, error: OSError) -> None:
        self.tunnel.refused(self, error)

    def finish_writing(self) -> None:
        if self.unsent is None:
            self.shut_down()

    # --- reading -----------------------------------------------------------------------------------------------------
    def hold(self) -> None:
        self._state = EndState.HELD

    def resume_reading(self) -> None:
        if self._state == EndState.HELD:
            self._state = EndState.OPEN
            self.watch()

    def wants_input(self) -> bool:
        """Whether to read from this side: its input is open, and the other side has no unsent bytes."""
        return self._state == EndState.OPEN and self.other.unsent is None

    def watch(self) -> None:
        if not self.tunnel.is_over:
            super().watch()

    def watch_failed(self, error: OSError) -> None:
        """Cut the tunnel, which is no longer reliable."""
        self.tunnel.cut(Reason.INTERNAL)

    def option(self, level: int, name: int, value: int) -> None:
        self.sock.setsockopt(level, name, value)
