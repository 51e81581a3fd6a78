"""ProcessorSession: the stream to a processor for one exchange (for one attempt, on a Backend), and its answers.

Requests and responses may be under way at once, and so may their answers. What the processor says out of turn is a
failure: an answer to nothing, or to something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Final

from egressproxy.envoy.ext_proc.messages import (
    PROCESS,
    BodySendMode,
    ImmediateResponse,
    MessagePart,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StreamedBody,
)
from egressproxy.envoy.processors.settings import ExternalProcessorConfig
from egressproxy.errors import Reason
from egressproxy.filters.calls import CallFailed, FilterCall, MessageStream
from egressproxy.filters.settings import seconds
from egressproxy.model.exchange import Exchange

#: Bytes of streamed answers that wait to be taken, before no more are read.
_MOST_WAITING: Final = 256 * 1024
#: What a piece takes in memory besides its bytes: one may be empty.
_PIECE_COST: Final = 128
#: An answer holds a body and what is around it.
_AROUND_A_BODY: Final = 1024 * 1024
#: The shortest time that a processor may ask for (external_processor.proto).
_SHORTEST_S: Final = 0.001

_DUPLEX: Final = BodySendMode.FULL_DUPLEX_STREAMED
_BODY_MODES: Final = {MessagePart.REQUEST_BODY: "request_body_mode", MessagePart.RESPONSE_BODY: "response_body_mode"}


class MessageTimeout(Exception):
    """The processor did not answer a message within `messageTimeout`."""


class UnexpectedMessage(Exception):
    """The processor answered what was not asked."""


class InvalidMessage(Exception):
    """The processor sent what is no message, or a mode that there is not."""


class TooMuch(Exception):
    """The processor sent back a longer body than is taken."""


class StreamBroke(CallFailed):
    """The stream to the processor could not be opened, or ended with an error; `reason` says why."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason, message)
        self.args = (reason, message)  # an error of a session is made anew from these for each that waits


class SessionSettings:
    """What all sessions of one filter share."""

    __slots__ = (
        "allows_override", "linger_s", "max_message_bytes", "max_override_s", "message_timeout_s", "metadata", "mode",
        "observes",
    )  # fmt: skip

    def __init__(self, config: ExternalProcessorConfig) -> None:
        self.mode = config.processing_mode.mode
        self.allows_override = config.allow_mode_override
        self.message_timeout_s = seconds(config.message_timeout) or None
        self.max_override_s = seconds(config.max_message_timeout)
        self.linger_s = seconds(config.deferred_close_timeout)
        self.max_message_bytes = config.max_body_bytes + _AROUND_A_BODY
        self.observes = config.observability_mode
        self.metadata = tuple((each.key.lower().encode(), each.value.encode()) for each in config.grpc_initial_metadata)


