from __future__ import annotations

import pytest

from egressproxy.config.compile.attachment import intersect_hostnames
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


def test_a_route_without_hostnames_gets_the_listeners():
    made = compiled(TWO, PLAIN, with_parent("name: gw, sectionName: one"))
    assert listener(made, "one").http_routes[0].hostnames == ("*.one.example",)


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
        ("a.example", [], ("a.example",)),
        ("a.example", ["a.example", "b.example"], ("a.example",)),
        ("a.example", ["*.example"], ("a.example",)),
        ("*.example", ["a.example", "example"], ("a.example",)),
        ("*.example", ["*.a.example"], ("*.a.example",)),
        ("*.a.example", ["*.example"], ("*.a.example",)),
        ("*.example", ["*.example"], ("*.example",)),
        ("*.ample", ["a.example"], None),
        ("a.example", ["b.example"], None),
        ("example", ["*.example"], None),
    ],
)
def test_the_more_specific_hostname_is_what_both_have_in_common(
    ours: str, theirs: list[str], common: tuple[str, ...] | None
):
    assert intersect_hostnames(ours, theirs) == common
