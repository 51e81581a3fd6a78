import json
import subprocess
import sys
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from egressproxy.errors import LimitExceeded
from egressproxy.filters import Exchange
from egressproxy.filters.builtin import BUILTIN
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.policy import ExtensionIR

RATE = ExtensionIR(
    "rate",
    "egressproxy.io/RequestRateLimit:v1",
    "request-headers",
    config='{"limit": 1, "window": 60}',
    scope="Gateway a/gw",
)


def ask(instances, spec=RATE):
    run(compile_chain([spec], instances.place).request_headers, Exchange("127.0.0.1:1", "a/gw", "l", 0.0))


def test_the_catalogue_describes_every_type_with_its_schema():
    catalog = Catalog()
    assert catalog.names() == tuple(sorted(BUILTIN))
    described = json.loads(json.dumps(catalog.describe()))
    for name in catalog.names():
        assert described[name]["summary"]
        assert described[name]["phases"]
        assert described[name]["config"]["type"] == "object"
        assert described[name]["config"]["additionalProperties"] is False
    rate = described["egressproxy.io/RequestRateLimit:v1"]
    assert rate["phases"] == ["request-headers", "backend-request"]
    assert set(rate["config"]["properties"]) == {"limit", "window", "burst"}
    assert "secretRef" in described["egressproxy.io/CredentialInjector:v1"]["config"]["properties"]


@pytest.mark.parametrize("name", BUILTIN)
def test_a_type_of_ours_is_known_by_its_published_names_too(name):
    catalog = Catalog()
    kind = catalog.get(name)
    assert kind is not None
    assert kind.name == name
    if kind.runs_code:
        assert catalog.describe()[name]["published"] == []
        return
    bare, of_gateway_api = catalog.describe()[name]["published"]
    assert name == f"egressproxy.io/{bare}:v1"
    assert of_gateway_api == f"gateway.networking.k8s.io/{bare}:v1"
    assert catalog.get(bare) is catalog.get(of_gateway_api) is kind


@pytest.mark.parametrize(
    "name", ["Python", "gateway.networking.k8s.io/Python:v1", "credentialInjector", "vendor.test/CredentialInjector:v1",
             "gateway.networking.k8s.io/CredentialInjector:v2", "CredentialInjector:v1"],
)  # fmt: skip
def test_names_are_compared_exactly_and_what_runs_code_has_one_name_alone(name):
    assert Catalog().get(name) is None


def test_a_type_is_imported_when_it_is_named_and_not_before():
    asked = (
        "import sys; from egressproxy.filters.catalog import Catalog; there = lambda: 'egressproxy.filters.cors' in"
        " sys.modules; catalog = Catalog(); before = there(); catalog.get('Cors'); print(before, there())"
    )
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout == "False True\n"


def test_phases_are_listed_in_the_order_in_which_a_request_meets_them():
    phases = Catalog().describe()["egressproxy.io/Python:v1"]["phases"]
    assert TypeAdapter(list[str]).validate_python(phases)[0] == "request-headers"
    assert phases[-1] == "response-body"


def test_equal_specs_share_one_instance_and_different_ones_do_not():
    instances = FilterInstances(Catalog())
    assert instances.place(RATE) is instances.place(replace(RATE))
    assert instances.place(RATE) is not instances.place(replace(RATE, scope="Gateway a/other"))


def test_state_and_counters_survive_a_reload_that_leaves_the_spec_alone():
    first = FilterInstances(Catalog())
    ask(first)
    second = FilterInstances(Catalog(), first)
    with pytest.raises(LimitExceeded):
        ask(second)
    (stats,) = second.stats()
    assert (stats.name, stats.phase, stats.scope) == ("rate", "request-headers", "Gateway a/gw")
    assert (stats.runs, stats.rejected) == (2, 1)
    ask(FilterInstances(Catalog(), second), replace(RATE, config='{"limit": 2, "window": 60}'))


def test_what_a_reload_no_longer_names_is_forgotten():
    first = FilterInstances(Catalog())
    ask(first)
    second = FilterInstances(Catalog(), first)
    second.seal()
    assert second.stats() == []
    ask(second)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"type": "egressproxy.io/Nothing:v1"},
            "unknown type egressproxy.io/Nothing:v1; known are egressproxy.io/AccessPolicy:v1",
        ),
        ({"phase": "connect"}, "cannot run in phase connect; it can in request-headers, backend-request"),
        ({"phase": "no-such"}, "cannot run in phase no-such"),
        ({"config": '{"limit": "many"}'}, "config.limit: "),
        ({"config": '{"limit": 1, "windows": 3}'}, "config.windows: "),
    ],
)
def test_a_spec_that_cannot_be_built_is_told_with_its_place(change, told):
    with pytest.raises(FilterBuildError) as caught:
        FilterInstances(Catalog()).place(replace(RATE, source="EgressPolicy a/p", **change))
    assert str(caught.value).startswith("EgressPolicy a/p: filter rate")
    assert told in str(caught.value)