@dataclass(slots=True, eq=False, repr=False)
class ProcessorSession:
    """Implements `filters.calls.StreamReceiver`. The stream opens at once."""

    _settings: SessionSettings
    call: InitVar[FilterCall]
    exchange: InitVar[Exchange]
    attempt: int = field(init=False)  # the number of the attempt that began the session
    mode: ProcessingMode = field(init=False)  # what the processor is sent of this exchange
    is_over: bool = False  # nothing more is asked
    immediate: ImmediateResponse | None = None  # that the processor wants the client to have, whoever takes it first
    new_request: bytes | None = None  # in place of the client's body, from CONTINUE_AND_REPLACE; b"" once it is sent
    new_response: bytes | None = None
    kept: dict[MessagePart, bytearray | None] = field(default_factory=dict)  # by BUFFERED_PARTIAL; None: it was sent
    #: Bodies FULL_DUPLEX_STREAMED that are taken whole; reading on never waits for the rest to be sent.
    collected: set[MessagePart] = field(default_factory=set)
    is_off: bool = False  # the filter has failed in this exchange, and it goes on without it
    #: Called when something comes of a body that flows, for which nobody waits; None: it can wait for the next piece.
    has_more: Callable[[], None] | None = None
    has_made_body: bool = False  # the processor has given a body to a request without one
    #: The answers to trailers that came with the body before them.
    early_trailers: dict[MessagePart, ProcessingResponse | None] = field(default_factory=dict)
    #: The answer to a head that is waited for with the body behind it.
    late_head: asyncio.Future[ProcessingResponse | None] | None = None
    _failure: Callable[[], Exception] | None = None  # makes it: an error that is kept would hold its frames
    _has_begun: bool = False
    _waiting: dict[MessagePart, asyncio.Future[ProcessingResponse | None]] = field(default_factory=dict)
    _deadlines: dict[MessagePart, asyncio.Timeout | None] = field(default_factory=dict)  # None: more was given once
    _streamed: dict[MessagePart, list[StreamedBody]] = field(default_factory=dict)
    _streamed_bytes: int = 0  # that wait to be taken
    _streamed_total: dict[MessagePart, int] = field(default_factory=dict)  # of bodies taken whole, taken or not
    _stream: MessageStream | None = None

    def __post_init__(self, call: FilterCall, exchange: Exchange) -> None:
        settings = self._settings
        self.attempt = exchange.attempts
        self.mode = settings.mode
        self._stream = call.open_stream(
            PROCESS, self, settings.metadata, max_message_bytes=settings.max_message_bytes, x=exchange
        )

    # --- what is sent ------------------------------------------------------------------------------------------------
    def tell(self, request: ProcessingRequest) -> None:
        """Send a message, and wait for nothing."""
        from egressproxy.envoy.ext_proc.wire import request_bytes

        if self.is_over or self._stream is None:
            return
        if not self._has_begun:
            self._has_begun = True
            mode = self.mode
            if mode.request_body_mode or mode.response_body_mode:
                protocol = ProtocolConfiguration(mode.request_body_mode, mode.response_body_mode)
                request = replace(request, protocol=protocol)
        self._stream.send(request_bytes(request))

    async def ask(self, request: ProcessingRequest) -> ProcessingResponse | None:
        """Send a message and wait for its answer. None: the processor wants to be asked nothing more, or has given an
        immediate response. Raises MessageTimeout, UnexpectedMessage, InvalidMessage and StreamBroke.
        """
        self.check()
        if self.is_over or self.immediate is not None:
            return None
        answer = self.expect(request.part)
        self.tell(request)
        return await self.answered(request.part, answer)

    def expect(self, part: MessagePart) -> asyncio.Future[ProcessingResponse | None]:
        """An answer to this part is waited for from now on; see `answered`."""
        answer = self._waiting[part] = asyncio.get_running_loop().create_future()
        return answer

    async def answered(
        self, part: MessagePart, answer: asyncio.Future[ProcessingResponse | None]
    ) -> ProcessingResponse | None:
        """Wait for the answer to this part. Returns and raises as `ask`."""
        deadline = asyncio.timeout(self._settings.message_timeout_s)
        try:
            async with deadline:
                self._deadlines[part] = deadline
                response = await answer
        except TimeoutError:
            raise self.failed(MessageTimeout()) from None
        finally:
            self._waiting.pop(part, None)
            self._deadlines.pop(part, None)
            del deadline  # it holds the task, which holds the error, whose frames hold us: no cycle
        self.check()
        return response

    def check(self) -> None:
        """Raises what the session has failed with."""
        if self._failure is not None:
            raise self._failure()

    def failed(self, error: Exception) -> Exception:
        """The session has failed with this error: it is returned, and the stream is given up."""
        if self._failure is None:
            self._failure = partial(type(error), *error.args)
        self._let_go()
        if self._stream is not None:
            self._stream.close()
        return error

    async def stream_body(self, part: MessagePart, data: bytes, *, is_last: bool) -> None:
        """Send a piece of a body FULL_DUPLEX_STREAMED, when the stream has room for it."""
        self.check()
        if self._stream is not None and not self.is_over:
            self.tell(ProcessingRequest(part, body=data, end_of_stream=is_last))
            await self._stream.drained()

    def take_streamed(self, part: MessagePart) -> list[StreamedBody]:
        """The pieces of this body that have come and were not taken. Raises as `ask`."""
        self.check()
        pieces = self._streamed.pop(part, [])
        self._streamed_bytes -= sum(_PIECE_COST + len(piece.body) for piece in pieces)
        if pieces and self._stream is not None:
            self._stream.resume_reading()
        return pieces

    async def next_streamed(self, part: MessagePart) -> list[StreamedBody]:
        """As `take_streamed`, and waits for the first of them; empty where the processor has ended the stream."""
        pieces = self.take_streamed(part)
        if not pieces and not self.is_over and self.immediate is None:
            await self.answered(part, self.expect(part))
            pieces = self.take_streamed(part)
        return pieces

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    @property
    def is_full(self) -> bool:
        """Whether the processor does not keep up."""
        return self._stream is not None and self._stream.unsent_bytes > _MOST_WAITING

    def finish(self) -> None:
        """The processor is asked nothing more: end the stream."""
        self.is_over = True
        self.has_more = None
        if self._stream is not None:
            self._stream.end(self._settings.linger_s)

    def __enter__(self) -> ProcessorSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Where the filter has failed, or is cancelled (its time is over, its client gone), nothing more is asked."""
        if kind is not None:
            self.is_off = True
            self.close()

    def close(self) -> None:
        self.is_over = True
        self.has_more = None
        if self._stream is not None:
            self._stream.close()

    def override(self, override: ProcessingMode | None, *, of_response: bool) -> None:
        """Take over the mode that an answer to headers asks for, if that is allowed. Raises InvalidMessage. Source:
        ProcessingResponse.mode_override; of headers and trailers DEFAULT changes nothing.
        """
        if override is None or not self._settings.allows_override:
            return
        if BodySendMode.GRPC in (override.request_body_mode, override.response_body_mode):
            raise self.failed(InvalidMessage())
        mode = self.mode
        self.mode = ProcessingMode(
            mode.request_header_mode,
            mode.response_header_mode if of_response else override.response_header_mode or mode.response_header_mode,
            mode.request_body_mode if of_response else override.request_body_mode,
            override.response_body_mode,
            mode.request_trailer_mode if of_response else override.request_trailer_mode or mode.request_trailer_mode,
            override.response_trailer_mode or mode.response_trailer_mode,
        )

    # --- what comes --------------------------------------------------------------------------------------------------
    def message_came(self, message: bytes) -> None:
        from egressproxy.envoy.ext_proc.wire import read_response
        from egressproxy.envoy.protobuf import WireError

        if self.is_over or self._failure is not None or self._settings.observes:
            return
        try:
            response = read_response(message)
        except WireError:
            self.failed(InvalidMessage())
            return
        if response.override_message_timeout_s is not None:
            self._give_time(response.override_message_timeout_s)
        elif response.immediate is not None:
            self.immediate = response.immediate
            self._let_go()
        elif response.part is None:
            self.failed(InvalidMessage())
        elif response.streamed is not None and self._is_duplex(response.part):
            self._keep_streamed(response.part, response.streamed)
        else:
            answer = self._waiting.get(response.part)
            # A piece for the stream in another mode, or in place of a whole body, would change nothing, silently.
            is_stray = response.streamed is not None and (response.part in _BODY_MODES or response.replaces)
            if answer is None or answer.done() or is_stray or self._is_duplex(response.part):
                self.failed(UnexpectedMessage())
            else:
                del self._waiting[response.part]
                answer.set_result(response)

    def stream_ended(self, failure: CallFailed | None) -> None:
        self.is_over = True
        self._stream = None
        if failure is not None and self._failure is None and not self._settings.observes:
            self._failure = partial(StreamBroke, failure.reason, str(failure))
        self._let_go()

    def _is_duplex(self, part: MessagePart) -> bool:
        name = _BODY_MODES.get(part)
        return name is not None and getattr(self.mode, name) is _DUPLEX

    def _keep_streamed(self, part: MessagePart, piece: StreamedBody) -> None:
        self._streamed.setdefault(part, []).append(piece)
        cost = _PIECE_COST + len(piece.body)
        self._streamed_bytes += cost
        if part in self.collected:
            self._streamed_total[part] = total = self._streamed_total.get(part, 0) + cost
            if total > self._settings.max_message_bytes:
                self.failed(TooMuch())
        elif self._streamed_bytes > _MOST_WAITING and self._stream is not None:
            self._stream.pause_reading()
        answer = self._waiting.pop(part, None)
        if answer is not None and not answer.done():
            answer.set_result(None)
        elif self.has_more is not None:
            self.has_more()

    def _give_time(self, more_s: float) -> None:
        """Once for each message, within the bound; what is more is ignored, as Envoy does."""
        if not _SHORTEST_S <= more_s <= self._settings.max_override_s:
            return
        for part, deadline in self._deadlines.items():
            if deadline is not None:
                deadline.reschedule(asyncio.get_running_loop().time() + more_s)
                self._deadlines[part] = None
                return

    def _let_go(self) -> None:
        """Whoever waits goes on: there is a failure, an immediate response, or nothing more to come."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_result(None)
        if self.has_more is not None:
            self.has_more()
