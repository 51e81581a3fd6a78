"""DNS over TCP or TLS to one server: connections that are kept, each with many questions on it at once.

Hand-made: dnspython's streams carry one question at a time, and are opened for each unless the caller keeps them.

A question goes to a connection that has room, and on which the server is not silent; else to a new one. So a name that
takes the server long, where it answers in turn, holds up only what was asked before that showed. A connection that
ends takes no question with it: those without an answer go to another one, as long as the server has answered on it.
A server that ends connections with questions on them is given so many at once as it has answered.

Sources: RFC 7766 section 6.2 (reuse, pipelining, idle connections, answers in any order), RFC 7858 section 3.4.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.upstream.dns_reply import MAX_REPLY_BYTES, DnsQuestion, is_reply
from egressproxy.upstream.dns_server import DnsTlsFailure, Server, open_connection

#: Connections to one server, and questions on one of them before another is opened.
MAX_CONNECTIONS: Final = 64
MAX_QUESTIONS: Final = 64
#: Questions that were given up and may still be answered on a connection: beyond them it takes no more.
MAX_GIVEN_UP: Final = 1024
#: Messages to which no question belongs, from one answer to the next: beyond them the connection ends.
MAX_STRAYS: Final = 64
#: Ids that are tried for one question on a connection with others.
_MAX_IDS: Final = 64
#: How long a connection without a question is kept.
IDLE_S: Final = 30.0
CONNECT_S: Final = 5.0
#: A connection on which no answer came for so long, while a question waited, is given no other …
STALLED_S: Final = 0.25
#: … and is closed where that question is given up after so long.
SILENCE_S: Final = 1.0
#: Connections that are tried for one question: it goes on only where the server has answered on the one that ended.
_MAX_TRIES: Final = 4


class StreamFailure(Exception):
    """No answer; the text says why. `is_of_connection`: the connection has ended, and another one may answer."""

    def __init__(self, text: str, *, is_of_connection: bool = False) -> None:
        super().__init__(text)
        self.is_of_connection = is_of_connection


@dataclass(slots=True, eq=False)
class _StreamQuestion:
    """One question. `began` on the loop's clock."""

    question: DnsQuestion
    answer: asyncio.Future[bytes]
    began: float


class DnsStream:
    """Asks one server. `tls` is how one of transport tls is verified."""

    __slots__ = ("_connections", "_depth", "_is_retired", "_server", "_tls")

    def __init__(self, server: Server, tls: BackendTlsIR) -> None:
        self._server = server
        self._tls = tls
        self._connections: list[_StreamConnection] = []
        self._depth = MAX_QUESTIONS  # of one connection, as far as this server bears it
        self._is_retired = False

    async def ask(self, question: DnsQuestion) -> bytes:
        """The server's message. Raises StreamFailure."""
        for left in reversed(range(_MAX_TRIES)):
            connection = self._choose(asyncio.get_running_loop().time())
            try:
                return await connection.ask(question)
            except StreamFailure as error:
                if not error.is_of_connection or not connection.answered or not left:
                    raise
        raise AssertionError("the last try answers or raises")

    def retire(self) -> None:
        """Close each connection as soon as no question is on it: its trust is that of another configuration."""
        self._is_retired = True
        for connection in list(self._connections):
            connection.retire()

    def close(self) -> None:
        """Close the connections; those who wait for an answer get StreamFailure."""
        for connection in list(self._connections):
            connection.end("the resolver is closed", is_final=True)

    def _choose(self, now: float) -> _StreamConnection:
        """A connection for one more question: the fullest with room, so that the others become idle; or a new one."""
        free = [each for each in self._connections if each.has_room(self._depth, now)]
        if free:
            return max(free, key=lambda each: each.asked)
        if len(self._connections) < MAX_CONNECTIONS:
            made = _StreamConnection(self._server, self._tls, self._ended)
            if self._is_retired:
                made.retire()
            self._connections.append(made)
            return made
        return min(self._connections, key=lambda each: (each.is_stalled(now), each.asked))

    def _ended(self, connection: _StreamConnection, unanswered: int) -> None:
        self._connections.remove(connection)
        if unanswered and connection.answered and connection.was_ended_by_server:
            self._depth = max(1, min(self._depth, connection.answered))

    def __repr__(self) -> str:
        return f"DnsStream({self._server.label}, {len(self._connections)} connections)"


