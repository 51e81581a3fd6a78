from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.policy import Mode, PolicyIR
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_policy,
    policy,
    rule,
    said,
    status,
)
from tests.support.compiling import compile_valid

OLDER = 'creationTimestamp: "2024-01-01T00:00:00Z"'
YOUNGER = 'creationTimestamp: "2025-01-01T00:00:00Z"'


def allowed(spec: PolicyIR) -> list[list[str]]:
    return [[name for entry in group for name in entry.hostnames] for group in spec.destinations.allow]


def test_a_policy_can_name_one_rule():
    named = ROUTE.replace("- backendRefs", "- name: first\n    backendRefs")
    section = policy("mode: Open", "HTTPRoute", "route").replace("name: route}", "name: route, sectionName: first}")
    made = compiled(FORWARD, PLAIN, named, section)
    assert rule(made).policy.mode is Mode.OPEN
    assert of_policy(made, "Accepted")[0] == "True"


def test_places_without_policies_of_their_own_share_one_value():
    made = compiled(FORWARD, PLAIN, ROUTE, policy("mode: Report"))
    assert rule(made).policy is rule(made).backends[0].policy


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            "limits: {concurrency: [{per: Route, limit: 5}], store: {type: Redis, backendRef: {name: r, port: 6379}}}",
            "limits.concurrency",
        ),
        ("dns: {servers: ['https://dns.example/q', 10.0.0.53]}", "dns.servers"),
    ],
)
def test_a_field_that_does_nothing_is_named_in_status(sections: str, named: str):
    made = compiled(FORWARD, policy(sections))
    status, reason, message = of_policy(made, "Accepted")
    assert (status, reason) == ("True", "Accepted")
    assert named in message


def test_connection_limits_on_a_route_are_named_as_idle():
    made = compiled(FORWARD, PLAIN, ROUTE, policy("limits: {tunnels: 3}", "HTTPRoute", "route"))
    message = of_policy(made, "Accepted")[2]
    assert message.endswith("limits.tunnels does nothing here: write it in a policy of a Gateway.")


def test_more_attempts_than_there_are_are_named():
    made = compiled(FORWARD, policy("traffic: {retries: {attempts: 101}}"))
    assert "traffic.retries: attempts 101 counts as 100, the most that there are." in of_policy(made, "Accepted")[2]


def test_a_target_that_does_not_exist_is_not_found():
    made = compiled(FORWARD, policy("mode: Open", name="other"))
    assert of_policy(made, "Accepted")[:2] == ("False", "TargetNotFound")
    assert listener(made).policy.mode is Mode.ENFORCE


@pytest.mark.parametrize(
    ("kind", "said"), [("Gatewayy", "did you mean Gateway?"), ("Pod", "targets are of kind Gateway, ListenerSet,")]
)
def test_a_target_of_a_kind_that_is_none_is_told_which_there_are(kind: str, said: str):
    made = compiled(FORWARD, policy("mode: Open").replace("kind: Gateway", f"kind: {kind}"))
    assert f"there is no {kind} default/gw ({said}" in of_policy(made, "Accepted")[2]


def test_a_target_in_the_core_group_is_not_found_and_the_remedy_is_said():
    made = compiled(FORWARD, policy("mode: Open").replace("group: gateway.networking.k8s.io", "group: ''"))
    assert of_policy(made, "Accepted")[:2] == ("False", "TargetNotFound")
    assert "is there: write group: gateway.networking.k8s.io)" in of_policy(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            policy("mode: Open", name="gwx"),
            "there is no Gateway default/gwx (did you mean gw?); nothing that this policy",
        ),
        (
            policy("mode: Open", meta="namespace: agents"),
            "there is no Gateway agents/gw (default/gw is in another name",
        ),
        (
            policy("mode: Open").replace("name: gw}", "name: gw, sectionName: foward}"),
            "Gateway default/gw has no section foward (did you mean forward?)",
        ),
        (policy("mode: Open", "HTTPRoute", "a"), "there is no HTTPRoute default/a; nothing"),
    ],
)
def test_a_target_that_is_not_found_says_what_was_meant_and_what_follows(text: str, message: str):
    name = "agents/policy" if "namespace: agents" in text else "default/policy"
    assert of_policy(compiled(FORWARD, text), "Accepted", name)[2].startswith(message)


