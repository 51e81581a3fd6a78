"""Translated messages: their heads, and streams that the connection manager takes for the backend's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import REQUIRED_FIELDS, belongs_to_one_api, describes_the_body, stream_type
from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.answers import BegunAnswer, MadeAnswer
from egressproxy.gateway.backends.buffered_body import BodyClient
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.upstream import Upstream

if TYPE_CHECKING:
    from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest

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
    Api.BEDROCK_CONVERSE: b"x-amzn-requestid",
}
#: Bytes of a whole answer that is translated, and of an error of which no more is read.
MAX_ANSWER: Final = 16 * 1024 * 1024
MAX_ERROR: Final = 64 * 1024


def set_request_head(head: RequestHead, request: TranslatedRequest, path: bytes) -> None:
    """Make the head of the client's request that of the translated one. No credential of the client stays."""
    head.method = b"POST"
    head.path = path
    head.te_trailers = False
    block = _crossing(head.fields.block)
    accepted = stream_type(request.target) if request.is_stream else JSON
    block += b"\r\ncontent-type: %s\r\naccept: %s\r\naccept-encoding: identity" % (JSON, accepted)
    for name, value in REQUIRED_FIELDS[request.target]:
        block += b"\r\n%s: %s" % (name, value)
    head.fields.block = block


def set_response_head(head: ResponseHead, request: TranslatedRequest, kind: bytes) -> None:
    """Make the head of the backend's answer that of the translated one, whose body is of this media type."""
    name = _REQUEST_ID.get(request.target)
    number = head.fields.get(name) if name is not None else None
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


@dataclass(slots=True, eq=False, repr=False)
class TranslatedStream(MadeAnswer):
    """Between the backend, whose sink it is, and the client's connection, whose source it is.

    A stream that ends early, or in an error of the backend, ends with the error event of the client's API.
    """

    _exchange: Exchange
    _upstream: Upstream | BegunAnswer
    _translator: ResponseTranslator
    _client: BodyClient
    _sink: BodySink | None = None
    has_ended: bool = False

    def is_reusable(self) -> bool:
        return self._upstream.is_reusable()

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
        self._client.note_progress()  # events that the client does not know are a sign of life, too
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
class _Gathering:
    """A sink that keeps a body up to a bound."""

    _client: BodyClient
    _source: Reads
    _limit: int
    _size: int = 0
    parts: ByteQueue = field(default_factory=ByteQueue)
    is_whole: bool = False
    is_too_long: bool = False

    def send_body(self, data: bytes) -> None:
        self._client.note_progress()
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


async def gathered(upstream: Upstream | BegunAnswer, client: BodyClient, limit: int) -> bytes:
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
