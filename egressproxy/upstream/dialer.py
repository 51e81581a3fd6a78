"""Dialer: opens TCP connections to addresses that the address policy has allowed. It never sees a name.

Several addresses are tried as in RFC 8305: the next one after 250 ms or as soon as one fails, all within one time
limit; the first that answers wins, and the others are closed. Of a name with many addresses eight are tried, four at a
time: where four are silent, the oldest is given up after half of the time. The next dial for the same addresses
continues after those that failed. A dial returns an InlineFuture; cancelling it closes every attempt.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.model.authority import IPAddress, text_of
from egressproxy.net.inline_future import InlineFuture
from egressproxy.net.loop import poller
from egressproxy.net.poller import ENDED, WRITABLE, Poller
from egressproxy.net.process import descriptors_for_traffic
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.watched_socket import Socket
from egressproxy.upstream.source_address import SourceAddress, SourceUnusable

#: RFC 8305 section 5, the recommended Connection Attempt Delay.
STAGGER_S: Final = 0.25
#: How often slow dials are checked: all at once, since most dials end long before.
LOOK_S: Final = 0.1
#: Addresses of one dial that are tried, and how many of them at one time.
MAX_TRIED: Final = 8
MAX_AT_ONCE: Final = 4
#: How long that many may be silent where the dial has no time limit; otherwise half of the limit.
PATIENCE_S: Final = 5.0
#: How many sets of more than MAX_TRIED addresses are remembered with the place where the next dial begins.
MAX_SETS: Final = 1024
#: Errors that mean that this machine has no route to an address: it does not count as tried.
_NO_WAY: Final = frozenset((errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETDOWN))

#: Plain numbers: an attribute of a module, and of an Enum, costs a look-up each time.
_INET: Final[int] = int(socket.AF_INET)
_INET6: Final[int] = int(socket.AF_INET6)
_STREAM: Final[int] = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
_IPPROTO_TCP: Final[int] = int(socket.IPPROTO_TCP)
_TCP_NODELAY: Final[int] = socket.TCP_NODELAY
_IN_PROGRESS: Final[int] = errno.EINPROGRESS
_ERROR: Final[tuple[int, int]] = (int(socket.SOL_SOCKET), int(socket.SO_ERROR))

P = TypeVar("P", bound=asyncio.BaseProtocol)
P_co = TypeVar("P_co", bound=asyncio.BaseProtocol, covariant=True)
_Target = tuple[IPAddress, int]


class PendingDial(Protocol[P_co]):
    """A connection that is being opened: what is awaited of `Dials.dial`, as of a future."""

    def __await__(self) -> Generator[Any, None, tuple[asyncio.Transport, P_co, _Target]]:
        """The transport, its protocol, and what answered."""

    def cancel(self) -> bool:
        """False if it is done already."""

    def cancelled(self) -> bool:
        """Whether `cancel` has ended it."""

    def exception(self) -> BaseException | None:
        """Its error, or None."""

    def result(self) -> tuple[asyncio.Transport, P_co, _Target]:
        """As `__await__`, of a dial that is done."""


class Dials(Protocol):
    """Whatever opens connections: the Dialer, or what stands in for it."""

    def dial(
        self,
        endpoints: Sequence[_Target],
        protocol_factory: Callable[[], P],
        *,
        timeout_s: float,
        source: SourceAddress | None = None,
    ) -> PendingDial[P]:
        """See Dialer.dial."""


class Dialer:
    """Opens connections and keeps the dials in progress."""

    __slots__ = ("_beginnings", "_descriptors", "_descriptors_until", "_is_looking", "_limited", "_poller")

    def __init__(self) -> None:
        self._poller: Poller | None = None
        self._limited: dict[Dial[Any], float] = {}  # each with the monotonic time of its end
        self._is_looking = False  # a look at them is due
        self._beginnings: dict[int, int] = {}  # by set of many addresses: which of them is tried first
        self._descriptors = 0  # as many as connections may have, and until when that is believed (monotonic seconds)
        self._descriptors_until = 0.0

    def dial(
        self,
        endpoints: Sequence[_Target],
        protocol_factory: Callable[[], P],
        *,
        timeout_s: float,
        source: SourceAddress | None = None,
    ) -> Dial[P]:
        """Connect to the first of these (address, port) that answers, in this order; 0 seconds is no limit.

        `source`: where it goes out from; an address that cannot be reached from there is not tried.
        Of more than MAX_TRIED addresses, the order begins where the last dial for the same set ended.
        The future gives the transport, its protocol, and the (address, port) that answered. It raises UpstreamFault:
        CONNECT_REFUSED or CONNECT_FAILED (503), CONNECT_TIMEOUT (504), all safe to retry. Messages contain no address,
        `detail` does. A caller that stops waiting calls `abandon`.
        """
        if self._poller is None:
            self._poller = poller()
        beginning = None
        if len(endpoints) > MAX_TRIED:
            key = hash(frozenset(endpoints))
            first = self._beginnings.get(key, 0) % len(endpoints)
            endpoints = [*endpoints[first:], *endpoints[:first]]
            beginning = key, first
        now = time.monotonic()
        if now >= self._descriptors_until:
            self._descriptors = descriptors_for_traffic()
            self._descriptors_until = now + LOOK_S
        patience_s = timeout_s / 2 if timeout_s > 0 else PATIENCE_S
        dial = Dial(self, self._poller, self._descriptors, endpoints, protocol_factory, patience_s, beginning, source)
        dial.try_next()
        if timeout_s > 0 and not dial.done():
            if not self._is_looking:
                self._look_later()
            self._limited[dial] = now + timeout_s
        return dial

    def forget(self, dial: Dial[Any]) -> None:
        self._limited.pop(dial, None)

    def begin_with(self, key: int, place: int) -> None:
        """The next dial for this set of addresses begins at this place, counted on from the end to the beginning."""
        self._beginnings.pop(key, None)  # to the end: what was not dialled for longest is forgotten first
        self._beginnings[key] = place
        if len(self._beginnings) > MAX_SETS:
            del self._beginnings[next(iter(self._beginnings))]

    def _look_later(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        self._is_looking = False
        if self._limited:
            self._look_later()  # first: the callback may dial again at once
        for dial in [dial for dial, end in self._limited.items() if end <= now]:
            dial.too_late()


def abandon(dial: PendingDial[P]) -> None:
    """Give up a dial: cancel it, or abort the connection that it has just made."""
    if not dial.cancel() and not dial.cancelled() and dial.exception() is None:
        dial.result()[0].abort()


class Dial(InlineFuture[tuple[asyncio.Transport, P, _Target]], Generic[P]):
    """One dial: its open attempts, and those that failed."""

    __slots__ = (
        "_beginning", "_descriptors", "_dialer", "_factory", "_failures", "_makes_way_at", "_next", "_patience_s",
        "_poller", "_source", "_stagger", "_targets", "_tried", "_trying",
    )  # fmt: skip

    def __init__(
        self,
        dialer: Dialer,
        poller: Poller,
        descriptors: int,
        targets: Sequence[_Target],
        factory: Callable[[], P],
        patience_s: float,
        beginning: tuple[int, int] | None,
        source: SourceAddress | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._dialer = dialer
        self._poller = poller
        self._descriptors = descriptors
        self._targets = targets
        self._factory = factory
        self._patience_s = patience_s
        self._beginning = beginning  # where only some of the addresses are tried: their set, and which is the first
        self._source = source
        self._next = 0
        self._tried = 0
        self._makes_way_at = 0.0  # on the loop's clock: when so many are silent that none may be added
        self._trying: dict[int, tuple[Socket, _Target, tuple[str, int]]] = {}  # by descriptor
        self._failures: list[tuple[_Target, OSError]] = []
        self._stagger: asyncio.TimerHandle | None = None

    def try_next(self) -> None:
        """Try the next address. With no address and no attempt left, the dial has failed."""
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None
        while not self._is_done and self._has_more:
            if len(self._trying) >= MAX_AT_ONCE:
                self._wait_for_way()
                return
            target = self._targets[self._next]
            self._next += 1
            try:
                self._try(target)
            except OSError as error:
                self._failures.append((target, error))
                self._tried += error.errno not in _NO_WAY
                continue
            self._tried += 1
            if self._has_more:
                self._stagger = asyncio.get_running_loop().call_later(STAGGER_S, self.try_next)
            return
        if not self._trying and not self._is_done:
            self.set_exception(_fault(self._failures))

    @property
    def _has_more(self) -> bool:
        return self._next < len(self._targets) and self._tried < MAX_TRIED

    def _wait_for_way(self) -> None:
        """All allowed attempts are open: give up the oldest when they have been silent for long enough."""
        loop = asyncio.get_running_loop()
        if not self._makes_way_at:
            self._makes_way_at = loop.time() + self._patience_s
        self._stagger = loop.call_at(max(self._makes_way_at, loop.time() + STAGGER_S), self._make_way)

    def _make_way(self) -> None:
        fd = next(iter(self._trying))
        sock, target, _ = self._trying.pop(fd)
        self._close(sock)
        self._failures.append((target, TimeoutError("no answer in time")))
        self.try_next()

    def _try(self, target: _Target) -> None:
        address, port = target
        text = text_of(address)
        is_ipv6 = ":" in text
        sock = Socket(_INET6 if is_ipv6 else _INET, _STREAM)
        try:
            fd = sock.fileno()
            if fd >= self._descriptors:  # the rest is for the admin address, among others
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            sock.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
            if self._source is not None:
                self._source.bind(sock, is_ipv6=is_ipv6)
            place = text, port  # an address, which is not looked up; never a name
            code = sock.connect_ex(place)
            if code != 0 and code != _IN_PROGRESS:
                raise OSError(code, os.strerror(code))
            self._poller.watch(fd, WRITABLE, self)
        except BaseException:
            sock.close()
            raise
        self._trying[fd] = sock, target, place

    def ready(self, fd: int, events: int) -> None:
        """Poller: the attempt on this descriptor has succeeded or failed; `events` are those of epoll."""
        sock, target, place = self._trying.pop(fd)
        code = sock.getsockopt(*_ERROR) if events & ENDED else 0
        if code:
            self._close(sock)
            self._failures.append((target, OSError(code, os.strerror(code))))
            self.try_next()
            return
        try:
            protocol = self._factory()
            transport = SocketTransport(self._poller, sock, protocol, place, WRITABLE)
            transport.start()
        except Exception as error:
            self._close(sock)
            self.set_exception(_fault([(target, OSError(0, f"{type(error).__name__}: {error}"))]))
            return
        if self._beginning is not None:
            self._next = self._targets.index(target)
        self.set_result((transport, protocol, target))

    def failed(self, error: Exception) -> None:
        """Poller: it cannot serve the dial any more. The dial is cancelled, unless it has ended."""
        if not self._is_done:
            self.cancel()

    def too_late(self) -> None:
        """End the dial because its time limit has passed: the future raises UpstreamFault (CONNECT_TIMEOUT, 504)."""
        if self._is_done:
            return
        silent = [(target, TimeoutError("no answer in time")) for _, target, _ in self._trying.values()]
        self.set_exception(_fault([*self._failures, *silent]))

    def _settle(self) -> None:
        self._dialer.forget(self)
        if self._beginning is not None:
            key, first = self._beginning
            self._dialer.begin_with(key, first + self._next)
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None
        if self._trying:
            for sock, _, _ in self._trying.values():
                self._close(sock)
            self._trying.clear()
        super()._settle()

    def _close(self, sock: Socket) -> None:
        self._poller.forget(sock.fileno())
        self._poller.end_later(sock.close)


def _fault(failures: Sequence[tuple[_Target, OSError]]) -> UpstreamFault:
    """What to tell of several failures: too late before refused before anything else."""
    detail = "; ".join(f"{address} port {port}: {error}" for (address, port), error in failures) or "no address"
    codes = {error.errno for _, error in failures}
    if errno.ETIMEDOUT in codes or any(isinstance(error, TimeoutError) for _, error in failures):
        reason, status, message = Reason.CONNECT_TIMEOUT, 504, "the upstream did not answer a connection in time"
    elif errno.ECONNREFUSED in codes:
        reason, status, message = Reason.CONNECT_REFUSED, 503, "the upstream refused the connection"
    elif failures and all(isinstance(error, SourceUnusable) for _, error in failures):
        message = "the upstream cannot be reached from the source address of the configuration"
        reason, status = Reason.CONNECT_FAILED, 503
    else:
        reason, status, message = Reason.CONNECT_FAILED, 503, "no connection to the upstream could be made"
    return UpstreamFault(reason, message, status=status, retry=RetrySafety.SAFE, detail=detail)
