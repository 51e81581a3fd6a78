"""`loadBalancer`, `healthCheck` and `circuitBreaker` of policies, merged and read into their IR."""

from __future__ import annotations

import pytest

from egressproxy.ir.resilience import (
    NO_RESILIENCE,
    CheckType,
    CircuitBreakerIR,
    HashSource,
    HealthCheckIR,
    LoadBalancerIR,
    LoadBalancerType,
    OutlierDetectionIR,
)
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, of_policy, policy, rule


def traffic(*sections: str):
    """The resilience of the rule's backend under these policies, those of the Gateway first."""
    objects = [policy(f"traffic: {{{sections[0]}}}")]
    for section in sections[1:]:
        objects.append(policy(f"traffic: {{{section}}}", "HTTPRoute", "route", policy_name="on-route"))
    return rule(compiled(FORWARD, PLAIN, ROUTE, *objects)).backends[0].policy.resilience


def test_without_a_policy_there_is_none():
    assert rule(compiled(FORWARD, PLAIN, ROUTE)).backends[0].policy.resilience is NO_RESILIENCE


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{type: LeastRequest}", LoadBalancerIR(LoadBalancerType.LEAST_REQUEST)),
        ("{slowStart: {window: 1m}}", LoadBalancerIR(slow_start_s=60.0)),
        (
            "{type: ConsistentHash, consistentHash: {type: Header, header: {name: X-User}, hashBalanceFactor: 150}}",
            LoadBalancerIR(LoadBalancerType.CONSISTENT_HASH, HashSource.HEADER, "x-user", 150),
        ),
        (
            "{type: ConsistentHash, consistentHash: {type: Cookie, cookie: {name: User}}}",
            LoadBalancerIR(LoadBalancerType.CONSISTENT_HASH, HashSource.COOKIE, "User"),
        ),
        (
            "{zoneAware: {preferLocal: {minEndpointsThreshold: 6, force: {minEndpointsInZoneThreshold: 2}}}}",
            LoadBalancerIR(prefers_zone=True, min_endpoints=6, min_in_zone=2),
        ),
    ],
)
def test_a_load_balancer_is_read(written: str, expected: LoadBalancerIR):
    assert traffic(f"loadBalancer: {written}").load_balancer == expected


def test_health_checks_and_circuit_breakers_are_read():
    made = traffic(
        "healthCheck: {panicThreshold: 30, "
        "active: {type: HTTP, interval: 5s, http: {path: /up, hostname: h.test, expectedStatuses: [204, 200]}}, "
        "passive: {consecutive5XxErrors: 2, splitExternalLocalOriginErrors: true, maxEjectionPercent: 20}}, "
        "circuitBreaker: {maxConnections: 1, maxPendingRequests: 0, maxParallelRequests: 3, maxParallelRetries: 4}"
    )
    assert made.panic_percent == 30
    assert made.check == HealthCheckIR(CheckType.HTTP, "/up", "GET", "h.test", (200, 204), 5.0)
    assert made.outliers == OutlierDetectionIR(2, splits_local_origin=True, max_ejection_percent=20)
    assert made.breaker == CircuitBreakerIR(1, 0, 3, 4)


def test_each_section_is_that_of_the_most_specific_policy_that_has_it():
    made = traffic(
        "loadBalancer: {type: Random}, healthCheck: {passive: {consecutive5XxErrors: 2}, panicThreshold: 10}",
        "loadBalancer: {slowStart: {window: 1s}}, healthCheck: {panicThreshold: 0}",
    )
    assert made.load_balancer == LoadBalancerIR(slow_start_s=1.0)
    assert made.outliers is not None
    assert (made.outliers.consecutive_5xx, made.panic_percent) == (2, 0)


def test_a_policy_that_loses_a_section_is_told_which():
    made = compiled(
        FORWARD, PLAIN, ROUTE, policy("traffic: {loadBalancer: {type: Random}}"),
        policy("traffic: {loadBalancer: {type: LeastRequest}}", "HTTPRoute", "route", policy_name="on-route"),
    )  # fmt: skip
    assert "traffic.loadBalancer" in of_policy(made, "Overridden")[2]
