"""What a stream needs of its connection: any stream, a client's, and one to a backend. They stay interpreted: between
compiled types no stream could say more narrowly than its base what carries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from h2.errors import ErrorCodes

from egressproxy.errors import UpstreamFault
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.downstream import RequestHandler
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldList

#: A Http2Stream: its module needs this one.
_Stream: TypeAlias = Any

#: That of a stream which is over. It may be set, but never passes: nobody turns its wheel.
NO_DEADLINE: Final = Deadline(TimerWheel(), lambda: None)


class StreamConnection(Protocol):
    """What a stream needs of its connection."""

    streams: dict[int, _Stream]

    def send_fields(self, stream: _Stream, fields: FieldList, *, is_last: bool) -> None:
        """Send the head of a response, final or interim."""

    def send_at_once(self, stream: _Stream, data: bytes, *, is_last: bool) -> bool:
        """Send a piece before which nothing waits. False: it has to wait, at least in part."""

    def send_waiting(self, stream: _Stream) -> None:
        """Send what the windows allow of what this stream has to send."""

    def give_back(self, stream: _Stream, size: int) -> None:
        """What was read makes room for more (RFC 9113 section 6.9)."""

    def give_back_to_others(self, size: int) -> None:
        """The same of the window of the connection alone."""

    def give_back_alone(self, stream: _Stream, size: int) -> None:
        """The same of the window of this stream alone."""

    def reset(self, stream: _Stream, code: ErrorCodes) -> None:
        """Tell the peer that the stream is given up."""


class DownstreamStreamConnection(StreamConnection, Protocol):
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

    def send_response_headers(self, stream: _Stream, block: bytes, body: bytes | None) -> None:
        """The final head of a response, in HPACK, and its body, if that is here: None is a body that follows."""

    def gave_up(self) -> None:
        """The client has cut an exchange. Raises Flood where it does nothing else."""

    def stream_failed(self) -> None:
        """The client has broken a rule on a stream. Raises Flood where it does so all the time."""

    def forget(self, stream: _Stream) -> bool:
        """The stream is over. False where it was so before."""


class UpstreamStreamConnection(StreamConnection, Protocol):
    """What a stream to a backend needs of its connection, beside what every stream needs."""

    address: str
    begins_nothing: bool
    is_lost: bool
    is_secure: bool
    limits: HeadLimits
    transport: asyncio.Transport
    wheel: TimerWheel

    @property
    def is_new(self) -> bool:
        """The upstream has not said yet how many streams it takes."""

    async def settings(self) -> None:
        """Wait until the upstream has said what it takes, or is gone."""

    def begin_stream(self, stream: _Stream, code: bytes, *, is_last: bool) -> UpstreamFault | None:
        """Send the head of a new stream, in HPACK. Gives a fault where that cannot be."""

    def upgrade_fault(self, protocol: bytes) -> UpstreamFault | None:
        """Why a stream of this connection cannot become a tunnel for this protocol; None: it can."""

    def http_1_is_required(self) -> None:
        """The upstream does not serve a request over HTTP/2."""

    def loss_fault(self) -> UpstreamFault:
        """Why streams end with the connection, those that the upstream may have seen."""

    def stream_failed(self) -> None:
        """We have reset a stream because of what the upstream did. Raises Flood."""

    def wake_later(self, stream: _Stream) -> None:
        """Resume who waits for this stream when all that has come is taken."""

    def forget(self, stream: _Stream) -> bool:
        """The stream is over. False where it was so before."""

    def given_up(self, begun_at: float) -> None:
        """A stream is given up that had begun at this time of the wheel, and has no whole answer."""

    def take_place_back(self, stream: _Stream) -> None:
        """The exchange is over."""
