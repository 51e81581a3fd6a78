"""DNS servers: as they are written, and connections to one, over TCP or verified TLS, with many questions on each.

A question goes to a connection that has room, and on which the server is not silent; else to a new one. So a name that
takes the server long holds up only what was asked before that showed. A connection that ends takes no question with it:
those without an answer go to another one, as long as the server has answered on it.

Sources: RFC 7766 (TCP), RFC 7858 and RFC 8310 (TLS).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import ClassVar, Final, cast

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_contexts.contexts import client_tls
from egressproxy.net.tls_failures import TlsExpectation, tls_fault
from egressproxy.upstream.dns_message import DnsQuestion

_PORTS: Final = {"udp": 53, "tcp": 53, "tls": 853, "https": 443}
#: What the server has to agree to by ALPN, if it says anything: RFC 7858 has none, IANA's registry calls it "dot".
_ALPN: Final = {"tls": ("dot",), "https": ("h2",)}
_CA_FIELD: Final = "dns.caCertificateRefs"
#: How long a connection without a question is kept.
IDLE_S: Final = 30.0
CONNECT_S: Final = 5.0
#: A connection on which no answer came for so long, while a question waited, is given no other …
STALLED_S: Final = 0.25
#: … and is closed where that question is given up after so long.
SILENCE_S: Final = 1.0
#: Connections that are tried for one question: it goes on only where the server has answered on the one that ended.
_MAX_TRIES: Final = 4
_NAME_REMEDY: Final = "write the name that the certificate has behind the address of the server: #name"


class DnsTlsFailure(Exception):
    """TLS with a server failed. The text says what it presented, what was expected, and the remedy."""


class NoAnswer(Exception):
    """No answer; the text says why. `is_of_connection`: the connection has ended, and another one may answer."""

    def __init__(self, text: str, *, is_of_connection: bool = False) -> None:
        super().__init__(text)
        self.is_of_connection = is_of_connection


@dataclass(frozen=True, slots=True)
class Server:
    """`transport` is udp, tcp, tls or https; `name` is what the certificate of a tls or https server has to be for.
    `path` is that of an https server's URL.
    """

    host: str
    port: int
    transport: str
    name: str
    path: str = ""

    @property
    def label(self) -> str:
        """As metrics name it, and as it can be written in a manifest."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.transport}://{self.host} port {self.port}"


def parse_server(text: str, transport: str = "udp") -> Server:
    """Read `ip`, `ip:port`, `[ip6]:port`, `tls://ip[:port][#name]` or `https://ip[:port][/path][#name]`; without a
    scheme `transport` holds, without a path /dns-query. Raises ValueError that says what is wrong.
    """
    rest, name, path = text, "", ""
    if "://" in rest:
        transport, _, rest = rest.partition("://")
        rest, _, name = rest.partition("#")
    if transport == "https":
        rest, slash, path = rest.partition("/")
        path = slash + path or "/dns-query"
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
    return Server(host, int(port or _PORTS[transport]), transport, name or host, path)


