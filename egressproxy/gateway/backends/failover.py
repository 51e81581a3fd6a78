"""Failover: the endpoints of a Backend of that type in one rule, and where a request goes when one of them fails.

A request goes to the lowest priority number that has a backend which serves, there by weight. After a failure it goes
to the next backend that it has not asked yet; those that are put aside come last, the one that is to be tried soonest
first. The whole request goes again, as the client sent it, to a backend with filters, credentials, TLS and region rules
of its own. It goes on:

* always, where nothing of it was sent;
* where a backend may have seen it, unless the Failover says `replay: Idempotent`;
* after the Failover's codes;

and never without the whole body, after the request's own time, nor when the client has the head of an answer. Where
every backend was asked, the retries of the rule begin from the start. A denial is no failure: it ends the request.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Final

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.passive_health import PassiveHealth
from egressproxy.gateway.backends.retry_hints import asked_pause_s
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import IDEMPOTENT
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.ir.route import FailoverIR, WeightedBackend
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.grpc.statuses import is_grpc, parsed_status

#: Attempts for one request, whatever the endpoints.
MAX_ATTEMPTS: Final = 16
#: Connections that had died or were ended by a GOAWAY, and are replaced before the backend counts as failed.
MAX_STALE: Final = 2
#: Our own limits of connections to one backend: another one has its own.
_BUSY: Final = frozenset((Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.CIRCUIT_OPEN))
#: Another endpoint of the same backend would change nothing.
_OF_ALL: Final = frozenset((Reason.NO_ENDPOINT, Reason.NO_HEALTHY_ENDPOINT))
#: What says nothing of the backend itself, or is known of its endpoints already (`HostSet`).
_NEUTRAL: Final = _BUSY | {Reason.NO_HEALTHY_ENDPOINT, Reason.FILTER_REJECTED}
#: Statuses of gRPC that say nothing of the call itself.
_OF_GRPC: Final[Mapping[int, int]] = {GrpcStatus.UNAVAILABLE: 503, GrpcStatus.RESOURCE_EXHAUSTED: 429}
#: One broken connection says little of the next one.
_UNCERTAIN: Final = frozenset(
    (Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED, Reason.UPSTREAM_INCOMPLETE, Reason.BAD_RESPONSE)
)
#: The request was not sent.
_UNSENT: Final = frozenset((Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.NO_ENDPOINT, Reason.TLS_CERTIFICATE))


def may_serve(backend: RouteBackend, now: float) -> bool:
    """Whether requests should go to this backend at all, as far as is known. The one place that asks for its health."""
    assert backend.cluster is not None
    hosts = backend.cluster.host_set
    return not _health(backend).is_aside(now) and (hosts is None or hosts.may_serve)


def status_of_answer(head: ResponseHead) -> int:
    """The status that `codes` are compared with: of a gRPC call that ends with its head, what its own status means."""
    meaning = _OF_GRPC.get(parsed_status(head.fields.block)) if head.status == 200 else None
    return meaning if meaning is not None and is_grpc(head.fields.get(b"content-type")) else head.status


def aside_s(backend: RouteBackend, now: float) -> float:
    """Seconds for which the backend is put aside from now on; 0.0 for one that is not."""
    return max(0.0, _health(backend).aside_until - now)


def _health(backend: RouteBackend) -> PassiveHealth:
    assert backend.cluster is not None
    return backend.cluster.health


def _tell(backend: RouteBackend, why: str, aside: float) -> None:
    """That this backend is put aside for so many seconds, or (0.0) returns."""
    assert backend.cluster is not None
    backend.cluster.network.reports.failover(backend.cluster.spec.backend, why, aside)


class FailoverGroup:
    """The endpoints that can be used, by priority. Keeps nothing of a request."""

    __slots__ = ("_usual", "codes", "endpoints", "spec")

    def __init__(self, spec: FailoverIR, endpoints: Sequence[RouteBackend]) -> None:
        """Each of the `endpoints` has a cluster."""
        self.spec = spec
        self.codes = frozenset(spec.codes)
        self.endpoints = tuple(sorted(endpoints, key=lambda endpoint: endpoint.priority))
        first, *others = self.endpoints
        #: Where requests go if it serves, without a look at any other.
        self._usual = first if not others or others[0].priority > first.priority else None

    @property
    def note(self) -> str:
        """Which requests go on to another backend, in a sentence for people."""
        spec = self.spec
        seen = " (methods that are not idempotent: where it has not got them)" if spec.only_idempotent else ""
        first = f", has sent no byte of a body after {spec.first_byte_s:g} s" if spec.first_byte_s else ""
        codes = f" or answers {', '.join(map(str, spec.codes))}" if spec.codes else ""
        return f"Failover {spec.name}: a request goes on to the next backend where one fails{seen}{first}{codes}"

    def choose(self, asked: Collection[RouteBackend], now: float) -> RouteBackend | None:
        """The backend to ask next; None if all were asked."""
        usual = self._usual
        if usual is not None and not asked and may_serve(usual, now):
            return usual
        left = [endpoint for endpoint in self.endpoints if endpoint not in asked]
        serving = [endpoint for endpoint in left if may_serve(endpoint, now)]
        if serving:
            equals = [endpoint for endpoint in serving if endpoint.priority == serving[0].priority]
            return random.choices(equals, [endpoint.weight for endpoint in equals])[0]  # noqa: S311
        return min(left, key=lambda endpoint: _health(endpoint).aside_until, default=None)


class FailoverState:
    """The way of one request through a Failover."""

    __slots__ = ("_asked", "_attempts", "_failover", "_left_out", "_stale")

    def __init__(self, failover: FailoverGroup) -> None:
        self._failover = failover
        self._asked: list[RouteBackend] = []  # in this round
        self._left_out: list[RouteBackend] = []  # in every round
        self._attempts = 0
        self._stale = 0

    def first(self, now: float) -> RouteBackend:
        """The backend to ask first, or at the beginning of another round."""
        self._asked[:] = self._left_out
        found = self._failover.choose(self._asked, now)
        assert found is not None
        return found

    def left(self) -> list[RouteBackend]:
        return [endpoint for endpoint in self._failover.endpoints if endpoint not in self._asked]

    def pass_over(self, backend: RouteBackend, now: float) -> RouteBackend | None:
        """Leave out a backend that cannot serve this request, which is no failure. Returns the one to ask instead."""
        self._left_out.append(backend)
        self._asked.append(backend)
        return self._failover.choose(self._asked, now)

    def begin(self, backend: RouteBackend, now: float) -> None:
        self._attempts += 1
        self._asked.append(backend)
        _health(backend).begin(now)

    def succeeded(self, backend: RouteBackend) -> None:
        """The backend has answered, as well as was asked for."""
        if _health(backend).succeeded():
            _tell(backend, "an attempt has ended well", 0.0)

    def answered(self, backend: RouteBackend, head: ResponseHead, status: int, now: float) -> None:
        """The backend has answered with one of the codes, or with what stands for one."""
        aside = _health(backend).failed(now, is_certain=False, asked_s=asked_pause_s(head.fields, time()))
        if aside:
            _tell(backend, f"it answers {status}", aside)

    def failed(self, backend: RouteBackend, error: GatewayError, now: float) -> None:
        """An attempt at the backend has failed, unless the error says nothing of it."""
        if not (error.reason in _NEUTRAL or is_over(error)):
            aside = _health(backend).failed(now, is_certain=error.reason not in _UNCERTAIN)
            if aside:
                _tell(backend, error.reason.value, aside)

    def beside(self, now: float) -> RouteBackend | None:
        """Another backend to ask, while those that were asked have not answered yet; None: nobody that serves."""
        found = self._failover.choose(self._asked, now) if self._attempts < MAX_ATTEMPTS else None
        return found if found is not None and may_serve(found, now) else None

    def next(
        self,
        exchange: Exchange,
        backend: RouteBackend,
        error: GatewayError | None,
        tried: Collection[UpstreamHost],
        now: float,
        *,
        waits_for_client: bool,
    ) -> RouteBackend | None:
        """Where the request goes after this failure (None: a code) of a backend; None: nowhere. `tried`: the targets
        that were tried for it. `waits_for_client`: the backend had not got the whole body yet, so its silence, which a
        client could cause, says nothing of it.
        """
        if error is not None:
            if self._goes_to_same(exchange, backend, error, tried):
                self._asked.remove(backend)
                return backend if self._attempts < MAX_ATTEMPTS else None
            if not waits_for_client:
                self.failed(backend, error, now)
            if not self.goes_on(exchange, error):
                return None
        return self._failover.choose(self._asked, now) if self._attempts < MAX_ATTEMPTS else None

    def goes_on(self, exchange: Exchange, error: GatewayError) -> bool:
        """Whether a request that has failed like this may be sent to another backend."""
        if error.reason in _BUSY:
            return True
        if not isinstance(error, UpstreamFault) or is_over(error):
            return False
        is_unsent = error.retry is RetrySafety.SAFE or error.reason in _UNSENT
        return is_unsent or self._may_be_seen_twice(exchange)

    def _may_be_seen_twice(self, exchange: Exchange) -> bool:
        return not self._failover.spec.only_idempotent or exchange.method in IDEMPOTENT

    def _goes_to_same(
        self, exchange: Exchange, backend: RouteBackend, error: GatewayError, tried: Collection[UpstreamHost]
    ) -> bool:
        """Whether it is not the backend that has failed: an idle connection had died (which may have been read before,
        unless GOAWAY says otherwise), or one of several endpoints is down.
        """
        if error.retry is RetrySafety.IF_REUSED or error.is_left_out:
            if not (error.is_left_out or self._may_be_seen_twice(exchange)):
                return False
            self._stale += 1
            return self._stale <= MAX_STALE
        cluster = backend.cluster
        assert cluster is not None
        if error.retry is not RetrySafety.SAFE or error.reason in _OF_ALL or len(cluster.endpoints) < 2:
            return False
        return any(cluster.endpoint_target(each) not in tried for each in cluster.endpoints)


def is_over(error: GatewayError) -> bool:
    """Whether the time of the whole request is over, or nothing has moved on either side for too long."""
    if error.reason is Reason.REQUEST_TIMEOUT:
        return True
    return error.reason is Reason.RESPONSE_TIMEOUT and error.retry is RetrySafety.NEVER


def with_failovers(
    specs: Sequence[WeightedBackend], backends: Sequence[RouteBackend]
) -> tuple[tuple[RouteBackend, ...], dict[RouteBackend, FailoverGroup]]:
    """What a rule chooses among by weight, and its Failovers: see Route. An endpoint stands for its Failover, with the
    weight of that. One that cannot be used is left out; where none can, requests get the error of the first.
    """
    choices, endpoints = [], defaultdict[FailoverIR, list[RouteBackend]](list)
    for spec, backend in zip(specs, backends, strict=True):
        if spec.failover is not None:
            endpoints[spec.failover].append(backend)
        elif backend.weight > 0:
            choices.append(backend)
    failovers: dict[RouteBackend, FailoverGroup] = {}
    for failover, members in endpoints.items():
        usable = [backend for backend in members if backend.cluster is not None]
        leader = replace((usable or members)[0], weight=failover.weight)
        if failover.weight > 0:
            choices.append(leader)
        if usable:
            made = FailoverGroup(failover, usable)
            failovers |= dict.fromkeys((leader, *members), made)
    return tuple(choices), failovers
