"""Backends of type Failover as a rule leads to them: endpoints, references, policies and status."""

from __future__ import annotations

import pytest

from egressproxy.ir.backend import Protocol
from egressproxy.ir.route import FailoverIR, WeightedBackend
from egressproxy.model.work import at_once
from egressproxy.operators.explain.outline import outline
from egressproxy.processes.packing import pack, unpacking
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    REVERSE,
    ROUTE,
    compiled,
    of_object,
    of_route,
    policy,
    rule,
)


def place(name: str, namespace: str = "default", more: str = "") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  destination: {{type: Fqdn, fqdn: {{hostname: {name}.example}}, ports: [{{number: 80, tls: {{mode: None}}}}]}}
  {more}
"""


def ref(name: str, more: str = "") -> str:
    return f"{{backendRef: {{group: egressproxy.io, kind: Backend, name: {name}{more}}}, priority: 1}}"


def failover(*endpoints: str, more: str = "", name: str = "plain", namespace: str = "default") -> str:
    """The Failover that ROUTE leads to."""
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  destination:
    type: Failover
    failover: {{endpoints: [{", ".join(endpoints)}]{more}}}
"""


def backends(*manifests: str, at: str = REVERSE) -> tuple[WeightedBackend, ...]:
    return rule(compiled(at, ROUTE, *manifests)).backends


def test_the_endpoints_are_backends_of_the_rule_with_their_priorities():
    first = ref("a").replace("priority: 1", "weight: 3")
    found = backends(failover(first, ref("b"), more=", firstByte: 2s"), place("a"), place("b"))
    spec = FailoverIR("default/plain", 0, 1, (429, 500, 502, 503, 529), 2.0, max_replay_bytes=1024 * 1024)
    assert [(each.backend and each.backend.name, each.weight, each.priority) for each in found] == [
        ("default/a", 3, 0), ("default/b", 1, 1),
    ]  # fmt: skip
    assert {each.failover for each in found} == {spec}


def test_it_is_packed_and_shown():
    made = compiled(REVERSE, ROUTE, failover(ref("a"), ref("b")), place("a"), place("b"))
    assert at_once(unpacking(pack(made.spec))) == made.spec
    shown = outline(made.spec)["HTTPRoute default/route rule 0 on default/gw/web"]["backendRefs"]
    assert "default/a, weight 1, priority 1 of Failover default/plain" in shown[0]


def test_the_status_of_a_failover_that_can_be_used():
    made = compiled(REVERSE, ROUTE, failover(ref("a")), place("a"))
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "True"
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "True"
    assert of_route(made, "ResolvedRefs")[0] == "True"


def test_an_endpoint_that_is_not_there_is_left_out_and_told():
    made = compiled(REVERSE, ROUTE, failover(ref("gone"), ref("a")), place("a"))
    state, reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert (state, reason) == ("False", "BackendNotFound")
    assert "spec.destination.failover.endpoints[0].backendRef: " in message
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "True"
    assert of_object(made, "Backend", "default/plain", "Degraded")[:2] == ("True", "EndpointsNotUsable")
    assert of_route(made, "ResolvedRefs")[0] == "True"
    assert "does not use an endpoint of default/plain: " in of_route(made, "Accepted")[2]
    assert [each.backend is not None for each in rule(made).backends] == [False, True]


def test_without_an_endpoint_that_can_be_used_the_route_says_so():
    made = compiled(REVERSE, ROUTE, failover(ref("gone")))
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "False"
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")


def test_endpoints_of_weight_0_serve_nothing():
    made = compiled(REVERSE, ROUTE, failover(ref("a").replace("priority: 1", "weight: 0")), place("a"))
    assert [each.error for each in rule(made).backends] == ["every endpoint of Backend default/plain has weight 0"]
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "False"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            failover(ref("a"), name="other"),
            "of type Failover, which only backendRefs of HTTPRoutes and GRPCRoutes may name",
        ),
        (
            failover(ref("plain"), name="other"),
            "of type Failover, which only backendRefs of HTTPRoutes and GRPCRoutes may name",
        ),
        (DYNAMIC.replace("name: dynamic", "name: other"), "has to be a fixed place (name a Backend of type Fqdn, Ip"),
    ],
)
def test_a_failover_does_not_lead_to_another_nor_round_nor_anywhere(other: str, message: str):
    made = compiled(REVERSE, ROUTE, failover(ref("other"), ref("a")), place("a"), other)
    assert message in of_object(made, "Backend", "default/plain", "ResolvedRefs")[2]
    assert [each.backend and each.backend.name for each in rule(made).backends] == [None, "default/a"]


def test_a_failover_that_names_itself_serves_nothing():
    made = compiled(REVERSE, ROUTE, failover(ref("plain")))
    assert [each.backend for each in rule(made).backends] == [None]


TLS_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: stream}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]
"""
MIRRORING = ROUTE.replace("name: route}", "name: mirroring}").replace("name: plain}", "name: a}") + (
    "    filters: [{type: RequestMirror, requestMirror: "
    "{backendRef: {group: egressproxy.io, kind: Backend, name: plain}}}]\n"
)


@pytest.mark.parametrize(
    ("text", "name", "kind"), [(TLS_ROUTE, "stream", "TLSRoute"), (MIRRORING, "mirroring", "HTTPRoute")]
)
def test_streams_and_mirrors_do_not_go_to_a_failover(text: str, name: str, kind: str):
    made = compiled(FORWARD, text, failover(ref("a")), place("a"))
    state, reason, message = of_route(made, "ResolvedRefs", f"default/{name}", kind)
    assert (state, reason) == ("False", "UnsupportedValue")
    assert "only backendRefs of HTTPRoutes and GRPCRoutes may name" in message


GRANT = """
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: %s}
spec:
  from: [{group: %s, kind: %s, namespace: %s}]
  to: [{group: egressproxy.io, kind: Backend}]