def test_a_gateway_of_another_class_is_there_and_not_served():
    made = compiled(FORWARD.replace("gatewayClassName: egressproxy", "gatewayClassName: istio"), policy("mode: Open"))
    assert "Gateway default/gw is not served here" in of_policy(made, "Accepted")[2]


def test_a_policy_of_another_namespace_does_not_reach_the_gateway():
    made = compiled(FORWARD, policy("mode: Open", meta="namespace: elsewhere"))
    assert listener(made).policy.mode is Mode.ENFORCE


# --- every setting has one winner, and the loser is told who ---------------------------------------------------------

SETTINGS = [
    ("mode: {}", "Report", "Open", "mode"),
    ("dns: {{servers: [{}]}}", "10.0.0.1", "10.0.0.2", "dns.servers"),
    ("dns: {{timeout: {}}}", "1s", "2s", "dns.timeout"),
    ("dns: {{hosts: {{a.example: [{}]}}}}", "10.0.0.1", "10.0.0.2", "dns.hosts"),
    ("dns: {{minTTL: {}}}", "1s", "2s", "dns.minTTL"),
    ("dns: {{maxTTL: {}}}", "10s", "20s", "dns.maxTTL"),
    ("dns: {{staleTTL: {}}}", "1s", "2s", "dns.staleTTL"),
    ("dns: {{family: {}}}", "IPv4", "IPv6", "dns.family"),
    *(
        (f"traffic: {{{{timeouts: {{{{{name}: {{}}}}}}}}}}", "1s", "2s", f"traffic.timeouts.{name}")
        for name in ("connect", "tlsHandshake", "requestHeaders", "request", "backendRequest", "idle", "tunnelIdle")
    ),
    ("traffic: {{connections: {{maxAge: {}}}}}", "1s", "2s", "traffic.connections.maxAge"),
    ("traffic: {{connections: {{maxRequests: {}}}}}", "1", "2", "traffic.connections.maxRequests"),
    ("traffic: {{http2: {{extendedConnect: {}}}}}", "true", "false", "traffic.http2.extendedConnect"),
    ("traffic: {{halfClose: {}}}", "true", "false", "traffic.halfClose"),
]


@pytest.mark.parametrize(("text", "one", "other", "name"), SETTINGS, ids=[case[3] for case in SETTINGS])
def test_of_two_policies_on_one_target_each_setting_has_one_winner(text: str, one: str, other: str, name: str):
    made = compiled(
        FORWARD,
        policy(text.format(one), policy_name="a", meta=YOUNGER),
        policy(text.format(other), policy_name="b", meta=OLDER),
    )
    verdict = of_policy(made, "Conflicted", "default/a")
    assert verdict[:2] == ("True", "Conflicted")
    assert f"{name} is that of EgressPolicy default/b" in verdict[2]
    for condition in ("Conflicted", "Overridden"):
        assert of_policy(made, condition, "default/b") == ("", "", "")


@pytest.mark.parametrize(("text", "one", "other", "name"), SETTINGS, ids=[case[3] for case in SETTINGS])
def test_a_route_overrides_each_setting_of_its_gateway(text: str, one: str, other: str, name: str):
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy(text.format(one), policy_name="a", meta=OLDER),
        policy(text.format(other), "HTTPRoute", "route", policy_name="b"),
    )
    verdict = of_policy(made, "Overridden", "default/a")
    if f"{name} does nothing here" in of_policy(made, "Accepted", "default/b")[2]:
        assert name in ("traffic.timeouts.requestHeaders", "traffic.http2.extendedConnect")
        assert verdict == ("", "", "")
        return
    assert verdict[:2] == ("True", "Overridden")
    assert f"{name} is that of EgressPolicy default/b for HTTPRoute default/route" in verdict[2]
    assert of_policy(made, "Conflicted", "default/a") == ("", "", "")
    assert of_policy(made, "Overridden", "default/b") == ("", "", "")


