"""HealthChecks: asks the endpoints of one cluster whether they are well (`healthCheck.active`).

Off the path of requests: on connections and drivers of its own, from the moment in which the cluster is in service
until it is retired. A check is dialled as a request is: the address policy, TLS and the parent hold. Each endpoint has
one check at a time, all endpoints of a process MAX_CHECKS, of which the backends of one namespace have most at the most
(theirs may all hang until the time is over), and intervals vary, so that endpoints are not asked in step.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.gateway.backends.endpoints import EndpointMonitor, HostnameMonitor, HostSet
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.opener import ConnectionOpener
from egressproxy.gateway.backends.upstream_hosts import DialTarget
from egressproxy.ir.backend import ConnectionIR, Protocol
from egressproxy.ir.resilience import CheckType, HealthCheckIR
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import address_text
from egressproxy.net.timers import TICK_S, Deadline
from egressproxy.protocols.grpc.framing import call_fields, framed, reply
from egressproxy.protocols.grpc.health import CHECK, check_message, is_serving
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.upstream.endpoint_health import EndpointHealth

log = logging.getLogger(__name__)

#: By how much of it an interval may be shorter.
JITTER = 0.1
LIMITS = HeadLimits(max_fields=256)
#: What counts as the client, for shares.
CLIENT = "health-check:0"
FIELDS = ((b"User-Agent", b"egressproxy-health-check"), (b"Accept", b"*/*"))
#: Backends that speak HTTP/2 alone: over TLS by ALPN, else by prior knowledge.
HTTP_2_PROTOCOLS: Final = frozenset((Protocol.HTTP2, Protocol.H2C, Protocol.GRPC))


@dataclass(slots=True, eq=False, repr=False)
class HealthChecks:
    """The checks of one cluster. `start` once, `stop` in the end."""

    spec: ConnectionIR
    _network: Network
    _opener: ConnectionOpener
    _endpoints: HostSet
    _checks: dict[str, EndpointCheck] = field(default_factory=dict)  # by address and port
    _look: Deadline | None = None  # at a name
    _resolving: asyncio.Future[tuple[IPAddress, ...]] | None = None

    def start(self) -> None:
        check = self.spec.resilience.check
        assert check is not None
        for target in self._endpoints.targets.known.values():
            if isinstance(target.monitor, EndpointMonitor):
                self._add(check, target.monitor.health, target)
        if self._endpoints.named is not None:
            self._look = Deadline(self._network.wheel, self._resolve)
            self._resolve()

    def stop(self) -> None:
        if self._look is not None:
            self._look.close()
        if self._resolving is not None:
            self._resolving.remove_done_callback(self._resolved)
            self._resolving = None
        for each in self._checks.values():
            each.close()
        self._checks.clear()

    def _add(self, check: HealthCheckIR, health: EndpointHealth, target: DialTarget) -> None:
        made = self._checks[health.address] = EndpointCheck(self._network, self._opener, self.spec, health, target)
        made.begin(random.uniform(0, check.interval_s))  # noqa: S311 (no secret)

    # --- the addresses of a name ---------------------------------------------------------------------------------
    def _resolve(self) -> None:
        self._resolving = self._opener.resolver.resolve(self.spec.backend.hostname, CLIENT)
        self._resolving.add_done_callback(self._resolved)

    def _resolved(self, resolving: asyncio.Future[tuple[IPAddress, ...]]) -> None:
        self._resolving = None
        backend, check = self.spec.backend, self.spec.resilience.check
        assert check is not None
        assert self._look is not None
        self._look.after(check.interval_s)
        if resolving.cancelled() or resolving.exception() is not None:
            return  # the health of what is known stays
        try:
            policy = self._opener.address_policy()
            addresses = policy.check(backend.hostname, resolving.result(), backend.port)
        except GatewayError as error:
            error.__traceback__ = None
            return
        target = self._endpoints.named
        if target is None or not isinstance(target.monitor, HostnameMonitor):
            return
        target.monitor.learn(target, addresses)
        known = {address_text(str(address), backend.port): address for address in addresses}
        for gone in [text for text in self._checks if text not in target.monitor.known]:
            self._checks.pop(gone).close()
        for text, health in target.monitor.known.items():
            if text not in self._checks and text in known:
                only = known[text]
                self._add(check, health, DialTarget(backend.hostname, backend.port, backend.tls, only=only))


class EndpointCheck:
    """The checks of one endpoint, one after the other."""

    __slots__ = ("_check", "_driver", "_due", "_health", "_limit", "_network", "_opener", "_owner", "_spec", "_target")

    def __init__(
        self, network: Network, opener: ConnectionOpener, spec: ConnectionIR, health: EndpointHealth, target: DialTarget
    ) -> None:
        assert spec.resilience.check is not None
        self._check = spec.resilience.check
        self._network = network
        self._opener = opener
        self._spec = spec
        self._health = health
        self._owner = spec.backend.name.partition("/")[0]  # its namespace
        self._target = target
        self._driver = Driver()
        self._due: Deadline | None = Deadline(network.wheel, self._begin)
        self._limit = Deadline(network.wheel, self._too_late)

    def begin(self, seconds: float) -> None:
        if self._due is not None:
            self._due.after(max(seconds, TICK_S))

    def close(self) -> None:
        if self._due is not None:
            self._due.close()
            self._due = None
        self._limit.close()
        self._driver.throw(asyncio.CancelledError())

    def _begin(self) -> None:
        if not self._network.checks.take(self._owner):
            self.begin(TICK_S)  # there are many at this moment
            return
        self._limit.after(self._check.timeout_s + TICK_S)
        self._driver.start(self._run())

    def _too_late(self) -> None:
        self._driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "the health check took too long", status=504))

    async def _run(self) -> None:
        try:
            is_well = await self._ask()
        except asyncio.CancelledError:
            return
        except GatewayError as error:
            error.__traceback__ = None  # frames that hold it: no cycle
            is_well = False
        except Exception:
            log.exception("the health check of %s failed", self._health.address)
            is_well = False
        finally:
            self._network.checks.give_back(self._owner)
            self._limit.clear()
        if is_well:
            self._health.check_passed(self._network.wheel.now)
        else:
            self._health.check_failed()
        self.begin(self._check.interval_s * (1 - random.random() * JITTER))  # noqa: S311 (no secret)

    async def _ask(self) -> bool:
        """Whether the endpoint is well. Raises GatewayError where it is not."""
        check, target = self._check, self._target
        exchange = Exchange(CLIENT, "-", "-", monotonic(), backend=self._health.backend)
        port = 443 if target.tls is not None else 80
        host = check.hostname.encode() or Authority(target.host, target.port).host_field(port)
        if check.type is CheckType.GRPC:
            return await self._is_serving(exchange, host)
        exchange.request = RequestHead(check.method.encode(), check.path.encode(), Fields.of(FIELDS))
        if check.type is CheckType.HTTP and self._spec.backend.protocol in HTTP_2_PROTOCOLS:
            head, _, _ = await self._ask_over_http2(exchange, host, b"")
            return head.status in check.statuses
        return await self._ask_over_http1(exchange, host)

    async def _ask_over_http1(self, exchange: Exchange, host: bytes) -> bool:
        """For type TCP the connection is all that is asked for."""
        connection = UpstreamConnection(self._network.wheel, LIMITS)
        try:
            await self._opener.open(exchange, self._target, None, connection)
            if self._check.type is CheckType.TCP:
                return not connection.is_lost
            connection.begin(self._driver, exchange.request)
            connection.send_head(exchange.request, host, self._network.pseudonym)
            while (response := connection.next_head()) is None or response.is_interim:
                if response is None:
                    await PAUSE
            return response.status in self._check.statuses
        finally:
            connection.deadline.close()
            if hasattr(connection, "transport"):
                connection.finish()
                connection.abort()

    async def _is_serving(self, exchange: Exchange, host: bytes) -> bool:
        """grpc.health.v1.Health/Check."""
        exchange.request = RequestHead(b"POST", CHECK, Fields.of(call_fields(self._check.timeout_s)))
        exchange.request.te_trailers = True
        head, body, trailers = await self._ask_over_http2(exchange, host, framed(check_message(self._check.service)))
        return is_serving(reply(head.status, head.fields, body, trailers))

    async def _ask_over_http2(self, exchange: Exchange, host: bytes, body: bytes) -> tuple[ResponseHead, bytes, Fields]:
        # Here, since HTTP/2 takes memory, and not everybody has a backend that speaks it.
        from egressproxy.gateway.backends.health_checks.http2_checks import ask_over_http2

        return await ask_over_http2(
            self._opener, self._network, self._driver, self._target, exchange, host, LIMITS, body
        )
