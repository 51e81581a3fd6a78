"""`loadBalancer`, `healthCheck` and `circuitBreaker` of policies, merged and read into their IR."""

from __future__ import annotations

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.policy import HedgingIR, RetryBudgetIR, RetryIR
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
from egressproxy.ir.route import HttpRuleIR
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, listener, of_policy, of_route, policy, rule
from tests.config.compile.policies.test_ineffective_fields import SERVICE, TO_SERVICE


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
    policies = (
        policy("traffic: {loadBalancer: {type: Random}}"),
        policy("traffic: {loadBalancer: {type: LeastRequest}}", "HTTPRoute", "route", policy_name="on-route"),
    )
    made = compiled(FORWARD, SERVICE, TO_SERVICE, *policies)
    assert "traffic.loadBalancer" in of_policy(made, "Overridden")[2]
    made = compiled(FORWARD, PLAIN, ROUTE, *policies)
    assert of_policy(made, "Overridden") == ("", "", ""), "there is one endpoint, and nothing to be chosen"


def with_rule(fields: str) -> str:
    """ROUTE with more fields in its rule."""
    return ROUTE.replace("- backendRefs", f"- {fields}\n    backendRefs")


def one_rule(fields: str, *more: str) -> HttpRuleIR:
    return rule(compiled(FORWARD, PLAIN, with_rule(fields), *more))


def test_a_retry_has_attempts_and_a_backoff_where_the_rule_names_none():
    assert one_rule("retry: {codes: [503, 500, 503]}").retry == RetryIR(1, (500, 503), 0.025, 0.25)


def test_a_retry_is_kept_as_the_rule_says_it():
    assert one_rule("retry: {attempts: 7, backoff: 2s}").retry == RetryIR(7, (), 2.0, 20.0)


def test_a_retry_has_a_bounded_number_of_attempts_and_status_says_so():
    made = compiled(FORWARD, PLAIN, with_rule("retry: {attempts: 2000000000, backoff: 0s}"))
    assert rule(made).retry == RetryIR(100, (), 0.0, 0.0)
    assert "rules[0].retry: attempts 2000000000 counts as 100" in of_route(made, "Accepted")[2]
    wide = policy("traffic: {retries: {attempts: 2000000000}}")
    assert listener(compiled(FORWARD, PLAIN, ROUTE, wide)).policy.retries == RetryIR(100, (), 0.025, 0.25)


def test_codes_of_a_rule_whose_backend_has_a_parent_are_told_as_not_applied():
    parent = PLAIN.replace("plain", "proxy").replace("a.example", "proxy.example")
    behind = PLAIN.replace("destination:", "parent: {name: proxy}\n  destination:")
    note = "rules[0].retry.codes are not applied to default/plain: it has a parent."
    made = compiled(FORWARD, parent, behind, with_rule("retry: {codes: [503]}"))
    assert note in of_route(made, "Accepted")[2]
    made = compiled(FORWARD, parent, behind, with_rule("retry: {attempts: 3}"))
    assert "not applied" not in of_route(made, "Accepted")[2]
    made = compiled(FORWARD, PLAIN, with_rule("retry: {codes: [503]}"))
    assert "not applied" not in of_route(made, "Accepted")[2]


def test_a_rule_without_retry_has_that_of_the_most_specific_policy():
    gateway = policy("traffic: {retries: {attempts: 3}}", policy_name="wide")
    route = policy(
        "traffic: {retries: {attempts: 4, backoff: 1s, maxBackoff: 3s, budget: {percent: 5}}}", "HTTPRoute", "route"
    )
    made = compiled(FORWARD, PLAIN, ROUTE, gateway, route)
    assert rule(made).retry == RetryIR(4, (), 1.0, 3.0, RetryBudgetIR(5, 10.0, 10))
    assert listener(made).policy.retries == RetryIR(3, (), 0.025, 0.25)
    assert "traffic.retries" in of_policy(made, "Overridden", "default/wide")[2]


def test_a_rule_says_more_than_policies():
    assert one_rule("retry: {attempts: 0}", policy("traffic: {retries: {attempts: 3}}")).retry == RetryIR(
        0, (), 0.025, 0.25
    )


def test_retries_on_a_backend_do_nothing_and_status_says_so():
    made = compiled(FORWARD, PLAIN, ROUTE, policy("traffic: {retries: {attempts: 3}}", "Backend", "plain"))
    assert rule(made).retry is None
    assert "traffic.retries does nothing here" in of_policy(made, "Accepted")[2]


def test_hedging_has_gentle_defaults_and_is_that_of_the_most_specific_policy():
    wide = policy("traffic: {hedging: {hedgingDelay: 1s}}", policy_name="wide")
    usual = HedgingIR(1.0, 2, (500, 502, 503, 504), ("GET", "HEAD", "OPTIONS"))
    assert rule(compiled(FORWARD, PLAIN, ROUTE, wide)).policy.hedging == usual
    written = "{hedgingDelay: 50ms, maxAttempts: 3, nonFatalStatusCodes: [529, 429], methods: [PUT, GET, PUT]}"
    route = policy(f"traffic: {{hedging: {written}}}", "HTTPRoute", "route")
    made = compiled(FORWARD, PLAIN, ROUTE, wide, route)
    assert rule(made).policy.hedging == HedgingIR(0.05, 3, (429, 529), ("PUT", "GET"))
    assert listener(made).policy.hedging == usual
    assert "traffic.hedging" in of_policy(made, "Overridden", "default/wide")[2]


@pytest.mark.parametrize(
    "written",
    ["{hedgingDelay: 0s}", "{}", "{hedgingDelay: 1s, maxAttempts: 1}", "{hedgingDelay: 1s, maxAttempts: 6}",
     "{hedgingDelay: 1s, methods: [POST]}", "{hedgingDelay: 1s, methods: []}"],
)  # fmt: skip
def test_hedging_that_would_do_harm_or_nothing_is_refused(written: str):
    with pytest.raises(ConfigError, match="hedging"):
        compiled(FORWARD, PLAIN, ROUTE, policy(f"traffic: {{hedging: {written}}}"))


def test_hedging_on_what_it_is_not_for_is_told():
    on_backend = policy("traffic: {hedging: {hedgingDelay: 1s}}", "Backend", "plain")
    said = of_policy(compiled(FORWARD, PLAIN, ROUTE, on_backend), "Accepted")[2]
    assert "traffic.hedging does nothing here" in said
