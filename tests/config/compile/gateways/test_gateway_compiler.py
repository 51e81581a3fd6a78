from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.filters.catalog import Catalog
from tests.config.compile.kit import (
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_listener,
    of_object,
    of_route,
    said,
    status,
)
from tests.support.compiling import compile_valid


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


@pytest.mark.parametrize("controller", ["egressproxy.io/gateway-controller", "example.com/other"])
def test_classes_of_other_names_end_nothing_that_the_built_in_class_serves(controller: str):
    """In a cluster somebody else writes them."""
    other = f"""
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: mine}}
spec: {{controllerName: {controller}}}
"""
    assert listener(compiled(FORWARD, other)).gateway == "default/gw"


def test_a_class_that_is_not_there_is_told_with_those_that_are():
    ours = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
"""
    made = compiled(FORWARD.replace("gatewayClassName: egressproxy", "gatewayClassName: their"), ours)
    assert not made.spec.listeners
    warning, nothing = made.warnings
    assert warning.message == "there is no GatewayClass their: the Gateway is not served"
    expected = ("config.yaml", 6, 21, "write egressproxy or mine")
    assert (warning.file, warning.line, warning.column, warning.remedy) == expected
    assert nothing.message == "no listener is served: no client is answered"


def test_where_nothing_is_served_a_class_of_another_controller_is_told_at_its_gateway():
    others = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: egressproxy}
spec: {controllerName: egressproxy.io/gateway}
"""
    warning, nothing = compiled(FORWARD, others).warnings
    assert (warning.object, warning.field_path) == ("Gateway default/gw", "spec.gatewayClassName")
    assert (warning.line, warning.code, warning.severity) == (6, "GatewayClassOfOthers", Severity.UNSERVED)
    said = "GatewayClass egressproxy is of the controller egressproxy.io/gateway: the Gateway is not served"
    assert (warning.message, warning.remedy.startswith("write controllerName: egressproxy.io/gateway-controller")) == (
        said,
        True,
    )
    assert nothing.code == "NothingServed"
    beside = FORWARD.replace("{name: gw}", "{name: other}").replace("egressproxy\n", "mine\n").replace("3128", "3129")
    mine = others.replace("name: egressproxy", "name: mine").replace("io/gateway}", "io/gateway-controller}")
    assert not compiled(FORWARD, others, beside, mine).warnings  # manifests of several controllers


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


def test_fields_that_do_nothing_are_named_in_status():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", more="infrastructure: {labels: {a: b}}"))
    assert "infrastructure has nothing to be applied to" in of_object(made, "Gateway", "default/gw", "Accepted")[2]


# --- not accepted ----------------------------------------------------------------------------------------------------

SET = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
ADMITTING = REVERSE.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
PARAMETERS = "infrastructure: {parametersRef: {group: example.com, kind: Parameters, name: nowhere}}"


def of_set(made: Compiled, condition: str, name: str = "default/more") -> tuple[str, str]:
    return of_object(made, "ListenerSet", name, condition)[:2]


def test_parameters_of_a_gateway_are_invalid_since_none_are_known():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", more=PARAMETERS))
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "InvalidParameters")
    assert of_object(made, "Gateway", "default/gw", "Programmed")[0] == "False"
    assert not made.spec.listeners


def test_the_listener_sets_of_a_gateway_that_is_not_accepted_are_not_accepted_either():
    made = compiled(ADMITTING.replace("spec:", f"spec:\n  {PARAMETERS}", 1), SET)
    assert of_set(made, "Accepted") == ("False", "ParentNotAccepted")
    assert of_set(made, "Programmed") == ("False", "ParentNotProgrammed")
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 0
    assert not made.spec.listeners


def test_a_gateway_without_a_good_listener_of_its_own_takes_its_sets_along():
    made = compiled(ADMITTING.replace("protocol: HTTP", "protocol: example.com/none"), SET)
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "ListenersNotValid")
    assert of_set(made, "Accepted") == ("False", "ParentNotAccepted")
    assert not made.spec.listeners


def test_a_gateway_that_lost_all_of_its_ports_takes_none_for_its_sets():
    third = REVERSE.replace("{name: gw}", "{name: z}").replace("8080", "9000")
    second = ADMITTING.replace("{name: gw}", "{name: m}")
    made = compiled(REVERSE.replace("{name: gw}", "{name: a}"), second, SET.replace("gw", "m"), third)
    assert [one.gateway for one in made.spec.listeners] == ["default/a", "default/z"]


def test_a_route_at_a_listener_set_that_is_not_admitted_is_told_so():
    route = ROUTE.replace("{name: gw}", "{kind: ListenerSet, name: more}")
    made = compiled(REVERSE, SET, PLAIN, route)
    assert of_route(made, "Accepted")[:2] == ("False", "NoMatchingParent")
    assert "do not admit ListenerSets" in of_route(made, "Accepted")[2]


