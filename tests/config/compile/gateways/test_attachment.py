from __future__ import annotations

import pytest

from egressproxy.config.compile.gateways.attachment import common_hostnames
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_route,
    route,
    status,
)

TWO = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: one, port: 8081, protocol: HTTP, hostname: "*.one.example"}
  - {name: two, port: 8082, protocol: HTTP}
"""

TLS_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: dynamic}]}]
"""


def attached_to(text: str, gateway: str = TWO, *more: str) -> list[str]:
    made = compiled(gateway, PLAIN, text, *more)
    return [one.name for one in made.spec.listeners if one.http_routes]


def with_parent(parent: str, namespace: str = "default") -> str:
    text = ROUTE.replace("[{name: gw}]", f"[{{{parent}}}]").replace(
        "{name: route}", f"{{name: route, namespace: {namespace}}}"
    )
    return text.replace("name: plain", "name: plain, namespace: default")


def test_a_parent_ref_without_section_attaches_to_every_listener():
    assert attached_to(ROUTE) == ["one", "two"]


def test_a_section_name_picks_one_listener():
    assert attached_to(with_parent("name: gw, sectionName: two")) == ["two"]


def test_a_port_picks_the_listeners_on_it():
    assert attached_to(with_parent("name: gw, port: 8081")) == ["one"]


def test_a_section_that_does_not_exist_is_no_matching_parent():
    made = compiled(TWO, PLAIN, with_parent("name: gw, sectionName: three"))
    assert of_route(made, "Accepted")[:2] == ("False", "NoMatchingParent")
    assert "named three" in of_route(made, "Accepted")[2]


def test_routes_of_another_namespace_are_refused_by_default():
    made = compiled(TWO, PLAIN, with_parent("name: gw, namespace: default", "team"))
    assert of_route(made, "Accepted", "team/route")[:2] == ("False", "NotAllowedByListeners")


def test_routes_of_all_namespaces_are_admitted_where_the_listener_says_so():
    text = REVERSE.replace("protocol: HTTP}", "protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}")
    assert attached_to(with_parent("name: gw, namespace: default", "team"), text) == ["web"]


def test_a_selector_admits_the_namespaces_with_these_labels():
    selector = "{matchLabels: {team: a}}"
    text = REVERSE.replace(
        "protocol: HTTP}", f"protocol: HTTP, allowedRoutes: {{namespaces: {{from: Selector, selector: {selector}}}}}}}"
    )
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {team: a}}"
    wanted = with_parent("name: gw, namespace: default", "team")
    assert attached_to(wanted, text, namespace) == ["web"]
    assert attached_to(wanted, text, namespace.replace("team: a", "team: b")) == []


def test_every_namespace_has_its_name_as_a_label():
    selector = "{matchLabels: {kubernetes.io/metadata.name: team}}"
    text = REVERSE.replace(
        "protocol: HTTP}", f"protocol: HTTP, allowedRoutes: {{namespaces: {{from: Selector, selector: {selector}}}}}}}"
    )
    assert attached_to(with_parent("name: gw, namespace: default", "team"), text) == ["web"]


def test_a_tls_route_does_not_attach_to_an_http_listener():
    made = compiled(REVERSE, DYNAMIC, TLS_ROUTE)
    assert of_route(made, "Accepted", kind="TLSRoute")[:2] == ("False", "NotAllowedByListeners")


def test_tls_and_http_routes_both_attach_to_a_forward_proxy():
    made = compiled(FORWARD, DYNAMIC, PLAIN, TLS_ROUTE, ROUTE)
    assert [one.name for one in listener(made).tls_routes] == ["default/route"]
    assert [one.name for one in listener(made).http_routes] == ["default/route"]


