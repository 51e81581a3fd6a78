"""SocketTransport: a connected TCP socket on the poller, behind asyncio's interface of a transport.

It keeps asyncio's promises (callbacks never come from within `write`, `close` or `abort`; `connection_lost` comes
exactly once, as the last; an end of input leaves the other direction open where `eof_received` says so), and one more:
a peer that resets its connection behind its end is noticed though nothing is read any more.

`detach` gives the socket away, to a relay that needs no protocol.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from egressproxy.net.poller import ENDED, READABLE, WRITABLE, Poller

__all__ = ["END_FOLLOWS", "NOT_WATCHED", "Socket", "SocketTransport", "break_off"]

#: The socket itself, without the Python class around it, whose calls take longer.
Socket = socket.SocketType

#: One read at most.
READ_OCTETS = 64 * 1024
#: asyncio's default of what may be queued before `pause_writing`.
HIGH_WATER = 64 * 1024
#: So many pieces go to the kernel in one call (IOV_MAX is 1024).
MAX_PIECES = 64

#: In place of a mask: the descriptor is not on the poller.
NOT_WATCHED = -1
_INPUT = select.EPOLLIN
_READABLE_OR_ENDED = READABLE | ENDED
_WRITABLE_OR_ENDED = WRITABLE | ENDED
#: What says in an event that nothing comes behind what is there.
END_FOLLOWS = select.EPOLLRDHUP | ENDED

#: Stands for the protocol once the connection is gone.
_GONE = asyncio.Protocol()


def break_off(sock: Socket) -> None:
    """Its close will be TCP's RST in place of its FIN, which would make what was sent look whole."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class SocketTransport(asyncio.Transport):
    """States: open; closing (what is queued is still sent); ending (told at the end of the turn); gone."""

    __slots__ = (
        "_error", "_fd", "_has_eof", "_high", "_is_closing", "_is_ending", "_is_reading", "_is_write_paused", "_low",
        "_peer", "_protocol", "_queue", "_socket", "_wants_eof", "_watched", "poller",
    )  # fmt: skip

    def __init__(
        self,
        poller: Poller,
        sock: Socket,
        protocol: asyncio.BaseProtocol,
        peer: Any = None,
        watched: int = NOT_WATCHED,
    ) -> None:
        """A socket that does not block. `peer`: its other end's address, if known; `watched`: what it is on the poller
        for already. Nothing happens before `start`.
        """
        self.poller = poller
        self._socket: Socket | None = sock
        self._fd = sock.fileno()
        self._protocol: Any = protocol
        self._peer = peer
        self._queue: bytearray | None = None  # what the kernel did not take; never empty
        self._high = HIGH_WATER
        self._low = HIGH_WATER // 4
        self._watched = watched
        self._is_reading = True
        self._has_eof = False  # the peer has ended its side
        self._wants_eof = False  # ours is to end behind the queue, or has
        self._is_write_paused = False
        self._is_closing = False
        self._is_ending = False
        self._error: Exception | None = None

    def start(self) -> None:
        """Tell the protocol of its connection, and begin to read."""
        self._protocol.connection_made(self)
        if self._is_ending:
            return
        if self._watched != NOT_WATCHED:
            self.poller.hand_over(self._fd, self)
        self._watch()

    # --- events ----------------------------------------------------------------------------------------------------
    def ready(self, _fd: int, events: int) -> None:
        if events != _INPUT or not self._is_reading or self._queue is not None:  # hardly ever
            self._something_else(events)
            return
        try:
            data = self._socket.recv(READ_OCTETS)  # type: ignore[union-attr]   # it is there until we are ending
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._end_of_input()

    def _something_else(self, events: int) -> None:
        if self._queue is not None and events & _WRITABLE_OR_ENDED:
            self._send_queued()
        if not events & _READABLE_OR_ENDED or self._is_ending:
            return
        if not self._is_reading:
            self._look_away(events)
            return
        while True:
            try:
                data = self._socket.recv(READ_OCTETS)  # type: ignore[union-attr]   # it is there until we are ending
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._break(error)
                return
            if not data:
                self._end_of_input()
                return
            self._protocol.data_received(data)
            # Once more only where the end is known to be behind it: anything else would be an error to catch.
            if not events & END_FOLLOWS or len(data) == READ_OCTETS or not self._is_reading:
                return

    def failed(self, error: Exception) -> None:
        self._break(error)

    def _end_of_input(self) -> None:
        self._is_reading = False
        self._has_eof = True
        if not self._protocol.eof_received():
            self.close()
        elif not self._is_ending:
            self._watch()

    def _look_away(self, events: int) -> None:
        """Something is to be read, and nobody wants it now."""
        if not events & ENDED or self._is_closing:
            self._watch()
        elif not self._has_eof:
            self._unwatch()  # reported again and again; found when reading is resumed
        else:
            assert self._socket is not None
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._break(OSError(code, os.strerror(code)))
            else:
                self._unwatch()  # both sides have ended

    def _watch(self) -> None:
        """Watch for what is wanted at this moment."""
        wanted = (READABLE if self._is_reading else 0) | (WRITABLE if self._queue is not None else 0)
        if wanted == self._watched:
            return
        try:
            if self._watched == NOT_WATCHED:
                self.poller.watch(self._fd, wanted, self)
            else:
                self.poller.change(self._fd, wanted)
            self._watched = wanted
        except OSError as error:  # out of memory, or of what fs.epoll.max_user_watches allows
            self._break(error)

    def _unwatch(self) -> None:
        if self._watched != NOT_WATCHED:
            self._watched = NOT_WATCHED
            self.poller.leave(self._fd)

    # --- reading -----------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        """What the poller watches for is changed only when something comes."""
        self._is_reading = False

    def resume_reading(self) -> None:
        if self._is_reading or self._has_eof or self._is_closing:
            return
        self._is_reading = True
        if self._watched & READABLE != READABLE or self._watched == NOT_WATCHED:
            self._watch()

    def is_reading(self) -> bool:
        return self._is_reading

    # --- writing -----------------------------------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Send what the kernel takes at once, queue the rest. Ignored once the transport is closing."""
        if self._is_closing or not data:
            return
        if self._wants_eof:
            raise RuntimeError("write after write_eof")
        if self._queue is not None:
            self._enqueue(data, 0)
            return
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(error)
            return
        if sent < len(data):
            self._enqueue(data, sent)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        pieces = [piece for piece in list_of_data if piece]
        if len(pieces) < 2 or len(pieces) > MAX_PIECES or self._queue is not None or self._is_closing:
            for piece in pieces:
                self.write(piece)
            return
        if self._wants_eof:
            raise RuntimeError("write after write_eof")
        assert self._socket is not None
        try:
            sent = self._socket.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(error)
            return
        for piece in pieces:
            if sent < len(piece):
                self._enqueue(piece, sent)
            sent = max(0, sent - len(piece))

    def _enqueue(self, data: Any, sent: int) -> None:
        if self._queue is None:
            self._queue = bytearray()
            self._watch()
            if self._is_ending:
                return
        self._queue += memoryview(data)[sent:]  # in one piece: many small ones take far more room
        if len(self._queue) > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def _send_queued(self) -> None:
        queue = self._queue
        assert queue is not None
        assert self._socket is not None
        try:
            del queue[: self._socket.send(queue)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(error)
            return
        left = len(queue)
        if not left:
            self._queue = None
            self._all_sent()
        if self._is_write_paused and left <= self._low and not self._is_closing:
            self._is_write_paused = False
            self._protocol.resume_writing()

    def _all_sent(self) -> None:
        if self._is_closing:
            self._finish()
            return
        self._watch()
        if self._wants_eof:
            self._shut_down()

    def get_write_buffer_size(self) -> int:
        return len(self._queue) if self._queue is not None else 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Octets that may be queued before `pause_writing`, and from which on `resume_writing` comes."""
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End our side behind what is queued."""
        if self._is_closing or self._wants_eof:
            return
        self._wants_eof = True
        if self._queue is None:
            self._shut_down()

    def _shut_down(self) -> None:
        assert self._socket is not None
        with suppress(OSError):  # the peer is gone: the poller will say so
            self._socket.shutdown(socket.SHUT_WR)

    # --- the end -----------------------------------------------------------------------------------------------------
    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close when all is sent; nothing more is read."""
        if self._is_closing:
            return
        self._is_closing = True
        self._is_reading = False
        if self._queue is None:
            self._finish()

    def abort(self) -> None:
        """Close now; where something is queued it is dropped, and the peer sees a reset: what it got is not whole."""
        if not self._is_ending:
            if self._queue is not None and self._socket is not None:
                break_off(self._socket)
            self._finish()

    def _break(self, error: Exception) -> None:
        if not self._is_ending:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self._is_closing = self._is_ending = True
        self._is_reading = False
        self._queue = None
        self.poller.forget(self._fd)
        self.poller.end_later(self._end)

    def _end(self) -> None:
        """At the end of the turn: the last word to the protocol."""
        sock, self._socket = self._socket, None
        protocol, self._protocol = self._protocol, _GONE  # it holds us as its transport: let go
        error, self._error = self._error, None
        if sock is None:
            return
        try:
            protocol.connection_lost(error)
        finally:
            sock.close()

    def detach(self) -> tuple[Socket, bytes | None, int]:
        """Give the socket away, with what it did not take yet, and what it is still watched for. This transport is
        closing from now on, and its protocol hears nothing more of it.
        """
        sock, queue, watched = self._socket, self._queue, self._watched
        assert sock is not None
        assert not self._is_closing
        self._is_closing = self._is_ending = True
        self._is_reading = False
        self._socket = self._queue = None
        self._protocol = _GONE
        return sock, bytes(queue) if queue is not None else None, watched

    # --- what it is --------------------------------------------------------------------------------------------------
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_write_paused = False  # the new one is told at the next write, should that still be so

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `peername` and `sockname`."""
        if name == "peername":
            if self._peer is None and self._socket is not None:
                with suppress(OSError):
                    self._peer = self._socket.getpeername()
            return self._peer if self._peer is not None else default
        if self._socket is None:
            return default
        if name == "socket":
            return self._socket
        if name == "sockname":
            with suppress(OSError):
                return self._socket.getsockname()
        return default

    def __repr__(self) -> str:
        state = "gone" if self._socket is None else "closing" if self._is_closing else "open"
        return f"SocketTransport({state}, {self.get_write_buffer_size()} octets queued)"
