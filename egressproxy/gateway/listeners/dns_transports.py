"""DnsDatagrams and DnsConnection: DNS queries of clients over UDP and TCP, which a NameServer answers.

A response over UDP leaves from the address that the query was for (IP_PKTINFO), also where the socket is bound to every
address: otherwise the kernel would not see that it belongs to a redirected query.
Sources: ip(7), ipv6(7), RFC 7766 (TCP: length in front, many queries on one connection, answers in any order).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, cast

from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.listeners.name_server import NameServer
from egressproxy.gateway.open_connections import Holder, OpenConnections
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.net.flow_control import address_text, peer_name
from egressproxy.net.timers import Deadline
from egressproxy.protocols.dns.messages import MAX_QUERY
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables

#: Queries of one socket that are answered in one turn of the loop.
MAX_AT_ONCE: Final = 16
#: How long a connection may be without a whole query, in seconds: bytes of one that is not whole do not count.
IDLE_S: Final = 10.0
#: Queries of one connection that wait for their answers; further ones are not read until then.
MAX_PENDING: Final = 16
_LENGTH: Final = 2
#: Not in Python's socket before 3.14 (linux/in.h).
_IP_PKTINFO: Final = 8
_ROOM: Final = socket.CMSG_SPACE(20)  # struct in6_pktinfo; in_pktinfo is shorter
_IPV4_INTERFACE: Final = 4  # bytes of struct in_pktinfo that name the interface: the route chooses it

Address = tuple[str, int] | tuple[str, int, int, int]
Ancillary = tuple[tuple[int, int, bytes], ...]


class DnsTransports:
    """The name server of this process, and its sockets."""

    def __init__(self, accounting: Accounting, network: Network, metrics: Metrics, tables: KeyedTables) -> None:
        self._server = NameServer(accounting, network, metrics, tables)

    def forget(self) -> None:
        self._server.forget()

    def connection(self, state: OpenConnections) -> DnsConnection:
        return DnsConnection(self._server, state)

    def datagrams(self, sock: socket.socket) -> Callable[[OpenConnections], None]:
        return DnsDatagrams(self._server, sock).receive


class DnsDatagrams:
    """A bound UDP socket, from which `receive` reads."""

    __slots__ = ("_server", "_sock")

    def __init__(self, server: NameServer, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def receive(self, state: OpenConnections) -> None:
        """Answer the queries that have come. Those of a port that is served no more stay unanswered."""
        for _ in range(MAX_AT_ONCE):
            try:
                wire, found, _, peer = self._sock.recvmsg(MAX_QUERY + 1, _ROOM)
            except OSError:  # nothing more, or an ICMP error of an earlier answer
                return
            if not state.is_closed and peer[1]:
                reply = partial(self._send, _arrived_at(found), peer)
                self._server.answer(wire, address_text(*peer[:2]), state.port, reply, is_tcp=False)

    def _send(self, source: Ancillary, peer: Address, response: bytes) -> None:
        if response:
            with suppress(OSError):  # a client that is not there, a full buffer, or a socket that is closed
                self._sock.sendmsg((response,), source, 0, peer)


def _arrived_at(found: Iterable[tuple[int, int, bytes]]) -> Ancillary:
    """What makes the answer leave from the address at which the query has arrived."""
    for level, kind, data in found:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            return ((level, kind, bytes(_IPV4_INTERFACE) + data[_IPV4_INTERFACE:]),)
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return ((level, kind, data),)
    return ()


class DnsConnection(asyncio.Protocol):
    """A client's connection, which counts against the limits of its listener."""

    __slots__ = (
        "_buffer", "_client", "_deadline", "_has_ended", "_is_full", "_pending", "_server", "_state", "_transport",
    )  # fmt: skip

    def __init__(self, server: NameServer, state: OpenConnections) -> None:
        self._server = server
        self._state = state
        self._buffer = bytearray()
        self._pending = 0
        self._is_full = False  # the client does not read
        self._has_ended = False
        self._client = "-"
        self._deadline = Deadline(server.wheel, self._time_is_over)
        self._transport: asyncio.Transport | None = None

    # --- as of a Connection ------------------------------------------------------------------------------------------
    @property
    def identity(self) -> CallerIdentity:
        return ANONYMOUS

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> bool:
        if self._pending or self._transport is None:
            return False
        self._transport.close()
        return True

    def serving(self) -> Iterable[Holder]:
        return ()

    # --- as of a protocol --------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Breaks off where the listener has its connections already."""
        self._transport = cast(asyncio.Transport, transport)
        self._client = peer_name(transport)
        if self._state.is_closed or self._state.admit(self, self._client, self._server.metrics) is not None:
            self._transport.abort()
            return
        self._deadline.after(IDLE_S)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def eof_received(self) -> bool:
        """A client may end its side behind its queries (RFC 7766 section 6.2.4)."""
        self._has_ended = True
        return self._pending > 0

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._deadline.close()
        self._state.leave(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._read()

    def _read(self) -> None:
        """Answer the whole queries that are there."""
        buffer, served = self._buffer, 0
        while self._transport is not None and not self._is_full and self._pending < MAX_PENDING:
            if served == MAX_AT_ONCE:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._read)
                return
            served += 1
            length = int.from_bytes(buffer[:_LENGTH])
            if len(buffer) >= _LENGTH and not 0 < length <= MAX_QUERY:
                self._transport.abort()
                return
            if len(buffer) < _LENGTH + length or not length:
                break
            wire = bytes(buffer[_LENGTH : _LENGTH + length])
            del buffer[: _LENGTH + length]
            self._pending += 1
            self._deadline.after(IDLE_S)
            self._server.answer(wire, self._client, self._state.port, self._send, is_tcp=True)
        if self._transport is None:
            return
        if self._is_full or self._pending >= MAX_PENDING:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _send(self, response: bytes) -> None:
        self._pending -= 1
        if self._transport is None:
            return
        if response:
            self._transport.write(len(response).to_bytes(_LENGTH) + response)
        if not response or self._state.is_closed or (self._has_ended and not self._pending):
            self._transport.close()
        elif self._pending == MAX_PENDING - 1:
            asyncio.get_running_loop().call_soon(self._read)  # not below the turn in which `_read` was called

    def _time_is_over(self) -> None:
        if self._pending and not self._is_full:
            self._deadline.after(IDLE_S)
        else:
            self.abort()
