"""DNS over TCP or TLS: one connection to a server, with many questions on it at once (dnspython's streams carry one at
a time): as many as it has answered, once it has ended a connection with questions on it.

Sources: RFC 7766 section 6.2 (reuse, pipelining, idle connections, answers in any order), RFC 7858 section 3.4.
"""

from __future__ import annotations

import secrets
from typing import Final

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, is_reply
from egressproxy.upstream.dns_server import Call, DnsConnection, NoAnswer, OnEnd, Server

#: Questions that were given up and may still be answered on a connection: beyond them it takes no more.
MAX_GIVEN_UP: Final = 1024
#: Messages to which no question belongs, from one answer to the next: beyond them the connection ends.
MAX_STRAYS: Final = 64
#: Ids that are tried for one question on a connection with others.
_MAX_IDS: Final = 64


class DnsStream(DnsConnection):
    """`number` of a call is the id of its message."""

    max_connections = 64
    max_questions = 64

    def __init__(self, server: Server, tls: BackendTlsIR, on_end: OnEnd) -> None:
        super().__init__(server, tls, on_end)
        self._given_up: set[int] = set()  # ids that an answer may still come for
        self._buffer = bytearray()
        self._strays = 0  # since the latest answer

    def has_room(self, most: int, now: float) -> bool:
        return len(self._given_up) < MAX_GIVEN_UP and super().has_room(most, now)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and not self.is_gone:
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
        super().connection_lost(error)

    # --- questions -----------------------------------------------------------------------------------------------
    def _free_id(self) -> int | None:
        """An id that no question on this connection has, which nobody can guess (RFC 5452 section 4.3)."""
        for _ in range(_MAX_IDS):
            number = secrets.randbits(16)
            if number not in self._calls and number not in self._given_up:
                return number
        return None

    def _send_waiting(self) -> None:
        assert self._transport is not None
        for call in list(self._waiting):
            del self._waiting[call]
            number = self._free_id()
            if number is None:
                call.answer.set_exception(NoAnswer("too many questions are on this connection"))
                continue
            call.number = number
            self._calls[number] = call
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
                call.answer.set_result((message, 0))

    def _fail(self, number: int, why: str) -> None:
        """What came cannot be used: the question of this id fails, and the connection ends."""
        call = self._calls.get(number)
        if call is not None and not call.answer.done():
            call.answer.set_exception(NoAnswer(why))
        self.end(why)

    def _forget(self, call: Call) -> None:
        if call.answer.cancelled():
            self._given_up.add(call.number)