class _StreamConnection(asyncio.Protocol):
    """One connection. It takes questions while it is being opened."""

    def __init__(self, server: Server, tls: BackendTlsIR, on_end: OnEnd) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _StreamQuestion] = {}  # by the id on this connection, the oldest first
        self._given_up: set[int] = set()  # ids that an answer may still come for
        self._buffer = bytearray()
        self._heard = 0.0  # when the latest answer was whole
        self._strays = 0  # since then
        self._idle: asyncio.TimerHandle | None = None
        self._is_retired = False
        self._is_gone = False
        self.answered = 0
        self.was_ended_by_server = False
        self._opening = self._loop.create_task(self._open(tls))

    @property
    def asked(self) -> int:
        """Questions that wait for an answer."""
        return len(self._calls)

    def has_room(self, depth: int, now: float) -> bool:
        """Whether one more question may go here, of `depth` at once."""
        return len(self._calls) < depth and len(self._given_up) < MAX_GIVEN_UP and not self.is_stalled(now)

    def is_stalled(self, now: float) -> bool:
        """Whether a question waits for longer than the server is usually silent."""
        oldest = next(iter(self._calls.values()), None)
        return oldest is not None and now - max(self._heard, oldest.began) > STALLED_S

    def ask(self, question: DnsQuestion) -> asyncio.Future[bytes]:
        """A future of the answer, with the id of the question. Cancelling it takes the question back."""
        call = _StreamQuestion(question, self._loop.create_future(), self._loop.time())
        number = self._free_id()
        if number is None:
            call.answer.set_exception(StreamFailure("too many questions are on this connection"))
            return call.answer
        self._calls[number] = call
        call.answer.add_done_callback(lambda _: self._done(number, call))
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._transport is not None:
            self._send(number, call)
        return call.answer

    def retire(self) -> None:
        """Take the questions that are here, and close behind them."""
        self._is_retired = True
        if not self._calls and self._transport is not None:
            self.end("it was retired")

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Close the connection; what waits fails, and may be asked for on another one unless this `is_final`."""
        if self._is_gone:
            return
        self._is_gone = True
        calls = list(self._calls.values())
        self._on_end(self, len(calls))
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not asyncio.current_task():
            self._opening.cancel()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(StreamFailure(why, is_of_connection=not is_final))

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

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_gone:
            self._transport.abort()
            return
        for number, call in self._calls.items():
            self._send(number, call)
        self._rest()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and not self._is_gone:
            size = int.from_bytes(self._buffer[:2], "big")
            number = int.from_bytes(self._buffer[2:4], "big")
            if size > MAX_REPLY_BYTES:
                self._fail(number, f"an answer of {size} bytes is not read")
                return
            if len(self._buffer) < 2 + size:
                return
            message = bytes(self._buffer[2 : 2 + size])
            del self._buffer[: 2 + size]
            self._take(number, message)

    def connection_lost(self, error: Exception | None) -> None:
        self.was_ended_by_server = True
        self.end("the server closed the connection")

    # --- questions -----------------------------------------------------------------------------------------------
    def _free_id(self) -> int | None:
        """An id that no question on this connection has, which nobody can guess (RFC 5452 section 4.3)."""
        for _ in range(_MAX_IDS):
            number = secrets.randbits(16)
            if number not in self._calls and number not in self._given_up:
                return number
        return None

    def _send(self, number: int, call: _StreamQuestion) -> None:
        assert self._transport is not None
        wire = call.question.wire
        self._transport.write(len(wire).to_bytes(2, "big") + number.to_bytes(2, "big") + wire[2:])

    def _take(self, number: int, message: bytes) -> None:
        call = self._calls.get(number)
        if call is not None or number in self._given_up:
            self._heard, self._strays = self._loop.time(), 0
        else:
            self._strays += 1
        if call is None:
            self._given_up.discard(number)  # it comes too late
            if self._strays > MAX_STRAYS:
                self.end("the server sends what nobody has asked for")
            return
        message = call.question.wire[:2] + message[2:]
        if not is_reply(message, call.question):
            self._fail(number, "it answered another question")
        else:
            self.answered += 1
            if not call.answer.done():
                call.answer.set_result(message)

    def _fail(self, number: int, why: str) -> None:
        """What came cannot be used: the question of this id fails, and the connection ends."""
        call = self._calls.get(number)
        if call is not None and not call.answer.done():
            call.answer.set_exception(StreamFailure(why))
        self.end(why)

    def _done(self, number: int, call: _StreamQuestion) -> None:
        """A question has its answer, has failed or was given up."""
        if self._calls.pop(number, None) is None or self._is_gone:
            return
        if call.answer.cancelled():
            self._given_up.add(number)
            if self._heard < call.began and self._loop.time() - call.began > SILENCE_S:
                self.end("the server is silent")
                return
        if self._transport is not None:
            self._rest()

    def _rest(self) -> None:
        """Without a question: close in a while, or at once."""
        if self._calls:
            return
        if self._is_retired:
            self.end("it was retired")
        elif self._idle is None:
            self._idle = self._loop.call_later(IDLE_S, self.end, "it was idle")

    def __repr__(self) -> str:
        return f"_StreamConnection({self._server.label}, {len(self._calls)} questions, {self.answered} answered)"


#: Called with a connection that has ended, and how many questions were without an answer then.
OnEnd = Callable[[_StreamConnection, int], None]