DYNAMIC_PLAIN = DYNAMIC.replace("name: dynamic", "name: plain")
OF_ENDPOINTS = [
    ("traffic: {{loadBalancer: {{type: {}}}}}", "LeastRequest", "Random", "traffic.loadBalancer"),
    ("traffic: {{retries: {{attempts: {}}}}}", "2", "3", "traffic.retries"),
    ("traffic: {{hedging: {{hedgingDelay: {}}}}}", "100ms", "200ms", "traffic.hedging"),
]


@pytest.mark.parametrize(("text", "one", "other", "name"), [*SETTINGS, *OF_ENDPOINTS])
@pytest.mark.parametrize("backend", [PLAIN, DYNAMIC_PLAIN], ids=["plain", "dynamic"])
@pytest.mark.parametrize("place", ["Gateway", "HTTPRoute", "Backend"])
@pytest.mark.parametrize("narrow", ["HTTPRoute", "Backend"])
def test_what_does_nothing_overrides_nothing(
    text: str, one: str, other: str, name: str, backend: str, place: str, narrow: str
):
    names = {"Gateway": "gw", "HTTPRoute": "route", "Backend": "plain"}
    made = compiled(
        FORWARD, backend, ROUTE,
        policy(text.format(one), place, names[place], policy_name="a", meta=YOUNGER),
        policy(text.format(other), narrow, names[narrow], policy_name="b", meta=OLDER),
    )  # fmt: skip
    told = [of_policy(made, kind, f"default/{each}")[2] for each in "ab" for kind in ("Conflicted", "Overridden")]
    does_nothing = [
        each for each in "ab" if f"{name} does nothing" in of_policy(made, "Accepted", f"default/{each}")[2]
    ]
    assert any(told) is not bool(does_nothing), (told, does_nothing)


def test_what_does_nothing_for_a_parent_conflicts_with_nothing():
    parent = PLAIN.replace("name: plain", "name: corp")
    behind = PLAIN.replace("destination:", "parent: {name: corp}\n  destination:")
    for name, text, one, other in (
        ("corp", "mode: {}", "Report", "Open"),
        ("plain", "parent: {{name: {}}}", "corp", "plain"),
    ):
        made = compiled(
            FORWARD, parent, behind, ROUTE,
            policy(text.format(one), "Backend", name, policy_name="a", meta=YOUNGER),
            policy(text.format(other), "Backend", name, policy_name="b", meta=OLDER),
        )  # fmt: skip
        assert "does nothing here" in of_policy(made, "Accepted", "default/a")[2]
        assert of_policy(made, "Conflicted", "default/a") == ("", "", "")


def test_a_conflict_is_told_where_nothing_is_served_too():
    made = compiled(
        FORWARD,
        PLAIN,
        policy("mode: Report", "Backend", "plain", policy_name="a", meta=YOUNGER),
        policy("mode: Open", "Backend", "plain", policy_name="b", meta=OLDER),
    )
    assert "mode is that of EgressPolicy default/b" in of_policy(made, "Conflicted", "default/a")[2]


@pytest.mark.parametrize(
    "text",
    [
        "destinations: {{deny: [{{hostnames: [{}.example]}}]}}",
        "limits: {{connections: {}}}",
        "regions: {{allowed: [r{}]}}",
        "addresses: {{allow: [{{cidrs: [10.0.{}.0/24]}}]}}",
    ],
)
def test_restrictions_add_up_and_conflict_with_nothing(text: str):
    made = compiled(FORWARD, policy(text.format(1), policy_name="a"), policy(text.format(2), policy_name="b"))
    for name in "ab":
        for condition in ("Conflicted", "Overridden"):
            assert of_policy(made, condition, f"default/{name}") == ("", "", "")


def test_every_target_of_a_policy_has_conditions_of_its_own():
    both = policy("mode: Report", policy_name="a", meta=YOUNGER).replace(
        "targetRefs: [", "targetRefs: [{group: egressproxy.io, kind: Backend, name: plain}, "
    )
    made = compiled(FORWARD, PLAIN, both, policy("mode: Open", policy_name="b", meta=OLDER))
    first, second = status(made, "EgressPolicy", "default/a")["ancestors"]
    assert said(first["conditions"], "Conflicted") == ("", "", "")
    assert said(second["conditions"], "Conflicted")[0] == "True"
    assert [part["ancestorRef"]["kind"] for part in (first, second)] == ["Backend", "Gateway"]


