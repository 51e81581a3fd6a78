"""DnsClient: one DNS query to a list of servers. No cache, no policy.

Hand-made: dnspython's `asyncquery` has no hedging between servers, no bound on forged datagrams, and its own parser
(see `dns_message`), and takes 4 MB of each process.

Servers are queried in order, the next one after a failure or a silence; the first answer wins, within one time limit.
Answers count only from the server's own address and port, with our random id and question (RFC 5452). A truncated
answer is repeated over TCP (RFC 7766), and an answer that may refuse EDNS without EDNS (RFC 6891 section 7). A silent
server may drop queries with EDNS, so its second query goes without. Only the CNAME chain of the queried name is used.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import randbits
from typing import Final

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.flow_control import address_text
from egressproxy.upstream.dns_message import (
    NOERROR,
    NXDOMAIN,
    SERVFAIL,
    BadReply,
    DnsAnswer,
    DnsQuestion,
    code_name,
    is_reply,
    is_truncated,
    may_refuse_edns,
    read,
    write_query,
)
from egressproxy.upstream.dns_server import DnsConnection, NoAnswer, Server, ServerConnections
from egressproxy.upstream.dns_stream import DnsStream

#: Called after each query with the server's label, the result (the response code in lower case, "error", or
#: "unanswered" if another server was faster or the time was over), and seconds.
OnQuery = Callable[[str, str, float], None]

#: Seconds of silence after which the next server is queried, too, and the datagram is sent again.
HEDGE_S = 1.0
#: Seconds that a second query without EDNS has before the first answer counts. Less than HEDGE_S.
PLAIN_S = 0.5
#: Seconds without EDNS for a server that answered only without it. A lost datagram may look the same, which costs
#: little: without EDNS, answers of more than 512 bytes come over TCP.
WITHOUT_EDNS_S = 300.0
#: Invalid datagrams for one query, after which an attacker is assumed and the query goes over TCP (RFC 5452 section
#: 9.2).
MAX_FORGED = 64
_MAX_DATAGRAM = 65535
#: Queries over TLS and HTTPS are padded to a multiple of this (RFC 8467 section 4.1).
_PAD = 128
_LEAST_ATTEMPTS = 3
SYSTEM_TRUST = BackendTlsIR()
#: Our addresses and ports (`address:port`) of queries over UDP that wait for an answer: where a query comes to a
#: listener from one of them, this gateway asks itself.
ASKING: Final[set[str]] = set()


class DnsFailure(Exception):
    """No usable answer: DNS_SERVFAIL, DNS_TIMEOUT, DNS_NOT_AUTHENTIC or DNS_ERROR. The text is for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class DnsClient:
    """Queries servers. Connections are kept, answers are not. `tls` verifies servers with transport tls and https."""

    __slots__ = ("_connections", "_is_retired", "_on_query", "_tls", "_without_edns")

    def __init__(
        self, on_query: OnQuery = lambda server, result, seconds: None, tls: BackendTlsIR = SYSTEM_TRUST
    ) -> None:
        self._on_query = on_query
        self._tls = tls
        self._connections: dict[Server, ServerConnections] = {}
        self._is_retired = False
        self._without_edns: dict[Server, float] = {}  # until this time on the loop's clock

    async def ask(
        self,
        servers: Sequence[Server],
        name: bytes,
        kind: int,
        timeout_s: float,
        *,
        must_be_authentic: bool = False,
    ) -> DnsAnswer:
        """The addresses of a name in one family (`kind` A or AAAA), or the names of an address (PTR, `name` in
        in-addr.arpa or ip6.arpa), from the first server that answers. `must_be_authentic`: from the first whose
        answer has the AD bit, by which a server says that DNSSEC has authenticated it (RFC 4035 section 3.2.3).

        Raises DnsFailure: DNS_TIMEOUT after `timeout_s` seconds of silence, else the failure of the servers.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        queue = list(servers) * max(1, math.ceil(_LEAST_ATTEMPTS / max(1, len(servers))))
        hedge_s = min(HEDGE_S, timeout_s / (len(queue) + 1))
        broken: set[Server] = set()  # answered with a failure: not queried again
        silent: set[Server] = set()  # queried, no answer yet
        running: dict[asyncio.Task[DnsAnswer], Server] = {}
        failure = DnsFailure(Reason.DNS_ERROR, "no DNS server is configured")
        try:
            while True:
                while queue and queue[0] in broken:
                    queue.pop(0)
                left = deadline - loop.time()
                if left <= 0:
                    raise failure if broken else DnsFailure(Reason.DNS_TIMEOUT, f"no answer within {timeout_s} s")
                if queue:
                    server = queue.pop(0)
                    asking = self._ask_one(server, name, kind, must_be_authentic, was_silent=server in silent)
                    running[loop.create_task(asking)] = server
                    silent.add(server)
                elif not running:
                    raise failure
                done, _ = await asyncio.wait(
                    running, timeout=min(left, hedge_s) if queue else left, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    server = running.pop(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    broken.add(server)
                    if not isinstance(error, DnsFailure):
                        error = DnsFailure(Reason.DNS_ERROR, f"{server}: {type(error).__name__}: {error}")
                    if failure.reason is not Reason.DNS_SERVFAIL:  # SERVFAIL says more than an unreachable server
                        failure = error
        finally:
            give_up(running)

    def close(self) -> None:
        """Close the connections that are kept."""
        for each in self._connections.values():
            each.close()

    def retire(self) -> None:
        """Close each connection as soon as it has no pending query: the next configuration may trust other servers."""
        self._is_retired = True
        for each in self._connections.values():
            each.retire()

    async def _ask_one(
        self, server: Server, name: bytes, kind: int, must_be_authentic: bool, *, was_silent: bool
    ) -> DnsAnswer:
        began, result = time.monotonic(), "error"
        try:
            code, answer = await self._answer_of(server, name, kind, must_be_authentic, was_silent)
            result = code_name(code).lower()
        except asyncio.CancelledError:
            result = "unanswered"
            raise
        finally:
            self._on_query(server.label, result, time.monotonic() - began)
        if code == SERVFAIL:
            raise DnsFailure(Reason.DNS_SERVFAIL, f"{server} answered SERVFAIL")
        if code not in (NOERROR, NXDOMAIN):
            raise DnsFailure(Reason.DNS_ERROR, f"{server} answered {result.upper()}")
        if must_be_authentic and not answer.is_authentic:
            raise DnsFailure(Reason.DNS_NOT_AUTHENTIC, f"{server} answered without the AD bit")
        return answer

    async def _answer_of(
        self, server: Server, name: bytes, kind: int, asks_authentic: bool, was_silent: bool
    ) -> tuple[int, DnsAnswer]:
        """The response code and answer of this server. Raises DnsFailure, OSError."""
        now = asyncio.get_running_loop().time
        is_encrypted = server.transport in ("tls", "https")  # always padded, which takes EDNS
        with_edns = is_encrypted or not (was_silent or self._without_edns.get(server, 0.0) > now())
        identifier = 0 if server.transport == "https" else randbits(16)  # RFC 8484 section 4.1: for caches
        block = _PAD if is_encrypted else 0
        question = write_query(name, kind, identifier, asks_authentic=asks_authentic, block=block, with_edns=with_edns)
        wire, age_s = await self.reply_of(server, question)
        if was_silent and not with_edns:
            self._without_edns[server] = now() + WITHOUT_EDNS_S
        if with_edns and not is_encrypted and may_refuse_edns(wire):
            plain = write_query(name, kind, randbits(16), asks_authentic=asks_authentic, block=0, with_edns=False)
            with suppress(OSError, DnsFailure):  # the first answer counts
                async with asyncio.timeout(PLAIN_S):
                    wire, age_s = await self.reply_of(server, plain)
        try:
            code, answer = read(wire, question)
        except BadReply as error:
            raise DnsFailure(Reason.DNS_ERROR, f"{server}: the answer is refused: {error}") from None
        return code, replace(answer, ttl_s=max(0.0, answer.ttl_s - age_s)) if age_s else answer

    async def reply_of(self, server: Server, question: DnsQuestion) -> tuple[bytes, int]:
        """The whole reply of this server, and its age in seconds. Raises DnsFailure, OSError."""
        if server.transport == "udp":
            wire = await _over_udp(server, question)
            if wire is not None and not is_truncated(wire):
                return wire, 0
        return await self._over_connection(server, question)

    async def _over_connection(self, server: Server, question: DnsQuestion) -> tuple[bytes, int]:
        """The answer over TCP, TLS or HTTPS, and its age in seconds (RFC 8484 section 5.1)."""
        known = self._connections.get(server)
        if known is None:
            kind: type[DnsConnection] = DnsStream
            if server.transport == "https":
                from egressproxy.upstream.dns_https import DnsHttps  # here: HTTP/2 is costly to import

                kind = DnsHttps
            known = self._connections[server] = ServerConnections(kind, server, self._tls)
            if self._is_retired:
                known.retire()
        try:
            return await known.ask(question)
        except NoAnswer as error:
            raise DnsFailure(Reason.DNS_ERROR, f"{server}: {error}") from None


def give_up(tasks: Iterable[asyncio.Task[DnsAnswer]]) -> None:
    """Cancel the tasks. Errors of finished tasks are retrieved, or the loop would log them."""
    for task in tasks:
        if not task.cancel() and not task.cancelled():
            task.exception()


async def _over_udp(server: Server, question: DnsQuestion) -> bytes | None:
    """The answer; None after too many invalid datagrams. The kernel drops datagrams from other addresses."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.connect((server.host, server.port))
        own = address_text(*sock.getsockname()[:2])
        ASKING.add(own)
        try:
            sock.send(question.wire)
            for _ in range(MAX_FORGED):  # forged, or late
                wire = await loop.sock_recv(sock, _MAX_DATAGRAM)
                if is_reply(wire, question):
                    return wire
        finally:
            ASKING.discard(own)
    return None