async def open_connection(server: Server, tls: BackendTlsIR, protocol: asyncio.Protocol) -> None:
    """Connect this protocol to the server, with verified TLS if `tls` is given. Raises OSError, DnsTlsFailure."""
    loop = asyncio.get_running_loop()
    if server.transport not in _ALPN:
        await loop.create_connection(lambda: protocol, server.host, server.port)
        return
    done: asyncio.Future[None] = loop.create_future()

    def on_handshake(stream: TlsStream, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
            return
        fault = tls_fault(error, expected=expected, peer=stream.get_extra_info("ssl_object"))
        remedy = f" ({fault.remedy})" if fault.remedy else ""
        done.set_exception(DnsTlsFailure(f"{fault.message}{remedy}; {fault.detail}"))

    expected = TlsExpectation("the DNS server", server.name, tls, _CA_FIELD, _NAME_REMEDY)
    client = client_tls(tls, server.name, _ALPN[server.transport])
    stream = TlsStream(
        client.context, server_side=False, server_hostname=server.name, inner=protocol, on_handshake=on_handshake,
        verify=client.verify, expected=expected,
    )  # fmt: skip
    try:
        transport, _ = await loop.create_connection(lambda: stream, server.host, server.port)
        try:
            await done
        except BaseException:
            transport.abort()
            raise
    finally:
        if done.done() and not done.cancelled():
            done.exception()  # taken, or the loop would log it where nobody waits any more


@dataclass(slots=True, eq=False)
class Call:
    """One question on a connection. `answer` is the message, and for how many seconds a cache has had it; `began` is on
    the loop's clock; `number` the id or the stream; `age_s` and `body` are what came over HTTP so far.
    """

    question: DnsQuestion
    answer: asyncio.Future[tuple[bytes, int]]
    began: float
    number: int = -1
    age_s: int = 0
    body: bytearray = field(default_factory=bytearray)


class DnsConnection(asyncio.Protocol, ABC):
    """One connection. It takes questions while it is being opened."""

    #: Connections to one server, and questions on one of them before another is opened.
    max_connections: ClassVar[int]
    max_questions: ClassVar[int]

    def __init__(self, server: Server, tls: BackendTlsIR, on_end: OnEnd) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}  # that were sent, by their number, the oldest first
        self._waiting: dict[Call, None] = {}  # that were not sent yet, the oldest first
        self._heard = 0.0  # when the latest answer was whole
        self._idle: asyncio.TimerHandle | None = None
        self._is_retired = False
        self.is_gone = False
        self.answered = 0
        self.was_ended_by_server = False
        self._opening = self._loop.create_task(self._open(tls))

    @property
    def asked(self) -> int:
        """Questions that wait for an answer."""
        return len(self._calls) + len(self._waiting)

    @property
    def takes(self) -> int:
        """How many questions at once go out without waiting, as far as it is known."""
        return self.max_questions

    @property
    def is_opening(self) -> bool:
        return self._transport is None

    def has_room(self, most: int, now: float) -> bool:
        """Whether one more question, of `most` at once, goes out at once, and may be answered."""
        return self.asked < most and not self.is_stalled(now)

    def is_stalled(self, now: float) -> bool:
        """Whether a question waits for longer than the server is usually silent."""
        oldest = (next(iter(calls), None) for calls in (self._waiting, self._calls.values()))
        return any(call is not None and now - max(self._heard, call.began) > STALLED_S for call in oldest)

    def ask(self, question: DnsQuestion) -> asyncio.Future[tuple[bytes, int]]:
        """A future of the answer. It raises NoAnswer. Cancelling it takes the question back."""
        call = Call(question, self._loop.create_future(), self._loop.time())
        call.answer.add_done_callback(lambda _: self._done(call))
        self._waiting[call] = None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._transport is not None:
            self._send_waiting()
        return call.answer

    def retire(self) -> None:
        """Take the questions that are here, and close behind them."""
        self._is_retired = True
        self._rest()

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Close the connection; what waits fails, and may be asked for on another one unless this `is_final`."""
        if self.is_gone:
            return
        self.is_gone = True
        calls = (*self._calls.values(), *self._waiting)
        self._on_end(self, len(calls))
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not asyncio.current_task():
            self._opening.cancel()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(NoAnswer(why, is_of_connection=not is_final))

    async def _open(self, tls: BackendTlsIR) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await open_connection(self._server, tls, self)
        except DnsTlsFailure as error:
            self.end(str(error))
        except TimeoutError:
            self.end(f"no connection within {CONNECT_S:g} s")
        except Exception as error:  # a fault of ours must not leave anyone waiting
            self.end(f"{type(error).__name__}: {error}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_gone:
            self._transport.abort()
            return
        self._begin()
        self._rest()  # who has wanted it may have left

    def connection_lost(self, error: Exception | None) -> None:
        self.end("the server closed the connection")

    def _begin(self) -> None:
        """The connection is open: send what waits."""
        self._send_waiting()

    @abstractmethod
    def _send_waiting(self) -> None:
        """Send questions, as many as the server takes."""

    @abstractmethod
    def _forget(self, call: Call) -> None:
        """A question that was sent has its answer, has failed or was given up."""

    def _done(self, call: Call) -> None:
        was_sent = self._calls.pop(call.number, None) is not None
        self._waiting.pop(call, None)
        if self.is_gone:
            return
        if call.answer.cancelled() and self._heard < call.began and self._loop.time() - call.began > SILENCE_S:
            self.end("the server is silent")
            return
        if was_sent:
            self._forget(call)
        self._rest()

    def _rest(self) -> None:
        """Without a question: close in a while, or at once."""
        if self.asked or self._transport is None or self.is_gone:
            return
        if self._is_retired:
            self.end("it was retired")
        elif self._idle is None:
            self._idle = self._loop.call_later(IDLE_S, self.end, "it was idle")


#: Called with a connection that has ended, and how many questions were without an answer then.
OnEnd = Callable[[DnsConnection, int], None]


class ServerConnections:
    """The connections to one server, of one `kind`. `tls` is how a server of transport tls or https is verified."""

    __slots__ = ("_depth", "_is_retired", "_kind", "_server", "_tls", "connections")

    def __init__(self, kind: type[DnsConnection], server: Server, tls: BackendTlsIR) -> None:
        self._kind = kind
        self._server = server
        self._tls = tls
        self.connections: list[DnsConnection] = []
        self._depth = kind.max_questions  # of one connection, as far as this server bears it
        self._is_retired = False

    async def ask(self, question: DnsQuestion) -> tuple[bytes, int]:
        """The server's message, and for how many seconds a cache on the way has had it. Raises NoAnswer."""
        for left in reversed(range(_MAX_TRIES)):
            connection = self._choose(asyncio.get_running_loop().time())
            try:
                return await connection.ask(question)
            except NoAnswer as error:  # the server may close a connection at any time: RFC 9113 section 9.1
                if not error.is_of_connection or not connection.answered or not left:
                    raise
        raise AssertionError("the last try answers or raises")

    def retire(self) -> None:
        """Close each connection as soon as no question is on it: its trust is that of another configuration."""
        self._is_retired = True
        for connection in list(self.connections):
            connection.retire()

    def close(self) -> None:
        """Close the connections; those who wait for an answer get NoAnswer."""
        for connection in list(self.connections):
            connection.end("the resolver is closed", is_final=True)

    def _choose(self, now: float) -> DnsConnection:
        """A connection for one more question: the fullest with room, so that the others become idle; or a new one."""
        # One that is being opened does not know yet what the server takes: no more than the least that is known.
        least = min((each.takes for each in self.connections), default=self._depth)
        free = [
            each
            for each in self.connections
            if each.has_room(max(1, min(self._depth, least if each.is_opening else each.takes)), now)
        ]
        if free:
            return max(free, key=lambda each: each.asked)
        if len(self.connections) < self._kind.max_connections:
            made = self._kind(self._server, self._tls, self._ended)
            if self._is_retired:
                made.retire()
            self.connections.append(made)
            return made
        return min(self.connections, key=lambda each: (each.is_stalled(now), each.asked))

    def _ended(self, connection: DnsConnection, unanswered: int) -> None:
        self.connections.remove(connection)
        if unanswered and connection.answered and connection.was_ended_by_server:
            self._depth = max(1, min(self._depth, connection.answered))
