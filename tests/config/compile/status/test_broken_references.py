"""References that resolved in the configuration before, and no longer do."""

from __future__ import annotations

from egressproxy.config.compile.status.broken_references import broken_references
from tests.config.compile.kit import compiled

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec: {gatewayClassName: egressproxy, listeners: [{name: http, port: 80, protocol: HTTP}]}
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: api}
spec:
  parentRefs: [{name: gw}]
  rules:
  - backendRefs:
    - {group: egressproxy.io, kind: Backend, name: one, port: 80}
    - {group: egressproxy.io, kind: Backend, name: two, port: 80}
"""
ONE, TWO = (
    f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}}}
spec: {{destination: {{type: Ip, ip: {{address: 192.0.2.1}}, ports: [{{number: 80, protocol: HTTP}}]}}}}
"""
    for name in ("one", "two")
)
POLICY = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: rules}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: api}]
  traffic: {timeouts: {connect: 1s}}
"""


def broken(before: tuple[str, ...], after: tuple[str, ...]) -> list[tuple[str, str]]:
    """Kind and sentence, for a step from one configuration to another."""
    previous = compiled(*before)
    return [(key[1], sentence) for key, sentence in broken_references(compiled(*after, previous=previous), previous)]


def test_a_backend_that_goes_breaks_the_route_that_refers_to_it():
    ((kind, sentence),) = broken((GATEWAY, ROUTE, ONE, TWO), (GATEWAY, ROUTE, ONE))
    assert kind == "HTTPRoute"
    assert sentence.startswith("BackendNotFound: ")
    assert "two" in sentence


def test_what_was_broken_before_is_not_told_again():
    assert broken((GATEWAY, ROUTE, ONE), (GATEWAY, ROUTE, ONE)) == []
    ((_, sentence),) = broken((GATEWAY, ROUTE, ONE), (GATEWAY, ROUTE))
    assert "one" in sentence
    assert "two" not in sentence


def test_a_new_object_breaks_nothing():
    assert broken((GATEWAY,), (GATEWAY, ROUTE)) == []


def test_a_gateway_that_goes_breaks_its_routes_but_not_one_that_left_it():
    ((kind, sentence),) = broken((GATEWAY, ROUTE, ONE, TWO), (ROUTE, ONE, TWO))
    assert (kind, sentence.partition(":")[0]) == ("HTTPRoute", "NoMatchingParent")
    assert "gw" in sentence
    moved = ROUTE.replace("parentRefs: [{name: gw}]", "parentRefs: [{name: other}]")
    assert broken((GATEWAY, ROUTE, ONE, TWO), (GATEWAY, moved, ONE, TWO)) == []


def test_a_listener_that_goes_breaks_a_route_that_names_it():
    named = ROUTE.replace("{name: gw}", "{name: gw, sectionName: http}")
    ((kind, sentence),) = broken(
        (GATEWAY, named, ONE, TWO), (GATEWAY.replace("name: http", "name: web"), named, ONE, TWO)
    )
    assert (kind, sentence.partition(":")[0]) == ("HTTPRoute", "NoMatchingParent")


def test_a_target_that_goes_breaks_the_policy():
    found = broken((GATEWAY, ROUTE, ONE, TWO, POLICY), (GATEWAY, ONE, TWO, POLICY))
    assert [(kind, sentence.partition(":")[0]) for kind, sentence in found] == [("EgressPolicy", "TargetNotFound")]


def test_a_grant_that_goes_breaks_a_certificate_reference():
    gateway = GATEWAY.replace(
        "{name: http, port: 80, protocol: HTTP}",
        "{name: s, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: certs}]}}",
    )
    grant = """
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: certs}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]
  to: [{group: "", kind: Secret}]
"""
    before, after = compiled(gateway, grant), compiled(gateway)
    # Without a Secret neither resolves; the words differ, and that is told.
    assert [sentence.partition(":")[0] for _, sentence in broken_references(after, before)] == ["RefNotPermitted"]
