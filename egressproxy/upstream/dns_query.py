"""One DNS question, put to a list of servers. No cache, no policy.

Servers are asked in order, the next one when the one before fails or is silent for a while; the first answer wins, all
within one time limit. Answers count only from the server's own address and port, with our random id and our question
(RFC 5452); a truncated one is asked for again over TCP (RFC 7766). Only the chain of the asked name is used.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, cast

from egressproxy.errors import Reason
from egressproxy.model.authority import IPAddress
from egressproxy.spec.backend import BackendTlsSpec
from egressproxy.transport.tls_contexts import client_context
from egressproxy.upstream.dns_message import Code, Kind, Reply, encode_query, read_reply

__all__ = ["Answer", "DnsFailure", "Server", "ask", "parse_server"]

#: A name may lead through so many CNAME records.
MAX_LINKS = 16
#: More addresses of one name are not used.
MAX_ADDRESSES = 32
#: Silence after which the next server is asked beside the first, and a lost datagram is sent again.
HEDGE_S = 1.0
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


@dataclass(frozen=True, slots=True)
class Answer:
    """`addresses` empty: the name has none of this family, or (`is_nxdomain`) does not exist. `ttl_s` as it came.

    For a negative answer `ttl_s` follows RFC 2308 section 5, and is 0 where the server gave no SOA record.
    """

    addresses: tuple[IPAddress, ...]
    ttl_s: float
    is_nxdomain: bool = False


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


async def ask(servers: Sequence[Server], name: bytes, kind: Kind, timeout_s: float) -> Answer:
    """The addresses of a name (as `encode_name` gives it) in one family (`kind` A or AAAA), from the first server that
    answers.

    Raises DnsFailure.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    queue = list(servers) * max(1, math.ceil(_LEAST_ATTEMPTS / max(1, len(servers))))
    hedge_s = min(HEDGE_S, timeout_s / (len(queue) + 1))
    broken: set[Server] = set()  # answered with a failure: not asked again
    running: dict[asyncio.Task[Answer], Server] = {}
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
                failure = _worse(failure, error if isinstance(error, DnsFailure) else _broken(server, error))
    finally:
        for task in running:
            if not task.cancel() and not task.cancelled():
                task.exception()  # taken, or the loop would log it as never retrieved


def _broken(server: Server, error: BaseException) -> DnsFailure:
    return DnsFailure(Reason.DNS_ERROR, f"{server}: {type(error).__name__}: {error}")


def _worse(one: DnsFailure, other: DnsFailure) -> DnsFailure:
    """A server's own verdict says more than that another could not be reached."""
    return one if one.reason is Reason.DNS_SERVFAIL else other


async def _ask_one(server: Server, name: bytes, kind: Kind) -> Answer:
    query = encode_query(secrets.randbits(16), name, kind)
    if server.transport == "udp":
        reply = await _over_udp(server, query)
        if reply.is_truncated:
            reply = await _over_stream(server, query)
    else:
        reply = await _over_stream(server, query)
    if reply.is_truncated:
        raise DnsFailure(Reason.DNS_ERROR, f"{server} sent half of an answer")
    if reply.code == Code.SERVFAIL:
        raise DnsFailure(Reason.DNS_SERVFAIL, f"{server} answered SERVFAIL")
    if reply.code not in (Code.NOERROR, Code.NXDOMAIN):
        said = Code(reply.code).name if reply.code in Code._value2member_map_ else f"code {reply.code}"
        raise DnsFailure(Reason.DNS_ERROR, f"{server} answered {said}")
    return read_answer(reply, name, kind)


def read_answer(reply: Reply, name: bytes, kind: Kind) -> Answer:
    """Follow the CNAME records from the asked name to its addresses; every other record is ignored.

    Raises DnsFailure if the chain is a loop or too long. A chain that leads to no address means that there is none: the
    servers that we ask resolve completely.
    """
    if reply.code == Code.NXDOMAIN:
        return Answer((), _negative_ttl(reply), is_nxdomain=True)
    ttl_s = math.inf
    for _ in range(MAX_LINKS + 1):
        found = [record for record in reply.answer if record.name == name and record.kind == kind]
        if found:
            addresses = dict.fromkeys(ip_address(record.data) for record in found)
            return Answer(tuple(addresses)[:MAX_ADDRESSES], min(ttl_s, *(record.ttl_s for record in found)))
        link = next((record for record in reply.answer if record.name == name and record.kind == Kind.CNAME), None)
        if link is None:
            return Answer((), _negative_ttl(reply))
        ttl_s = min(ttl_s, link.ttl_s)
        name = link.data
    raise DnsFailure(Reason.DNS_ERROR, f"more than {MAX_LINKS} CNAME records, or a loop")


def _negative_ttl(reply: Reply) -> float:
    for record in reply.authority:
        if record.kind == Kind.SOA:
            return float(min(record.ttl_s, int.from_bytes(record.data, "big")))
    return 0.0


class _Datagrams(asyncio.DatagramProtocol):
    """Waits for the one datagram that answers the query. The socket is connected: the kernel drops what others send."""

    def __init__(self, server: Server, query: bytes, answered: asyncio.Future[Reply]) -> None:
        self._server = server
        self._query = query
        self._answered = answered
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        if self._answered.done():  # whoever asked has gone meanwhile; uvloop would leave the socket open for good
            self.close()
        else:
            self._transport.sendto(self._query)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if data[:2] != self._query[:2] or self._answered.done():
            return  # forged, or late
        try:
            reply = _parse(self._server, data)
        except DnsFailure as error:
            self._fail(error)
            return
        if reply.answers(self._query):
            self._answered.set_result(reply)

    def error_received(self, exc: Exception) -> None:
        self.connection_lost(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._fail(_broken(self._server, exc or ConnectionError("the socket was closed")))

    def _fail(self, error: DnsFailure) -> None:
        self._answered.set_exception(error)
        self._answered.exception()  # seen, also where whoever asked has gone: the loop need not complain


async def _over_udp(server: Server, query: bytes) -> Reply:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Reply] = loop.create_future()
    protocol = _Datagrams(server, query, answered)
    try:
        await loop.create_datagram_endpoint(lambda: protocol, remote_addr=(server.host, server.port))
        return await answered
    finally:
        answered.cancel()
        protocol.close()


async def _over_stream(server: Server, query: bytes) -> Reply:
    """Over TCP or TLS: a length of two octets before each message (RFC 7766 section 8, RFC 7858)."""
    context: ssl.SSLContext | None = None
    if server.transport == "tls":
        context = _tls_context()
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=context, server_hostname=server.name if context else None
    )
    try:
        writer.write(len(query).to_bytes(2, "big") + query)
        size = int.from_bytes(await reader.readexactly(2), "big")
        reply = _parse(server, await reader.readexactly(size))
    except EOFError:
        raise DnsFailure(Reason.DNS_ERROR, f"{server} closed the connection") from None
    finally:
        with suppress(RuntimeError):  # the loop is closing
            writer.transport.abort()
    if not reply.answers(query):
        raise DnsFailure(Reason.DNS_ERROR, f"{server} answered another question")
    return reply


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return client_context(BackendTlsSpec(), ("dot",))


def _parse(server: Server, message: bytes) -> Reply:
    try:
        return read_reply(message)
    except ValueError as error:
        raise DnsFailure(Reason.DNS_ERROR, f"{server}: malformed answer: {error}") from None
