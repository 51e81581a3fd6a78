"""TokenUse: how many tokens one exchange takes: estimated before, and told by the provider, or seen, in the end."""

from __future__ import annotations

from typing import ClassVar, Final

from egressproxy.ai.apis.answer import model_of
from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.delta_shape import DeltaShape
from egressproxy.ai.apis.framing import BrokenStream, Framing
from egressproxy.ai.apis.request import AiRequest, estimated_tokens
from egressproxy.ai.apis.shared import (
    add_usage,
    add_usage_of_answer,
    operation,
    request_view,
    said_in_answer,
    usage_told,
    view_ahead,
)
from egressproxy.ai.apis.stream_events import read_event
from egressproxy.ai.apis.streams import SLICE, framing_of, sliced
from egressproxy.ai.apis.usage import TokenUsage, usage_of
from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable, loads
from egressproxy.model.work import Work

_EMBEDDINGS: Final = Api.OPENAI_EMBEDDINGS
_AMAZON_INPUT: Final = b"x-amzn-bedrock-input-token-count"
_AMAZON_OUTPUT: Final = b"x-amzn-bedrock-output-token-count"

#: Answers at once that are reserved for: OpenAI gives as many. Who asks for more is refused, and keeps nobody out.
_MOST_CHOICES: Final = 128
#: The longest whole answer whose usage is read.
_MAX_ANSWER: Final = 8 * 1024 * 1024
#: Events of one stream whose shape is looked at, to know others by it: one block has another than the next.
_MOST_SHAPES: Final = 24
#: Bytes of a body that cannot be read, for each token: fewer than of any text.
_UNREADABLE: Final = 3


def told_in_head(exchange: Exchange) -> TokenUsage | None:
    """What Amazon tells of an InvokeModel in the head of its answer, whatever form the model's own answer has."""
    if not exchange.has_response or _AMAZON_INPUT not in exchange.response.fields:
        return None
    counts = [exchange.response.fields.get(name) or b"0" for name in (_AMAZON_INPUT, _AMAZON_OUTPUT)]
    if not all(count.isdigit() and len(count) < 13 for count in counts):
        return None
    return TokenUsage(int(counts[0]), int(counts[1]))


