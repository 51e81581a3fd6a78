"""NameServer: answers DNS queries of clients, of names that their policy allows, and refuses others before anybody is
asked.

The decision on a name is the one that a CONNECT to the name would meet: a query says no port, so a name is answered if
it would be allowed on any. Its addresses are those that such a connection would be dialled to: from the resolver, and
past the address policy. Each query is an exchange, with a line of the log and a place in the metrics.

Sources: RFC 8914 (Extended DNS Errors), RFC 8482 (ANY), RFC 9460 (SVCB, HTTPS), RFC 7766 (TCP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import Final

from egressproxy.errors import Denied, GatewayError, GatewayFault, LimitExceeded, Reason
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import HTTPS_PORT, of_client
from egressproxy.gateway.exchange.error_responses import internal_fault
from egressproxy.gateway.exchange.identification import identify_stream
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.listeners.name_decision import (
    NEGATIVE_CODES,
    AllowedPort,
    NamedPorts,
    allowed_ports,
    cluster_for,
    code_for,
    extended_code,
    own_addresses,
)
from egressproxy.gateway.overload.request_gate import Tenant
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.ir.name_server import NameAddresses, NameServerIR
from egressproxy.ir.policy import Priority
from egressproxy.model.authority import Authority, AuthorityError, IPAddress, parse_host
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import Exchange
from egressproxy.model.own_names import OWN_HOST
from egressproxy.model.per_client_quota import PerClientQuota, client_of, identity_of, most_of, origin_of
from egressproxy.net.keyed_counters import KEY_BYTES, KeyedCounters
from egressproxy.protocols.dns.messages import (
    AAAA,
    AXFR,
    IXFR,
    NOERROR,
    NOT_READY,
    PTR,
    REFUSED,
    TYPES,
    A,
    BadQuery,
    DnsQuery,
    ExtendedError,
    read_query,
    truncated,
    write_response,
)
from egressproxy.telemetry.event_aggregator import Refusal
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.dns_client import ASKING
from egressproxy.upstream.dns_message import code_name
from egressproxy.upstream.dns_server import Server
from egressproxy.upstream.lookups import Waiter
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables, NewHostnameRateLimit

#: Queries that wait for a name server, of all clients of this process.
MAX_WAITING: Final = 2048
#: The most buckets of queries, of which a client has one over UDP and one over TCP.
MAX_CLIENTS: Final = 16_384
TOO_MANY: Final = Refusal(
    Reason.REQUEST_RATE,
    "a DNS query was dropped: its client asks more often than nameServer.queries allows",
    remedy="raise nameServer.queries.limit, or see who asks so often",
)

Send = Callable[[bytes], None]


@dataclass(slots=True, eq=False)
class _PendingQuery:
    """A query until it is answered. `listener` has the policies for its client."""

    query: DnsQuery
    exchange: Exchange
    listener: ActiveListener
    send: Send
    is_tcp: bool
    pipeline: Pipeline = field(default_factory=Pipeline)
    tenant: Tenant | None = None
    waits_for: str = ""  # the client whose share of MAX_WAITING is one less meanwhile
    ports: Iterator[AllowedPort] = field(default_factory=lambda: iter(()))

    @property
    def settings(self) -> NameServerIR:
        return self.listener.spec.policy.name_server


class NameServer:
    """One per process. `tables` have the counts of queries and of new names, in memory that all workers share."""

    def __init__(self, accounting: Accounting, network: Network, metrics: Metrics, tables: KeyedTables) -> None:
        self.wheel = accounting.wheel
        self.metrics = metrics
        self._accounting = accounting
        self._network = network
        self._tables = tables
        self._waiting = PerClientQuota(MAX_WAITING, most_of(MAX_WAITING))
        self._named_ports = NamedPorts()
        self._rates: dict[tuple[int, float], KeyedCounters] = {}
        self._new_names: dict[tuple[int, float], NewHostnameRateLimit] = {}
        self._is_slip = False

    def forget(self) -> None:
        """Forget what was worked out of listeners: another configuration is in service."""
        self._named_ports = NamedPorts()
        self._rates.clear()
        self._new_names.clear()

    def answer(self, wire: bytes, client: str, port: Port, send: Send, *, is_tcp: bool) -> None:
        """Answer the query of a client (`address:port`): `send` is called with the response, once, now or later; with
        b"" where there is none.
        """
        listener = port.first
        is_limited = self._is_limited(origin_of(client), listener.spec.policy.name_server, is_tcp=is_tcp)
        try:
            query = read_query(wire)
        except BadQuery as bad:
            result = "dropped" if bad.code is None or is_limited else code_name(bad.code).lower()
            self._count(listener, "-", result)
            send(b"" if is_limited else bad.response)
            return
        if is_limited:
            self._limit(query, listener, send, is_tcp=is_tcp)
            return
        exchange = self._accounting.new_exchange(client, listener, ANONYMOUS)
        exchange.scheme, exchange.method, exchange.bytes_in = b"dns", query.type_name.encode(), len(wire)
        exchange.trace = None  # spans are those of HTTP
        asked = _PendingQuery(query, exchange, listener, send, is_tcp)
        try:
            self._admit(asked)
            self._look_up(asked)
        except GatewayError as error:
            self._fail(asked, error.with_traceback(None))
        except Exception as error:
            self._fail(asked, internal_fault(error, f"exchange {exchange.request_id}"))

    # --- limits --------------------------------------------------------------------------------------------------
    def _is_limited(self, client: str, settings: NameServerIR, *, is_tcp: bool) -> bool:
        """Take one query from the bucket of this client for UDP or TCP; whether none was left. Datagrams with a forged
        source take nothing from the bucket for TCP.
        """
        key = settings.queries, settings.queries_window_s
        counts = self._rates.get(key)
        if counts is None:
            digest = blake2b(repr(("nameServer.queries", key)).encode(), digest_size=KEY_BYTES).digest()
            counts = self._rates[key] = self._tables(digest, MAX_CLIENTS)
        interval_s = settings.queries_window_s / settings.queries
        text = f"{'tcp ' * is_tcp}{client}".encode("utf-8", "surrogatepass")
        return counts.take_token(text, monotonic(), settings.queries, interval_s) > 0

    def _limit(self, query: DnsQuery, listener: ActiveListener, send: Send, *, is_tcp: bool) -> None:
        """Over UDP the sender may be anybody: every second query gets no answer, the others one by which a client that
        is whom it says asks again over TCP. None is longer than its query, so that there is nothing to amplify.
        """
        self.metrics.notices.refused(listener.series, TOO_MANY)
        self._count(listener, query.type_name, "limited")
        self._is_slip = not self._is_slip
        if is_tcp:
            send(write_response(query, REFUSED, error=ExtendedError(NOT_READY, TOO_MANY.message), is_tcp=True))
        else:
            send(truncated(query) if self._is_slip else b"")

    def _take_new_name(self, settings: NameServerIR, host: str, client: str) -> None:
        """Count a name that is not known. Raises LimitExceeded."""
        key = settings.new_names, settings.new_names_window_s
        limit = self._new_names.get(key)
        if limit is None:
            limit = self._new_names[key] = NewHostnameRateLimit(*key, self._tables, field="nameServer.newNames")
        exceeded = limit.take(client, host, monotonic())
        if exceeded is not None:
            raise exceeded

    def _check_servers(self, servers: Sequence[Server]) -> None:
        """Raises Denied where one of our own listeners is among the servers that would be asked."""
        for server in servers:
            if self._network.own.has_listener(ip_address(server.host.partition("%")[0]), server.port):
                raise _loop(f"the name server {server.label} is a listener of this gateway")

    # --- client and name ------------------------------------------------------------------------------------------
    def _admit(self, asked: _PendingQuery) -> None:
        """Find out who asks, and on which ports the name is allowed. Raises GatewayError where it is on none."""
        query, exchange = asked.query, asked.exchange
        with suppress(AuthorityError):
            host, address = parse_host(query.host.encode())
            if address is None:
                exchange.authority = Authority(host, HTTPS_PORT)
        if exchange.client in ASKING:
            raise _loop("this query is the gateway's own")
        identify_stream(exchange, asked.listener, ANONYMOUS, inf)
        gate = self._accounting.gate
        if gate is not None:
            asked.tenant = gate.admit(exchange, Priority.NORMAL)
        asked.listener = of_client(exchange, asked.listener)
        if not query.is_internet or query.kind in (AXFR, IXFR, PTR):
            what = f"type {query.type_name}" if query.is_internet else "another class than IN"
            message = f"queries of {what} are not answered"
            remedy = "ask for A or AAAA: this name server answers with the addresses of allowed names"
            raise Denied(Reason.METHOD_NOT_ALLOWED, message, status=405, remedy=remedy)
        if exchange.authority is None:
            raise Denied(Reason.DESTINATION_NOT_ALLOWED, "the name of the query is not that of a host")
        asked.ports = allowed_ports(asked.listener, exchange.authority.host, self._named_ports)

    # --- its addresses -----------------------------------------------------------------------------------------------
    def _look_up(self, asked: _PendingQuery) -> None:
        """Answer the query, or begin to. Raises GatewayError."""
        exchange, query = asked.exchange, asked.query
        authority = exchange.authority
        assert authority is not None
        allowed = next(asked.ports)  # raises where there is none
        exchange.authority = Authority(authority.host, allowed.port)
        exchange.route, exchange.series = allowed.route.name, allowed.route.series
        exchange.note_denials(*allowed.noted)
        if query.kind not in (A, AAAA):
            # HTTPS and SVCB, too: a record with the keys of Encrypted Client Hello would hide names from policy.
            self._answer(asked, (), asked.settings.max_ttl_s)
            return
        if asked.settings.addresses is NameAddresses.GATEWAY or authority.host == OWN_HOST:
            self._answer(asked, own_addresses(asked.listener), asked.settings.max_ttl_s)
            return
        cluster = cluster_for(asked.listener, allowed.route, authority.host)
        resolver = cluster.opener.resolver
        found = resolver.cached(authority.host)
        if found is not None:
            self._found(asked, cluster, allowed, found)
            return
        client, who = client_of(exchange), identity_of(exchange)
        if not resolver.why_not_asked(authority.host):
            self._check_servers(resolver.servers_for(authority.host)[0])
            if not resolver.known(authority.host):
                self._take_new_name(asked.settings, authority.host, who)
        if not self._waiting.take(client):
            raise LimitExceeded(Reason.OVERLOADED, "too many queries wait for an answer", status=503, retry_after_s=1)
        asked.waits_for = client
        waiter = resolver.resolve(authority.host, client, who)
        waiter.add_done_callback(partial(self._resolved, asked, cluster, allowed))

    def _resolved(self, asked: _PendingQuery, cluster: Cluster, allowed: AllowedPort, waiter: Waiter) -> None:
        try:
            self._found(asked, cluster, allowed, waiter.result())
        except GatewayError as error:
            self._fail(asked, error.with_traceback(None))
        except Exception as error:
            self._fail(asked, internal_fault(error, f"exchange {asked.exchange.request_id}"))

    def _found(
        self, asked: _PendingQuery, cluster: Cluster, allowed: AllowedPort, resolved: Sequence[IPAddress]
    ) -> None:
        """Answer with those of the addresses that policy lets be dialled on some port. Raises Denied."""
        authority = asked.exchange.authority
        assert authority is not None
        host, policy = authority.host, cluster.opener.address_policy()
        try:
            addresses = policy.check(host, resolved, allowed.port)
        except Denied as denied:
            addresses = next(_checked(asked, cluster, resolved), ())
            if not addresses:
                raise denied.with_traceback(None) from None
        if policy.reports and policy.would_deny(addresses, allowed.port, resolved):
            asked.exchange.note_denials(Reason.ADDRESS_DENIED)
        left_s = cluster.opener.resolver.fresh_s(host)
        self._answer(asked, addresses, max(1.0, min(left_s, asked.settings.max_ttl_s)))

    # --- the end -----------------------------------------------------------------------------------------------------
    def _answer(self, asked: _PendingQuery, addresses: Sequence[IPAddress], ttl_s: float) -> None:
        asked.exchange.addresses = tuple(addresses)
        asked.exchange.status = 200
        response = write_response(asked.query, NOERROR, addresses=addresses, ttl_s=int(ttl_s), is_tcp=asked.is_tcp)
        self._end(asked, NOERROR, response)

    def _fail(self, asked: _PendingQuery, error: GatewayError) -> None:
        exchange, reason = asked.exchange, error.reason
        exchange.status = error.status
        code = NEGATIVE_CODES.get(reason)
        if code is not None:
            exchange.reason, exchange.status = reason, 404
            self._end(asked, code, write_response(asked.query, code, is_tcp=asked.is_tcp))
            return
        if reason is Reason.METHOD_NOT_ALLOWED:  # clients ask so by habit: no Event
            exchange.reason, exchange.denied = reason, True
        else:
            self._accounting.record_error(exchange, asked.pipeline, error)
        code = code_for(error, asked.settings)
        text = f"{reason}: {error.message}" + (f" ({error.remedy})" if error.remedy else "")
        told = ExtendedError(extended_code(error), text)
        self._end(asked, code, write_response(asked.query, code, error=told, is_tcp=asked.is_tcp))

    def _end(self, asked: _PendingQuery, code: int, response: bytes) -> None:
        """Send the response, count the query and log it."""
        exchange, asked.ports = asked.exchange, iter(())
        if asked.waits_for:
            self._waiting.give_back(asked.waits_for)
        if asked.tenant is not None:
            asked.tenant.leave()
        exchange.bytes_out = len(response)
        exchange.add_log_fields({"dns_code": code_name(code), "addresses": [str(each) for each in exchange.addresses]})
        identity = exchange.identity
        if identity is not ANONYMOUS:
            exchange.series = self.metrics.of_client(exchange.series, identity, is_denied=exchange.denied)
        exchange.ended_at = monotonic()
        exchange.series.observe(exchange)
        self._accounting.access_log.record(exchange)
        exchange.forget_state()
        self._count(asked.listener, asked.query.type_name, code_name(code).lower(), exchange)
        asked.send(response)

    def _count(self, listener: ActiveListener, kind: str, result: str, exchange: Exchange | None = None) -> None:
        identity = exchange.identity if exchange is not None else ANONYMOUS
        kind = kind if kind in _TYPE_NAMES else "other"
        who = identity.namespace, identity.service_account
        self.metrics.name_queries.count(listener.gateway, listener.name, kind, result, *who)


_TYPE_NAMES: Final = frozenset((*TYPES.values(), "-"))


def _checked(asked: _PendingQuery, cluster: Cluster, resolved: Sequence[IPAddress]) -> Iterator[tuple[IPAddress, ...]]:
    """What the address policy of each further port lets be dialled, of those whose names `cluster` resolves, too."""
    assert asked.exchange.authority is not None
    host = asked.exchange.authority.host
    for allowed in asked.ports:
        with suppress(Denied, GatewayFault):
            opener = cluster_for(asked.listener, allowed.route, host).opener
            if opener.resolver is cluster.opener.resolver:
                yield opener.address_policy().check(host, resolved, allowed.port)


def _loop(what: str) -> Denied:
    remedy = (
        "let dns.servers of the policies, or resolv.conf, name another server, and except the gateway's user from the"
        " redirection of port 53 (`meta skuid`)"
    )
    return Denied(Reason.LOOP_DETECTED, what, status=508, remedy=remedy)
