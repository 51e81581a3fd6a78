"""How trailers go to a processor, and what comes back of a body FULL_DUPLEX_STREAMED before them.

Source: Envoy API v3, external_processor.proto: where trailers follow, no message with a body is the end of the stream.
"""

from __future__ import annotations

import asyncio
import re

from egressproxy.errors import Reason
from egressproxy.filters.base import REQUEST_TRAILERS, RESPONSE_TRAILERS
from egressproxy.gateway.processors.bodies import pieces_of
from egressproxy.gateway.processors.session import ProcessorSession, StreamBroke
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.protocols.ext_proc.messages import HeaderSendMode, MessagePart, ProcessingRequest, ProcessingResponse


def trailer_message(
    part: MessagePart, fields: Fields, shown: re.Pattern[bytes] | None, *, is_observed: bool = False
) -> ProcessingRequest:
    """The message with those trailers whose names are `shown`; None: all."""
    lines = tuple([line for line in fields if shown is None or shown.fullmatch(line[0])])
    return ProcessingRequest(part, lines, observability_mode=is_observed)


def trailers_behind(
    session: ProcessorSession, x: Exchange, part: MessagePart, shown: re.Pattern[bytes] | None
) -> ProcessingRequest | None:
    """The message with the trailers behind this body; None where there are none, or the processor gets none."""
    of_request = part is MessagePart.REQUEST_BODY
    mode = session.mode.request_trailer_mode if of_request else session.mode.response_trailer_mode
    block = x.notes.get(REQUEST_TRAILERS if of_request else RESPONSE_TRAILERS) if x.notes is not None else None
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
    session: ProcessorSession,
    part: MessagePart,
    behind: MessagePart,
    answer: asyncio.Future[ProcessingResponse | None],
) -> bytes:
    """FULL_DUPLEX_STREAMED: the answer to the trailers says that no piece of the body before them comes any more.

    Raises StreamBroke where the processor has ended the stream without it, and as `ProcessorSession.ask`.
    """
    response = session.early_trailers[behind] = await session.answered(behind, answer)
    if response is None and session.immediate is None:
        raise session.failed(StreamBroke(Reason.UPSTREAM_CLOSED, "the stream ended before the body"))
    return b"".join([piece.body for piece in session.take_streamed(part)])
