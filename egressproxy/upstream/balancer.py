"""Balancer: which endpoint of a backend the next request goes to. It decides, and does no I/O.

An endpoint that is ejected or unhealthy takes no request. Where none is left the request fails at once, unless the
panic threshold says that all are used then. RoundRobin and Random follow the weights of slow start; LeastRequest takes
the better one of two random endpoints (Mitzenmacher 2001; Envoy's choiceCount 2); ConsistentHash is a hash ring, with
bounded loads where `hashBalancePercent` is set.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, shake_128
from random import Random
from typing import Generic, Protocol, TypeVar

from egressproxy.errors import LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.ir.resilience import LoadBalancerType, ResilienceIR
from egressproxy.upstream.endpoint_health import EndpointHealth, HealthRegistry, HealthState

#: What an endpoint gets at the beginning of its slow start (Envoy's min_weight_percent).
LEAST_WEIGHT = 0.1
#: How often the weights of a slow start change within its window.
SLOW_STEPS = 10
NEVER = float("inf")


class Balanced(Protocol):
    """What the balancer needs of a target."""

    @property
    def in_flight(self) -> int:
        """Requests that it has, those that wait for a connection included."""


T = TypeVar("T", bound=Balanced)


@dataclass(slots=True, eq=False, repr=False)
class Member(Generic[T]):
    """One endpoint of one balancer. `weight` is 1, or less in its slow start; `credit` is for weighted round robin."""

    target: T
    health: EndpointHealth
    zone: str = ""
    for_zones: tuple[str, ...] = ()
    weight: float = 1.0
    credit: float = 0.0

    def __repr__(self) -> str:
        return f"Member({self.health.address}, {self.health.state.value}, weight={self.weight:.2f})"


class Balancer(Generic[T]):
    """Chooses among the endpoints of one backend. `zone` is that of this process, or ""."""

    __slots__ = (
        "_breaker", "_candidates", "_due", "_is_even", "_name", "_random", "_registry", "_ring", "_spec",
        "_total_weight", "_turn", "_usable", "_version", "_zone", "is_panicking", "members",
    )  # fmt: skip

    def __init__(
        self, name: str, spec: ResilienceIR, members: Sequence[Member[T]], registry: HealthRegistry, zone: str = "",
        random: Random | None = None,
    ) -> None:  # fmt: skip
        self.members = tuple(members)
        self._name = name
        self._spec = spec
        self._registry = registry
        self._zone = zone
        self._random = random or Random()  # noqa: S311 (a share of traffic is no secret)
        self._breaker = spec.breaker.max_requests if spec.breaker is not None else None
        self._ring = None
        if spec.load_balancer.type is LoadBalancerType.CONSISTENT_HASH:
            self._ring = HashRing([member.health.address for member in self.members])
        self._turn = self._random.randrange(max(1, len(self.members)))  # workers do not all begin at the first
        self._candidates: tuple[Member[T], ...] = ()
        self._usable: tuple[Member[T], ...] = ()  # the candidates, and those of other zones
        self._is_even = True
        self._total_weight = 0.0
        self.is_panicking = False
        self._version = -1
        self._due = 0.0

    # --- the choice ----------------------------------------------------------------------------------------------
    def choose(self, key: bytes | None, now: float, avoid: Collection[T] = ()) -> Member[T]:
        """The endpoint for a request, which has this hash key. Those whose target is in `avoid` come last.

        Raises UpstreamFault (503, no_healthy_endpoint) where none may be used, LimitExceeded (503, circuit_open)
        where each of them has as many requests as its circuit breaker allows.
        """
        if self._version != self._registry.version or now >= self._due:
            self._look(now)
        candidates = self._candidates
        if not candidates:
            raise self.none_left()
        is_narrow = False  # others than the candidates, whose weights have to be added up again
        if self._breaker is not None:
            candidates, is_narrow = self._with_room(candidates) or self._with_room(self._usable), True
            if not candidates:
                raise open_circuit(self._name, "maxParallelRequests")
        if avoid:
            others = tuple(member for member in candidates if member.target not in avoid)
            if not others and len(self._usable) > len(candidates):  # in other zones
                others = tuple(member for member in self._with_room(self._usable) if member.target not in avoid)
            if others:
                candidates, is_narrow = others, True
        member = candidates[0] if len(candidates) == 1 else self._choose(candidates, key, is_narrow)
        if member.health.state is HealthState.TRIAL:
            member.health.begin_trial(now)
        return member

    def may_serve(self, now: float) -> bool:
        """Whether `choose` would find an endpoint that may be used. Changes nothing that a request would notice."""
        if self._version != self._registry.version or now >= self._due:
            self._look(now)
        return bool(self._candidates)

    def _choose(self, candidates: tuple[Member[T], ...], key: bytes | None, is_narrow: bool) -> Member[T]:
        kind = self._spec.load_balancer.type
        if kind is LoadBalancerType.CONSISTENT_HASH and key is not None:
            return self._hashed(candidates, key)
        if kind is LoadBalancerType.LEAST_REQUEST:
            first = candidates[self._random.randrange(len(candidates))]
            second = candidates[self._random.randrange(len(candidates))]
            return min(first, second, key=_load)
        if kind is LoadBalancerType.RANDOM:
            if self._is_even:
                return candidates[self._random.randrange(len(candidates))]
            return self._random.choices(candidates, [member.weight for member in candidates])[0]
        if self._is_even:
            self._turn += 1
            return candidates[self._turn % len(candidates)]
        total = sum(member.weight for member in candidates) if is_narrow else self._total_weight
        for member in candidates:  # smooth weighted round robin, as nginx has it
            member.credit += member.weight
        chosen = max(candidates, key=_credit)
        chosen.credit -= total
        return chosen

    def _with_room(self, members: tuple[Member[T], ...]) -> tuple[Member[T], ...]:
        """Those of them whose circuit breaker allows one more request."""
        most = self._breaker
        return members if most is None else tuple(each for each in members if each.target.in_flight < most)

    def _hashed(self, candidates: tuple[Member[T], ...], key: bytes) -> Member[T]:
        assert self._ring is not None
        percent = self._spec.load_balancer.hash_balance_percent
        most = NEVER
        if percent:
            in_flight = sum(member.target.in_flight for member in candidates)
            most = (in_flight + 1) * percent / 100 / len(candidates)
        allowed = set(candidates)
        fallback = None
        for place in self._ring.order(key):
            member = self.members[place]
            if member in allowed:
                if member.target.in_flight < most:
                    return member
                fallback = fallback or member
        assert fallback is not None
        return fallback

    # --- who may be chosen ---------------------------------------------------------------------------------------
    def _look(self, now: float) -> None:
        """Find out who may be chosen; it holds until a health changes, or `_due`."""
        usable = [member for member in self.members if member.health.is_usable(now)]
        self._version = self._registry.version
        self._due = min((member.health.next_change(now) for member in self.members), default=NEVER)
        panic = self._spec.panic_percent
        self.is_panicking = bool(self.members) and len(usable) * 100 < panic * len(self.members)
        if self.is_panicking:
            usable = list(self.members)
        self._usable = tuple(usable)
        self._candidates = self._in_zone(self._usable)
        self._weigh(now)

    def _in_zone(self, usable: tuple[Member[T], ...]) -> tuple[Member[T], ...]:
        """Those for the zone of this process, if there are any; else all. Hints count where every endpoint has one, as
        in kube-proxy (EndpointSlice `hints.forZones`); otherwise, with `zoneAware`, the zones of the endpoints.
        """
        zone, spec = self._zone, self._spec.load_balancer
        if zone and not self.is_panicking:
            if spec.prefers_zone:
                near = tuple(member for member in usable if member.zone == zone)
                if len(self.members) >= spec.min_endpoints and len(near) >= max(1, spec.min_in_zone):
                    return near
            elif all(member.for_zones for member in self.members):
                near = tuple(member for member in usable if zone in member.for_zones)
                if near:
                    return near
        return usable

    def _weigh(self, now: float) -> None:
        window_s = self._spec.load_balancer.slow_start_s
        if window_s:
            for member in self._usable:
                age = (now - member.health.returned_at) / window_s
                member.weight = 1.0 if age >= 1 else max(LEAST_WEIGHT, age)
            if any(member.weight < 1 for member in self._usable):
                self._due = min(self._due, now + window_s / SLOW_STEPS)
        weights = [member.weight for member in self._candidates]
        self._total_weight = sum(weights)
        self._is_even = not weights or min(weights) == max(weights)

    def none_left(self) -> UpstreamFault:
        """The error where no endpoint may be used."""
        states = [member.health.state for member in self.members]
        ejected = sum(state in (HealthState.EJECTED, HealthState.TRIAL) for state in states)
        causes = [
            f"{count} {word}"
            for count, word in ((ejected, "ejected"), (len(states) - ejected, "failing their health checks"))
            if count
        ]
        message = f"backend {self._name} has no healthy endpoint: {' and '.join(causes)} of {len(states)}"
        return UpstreamFault(Reason.NO_HEALTHY_ENDPOINT, message, status=503, retry=RetrySafety.SAFE, retry_after_s=1)


def open_circuit(name: str, field: str) -> LimitExceeded:
    """The error where a limit of `circuitBreaker` is reached. `field` is the limit's."""
    message = f"backend {name} has as many requests as its circuit breaker allows ({field})"
    return LimitExceeded(Reason.CIRCUIT_OPEN, message, status=503, retry_after_s=1)


