"""Parameters of a GatewayClass, filter types of an external catalogue, and whose Gateways are taken."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.reading.cluster_objects import cluster_objects
from egressproxy.config.reading.load import ResourceSet, load_text
from egressproxy.filters.catalog import Catalog
from tests.config.compile.kit import FORWARD, compiled, listener, of_object

REF = 'group: "", kind: ConfigMap, namespace: infra, name: parameters'
TYPE = "acme.example.com/Scanner:v1"
SCANNER = {
    "type": TYPE, "summary": "Scans.", "phases": ["request-body"], "schema": "scanner.json", "support": "extended",
    "processor": {
        "protocol": "Webhook",
        "backendRefs": [{"group": "egressproxy.io", "kind": "Backend", "namespace": "infra", "name": "scanner"}],
    },
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}}, "additionalProperties": False}


def gateway_class(ref: str = REF) -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: egressproxy}}
spec: {{controllerName: egressproxy.io/gateway-controller, parametersRef: {{{ref}}}}}
"""


def config_map(name: str = "parameters", **data: str) -> str:
    entries = {key.replace("_json", ".json"): text for key, text in data.items()}
    value = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "infra"}, "data": entries}
    return json.dumps(value)


def catalogue(*types: Any) -> str:
    return json.dumps({"types": types})


def test_gateways_without_addresses_bind_those_of_their_class():
    parameters = config_map(addresses="127.0.0.5, ::1")
    made = compiled(FORWARD, gateway_class(), parameters)
    assert listener(made).addresses == ("127.0.0.5", "::1")
    own = FORWARD + "  addresses: [{type: IPAddress, value: 127.0.0.9}]\n"
    assert listener(compiled(own, gateway_class(), parameters)).addresses == ("127.0.0.9",)
    two = FORWARD.replace("name: gw", "name: other")
    from_network = compiled(FORWARD, two, gateway_class(), config_map(addresses="127.1.0.0/16"))
    found = {address for each in from_network.spec.listeners for address in each.addresses}
    assert len(found) == 2
    assert all(address.startswith("127.1.") for address in found)


def test_an_address_of_the_class_that_this_machine_lacks_is_told():
    made = compiled(
        FORWARD, gateway_class(), config_map(addresses="192.0.2.1"), why_unusable=lambda _: "this machine lacks it"
    )
    assert not made.spec.listeners
    said = of_object(made, "Gateway", "default/gw", "Programmed")
    assert said[:2] == ("False", "AddressNotUsable")
    assert "the addresses of its GatewayClass" in said[2]


@pytest.mark.parametrize(
    ("ref", "manifests", "told"),
    [
        ("group: example.com, kind: Parameters, name: p", (), "Parameters.example.com is not supported"),
        ('group: "", kind: Secret, namespace: infra, name: parameters', (), "Secret is not supported"),
        ('group: "", kind: ConfigMap, name: parameters', (), "write its namespace"),
        (REF, (), "ConfigMap infra/parameters does not exist"),
        (REF, (config_map(adresses="127.0.0.1"),), "unknown entry adresses"),
        (REF, (config_map(addresses="localhost"),), "localhost is no IP address"),
        (REF, (config_map(addresses="10.0.0.1/8"),), "10.0.0.1/8 is no IP address"),
        (REF, (config_map(filterCatalog="catalogue"),), "catalogue is not NAMESPACE/NAME"),
        (REF, (config_map(filterCatalog="infra/none"),), "ConfigMap infra/none does not exist"),
        (REF, (config_map(filterCatalog="infra/parameters"),), "has no entry catalog.json"),
        (REF, (config_map(catalog_json="{"),), "catalog.json is no JSON"),
        (REF, (config_map(catalog_json="[]"),), "types is no list"),
        (REF, (config_map(catalog_json=catalogue({})),), "types[0] has no type"),
        (REF, (config_map(catalog_json=catalogue({**SCANNER, "phases": ["x"]})),), "types[0].phases[0]"),
    ],
)
def test_parameters_that_cannot_be_used_close_the_gateways_of_the_class(
    ref: str, manifests: tuple[str, ...], told: str
):
    made = compiled(FORWARD, gateway_class(ref), *manifests)
    assert not made.spec.listeners
    status, reason, message = of_object(made, "GatewayClass", "egressproxy", "Accepted")
    assert (status, reason) == ("False", "InvalidParameters")
    assert told in message
    assert of_object(made, "Gateway", "default/gw", "Accepted")[:2] == ("False", "InvalidParameters")


def test_a_config_map_that_is_not_there_is_asked_for():
    resources = load_text("\n---\n".join((FORWARD, gateway_class())), "config.yaml")
    compile_config(resources, Catalog(), Defaults())
    assert ("", "ConfigMap", "infra", "parameters") in resources.wanted


BACKEND = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: scanner, namespace: infra}
spec: {destination: {type: Fqdn, fqdn: {hostname: scanner.example}, ports: [{number: 443, tls: {mode: Simple}}]}}
"""


def uses(config: str) -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: policy}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gw}}]
  extensions: [{{name: scan, type: "{TYPE}", phase: request-body, config: {config}}}]
"""