class TokenUse:
    """Of one exchange, which sets few of these.

    Attributes:
        input_tokens, output_tokens: what it may take.
        fault: why the request cannot be read; "" where it can.
        is_call: its path or body is that of an API that is known.
        model: the one that it asks for.
        served_model: the one that the answer names, where `wants_model` asks for that; "" until it does.
        seen_tokens: about those of the text of a stream that has come so far.
    """

    wants_model: ClassVar[bool] = False
    fault = model = served_model = ""
    input_tokens = output_tokens = seen_tokens = 0
    is_call = hides_usage = False
    _framing: Framing | None = None
    _shape: DeltaShape | None = None  # of nearly all events
    _shapes_seen = 0
    _whole: bytearray | None = None  # of an answer that comes in pieces
    _has_begun = False  # the answer, or one before it
    _is_over = False  # no more of the answer can be read
    _has_ended = False  # all of the answer has come

    def read(
        self, exchange: Exchange, body: bytes, usual_output: int, most_output: int, *, names_model: bool = True
    ) -> bytes:
        """Look at a request, and estimate it. Returns the body to send: a stream is asked for its usage.

        `names_model`: somebody needs `model`. Output is what the request allows, `usual_output` tokens where it says
        nothing, and never more than `most_output` for each of the answers that it asks for. What cannot be read is
        estimated by its length.
        """
        try:
            view = request_view(exchange, body)
        except Unreadable as error:
            return self._read_nothing(exchange, body, error, usual_output)
        asks = self._read_view(view, view.asked_tokens(), usual_output, most_output, names_model=names_model)
        return view.body() if asks else body

    def reading(
        self, exchange: Exchange, body: bytes, usual_output: int, most_output: int, *, names_model: bool = True
    ) -> Work[bytes]:
        """`read` in turns."""
        try:
            yield from view_ahead(exchange, body, is_request=True)
            view = request_view(exchange, body)
        except Unreadable as error:
            return self._read_nothing(exchange, body, error, usual_output)
        asked = yield from view.asking_tokens()
        asks = self._read_view(view, asked, usual_output, most_output, names_model=names_model)
        return (yield from view.writing()) if asks else body

    def _read_nothing(self, exchange: Exchange, body: bytes, error: Unreadable, usual_output: int) -> bytes:
        self.fault = str(error)
        asked = operation(exchange)
        self.model = asked.model if asked is not None else ""
        self.guess(len(body), usual_output)
        return body

    def _read_view(
        self,
        view: AiRequest,
        tokens: tuple[int, int | None, int],
        usual_output: int,
        most_output: int,
        *,
        names_model: bool,
    ) -> bool:
        """Returns whether the stream is asked for its usage in the client's place."""
        self.is_call = True
        if names_model:
            self.model = view.model
        self.input_tokens, most, choices = tokens
        asked = view.operation
        if asked is None or asked.api is not _EMBEDDINGS:
            if most is None or most < 0:
                # What an answer in the background has taken is told when somebody asks for it, and not before.
                most = most_output if view.value.get("background") else usual_output
            output = most if most < most_output else most_output
            self.output_tokens = output if choices == 1 else output * min(choices, _MOST_CHOICES)
        asks = view.ask_for_usage()
        self.hides_usage = self.hides_usage or asks
        return asks

    def guess(self, length: int, usual_output: int) -> None:
        """Estimate a request of which only the length is known: bytes, negative where nothing tells it."""
        self.is_call = True
        self.input_tokens = max(0, length) // _UNREADABLE
        self.output_tokens = usual_output

    def begin_answer(self, exchange: Exchange, media_type: bytes) -> bool:
        """An answer of this type has begun. Returns whether it comes in events."""
        asked = operation(exchange)
        is_whole = media_type == b"application/json" and (asked is None or not asked.is_stream)  # nearly all
        if is_whole and not self._has_begun:
            self._has_begun = True
            return False
        self._framing = None if is_whole else framing_of(media_type, asked)
        if self._has_begun:  # another attempt
            self._whole = self._shape = None
            self.seen_tokens = self._shapes_seen = 0
            self._is_over = self._has_ended = False
        self._has_begun = True
        return self._framing is not None

    def feed(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Look at a piece of the answer. Returns what is sent for it: the usage that only we asked for is left out."""
        self._has_ended = last
        if self._is_over:
            return data
        if self._framing is not None:
            return self._feed_stream(exchange, self._framing, data, last)
        if not last or self._whole is not None:
            self._collect(exchange, data, last)
        elif self.wants_model or len(data) > _MAX_ANSWER:
            self._read_whole(exchange, data)
        else:
            add_usage_of_answer(exchange, data)
        return data

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept of an answer that comes in pieces, or of an event of its stream that has not ended."""
        if self._whole is not None:
            return len(self._whole)
        return self._framing.held if self._framing is not None else 0

    def takes_long(self, data: bytes) -> bool:
        """Whether this piece of a stream is more than is looked at in one go."""
        return len(data) > SLICE and self._framing is not None and not self._is_over

    def feeding(self, exchange: Exchange, data: bytes, last: bool) -> Work[bytes]:
        """`feed` in turns."""
        made, left = list[bytes](), len(data)
        for piece in sliced(data):
            left -= len(piece)
            made.append(self.feed(exchange, piece, last and not left))
            yield
        return b"".join(made)

    def _feed_stream(self, exchange: Exchange, framing: Framing, data: bytes, last: bool) -> bytes:
        broken = b""
        try:
            frames = framing.feed(data)
        except BrokenStream as error:
            self._is_over = True  # whatever it is, it goes on; what was seen of it counts
            frames, broken = error.frames, error.rest
        if last and not self._is_over:
            rest = framing.rest()
            if rest is not None:
                frames.append(rest)
        kept = []
        for frame in frames:
            is_usage_alone, payload = False, frame.payload
            tokens = self._shape.tokens_of(payload) if self._shape is not None else -1
            if tokens >= 0:
                self.seen_tokens += tokens
            elif payload[:1] == b"{":
                try:
                    value = loads(payload)
                    event = read_event(value)
                except Unreadable:
                    value = None
                if value is not None:
                    for delta in event.deltas:
                        self.seen_tokens += estimated_tokens(delta.text)
                    if self._shapes_seen < _MOST_SHAPES:
                        self._shapes_seen += 1
                        self._shape = DeltaShape.of(payload, event) or self._shape
                    if self.wants_model and not self.served_model:
                        self.served_model = model_of(value)
                    usage = usage_of(value)
                    if usage is not None:
                        add_usage(exchange, usage)
                        is_usage_alone = value.get("choices") == []
            if not is_usage_alone:
                kept.append(frame.raw)
        return b"".join(kept) + broken if self.hides_usage else data

    def _collect(self, exchange: Exchange, data: bytes, last: bool) -> None:
        whole = self._whole = bytearray() if self._whole is None else self._whole
        whole += data
        if len(whole) > _MAX_ANSWER:
            self._is_over = True
            self._whole = None
        elif last:
            self._whole = None
            self._read_whole(exchange, bytes(whole))

    def _read_whole(self, exchange: Exchange, body: bytes) -> None:
        if len(body) > _MAX_ANSWER:
            return
        if not self.wants_model:
            add_usage_of_answer(exchange, body)
            return
        try:
            said = said_in_answer(exchange, body)
        except Unreadable:
            return
        self.served_model = model_of(said)
        if usage_told(exchange) is None:
            add_usage(exchange, usage_of(said))

    def taken(self, exchange: Exchange) -> TokenUsage | None:
        """What it took in the end; None where nothing tells, so that the estimate stays.

        What failed before an answer took nothing, nor did what another filter has answered in a provider's place. Where
        nobody has waited for the answer, its provider may have answered in full, and where a filter has kept it back it
        has: the estimate stays. A stream that was cut took its input, and what was seen of its text.
        """
        if not exchange.attempts:
            return usage_told(exchange) or TokenUsage()  # a cache may tell what its answer has taken once
        told = usage_told(exchange) or told_in_head(exchange)
        if told is not None and not told.total_tokens:
            told = None  # no answer takes nothing: its server does not count
        if told is not None and self._framing is None:
            return told
        if told is None and self.is_call and _is_given_up(exchange):
            return None
        if self._framing is not None and not (self._has_ended and told is not None and told.output_tokens):
            if told is None:
                is_counted = self.seen_tokens or (self.is_call and _is_answered(exchange))
                return TokenUsage(self.input_tokens, self.seen_tokens) if is_counted else TokenUsage()
            return told._replace(output_tokens=max(told.output_tokens, self.seen_tokens))
        if told is not None:
            return told
        return None if self.is_call and _is_answered(exchange) else TokenUsage()


def _is_given_up(exchange: Exchange) -> bool:
    """Whether the client, or the gateway, has left a provider that may be answering."""
    if exchange.reason is Reason.CLIENT_GONE:
        return not exchange.status
    return (
        exchange.status == 504
        and exchange.reason in (Reason.REQUEST_TIMEOUT, Reason.RESPONSE_TIMEOUT)
        and bool(exchange.upstream)
    )


def _is_answered(exchange: Exchange) -> bool:
    """Whether the provider has given what was asked for, whatever the client got of it."""
    return 200 <= exchange.status < 300 or (
        exchange.status > 0 and exchange.has_response and 200 <= exchange.response.status < 300
    )