def test_a_listener_set_without_its_gateway_is_a_warning():
    (warning,) = compiled(REVERSE, SET.replace("name: gw", "name: gv")).warnings
    assert (warning.object, warning.field_path) == ("ListenerSet default/more", "spec.parentRef")
    assert warning.remedy == "in this namespace there is gw"


def test_a_listener_set_without_a_good_listener_is_neither_accepted_nor_programmed():
    made = compiled(ADMITTING, SET.replace("9000", "8080"))
    assert of_set(made, "Accepted") == ("False", "ListenersNotValid")
    assert of_set(made, "Programmed") == ("False", "ListenersNotValid")
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 0


def test_a_listener_set_with_one_good_listener_is_accepted_and_programmed():
    made = compiled(ADMITTING, SET.replace("[{", "[{name: bad, port: 8080, protocol: HTTP}, {"))
    assert of_set(made, "Accepted") == ("True", "ListenersNotValid")
    assert of_set(made, "Programmed") == ("True", "Programmed")
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 1


@pytest.mark.parametrize(
    ("listener_of_set", "reason"),
    [
        ("{name: extra, port: 8080, protocol: HTTP}", "HostnameConflict"),
        ("{name: extra, port: 8080, protocol: TCP}", "ProtocolConflict"),
    ],
)
def test_a_conflict_is_named_in_every_condition_of_a_sets_listener(listener_of_set: str, reason: str):
    made = compiled(ADMITTING, SET.replace("{name: extra, port: 9000, protocol: HTTP}", listener_of_set))
    (extra,) = status(made, "ListenerSet", "default/more")["listeners"]
    assert said(extra["conditions"], "Conflicted")[:2] == ("True", reason)
    assert said(extra["conditions"], "Accepted")[:2] == ("False", reason)
    assert said(extra["conditions"], "Programmed")[:2] == ("False", reason)
    assert of_listener(made, "Conflicted")[0] == "False"


def test_the_older_listener_set_wins_whatever_its_name():
    def aged(name: str, created: str) -> str:
        return SET.replace("{name: more}", f'{{name: {name}, creationTimestamp: "{created}"}}')

    made = compiled(ADMITTING, aged("a", "2024-02-01T00:00:00Z"), aged("b", "2024-01-01T00:00:00Z"))
    assert [one.name for one in made.spec.listeners] == ["web", "default/b/extra"]


def test_a_port_that_is_taken_is_named_by_programmed_too():
    text = gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 81, protocol: HTTP}", "younger")
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", "older"), text)
    assert of_listener(made, "Programmed", "a", "default/younger")[:2] == ("False", "PortUnavailable")
    assert of_listener(made, "Programmed", "b", "default/younger")[:2] == ("True", "Programmed")


# --- addresses -------------------------------------------------------------------------------------------------------

TWO_ADDRESSES = "addresses: [{value: 127.0.0.5}, {value: 192.0.2.1}]"


def without_192(*manifests: str) -> Compiled:
    """On a machine that has no address of 192.0.2.0/24."""

    def why_unusable(address: str) -> str:
        return "no such address" if address.startswith("192.0.2.") else ""

    return compiled(*manifests, why_unusable=why_unusable)


def test_an_address_that_cannot_be_bound_is_said_and_the_others_are_served():
    made = without_192(gateway("{name: a, port: 80, protocol: HTTP}", more=TWO_ADDRESSES))
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("True", "Accepted")
    conclusion = of_object(made, "Gateway", "default/gw", "Programmed")
    assert conclusion[:2] == ("False", "AddressNotUsable")
    assert "192.0.2.1 (no such address)" in conclusion[2]
    assert listener(made).addresses == ("127.0.0.5",)
    assert status(made, "Gateway", "default/gw")["addresses"] == [{"type": "IPAddress", "value": "127.0.0.5"}]
    assert of_listener(made, "Programmed")[0] == "True"


def test_a_gateway_without_any_usable_address_is_closed_and_the_others_are_served():
    text = gateway("{name: a, port: 80, protocol: HTTP}", "lost", "addresses: [{value: 192.0.2.1}]")
    made = without_192(text, gateway("{name: a, port: 80, protocol: HTTP}"))
    assert [one.gateway for one in made.spec.listeners] == ["default/gw"]
    assert of_object(made, "Gateway", "default/lost", "Accepted")[:2] == ("True", "Accepted")
    assert of_object(made, "Gateway", "default/lost", "Programmed")[:2] == ("False", "AddressNotUsable")
    assert of_listener(made, "Accepted", gateway="default/lost")[0] == "True"
    assert of_listener(made, "Programmed", gateway="default/lost")[:2] == ("False", "AddressNotUsable")


def test_the_sets_of_a_gateway_without_a_usable_address_are_accepted_and_not_programmed():
    made = without_192(ADMITTING.replace("spec:", "spec:\n  addresses: [{value: 192.0.2.1}]", 1), SET)
    assert of_set(made, "Accepted") == ("True", "Accepted")
    assert of_set(made, "Programmed") == ("False", "ParentNotProgrammed")


