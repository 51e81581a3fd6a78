"""GrpcChannel: unary gRPC calls to one backend, over one HTTP/2 connection for each of its endpoints.

The connections belong to the Connector: they live and end with its ConnectionIR, under its names, addresses and TLS.
"""

from __future__ import annotations

import asyncio

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import Steps
from egressproxy.gateway.backends.connector import Connector, UpstreamChannel
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.followed_name import FollowedName
from egressproxy.gateway.backends.upstream_call import MAX_ATTEMPTS, Repeat, may_repeat
from egressproxy.model.exchange import Exchange
from egressproxy.model.shares import client_of
from egressproxy.net.flow_control import peer_address
from egressproxy.protocols.grpc.framing import Headers, call_headers, framed, reply
from egressproxy.protocols.http2.unary import UnaryConnection

__all__ = ["GrpcChannel"]

HTTP_2 = ("h2",)

#: The configuration no longer has the backend, but a request that began before it still asks.
RETIRED_IDLE_S = 0.1

_Place = tuple[str, int]


class GrpcChannel(UpstreamChannel):
    """The connections for gRPC of one Connector."""

    __slots__ = ("_connections", "_connector", "_dials")

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._connections: dict[_Place, UnaryConnection] = {}
        self._dials: dict[_Place, asyncio.Task[UnaryConnection]] = {}

    @staticmethod
    def of(connector: Connector) -> GrpcChannel:
        """The channel of this Connector, made at its first use."""
        if connector.channel is None:
            connector.channel = GrpcChannel(connector)
        assert isinstance(connector.channel, GrpcChannel)
        return connector.channel

    async def call(
        self, x: Exchange, connect: Steps | None, path: bytes, metadata: Headers, message: bytes, timeout_s: float
    ) -> bytes:
        """Make one call, in a task. Returns the message of the reply. Raises GatewayError.

        `x` is an exchange of the call's own. `timeout_s` (seconds) is sent as grpc-timeout; the caller has to stop in
        time.
        """
        client = client_of(x)
        while True:
            x.attempts += 1
            target = self._connector.target(x)
            connection, was_used = None, False
            scheme = b"https" if target.tls is not None else b"http"
            headers = call_headers(path, target.host_field, scheme, timeout_s, metadata)
            try:
                connection = await self._connection(x, target, connect)
                was_used = connection.served > 0
                answer = await connection.call(headers, framed(message), client)
            except GatewayError as error:
                is_unseen = connection is not None and error.retry is RetrySafety.SAFE
                if not (is_unseen and x.attempts < MAX_ATTEMPTS) and not may_repeat(
                    x, self._connector, error, Repeat.ALWAYS, was_reused=was_used
                ):
                    raise
            else:
                return reply(answer.head, answer.data, answer.trailers)

    def retire(self) -> None:
        """As `Connector.retire`."""
        for connection in list(self._connections.values()):
            connection.leave()

    def counts(self) -> tuple[int, int]:
        """As `UpstreamChannel.counts`."""
        active = sum(1 for connection in self._connections.values() if connection.active)
        return active, len(self._connections) - active

    async def _connection(self, x: Exchange, target: Target, connect: Steps | None) -> UnaryConnection:
        """That of this endpoint, or a new one, which all who wait for it get. A caller that leaves does not end it."""
        if self._connector.network.wheel.now >= target.name.fresh_until and not self._connector.refresh_name(x, target):
            await self._connector.catch_up(x, target)
        place = (target.host, target.port)
        found = self._connections.get(place)
        if found is not None and not found.is_leaving:
            return found
        dial = self._dials.get(place)
        if dial is None:
            dial = self._dials[place] = asyncio.get_running_loop().create_task(self._open(x, target, connect))
            dial.add_done_callback(lambda done: self._dialled(place, target.name, done))
        try:
            return await asyncio.shield(dial)
        finally:
            del dial  # its error's traceback holds this frame: no cycle

    async def _open(self, x: Exchange, target: Target, connect: Steps | None) -> UnaryConnection:
        spec = self._connector.spec
        idle_s = spec.idle_s if not self._connector.is_retired else RETIRED_IDLE_S
        kept = spec.kept
        connection = UnaryConnection(self._connector.network.wheel, idle_s, kept.max_age_s, kept.max_requests)
        version = target.name.version
        transport = await self._connector.opener.open(x, target, connect, connection, HTTP_2)
        peer = transport.get_extra_info("ssl_object")
        if peer is not None and peer.selected_alpn_protocol() != "h2":
            connection.close()
            raise UpstreamFault(Reason.TLS_PROTOCOL, "the server does not speak HTTP/2 (ALPN h2)")
        if connection.is_lost:
            raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the server closed its new connection")
        target.name.keep(connection, peer_address(transport), None, version)
        return connection

    def _dialled(self, place: _Place, name: FollowedName, dial: asyncio.Task[UnaryConnection]) -> None:
        self._dials.pop(place, None)
        if dial.cancelled() or dial.exception() is not None:
            return
        connection = dial.result()
        before = self._connections.get(place)
        if before is not None:
            before.on_lost = name.forget  # it is leaving, and no longer ours to count
        self._connections[place] = connection
        connection.on_lost = lambda _lost: self._lost(place, name, connection)

    def _lost(self, place: _Place, name: FollowedName, connection: UnaryConnection) -> None:
        name.forget(connection)
        if self._connections.get(place) is connection:
            del self._connections[place]

    def __repr__(self) -> str:
        return f"GrpcChannel({self._connector.name}, {len(self._connections)} connections)"
