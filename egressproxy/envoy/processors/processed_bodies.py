"""ProcessedBodies: shows bodies and trailers to a processor in the mode of their exchange, and takes what it makes of
them.

Source: Envoy API v3, external_processor.proto: where trailers follow, no message with a body is the end of the stream.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import timeout
from dataclasses import dataclass
from typing import Final

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingRequest,
    ProcessingResponse,
)
from egressproxy.envoy.processors.processor_answers import ProcessorAnswers, is_event_stream
from egressproxy.envoy.processors.session import ProcessorSession, StreamBroke
from egressproxy.errors import Reason
from egressproxy.filters.base import REQUEST_TRAILERS, RESPONSE_TRAILERS, BodyMode
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields

#: A body goes to the processor in messages of at most this size, whatever size it comes in.
PIECE: Final = 64 * 1024
#: How long a streamed piece waits for an answer, where nothing can go on between two pieces (`serve-filters`). A
#: processor that answers each piece is not slowed down by it; one that collects pieces gets them this much later.
GRACE_S: Final = 0.05


def body_mode(mode: BodySendMode, *, is_held: bool) -> BodyMode | None:
    """How the filter gets a body; one FULL_DUPLEX_STREAMED whole where it `is_held`."""
    if mode is BodySendMode.NONE:
        return None
    is_whole = mode is BodySendMode.BUFFERED or (mode is BodySendMode.FULL_DUPLEX_STREAMED and is_held)
    return BodyMode.BUFFER if is_whole else BodyMode.STREAM


def pieces_of(data: bytes, *, last: bool) -> list[tuple[bytes, bool]]:
    """The messages that a piece of a body makes, and whether each is the last of the body."""
    cut = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
    return [(piece, last and number == len(cut)) for number, piece in enumerate(cut, 1)]


async def streamed(session: ProcessorSession, part: MessagePart, data: bytes, *, last: bool) -> bytes:
    """STREAMED: each piece waits for its answer. Raises as `ProcessorSession.ask`."""
    made = []
    for piece, is_last in pieces_of(data, last=last) if data or last else ():
        response = await session.ask(ProcessingRequest(part, body=piece, end_of_stream=is_last))
        made.append(piece if response is None or response.body is None else response.body)
    return made[0] if len(made) == 1 else b"".join(made)


async def duplex_piece(session: ProcessorSession, part: MessagePart, data: bytes, *, last: bool) -> bytes:
    """FULL_DUPLEX_STREAMED, of a stream of events: what has come back goes on."""
    for piece, is_last in pieces_of(data, last=last) if data or last else ():
        await session.stream_body(part, piece, is_last=is_last)
    made = []
    if last:
        while True:
            pieces = await session.next_streamed(part)
            made += [piece.body for piece in pieces]
            if not pieces and session.immediate is None:
                raise session.failed(StreamBroke(Reason.UPSTREAM_CLOSED, "the stream ended before the body"))
            if not pieces or pieces[-1].end_of_stream:
                return b"".join(made)
    if session.has_more is not None:
        return b"".join([piece.body for piece in session.take_streamed(part)])
    try:
        async with timeout(GRACE_S):
            made = [piece.body for piece in await session.next_streamed(part)]
    except TimeoutError:
        pass
    return b"".join(made)


async def partial(
    session: ProcessorSession, part: MessagePart, data: bytes, limit: int, *, last: bool, is_end: bool
) -> bytes:
    """BUFFERED_PARTIAL: the first `limit` bytes in one message, when they are complete or the body is over. `is_end`:
    no trailers follow. Raises as `ProcessorSession.ask`.
    """
    kept = session.kept.setdefault(part, bytearray())
    if kept is None:
        return data
    kept += data
    if len(kept) <= limit and not last:
        return b""
    session.kept[part] = None
    shown, rest = bytes(kept[:limit]), bytes(kept[limit:])
    response = await session.ask(ProcessingRequest(part, body=shown, end_of_stream=is_end and not rest))
    return (shown if response is None or response.body is None else response.body) + rest


def unanswered(session: ProcessorSession, data: bytes | None) -> bytes:
    """The body where the processor has ended the stream and says nothing of it. Raises where a part was said."""
    if session.immediate is not None:
        return b""
    if data is None:
        raise session.failed(StreamBroke(Reason.UPSTREAM_CLOSED, "the stream ended before the body"))
    return data


def tell_body(session: ProcessorSession, part: MessagePart, data: bytes, *, last: bool) -> None:
    """Observing never makes an exchange wait: who does not keep up is told no more of it."""
    if session.is_full:
        session.close()
        return
    for piece, is_last in pieces_of(data, last=last) if data or last else ():
        session.tell(ProcessingRequest(part, body=piece, end_of_stream=is_last, observability_mode=True))


def trailer_message(
    part: MessagePart, fields: Fields, shown: re.Pattern[bytes] | None, *, is_observed: bool = False
) -> ProcessingRequest:
    """The message with those trailers whose names are `shown`; None: all."""
    lines = tuple([line for line in fields if shown is None or shown.fullmatch(line[0])])
    return ProcessingRequest(part, lines, observability_mode=is_observed)


def trailers_behind(
    session: ProcessorSession, exchange: Exchange, part: MessagePart, shown: re.Pattern[bytes] | None
) -> ProcessingRequest | None:
    """The message with the trailers behind this body; None where there are none, or the processor gets none."""
    of_request = part is MessagePart.REQUEST_BODY
    mode = session.mode.request_trailer_mode if of_request else session.mode.response_trailer_mode
    block = exchange.state.get(REQUEST_TRAILERS if of_request else RESPONSE_TRAILERS)
    if mode is not HeaderSendMode.SEND or block is None:
        return None
    behind = MessagePart.REQUEST_TRAILERS if of_request else MessagePart.RESPONSE_TRAILERS
    return trailer_message(behind, Fields(block), shown)


async def last_duplex_piece(
    session: ProcessorSession, part: MessagePart, data: bytes, trailers: ProcessingRequest
) -> bytes:
    """FULL_DUPLEX_STREAMED, of a stream of events: its last piece, and the trailers behind it."""
    session.collected.add(part)
    for piece, _ in pieces_of(data, last=False) if data else ():
        await session.stream_body(part, piece, is_last=False)
    answer = session.expect(trailers.part)
    session.tell(trailers)
    return await before_trailers(session, part, trailers.part, answer)


async def before_trailers(
    session: ProcessorSession, part: MessagePart, behind: MessagePart, answer: asyncio.Future[ProcessingResponse | None]
) -> bytes:
    """FULL_DUPLEX_STREAMED: the answer to the trailers says that no piece of the body comes any more. Raises as
    `ProcessorSession.ask`, and StreamBroke where the processor has ended the stream without it.
    """
    response = session.early_trailers[behind] = await session.answered(behind, answer)
    if response is None and session.immediate is None:
        raise session.failed(StreamBroke(Reason.UPSTREAM_CLOSED, "the stream ended before the body"))
    return b"".join([piece.body for piece in session.take_streamed(part)])


_STREAMED, _PARTIAL, _DUPLEX = (BodySendMode.STREAMED, BodySendMode.BUFFERED_PARTIAL, BodySendMode.FULL_DUPLEX_STREAMED)


@dataclass(slots=True, eq=False, repr=False)
class ProcessedBodies:
    """What all exchanges of one filter share."""

    _answers: ProcessorAnswers
    _shown: re.Pattern[bytes] | None  # names of the trailers that the processor is shown; None: all
    _limit: int  # bytes of a body that is kept
    _observes: bool  # the processor is told, and not waited for

    async def changed(
        self, session: ProcessorSession, exchange: Exchange, part: MessagePart, data: bytes, *, last: bool
    ) -> bytes:
        """What the processor makes of a body, or a piece. Raises as `ProcessorSession.ask` and ProcessorAnswers."""
        of_request = part is MessagePart.REQUEST_BODY
        new = session.new_request if of_request else session.new_response
        if new is not None:
            if of_request:
                session.new_request = b""
            else:
                session.new_response = b""
            return new
        session.check()
        mode = session.mode.request_body_mode if of_request else session.mode.response_body_mode
        if session.is_over or session.is_off:
            return b"".join([*(piece.body for piece in session.take_streamed(part)), data])
        trailers = trailers_behind(session, exchange, part, self._shown) if last else None
        is_end = last and trailers is None  # of the stream
        if self._observes:
            tell_body(session, part, data, last=is_end)
            return data
        if mode is _STREAMED:
            return await streamed(session, part, data, last=is_end)
        if mode is _PARTIAL:
            return await partial(session, part, data, self._limit, last=last, is_end=is_end)
        if mode is _DUPLEX:
            if of_request or not is_event_stream(exchange):
                return await self._duplex_whole(session, exchange, part, data, trailers)
            if trailers is None:
                return await duplex_piece(session, part, data, last=last)
            return await last_duplex_piece(session, part, data, trailers)
        response = await session.ask(ProcessingRequest(part, body=data, end_of_stream=is_end))
        return self._answers.take_whole_body(session, exchange, part, data, response)

    async def _duplex_whole(
        self,
        session: ProcessorSession,
        exchange: Exchange,
        part: MessagePart,
        data: bytes,
        trailers: ProcessingRequest | None,
    ) -> bytes:
        """FULL_DUPLEX_STREAMED, of a body that is here: the head waits until its answer has come, too."""
        session.collected.add(part)
        for piece, is_last in pieces_of(data, last=trailers is None):
            await session.stream_body(part, piece, is_last=is_last)
        behind = None
        if trailers is not None:
            behind = session.expect(trailers.part)
            session.tell(trailers)
        head, session.late_head = session.late_head, None
        if head is not None:
            of_request = part is MessagePart.REQUEST_BODY
            head_part = MessagePart.REQUEST_HEADERS if of_request else MessagePart.RESPONSE_HEADERS
            response = await session.answered(head_part, head)
            if response is None and (session.immediate is not None or session.is_over):
                return unanswered(session, data)
            if of_request:
                self._answers.take_request_head(session, exchange, response, has_body=True)
                new, session.new_request = session.new_request, None
            else:
                self._answers.take_response_head(session, exchange, response, has_body=True)
                new, session.new_response = session.new_response, None
            if new is not None:
                return new
        if trailers is not None and behind is not None:
            return await before_trailers(session, part, trailers.part, behind)
        made = []
        while True:
            pieces = await session.next_streamed(part)
            made += [piece.body for piece in pieces]
            if pieces and pieces[-1].end_of_stream:
                return b"".join(made)
            if not pieces:
                return unanswered(session, data if not made else None)
