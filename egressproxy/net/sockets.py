"""SocketTransport: a connected TCP socket on the poller, behind asyncio's interface of a transport.

It keeps asyncio's guarantees: callbacks never come from within `write`, `close` or `abort`; `connection_lost` comes
exactly once, as the last; after an end of input the other direction stays open if `eof_received` returns true. One more
guarantee: a reset after the peer's FIN is noticed although nothing is read any more.

`detach` hands the socket to a relay that needs no protocol.

`socket_states` has the states. Two flags stand beside the state, since each may be set and cleared in every state of an
open connection: the protocol has paused reading, and the protocol was told to pause writing.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, Final

from egressproxy.model.states import state_name
from egressproxy.net import socket_states as states
from egressproxy.net.poller import ENDED as ENDED_EVENTS
from egressproxy.net.poller import READABLE, Poller
from egressproxy.net.socket_states import BOTH_ENDED, CLOSED, CLOSING, ENDED, GONE, OPEN, PEER_ENDED
from egressproxy.net.watched_socket import (
    NOT_WATCHED,
    READABLE_OR_ENDED,
    WRITABLE_OR_ENDED,
    Socket,
    WatchedSocket,
    break_off,
)

#: Bytes of one read at most.
READ_SIZE: Final = 64 * 1024
#: asyncio's default of how many bytes may be queued before `pause_writing`.
HIGH_WATER: Final = 64 * 1024
#: The most buffers in one system call (IOV_MAX is 1024).
MAX_PIECES: Final = 64

_INPUT: Final = select.EPOLLIN
#: Flags of an event after which no more input follows.
END_FOLLOWS: Final = select.EPOLLRDHUP | ENDED_EVENTS

#: Replaces the protocol once the connection is gone.
_GONE_PROTOCOL: Final = asyncio.Protocol()

_READS: Final = (OPEN, ENDED)
_WRITES: Final = (OPEN, PEER_ENDED)
_HAS_PEER_END: Final = (PEER_ENDED, BOTH_ENDED)
_HAS_OUR_END: Final = (ENDED, BOTH_ENDED)
_OVER: Final = (CLOSED, GONE)


class SocketTransport(WatchedSocket, asyncio.Transport):
    """The transport, with the states of `socket_states`."""

    __slots__ = (
        "_error", "_high", "_is_paused", "_is_write_paused", "_low", "_peer", "_protocol", "_state", "poller", "sock",
        "unsent", "watched",
    )  # fmt: skip

    unsent: bytearray | None
    #: In front of the slot of asyncio's class, which lies elsewhere in a compiled object: nobody reads or writes it.
    _extra: ClassVar[None] = None

    def __init__(
        self,
        poller: Poller,
        sock: Socket,
        protocol: asyncio.BaseProtocol,
        peer: Any = None,
        watched: int = NOT_WATCHED,
    ) -> None:
        """`sock` is non-blocking. `peer`: the peer's address, if known; `watched`: the events that the poller already
        watches for. No event is handled before `start`.
        """
        self.poller = poller
        self.sock = sock
        self.unsent = None
        self.watched = watched
        self._protocol: Any = protocol
        self._peer = peer
        self._high = HIGH_WATER
        self._low = HIGH_WATER // 4
        self._is_paused = False
        self._is_write_paused = False
        self._state = OPEN
        self._error: Exception | None = None

    def start(self) -> None:
        self._protocol.connection_made(self)
        if self._state in _OVER:
            return
        if self.watched != NOT_WATCHED:
            self.poller.hand_over(self.sock.fileno(), self)
        self.watch()

    # --- events ----------------------------------------------------------------------------------------------------
    def ready(self, _fd: int, events: int) -> None:
        """The poller's event: read once, and hand it to the protocol."""
        # Once the peer has ended, EPOLLIN never comes alone; while we are closing, something is unsent.
        if events != _INPUT or self._is_paused or self.unsent is not None:  # hardly ever
            self._something_else(events)
            return
        try:
            data = self.sock.recv(READ_SIZE)
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
        if self.unsent is not None and events & WRITABLE_OR_ENDED:
            self.send_unsent()
            if self._is_write_paused and self.get_write_buffer_size() <= self._low and not self.is_closing():
                self._is_write_paused = False
                self._protocol.resume_writing()
        if not events & READABLE_OR_ENDED or self._state in _OVER:
            return
        if not self.is_reading():
            self.look_away(0 if self._state == CLOSING else events, is_at_end=self._state in _HAS_PEER_END)
            return
        while True:
            try:
                data = self.sock.recv(READ_SIZE)
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
            if not events & END_FOLLOWS or len(data) == READ_SIZE or not self.is_reading():
                return

    def failed(self, error: Exception) -> None:
        self._break(error)

    def send_failed(self, error: OSError) -> None:
        self._break(error)

    def watch_failed(self, error: OSError) -> None:
        self._break(error)

    def _end_of_input(self) -> None:
        self._state = PEER_ENDED if self._state == OPEN else BOTH_ENDED
        if not self._protocol.eof_received():
            self.close()
        elif self._state not in _OVER:
            self.watch()

    # --- reading -----------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        """Pause; the poller's registration changes only when the next input arrives."""
        self._is_paused = True

    def resume_reading(self) -> None:
        if not self._is_paused:
            return
        self._is_paused = False
        if self._state in _READS and (self.watched & READABLE != READABLE or self.watched == NOT_WATCHED):
            self.watch()

    def is_reading(self) -> bool:
        """Whether bytes of the peer are read: no pause, and no end of either kind."""
        return not self._is_paused and self._state in _READS

    def wants_input(self) -> bool:
        return not self._is_paused and self._state in _READS

    # --- writing -----------------------------------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Send what the kernel takes, queue the rest; nothing once it closes. RuntimeError behind `write_eof`."""
        if not data or self._state not in _WRITES:
            self._refuse_after_end(data)
            return
        if self.unsent is not None:
            self._enqueue(data, 0)
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(error)
            return
        if sent < len(data):
            self._enqueue(data, sent)

    def _refuse_after_end(self, data: Any) -> None:
        if data and self._state in _HAS_OUR_END:
            raise RuntimeError("write after write_eof")

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """`write` for all pieces, in one system call if possible."""
        pieces = [piece for piece in list_of_data if piece]
        if len(pieces) < 2 or len(pieces) > MAX_PIECES or self.unsent is not None or self._state not in _WRITES:
            for piece in pieces:
                self.write(piece)
            return
        try:
            sent = self.sock.sendmsg(pieces)
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
        unsent = self.unsent
        if unsent is None:
            unsent = self.unsent = bytearray()
            self.watch()
            if self._state in _OVER:
                return
        unsent += memoryview(data)[sent:]  # in one piece: many small ones take far more room
        if len(unsent) > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def all_sent(self) -> None:
        """Finish closing, or end our side, now that the queue is empty."""
        if self._state == CLOSING:
            self._finish()
            return
        self.watch()
        if self._state in _HAS_OUR_END:
            self.shut_down()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent) if self.unsent is not None else 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """`high`: queued bytes above which `pause_writing` is called; `low`: below which `resume_writing` is called."""
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._state not in _WRITES:
            return
        self._state = ENDED if self._state == OPEN else BOTH_ENDED
        if self.unsent is None:
            self.shut_down()

    # --- the end -----------------------------------------------------------------------------------------------------
    def is_closing(self) -> bool:
        return self._state >= CLOSING

    def close(self) -> None:
        if self._state >= CLOSING:
            return
        self._state = CLOSING
        if self.unsent is None:
            self._finish()

    def abort(self) -> None:
        """Close now and drop the queue; the peer sees a reset if bytes were dropped, since its input is incomplete."""
        if self._state not in _OVER:
            if self.unsent is not None:
                break_off(self.sock)
            self._finish()

    def _break(self, error: Exception) -> None:
        if self._state not in _OVER:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self._state = CLOSED
        self.unsent = None
        self.poller.forget(self.sock.fileno())
        self.poller.end_later(self._end)

    def _end(self) -> None:
        """Call `connection_lost`, at the end of the turn."""
        self._state = GONE
        protocol, self._protocol = self._protocol, _GONE_PROTOCOL  # breaks the reference cycle with its transport
        error, self._error = self._error, None
        try:
            protocol.connection_lost(error)
        finally:
            self.sock.close()

    def detach(self) -> tuple[Socket, bytearray | None, int]:
        """Hand over the socket, its unsent bytes, and the events that the poller watches for. This transport is closing
        from now on, and its protocol gets no more callbacks.
        """
        assert self._state < CLOSING
        unsent, self.unsent = self.unsent, None
        self._state = GONE
        self._protocol = _GONE_PROTOCOL
        return self.sock, unsent, self.watched

    # --- what it is --------------------------------------------------------------------------------------------------
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_write_paused = False  # the next write pauses the new protocol if needed

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def speak_for(self, peer: Any) -> None:
        """Set the `peername` that the other end has announced (PROXY protocol)."""
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `peername` and `sockname`; after the end only a `peername` that was known before."""
        is_gone = self._state == GONE
        if name == "peername":
            if self._peer is None and not is_gone:
                with suppress(OSError):
                    self._peer = self.sock.getpeername()
            return self._peer if self._peer is not None else default
        if is_gone:
            return default
        if name == "socket":
            return self.sock
        if name == "sockname":
            with suppress(OSError):
                return self.sock.getsockname()
        return default

    def __repr__(self) -> str:
        state = state_name(states, self._state).lower()
        return f"SocketTransport({state}, {self.get_write_buffer_size()} bytes unsent)"
