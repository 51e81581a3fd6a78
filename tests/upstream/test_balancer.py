"""The balancer as a value: who is chosen, and who is not."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from egressproxy.errors import LimitExceeded, Reason, UpstreamFault
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.resilience import (
    CircuitBreakerIR,
    HealthCheckIR,
    LoadBalancerIR,
    LoadBalancerType,
    OutlierDetectionIR,
    ResilienceIR,
)
from egressproxy.upstream.balancer import MAX_POINTS, MIN_POINTS, Balancer, HashRing, Member
from egressproxy.upstream.endpoint_health import HealthRegistry, OutlierDetection

CHECK = HealthCheckIR(unhealthy_threshold=1)

BACKEND = BackendIR("ns/b", Destination.SERVICE, kind="Service")


class UpstreamHost:
    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0

    def __repr__(self) -> str:
        return self.name


def balancer(count: int = 3, *, zone: str = "", zones: str = "", hints: str = "", **spec) -> Balancer[UpstreamHost]:
    """`zones` and `hints`: one letter for each endpoint, "-" for none."""
    registry, whole = HealthRegistry(), ResilienceIR(check=CHECK, **spec)
    members = []
    for index in range(count):
        health = registry.of("s", "ns/b", BACKEND, f"e{index}", whole.outliers, whole.check, 0.0)
        own = zones[index].strip("-") if zones else ""
        hinted = tuple(hints[index].strip("-")) if hints else ()
        members.append(Member(UpstreamHost(f"e{index}"), health, own, hinted))
    return Balancer("ns/b", whole, members, registry, zone, Random(1))


def detection(made: Balancer[UpstreamHost], outliers: OutlierDetectionIR) -> OutlierDetection:
    return OutlierDetection(outliers, [member.health for member in made.members])


def chosen(
    made: Balancer[UpstreamHost], times: int = 300, now: float = 1000.0, key: bytes | None = None
) -> dict[str, int]:
    return dict(Counter(made.choose(key, now).target.name for _ in range(times)))


def balance(kind: LoadBalancerType, **more) -> LoadBalancerIR:
    return LoadBalancerIR(kind, **more)


def test_round_robin_is_even():
    assert chosen(balancer()) == {"e0": 100, "e1": 100, "e2": 100}


def test_random_is_about_even():
    shares = chosen(balancer(load_balancer=balance(LoadBalancerType.RANDOM)))
    assert len(shares) == 3
    assert min(shares.values()) > 70


def test_least_requests_spares_the_busy_one():
    made = balancer(load_balancer=balance(LoadBalancerType.LEAST_REQUEST))
    made.members[0].target.in_flight = 10
    shares = chosen(made, 900)
    assert shares["e0"] < 150  # only where chance offers it alone: one in nine
    assert min(shares["e1"], shares["e2"]) > 300


def test_a_hash_key_stays_and_moves_only_while_its_endpoint_is_out():
    made = balancer(5, load_balancer=balance(LoadBalancerType.CONSISTENT_HASH))
    homes = {key: made.choose(key, 0.0) for key in (b"a", b"b", b"c", b"d", b"e", b"f")}
    gone = homes[b"a"]
    gone.health.check_failed()
    for key, home in homes.items():
        now = made.choose(key, 0.0)
        assert (now is home) is (home is not gone)
    gone.health.check_passed(1.0)
    assert {key: made.choose(key, 1.0) for key in homes} == homes


def test_bounded_loads_send_a_key_on_when_its_endpoint_has_too_much():
    spec = balance(LoadBalancerType.CONSISTENT_HASH, hash_balance_percent=125)
    made = balancer(4, load_balancer=spec)
    for _ in range(100):
        made.choose(b"one hot key", 0.0).target.in_flight += 1
    loads = [member.target.in_flight for member in made.members]
    assert max(loads) <= 100 / 4 * 1.25 + 1
    assert chosen(balancer(4, load_balancer=balance(LoadBalancerType.CONSISTENT_HASH)), key=b"one hot key").values()


def test_without_a_key_a_consistent_hash_takes_turns():
    assert len(chosen(balancer(load_balancer=balance(LoadBalancerType.CONSISTENT_HASH)))) == 3


def test_an_unhealthy_endpoint_is_not_chosen_and_one_that_returns_is():
    made = balancer()
    made.members[1].health.check_failed()
    assert chosen(made) == {"e0": 150, "e2": 150}
    made.members[1].health.check_passed(1.0)
    assert chosen(made) == {"e0": 100, "e1": 100, "e2": 100}


def test_with_no_healthy_endpoint_left_the_request_fails_at_once_and_says_why():
    outliers = OutlierDetectionIR(consecutive_5xx=1, max_ejection_percent=100)
    made = balancer(3, outliers=outliers)
    made.members[0].health.check_failed()
    for member in made.members[1:]:
        assert detection(made, outliers).answered(member.health, 500, 0.0)
    with pytest.raises(UpstreamFault, match="2 ejected and 1 failing their health checks of 3") as caught:
        made.choose(None, 0.0)
    assert (caught.value.reason, caught.value.status) == (Reason.NO_HEALTHY_ENDPOINT, 503)


def test_below_the_panic_threshold_all_endpoints_are_used():
    made = balancer(4, panic_percent=50)
    for member in made.members[:2]:
        member.health.check_failed()
    assert len(chosen(made)) == 2
    made.members[2].health.check_failed()
    assert chosen(made) == {"e0": 75, "e1": 75, "e2": 75, "e3": 75}
    assert made.is_panicking


def test_an_endpoint_that_returns_gets_one_request_until_it_has_answered():
    outliers = OutlierDetectionIR(consecutive_5xx=1, base_ejection_s=30)
    made = balancer(2, outliers=outliers)
    bad, detected = made.members[0].health, detection(made, outliers)
    assert detected.failed(bad, 0.0)
    assert chosen(made, now=29.0) == {"e1": 300}
    assert chosen(made, now=30.0) == {"e0": 1, "e1": 299}
    assert not detected.answered(bad, 200, 30.5)
    assert chosen(made, now=31.0) == {"e0": 150, "e1": 150}


def test_while_an_endpoint_is_down_for_minutes_each_trial_costs_one_request():
    outliers = OutlierDetectionIR(consecutive_5xx=5, base_ejection_s=30, max_ejection_s=300)
    made = balancer(3, outliers=outliers)
    detected = detection(made, outliers)
    down, failures, longest = made.members[0], 0, 0
    row = 0
    for tick in range(6000):  # ten a second, for ten minutes
        member = made.choose(None, tick / 10)
        if member is down:
            failures += 1
            detected.failed(member.health, tick / 10)
        else:
            detected.answered(member.health, 200, tick / 10)
        row = row + 1 if member is down else 0
        longest = max(longest, row)
    assert longest == 1
    assert failures == 5 + 5  # the first five, then one at 30, 90, 180, 300 and 450 seconds


def test_an_attempt_avoids_targets_that_were_tried_while_there_are_others():
    made = balancer(3)
    tried = {made.members[0].target, made.members[1].target}
    assert {made.choose(None, 0.0, tried).target.name for _ in range(20)} == {"e2"}
    assert made.choose(None, 0.0, {member.target for member in made.members})


def test_a_circuit_breaker_passes_a_full_endpoint_over_and_refuses_when_all_are_full():
    made = balancer(2, breaker=CircuitBreakerIR(max_requests=2))
    made.members[0].target.in_flight = 2
    assert chosen(made) == {"e1": 300}
    made.members[1].target.in_flight = 2
    with pytest.raises(LimitExceeded, match="maxParallelRequests") as caught:
        made.choose(None, 0.0)
    assert (caught.value.reason, caught.value.status, caught.value.retry_after_s) == (Reason.CIRCUIT_OPEN, 503, 1)


@pytest.mark.parametrize("kind", [LoadBalancerType.ROUND_ROBIN, LoadBalancerType.RANDOM])
def test_slow_start_gives_an_endpoint_its_share_little_by_little(kind):
    made = balancer(2, load_balancer=LoadBalancerIR(kind, slow_start_s=100))
    made.members[0].health.check_failed()
    made.members[0].health.check_passed(1000.0)
    young = chosen(made, 1100, now=1000.0)
    assert 60 < young["e0"] < 140  # a tenth of the other's
    half = chosen(made, 900, now=1050.0)
    assert 250 < half["e0"] < 350
    assert 120 < chosen(made, 300, now=1100.0)["e0"] < 180


def test_zones_are_preferred_where_asked_for_while_enough_are_healthy():
    spec = LoadBalancerIR(prefers_zone=True, min_in_zone=2)
    made = balancer(4, zone="a", zones="aab-", load_balancer=spec)
    assert chosen(made) == {"e0": 150, "e1": 150}
    made.members[0].health.check_failed()
    assert set(chosen(made)) == {"e1", "e2", "e3"}
    assert len(chosen(balancer(4, zone="c", zones="aab-", load_balancer=spec))) == 4
    assert len(chosen(balancer(4, zone="a", zones="aab-"))) == 4
    few = LoadBalancerIR(prefers_zone=True, min_endpoints=5)
    assert len(chosen(balancer(4, zone="a", zones="aab-", load_balancer=few))) == 4


def test_an_attempt_leaves_the_zone_when_all_in_it_were_tried_or_are_full():
    spec = LoadBalancerIR(prefers_zone=True)
    made = balancer(3, zone="a", zones="abb", load_balancer=spec)
    assert made.choose(None, 0.0, {made.members[0].target}) is not made.members[0]
    made = balancer(3, zone="a", zones="abb", load_balancer=spec, breaker=CircuitBreakerIR(max_requests=1))
    made.members[0].target.in_flight = 1
    assert set(chosen(made)) == {"e1", "e2"}


def test_hints_hold_where_every_endpoint_has_one():
    assert chosen(balancer(3, zone="a", hints="aab")) == {"e0": 150, "e1": 150}
    assert len(chosen(balancer(3, zone="a", hints="aa-"))) == 3
    assert len(chosen(balancer(3, zone="", hints="aab"))) == 3
    made = balancer(3, zone="b", hints="aab")
    made.members[2].health.check_failed()
    assert chosen(made) == {"e0": 150, "e1": 150}


NAMES = [f"10.0.0.{each}:80" for each in range(10)]
#: Of the key user-1.
ORDER = [3, 6, 7, 8, 2, 0, 5, 4, 9, 1]
KEYS = [f"user-{each}".encode() for each in range(5000)]


def first(ring: HashRing, key: bytes, out: frozenset[int] = frozenset()) -> int:
    return next(place for place in ring.order(key) if place not in out)


def test_each_endpoint_has_about_its_share():
    shares = Counter(first(HashRing(NAMES), key) for key in KEYS)
    assert len(shares) == 10
    assert max(shares.values()) < 1.5 * min(shares.values())


def test_leaving_one_out_moves_its_keys_alone():
    ring = HashRing(NAMES)
    for key in KEYS:
        if (before := first(ring, key)) != 3:
            assert first(ring, key, frozenset((3,))) == before


def test_an_endpoint_that_comes_takes_its_share_and_moves_no_other_key():
    before, after = HashRing(NAMES), HashRing([*NAMES, "10.0.0.99:80"])
    moved = [key for key in KEYS if first(before, key) != first(after, key)]
    assert {first(after, key) for key in moved} == {10}
    assert 0.5 < len(moved) / (len(KEYS) / 11) < 1.5


def test_a_key_knows_every_endpoint_once_in_the_same_order_everywhere():
    assert list(HashRing(NAMES).order(b"k")) == list(HashRing(NAMES).order(b"k"))
    assert sorted(HashRing(NAMES).order(b"k")) == list(range(10))


def test_the_order_is_the_same_for_ever():
    """Other gateways of a fleet, and later versions, have to agree with this one."""
    assert list(HashRing(NAMES).order(b"user-1")) == ORDER


def test_many_endpoints_have_a_bounded_number_of_points():
    assert len(HashRing([str(each) for each in range(1000)])._points) <= MAX_POINTS
    assert len(HashRing([str(each) for each in range(5000)])._points) == MIN_POINTS * 5000
