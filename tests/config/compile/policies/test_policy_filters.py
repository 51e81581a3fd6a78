from __future__ import annotations

import json

import pytest

from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import DYNAMIC, FORWARD, PLAIN, REVERSE, ROUTE, compiled, listener, policy, rule

QOS = "egressproxy.io/QoSController:v1"
RATE = "egressproxy.io/RequestRateLimit:v1"


def limit(section: str, target: str = "Gateway", name: str = "gw") -> str:
    return policy(f"limits: {{{section}}}", target, name)


def named(found: tuple[ExtensionIR, ...]) -> list[tuple[str, str, str, int]]:
    return [(one.type, one.phase, one.scope, one.level) for one in found]


def test_a_rate_per_gateway_is_one_bucket_for_all_routes():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("requests: [{per: Gateway, limit: 5, window: 1m, burst: 9}]"))
    (found,) = rule(made).extensions
    assert named((found,)) == [(RATE, "request-headers", "Gateway default/gw", 0)]
    assert json.loads(found.config) == {"limit": 5, "window": 60.0, "burst": 9}
    assert found.priority == 0
    assert listener(made).extensions == (found,)


def test_a_rate_per_route_is_a_bucket_for_each():
    second = ROUTE.replace("name: route", "name: second")
    made = compiled(FORWARD, PLAIN, ROUTE, second, limit("requests: [{per: Route, limit: 5}]"))
    scopes = [one.rules[0].extensions[0].scope for one in listener(made).http_routes]
    assert scopes == ["HTTPRoute default/route", "HTTPRoute default/second"]
    assert listener(made).extensions[0].scope == "Gateway default/gw, no route"


def test_a_rate_per_backend_is_counted_when_the_backend_is_asked():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("requests: [{per: Backend, limit: 5}]"))
    assert rule(made).extensions == ()
    assert named(rule(made).backends[0].extensions) == [(RATE, "backend-request", "Backend default/plain", 0)]
    default = listener(made).default_backend
    assert default is not None
    assert default.extensions[0].scope == "Gateway default/gw, any destination"


def test_whatever_a_backends_policy_limits_is_counted_there():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("requests: [{per: Gateway, limit: 5}]", "Backend", "plain"))
    assert rule(made).extensions == ()
    assert named(rule(made).backends[0].extensions) == [(RATE, "backend-request", "Gateway default/gw", 2)]


def test_a_routes_limit_is_not_that_of_the_listener():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("requests: [{per: Route, limit: 5}]", "HTTPRoute", "route"))
    assert named(rule(made).extensions) == [(RATE, "request-headers", "HTTPRoute default/route", 1)]
    assert listener(made).extensions == ()


def test_limits_with_keys_are_one_filter_for_all_places_of_the_policy():
    rows = (
        "requests: [{per: Identity, limit: 5, window: 1m}, {per: Route, alsoPer: [Header], header: X-Team, limit: 9,"
        " unit: Day}], bytes: [{per: Namespace, limit: 7, unit: Month, count: Output}],"
        " concurrency: [{per: Identity, limit: 2}], mode: Report, rateLimitHeaders: Always, maxKeys: 50"
    )
    made = compiled(FORWARD, PLAIN, ROUTE, limit(rows))
    (found,) = rule(made).extensions
    assert named((found,)) == [(QOS, "request-headers", "EgressPolicy default/policy", 0)]
    assert listener(made).extensions == (found,)
    assert json.loads(found.config) == {
        "limits": [
            {"type": "Requests", "limit": 5, "window": 60.0, "per": ["Identity"]},
            {"type": "Requests", "limit": 9, "unit": "Day", "per": ["Route", "Header"], "header": "X-Team"},
            {"type": "Concurrency", "limit": 2, "per": ["Identity"]},
            {"type": "Bytes", "limit": 7, "unit": "Month", "per": ["Namespace"], "count": "Output"},
        ],
        "mode": "Report",
        "rateLimitHeaders": "Always",
        "maxKeys": 50,
    }


@pytest.mark.parametrize(
    ("subjects", "written", "expected"),
    [("", "", 16_384), ("", ", maxKeys: 7", 7), ("team", "", 0), ("team", ", maxKeys: 7", 7)],
)
def test_limits_of_known_clients_share_their_table(subjects: str, written: str, expected: int):
    """Nobody makes up keys there, and there may be a policy for each of thousands."""
    policy = limit("requests: [{per: Identity, limit: 5, window: 1m}]" + written)
    if subjects:
        policy = policy.replace("spec:\n", f"spec:\n  subjects: [{{namespace: {subjects}}}]\n")
    made = listener(compiled(FORWARD, PLAIN, ROUTE, policy))
    (found,) = made.variants[0].listener.extensions if subjects else made.extensions
    assert json.loads(found.config)["maxKeys"] == expected


def test_what_is_counted_for_each_backend_is_counted_when_it_is_asked_and_the_rest_before():
    rows = "requests: [{per: Backend, alsoPer: [Identity], limit: 5}, {per: Identity, limit: 6}]"
    made = compiled(FORWARD, PLAIN, ROUTE, limit(rows))
    assert named(rule(made).extensions) == [(QOS, "request-headers", "EgressPolicy default/policy", 0)]
    assert named(rule(made).backends[0].extensions) == [(QOS, "backend-request", "Backend default/plain", 0)]


