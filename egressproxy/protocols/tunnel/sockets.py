"""SocketTunnel: two plain sockets joined on the poller, with nothing above them.

Octets go from one socket to the other through one buffer that all tunnels share, or, where many come at once, through a
pipe within the kernel; a copy is made only of what the other side does not take, and until it has taken it nothing more
is read. An open tunnel costs these objects and no more.
"""

from __future__ import annotations

import errno
import os
import socket
from abc import abstractmethod
from contextlib import suppress

from egressproxy.errors import Reason
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.poller import ENDED, READABLE, WRITABLE, Poller
from egressproxy.net.sockets import END_FOLLOWS, NOT_WATCHED, SocketTransport, break_off
from egressproxy.net.splicing import Pipe
from egressproxy.protocols.tunnel.tunnel import Tunnel

__all__ = ["SocketEnd", "SocketTunnel"]

#: What one side may say in one event.
BUFFER_OCTETS = 256 * 1024

#: From so much in one event on, the next is spliced: below, two more system calls cost more than two copies.
LONG_OCTETS = 64 * 1024

#: splice(2) is not known here, or not allowed (a filter of system calls).
_NOT_FOR_US = frozenset((errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP))

_buffer = bytearray(BUFFER_OCTETS)
_view = memoryview(_buffer)
_shared: Pipe | None = None
_can_splice = True


def _pipe() -> Pipe | None:
    """The pipe of all tunnels; None where there is none to be had."""
    global _shared
    if _shared is None or not _shared.is_empty:
        if _shared is not None:
            _shared.close()
            _shared = None
        if not _can_splice:
            return None
        try:
            _shared = Pipe(BUFFER_OCTETS)
        except OSError:
            return None
    return _shared


def _cannot_splice() -> None:
    """This kernel does not know it for such sockets."""
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
        """The tunnel has ended; `octets_in`, `octets_out`, `reason` and `error` say how."""

    @property
    def octets_in(self) -> int:
        """What came from the client."""
        return self.client.octets_in

    @property
    def octets_out(self) -> int:
        """What went to the client."""
        return self.upstream.octets_in - len(self.early) - len(self.client.pending or b"") + self.own_octets

    def start(
        self,
        client: SocketTransport,
        client_rest: bytes,
        upstream: PendingProtocol,
        *,
        client_has_ended: bool,
    ) -> None:
        """Take both sockets from their transports; `client_rest` is what was read of the client already,
        `client_has_ended` an end seen already.
        """
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
        """Close both when everything is sent."""
        if self.client.pending is None and self.upstream.pending is None:
            self._finish()
        else:
            self.rest_begins()

    def sent(self, end: SocketEnd) -> None:
        """One side has taken all that was kept for it."""
        if end.other.has_ended:
            if end.has_ended and end.other.pending is None:
                self._finish()
                return
            if end.wants_eof:
                end.shut_down()
        end.watch()
        end.other.watch()

    def broken(self, end: SocketEnd) -> None:
        """One side was reset: the other is, too, since what it got may not be whole."""
        if not self.is_over:
            break_off(end.other.sock)
            self._finish()

    def refused(self, end: SocketEnd, error: OSError) -> None:
        """One side takes nothing more. An upstream that was reset behind its end (EPIPE, see tcp(7)) has said all that
        it had to say, and the client still gets that; what the client says meanwhile goes nowhere.
        """
        if end is self.client or error.errno != errno.EPIPE:
            self.broken(end)
            return
        end.pending = None
        if end.has_ended and self.client.pending is None:
            self._finish()

    def cut(self, reason: Reason) -> None:
        if not self.is_over:
            self.reason = reason
            for end in (self.client, self.upstream):
                if end.pending is not None:
                    break_off(end.sock)  # what it got must not look whole
            self._finish()

    def abort(self) -> None:
        """Break it off, visibly for the client."""
        if not self.is_over:
            break_off(self.client.sock)
            self._finish()

    def octets_left(self) -> int | None:
        if not (self.client.has_ended and self.upstream.has_ended):
            return None
        return len(self.client.pending or b"") + len(self.upstream.pending or b"")

    def _finish(self) -> None:
        self.is_over = True
        self.close()
        for end in (self.client, self.upstream):
            self.poller.forget(end.sock.fileno())
        self.poller.end_later(self._close)

    def _close(self) -> None:
        """At the end of the turn."""
        try:
            self.over()
        finally:
            for end in (self.client, self.upstream):  # they hold each other: let go
                end.sock.close()
                del end.other
                del end.tunnel
            del self.client
            del self.upstream