"""


def test_an_endpoint_in_another_namespace_needs_a_grant_for_the_failover():
    text = failover(ref("a", ", namespace: other"))
    (closed,) = backends(text, place("a", "other"))
    assert closed.backend is None
    assert "add a ReferenceGrant in namespace other from Backend (egressproxy.io)" in closed.error
    for_routes = GRANT % ("other", "gateway.networking.k8s.io", "HTTPRoute", "default")
    assert backends(text, place("a", "other"), for_routes)[0].backend is None
    granted = GRANT % ("other", "egressproxy.io", "Backend", "default")
    assert backends(text, place("a", "other"), granted)[0].backend is not None


def test_a_failover_in_another_namespace_needs_a_grant_for_the_route():
    route = ROUTE.replace("name: plain}", "name: plain, namespace: other}")
    text = (failover(ref("a"), namespace="other"), place("a", "other"))
    made = compiled(REVERSE, route, *text)
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "RefNotPermitted")
    assert [each.backend for each in rule(made).backends] == [None]
    grant = GRANT % ("other", "gateway.networking.k8s.io", "HTTPRoute", "default")
    assert rule(compiled(REVERSE, route, *text, grant)).backends[0].backend is not None


def test_a_region_rule_takes_the_endpoints_of_other_regions_out():
    manifests = (failover(ref("a"), ref("b")), place("a", more="region: us"), place("b", more="region: eu"))
    found = backends(*manifests, policy("regions: {allowed: [eu]}"))
    assert [each.backend and each.backend.name for each in found] == [None, "default/b"]
    on_failover = policy("regions: {allowed: [us]}", "Backend", "plain")
    found = backends(*manifests, on_failover)
    assert [each.backend and each.backend.name for each in found] == ["default/a", None]


def test_what_a_policy_denies_at_an_endpoint_or_at_the_failover_is_denied_in_the_rule():
    manifests = (failover(ref("a"), ref("b")), place("a"), place("b"))
    for target in ("a", "plain"):
        denied = policy("destinations: {deny: [{hostnames: [a.example]}]}", "Backend", target)
        made = rule(compiled(REVERSE, ROUTE, *manifests, denied))
        assert [each.hostnames for each in made.policy.destinations.deny] == [("a.example",)]


def test_each_endpoint_has_its_own_filters_and_those_of_the_failovers_policy():
    def header(name: str) -> str:
        return (
            f"[{{name: {name}, type: egressproxy.io/HeaderPolicy:v1, phase: backend-request, "
            f"config: {{request: {{set: [{{name: x-{name}, value: '1'}}]}}}}}}]"
        )

    found = backends(
        failover(ref("a"), ref("b")),
        place("a", more=f"extensions: {header('own')}"),
        place("b"),
        policy(f"extensions: {header('shared')}", "Backend", "plain"),
    )
    assert [sorted(each.name for each in one.extensions) for one in found] == [["own", "shared"], ["shared"]]


def test_a_policy_on_a_failover_has_found_its_target():
    made = compiled(REVERSE, ROUTE, failover(ref("a")), place("a"), policy("mode: Enforce", "Backend", "plain"))
    found = made.statuses
    (status,) = (value for key, value in found.items() if key[1] == "EgressPolicy")
    assert status["ancestors"][0]["conditions"][0]["status"] == "True"


def test_dns_settings_of_a_failover_in_another_namespace_do_not_decide_where_a_credential_goes():
    injector = (
        "extensions: [{name: key, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, config: "
        "{secretRef: {name: key, key: token}, header: Authorization, allowPlaintext: true}}]"
    )
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: key, namespace: other}\nstringData: {token: t}"
    found = backends(
        failover(ref("a", ", namespace: other")),
        place("a", "other", injector),
        secret,
        GRANT % ("other", "egressproxy.io", "Backend", "default"),
        policy("dns: {servers: [192.0.2.1]}", "Backend", "plain"),
    )
    assert found[0].backend is not None
    assert found[0].policy.dns.servers == ()


@pytest.mark.parametrize("protocol", ["HTTP", "HTTP11"])
def test_a_grpc_route_reaches_the_endpoints_that_carry_grpc(protocol: str):
    grpc = ROUTE.replace("HTTPRoute", "GRPCRoute")
    other = place("b").replace("number: 80", f"number: 80, protocol: {protocol}")
    made = compiled(REVERSE, grpc, failover(ref("a"), ref("b")), place("a"), other)
    assert of_route(made, "ResolvedRefs", kind="GRPCRoute")[0] == "True"
    first, second = rule(made).backends
    assert first.failover is not None
    assert first.backend is not None
    assert first.backend.protocol is Protocol.GRPC
    assert (second.backend is None) is (protocol == "HTTP11")
    none = compiled(REVERSE, grpc, failover(ref("b")), other)
    assert of_route(none, "ResolvedRefs", kind="GRPCRoute")[0] == str(protocol == "HTTP")
