"""Answers: what the connection manager sends to a client, and takes for the backend's.

Most are the backend's own. Some are made of it: a body that filters got whole, or one whose beginning was read before
anything of it goes on. A product has others, such as translated streams.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final, Protocol

from egressproxy.errors import GatewayError
from egressproxy.filters.content_coding import ContentDecoder, Undecodable, coding_of, is_readable
from egressproxy.gateway.backends.buffered_body import BodyClient
from egressproxy.model.exchange import Exchange
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE
from egressproxy.net.flow_control import BodySink
from egressproxy.protocols.upstream import Upstream

#: Seconds for which the head of an answer is held that opens and says nothing yet. Its comments keep a client waiting
#: that does not get them.
HELD_S: Final = 10.0


class MadeAnswer(ABC):
    """An answer that the gateway has made of the backend's: an upstream whose answer has come."""

    __slots__ = ()

    has_ended: bool

    @abstractmethod
    def is_reusable(self) -> bool:
        """Whether the backend's connection may serve another request."""

    @abstractmethod
    def settle_length(self) -> int:
        """The bytes of the body, where they are known by now; else -1."""

    @abstractmethod
    def whole_body(self) -> bytes | None:
        """The body, if all of it is here; it is taken then."""

    @abstractmethod
    def send_response_body_to(self, sink: BodySink) -> None:
        """Send the body to this sink from now on."""

    @abstractmethod
    async def response_end(self) -> None:
        """Wait until the body is whole and handed on. Raises UpstreamFault if it breaks off."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Reads: the client's connection asks."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Reads: the client's connection asks."""


class AnswerBeginning(Protocol):
    """What reads the beginning of an answer of 200, which may tell of a failure."""

    status: int  # that the answer stands for; 0: it has said nothing yet

    def feed(self, data: bytes) -> None:
        """Read these bytes, without their content coding."""

    def end(self) -> None:
        """The answer has ended."""


@dataclass(slots=True, eq=False, repr=False)
class WholeAnswer(MadeAnswer):
    """A body that is here, translated or filtered."""

    _upstream: Answer
    _body: bytes
    _trailers: bytes = b""
    has_ended: bool = False

    def is_reusable(self) -> bool:
        return self._upstream.is_reusable()

    def settle_length(self) -> int:
        return len(self._body)

    def whole_body(self) -> bytes | None:
        """The body, if no trailers follow; it is taken then."""
        return None if self._trailers else self._taken()

    def send_response_body_to(self, sink: BodySink) -> None:
        body = self._taken()
        if body:
            sink.send_body(body)
        sink.end_body(self._trailers)

    def _taken(self) -> bytes:
        body, self._body = self._body, b""
        self.has_ended = True
        return body

    async def response_end(self) -> None:
        """It is here."""

    def pause_reading(self) -> None:
        """Reads: nothing more comes."""

    def resume_reading(self) -> None:
        """Reads: nothing more comes."""


@dataclass(slots=True, eq=False, repr=False)
class BegunAnswer(MadeAnswer):
    """An answer that is held until its first event, or a short body, has said whether it is a failure: a sink of the
    backend until then. What has come goes on as it came, and the backend's connection is joined to the client's.
    """

    _exchange: Exchange
    _upstream: Upstream
    _client: BodyClient
    _first: AnswerBeginning
    _decoder: ContentDecoder | None
    has_ended: bool = False
    _is_decided: bool = False
    _is_whole: bool = False
    _size: int = 0
    _parts: ByteQueue = field(default_factory=ByteQueue)
    _trailers: bytes = b""

    @classmethod
    def of(
        cls, exchange: Exchange, upstream: Upstream, client: BodyClient, first: AnswerBeginning
    ) -> BegunAnswer | None:
        """The answer in `exchange`, held for `first` to read. None: its content coding cannot be read."""
        coding = coding_of(exchange.response.fields)
        if coding and not is_readable(coding):
            return None
        decoder = ContentDecoder(coding) if coding else None
        return cls(exchange, upstream, client, first, decoder, upstream.has_ended)

    async def status(self) -> int:
        """Wait for the status that the answer stands for. Raises UpstreamFault if it breaks off before."""
        upstream = self._upstream
        if self.has_ended:
            self._first.end()
            return self._first.status
        timer = asyncio.get_running_loop().call_later(HELD_S, self._decide)
        try:
            upstream.send_response_body_to(self)
            while not self._is_decided:
                if upstream.error is not None:
                    raise upstream.error
                await PAUSE
        finally:
            timer.cancel()
        if not self._is_whole:
            upstream.sink = None
        return self._first.status or 200

    def _decide(self) -> None:
        if not self._is_decided:
            self._is_decided = True
            if not self._is_whole:
                self._upstream.pause_reading()  # until somebody takes it
            self._client.driver.resume()

    # --- BodySink: the backend gives --------------------------------------------------------------------------------
    def send_body(self, data: bytes) -> None:
        self._client.note_progress()
        self._parts.append(data)
        self._size += len(data)
        self._read(data, last=False)

    def end_body(self, trailers: bytes) -> None:
        self._is_whole, self._trailers = True, trailers
        self._read(b"", last=True)
        self._decide()

    def _read(self, data: bytes, *, last: bool) -> None:
        if self._is_decided:
            return
        try:
            self._first.feed(data if self._decoder is None else self._decoder.decode(data, last))
        except Undecodable:
            self._decide()  # the reader of the event reports the fault
            return
        if last:
            self._first.end()
        if self._first.status:
            self._decide()

    # --- as the backend's -------------------------------------------------------------------------------------------
    @property
    def error(self) -> GatewayError | None:
        return self._upstream.error

    def is_reusable(self) -> bool:
        return self._upstream.is_reusable()

    def settle_length(self) -> int:
        return self._size if self._is_whole and not self._trailers else -1

    def whole_body(self) -> bytes | None:
        """The body, if all is here, of an announced length; it is taken then."""
        if not self._is_whole or self._trailers or self._exchange.response.body < 0:
            return None
        self.has_ended = True
        return self._taken()

    def send_response_body_to(self, sink: BodySink) -> None:
        """Send what was held there, and then the rest as it comes."""
        held = self._taken()
        if held:
            sink.send_body(held)
        if not self._is_whole:
            self._upstream.send_response_body_to(sink)
            return
        self.has_ended = True
        sink.end_body(self._trailers)

    async def response_end(self) -> None:
        """Wait until the body is whole and handed on. Raises UpstreamFault if it breaks off."""
        if not self._is_whole:
            await self._upstream.response_end()

    def pause_reading(self) -> None:
        """Reads: the client's connection asks."""
        self._upstream.pause_reading()

    def resume_reading(self) -> None:
        """Reads: the client's connection asks."""
        self._upstream.resume_reading()

    def _taken(self) -> bytes:
        held, self._parts = self._parts.joined(), ByteQueue()
        return held


#: What the connection manager sends to a client.
Answer = Upstream | MadeAnswer
