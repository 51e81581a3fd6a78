"""TokenUse: the tokens of one exchange: estimated before, and reported by the provider or counted at the end."""

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

#: The most parallel completions to reserve for, as OpenAI serves: a refused request for more must not exhaust a limit.
_MOST_CHOICES: Final = 128
#: The longest whole response whose usage is read, in bytes.
_MAX_ANSWER: Final = 8 * 1024 * 1024
#: The most events of a stream whose shape is analysed for the fast path: each block has another shape.
_MOST_SHAPES: Final = 24
#: Bytes per token of an unreadable body: fewer than in any text.
_UNREADABLE: Final = 3


def told_in_head(exchange: Exchange) -> TokenUsage | None:
    """The usage of an InvokeModel in the head of Amazon's response, for any model."""
    if not exchange.has_response or _AMAZON_INPUT not in exchange.response.fields:
        return None
    counts = [exchange.response.fields.get(name) or b"0" for name in (_AMAZON_INPUT, _AMAZON_OUTPUT)]
    if not all(count.isdigit() and len(count) < 13 for count in counts):
        return None
    return TokenUsage(int(counts[0]), int(counts[1]))


class TokenUse:
    """The token use of one exchange.

    Attributes:
        input_tokens, output_tokens: the estimate.
        fault: the reason why the request is unreadable, "" if it is readable.
        is_call: the path or body belongs to a known API.
        model: the requested model.
        served_model: the model in the response, if `wants_model`; "" before it is known.
        seen_tokens: the approximate tokens of the stream's text so far.
    """

    wants_model: ClassVar[bool] = False
    fault = model = served_model = ""
    input_tokens = output_tokens = seen_tokens = 0
    is_call = hides_usage = False
    _framing: Framing | None = None
    _shape: DeltaShape | None = None  # of nearly all events
    _shapes_seen = 0
    _whole: bytearray | None = None  # the buffer of an unstreamed response
    _has_begun = False  # a response has begun, in this or an earlier attempt
    _is_over = False  # the rest of the response is unreadable
    _has_ended = False  # the response is complete

    def read(
        self, exchange: Exchange, body: bytes, usual_output: int, most_output: int, *, names_model: bool = True
    ) -> bytes:
        """Read a request, and estimate its tokens. Returns the body to send, which requests the usage of a stream.

        `names_model`: `model` is needed. The output is the request's limit, by default `usual_output` tokens, and at
        most `most_output` for each requested completion. An unreadable body is estimated by its length.
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
        """`read` as cooperative work."""
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
        """Returns whether the usage of the stream is requested on our behalf."""
        self.is_call = True
        if names_model:
            self.model = view.model
        self.input_tokens, most, choices = tokens
        asked = view.operation
        if asked is None or asked.api is not _EMBEDDINGS:
            if most is None or most < 0:
                # The usage of a background response is known only when it is retrieved.
                most = most_output if view.value.get("background") else usual_output
            output = most if most < most_output else most_output
            self.output_tokens = output if choices == 1 else output * min(choices, _MOST_CHOICES)
        asks = view.ask_for_usage()
        self.hides_usage = self.hides_usage or asks
        return asks

    def guess(self, length: int, usual_output: int) -> None:
        """Estimate a request by its length in bytes, negative if unknown."""
        self.is_call = True
        self.input_tokens = max(0, length) // _UNREADABLE
        self.output_tokens = usual_output

    def begin_answer(self, exchange: Exchange, media_type: bytes) -> bool:
        """Start reading a response of this type. Returns whether it is an event stream."""
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
        """Read a piece of the response. Returns the piece to send, without usage that only we requested."""
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
        """The buffered bytes of a response, or of an incomplete event of its stream."""
        if self._whole is not None:
            return len(self._whole)
        return self._framing.held if self._framing is not None else 0

    def takes_long(self, data: bytes) -> bool:
        """Whether this piece of a stream is too long to process without a pause."""
        return len(data) > SLICE and self._framing is not None and not self._is_over

    def feeding(self, exchange: Exchange, data: bytes, last: bool) -> Work[bytes]:
        """`feed` as cooperative work."""
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
            self._is_over = True  # forward the unreadable rest; the tokens seen so far count
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
            value = said_in_answer(exchange, body)
        except Unreadable:
            return
        self.served_model = model_of(value)
        if usage_told(exchange) is None:
            add_usage(exchange, usage_of(value))

    def taken(self, exchange: Exchange) -> TokenUsage | None:
        """The final usage; None if unknown, so that the estimate stays.

        An exchange that failed before a response, or that another filter answered, used nothing. If the client left
        early, or a filter withheld the response, the provider may have answered in full: the estimate stays. A stream
        that was cut used its input, and the text seen so far.
        """
        if not exchange.attempts:
            return usage_told(exchange) or TokenUsage()  # a cache may report the original usage
        usage = usage_told(exchange) or told_in_head(exchange)
        if usage is not None and not usage.total_tokens:
            usage = None  # no response uses zero tokens: its server does not count
        if usage is not None and self._framing is None:
            return usage
        if usage is None and self.is_call and _is_given_up(exchange):
            return None
        if self._framing is not None and not (self._has_ended and usage is not None and usage.output_tokens):
            if usage is None:
                is_counted = self.seen_tokens or (self.is_call and _is_answered(exchange))
                return TokenUsage(self.input_tokens, self.seen_tokens) if is_counted else TokenUsage()
            return usage._replace(output_tokens=max(usage.output_tokens, self.seen_tokens))
        if usage is not None:
            return usage
        return None if self.is_call and _is_answered(exchange) else TokenUsage()


def _is_given_up(exchange: Exchange) -> bool:
    """Whether the client or the gateway gave up while the provider may be answering."""
    if exchange.reason is Reason.CLIENT_GONE:
        return not exchange.status
    return (
        exchange.status == 504
        and exchange.reason in (Reason.REQUEST_TIMEOUT, Reason.RESPONSE_TIMEOUT)
        and bool(exchange.upstream)
    )


def _is_answered(exchange: Exchange) -> bool:
    """Whether the provider's response is complete, even if the client did not get all of it."""
    return 200 <= exchange.status < 300 or (
        exchange.status > 0 and exchange.has_response and 200 <= exchange.response.status < 300
    )