def test_kinds_of_the_listener_narrow_what_attaches():
    text = FORWARD.replace("forward-proxy}", "forward-proxy, allowedRoutes: {kinds: [{kind: TLSRoute}]}}")
    made = compiled(text, DYNAMIC, PLAIN, TLS_ROUTE, ROUTE)
    assert of_route(made, "Accepted")[:2] == ("False", "NotAllowedByListeners")
    assert status(made, "Gateway", "default/gw")["listeners"][0]["supportedKinds"] == [
        {"group": "gateway.networking.k8s.io", "kind": "TLSRoute"}
    ]


def test_hostnames_outside_of_the_listeners_do_not_attach():
    text = ROUTE.replace("  rules:", "  hostnames: [b.other.example]\n  rules:").replace(
        "{name: gw}", "{name: gw, port: 8081}"
    )
    made = compiled(TWO, PLAIN, text)
    assert of_route(made, "Accepted")[:2] == ("False", "NoMatchingListenerHostname")


def test_a_route_without_hostnames_gets_every_host_of_the_listener():
    made = compiled(TWO, PLAIN, with_parent("name: gw, sectionName: one"))
    assert listener(made, "one").http_routes[0].hostnames == ()


def test_hostnames_are_kept_as_the_route_has_them_so_that_the_more_specific_route_goes_first():
    text = ROUTE.replace("  rules:", "  hostnames: ['*.example', '*.b.example', a.one.example]\n  rules:")
    made = compiled(TWO, PLAIN, text)
    assert listener(made, "one").http_routes[0].hostnames == ("*.example", "a.one.example")


def test_only_the_hostnames_in_common_are_served():
    text = ROUTE.replace("  rules:", "  hostnames: [b.other.example, b.one.example]\n  rules:")
    made = compiled(TWO.replace("two, port: 8082", "two, port: 8082, hostname: x.example"), PLAIN, text)
    assert listener(made, "one").http_routes[0].hostnames == ("b.one.example",)
    assert not listener(made, "two").http_routes


def test_attached_routes_are_counted_per_listener():
    made = compiled(TWO, PLAIN, ROUTE, with_parent("name: gw, port: 8082").replace("name: route", "name: second"))
    assert [one["attachedRoutes"] for one in status(made, "Gateway", "default/gw")["listeners"]] == [1, 2]


def test_a_parent_that_does_not_exist_is_a_warning_and_no_status():
    made = compiled(REVERSE, PLAIN, with_parent("name: nowhere"))
    (warning,) = made.warnings
    assert (warning.object, warning.field_path) == ("HTTPRoute default/route", "spec.parentRefs[0]")
    assert warning.message.startswith("Gateway default/nowhere does not exist")
    assert warning.remedy == "in this namespace there is gw"
    assert ("gateway.networking.k8s.io", "HTTPRoute", "default", "route") not in made.statuses


def test_a_route_without_parents_is_a_warning():
    made = compiled(REVERSE, PLAIN, ROUTE.replace("  parentRefs: [{name: gw}]\n", ""))
    (warning,) = made.warnings
    assert warning.message == "the route names no parentRefs and is not served"


def test_the_age_of_a_route_is_kept_for_precedence():
    made = compiled(
        REVERSE, PLAIN, ROUTE.replace("{name: route}", '{name: route, creationTimestamp: "2024-01-01T00:00:00Z"}')
    )
    assert route(made).created == "2024-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ("", [], ()),
        ("", ["a.example"], ("a.example",)),
        ("a.example", [], ()),
        ("a.example", ["a.example", "b.example"], ("a.example",)),
        ("a.example", ["*.example"], ("*.example",)),
        ("*.example", ["a.example", "example"], ("a.example",)),
        ("*.example", ["*.a.example"], ("*.a.example",)),
        ("*.a.example", ["*.example"], ("*.example",)),
        ("*.example", ["*.example"], ("*.example",)),
        ("*.ample", ["a.example"], None),
        ("a.example", ["b.example"], None),
        ("example", ["*.example"], None),
    ],
)
def test_hostnames_with_hosts_in_common_are_served(ours: str, theirs: list[str], common: tuple[str, ...] | None):
    assert common_hostnames(ours, theirs) == common


