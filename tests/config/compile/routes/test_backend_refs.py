from __future__ import annotations

from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, listener, of_listener, of_route, policy, rule


def test_the_floor_for_tls_holds_for_the_parent_too():
    parent = PLAIN.replace("name: plain", "name: proxy").replace("mode: None", "mode: Simple")
    backend = PLAIN.replace("spec:", "spec:\n  parent: {name: proxy}")
    found = rule(compiled(FORWARD, parent, backend, ROUTE, policy("tls: {minVersion: '1.3'}"))).backends[0].backend
    assert found is not None
    assert found.tls is None
    assert found.parent is not None
    assert found.parent.tls is not None
    assert found.parent.tls.min_version == "1.3"


def test_the_floor_of_a_parents_own_policy_is_for_the_parent_alone():
    parent, backend = (PLAIN.replace("mode: None", "mode: Simple") for _ in range(2))
    parent, backend = (
        parent.replace("name: plain", "name: proxy"),
        backend.replace("spec:", "spec:\n  parent: {name: proxy}"),
    )
    floor = policy("tls: {minVersion: '1.3'}", "Backend", "proxy")
    found = rule(compiled(FORWARD, parent, backend, ROUTE, floor)).backends[0].backend
    assert found is not None
    assert found.tls is not None
    assert found.parent is not None
    assert found.parent.tls is not None
    assert (found.tls.min_version, found.parent.tls.min_version) == ("1.2", "1.3")


def test_a_parent_of_another_region_closes_what_is_behind_it():
    backend = PLAIN.replace("spec:", "spec:\n  region: eu\n  parent: {name: proxy}")
    for region, is_closed in (("", False), ("  region: eu\n", False), ("  region: us\n", True)):
        parent = PLAIN.replace("name: plain", "name: proxy").replace("spec:\n", f"spec:\n{region}")
        found = rule(compiled(FORWARD, parent, backend, ROUTE, policy("regions: {allowed: [eu]}"))).backends[0]
        assert (found.backend is None) is is_closed
        assert ("default/proxy stands in region us" in found.error) is is_closed


def test_what_a_policy_closes_is_said_by_the_route():
    made = compiled(FORWARD, PLAIN, ROUTE, policy("regions: {allowed: [eu]}"))
    status, _, message = of_route(made, "Accepted")
    assert status == "True"
    assert "Listener forward answers 403 for some requests" in message
    assert "says no region" in message
    forward = of_listener(made, "Accepted")[2]
    assert "with 403: a destination that no route names says no region; allowed by policy: eu" in forward


def test_what_the_reference_says_is_not_said_twice():
    made = compiled(FORWARD, ROUTE)
    assert "500" not in of_route(made, "Accepted")[2]
    assert "does not exist" in of_route(made, "ResolvedRefs")[2]


def test_a_listener_says_where_unrouted_destinations_are_closed():
    made = compiled(FORWARD, policy("regions: {allowed: [eu]}"))
    assert "Destinations that no route matches" in of_listener(made, "Accepted")[2]
    assert listener(made).default_backend is not None


def test_the_same_backend_under_two_rules_is_one_value():
    text = (
        ROUTE
        + "  - matches: [{path: {value: /b}}]\n    backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]\n"
    )
    made = compiled(FORWARD, PLAIN, text)
    assert rule(made, 0).backends[0].backend is rule(made, 1).backends[0].backend