def accepted(made: Compiled) -> tuple[str, str]:
    (ancestor,) = next(value for key, value in made.statuses.items() if key[1] == "EgressPolicy")["ancestors"]
    found = {each["type"]: each for each in ancestor["conditions"]}
    said = found.get("Degraded", found["Accepted"])
    return said["type"], said["reason"]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_types_of_an_external_catalogue_are_known_with_their_schema(is_elsewhere: bool):
    entries = {"catalog_json": catalogue(SCANNER), "scanner_json": json.dumps(SCHEMA)}
    maps = (
        (config_map(filterCatalog="infra/vendor"), config_map("vendor", **entries))
        if is_elsewhere
        else (config_map(**entries),)
    )
    made = compiled(FORWARD, BACKEND, uses("{level: 3}"), gateway_class(), *maps)
    assert accepted(made) == ("Accepted", "Accepted")
    described = made.filter_types[TYPE]
    assert described["source"] == f"ConfigMap infra/{'vendor' if is_elsewhere else 'parameters'}"
    assert described["config"] == SCHEMA
    without = compiled(FORWARD, BACKEND, uses("{level: 3}"))
    assert accepted(without) == ("Degraded", "UnsupportedExtensionType")


def test_what_a_catalogue_may_not_say_is_told_at_the_class_and_the_rest_is_served():
    builtin = {"type": "egressproxy.io/PIIDetector:v1"}
    reserved = {**SCANNER, "type": "egressproxy.io/Mine:v1", "schema": ""}
    listed = catalogue({**SCANNER, "schema": ""}, builtin, {"type": "acme.example.com/None:v1"}, reserved)
    made = compiled(FORWARD, gateway_class(), config_map(catalog_json=listed))
    assert listener(made)
    assert list(made.filter_types) == [TYPE]
    message = of_object(made, "GatewayClass", "egressproxy", "egressproxy.io/FilterCatalog")[2]
    assert "External: ConfigMap infra/parameters" in message
    assert "acme.example.com/None:v1: no processor runs it" in message
    assert "egressproxy.io/Mine:v1: spec.type: the domain egressproxy.io is that of built-in types" in message
    assert "PIIDetector:v1: no processor" not in message


def test_an_object_goes_before_a_catalogue():
    own = {
        "apiVersion": "egressproxy.io/v1alpha1", "kind": "FilterType", "metadata": {"name": "own"},
        "spec": {name: SCANNER[name] for name in ("type", "phases", "processor")},
    }  # fmt: skip
    parameters = config_map(catalog_json=catalogue({**SCANNER, "schema": ""}))
    made = compiled(FORWARD, gateway_class(), parameters, json.dumps(own))
    assert made.filter_types[TYPE]["source"] == "FilterType own"
    assert "Scanner:v1" in of_object(made, "GatewayClass", "egressproxy", "egressproxy.io/FilterCatalog")[2]


# --- whose Gateways are taken ----------------------------------------------------------------------------------------
def of_cluster(*objects: dict[str, Any], permitted: tuple[str, ...] = ("infra",), own: str = "") -> Compiled:
    """What an API server has, beside the operator's `own` manifests."""
    files = load_text(own, "config.yaml").objects if own else ()
    packed = zlib.compress(b"\n".join(json.dumps(each).encode() for each in objects))
    resources = ResourceSet([*files, *cluster_objects(packed, lambda _problem: None, (), set())])
    return compile_config(resources, Catalog(), Defaults(gateway_namespaces=permitted))


def gateway(namespace: str, port: int, **more: Any) -> dict[str, Any]:
    listeners = [{"name": "forward", "port": port, "protocol": "egressproxy.io/forward-proxy"}]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": namespace},
        "spec": {"gatewayClassName": "egressproxy", "listeners": listeners, **more},
    }  # fmt: skip


def test_a_gateway_of_a_namespace_that_may_not_have_one_binds_nothing():
    made = of_cluster(gateway("infra", 3128), gateway("team", 3129))
    assert [each.gateway for each in made.spec.listeners] == ["infra/gw"]
    assert of_object(made, "Gateway", "team/gw", "Accepted") == (
        "False", "NotAllowed", "Gateways of namespace team are not taken: --gateway-namespace permits infra",
    )  # fmt: skip
    assert of_object(made, "Gateway", "team/gw", "Programmed")[0] == "False"
    assert len(of_cluster(gateway("infra", 3128), gateway("team", 3129), permitted=()).spec.listeners) == 2


def test_the_operators_own_gateway_is_taken_wherever_it_is():
    made = of_cluster(gateway("team", 3129), own=FORWARD)
    assert [each.gateway for each in made.spec.listeners] == ["default/gw"]


def test_a_gateway_that_is_not_taken_takes_no_port_and_no_address():
    older = gateway("team", 3128, addresses=[{"type": "IPAddress", "value": "127.0.0.1"}])
    older["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    made = of_cluster(older, gateway("infra", 3128))
    assert [(each.gateway, each.addresses) for each in made.spec.listeners] == [("infra/gw", ("127.0.0.1",))]


def test_a_listener_set_of_such_a_namespace_adds_nothing():
    listeners = [{"name": "more", "port": 3129, "protocol": "egressproxy.io/forward-proxy"}]
    added = {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"name": "more", "namespace": "team"},
        "spec": {"parentRef": {"name": "gw", "namespace": "infra"}, "listeners": listeners},
    }  # fmt: skip
    owner = gateway("infra", 3128, allowedListeners={"namespaces": {"from": "All"}})
    made = of_cluster(owner, added)
    assert [each.name for each in made.spec.listeners] == ["forward"]
    assert of_object(made, "ListenerSet", "team/more", "Accepted")[1] == "NotAllowed"
    assert len(of_cluster(owner, added, permitted=("infra", "team")).spec.listeners) == 2
