"""OpenConnections: the open connections at one address and port. They survive reloads, which assign a new Port."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from math import inf
from typing import Final, Protocol
from weakref import WeakValueDictionary

from egressproxy.errors import GatewayFault, LimitExceeded, Reason
from egressproxy.gateway.identity.killed_identities import KilledIdentities
from egressproxy.gateway.overload.request_gate import Tenant
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import PerClientQuota, origin_of
from egressproxy.net.held_bytes import HeldBytes, Hold
from egressproxy.net.process import RESERVED, descriptors
from egressproxy.telemetry.event_aggregator import Refusal
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

#: Why a connection is refused before there is an exchange.
BAD_CERTIFICATE: Final = Refusal(Reason.CLIENT_CERTIFICATE, "a client's certificate is missing or not valid")
TOO_MANY: Final = Refusal(
    Reason.CONNECTION_LIMIT,
    "a connection was refused: the listener has as many as limits.connections allows",
    remedy="raise limits.connections, or see who opens so many",
)
OF_CLIENT: Final = Refusal(
    Reason.CONNECTION_LIMIT,
    "a connection was refused: its client has as many as limits.connectionsPerClient allows (where it is "
    "not written, three quarters of limits.connections)",
    remedy="raise limits.connectionsPerClient; set it to 0 where one address is many clients",
)
OF_DESCRIPTORS: Final = Refusal(
    Reason.CONNECTION_LIMIT,
    "a connection was refused: its client has three eighths of the connections that the file descriptors allow",
    remedy="raise the limit of open files, or set limits.connectionsPerClient: 0 where one address is many clients",
)
OF_PROCESS: Final = Refusal(
    Reason.CONNECTION_LIMIT,
    "a connection was refused: the process has as many as --max-connections allows, and none of them is idle",
    remedy="raise --max-connections and the limit of open files, or add workers or replicas",
)
#: A listener: its Gateway, and its name.
ListenerKey = tuple[str, str]
#: The status of an upgrade: from then on the exchange is a tunnel (RFC 9110 section 15.2.2).
SWITCHED: Final = 101
#: How many connections are looked at, when one has to make way.
LOOKED_AT: Final = 16


class Holder(Protocol):
    """What an exchange in progress holds (`exchange/pipeline`)."""

    tenant: Tenant | None
    exchange: Exchange | None

    @property
    def identity(self) -> CallerIdentity:
        """Who the client is, where its request has said so."""


class Connection(Protocol):
    """A client's connection, of whatever protocol."""

    @property
    def identity(self) -> CallerIdentity:
        """Who the client is, where its connection has said so."""

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""

    def close_if_idle(self) -> bool:
        """Close unless an exchange is being served. Returns whether it closes."""

    def serving(self) -> Iterable[Holder]:
        """What is held by each exchange in progress."""


#: Clients that are told at one time that they find no room; others find their connection closed.
MAX_REFUSED: Final = 512


class AllConnections(PerClientQuota):
    """Connections of clients to all listeners of this process. `states` gives the open connections of each.

    `refused` are those that are being told that they find no room, beside these; there may be `max_refused`. `held` is
    what is held of the bodies of each client, and `bodies_waited` how many had to wait since that was too much.
    """

    __slots__ = ("bodies_waited", "held", "max_refused", "refused", "states")

    def __init__(self, limit: int, share: int, max_refused: int = MAX_REFUSED) -> None:
        super().__init__(limit, share)
        self.refused = 0
        self.max_refused = max_refused
        self.states: Callable[[], Iterable[OpenConnections]] = tuple
        self.held: WeakValueDictionary[str, HeldBytes] = WeakValueDictionary()
        self.bodies_waited = 0

    @property
    def held_bytes(self) -> int:
        """What is held of bodies for all clients, as far as that is limited."""
        return sum([each.total for each in self.held.values()])

    def make_way(self, client: str) -> bool:
        """Close an idle connection of somebody who has more than this client, at whatever listener."""
        of_client = self.of(client)
        return any(state.make_way(of_client, self.of) for state in self.states())


