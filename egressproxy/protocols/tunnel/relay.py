"""Tunnel: two transports joined, octet for octet, with half-close, back-pressure, a guard for the first octets and
an idle limit.

Source: RFC 9110 section 9.3.6: when one side closes, what it sent is still delivered, then the other is closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from egressproxy.errors import Denied, GatewayError, Reason
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.transport.driver import Driver, pause
from egressproxy.transport.flow import Flow, reset
from egressproxy.transport.parked import Parked
from egressproxy.transport.timers import Deadline, TimerWheel

__all__ = ["Tunnel"]

#: How long an end that is left over may take nothing of what is still to be sent to it.
REST_S = 10.0

#: When a tunnel is looked at for the first time, and what the kernel then waits before and between its probes.
KEEPALIVE_S, KEEPALIVE_PROBE_S = 60, 15


class Tunnel:
    """Joins a client's and an upstream's transport. `await tunnel.ended()` gives when both are gone.

    `octets_in` came from the client, `octets_out` went to it. `reason` is OK, or why the tunnel was cut.
    """

    __slots__ = (
        "client",
        "deadline",
        "driver",
        "early",
        "error",
        "guard",
        "holds_upstream",
        "idle_s",
        "is_kept_alive",
        "is_over",
        "last_activity",
        "reason",
        "unsent",
        "upstream",
        "wheel",
    )  # fmt: skip

    def __init__(
        self, driver: Driver, wheel: TimerWheel, *, idle_s: float, guard: SniGuard | None, guard_s: float,
        holds_upstream: bool,
    ) -> None:  # fmt: skip
        self.driver = driver
        self.wheel = wheel
        self.idle_s = idle_s
        self.guard = guard
        self.client = TunnelEnd(self)
        self.upstream = TunnelEnd(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self.client.feed_from(self.upstream)
        self.upstream.feed_from(self.client)
        self.deadline = Deadline(wheel, self._deadline_passed)
        self.last_activity = wheel.now
        self.reason = Reason.OK
        self.error: GatewayError | None = None
        self.is_over = False
        self.unsent = 0  # when one side is gone: what the other had left to take when we last looked
        self.holds_upstream = holds_upstream
        self.early: list[bytes] = []  # what the upstream said before a ClientHello that has to come first
        self.is_kept_alive = False
        look_s = min(idle_s, KEEPALIVE_S) if idle_s > 0 else KEEPALIVE_S
        self.deadline.after(guard_s if guard is not None and guard.must_be_tls else look_s)

    @property
    def octets_in(self) -> int:
        return self.client.octets_in

    @property
    def octets_out(self) -> int:
        return self.client.octets_out

    def start(
        self,
        client: asyncio.Transport,
        client_rest: bytes,
        upstream: Parked,
        upstream_rest: bytes,
        *,
        client_has_ended: bool,
    ) -> None:
        """Take both transports over; the rests are octets that were read already, `client_has_ended` an end seen
        already.
        """
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
            await pause()
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: no cycle

    # --- called by the ends ------------------------------------------------------------------------------------
    def admit(self, data: bytes) -> bytes:
        """Client octets while there is a guard: what may go on."""
        assert self.guard is not None
        try:
            passed = self.guard.feed(data)
        except Denied as error:
            self.error = error
            self.cut(error.reason)
            return b""
        if passed is None:
            return b""
        self._dismiss_guard()
        return passed

    def _dismiss_guard(self) -> None:
        """From now on octets go both ways; first what was held back."""
        self.guard = None
        early, self.early = self.early, []
        for piece in early:
            self.client.octets_out += len(piece)
            self.client.transport.write(piece)
        self.upstream.resume_reading()
        self.deadline.after(min(self.idle_s, KEEPALIVE_S) if self.idle_s > 0 else KEEPALIVE_S)
        if self.upstream.has_ended:
            self.client.finish_writing()

    def _report_no_hello(self, guard: SniGuard) -> None:
        """Mode Report: a hello that does not come is noted, and the tunnel goes on."""
        held = guard.give_up()
        self._dismiss_guard()
        if held and not self.upstream.is_lost:
            self.upstream.octets_out += len(held)
            self.upstream.transport.write(held)

    def half_ended(self, end: TunnelEnd) -> None:
        """One side sends no more."""
        if self.guard is not None and end is self.client and not self.guard.must_be_tls and not self.guard.held:
            self.guard = None  # it says nothing at all, so nothing is left to look at
        if self.guard is not None and end is self.client and self.guard.only_reports:
            self._report_no_hello(self.guard)
        elif self.guard is not None and end is self.client:
            self.cut(Reason.NOT_TLS if self.guard.must_be_tls else Reason.OK)
            return
        if self.guard is not None and self.holds_upstream:
            return  # what the upstream said is held back: its end follows that
        end.other.finish_writing()
        if end.other.has_ended:
            end.transport.close()
            end.other.transport.close()

    def lost(self, end: TunnelEnd, error: Exception | None) -> None:
        """One side is gone: deliver what it sent, then close the other; after a reset there is nothing to deliver."""
        other = end.other
        if not other.is_lost:
            if error is None:
                other.transport.close()
            else:
                reset(other.transport)
            self.unsent = other.transport.get_write_buffer_size()
            self.deadline.after(REST_S)
        elif not self.is_over:
            self.is_over = True
            self.deadline.close()
            for side in (self.client, self.upstream):  # they hold each other: let go
                side.feed_from(None)
                del side.other
                del side.tunnel
            self.driver.resume()

    def cut(self, reason: Reason) -> None:
        """End it now."""
        self.reason = reason
        self.deadline.close()
        for end in (self.client, self.upstream):
            if not end.is_lost:
                end.transport.abort()

    def _deadline_passed(self) -> None:
        if self.guard is not None and self.guard.must_be_tls and self.guard.only_reports:
            self._report_no_hello(self.guard)
        elif self.guard is not None and self.guard.must_be_tls:
            self.error = Denied(Reason.NOT_TLS, f"no ClientHello came in the tunnel to {self.guard.authority}")
            self.cut(Reason.NOT_TLS)
        elif self.client.is_lost or self.upstream.is_lost:
            self._wait_for_rest()
        elif 0 < self.idle_s <= self.wheel.now - self.last_activity:
            self.cut(Reason.CLIENT_TIMEOUT)
        else:
            self._keep_alive()
            if self.idle_s > 0:
                self.deadline.set(self.last_activity + self.idle_s)

    def _keep_alive(self) -> None:
        """A tunnel that has lived for a minute: from now on the kernel finds out when a peer has vanished.

        Not at its start: five system calls are a tenth of what a short tunnel costs.
        """
        if self.is_kept_alive:
            return
        self.is_kept_alive = True
        for end in (self.client, self.upstream):
            sock = end.transport.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_S)

    def _wait_for_rest(self) -> None:
        """One side is gone; the other may still take what that one said, for as long as it takes something."""
        left = max(end.transport.get_write_buffer_size() for end in (self.client, self.upstream) if not end.is_lost)
        if 0 < left < self.unsent:
            self.unsent = left
            self.deadline.after(REST_S)
        else:
            self.cut(self.reason)

    def __repr__(self) -> str:
        return f"Tunnel(in={self.octets_in}, out={self.octets_out}, {'over' if self.is_over else 'open'})"


class TunnelEnd(Flow):
    """One side of a tunnel."""

    __slots__ = ("has_ended", "is_lost", "other", "tunnel")

    other: TunnelEnd

    def __init__(self, tunnel: Tunnel) -> None:
        super().__init__()
        self.tunnel = tunnel
        self.has_ended = False
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        tunnel = self.tunnel
        tunnel.last_activity = tunnel.wheel.now
        self.octets_in += len(data)
        if tunnel.guard is not None and self is tunnel.client:
            data = tunnel.admit(data)
            if not data:
                return
        elif tunnel.guard is not None and tunnel.holds_upstream:
            tunnel.early.append(data)
            self.pause_reading()
            return
        other = self.other
        if not other.is_lost:
            other.octets_out += len(data)
            other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        self.tunnel.half_ended(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.tunnel.lost(self, error)

    def finish_writing(self) -> None:
        """Pass the other side's end on; a transport that cannot end one direction is closed, once its buffer is
        sent.
        """
        if self.is_lost or self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def __repr__(self) -> str:
        return f"TunnelEnd({'lost' if self.is_lost else 'ended' if self.has_ended else 'open'})"
