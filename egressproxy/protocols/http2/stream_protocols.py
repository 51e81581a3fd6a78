"""What a stream needs of its connection beside `OutboundStreams`: one of a client, and one to a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from egressproxy.errors import UpstreamFault
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.downstream import RequestHandler
from egressproxy.protocols.http2.head_fields import ResponseHeads

#: A Http2Stream: its module needs this one.
_Stream: TypeAlias = Any

#: That of a stream which is over. It may be set, but never passes: nobody turns its wheel.
NO_DEADLINE: Final = Deadline(TimerWheel(), lambda: None)


class DownstreamStreamConnection(Protocol):
    """What a client's stream needs of its connection, beside what `OutboundStreams` has."""

    client: str
    handler: RequestHandler
    idle_s: float
    request_headers_s: float
    response_heads: ResponseHeads

    def new_deadline(self, callback: Callable[[], None]) -> Deadline:
        """One for a stream."""

    def spare(self, deadline: Deadline) -> None:
        """The stream of this one is over."""

    def gave_up(self) -> None:
        """The client has cut an exchange. Raises Flood where it does nothing else."""


class UpstreamStreamConnection(Protocol):
    """What a stream to a backend needs of its connection, beside what `OutboundStreams` has."""

    address: str
    begins_nothing: bool
    is_secure: bool

    @property
    def is_new(self) -> bool:
        """The upstream has not announced yet how many streams it takes."""

    async def settings(self) -> None:
        """Wait until the upstream has announced what it takes, or is gone."""

    def begin_stream(self, stream: _Stream, code: bytes, *, is_last: bool) -> UpstreamFault | None:
        """Send the head of a new stream, in HPACK. Gives a fault where that cannot be."""

    def upgrade_fault(self, protocol: bytes) -> UpstreamFault | None:
        """Why a stream of this connection cannot become a tunnel for this protocol; None: it can."""

    def http_1_is_required(self) -> None:
        """The upstream does not serve a request over HTTP/2."""

    def loss_fault(self) -> UpstreamFault:
        """Why streams end with the connection, those that the upstream may have seen."""

    def wake_later(self, stream: _Stream) -> None:
        """Resume who waits for this stream when all that has come is taken."""

    def given_up(self, begun_at: float) -> None:
        """A stream is given up that had begun at this time of the wheel, and has no whole answer."""

    def take_place_back(self, stream: _Stream) -> None:
        """The exchange is over."""