#: Fewer descriptors than that are few for a gateway.
FEW_DESCRIPTORS: Final = 4096


def clients_of_process(limit: int | None) -> AllConnections:
    """`limit` None: half of the file descriptors, since each client may need another for its backend; 0: as many as
    there are. One client has three eighths of the descriptors, where no limit says anything.
    """
    most = descriptors()
    room = sys.maxsize if most == sys.maxsize else max(1, most - RESERVED)
    if limit is None:
        limit = max(1, room // 2) if room < sys.maxsize else room
        if most < FEW_DESCRIPTORS:
            log.warning(
                "this process may have %d files open, and so %d connections of clients: raise the limit"
                " (`ulimit -n`, LimitNOFILE= of systemd)",
                most,
                limit,
            )
    elif limit > room:
        log.warning(
            "--max-connections %d is more than the limit of open files allows (%d, of which %d are for other use):"
            " raise that (`ulimit -n`, LimitNOFILE= of systemd)",
            limit,
            most,
            RESERVED,
        )
    limit = min(limit or room, room)
    spare = MAX_REFUSED if most == sys.maxsize else (most - limit) // 8
    return AllConnections(limit, most * 3 // 8, min(MAX_REFUSED, spare))


class OpenConnections:
    """Counts connections against `limits.connections` and `limits.connectionsPerClient`, and tunnels.

    `clients` counts those of each client to all listeners of this process; `tunnels_of` the tunnels of each listener.
    """

    __slots__ = (
        "clients", "connections", "is_closed", "per_client", "port", "told_flood", "told_refusal", "tunnels_of",
        "untold_refusals",
    )  # fmt: skip

    def __init__(
        self,
        port: Port,
        clients: AllConnections | None = None,
        tunnels_of: dict[ListenerKey, PerClientQuota] | None = None,
    ) -> None:
        self.port = port
        self.clients = clients if clients is not None else AllConnections(sys.maxsize, sys.maxsize)
        self.connections: dict[Connection, str] = {}  # the client's address by connection
        self.per_client: dict[str, int] = {}
        self.tunnels_of = tunnels_of if tunnels_of is not None else {}  # of the state before, which go on
        self.told_flood = -inf  # when the log was told of a client that floods us (monotonic seconds)
        self.told_refusal = -inf  # when the log was told of a certificate that was refused (monotonic seconds) …
        self.untold_refusals = 0  # … and how many were refused since
        self.is_closed = False  # nothing is accepted any more: each connection ends with its exchange

    def admit(self, connection: Connection, client: str, metrics: Metrics) -> Refusal | None:
        """Count this connection of a client (`address:port`), or its refusal. Returns why it is refused, or None."""
        limits = self.port.limits
        address = origin_of(client)
        of_client = self.per_client.get(address, 0)
        is_full = 0 < limits.connections <= len(self.connections)
        if limits.connections_per_client:
            if of_client >= limits.connections_per_client:
                return self.count_refusal(metrics, TOO_MANY if is_full else OF_CLIENT)
        elif self.clients.of(address) >= self.clients.share:
            return self.count_refusal(metrics, OF_DESCRIPTORS)
        if is_full and not self.make_way(of_client, self._of):
            return self.count_refusal(metrics, TOO_MANY)
        if self.clients.total >= self.clients.limit and not self.clients.make_way(address):
            return self.count_refusal(metrics, OF_PROCESS)
        self.connections[connection] = address
        self.per_client[address] = of_client + 1
        self.clients.add(address)
        return None

    def _of(self, client: str) -> int:
        return self.per_client.get(client, 0)

    def make_way(self, of_client: int, count: Callable[[str], int]) -> bool:
        """Close an idle connection for a client that has so many: one of a client that will still have as many by this
        `count`. It looks at a few, and the next time at others.
        """
        for connection, address in list(islice(self.connections.items(), LOOKED_AT)):
            if count(address) > of_client + 1 and connection.close_if_idle():
                self.leave(connection)
                return True
            if self.connections.pop(connection, None) is not None:
                self.connections[connection] = address
        return False

    def count_refusal(self, metrics: Metrics, why: Refusal) -> Refusal:
        """Count and tell of a connection that is closed before its first request. Returns `why`."""
        metrics.connections_rejected[why.reason.value] += 1
        metrics.notices.refused(self.port.first.series, why)
        return why

    def leave(self, connection: Connection) -> None:
        """Stop counting a connection. Does nothing for one that was not admitted, or has left."""
        address = self.connections.pop(connection, None)
        if address is None:
            return
        self.clients.give_back(address)
        left = self.per_client[address] - 1
        if left:
            self.per_client[address] = left
        else:
            del self.per_client[address]

    def cut(self, killed: KilledIdentities) -> int:
        """Break off what is in progress for clients that are killed, with its connection. Returns how much it was."""
        count = 0
        for connection in list(self.connections):
            held = [each.identity for each in connection.serving()]
            if held and any(map(killed.has, (connection.identity, *held))):
                connection.abort()
                count += len(held)
        return count

    def requests(self) -> Iterator[Exchange]:
        """The requests in progress, and the tunnels that are not open yet. It looks at every connection."""
        for connection in list(self.connections):
            for held in connection.serving():
                exchange = held.exchange
                if exchange is not None and not (
                    exchange.status == SWITCHED or (exchange.is_tunnel and exchange.status)
                ):
                    yield exchange

    def close_idle(self) -> None:
        """Ask connections without an exchange to go."""
        for connection in list(self.connections):
            connection.close_if_idle()

    def new_hold(self, client: str, connection: HeldBytes | None) -> Hold:
        """For what is held of an exchange of this client (`address:port`), on this connection with HTTP/2."""
        limits, accounts = self.port.limits, list[tuple[HeldBytes, int]]()
        if limits.buffered_bytes_per_client:
            address, held = origin_of(client), self.clients.held
            of_client = held.get(address)
            if of_client is None:
                of_client = held[address] = HeldBytes()
            accounts.append((of_client, limits.buffered_bytes_per_client))
        if limits.buffered_bytes_per_connection and connection is not None:
            accounts.append((connection, limits.buffered_bytes_per_connection))
        return Hold(tuple(accounts))

    def check_open(self) -> None:
        """Raises GatewayFault (404) where nothing begins any more. Ask behind whatever a client can make last."""
        if self.is_closed:
            raise GatewayFault(Reason.NO_ROUTE, "the listener is no longer configured", status=404)

    def replace(self, connection: Connection, other: Connection) -> None:
        """Another connection goes on in the place of this one."""
        address = self.connections.pop(connection, None)
        if address is not None:
            self.connections[other] = address

    @property
    def tunnels(self) -> int:
        return sum(each.total for each in self.tunnels_of.values())

    def take_tunnel(self, listener: ActiveListener, client: str) -> Callable[[], None]:
        """Count a tunnel of this client against `limits.tunnels` and its share of that. Returns the call that ends the
        count. Raises LimitExceeded (503).
        """
        limits, key = listener.spec.policy.limits, (listener.gateway, listener.name)
        limit, held = limits.tunnels, self.tunnels_of.get(key)
        if held is None:
            held = self.tunnels_of[key] = PerClientQuota(sys.maxsize, sys.maxsize)
        elif limit and held.total >= limit:
            message = f"this listener already has {limit} tunnel{'s' if limit > 1 else ''}"
            raise LimitExceeded(Reason.TUNNEL_LIMIT, message, status=503, retry_after_s=1)
        elif limit and held.of(client) >= limits.tunnels_per_client:
            message = f"this client already has {limits.tunnels_per_client} of the {limit} tunnels of this listener"
            remedy = "set limits.connectionsPerClient, where one client is to have more than three quarters of them"
            raise LimitExceeded(Reason.TUNNEL_LIMIT, message, status=503, retry_after_s=1, remedy=remedy)
        held.add(client)
        return partial(self._give_tunnel_back, key, client)

    def _give_tunnel_back(self, listener: ListenerKey, client: str) -> None:
        held = self.tunnels_of[listener]
        held.give_back(client)
        if not held.total:
            del self.tunnels_of[listener]
