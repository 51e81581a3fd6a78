"""TransportTunnel: two transports joined. Between two plain sockets `protocols/tunnel/socket_tunnel` costs less."""

from __future__ import annotations

import asyncio

from egressproxy.errors import Reason
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import FlowControl, reset
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.protocols.tunnel.tunnel import EndState, Tunnel, TunnelState


class TransportTunnel(Tunnel["TransportEnd"]):
    """Joins two transports; `ended` waits for the end. `bytes_in` came from the client, `bytes_out` went to it."""

    __slots__ = ("driver",)

    def __init__(
        self,
        driver: Driver,
        wheel: TimerWheel,
        idle_s: float,
        guard: SniGuard | None,
        guard_s: float,
        *,
        holds_upstream: bool,
    ) -> None:
        super().__init__(wheel, idle_s, guard, guard_s, holds_upstream=holds_upstream)
        self.driver = driver
        self.client = TransportEnd(self)
        self.upstream = TransportEnd(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self.client.feed_from(self.upstream)
        self.upstream.feed_from(self.client)

    @property
    def bytes_in(self) -> int:
        return self.client.bytes_in

    @property
    def bytes_out(self) -> int:
        return self.client.bytes_out

    def start(
        self,
        client: asyncio.Transport,
        client_rest: bytes,
        upstream: PendingProtocol,
        upstream_rest: bytes,
        *,
        client_has_ended: bool,
    ) -> None:
        """Take both transports; the rests were read already, `client_has_ended`: so was the client's end."""
        client.set_protocol(self.client)
        self.client.connection_made(client)
        self.upstream.connection_made(upstream.transport)
        if client_rest:
            self.client.data_received(client_rest)
        if client_has_ended and not self.is_over:
            self.client.eof_received()
        if upstream_rest and not self.is_over:
            self.upstream.data_received(upstream_rest)
        upstream.hand_over(self.upstream)

    async def ended(self) -> None:
        """Wait for the end. Raises Denied if the guard refused."""
        while not self.is_over:
            await PAUSE
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: no cycle

    # --- called by the ends ------------------------------------------------------------------------------------
    def both_ended(self) -> None:
        self.client.transport.close()
        self.upstream.transport.close()

    def lost(self, end: TransportEnd, error: Exception | None, *, had_ended: bool) -> None:
        """One side is gone: deliver its bytes, then close the other; after a reset there is nothing to deliver."""
        other = end.other
        if not other.is_lost:
            if error is None or (had_ended and end is self.upstream):  # complete: deliver to the client
                other.transport.close()
            else:
                reset(other.transport)
            self.rest_begins()
        elif not self.is_over:
            self._state = TunnelState.OVER
            self.close()
            for side in (self.client, self.upstream):  # break the reference cycle
                side.feed_from(None)
                del side.other
                del side.tunnel
            self.driver.resume()

    def cut(self, reason: Reason) -> None:
        self.reason = reason
        self.clear()
        for end in (self.client, self.upstream):
            if not end.is_lost:
                end.transport.abort()

    def bytes_left(self) -> int:
        return sum(end.transport.get_write_buffer_size() for end in (self.client, self.upstream) if not end.is_lost)


class TransportEnd(FlowControl):
    """One side of a tunnel, with the states of `EndState`."""

    __slots__ = ("_state", "other", "tunnel")
    __deletable__ = ("other", "tunnel")  # for mypyc

    other: TransportEnd

    def __init__(self, tunnel: TransportTunnel) -> None:
        super().__init__()
        self.tunnel = tunnel
        self._state = EndState.OPEN

    @property
    def has_ended(self) -> bool:
        return self._state != EndState.OPEN

    @property
    def is_lost(self) -> bool:
        return self._state == EndState.LOST

    def data_received(self, data: bytes) -> None:
        """Pass bytes through the guard, if any, to the other side."""
        tunnel = self.tunnel
        tunnel.last_activity = tunnel.wheel.now
        self.bytes_in += len(data)
        if tunnel.guard is not None:
            data = tunnel.admit(self, data)
            if not data:
                return
        self.other.send(data)

    def eof_received(self) -> bool:
        self._state = EndState.ENDED
        self.tunnel.half_ended(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        was, self._state = self._state, EndState.LOST
        if was != EndState.LOST:
            self.tunnel.lost(self, error, had_ended=was == EndState.ENDED)

    def send(self, data: bytes) -> None:
        """Send at once: the bytes of one turn are one piece already."""
        if not self.is_lost:
            self.bytes_out += len(data)
            self.transport.write(data)

    def hold(self) -> None:
        self.pause_reading()

    def finish_writing(self) -> None:
        """Half-close; a transport without half-close is closed once its buffer is sent."""
        if self.is_lost or self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def option(self, level: int, name: int, value: int) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(level, name, value)