def test_a_policy_for_a_port_of_a_dynamic_backend_holds_there_and_at_no_other():
    ports = "ports: [{number: 80, tls: {mode: None}}, {number: 8443, tls: {mode: Simple}}]"
    backend = DYNAMIC.replace("name: dynamic", "name: plain").replace("type: Dynamic", f"type: Dynamic, {ports}")
    routes = [ROUTE.replace("name: route", f"name: r{n}").replace("name: plain", f"name: plain, port: {n}")
              for n in (80, 8443)]  # fmt: skip
    closed = policy("destinations: {deny: [{hostnames: [a.example]}]}", "Backend", "plain")
    made = compiled(REVERSE, backend, *routes, closed.replace("name: plain}", 'name: plain, sectionName: "8443"}'))
    denied = [bool(one.rules[0].backends[0].policy.destinations.deny) for one in listener(made).http_routes]
    assert denied == [False, True]
    assert of_policy(made, "Accepted")[0] == "True"


@pytest.mark.parametrize(
    ("section", "kind", "name", "said"),
    [
        ("traffic: {http2: {extendedConnect: true}}", "HTTPRoute", "route", "http2.extendedConnect does nothing here"),
        ("traffic: {halfClose: true}", "Backend", "plain", "traffic.halfClose does nothing here"),
        (
            "traffic: {timeouts: {requestHeaders: 1s}}",
            "HTTPRoute",
            "route",
            "timeouts.requestHeaders does nothing here",
        ),
        (
            "traffic: {timeouts: {request: 1s, tunnelIdle: 1s}}",
            "Backend",
            "plain",
            "traffic.timeouts.tunnelIdle do nothing",
        ),
        (
            "destinations: {deny: [{hostnames: [x.example], sni: Any}]}",
            "Gateway",
            "gw",
            "sni of destinations.deny does",
        ),
        (
            "tls: {minVersion: '1.3'}",
            "Backend",
            "plain",
            "tls does nothing here: Backend default/plain is reached with",
        ),
        (
            "limits: {store: {type: Memory, secretRef: {name: s}}}",
            "Gateway",
            "gw",
            "backendRef and secretRef of limits.store do nothing with type Memory",
        ),
        (
            "nameServer: {addresses: Gateway}",
            "Backend",
            "plain",
            "nameServer does nothing here: write it in a policy of a Gateway",
        ),
        (
            "subjects: [{namespace: a}]\nnameServer: {queries: {limit: 1}}",
            "Gateway",
            "gw",
            "nameServer.queries does nothing with subjects",
        ),
        (
            "subjects: [{namespace: a}]\nlimits: {connections: 1, tunnels: 2}\n"
            "traffic: {timeouts: {requestHeaders: 1s}, http2: {extendedConnect: true}}",
            "Gateway",
            "gw",
            "limits.connections, limits.tunnels, traffic.timeouts.requestHeaders, traffic.http2.extendedConnect do "
            "nothing with subjects",
        ),
    ],
)
def test_what_is_not_done_where_it_is_written_is_said_and_warned_of(section: str, kind: str, name: str, said: str):
    resources = load_text("\n---\n".join((FORWARD, PLAIN, ROUTE, policy(section, kind, name))), "config.yaml")
    made = compile_valid(resources, Catalog(), Defaults())
    assert said in of_policy(made, "Accepted")[2]
    assert any(
        said in each.message and each.object == "EgressPolicy default/policy"
        for each in status_warnings(resources, made)
    )


@pytest.mark.parametrize(("kind", "name"), [("Gateway", "gw"), ("ListenerSet", "more")])
def test_sizes_and_times_of_connections_hold_for_gateways_and_listener_sets(kind: str, name: str):
    owner = FORWARD.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    more = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
    made = compiled(
        owner, more, policy("limits: {maxFields: 7}\ntraffic: {timeouts: {requestHeaders: 1s}}", kind, name)
    )
    assert any(one.policy.limits.max_fields == 7 for one in made.spec.listeners)
    assert "nothing" not in of_policy(made, "Accepted")[2]
