"""Sections about endpoints that do nothing where a policy holds: its status says so, and why."""

from __future__ import annotations

import pytest

from tests.config.compile.kit import DYNAMIC, FORWARD, PLAIN, REVERSE, ROUTE, compiled, of_policy, policy

BALANCER = "traffic: {loadBalancer: {type: LeastRequest}}"
PASSIVE = "traffic: {healthCheck: {passive: {}}}"
ACTIVE = "traffic: {healthCheck: {active: {type: TCP}}}"
HEDGING = "traffic: {hedging: {hedgingDelay: 1s}}"
BREAKER = "traffic: {circuitBreaker: {maxConnections: 1}}"

PARENT = PLAIN.replace("plain", "proxy").replace("a.example", "proxy.example")
BEHIND = PLAIN.replace("destination:", "parent: {name: proxy}\n  destination:")
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: pods}
spec: {ports: [{port: 80}]}
"""
TO_SERVICE = ROUTE.replace("{group: egressproxy.io, kind: Backend, name: plain}", "{name: pods, port: 80}")
TO_BOTH = ROUTE.replace("name: plain}]", "name: plain}, {name: pods, port: 80}]")
TO_DYNAMIC = ROUTE.replace("name: plain", "name: dynamic")
FAILOVER = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: any}
spec:
  destination:
    type: Failover
    failover:
      endpoints:
      - {backendRef: {group: egressproxy.io, kind: Backend, name: plain}}
"""


def told(*manifests: str) -> str:
    return of_policy(compiled(*manifests), "Accepted")[2]


ONE = "traffic.loadBalancer does nothing here: Backend default/plain is one endpoint."
NAMED = "of a destination that clients name, one endpoint is known, and nothing of its health."


@pytest.mark.parametrize(
    ("manifests", "sentence"),
    [
        ((REVERSE, PLAIN, ROUTE, policy(BALANCER, "Backend", "plain")), ONE),
        ((REVERSE, PLAIN, ROUTE, policy(BALANCER, "HTTPRoute", "route")), ONE),
        ((REVERSE, PLAIN, ROUTE, policy(BALANCER)), ONE),
        ((REVERSE, PLAIN, FAILOVER, ROUTE.replace("plain", "any"), policy(BALANCER, "Backend", "any")), ONE),
        ((FORWARD, DYNAMIC, TO_DYNAMIC, policy(BALANCER, "Backend", "dynamic")), f"does nothing here: {NAMED}"),
        ((FORWARD, DYNAMIC, TO_DYNAMIC, policy(PASSIVE, "HTTPRoute", "route")), f"passive does nothing here: {NAMED}"),
        ((FORWARD, policy(ACTIVE)), f"traffic.healthCheck.active does nothing here: {NAMED}"),
        (
            (FORWARD, PARENT, BEHIND, ROUTE, policy(PASSIVE, "Backend", "plain")),
            "traffic.healthCheck.passive does nothing here: Backend default/plain is behind a parent",
        ),
        (
            (FORWARD, PARENT, PLAIN, ROUTE, policy(f"parent: {{name: proxy}}\n{PASSIVE}", "HTTPRoute", "route")),
            "traffic.healthCheck.passive does nothing here: Backend default/plain is behind a parent",
        ),
        (
            (FORWARD, PARENT, BEHIND, ROUTE, policy(HEDGING, "HTTPRoute", "route")),
            "traffic.hedging does nothing here: Backend default/plain is behind a parent, which hedges for itself.",
        ),
        (
            (FORWARD, PARENT, policy(f"parent: {{name: proxy}}\n{HEDGING}")),
            "traffic.hedging does nothing here: everything is behind a parent, which hedges for itself.",
        ),
    ],
)  # fmt: skip
def test_a_section_that_does_nothing_is_told(manifests: tuple[str, ...], sentence: str):
    assert sentence in told(*manifests)


@pytest.mark.parametrize(
    "manifests",
    [
        (REVERSE, SERVICE, TO_SERVICE, policy(BALANCER, "HTTPRoute", "route")),
        (REVERSE, PLAIN, SERVICE, TO_BOTH, policy(BALANCER)),
        (FORWARD, PLAIN, ROUTE, policy(ACTIVE)),
        (REVERSE, PLAIN, ROUTE, policy(PASSIVE, "Backend", "plain")),
        (FORWARD, PARENT, BEHIND, ROUTE, policy(ACTIVE, "Backend", "plain")),
        (FORWARD, policy(BREAKER)),
        (FORWARD, policy(HEDGING)),
        (FORWARD, PARENT, BEHIND, ROUTE, policy(HEDGING)),
        (FORWARD, DYNAMIC, TO_DYNAMIC, policy(BREAKER, "Backend", "dynamic")),
    ],
)
def test_a_section_that_does_something_is_not(manifests: tuple[str, ...]):
    assert "does nothing" not in told(*manifests)
