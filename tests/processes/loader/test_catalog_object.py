from __future__ import annotations

import json

from egressproxy.filters.catalog import Catalog
from egressproxy.processes.loader.catalog_object import CATALOG_KEY, catalog_manifest, catalogue
from egressproxy.processes.loader.result import shown

STAMP = {"summary": "", "support": "implementation-specific", "source": "FilterType stamp", "phases": ["connect"],
         "also": [], "published": [], "config": {"type": "object"}}  # fmt: skip


def test_it_lists_every_type_and_has_the_schema_of_each():
    manifest = catalog_manifest({"acme.example.com/Stamp:v1": STAMP})
    assert manifest["metadata"]["name"] == "egressproxy-filter-catalog"
    data = manifest["data"]
    types = {each["type"]: each for each in json.loads(data["catalog.json"])["types"]}
    assert set(types) == {*Catalog().names(), "acme.example.com/Stamp:v1"}
    for name, described in Catalog().describe().items():
        assert json.loads(data[types[name]["schema"]]) == described["config"]
        assert types[name]["phases"] == described["phases"]
    stamp = types["acme.example.com/Stamp:v1"]
    assert (stamp["support"], stamp["source"]) == ("implementation-specific", "FilterType stamp")
    assert json.loads(data["acme.example.com_Stamp_v1.json"]) == {"type": "object"}


def test_it_is_one_object():
    (made,) = shown(catalogue(json.dumps({"acme.example.com/Stamp:v1": STAMP}).encode()))
    assert made.key == CATALOG_KEY
    assert json.loads(made.manifest) == catalog_manifest({"acme.example.com/Stamp:v1": STAMP})


def test_its_keys_are_those_that_a_config_map_may_have():
    assert all(key.replace("_", "").replace(".", "").replace("-", "").isalnum() for key in catalog_manifest({})["data"])
