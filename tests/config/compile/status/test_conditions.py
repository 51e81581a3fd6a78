from __future__ import annotations

from egressproxy.config.compile.status.conditions import (
    MAX_MESSAGE,
    Conditions,
    ReferenceConditions,
    broken_references,
    keep_times,
)
from egressproxy.config.resources.object_references import ParentReference
from tests.config.compile.kit import compiled

KEY = ("g", "K", "ns", "name")


def test_a_condition_has_the_form_of_kubernetes():
    conditions = Conditions(3)
    conditions.set("Accepted", True, "Accepted", "fine")
    assert conditions.to_list() == [
        {"type": "Accepted", "status": "True", "observedGeneration": 3, "reason": "Accepted", "message": "fine"}
    ]


def test_stating_a_condition_anew_keeps_its_place():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted")
    conditions.set("Programmed", True, "Programmed")
    conditions.set("Accepted", False, "Invalid")
    assert [c["type"] for c in conditions.to_list()] == ["Accepted", "Programmed"]
    assert not conditions.holds("Accepted")
    assert conditions.holds("Programmed")


def test_a_message_is_cut_to_what_kubernetes_takes():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted", "x" * (2 * MAX_MESSAGE))
    conditions.add_note("Accepted", "more")
    assert len(conditions.to_list()[0]["message"]) == MAX_MESSAGE


def test_routes_and_policies_carry_the_name_of_the_controller():
    parents, ancestors = ReferenceConditions("parents", 1), ReferenceConditions("ancestors", 1)
    parents.add(ParentReference(name="gw"))
    ancestors.add(ParentReference(name="gw"), namespace="ns")
    assert parents.to_status()["parents"][0]["controllerName"] == "egressproxy.io/gateway-controller"
    assert ancestors.to_status()["ancestors"][0]["controllerName"] == "egressproxy.io/gateway-controller"


def parents_of(*states: tuple[str, bool]) -> dict:
    parents = ReferenceConditions("parents", 1)
    for name, holds in states:
        parents.add(ParentReference(name=name)).set("Accepted", holds, "Reason")
    return {KEY: parents.to_status()}


def times(statuses: dict) -> list[str]:
    return [parent["conditions"][0]["lastTransitionTime"] for parent in statuses[KEY]["parents"]]


def test_times_are_kept_per_parent_whatever_their_order():
    old = parents_of(("a", True), ("b", True))
    keep_times(old, {}, "then")
    new = parents_of(("b", True), ("a", False), ("c", True))
    keep_times(new, old, "now")
    assert times(new) == ["then", "now", "now"]


def test_a_note_is_a_sentence_of_its_own():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted", "the listener is valid")
    conditions.add_note("Accepted", "It serves nothing.")
    conditions.add_note("Accepted", "Nor does that.")
    (condition,) = conditions.to_list()
    assert condition["message"] == "the listener is valid. It serves nothing. Nor does that."


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
