"""Translated messages: the heads, and the answers that the connection manager takes for the backend's, whole or
streamed; and answers whose beginning was read before anything of them goes on.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import REQUIRED_FIELDS, belongs_to_one_api, describes_the_body
from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.filters.content_coding import ContentDecoder, Undecodable, coding_of, is_readable
from egressproxy.gateway.backends.replayable_body import HeldFor
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.upstream import Upstream

if TYPE_CHECKING:
    from egressproxy.ai.apis.first_event import FirstEvent
    from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest

EVENT_STREAM: Final = b"text/event-stream"
JSON: Final = b"application/json"
#: Fields that are meant for one place, or may hold what only that may know: whatever a client sends under such a name.
_SECRET = re.compile(
    rb"auth|assertion|bearer|cookie|credential|dpop|jwt|key|passphrase|passw|secret|session|signature|token",
    re.IGNORECASE,
)
#: In which field an API tells the number of a request.
_REQUEST_ID: Final = {
    Api.OPENAI_CHAT: b"x-request-id",
    Api.OPENAI_RESPONSES: b"x-request-id",
    Api.ANTHROPIC: b"request-id",
}
#: Bytes of a whole answer that is translated, and of an error of which no more is read.
MAX_ANSWER: Final = 16 * 1024 * 1024
MAX_ERROR: Final = 64 * 1024
#: Seconds for which the head of an answer is held that opens and says nothing yet. Its comments keep a client waiting
#: that does not get them.
HELD_S: Final = 10.0


def set_request_head(head: RequestHead, request: TranslatedRequest, path: bytes) -> None:
    """Make the head of the client's request that of the translated one. No credential of the client stays."""
    head.path = path
    head.te_trailers = False
    block = _crossing(head.fields.block)
    accepted = EVENT_STREAM if request.is_stream else JSON
    block += b"\r\ncontent-type: %s\r\naccept: %s\r\naccept-encoding: identity" % (JSON, accepted)
    for name, value in REQUIRED_FIELDS[request.target]:
        block += b"\r\n%s: %s" % (name, value)
    head.fields.block = block


def set_response_head(head: ResponseHead, request: TranslatedRequest, kind: bytes) -> None:
    """Make the head of the backend's answer that of the translated one, whose body is of this media type."""
    number = head.fields.get(_REQUEST_ID[request.target])
    head.fields.block = _crossing(head.fields.block) + b"\r\ncontent-type: " + kind
    if number:
        head.fields.add(_REQUEST_ID[request.source], number)


def _crossing(block: bytes) -> bytes:
    """The fields that mean the same in every API, and are no secret. Other spellings of a name count as the name."""
    kept = []
    for line in block.split(b"\r\n")[1:]:
        name = line.partition(b":")[0].strip(b"-_").replace(b"_", b"-").lower()
        if name != b"accept" and not (belongs_to_one_api(name) or describes_the_body(name) or _SECRET.search(name)):
            kept.append(b"\r\n" + line)
    return b"".join(kept)


class ReadingClient(HeldFor, Protocol):
    """What is asked of the client while an answer is read."""

    seen_bytes: int  # -1: since the clock has looked, something has moved

    @property
    def is_paused_for_room(self) -> bool:
        """Whether reading its request is paused until there is room."""


@dataclass(slots=True, eq=False, repr=False)
class TranslatedAnswer:
    """A body that is here, translated or filtered. For the connection manager it is an upstream whose answer has
    come.
    """

    _upstream: Answer
    _body: bytes
    has_ended: bool = False

    @property
    def is_reusable(self) -> bool:
        return self._upstream.is_reusable

    def settle_length(self) -> int:
        return len(self._body)

    def whole_body(self) -> bytes:
        """The body; it is taken then."""
        body, self._body = self._body, b""
        self.has_ended = True
        return body

    def send_response_body_to(self, sink: BodySink) -> None:
        """Send the body there."""
        body = self.whole_body()
        if body:
            sink.send_body(body)
        sink.end_body(b"")

    async def response_end(self) -> None:
        """It is here."""

    def pause_reading(self) -> None:
        """Reads: nothing more comes."""

    def resume_reading(self) -> None:
        """Reads: nothing more comes."""


