"""The body of an attempt. ReplayableBody: one that can be sent again, for as long as it is short.

It stands between the reader of the body (the client's connection, or a body filter) and the backend of the present
attempt. The first bytes are kept; where there are more than `limit`, nothing is kept any more and the attempt under
way is the last. The body filters of a backend run once for each attempt. They get the body as the filters of the rule
have left it, and their result goes to this backend alone: mirrors and further attempts begin with what has come in.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from egressproxy.errors import GatewayFault, LimitExceeded, Reason
from egressproxy.filters.base import REQUEST_TRAILERS
from egressproxy.filters.body import BodyChain
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.buffered_body import BodyClient
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.message import CHUNKED, BodyLength
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.grpc.statuses import grpc_trailers
from egressproxy.protocols.http1.chunked import late_fields

#: The chain for a body that flows.
_FLOWING: Final[StateSlot[BodyChain]] = StateSlot("body filters of the backend")
#: A whole body as it was before the chain, and its trailers.
UNFILTERED: Final[StateSlot[tuple[bytes, bytes]]] = StateSlot("body before filters of the backend")

#: Bytes of a streamed body that are kept for another attempt.
REPLAY_LIMIT: Final = 64 * 1024

Start = Callable[[BodySink], Reads | None]


class BodyTarget(BodySink, Protocol):
    """Where the body of an attempt goes: the connection, or filters before it."""

    @property
    def is_write_blocked(self) -> bool:
        """Whether it takes nothing more for now."""

    def feed_from(self, feeder: Reads) -> None:
        """From now on this source fills it."""


class ReplayableBody:
    """A sink that keeps the body and hands it on; for the backend it is the source.

    `length` is what the head says of the body. `start` is called once, when the first backend is there: it starts
    the real source, into the sink that it is given, and returns it. `limit` is how many bytes are kept; above
    REPLAY_LIMIT nothing is kept where `client` has no room for it.
    """

    __slots__ = (
        "_bytes", "_client", "_collecting", "_collecting_limit", "_drops_trailers", "_held", "_kept", "_limit",
        "_source", "_start", "_target", "_trailers", "given", "given_trailers", "has_begun", "is_kept", "length",
        "whole_at",
    )  # fmt: skip

    def __init__(
        self, length: BodyLength, start: Start, limit: int = REPLAY_LIMIT, client: BodyClient | None = None
    ) -> None:
        self._client = client
        self.length = length
        self.given: bytes | None = None  # the whole body, if it was collected before
        self.given_trailers = b""  # those behind it
        self.has_begun = False  # the client has sent some of it
        self.is_kept = True  # all that has come is here: it can be sent again
        self.whole_at = 0.0  # monotonic seconds; 0.0: more may come
        self._start: Start | None = start
        self._source: Reads | None = None  # not started yet
        self._limit = limit
        self._collecting: BodyClient | None = None  # the holder that waits for the whole body
        self._collecting_limit = 0  # and no longer than this, in bytes
        self._target: BodyTarget | None = None
        self._kept = ByteQueue()
        self._bytes = 0
        self._held = 0  # of these, those that the client was told of, to be kept
        self._trailers: bytes | None = None  # None: more may come
        self._drops_trailers = False

    @classmethod
    def whole(cls, body: bytes, trailers: bytes = b"") -> ReplayableBody:
        """One for a body that was collected before, with the trailers behind it. Only a chunked body has trailers."""

        def start(sink: BodySink) -> None:
            if body:
                sink.send_body(body)
            sink.end_body(trailers)

        made = cls(CHUNKED if trailers else len(body), start, len(body))
        made.given = body
        made.given_trailers = trailers
        return made

    @property
    def is_flowing(self) -> bool:
        """Whether a backend has some of it and waits for the rest."""
        return self._target is not None and self._trailers is None

    # --- for the attempts ----------------------------------------------------------------------------------------
    def send_to(self, upstream: BodyTarget, sink: BodySink) -> None:
        """Send this upstream, or the filters before it, what has come so far, and from now on what comes.

        The source sends into `sink`: this object, or `MirrorRequests`, which hand on to this object.
        """
        self._target = upstream
        for piece in self._kept:
            upstream.send_body(piece)
        if self._trailers is not None:
            self._hand_over_if_long()
            upstream.end_body(b"" if self._drops_trailers else self._trailers)
            return
        self._forget_if_long()
        upstream.feed_from(self)
        start, self._start = self._start, None
        if start is not None:
            self._source = start(sink)
        if upstream.is_write_blocked:
            self.pause_reading()
        else:
            self.resume_reading()

    def drop_trailers(self, drops: bool) -> None:
        """Whether no trailers go on in this attempt: a filter of its backend looks at the head, and not at them."""
        self._drops_trailers = drops
        if self.given_trailers:
            assert self.given is not None
            self.length = len(self.given) if drops else CHUNKED

    def detach(self) -> None:
        """End an attempt that has failed. The source is held back; what still comes is kept for the next attempt."""
        self._target = None
        if self._trailers is None:
            self.pause_reading()

    async def collect(self, client: BodyClient, limit: int, *, only_looks: bool = False) -> bytes:
        """The whole body, once its end has come. A short body stays here for further attempts; all of it where the
        caller `only_looks`, and keeps nothing. Not while one is under way.

        Raises LimitExceeded (413) where it is longer than `limit` bytes. The caller is driven by `client.driver`.
        """
        assert self.is_kept
        if self._trailers is None:
            self._collecting = client
            self._collecting_limit = limit
            start, self._start = self._start, None
            if start is not None:
                self._source = start(self)
            self.resume_reading()
            try:
                while self._trailers is None and self._bytes <= limit:
                    await PAUSE
            finally:  # the client may have left: nothing here leads to it then
                self._collecting = None
            self.pause_reading()
        if self._bytes > limit:
            message = f"the request body is longer than the {limit} bytes that are read to be changed"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
        body = self._kept.joined()
        if not only_looks:
            self._hand_over_if_long()
        return body

    # --- Reads: the backend's connection asks ----------------------------------------------------------------------
    def pause_reading(self) -> None:
        if self._source is not None:
            self._source.pause_reading()

    def resume_reading(self) -> None:
        if self._source is not None:
            self._source.resume_reading()

    # --- BodySink: the source gives --------------------------------------------------------------------------------
    def send_body(self, data: bytes) -> None:
        """BodySink: keep a piece as long as the body is short, and hand it to the attempt under way."""
        self.has_begun = True
        if self.is_kept:
            self._kept.append(data)
            self._bytes += len(data)
        if self._target is not None:
            self._target.send_body(data)
            self._forget_if_long()
        elif self._collecting is not None and self._bytes > self._collecting_limit:
            self._collecting.driver.resume()
        elif self._collecting is not None:
            more, self._held = self._bytes - self._held, self._bytes
            self._collecting.hold_bytes(more)

    def end_body(self, trailers: bytes) -> None:
        self.has_begun = True
        self.whole_at = monotonic()
        self._trailers = trailers
        if self._target is not None:
            self._target.end_body(b"" if self._drops_trailers else trailers)
        elif self._collecting is not None:
            self._collecting.driver.resume()

    def forget(self) -> None:
        """There is no further attempt: what was kept is let go."""
        self.is_kept = False
        self.given = None
        self._kept = ByteQueue()
        if self._held and self._client is not None:
            held, self._held = self._held, 0
            self._client.hold_bytes(-held)

    def _hand_over_if_long(self) -> None:
        """Leave a long body to its sender, which holds the whole until the answer is here."""
        if self._bytes > self._limit:
            self._held = 0
        self._forget_if_long()

    def _forget_if_long(self) -> None:
        if self._bytes > self._limit:
            self.forget()
        elif self._bytes > REPLAY_LIMIT and self.is_kept and self._client is not None:
            more, self._held = self._bytes - self._held, self._bytes
            if more and not self._client.may_keep(more):
                self.forget()


async def filtered_backend_body(
    exchange: Exchange, chain: Chain, body: bytes | ReplayableBody | None, *, may_flow: bool
) -> bytes | ReplayableBody | None:
    """What this attempt sends of `body`, where the chain has body filters of its own. A body that flows goes through
    `streaming_backend_filters`, as far as its caller `may_flow`.

    Raises what a filter refuses with, and GatewayFault (502) for a body that would go past it.
    """
    plan = chain.backend_request_body
    trailers = b""
    if isinstance(body, ReplayableBody):
        whole, trailers = body.given, body.given_trailers
    else:
        whole = body
    exchange.take(_FLOWING)
    exchange.take(UNFILTERED)
    exchange.take(REQUEST_TRAILERS)  # those that the filters of the rule have seen
    if plan is None or (exchange.request.body == 0 and not whole):
        return body
    filters = plan.begin(exchange)
    if filters is None:
        return body
    if whole is not None:
        exchange.keep(UNFILTERED, (whole, trailers))
        if trailers:
            filters.expect_trailers(exchange, trailers)
        filtered = await filters.feed_to_end(exchange, whole, True)
        if not trailers:
            return filtered
        return ReplayableBody.whole(filtered, await passed_trailers(exchange, filters, trailers))
    if not may_flow:
        if filters.is_empty:
            return body
        message = f"a filter of backend {exchange.backend} needs the body, which is not here"
        raise GatewayFault(Reason.FILTER_FAILED, message, status=502)
    exchange.keep(_FLOWING, filters)
    return body


def streaming_backend_filters(exchange: Exchange, chain: Chain) -> BodyChain | None:
    """The filters of the backend (with this `chain`) that the body of this attempt flows through; None: none."""
    return exchange.take(_FLOWING) if chain.backend_request_body is not None else None


def unfiltered_body(exchange: Exchange, chain: Chain) -> tuple[bytes, bytes] | None:
    """The whole body before the filters of the backend (with this `chain`), and its trailers; None: none had it."""
    return exchange.state.get(UNFILTERED) if chain.backend_request_body is not None else None


async def passed_trailers(exchange: Exchange, chain: BodyChain, block: bytes) -> bytes:
    """The trailers to forward behind the filters of the body. Raises as BodyChain.run_trailers."""
    outcome = chain.run_trailers(exchange, block)
    return forwarded_trailers(chain, block, outcome if isinstance(outcome, bytes) else await outcome)


def forwarded_trailers(chain: BodyChain, came: bytes, left: bytes) -> bytes:
    """The trailers to forward: those that came, minus those that filters of the body removed (RFC 9110 section 6.5)."""
    passing = late_fields(left) if chain.lets_trailers else grpc_trailers(left, with_text=chain.lets_status_text)
    if not grpc_trailers(passing, with_text=False):
        passing += grpc_trailers(came, with_text=False)  # without a status no call ends
    return passing
