"""OwnCaller: what calls a backend for the gateway itself, and for mirrors, and not for a client that waits."""

from __future__ import annotations

from typing import ClassVar

from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import ResponseHead
from egressproxy.net.driver import Driver
from egressproxy.protocols.upstream import Upstream


class OwnCaller:
    """An UpstreamCaller that counts nothing, has no clock, and drops interim responses."""

    __slots__ = ()

    may_flow: ClassVar[bool] = False
    driver: Driver

    def start_attempt(self) -> None:
        return

    def count_attempt(self, result: str) -> None:
        return

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        return

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        """As of UpstreamCaller; a body is whole."""
        upstream.begin(self.driver, exchange.request)
        upstream.send_head(exchange.request, exchange.upstream_host, pseudonym)
        if isinstance(body, bytes):
            upstream.send_body(body)
            upstream.end_body(b"")

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        return
