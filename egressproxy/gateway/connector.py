"""Connector: how one backend is reached, under one set of DNS, address and TLS rules. Owns the pools.

The way of a connection: name → addresses → address policy → connect filters → one of *these* addresses → (the parent's
CONNECT) → TLS. A pool lives as long as its ConnectionSpec is in the configuration, whatever else is reloaded.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, Retry, UpstreamFault
from egressproxy.filters.chain import HeaderStep, run
from egressproxy.gateway.following import UNFOLLOWED, FollowedName, retire
from egressproxy.gateway.parent import ParentHandshake
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import Answer, Exchange
from egressproxy.model.secret import Secret
from egressproxy.model.shares import Shares, client_of, most_of
from egressproxy.protocols.http1.codec import HeadLimits
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.spec.backend import BackendSpec, BackendTlsSpec, ConnectionSpec, Destination, Endpoint, Protocol
from egressproxy.transport.descriptors import descriptors
from egressproxy.transport.flow import peer_address, peer_name
from egressproxy.transport.parked import Parked
from egressproxy.transport.timers import Deadline, TimerWheel
from egressproxy.transport.tls import TlsStream, tls_fault
from egressproxy.transport.tls_contexts import HTTP_1_1, client_tls
from egressproxy.upstream.address_policy import AddressPolicy
from egressproxy.upstream.dialer import Dialer, abandon
from egressproxy.upstream.own_sockets import NO_SOCKETS
from egressproxy.upstream.pool import Claim, Pool
from egressproxy.upstream.resolver import Resolver

__all__ = ["NO_PORTS", "OPERATOR", "Channel", "Connector", "Network", "Place", "Target", "served_ports"]

#: Response heads: 64 KiB and 256 fields.
UPSTREAM_LIMITS = HeadLimits(max_fields=256)
#: Beyond this number of destinations of one connector, those without a connection are forgotten; and beyond this number
#: that one client has named first, those of them.
MAX_TARGETS = 4096
MAX_TARGETS_OF_CLIENT = 1024
#: How many are freed at one time.
FREED_TARGETS = 64
#: Copies for mirrors at once in one process, and octets of their bodies that wait.
MAX_COPIES = 1024
MAX_COPIED_OCTETS = 64 * 1024 * 1024
DEFAULT_TLS = BackendTlsSpec()
#: A stream's protocol is not ours to name.
NO_ALPN: tuple[str, ...] = ()
NO_PORTS: Mapping[str, Collection[int]] = MappingProxyType({})
#: Backends whose addresses the configuration names.
OPERATOR = (Destination.IP, Destination.SERVICE)
LOOPBACK: tuple[IPAddress, ...] = (ip_address("127.0.0.1"), ip_address("::1"))
_Key = tuple[str, int, bool]  # host, port, whether over TLS


class Place:
    """What is dialled, and how."""

    __slots__ = ("host", "name", "port", "tls")

    def __init__(self, host: str, port: int, tls: BackendTlsSpec | None = None) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.name: FollowedName = UNFOLLOWED


class Target(Place):
    """One destination of a connector, and the connections to it. `client` has named it first, or "": the operator."""

    __slots__ = ("client", "host_field", "pool")

    def __init__(
        self,
        host: str,
        port: int,
        tls: BackendTlsSpec | None,
        pool: Pool[UpstreamConnection],
        name: FollowedName,
        client: str = "",
    ) -> None:
        super().__init__(host, port, tls)
        self.pool = pool
        self.name = name
        self.client = client
        self.host_field = Authority(host, port).host_field(443 if tls is not None else 80)

    @property
    def is_secure(self) -> bool:
        return self.tls is not None

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection of the pool is gone."""
        self.name.forget(connection)
        if connection.age is not None:
            connection.age.close()
        self.pool.lost(connection)

    def __repr__(self) -> str:
        return f"Target({self.host}:{self.port}{', TLS' if self.is_secure else ''}, {self.pool})"