class SocketEnd:
    """One side: its socket, and what it did not take yet."""

    __slots__ = (
        "has_ended", "is_held", "is_long", "octets_in", "other", "pending", "sock", "tunnel", "wants_eof", "watched",
    )  # fmt: skip

    other: SocketEnd
    is_lost = False

    def __init__(self, tunnel: SocketTunnel, transport: SocketTransport) -> None:
        self.tunnel = tunnel
        self.pending: bytes | memoryview | None
        self.sock, self.pending, self.watched = transport.detach()
        self.octets_in = 0
        self.has_ended = False
        self.is_held = False
        self.is_long = False  # so much comes at once that it need not be copied
        self.wants_eof = False
        if self.watched != NOT_WATCHED:
            tunnel.poller.hand_over(self.sock.fileno(), self)

    # --- events ------------------------------------------------------------------------------------------------------
    def ready(self, _fd: int, events: int) -> None:
        tunnel = self.tunnel
        if self.pending is not None and events & (WRITABLE | ENDED):
            self._send_pending()
        if not events & (READABLE | ENDED) or tunnel.is_over:
            return
        other = self.other
        if self.has_ended or self.is_held or other.pending is not None:
            self._look_away(events)
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
            self.octets_in += size
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
            self.is_long = size >= LONG_OCTETS
            # Once more only where the end is known to be behind it: anything else would be an error to catch.
            if not events & END_FOLLOWS or size == BUFFER_OCTETS:
                return

    def _splice(self) -> bool:
        """Octets from this side to the other within the kernel. False where that cannot be done: nothing has happened
        then.

        That nothing is there, and that this is the end, is for recv(2) to say: splice(2) says either of what stands
        before an urgent octet, too, at which it stops (RFC 9293 section 3.8.5; recv passes over it).
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
        self.is_long = size >= LONG_OCTETS
        tunnel.last_activity = tunnel.wheel.now
        self.octets_in += size
        try:
            rest = pipe.give(other.sock.fileno(), size)
        except OSError as error:
            tunnel.refused(other, error)
            return True
        if rest:
            other.keep(rest)
        return True

    def failed(self, error: Exception) -> None:
        """What was in hand may be lost: nothing that either side got may look whole."""
        tunnel = self.tunnel
        if not tunnel.is_over:
            break_off(self.sock)
            break_off(self.other.sock)
            tunnel.cut(Reason.INTERNAL)

    def received(self, data: bytes) -> None:
        """These octets came from this side: past the guard, to the other."""
        tunnel = self.tunnel
        tunnel.last_activity = tunnel.wheel.now
        self.octets_in += len(data)
        data = tunnel.admit(self, data)
        if data and not tunnel.is_over:
            self.other.send(data)

    def ended(self) -> None:
        """This side sends no more."""
        self.has_ended = True
        self.tunnel.half_ended(self)
        self.watch()

    # --- writing -----------------------------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        if self.pending is not None:
            self.pending = bytes(self.pending) + data
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
        """It did not take this: nothing more is read for it until it has."""
        self.pending = bytes(rest)
        self.watch()
        self.other.watch()

    def _send_pending(self) -> None:
        assert self.pending is not None
        try:
            sent = self.sock.send(self.pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.tunnel.refused(self, error)
            return
        if sent < len(self.pending):
            self.pending = memoryview(self.pending)[sent:]
            return
        self.pending = None
        self.tunnel.sent(self)

    def finish_writing(self) -> None:
        self.wants_eof = True
        if self.pending is None:
            self.shut_down()

    def shut_down(self) -> None:
        with suppress(OSError):  # it is gone: the poller will say so
            self.sock.shutdown(socket.SHUT_WR)

    # --- reading -----------------------------------------------------------------------------------------------------
    def hold(self) -> None:
        self.is_held = True

    def resume_reading(self) -> None:
        if self.is_held:
            self.is_held = False
            self.watch()

    def watch(self) -> None:
        """Watch for what is wanted at this moment."""
        tunnel = self.tunnel
        if tunnel.is_over:
            return
        wanted = 0 if self.has_ended or self.is_held or self.other.pending is not None else READABLE
        if self.pending is not None:
            wanted |= WRITABLE
        if wanted == self.watched:
            return
        try:
            if self.watched == NOT_WATCHED:
                tunnel.poller.watch(self.sock.fileno(), wanted, self)
            else:
                tunnel.poller.change(self.sock.fileno(), wanted)
            self.watched = wanted
        except OSError:  # out of memory, or of what fs.epoll.max_user_watches allows
            tunnel.cut(Reason.INTERNAL)

    def _look_away(self, events: int) -> None:
        """Something is to be read, and nobody wants it now."""
        if not events & ENDED:
            self.watch()
            return
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if self.has_ended else 0
        if code:
            self.tunnel.refused(self, OSError(code, os.strerror(code)))
        if not self.tunnel.is_over:
            # reported again and again; found when it is read on, or when the other side has ended, too
            self.watched = NOT_WATCHED
            self.tunnel.poller.leave(self.sock.fileno())

    def option(self, level: int, name: int, value: int) -> None:
        self.sock.setsockopt(level, name, value)

    def __repr__(self) -> str:
        return f"SocketEnd({'ended' if self.has_ended else 'open'}, {len(self.pending or b'')} octets pending)"
