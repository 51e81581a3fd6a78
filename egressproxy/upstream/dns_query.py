"""One DNS question, put to a list of servers. No cache, no policy.

Hand-made: dnspython's `asyncquery` has no hedging between servers and no bound on forged datagrams, and reads an answer
with the parser that `dns_reply` speaks of.

Servers are asked in order, the next one when the one before fails or is silent for a while; the first answer wins, all
within one time limit. Answers count only from the server's own address and port, with our random id and our question
(RFC 5452); a truncated one is asked for again over TCP (RFC 7766). Only the chain of the asked name is used.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import cast

import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls_contexts import client_context
from egressproxy.upstream.dns_reply import (
    MAX_REPLY_BYTES,
    BadReply,
    DnsAnswer,
    DnsQuestion,
    is_reply,
    is_truncated,
    read,
)

__all__ = ["DnsAnswer", "DnsFailure", "Server", "ask", "give_up", "parse_server"]

#: Silence after which the next server is asked beside the first, and a lost datagram is sent again.
HEDGE_S = 1.0
#: RFC 6891 section 6.2.5, and the DNS flag day of 2020: no fragmentation.
_UDP_PAYLOAD = 1232
#: Datagrams for one query that are no answer to it; then somebody guesses, and the question goes over TCP (RFC 5452
#: section 9.2).
MAX_FORGED = 64
_MAX_DATAGRAM = 65535
_PORTS = {"udp": 53, "tcp": 53, "tls": 853}
_LEAST_ATTEMPTS = 3


class DnsFailure(Exception):
    """No usable answer. `reason` is DNS_SERVFAIL, DNS_TIMEOUT or DNS_ERROR; the text is for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Server:
    """`transport` is udp, tcp or tls; `name` is what a tls server's certificate has to be for."""

    host: str
    port: int
    transport: str
    name: str

    def __str__(self) -> str:
        return f"{self.transport}://{self.host} port {self.port}"


def parse_server(text: str, transport: str = "udp") -> Server:
    """Read `ip`, `ip:port`, `[ip6]:port` or `tls://ip[:port][#name]`; `transport` holds where no scheme is written.

    Raises ValueError that says what is wrong.
    """
    rest, name = text, ""
    if "://" in rest:
        transport, _, rest = rest.partition("://")
        rest, _, name = rest.partition("#")
    if transport not in _PORTS:
        raise ValueError(f"DNS server {text!r}: transport {transport!r} is not one of {', '.join(_PORTS)}")
    host, colon, port = rest, "", ""
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        colon, port = tail[:1], tail[1:]
        if not bracket or colon not in ("", ":"):
            host = ""
    elif rest.count(":") == 1:
        host, colon, port = rest.partition(":")
    try:
        ip_address(host)
    except ValueError:
        raise ValueError(f"DNS server {text!r}: has to be an address, with or without port") from None
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"DNS server {text!r}: the port has to be a number from 1 to 65535")
    return Server(host, int(port or _PORTS[transport]), transport, name or host)


async def ask(
    servers: Sequence[Server], name: dns.name.Name, kind: dns.rdatatype.RdataType, timeout_s: float
) -> DnsAnswer:
    """The addresses of a name in one family (`kind` A or AAAA), from the first server that answers.

    Raises DnsFailure: DNS_TIMEOUT after `timeout_s` seconds of silence, else what the servers failed with.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    queue = list(servers) * max(1, math.ceil(_LEAST_ATTEMPTS / max(1, len(servers))))
    hedge_s = min(HEDGE_S, timeout_s / (len(queue) + 1))
    broken: set[Server] = set()  # answered with a failure: not asked again
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
                running[loop.create_task(_ask_one(server, name, kind))] = server
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
                if failure.reason is not Reason.DNS_SERVFAIL:  # which says more than that another cannot be reached
                    failure = error
    finally:
        give_up(running)


def give_up(tasks: Iterable[asyncio.Task[DnsAnswer]]) -> None:
    """Cancel the tasks. The error of one that has ended is taken, or the loop would log it as never retrieved."""
    for task in tasks:
        if not task.cancel() and not task.cancelled():
            task.exception()


async def _ask_one(server: Server, name: dns.name.Name, kind: dns.rdatatype.RdataType) -> DnsAnswer:
    query = dns.message.make_query(name, kind, use_edns=0, payload=_UDP_PAYLOAD)
    question = DnsQuestion(query.to_wire(), cast(bytes, name.to_wire()).lower(), int(kind))
    wire = None
    if server.transport == "udp":
        wire = await _over_udp(server, question)
    if wire is None or is_truncated(wire):
        wire = await _over_stream(server, question)
    try:
        code, answer = read(wire, question)
    except BadReply as error:
        raise DnsFailure(Reason.DNS_ERROR, f"{server}: the answer is refused: {error}") from None
    if code == dns.rcode.SERVFAIL:
        raise DnsFailure(Reason.DNS_SERVFAIL, f"{server} answered SERVFAIL")
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise DnsFailure(Reason.DNS_ERROR, f"{server} answered {dns.rcode.to_text(dns.rcode.Rcode(code))}")
    return answer


async def _over_udp(server: Server, question: DnsQuestion) -> bytes | None:
    """The answer; None where too many datagrams came to say which of them it is. The socket is connected: the kernel
    drops what others send.
    """
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.connect((server.host, server.port))
        sock.send(question.wire)
        for _ in range(MAX_FORGED):  # forged, or late
            wire = await loop.sock_recv(sock, _MAX_DATAGRAM)
            if is_reply(wire, question):
                return wire
    return None


async def _over_stream(server: Server, question: DnsQuestion) -> bytes:
    """Over TCP or TLS: a length of two bytes before each message (RFC 7766 section 8, RFC 7858)."""
    context = _tls_context() if server.transport == "tls" else None
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=context, server_hostname=server.name if context else None, limit=MAX_REPLY_BYTES
    )
    try:
        writer.write(len(question.wire).to_bytes(2, "big") + question.wire)
        size = int.from_bytes(await reader.readexactly(2), "big")
        if size > MAX_REPLY_BYTES:
            raise DnsFailure(Reason.DNS_ERROR, f"{server}: an answer of {size} octets is not read")
        wire = await reader.readexactly(size)
    except EOFError:
        raise DnsFailure(Reason.DNS_ERROR, f"{server} closed the connection") from None
    finally:
        with suppress(RuntimeError):  # the loop is closing
            writer.transport.abort()
    if not is_reply(wire, question):
        raise DnsFailure(Reason.DNS_ERROR, f"{server} answered another question")
    return wire


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return client_context(BackendTlsIR(), ("dot",))