def test_tokens_and_money_are_limited_with_their_prices():
    prices = "prices: [{models: ['a*'], input: 2, cachedInput: 1, output: 3.5}]"
    rows = (
        f"tokens: [{{per: Model, limit: 7, unit: Day, count: Input}}], cost: [{{per: Gateway, limit: 2.5}}], {prices}"
    )
    (found,) = rule(compiled(FORWARD, PLAIN, ROUTE, limit(rows))).extensions
    config = json.loads(found.config)
    assert config["limits"] == [
        {"type": "Tokens", "limit": 7, "unit": "Day", "per": ["Model"], "count": "Input"},
        {"type": "Cost", "limit": 2.5, "unit": "Month", "per": ["Gateway"]},
    ]
    assert config["prices"] == [{"models": ["a*"], "input": 2.0, "cachedInput": 1.0, "output": 3.5}]


@pytest.mark.parametrize(
    ("written", "read"), [("", None), (", maxBufferedBytes: 50000000", 50_000_000), (", maxBufferedBytes: 1", 1024)]
)
def test_a_request_whose_tokens_are_limited_is_read_as_far_as_it_may_be_held(written: str, read: int | None):
    rows = f"tokens: [{{per: Gateway, limit: 7, unit: Day}}]{written}"
    (found,) = rule(compiled(FORWARD, PLAIN, ROUTE, limit(rows))).extensions
    assert json.loads(found.config).get("maxBodyBytes") == read


def test_limits_that_a_fleet_shares_have_the_backend_and_the_password_of_their_redis():
    store = (
        "store: {type: Redis, backendRef: {group: egressproxy.io, kind: Backend, name: plain}, secretRef: {name: s}}"
    )
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: default}\nstringData: {token: hidden-value}"
    made = compiled(
        FORWARD, PLAIN, ROUTE, secret, limit(f"requests: [{{per: Gateway, limit: 5, window: 1m}}], {store}")
    )
    (found,) = rule(made).extensions
    assert found.type == QOS
    assert json.loads(found.config)["store"] == {
        "type": "Redis",
        "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "plain"},
        "secretRef": {"name": "s"},
        "timeout": 0.1,
        "onFailure": "Local",
        "username": "",
        "database": 0,
    }
    assert [(label, value.reveal()) for label, value in found.secrets] == [("s/", b"hidden-value")]
    assert [label for label, _ in found.calls] == ["Backend plain"]


def test_what_cannot_be_counted_for_one_backend_closes_the_place():
    rows = "requests: [{per: Backend, alsoPer: [Model], limit: 5}]"
    (backend,) = rule(compiled(FORWARD, PLAIN, ROUTE, limit(rows))).backends
    assert "limits per Model, are not counted for one backend" in backend.error


def test_concurrency_is_limited_the_same_way():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("concurrency: [{per: Gateway, limit: 3}]"))
    (found,) = rule(made).extensions
    assert (found.type, json.loads(found.config)) == ("egressproxy.io/ConcurrencyLimit:v1", {"limit": 3})


def test_a_body_limit_holds_for_all_requests_of_the_gateway():
    made = compiled(FORWARD, PLAIN, ROUTE, limit("maxBodyBytes: 100"))
    (found,) = rule(made).extensions
    assert (found.type, found.phase) == ("egressproxy.io/BodyLimit:v1", "request-headers")
    assert json.loads(found.config) == {"maxBytes": 100}
    assert listener(made).extensions == (found,)


def test_a_backends_body_limit_holds_for_the_rules_that_have_it():
    two = ROUTE.replace(
        "  rules:",
        "  rules:\n  - matches: [{path: {value: /other}}]\n"
        "    backendRefs: [{group: egressproxy.io, kind: Backend, name: dynamic}]",
    )
    made = compiled(FORWARD, PLAIN, DYNAMIC, two, limit("maxBodyBytes: 100", "Backend", "plain"))
    assert rule(made, 0).extensions == ()
    assert [one.type for one in rule(made, 1).extensions] == ["egressproxy.io/BodyLimit:v1"]


def test_no_limit_is_no_filter():
    assert rule(compiled(FORWARD, PLAIN, ROUTE, limit("maxBodyBytes: 0"))).extensions == ()


def test_backends_of_one_name_in_two_groups_are_counted_apart():
    rate = "  extensions: [{name: rate, type: QoSController, config: {requestsPerMinute: 5}}]\n"
    other = PLAIN.replace("egressproxy.io/", "gateway.networking.k8s.io/")
    to_other = ROUTE.replace("name: route", "name: other").replace("egressproxy.io", "gateway.networking.k8s.io")
    limits = "limits: {requests: [{per: Backend, limit: 5}], concurrency: [{per: Backend, limit: 5}]}"
    made = compiled(REVERSE, ROUTE, to_other, PLAIN + rate, other + rate, policy(limits))
    ours, theirs = (each.rules[0].backends[0].extensions for each in listener(made).http_routes)
    assert len(ours) == len(theirs) == 3
    assert not set(ours) & set(theirs)
