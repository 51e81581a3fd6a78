"""HedgedAttempt: one of the attempts that are under way at once for a request.

It has what a single attempt has (filters, credentials, Host, address checks), and holds what is its own: driver, clock,
connection, and a copy of the exchange. A cancelled attempt is as one whose client has left: the health of the endpoint
stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import ClassVar, Final

from egressproxy.errors import ClientGone, GatewayError, GatewayFault, Reason
from egressproxy.gateway.backends.endpoints import HostSet
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import (
    HeldConnection,
    Repeat,
    call_upstream,
    filtered_answer,
)
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import ANSWER_S, late_attempt
from egressproxy.gateway.exchange.request_body import send_request
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.net.driver import Driver
from egressproxy.net.timers import NEVER
from egressproxy.protocols.upstream import Upstream

log = logging.getLogger(__name__)

#: The result of an attempt that was given up, in metrics.
CANCELLED: Final = "cancelled"


class HedgedAttempt:
    """`exchange` is its own: what comes of it reaches the client's exchange where it decides. `counted`: the
    hosts in whose `maxParallelRetries` the attempt counts. `first_byte_s`: an answer has to begin its body within this
    time; 0.0: its head will do. `ends_at`: when the time of the backend for an attempt is over (monotonic seconds).
    """

    __slots__ = (
        "_body",
        "_client",
        "_handle",
        "_on_over",
        "backend",
        "began",
        "counted",
        "driver",
        "ends_at",
        "error",
        "exchange",
        "first_byte_s",
        "found",
        "is_cancelled",
        "is_first",
        "is_over",
        "resources",
        "target",
    )

    may_flow: ClassVar[bool] = False

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        backend: RouteBackend,
        target: UpstreamHost,
        body: bytes | ReplayableBody | None,
        *,
        is_first: bool,
    ) -> None:
        """`exchange` is copied; its request is as the client sent it. `body`: None for a request without one."""
        self._client = client
        if isinstance(body, ReplayableBody) and body.given is not None:
            body = ReplayableBody.whole(body.given, body.given_trailers)  # each attempt sends its own
        self._body = body
        self._handle: asyncio.TimerHandle | None = None
        self._on_over: Callable[[HedgedAttempt], None] | None = None
        self.backend = backend
        self.target = target
        self.is_first = is_first
        self.counted: HostSet | None = None
        self.first_byte_s = 0.0
        self.resources = HeldConnection()
        self.driver = Driver()
        self.began = monotonic()
        self.ends_at = NEVER
        self.found: Upstream | LocalResponse | None = None
        self.error: GatewayError | None = None
        self.is_over = False
        self.is_cancelled = False
        self.exchange = own = exchange.copy()
        own.request = exchange.request.copy()
        if body is not None:
            own.request.body = body.length if isinstance(body, ReplayableBody) else len(body)
        own.fork_state()
        own.attempts = 0
        own.backend = backend.name
        own.series = backend.series
        if backend.denied is not None:
            backend.note_denied(own)

    def start(self, repeat: Repeat, on_over: Callable[[HedgedAttempt], None]) -> None:
        """Begin. `on_over` is called in the end, maybe before this returns."""
        self._on_over = on_over
        self.driver.start(self._live(repeat))

    def cancel(self) -> None:
        """Give the attempt up, and release its resources. The health of the endpoint stays as it is."""
        if not self.is_over:
            self.is_cancelled = True
            self._on_over = None
            self.driver.throw(ClientGone())
        self.discard()

    def discard(self) -> None:
        """Its answer goes nowhere: its connection is used again where all of that is here, else closed."""
        upstream, is_reusable = self.resources.upstream, False
        if upstream is not None and self.is_over and not upstream.is_lost:
            if not upstream.has_ended:
                upstream.whole_body()
            is_reusable = upstream.is_reusable
        self.resources.release(reusable=is_reusable)

    async def _live(self, repeat: Repeat) -> None:
        cluster = self.backend.cluster
        assert cluster is not None
        try:
            found = await call_upstream(
                self, self.resources, self.exchange, cluster, self.target, self.backend.chain, self._body, repeat
            )
            found = await filtered_answer(self.resources, self.exchange, self.backend.chain, found)
            if self.first_byte_s and not isinstance(found, LocalResponse):
                await found.first_byte()
            self.found = found
        except GatewayError as error:
            error.__traceback__ = error.__context__ = None  # its frames hold what holds the error: no cycle
            self.error = error
        except GeneratorExit:
            raise  # the process ends
        except BaseException as error:  # also what a filter may raise to end more than itself
            log.error("internal error in exchange %s", self.exchange.request_id, exc_info=error)
            self.error = GatewayFault(Reason.INTERNAL, "internal error", detail=type(error).__name__)
        self.is_over = True
        if self._handle is not None:
            self._handle.cancel()
        if self.counted is not None:
            self.counted.end_retry()
        if self.error is not None:
            self.resources.fail(self.exchange, self.error)  # of an answer without a first byte
        on_over, self._on_over = self._on_over, None
        if on_over is not None:
            on_over(self)

    # --- UpstreamCaller --------------------------------------------------------------------------------------------
    def start_attempt(self) -> None:
        seconds = self.backend.backend_request_s
        self.ends_at = self._client.wheel.now + self.backend.clock_s if seconds else NEVER
        limits = [limit for limit in (seconds, self.first_byte_s) if limit]
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(min(limits, default=ANSWER_S), self._late)

    def _late(self) -> None:
        self.driver.throw(late_attempt(self.resources))

    def count_attempt(self, result: str) -> None:
        self.backend.series.attempt(CANCELLED if self.is_cancelled else result)

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        exchange.series.answered(seconds)

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        """See UpstreamCaller. Mirrors get their copies beside the attempt that is sent first."""
        send_request(self._client, self.driver, self.backend, exchange, upstream, body, pseudonym)

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        """See UpstreamCaller. They are passed on (RFC 9110 section 15.2), whoever wins."""
        resources = self._client.pipeline
        resources.backend, resources.cluster = self.backend, self.resources.cluster
        self._client.pass_interim(head, exchange)