@dataclass(slots=True, eq=False, repr=False)
class TranslatedStream:
    """Between the backend, whose sink it is, and the client's connection, whose source it is.

    A stream that ends early, or in an error of the backend, ends with the error event of the client's API.
    """

    _exchange: Exchange
    _upstream: Upstream | BegunAnswer
    _translator: ResponseTranslator
    _client: ReadingClient
    _sink: BodySink | None = None
    has_ended: bool = False

    @property
    def is_reusable(self) -> bool:
        return self._upstream.is_reusable

    def settle_length(self) -> int:
        return -1

    def whole_body(self) -> None:
        return

    def send_response_body_to(self, sink: BodySink) -> None:
        """Send what is translated to this sink from now on."""
        self._sink = sink
        self._upstream.send_response_body_to(self)

    async def response_end(self) -> None:
        """Wait until the stream is whole and handed on. Raises UpstreamFault if it breaks off."""
        while not self.has_ended:
            if self._upstream.error is not None:
                raise self._upstream.error
            await PAUSE

    # --- Reads: the client's connection asks ------------------------------------------------------------------------
    def pause_reading(self) -> None:
        self._upstream.pause_reading()

    def resume_reading(self) -> None:
        self._upstream.resume_reading()

    # --- BodySink: the backend gives --------------------------------------------------------------------------------
    def send_body(self, data: bytes) -> None:
        if self.has_ended:
            return
        self._client.seen_bytes = -1  # events that the client does not know are a sign of life, too
        self._hand_on(self._translator.feed(data))
        if self._translator.has_failed:
            self._end()

    def end_body(self, trailers: bytes) -> None:
        """BodySink: the backend has said all. Trailers mean nothing to clients of another API."""
        if self.has_ended:
            return
        self._hand_on(self._translator.end())
        self._end()

    def _hand_on(self, data: bytes) -> None:
        if data and self._sink is not None:
            self._sink.send_body(data)

    def _end(self) -> None:
        self.has_ended = True
        if self._translator.has_failed:
            self._exchange.reason = Reason.UPSTREAM_INCOMPLETE
            self._exchange.detail = "the backend's stream ended in an error, or before its end"
        assert self._sink is not None
        self._sink.end_body(b"")
        self._client.driver.resume()


@dataclass(slots=True, eq=False, repr=False)
class BegunAnswer:
    """An answer that is held until its first event, or a short body, has said whether it is a failure: a sink of the
    backend until then. What has come goes on as it came, and the backend's connection is joined to the client's.
    """

    _exchange: Exchange
    _upstream: Upstream
    _client: ReadingClient
    _first: FirstEvent
    _decoder: ContentDecoder | None
    has_ended: bool = False
    _is_decided: bool = False
    _is_whole: bool = False
    _size: int = 0
    _parts: ByteQueue = field(default_factory=ByteQueue)
    _trailers: bytes = b""

    @classmethod
    def of(cls, exchange: Exchange, upstream: Upstream, client: ReadingClient) -> BegunAnswer | None:
        """None for an answer that tells of no failure in this way, or whose coding cannot be read."""
        # Here, since it is for rules that send requests again.
        from egressproxy.ai.apis.apis import operation_of
        from egressproxy.ai.apis.first_event import FirstEvent, may_tell

        head, operation = exchange.response, operation_of(exchange.request.path)
        kind, coding = media_type(head.fields), coding_of(head.fields)
        if not may_tell(kind, head.body, operation) or not (not coding or is_readable(coding)):
            return None
        decoder = ContentDecoder(coding) if coding else None
        return cls(exchange, upstream, client, FirstEvent(kind, operation), decoder, upstream.has_ended)

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
        self._client.seen_bytes = -1
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

    @property
    def is_reusable(self) -> bool:
        return self._upstream.is_reusable

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
Answer = Upstream | TranslatedAnswer | TranslatedStream | BegunAnswer


@dataclass(slots=True, eq=False, repr=False)
class _Gathering:
    """A sink that keeps a body up to a bound."""

    _client: ReadingClient
    _source: Reads
    _limit: int
    _size: int = 0
    parts: ByteQueue = field(default_factory=ByteQueue)
    is_whole: bool = False
    is_too_long: bool = False

    def send_body(self, data: bytes) -> None:
        self._client.seen_bytes = -1
        self._size += len(data)
        if self._size <= self._limit:
            self.parts.append(data)
            self._client.hold_bytes(len(data), self._source)
        elif not self.is_too_long:
            self.is_too_long = True
            self._client.driver.resume()

    def end_body(self, trailers: bytes) -> None:
        self.is_whole = True
        self._client.driver.resume()


async def gathered(upstream: Upstream | BegunAnswer, client: ReadingClient, limit: int) -> bytes:
    """The whole body of an answer. Raises UpstreamFault where it breaks off, or is longer than `limit` bytes."""
    body = b"" if upstream.has_ended else upstream.whole_body()
    if body is None:
        gathering = _Gathering(client, upstream, limit)
        upstream.send_response_body_to(gathering)
        try:
            while not (gathering.is_whole or gathering.is_too_long):
                if upstream.error is not None:
                    raise upstream.error
                await PAUSE
            if not gathering.is_too_long:
                return gathering.parts.joined()
        finally:
            gathering.parts = ByteQueue()
    elif len(body) <= limit:
        return body
    message = f"the backend's answer is longer than the {limit} bytes that are translated"
    raise UpstreamFault(Reason.BAD_RESPONSE, message)