# --- routes that are in each other's way -----------------------------------------------------------------------------


def aged(text: str, name: str, year: int) -> str:
    return text.replace("{name: route}", f'{{name: {name}, creationTimestamp: "{year}-01-01T00:00:00Z"}}')


GRPC_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules: [{matches: [{method: {service: a.B}}]}]
"""
TCP_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]}]
"""


def hosts(text: str, *hostnames: str) -> str:
    return text.replace("  rules:", f"  hostnames: [{', '.join(hostnames)}]\n  rules:")


def test_of_an_http_route_and_a_grpc_route_with_hosts_in_common_the_older_one_is_accepted():
    made = compiled(REVERSE, PLAIN, aged(ROUTE, "young", 2025), aged(GRPC_ROUTE, "old", 2024))
    assert of_route(made, "Accepted", "default/old", "GRPCRoute")[0] == "True"
    verdict = of_route(made, "Accepted", "default/young")
    assert verdict[:2] == ("False", "HostnameConflict")
    assert "GRPCRoute default/old is older" in verdict[2]
    assert verdict[2].endswith("give this HTTPRoute hostnames that the other does not have, or another listener")
    assert status(made, "Gateway", "default/gw")["listeners"][0]["attachedRoutes"] == 1
    assert [one.name for one in listener(made).http_routes] == ["default/old"]


def test_http_and_grpc_routes_for_different_hosts_are_both_accepted():
    made = compiled(REVERSE, PLAIN, aged(hosts(ROUTE, "a.example"), "old", 2024), hosts(GRPC_ROUTE, "b.example"))
    assert [one.kind for one in listener(made).http_routes] == ["HTTPRoute", "GRPCRoute"]


def test_a_route_that_is_barred_from_one_listener_attaches_to_the_other():
    there = GRPC_ROUTE.replace("{name: gw}", "{name: gw, sectionName: one}")
    made = compiled(TWO, PLAIN, aged(there, "old", 2024), aged(ROUTE, "young", 2025))
    verdict = of_route(made, "Accepted", "default/young")
    assert verdict[0] == "True"
    assert "GRPCRoute default/old is older and has hosts in common with it on one" in verdict[2]
    assert [len(one.http_routes) for one in made.spec.listeners] == [1, 1]


def test_of_two_tcp_routes_at_a_listener_the_older_has_it_and_the_younger_is_told():
    made = compiled(
        REVERSE.replace("protocol: HTTP", "protocol: TCP"),
        PLAIN,
        aged(TCP_ROUTE, "a-young", 2025),
        aged(TCP_ROUTE, "b-old", 2024),
    )
    assert [one.name for one in listener(made).tcp_routes] == ["default/b-old", "default/a-young"]
    assert of_route(made, "egressproxy.io/Conflicted", "default/b-old", "TCPRoute") == ("", "", "")
    verdict = of_route(made, "egressproxy.io/Conflicted", "default/a-young", "TCPRoute")
    assert verdict[:2] == ("True", "OlderRoute")
    assert "TCPRoute default/b-old is older" in verdict[2]
    assert of_route(made, "Accepted", "default/a-young", "TCPRoute")[0] == "True"


def test_of_two_tls_routes_with_a_hostname_the_older_has_it():
    text = TLS_ROUTE.replace("name: dynamic", "name: plain")
    made = compiled(
        REVERSE.replace("protocol: HTTP", "protocol: TLS, tls: {mode: Passthrough}"),
        PLAIN,
        aged(text, "a-young", 2025).replace("[a.example]", "[a.example, b.example]"),
        aged(text, "b-old", 2024),
    )
    verdict = of_route(made, "egressproxy.io/Conflicted", "default/a-young", "TLSRoute")
    assert "the connections for a.example" in verdict[2]
