"""DownstreamCarrier: what a client's stream needs of its connection; NO_DEADLINE: that of a stream which is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.downstream import RequestHandler
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.stream import Http2Stream, StreamCarrier

__all__ = ["NO_DEADLINE", "DownstreamCarrier"]

#: That of a stream which is over. It may be set, but never passes: nobody turns its wheel.
NO_DEADLINE = Deadline(TimerWheel(), lambda: None)


class DownstreamCarrier(StreamCarrier, Protocol):
    """What a client's stream needs of its connection, beside what every stream needs."""

    client: str
    handler: RequestHandler
    idle_s: float
    limits: HeadLimits
    request_headers_s: float
    transport: asyncio.Transport
    wheel: TimerWheel

    def new_deadline(self, callback: Callable[[], None]) -> Deadline:
        """One for a stream."""

    def spare(self, deadline: Deadline) -> None:
        """The stream of this one is over."""

    def send_block(self, stream: Http2Stream, block: bytes, body: bytes | None) -> None:
        """The final head of a response, in HPACK, and its body, if that is here: None is a body that follows."""

    def gave_up(self) -> None:
        """The client has cut an exchange. Raises Flood where it does nothing else."""

    def stream_failed(self) -> None:
        """The client has broken a rule on a stream. Raises Flood where it does so all the time."""

    def forget(self, stream: Http2Stream) -> bool:
        """The stream is over. False where it was so before."""
