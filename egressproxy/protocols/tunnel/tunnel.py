"""Tunnel: the common logic of tunnels: the guard of the first bytes, time limits, and the order in which two sides end.

States and transitions of a tunnel; no others are allowed:

    state     event  next      the event
    --------  -----  --------  -----------------------------------------------------------------------------------
    OPEN      hello  HELLO     a ClientHello has begun, and has `guard_s` from now on to be whole
    HELLO     whole  OPEN      it goes on, or the guard has been dismissed; where one has to come, HELLO is first
    OPEN      rest   DRAINING  nobody says more; what was said is delivered, for as long as it is taken (REST_S)
    HELLO     rest   DRAINING
    OPEN      end    OVER      everything is delivered, or the tunnel was cut
    HELLO     end    OVER
    DRAINING  end    OVER

States of each end:

    state     event   next      the event
    --------  ------  --------  ----------------------------------------------------------------------------------
    OPEN      hold    HELD      what it says may not go on yet: nothing more is read (only between two sockets;
    HELD      resume  OPEN      a transport pauses)
    OPEN      end     ENDED     it sends no more (TCP's FIN, close_notify)
    HELD      end     ENDED     that was seen before the tunnel had it
    OPEN      loss    LOST      its transport is gone (only of a transport: sockets of a tunnel go together)
    ENDED     loss    LOST

Two flags are independent of the state: the upstream is not read before a ClientHello (`holds_upstream`, in OPEN and
HELLO), and the kernel sends keep-alive probes (`is_kept_alive`).

Source: RFC 9110 section 9.3.6: when one side closes, what it sent is still delivered, then the other is closed.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from egressproxy.errors import BadRequest, Denied, GatewayError, Reason
from egressproxy.net.timers import Timer, TimerWheel
from egressproxy.protocols.tunnel.guard import SniGuard

#: Seconds without progress after which the draining of the remaining end is aborted.
REST_S: Final = 10.0

#: Seconds until the first check of a tunnel, and the kernel's idle time and interval of its probes.
KEEPALIVE_S: Final = 60
KEEPALIVE_PROBE_S: Final = 15


class TunnelState:
    OPEN: Final = 0
    HELLO: Final = 1
    DRAINING: Final = 2
    OVER: Final = 3


class EndState:
    OPEN: Final = 0
    HELD: Final = 1
    ENDED: Final = 2
    LOST: Final = 3


_OK: Final = Reason.OK


class TunnelEnd(Protocol):
    """One side of a tunnel."""

    @property
    def has_ended(self) -> bool:
        """Whether its input has ended."""

    def send(self, data: bytes) -> None:
        """Send bytes to this side; unsent bytes are buffered."""

    def finish_writing(self) -> None:
        """Half-close this side after its buffer is sent."""

    def hold(self) -> None:
        """Pause reading."""

    def resume_reading(self) -> None:
        """Resume reading after `hold`."""

    def option(self, level: int, name: int, value: int) -> None:
        """Set an option of its socket. Raises OSError."""


E = TypeVar("E", bound=TunnelEnd)


class Tunnel(Timer, Generic[E]):
    """A tunnel and its timer. `reason` is OK, or the reason of a cut; `error` is the guard's refusal."""

    __slots__ = (
        "_state", "client", "early", "error", "guard", "guard_s", "holds_upstream", "idle_s", "is_kept_alive",
        "last_activity", "own_bytes", "reason", "unsent", "upstream",
    )  # fmt: skip
    __deletable__ = ("client", "upstream")  # mypyc asks for it; Python needs no leave to delete

    client: E
    upstream: E

    def __init__(
        self, wheel: TimerWheel, idle_s: float, guard: SniGuard | None, guard_s: float, *, holds_upstream: bool
    ) -> None:
        """The ends are set next. `holds_upstream`: until a ClientHello goes on, the upstream is not heard. `guard_s`:
        the seconds that a ClientHello may take from its first byte, and from the start where one has to come; 0: as
        many as the tunnel may be idle.
        """
        super().__init__(wheel)
        self.idle_s = idle_s
        self.guard = guard
        self.guard_s = guard_s
        self.holds_upstream = holds_upstream
        self.last_activity = wheel.now
        self.reason: Reason = _OK
        self.error: GatewayError | None = None
        self.is_kept_alive = False
        self.own_bytes = 0  # for the client, of nobody but us
        self.unsent = 0  # when an end is left over: what it had left to take when we last looked
        self.early = b""  # what the upstream said before a ClientHello that has to come first
        self._state = TunnelState.HELLO if guard is not None and guard.must_be_tls and guard_s > 0 else TunnelState.OPEN
        self.after(guard_s if self._state == TunnelState.HELLO else self._look_s())

    @property
    def is_over(self) -> bool:
        return self._state == TunnelState.OVER

    def _look_s(self) -> float:
        return min(self.idle_s, KEEPALIVE_S) if self.idle_s > 0 else KEEPALIVE_S

    # --- how its bytes are moved ---------------------------------------------------------------------------------
    @abstractmethod
    def both_ended(self) -> None:
        """Close both sides when all bytes are sent, after both inputs have ended."""

    @abstractmethod
    def bytes_left(self) -> int:
        """The unsent bytes of the remaining end."""

    @abstractmethod
    def cut(self, reason: Reason) -> None:
        """End it now."""

    # --- the guard -------------------------------------------------------------------------------------------------
    def admit(self, end: E, data: bytes) -> bytes:
        """The bytes of one side that the guard lets pass."""
        guard = self.guard
        if guard is None:
            return data
        if end is not self.client:
            return self._admit_upstream(guard, end, data)
        try:
            passed = guard.feed(data)
        except Denied as error:
            self.error = error
            if guard.alert:
                self._alert(guard.alert)
            self.cut(error.reason)
            return b""
        if guard.is_over:
            self.guard = None
        if passed:
            self._let_upstream_speak()
        if guard.has_held and self._state == TunnelState.OPEN and self.guard_s > 0:
            self._state = TunnelState.HELLO
            self.after(self.guard_s)
        return passed

    def _alert(self, alert: bytes) -> None:
        """Send the client a TLS alert, counted with its bytes."""
        self.client.send(alert)
        if not self.is_over:
            self.own_bytes += len(alert)

    def _admit_upstream(self, guard: SniGuard, end: E, data: bytes) -> bytes:
        if self.holds_upstream:
            self.early += data
            end.hold()
            return b""
        guard.hear(data)
        if guard.is_over:
            self._dismiss(guard)
        return data

    def _let_upstream_speak(self) -> None:
        """Release the upstream's held bytes, since the client's hello is forwarded."""
        if self._state == TunnelState.HELLO:
            self._state = TunnelState.OPEN
            self.after(self._look_s())
        if self.holds_upstream:
            self.holds_upstream = False
            early, self.early = self.early, b""
            if early:
                self.client.send(early)
            self.upstream.resume_reading()
            if self.upstream.has_ended:
                self.client.finish_writing()

    def _dismiss(self, guard: SniGuard) -> None:
        """Remove the guard, and forward its held bytes."""
        held = guard.give_up()
        self.guard = None
        self._let_upstream_speak()
        if held:
            self.upstream.send(held)

    # --- ends --------------------------------------------------------------------------------------------------------
    def half_ended(self, end: E) -> None:
        """Handle the end of one side's input."""
        is_client = end is self.client
        guard = self.guard
        if guard is not None and is_client:
            if not guard.has_held and (guard.has_hello or not guard.must_be_tls):
                self.guard = None  # it says nothing more, so nothing is left to look at
            elif guard.only_reports:
                self._dismiss(guard)
            else:
                self.cut(Reason.NOT_TLS if guard.must_be_tls and not guard.has_hello else Reason.OK)
                return
        if self.guard is not None and self.holds_upstream:
            return  # what the upstream said is held back: its end follows that
        other = self.upstream if is_client else self.client
        if other.has_ended:
            self.both_ended()
        else:
            other.finish_writing()

    # --- time --------------------------------------------------------------------------------------------------------
    def passed(self) -> None:
        """Check the time limits: of the hello, of draining, of idleness."""
        guard = self.guard
        if guard is not None and self._state == TunnelState.HELLO:
            self._too_late(guard)
        elif self._state == TunnelState.DRAINING:
            self._wait_for_rest(self.bytes_left())
        elif 0 < self.idle_s <= self.wheel.now - self.last_activity:
            self.cut(Reason.CLIENT_TIMEOUT)
        else:
            self._keep_alive()
            if self.idle_s > 0:
                self.set(self.last_activity + self.idle_s)

    def _too_late(self, guard: SniGuard) -> None:
        """Handle a missing or incomplete ClientHello. Mode Report notes it, and the tunnel goes on."""
        if guard.only_reports:
            self._dismiss(guard)
            return
        if guard.has_held:
            message = f"the ClientHello in the tunnel to {guard.authority} took too long"
            self.error = BadRequest(Reason.CLIENT_TIMEOUT, message, status=408)
        else:
            self.error = Denied(Reason.NOT_TLS, f"no ClientHello came in the tunnel to {guard.authority}")
        self.cut(self.error.reason)

    def rest_begins(self) -> None:
        """Start draining to the remaining side, which lasts while it makes progress."""
        self._state = TunnelState.DRAINING
        self.unsent = self.bytes_left()
        self.after(REST_S)

    def _wait_for_rest(self, left: int) -> None:
        if 0 < left < self.unsent:
            self.unsent = left
            self.after(REST_S)
        else:
            self.cut(self.reason)

    def _keep_alive(self) -> None:
        """After a minute the kernel probes the peers: earlier, its six calls would be a tenth of the cost."""
        if self.is_kept_alive:
            return
        self.is_kept_alive = True
        for end in (self.client, self.upstream):
            with suppress(OSError):
                end.option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                end.option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
                end.option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_S)
