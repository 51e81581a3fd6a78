"""Several parents, several listeners, several namespaces: each says its own."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled
from tests.config.compile.kit import PLAIN, ROUTE, compiled, of_object, said, status

SET = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: team}
spec:
  parentRef: {name: gw, namespace: default}
  listeners: [{name: extra, port: 9000, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
"""
TEAM = """
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {may: attach}}
"""


def gateway(*listeners: str, more: str = "") -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: gw}}
spec:
  gatewayClassName: egressproxy
  {more}
  listeners: [{", ".join(listeners)}]
"""


WEB = "{name: web, port: 8080, protocol: HTTP}"


def with_parents(*parents: str, more: str = "") -> str:
    return ROUTE.replace("[{name: gw}]", f"[{', '.join(f'{{{parent}}}' for parent in parents)}]\n  {more}")


def parents(made: Compiled, name: str = "default/route") -> list[tuple[str, str]]:
    """`Accepted` of the route at each of its parents: status and reason."""
    return [said(each["conditions"], "Accepted")[:2] for each in status(made, "HTTPRoute", name)["parents"]]


def attached(made: Compiled) -> dict[str, int]:
    listeners = status(made, "Gateway", "default/gw")["listeners"]
    return {each["name"]: each["attachedRoutes"] for each in listeners}


def test_each_parent_has_its_own_verdict_in_the_order_of_the_route():
    other = "{name: other, port: 8081, protocol: HTTP, hostname: b.example}"
    made = compiled(
        gateway(WEB, other),
        PLAIN,
        with_parents(
            "name: gw, sectionName: nowhere",
            "name: gw, sectionName: other",
            "name: gw, sectionName: web",
            more="hostnames: [a.example]",
        ),
    )
    assert parents(made) == [
        ("False", "NoMatchingParent"),
        ("False", "NoMatchingListenerHostname"),
        ("True", "Accepted"),
    ]
    found = status(made, "HTTPRoute", "default/route")["parents"]
    assert [each["parentRef"]["sectionName"] for each in found] == ["nowhere", "other", "web"]
    assert {each["controllerName"] for each in found} == {"egressproxy.io/gateway-controller"}
    assert attached(made) == {"web": 1, "other": 0}


@pytest.mark.parametrize(
    ("ref", "verdict"),
    [
        ("sectionName: web, port: 8080", ("True", "Accepted")),
        ("sectionName: web, port: 8081", ("False", "NoMatchingParent")),
        ("port: 8080", ("True", "Accepted")),
        ("port: 1", ("False", "NoMatchingParent")),
    ],
)
def test_section_and_port_have_to_hold_together(ref: str, verdict: tuple[str, str]):
    made = compiled(gateway(WEB), PLAIN, with_parents(f"name: gw, {ref}"))
    assert parents(made) == [verdict]
    assert attached(made) == {"web": verdict[0] == "True"}


def test_a_gateway_and_its_listener_set_are_parents_of_their_own():
    admitting = gateway(WEB, more="allowedListeners: {namespaces: {from: All}}")
    route = with_parents("name: gw, sectionName: extra", "kind: ListenerSet, name: more, namespace: team")
    made = compiled(admitting, SET, PLAIN, route)
    assert parents(made) == [("False", "NoMatchingParent"), ("True", "Accepted")]
    assert attached(made) == {"web": 0}
    assert status(made, "ListenerSet", "team/more")["listeners"][0]["attachedRoutes"] == 1


@pytest.mark.parametrize(
    ("allowed", "is_admitted"),
    [
        ("{from: All}", True),
        ("{from: Same}", False),
        ("{from: None}", False),
        ("{from: Selector, selector: {matchLabels: {may: attach}}}", True),
        ("{from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: team}}}", True),
        ("{from: Selector, selector: {matchExpressions: [{key: may, operator: DoesNotExist}]}}", False),
    ],
)
def test_allowed_listeners_say_from_where_listener_sets_come(allowed: str, is_admitted: bool):
    made = compiled(gateway(WEB, more=f"allowedListeners: {{namespaces: {allowed}}}"), SET, TEAM)
    for condition, reason in (("Accepted", "Accepted"), ("Programmed", "Programmed")):
        expected = ("True", reason) if is_admitted else ("False", "NotAllowed")
        assert of_object(made, "ListenerSet", "team/more", condition)[:2] == expected
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == is_admitted


def test_a_listener_without_its_certificate_counts_its_routes_all_the_same():
    closed = "{name: tls, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}"
    made = compiled(gateway(WEB, closed), PLAIN, ROUTE)
    assert attached(made) == {"web": 1, "tls": 1}
    assert [one.name for one in made.spec.listeners] == ["web"]


def test_routes_that_are_not_accepted_are_not_counted():
    refused = with_parents(
        "name: gw",
        more="rules: [{filters: [{type: ExtensionRef, extensionRef: {group: a.example, kind: B, name: c}}]}]",
    ).partition("\n  rules:\n")[0]
    made = compiled(gateway(WEB), PLAIN, refused)
    assert parents(made) == [("False", "UnsupportedValue")]
    assert attached(made) == {"web": 0}


def test_a_route_at_a_gateway_that_is_not_accepted_says_which_listeners_are_not_served():
    made = compiled(gateway(WEB, more="addresses: [{type: Hostname, value: a.example}]"), PLAIN, ROUTE)
    (parent,) = status(made, "HTTPRoute", "default/route")["parents"]
    assert "these listeners are not served: web" in said(parent["conditions"], "Accepted")[2]
    assert not made.spec.listeners


def test_a_grant_that_is_withdrawn_takes_the_reference_with_it():
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}]
  to: [{group: egressproxy.io, kind: Backend}]
"""
    there = PLAIN.replace("{name: plain}", "{name: plain, namespace: other}")
    route = ROUTE.replace("name: plain", "name: plain, namespace: other")
    first = compiled(gateway(WEB), there, route, grant)
    second = compiled(gateway(WEB), there, route, previous=first)
    for made, expected in ((first, ("True", "ResolvedRefs")), (second, ("False", "RefNotPermitted"))):
        (parent,) = status(made, "HTTPRoute", "default/route")["parents"]
        assert said(parent["conditions"], "ResolvedRefs")[:2] == expected
        assert said(parent["conditions"], "Accepted")[0] == "True"


def test_every_condition_has_all_that_kubernetes_asks_of_one():
    made = compiled(gateway(WEB, more="allowedListeners: {namespaces: {from: All}}"), SET, PLAIN, ROUTE)
    for key, found in made.statuses.items():
        parts = [found, *found.get("listeners", ()), *found.get("parents", ()), *found.get("ancestors", ())]
        for condition in (each for part in parts for each in part.get("conditions", ())):
            assert set(condition) == {
                "type", "status", "reason", "message", "observedGeneration", "lastTransitionTime",
            }, key  # fmt: skip
            assert condition["status"] in ("True", "False")
            assert condition["reason"]


@pytest.mark.parametrize(
    ("listener", "reason"),
    [
        (WEB, "ResolvedRefs"),
        ("{name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: Nonsense}]}}", "ListenersNotResolved"),
        (
            "{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}",
            "ListenersNotResolved",
        ),
    ],
)
def test_resolved_refs_of_a_gateway_sum_up_those_of_its_listeners(listener: str, reason: str):
    made = compiled(gateway(listener))
    expected = ("True" if reason == "ResolvedRefs" else "False", reason)
    assert of_object(made, "Gateway", "default/gw", "ResolvedRefs")[:2] == expected
