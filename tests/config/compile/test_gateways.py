from __future__ import annotations

from tests.config.compile.kit import (
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_listener,
    of_object,
    said,
    status,
)


def gateway(listeners: str, name: str = "gw", more: str = "") -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}}}
spec:
  gatewayClassName: egressproxy
  {more}
  listeners: [{listeners}]
"""


def test_without_addresses_a_gateway_binds_where_the_process_was_told_to():
    assert listener(compiled(FORWARD, bind=("0.0.0.0", "::"))).addresses == ("0.0.0.0", "::")


def test_addresses_of_the_gateway_go_before_the_process():
    text = gateway("{name: a, port: 80, protocol: HTTP}", more="addresses: [{value: 127.0.0.5}]")
    assert listener(compiled(text, bind=("0.0.0.0",))).addresses == ("127.0.0.5",)


def test_an_address_that_is_a_hostname_keeps_the_gateway_closed():
    text = gateway("{name: a, port: 80, protocol: HTTP}", more="addresses: [{type: Hostname, value: a.example}]")
    made = compiled(text)
    assert not made.spec.listeners
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "UnsupportedAddress")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[0] == "False"


def test_a_gateway_of_another_controller_is_left_alone():
    other = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: egressproxy}
spec: {controllerName: example.com/other}
"""
    made = compiled(FORWARD, other)
    assert not made.spec.listeners
    assert not made.statuses


def test_a_class_with_our_controller_name_is_ours_and_accepted():
    ours = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
"""
    made = compiled(FORWARD.replace("gatewayClassName: egressproxy", "gatewayClassName: mine"), ours)
    assert listener(made).gateway == "default/gw"
    assert of_object(made, "GatewayClass", "mine", "Accepted")[0] == "True"
    features = [feature["name"] for feature in status(made, "GatewayClass", "mine")["supportedFeatures"]]
    assert "HTTPRoute" in features
    assert features == sorted(features)


def test_the_built_in_class_ends_where_classes_are_written():
    ours = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
"""
    made = compiled(FORWARD, ours)
    assert not made.spec.listeners
    warning, nothing = made.warnings
    assert warning.message == "there is no GatewayClass egressproxy: the Gateway is not served"
    assert (warning.file, warning.line, warning.column, warning.remedy) == ("config.yaml", 6, 21, "write mine")
    assert nothing.message == "no listener is served: no client is answered"


def test_a_configuration_that_serves_nothing_warns_of_it():
    (warning,) = compiled(PLAIN).warnings
    assert str(warning).startswith("no listener is served: no client is answered (add a Gateway")
    assert not compiled(FORWARD).warnings


def test_another_class_is_told_with_the_one_to_write():
    warning, _ = compiled(FORWARD.replace("gatewayClassName: egressproxy", "gatewayClassName: istio")).warnings
    assert (warning.object, warning.field_path) == ("Gateway default/gw", "spec.gatewayClassName")
    assert warning.remedy == "write egressproxy"


def test_a_gateway_without_any_good_listener_is_not_accepted():
    made = compiled(gateway("{name: b, port: 81, protocol: example.com/udp}"))
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "ListenersNotValid")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[:2] == ("False", "Invalid")


def test_the_younger_gateway_loses_a_port_that_is_taken():
    older = gateway("{name: a, port: 80, protocol: HTTP}", "older").replace(
        "{name: older}", '{name: older, creationTimestamp: "2024-01-01T00:00:00Z"}'
    )
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", "a-first-by-name"), older)
    assert [one.gateway for one in made.spec.listeners] == ["default/older"]
    assert of_listener(made, "Accepted", gateway="default/a-first-by-name")[:2] == ("False", "PortUnavailable")


def test_every_address_overlaps_a_wildcard():
    text = gateway("{name: a, port: 80, protocol: HTTP}", "b", "addresses: [{value: 0.0.0.0}]")
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", "a"), text)
    assert [one.gateway for one in made.spec.listeners] == ["default/a"]


def test_a_listener_set_adds_listeners_where_the_gateway_admits_it():
    added = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
    refused = compiled(REVERSE, added)
    assert [one.name for one in refused.spec.listeners] == ["web"]
    assert of_object(refused, "ListenerSet", "default/more", "Accepted")[:2] == ("False", "NotAllowed")
    admitting = REVERSE.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    made = compiled(admitting, added)
    assert [one.name for one in made.spec.listeners] == ["web", "default/more/extra"]
    assert of_object(made, "ListenerSet", "default/more", "Programmed")[0] == "True"
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 1
    route = ROUTE.replace("{name: gw}", "{kind: ListenerSet, name: more}")
    assert [bool(one.http_routes) for one in compiled(admitting, added, PLAIN, route).spec.listeners] == [False, True]


def test_a_listener_set_loses_a_conflict_against_its_gateway():
    added = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 8080, protocol: HTTP}]
"""
    admitting = REVERSE.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    made = compiled(admitting, added)
    assert [one.name for one in made.spec.listeners] == ["web"]
    (extra,) = status(made, "ListenerSet", "default/more")["listeners"]
    assert said(extra["conditions"], "Conflicted")[:2] == ("True", "HostnameConflict")


def test_fields_that_do_nothing_are_named_in_status():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", more="infrastructure: {labels: {a: b}}"))
    assert "infrastructure does nothing" in of_object(made, "Gateway", "default/gw", "Accepted")[2]
