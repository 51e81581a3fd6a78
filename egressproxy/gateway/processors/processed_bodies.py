"""ProcessedBodies: shows bodies to a processor in the mode of their exchange, and takes what it makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from egressproxy.gateway.processors.bodies import (
    before_trailers,
    duplex_piece,
    is_event_stream,
    last_duplex_piece,
    partial,
    pieces_of,
    streamed,
    tell_body,
    trailers_behind,
    unanswered,
)
from egressproxy.gateway.processors.processor_answers import ProcessorAnswers
from egressproxy.gateway.processors.session import ProcessorSession
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.ext_proc.messages import BodySendMode, MessagePart, ProcessingRequest

_STREAMED, _PARTIAL, _DUPLEX = (BodySendMode.STREAMED, BodySendMode.BUFFERED_PARTIAL, BodySendMode.FULL_DUPLEX_STREAMED)


@dataclass(slots=True, eq=False, repr=False)
class ProcessedBodies:
    """What all exchanges of one filter share."""

    _answers: ProcessorAnswers
    _shown: re.Pattern[bytes] | None  # names of the trailers that the processor is shown; None: all
    _limit: int  # bytes of a body that is kept
    _observes: bool  # the processor is told, and not waited for

    async def changed(
        self, session: ProcessorSession, x: Exchange, part: MessagePart, data: bytes, *, last: bool
    ) -> bytes:
        """What the processor makes of the body, or of a piece of it; `last`: no piece follows.

        Raises as `ProcessorSession.ask` and ProcessorAnswers.
        """
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
        trailers = trailers_behind(session, x, part, self._shown) if last else None
        is_end = last and trailers is None  # of the stream
        if self._observes:
            tell_body(session, part, data, last=is_end)
            return data
        if mode is _STREAMED:
            return await streamed(session, part, data, last=is_end)
        if mode is _PARTIAL:
            return await partial(session, part, data, self._limit, last=last, is_end=is_end)
        if mode is _DUPLEX:
            if of_request or not is_event_stream(x):
                return await self._duplex_whole(session, x, part, data, trailers)
            if trailers is None:
                return await duplex_piece(session, part, data, last=last)
            return await last_duplex_piece(session, part, data, trailers)
        response = await session.ask(ProcessingRequest(part, body=data, end_of_stream=is_end))
        return self._answers.take_whole_body(session, x, part, data, response)

    async def _duplex_whole(
        self, session: ProcessorSession, x: Exchange, part: MessagePart, data: bytes, trailers: ProcessingRequest | None
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
                self._answers.take_request_head(session, x, response, has_body=True)
                new, session.new_request = session.new_request, None
            else:
                self._answers.take_response_head(session, x, response, has_body=True)
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
