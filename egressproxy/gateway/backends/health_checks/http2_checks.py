"""A health check over HTTP/2: one stream on a connection of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.opener import ConnectionOpener, is_http2
from egressproxy.gateway.backends.upstream_hosts import DialTarget
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import ResponseHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream

#: The longest answer that is read.
MAX_BYTES: Final = 64 * 1024


@dataclass(slots=True, eq=False, repr=False)
class HealthAnswer:
    """A sink that collects the answer's body."""

    body: bytes = b""
    trailers: Fields = field(default_factory=Fields)

    def send_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"the answer is longer than {MAX_BYTES} bytes")

    def end_body(self, trailers: bytes) -> None:
        self.trailers = Fields(trailers)


ALPN = ("h2",)


async def ask_over_http2(
    opener: ConnectionOpener, network: Network, driver: Driver, target: DialTarget, exchange: Exchange, host: bytes,
    limits: HeadLimits, body: bytes,
) -> tuple[ResponseHead, bytes, Fields]:  # fmt: skip
    """Send `exchange.request` with this body, on a new connection. Returns its answer. Raises GatewayError."""
    connection = Http2Upstream(network.wheel, limits, is_secure=target.tls is not None, idle_s=0.0)
    answer = HealthAnswer()
    is_open = False
    try:
        if target.tls is None:
            await opener.open(exchange, target, None, connection)
        else:
            parked = PendingProtocol()
            await opener.open(exchange, target, None, parked, ALPN)
            if not is_http2(parked):
                parked.transport.abort()
                raise UpstreamFault(Reason.TLS_PROTOCOL, "the upstream does not speak HTTP/2 (ALPN h2)")
            parked.hand_over(connection)
        is_open = True
        stream = UpstreamStream(connection)
        exchange.request.body = len(body)
        stream.begin(driver, exchange.request)
        stream.send_head(exchange.request, host, network.pseudonym)
        if body:
            stream.send_body(body)
            stream.end_body(b"")
        while (head := stream.next_head()) is None or head.is_interim:
            if head is None:
                await PAUSE
        if not stream.has_ended:
            stream.send_response_body_to(answer)
            await stream.response_end()
        return head, answer.body, answer.trailers
    finally:
        connection.deadline.close()
        connection.age.close()
        if is_open:
            stream.finish()
            connection.abort()
