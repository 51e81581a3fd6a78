"""AttemptTimer: the times of one attempt that the wheel of timers is too coarse for, or that end with a first byte."""

from __future__ import annotations

import asyncio
from time import monotonic

from egressproxy.gateway.backends.failover import FailoverGroup
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.client import Client


class AttemptTimer:
    """Ends an attempt that is late: after a `backendRequest` below a second (the wheel of timers may be late by all of
    it), and without a first byte. While the rest of the body has to come from the client, nobody waits for that.
    """

    __slots__ = ("_body", "_client", "_first_byte_s", "_handle", "_rest")

    def __init__(
        self, client: Client, backend: RouteBackend, failover: FailoverGroup | None, body: ReplayableBody | None
    ) -> None:
        self._client = client
        self._body = body
        self._first_byte_s = failover.spec.first_byte_s if failover is not None else 0.0
        self._handle = self._rest = None
        loop = asyncio.get_running_loop()
        if backend.is_brief:
            self._rest = loop.call_later(backend.backend_request_s, client.end_late_attempt)
        if self._first_byte_s:
            self._handle = loop.call_later(self._first_byte_s, self._look)

    def cancel(self) -> None:
        """The answer has begun, or the attempt is over."""
        for handle in (self._handle, self._rest):
            if handle is not None:
                handle.cancel()

    def _look(self) -> None:
        body, upstream = self._body, self._client.resources.upstream
        left_s = 0.0
        if body is not None and upstream is not None:
            if body.is_flowing and not upstream.is_write_blocked:
                left_s = self._first_byte_s
            elif not body.is_flowing:
                left_s = body.whole_at + self._first_byte_s - monotonic()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._client.end_late_attempt()