def test_an_address_without_a_value_is_chosen_by_the_process():
    made = compiled(gateway("{name: a, port: 80, protocol: HTTP}", more="addresses: [{type: IPAddress}]"))
    assert listener(made).addresses == ("127.0.0.1",)
    assert of_object(made, "Gateway", "default/gw", "Programmed")[0] == "True"


def test_gateways_on_one_port_get_an_address_each_from_a_network():
    texts = [gateway("{name: a, port: 80, protocol: HTTP}", name) for name in ("one", "two", "three")]
    made = compiled(*texts, bind=("127.0.1.0/24",))
    served = {one.gateway: one.addresses for one in made.spec.listeners}
    assert len(set(served.values())) == 3
    for name, addresses in served.items():
        assert [one["value"] for one in status(made, "Gateway", name)["addresses"]] == list(addresses)
    alone = compiled(texts[0], bind=("127.0.1.0/24",))
    assert listener(alone).addresses == served["default/one"]


def test_where_no_address_is_left_none_is_assigned():
    texts = [gateway("{name: a, port: 80, protocol: HTTP}", name) for name in ("one", "two")]
    made = compiled(*texts, bind=("127.0.1.7/32",))
    assert [one.gateway for one in made.spec.listeners] == ["default/one"]
    assert of_object(made, "Gateway", "default/two", "Programmed")[:2] == ("False", "AddressNotAssigned")
    assert status(made, "Gateway", "default/two")["addresses"] == []


# --- generations -----------------------------------------------------------------------------------------------------


def test_every_condition_of_a_gateway_its_listeners_and_sets_has_the_generation_of_its_object():
    first = compiled(ADMITTING, SET, PLAIN, ROUTE)
    made = compiled(ADMITTING.replace("8080", "8081"), SET.replace("9000", "9001"), PLAIN, ROUTE, previous=first)
    for kind, name, generation in (("Gateway", "gw", 2), ("ListenerSet", "more", 2), ("HTTPRoute", "route", 1)):
        found = status(made, kind, f"default/{name}")
        parts = [found, *found.get("listeners", ()), *found.get("parents", ())]
        seen = {condition["observedGeneration"] for part in parts for condition in part.get("conditions", ())}
        assert seen == {generation}


# --- routability (GEP-5093) ------------------------------------------------------------------------------------------
def routed(*addresses: str, has_service: bool = False) -> Compiled:
    """A Gateway with these `spec.addresses`."""
    written = f"addresses: [{', '.join(addresses)}]\n  listeners:"
    resources = load_text(REVERSE.replace("listeners:", written), "config.yaml")
    return compile_valid(resources, Catalog(), Defaults(has_service=has_service))


def assigned(made: Compiled) -> tuple[str, str]:
    return of_object(made, "Gateway", "default/gw", "AddressesAssigned")[:2]


def test_an_external_address_is_bound_and_reported_as_that():
    made = routed("{value: 127.0.0.1, routability: External}")
    assert assigned(made) == ("True", "Assigned")
    assert status(made, "Gateway", "default/gw")["addresses"] == [
        {"type": "IPAddress", "value": "127.0.0.1", "routability": "External"}
    ]


def test_without_a_scope_nothing_is_said_of_it():
    made = routed("{value: 127.0.0.1}")
    assert assigned(made) == ("", "")
    assert status(made, "Gateway", "default/gw")["addresses"] == [{"type": "IPAddress", "value": "127.0.0.1"}]


def test_a_cluster_address_is_that_of_a_service_in_front():
    made = routed("{routability: Cluster}", has_service=True)
    assert assigned(made) == ("True", "Assigned")
    assert [one.addresses for one in made.spec.listeners] == [("127.0.0.1",)]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("{routability: Cluster}", "--publish-service"),
        ("{routability: Cluster, value: 10.96.0.1}", "leave value out"),
        ("{routability: example.com/CorpWan}", "is not known here"),
        ("{type: egressproxy.io/UnixSocket, value: 'unix:///run/a.sock', routability: External}", "this machine alone"),
    ],
)
def test_an_address_is_never_given_another_scope(address: str, why: str):
    alone = routed(address)
    assert alone.spec.listeners == ()
    assert assigned(alone) == ("False", "NotAssigned")
    assert why in of_object(alone, "Gateway", "default/gw", "AddressesAssigned")[2]
    assert of_object(alone, "Gateway", "default/gw", "Programmed")[:2] == ("False", "AddressNotAssigned")
    beside = routed(address, "{value: 127.0.0.1}")
    assert [one.addresses for one in beside.spec.listeners] == [("127.0.0.1",)]
    assert assigned(beside) == ("False", "PartiallyAssigned")
    assert of_object(beside, "Gateway", "default/gw", "Programmed")[0] == "True"


@pytest.mark.parametrize("scope", ["Internal", "''", "example.com/", "/x", "gateway.networking.k8s.io/Cluster"])
def test_a_scope_that_nobody_may_have_is_a_load_error(scope: str):
    with pytest.raises(ConfigError, match="no routability"):
        routed(f"{{routability: {scope}}}")