def _load(member: Member[T]) -> float:
    return (member.target.in_flight + 1) / member.weight


def _credit(member: Member[T]) -> float:
    return member.credit


#: Points of each endpoint: with 100 the shares differ by about a tenth. Fewer for large sets, which would
#: take long to place.
POINTS = 100
MAX_POINTS = 16384
MIN_POINTS = 8
#: The low bits of a point say whose it is.
_OWNER = (1 << 20) - 1


class HashRing:
    """Consistent hashing of these endpoints (at most 2^20), each known by its place in `names`. A key keeps its
    endpoint while endpoints come, go, or are left out.

    Each endpoint has many points on a circle; a key belongs to the first endpoint at or behind its own point that may
    take it. Leaving one out moves its keys alone, and needs no new ring. The points depend on the endpoint's name and
    nothing else, so all workers, and all gateways of a fleet, agree. Source: Karger et al. 1997; with bounded loads
    (Mirrokni et al. 2016) where the caller leaves out those that have too much.
    """

    __slots__ = ("_points",)

    def __init__(self, names: Sequence[str]) -> None:
        each = max(MIN_POINTS, min(POINTS, MAX_POINTS // max(1, len(names))))
        points: list[int] = []
        for index, name in enumerate(names):
            drawn = struct.unpack(f"<{each}Q", shake_128(name.encode()).digest(8 * each))
            points += [(point & ~_OWNER) | index for point in drawn]
        points.sort()
        self._points = points

    def order(self, key: bytes) -> Iterator[int]:
        """The places of all endpoints, in the order in which this key prefers them."""
        points = self._points
        start = bisect_left(points, int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))
        seen: set[int] = set()
        for step in range(len(points)):
            owner = points[(start + step) % len(points)] & _OWNER
            if owner not in seen:
                seen.add(owner)
                yield owner