class Channel(ABC):
    """Connections of a connector that carry several calls at a time, and are in no pool."""

    __slots__ = ()

    @abstractmethod
    def retire(self) -> None:
        """As `Connector.retire`."""

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Connections (active, idle)."""


class Network:
    """What all connectors share: the loop, the timers, the dialer, resolvers and address policies by their specs.

    `session_key` signs the tokens of session persistence: the same in all workers of a run.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wheel: TimerWheel,
        count_dns: Callable[[str], None],
        pseudonym: bytes,
        session_key: bytes = b"",
    ) -> None:
        self.loop = loop
        self.wheel = wheel
        self.pseudonym = pseudonym
        self.session_key = Secret(session_key or secrets.token_bytes(32))
        self.dialer = Dialer()
        self._count_dns = count_dns
        self._resolvers: dict[object, Resolver] = {}
        self.own = NO_SOCKETS
        self.opened = Shares(sys.maxsize, descriptors() // 8)  # upstream connections, by who had them opened
        self.copies = Shares(MAX_COPIES, most_of(MAX_COPIES))  # for mirrors, under way
        self.copied_octets = Shares(MAX_COPIED_OCTETS, most_of(MAX_COPIED_OCTETS))  # of those, what waits for a mirror

    def resolver(self, spec: ConnectionSpec) -> Resolver:
        """The resolver for this DNS spec: one cache for all who have the same."""
        found = self._resolvers.get(spec.dns)
        if found is None:
            found = self._resolvers[spec.dns] = Resolver(spec.dns, self._count_dns)
        return found

    def keep_resolvers(self, specs: set[object]) -> None:
        """Forget the resolvers whose spec is no longer in use."""
        for spec in [s for s in self._resolvers if s not in specs]:
            self._resolvers.pop(spec)


class Connector:
    """Gives connections to a backend. One per ConnectionSpec."""

    def __init__(self, spec: ConnectionSpec, network: Network) -> None:
        self.spec = spec
        self.name = spec.backend.name
        self.network = network
        self.resolver = network.resolver(spec)
        self.parent: Connector | None = None
        if spec.backend.parent is not None:
            self.parent = Connector(parent_spec(spec), network)
        self._targets: dict[_Key, Target] = {}
        self._targets_of: dict[str, dict[_Key, Target]] = {}  # of each client that has named some first
        self.is_retired = False
        self._max_requests = spec.kept.max_requests
        self.channel: Channel | None = None
        self._policy = AddressPolicy(spec.addresses, network.own)
        self._policy_own = network.own
        self.endpoints = self._policy.open_endpoints(spec.backend.endpoints)  # but for those that a deny closes
        self._turn = 0
        backend = spec.backend
        self._is_dynamic = backend.destination is Destination.DYNAMIC
        self._fixed: Target | None = None
        if backend.destination is Destination.FQDN:
            self._fixed = self._target(backend.hostname, backend.port, backend.tls)

    # --- where to ----------------------------------------------------------------------------------------------
    def target(self, x: Exchange) -> Target:
        """What this exchange's connection goes to."""
        if self._fixed is not None:
            return self._fixed
        backend = self.spec.backend
        if self._is_dynamic:
            authority = x.authority
            if authority is None:
                raise GatewayFault(Reason.INTERNAL, "the request names no destination")
            tls = (backend.tls or DEFAULT_TLS) if x.scheme == b"https" else None
            found = self._targets.get((authority.host, authority.port, tls is not None))
            return found if found is not None else self._new_target(x, authority, tls)
        return self.endpoint_target(self._next_endpoint())

    def endpoint_target(self, endpoint: Endpoint) -> Target:
        """This endpoint of the backend."""
        return self._target(str(endpoint.address), endpoint.port, self.spec.backend.tls)

    def judge_for_parent(self, target: Place) -> None:
        """A parent resolves names. What is an address, or this machine by its name, is judged here, whoever named it.

        Raises Denied. Source: RFC 6761 section 6.3 (localhost).
        """
        policy, host = self.address_policy(), target.host
        if self.spec.backend.destination in OPERATOR:
            policy.check_operator(ip_address(host), target.port)
        elif host == "localhost" or host.endswith(".localhost"):
            policy.check(host, LOOPBACK, target.port)
            for address in LOOPBACK:  # which of them the parent takes is its choice
                policy.check_operator(address, target.port)
        elif ":" in host or host.rpartition(".")[2].isdigit():  # no name is read so (`model.authority`)
            policy.check(host, (ip_address(host),), target.port)
        elif self.network.own.has_admin_port(target.port) and self.parent is not None and self.parent.may_be_here():
            policy.check_local_parent(host, target.port)

    def may_be_here(self) -> bool:
        """Whether this backend is on this machine, as far as is known; where nothing is known, it may be."""
        backend = self.spec.backend
        if self.parent is not None:
            return True
        if backend.destination in OPERATOR:
            addresses: Iterable[IPAddress] | None = [endpoint.address for endpoint in backend.endpoints]
        else:
            addresses = self.resolver.known(backend.hostname)
        return addresses is None or self.network.own.are_on_this_machine(addresses)

    def way(self, x: Exchange, target: Target) -> tuple[Connector, Target]:
        """Whose connection carries a request to this target: a parent's own for plain http (absolute-form), else
        ours. Raises Denied for a target that no parent may be asked for.
        """
        if self.parent is None or target.is_secure:
            return self, target
        self.judge_for_parent(target)
        return self.parent, self.parent.target(x)  # reached through its own parent, where it has one

    def tunnel_target(self, x: Exchange) -> Place:
        """Where a tunnel goes: the octets are the client's own, so no TLS of ours is in them, and no pool behind it."""
        backend = self.spec.backend
        if backend.destination is Destination.FQDN:
            return Place(backend.hostname, backend.port)
        if backend.destination is Destination.DYNAMIC:
            if x.authority is None:
                raise GatewayFault(Reason.INTERNAL, "the request names no destination")
            return Place(x.authority.host, x.authority.port)
        endpoint = self._next_endpoint()
        return Place(str(endpoint.address), endpoint.port)

    def host_field(self, x: Exchange, target: Target) -> bytes:
        """The Host value for this backend, unless the route rewrote it (resources.md, Backend)."""
        authority = x.authority
        if self._fixed is not None or authority is None:
            return target.host_field
        if (
            (x.scheme == b"https") is (target.tls is not None)
            and authority.host == target.host
            and (authority.port == target.port)
        ):
            return target.host_field
        return authority.host_field(443 if x.scheme == b"https" else 80)

    def _next_endpoint(self) -> Endpoint:
        endpoints = self.endpoints
        if not endpoints:
            denied = self._policy.denial_of(self.spec.backend.endpoints)
            if denied is not None:
                try:
                    raise denied
                finally:
                    del denied  # its traceback holds this frame: no cycle
            raise UpstreamFault(Reason.NO_ENDPOINT, f"backend {self.name} has no ready endpoint", status=503)
        self._turn = (self._turn + 1) % len(endpoints)
        return endpoints[self._turn]

    def has_other_endpoint(self, error: GatewayError) -> bool:
        """Whether what failed here, before anything of it was sent, may go to the next endpoint."""
        return error.retry is Retry.SAFE and len(self.endpoints) > 1

    # --- pooled HTTP connections -------------------------------------------------------------------------------
    def take(self, x: Exchange, target: Target) -> UpstreamConnection | None:
        """An idle connection, now busy; or None: `acquire`."""
        is_fresh = self.network.wheel.now < target.name.fresh_until
        return target.pool.take() if is_fresh or self.may_take(x, target) else None

    def may_take(self, x: Exchange, target: Target) -> bool:
        """Whether idle connections may be used though the answer of DNS that they stand on has ended; it is asked for
        again. False: `acquire` waits for it.
        """
        return target.name.is_usable(self._first_hop().address_policy(), client_of(x))

    async def catch_up(self, x: Exchange, target: Target) -> None:
        """Wait for what DNS says by now. A connection to an address that has left takes no further exchange."""
        await target.name.catch_up(self._first_hop().address_policy(), client_of(x))

    def _first_hop(self) -> Connector:
        """Whose addresses are dialled: the first of our parents, or we ourselves."""
        return self if self.parent is None else self.parent._first_hop()

    async def acquire(self, x: Exchange, target: Target, connect: tuple[HeaderStep, ...] | None) -> UpstreamConnection:
        """A new connection, or one that becomes free while we wait. Raises UpstreamFault, Denied, LimitExceeded."""
        pool, name = target.pool, target.name
        claim: Claim[UpstreamConnection] = Claim(client_of(x))
        if name.is_overdue:
            await self.catch_up(x, target)
        if not name.is_overdue:
            idle = pool.take() or pool.take_kept(claim)
            if idle is not None:
                return idle
        while not pool.may_open(claim):
            given = await self._wait(pool, claim)
            if given is None:
                break  # the right to open one, counted already
            if not given.is_lost:
                return given
        connection = UpstreamConnection(self.network.wheel, UPSTREAM_LIMITS)
        version = name.version
        try:
            await self.open(x, target, connect, connection)
        except BaseException:
            connection.deadline.close()  # it holds the connection, which nobody else will end
            pool.lost(claim)
            raise
        pool.opened(claim, connection)
        if connection.is_lost:  # gone between the handshake and here
            pool.lost(connection)
            raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the upstream closed its connection")
        opened = self.network.opened
        if not opened.take(claim.client):
            opened.add(claim.client)
            connection.retire()  # it is not kept: what one client leaves behind does not use the descriptors up
        connection.on_lost = partial(self._lost, target, claim.client)
        name.keep(connection, peer_address(connection.transport), pool, version)
        if self.spec.kept.max_age_s:
            connection.age = Deadline(self.network.wheel, partial(retire, connection, pool))
            connection.age.after(self.spec.kept.max_age_s)
        return connection

    def _lost(self, target: Target, client: str, connection: UpstreamConnection) -> None:
        """A connection that was opened for this client is gone."""
        self.network.opened.give_back(client)
        target.lost(connection)

    def release(self, target: Target, connection: UpstreamConnection, *, reusable: bool) -> None:
        """An exchange is over."""
        connection.finish()
        if self._max_requests and connection.served >= self._max_requests:
            connection.close()
        surplus = target.pool.release(connection, reusable=reusable)
        if surplus is not None:
            if reusable:
                surplus.close()
            else:
                surplus.abort()
        elif connection.is_idle:
            connection.deadline.after(self.spec.idle_s)

    async def _wait(
        self, pool: Pool[UpstreamConnection], claim: Claim[UpstreamConnection]
    ) -> UpstreamConnection | None:
        """As `Pool.wait`, for the time that there is to connect (as HAProxy's `timeout queue`)."""
        future = pool.wait(claim, self.network.loop)
        deadline = Deadline(self.network.wheel, partial(pool.too_late, claim))
        deadline.after(self.spec.connect_s)
        try:
            return await future
        except BaseException:
            given = pool.leave(claim)
            if given is not None:
                surplus = pool.release(given, reusable=not (given.is_lost or given.is_last))
                if surplus is not None:
                    surplus.close()
            raise
        finally:
            deadline.close()
            del future  # its error's traceback holds this frame: no cycle

    def _target(self, host: str, port: int, tls: BackendTlsSpec | None) -> Target:
        """What the configuration names."""
        key = (host, port, tls is not None)
        target = self._targets.get(key)
        if target is None:
            is_name = self.spec.backend.destination is Destination.FQDN
            target = self._targets[key] = Target(host, port, tls, Pool(self.name), self._followed(host, port, is_name))
            target.pool.is_retired = self.is_retired
        return target

    def _new_target(self, x: Exchange, authority: Authority, tls: BackendTlsSpec | None) -> Target:
        """What this client names as the first. Raises LimitExceeded (503) where it uses too many such, or all do."""
        client = client_of(x)
        own = self._targets_of.get(client)
        if own is not None and len(own) >= MAX_TARGETS_OF_CLIENT:
            self._forget_unused_targets(own, MAX_TARGETS_OF_CLIENT)
            if len(own) >= MAX_TARGETS_OF_CLIENT:
                message = "this client has connections to too many destinations"
                raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        if len(self._targets) >= MAX_TARGETS:
            self._forget_unused_targets(self._targets, MAX_TARGETS)
            if len(self._targets) >= MAX_TARGETS:
                message = "there are connections to too many destinations"
                raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        key = (authority.host, authority.port, tls is not None)
        name = self._followed(authority.host, authority.port, authority.address is None)
        target = self._targets[key] = Target(authority.host, authority.port, tls, Pool(self.name), name, client)
        target.pool.is_retired = self.is_retired
        self._targets_of.setdefault(client, {})[key] = target
        return target

    def _followed(self, host: str, port: int, is_name: bool) -> FollowedName:
        """What says whether connections to this destination may be used: behind a parent, the name of that."""
        if self.parent is not None:
            fixed = self._first_hop()._fixed
            return fixed.name if fixed is not None else UNFOLLOWED
        return FollowedName(host, port, self.resolver, self.network.wheel) if is_name else UNFOLLOWED

    def _forget_unused_targets(self, targets: Mapping[_Key, Target], limit: int) -> None:
        """Those without a connection; then idle ones, oldest first, until there is room below the limit."""
        self._forget([key for key, target in targets.items() if target.pool.is_empty])
        idle = [key for key, target in targets.items() if target.pool.is_all_idle]
        self._forget(idle[: max(0, len(targets) - limit + FREED_TARGETS)])

    def _forget(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            target = self._targets.pop(key)
            own = self._targets_of.get(target.client)
            if own is not None:
                del own[key]
                if not own:
                    del self._targets_of[target.client]
            for connection in target.pool.retire():
                connection.close()

    # --- opening -----------------------------------------------------------------------------------------------
    async def open(
        self,
        x: Exchange,
        target: Target,
        connect: tuple[HeaderStep, ...] | None,
        protocol: asyncio.Protocol,
        alpn: tuple[str, ...] = HTTP_1_1,
    ) -> asyncio.Transport:
        """Dial, and give the finished connection (through a parent and TLS, where configured) to this protocol."""
        parked = await self.park(x, target, connect)
        if target.tls is None:
            parked.hand_over(protocol)
            return parked.transport
        return await self._handshake(parked, target.tls, target.host, protocol, alpn)

    async def park(self, x: Exchange, target: Place, connect: tuple[HeaderStep, ...] | None) -> Parked:
        """Dial (through a parent, where configured): the connection without any TLS, and what has come on it."""
        if self.parent is not None:
            parked = await self._open_through_parent(x, target, connect)
        else:
            endpoints = await self._endpoints(x, target, connect)
            dial = self.network.dialer.dial(endpoints, Parked, timeout_s=self.spec.connect_s)
            try:
                _, parked, _ = await dial
            except BaseException:
                abandon(dial)  # the client may leave in the moment in which the connection is made
                raise
            finally:
                del dial  # its error's traceback holds this frame: no cycle
            x.upstream = peer_name(parked.transport)
        if parked.is_lost:
            raise UpstreamFault(Reason.UPSTREAM_RESET, "the upstream closed its new connection", retry=Retry.SAFE)
        return parked

    async def _endpoints(
        self,
        x: Exchange,
        target: Place,
        connect: tuple[HeaderStep, ...] | None,
    ) -> list[tuple[IPAddress, int]]:
        """The addresses that may be dialled: resolved, checked, and shown to the connect filters."""
        policy = self.address_policy()
        is_named = False  # the client has named an address, about which `destinations` has decided
        if self.spec.backend.destination in OPERATOR:
            address = ip_address(target.host)
            policy.check_operator(address, target.port)
            addresses: tuple[IPAddress, ...] = (address,)
        else:
            literal = x.authority.address if x.authority is not None and x.authority.host == target.host else None
            if literal is not None:
                is_named = True
                resolved: Sequence[IPAddress] | None = (literal,)
            else:
                resolved = self.resolver.cached(target.host)
                if resolved is None:
                    resolved = await self.resolver.resolve(target.host, client_of(x))
            assert resolved is not None
            addresses = policy.check(target.host, resolved, target.port)
            target.name.learn(addresses)
        if policy.reports and not is_named and policy.would_deny(addresses, target.port):
            x.note_denial(Reason.ADDRESS_DENIED)
        x.addresses = addresses
        if connect is not None:
            outcome = run(connect, x)
            if outcome is not None and not isinstance(outcome, Answer):
                outcome = await outcome
            if outcome is not None:
                raise GatewayFault(Reason.FILTER_FAILED, "a filter answered in the connect phase", status=502)
        return [(address, target.port) for address in addresses]

    async def _open_through_parent(self, x: Exchange, target: Place, connect: tuple[HeaderStep, ...] | None) -> Parked:
        """Reach the parent, and have it connect us to the target (RFC 9110 section 9.3.6)."""
        assert self.parent is not None
        self.judge_for_parent(target)
        parent_target = self.parent.target(x)
        handshake = ParentHandshake(Authority(target.host, target.port), self.network.pseudonym)
        transport = await self.parent.open(x, parent_target, connect, handshake)
        timer = self.network.loop.call_later(self.spec.connect_s or 60.0, handshake.timed_out)
        try:
            return await handshake.established
        except BaseException:
            transport.abort()
            raise
        finally:
            timer.cancel()

    async def _handshake(
        self, parked: Parked, tls: BackendTlsSpec, host: str, protocol: asyncio.Protocol, alpn: tuple[str, ...]
    ) -> asyncio.Transport:
        done: asyncio.Future[None] = self.network.loop.create_future()
        waiting = [done]

        def on_handshake(stream: TlsStream, error: Exception | None) -> None:
            if not waiting or waiting[0].done():
                return
            if error is None:
                waiting[0].set_result(None)
            else:
                waiting[0].set_exception(tls_fault(error, Retry.SAFE))

        try:
            client = client_tls(tls, host, NO_ALPN if self.spec.backend.protocol is Protocol.TCP else alpn)
        except (ssl.SSLError, ValueError) as error:
            parked.transport.abort()
            message = f"the TLS settings of backend {self.name} cannot be used"
            raise GatewayFault(Reason.BACKEND_INVALID, message, detail=str(error)) from None
        stream = TlsStream(
            client.context, server_side=False, server_hostname=client.server_hostname, inner=protocol,
            on_handshake=on_handshake, verify=client.verify,
        )  # fmt: skip
        timer = self.network.loop.call_later(self.spec.tls_handshake_s or 60.0, stream.abort_handshake)
        try:
            parked.hand_over(stream)
            await done
        except BaseException:
            parked.transport.abort()
            raise
        finally:
            timer.cancel()
            waiting.clear()
            del done  # its error's traceback holds this frame: no cycle
        return stream

    def address_policy(self) -> AddressPolicy:
        """The address rules, with the sockets that are ours at this moment."""
        if self._policy_own is not self.network.own:
            self._policy = AddressPolicy(self.spec.addresses, self.network.own)
            self._policy_own = self.network.own
        return self._policy

    # --- life --------------------------------------------------------------------------------------------------
    def retire(self) -> None:
        """The configuration no longer has it: idle connections go now, busy ones when their exchange ends."""
        self.is_retired = True
        for target in self._targets.values():
            for connection in target.pool.retire():
                connection.close()
        if self.channel is not None:
            self.channel.retire()
        if self.parent is not None:
            self.parent.retire()

    def counts(self) -> tuple[int, int]:
        """Connections (active, idle), for metrics."""
        idle = sum(target.pool.idle_count for target in self._targets.values())
        active = sum(target.pool.open for target in self._targets.values()) - idle
        if self.channel is not None:
            more_active, more_idle = self.channel.counts()
            return active + more_active, idle + more_idle
        return active, idle

    @property
    def waiting(self) -> int:
        """Exchanges that wait for a connection, to the backend or its parent, for metrics."""
        own = sum(len(target.pool.waiting) for target in self._targets.values())
        return own if self.parent is None else own + self.parent.waiting

    def __repr__(self) -> str:
        return f"Connector({self.name}, {len(self._targets)} targets)"


def served_ports(backend: BackendSpec) -> Mapping[str, Collection[int]]:
    """By hostname of an Fqdn backend, the ports under which a client of a forward proxy may name it."""
    if backend.destination is not Destination.FQDN:
        return NO_PORTS
    return {backend.hostname: (backend.port, 80) if backend.tls else (backend.port,)}


def parent_spec(spec: ConnectionSpec) -> ConnectionSpec:
    """The parent is reached under the same rules as the backend behind it."""
    parent = spec.backend.parent
    assert parent is not None
    return replace(spec, backend=parent)
