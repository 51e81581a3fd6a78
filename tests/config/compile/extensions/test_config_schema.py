from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from egressproxy.config.compile.extensions.config_schema import MAX_FAULTS, ConfigSchemaChecker, SchemaError
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.filters.catalog import Catalog
from tests.support import manifests as m
from tests.support.compiling import compile_valid

STAMP = {
    "type": "object",
    "additionalProperties": False,
    "required": ["teams"],
    "properties": {
        "teams": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[0-9]{4}$"}},
        "mode": {"enum": ["block", "mask"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": 10},
        "names": {"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 4}},
    },
}


def faults(schema, config):
    return [(fault.loc, fault.message) for fault in ConfigSchemaChecker(schema).faults(config)]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"a": {"type": "objekt"}}}, "properties.a.type: 'objekt' is not one of ['array', 'boolean'"),
        ({"pattern": "(?=a)"}, "pattern '(?=a)': invalid perl operator: (?= (RE2's syntax"),
    ],
)
def test_what_is_wrong_with_a_schema_is_told_with_what_may_stand_there(schema, told):
    with pytest.raises(SchemaError) as caught:
        ConfigSchemaChecker(schema)
    assert str(caught.value).startswith(told)


def test_a_config_that_fits_has_no_faults():
    assert faults(STAMP, {"teams": {"research": "4711"}, "mode": "mask", "limit": 10, "names": ["a", "b"]}) == []


@pytest.mark.parametrize(
    ("config", "loc", "message"),
    [
        ({}, ("teams",), "teams is missing"),
        ({"teams": {}, "team": 1}, ("team",), "unknown field"),
        ({"teams": {"r": "47"}}, ("teams", "r"), "not of the form ^[0-9]{4}$"),
        ({"teams": []}, ("teams",), "not of type object"),
        ({"teams": {}, "mode": "stop"}, ("mode",), "not one of the possible values"),
        ({"teams": {}, "limit": 0}, ("limit",), "less than 1"),
        ({"teams": {}, "limit": 11}, ("limit",), "more than 10"),
        ({"teams": {}, "names": ["a", "a"]}, ("names",), "does not fit uniqueItems"),
        ({"teams": {}, "names": ["abcde"]}, ("names", 0), "longer than 4 characters"),
    ],
)
def test_a_fault_names_the_field_and_what_is_wrong(config, loc, message):
    assert faults(STAMP, config) == [(loc, message)]


def test_a_value_is_not_shown_since_it_may_be_a_credential():
    found = ConfigSchemaChecker({"properties": {"key": {"type": "object"}, "mode": {"const": "a"}}}).faults(
        {"key": "sk-sesame", "mode": "sk-sesame"}
    )
    assert len(found) == 2
    assert "sesame" not in str(found)


def test_an_unknown_field_is_compared_with_the_known_ones():
    (fault,) = ConfigSchemaChecker(STAMP).faults({"teams": {}, "limt": 3})
    assert (fault.remedy, fault.on_key) == ("did you mean limit?", True)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ([], "an object"),
        ({"type": "objekt"}, "type"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "invalid perl operator"),
        ({"patternProperties": {"(a": {}}}, "missing \\)"),
        ({"$schema": "https://example.com/mine"}, "draft"),
        ({"description": "x" * 300_000}, "longer than"),
        ({"unevaluatedProperties": False, "allOf": [{"patternProperties": {"a": {}}}]}, "not supported"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema, told):
    with pytest.raises(SchemaError, match=told):
        ConfigSchemaChecker(schema)


def test_a_pattern_that_backtracks_without_end_elsewhere_is_applied_in_linear_time():
    checker = ConfigSchemaChecker({"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}})
    began = time.perf_counter()
    assert len(checker.faults({"a": "a" * 5000 + "!", "b" * 5000 + "!": 1})) == 1
    assert time.perf_counter() - began < 5


def test_a_schema_that_multiplies_itself_is_ended():
    doubled = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    checker = ConfigSchemaChecker({"$defs": {**doubled, "d40": {}}, "$ref": "#/$defs/d0"})
    with pytest.raises(SchemaError, match="more than 100000 steps"):
        checker.faults({})


@pytest.mark.parametrize("ref", ["#/$defs/none", "https://127.0.0.1:1/schema.json", "file:///etc/passwd"])
def test_only_references_within_the_schema_are_followed(ref):
    with pytest.raises(SchemaError, match="cannot be applied"):
        ConfigSchemaChecker({"$ref": ref}).faults({})


def test_a_schema_that_refers_to_itself_without_end_is_told():
    with pytest.raises(SchemaError):
        ConfigSchemaChecker({"$ref": "#"}).faults({})


def test_of_very_many_faults_some_are_told():
    config = {f"f{i}": i for i in range(500)}
    assert len(ConfigSchemaChecker({"additionalProperties": False}).faults(config)) == MAX_FAULTS


def test_older_drafts_are_known_by_their_names():
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"exclusiveMinimum": 1}}}
    assert faults(schema, {"a": 1}) == [(("a",), "not more than 1")]


@pytest.mark.parametrize("keyword", ["const", "default", "x-note", "items"])
def test_a_schema_may_not_be_nested_without_end(keyword: str):
    """The JSON of a ConfigMap has no bound of its own."""
    nested: Any = {}
    for _ in range(450):
        nested = [nested]
    with pytest.raises(SchemaError, match="nested"):
        ConfigSchemaChecker({keyword: nested})


def test_a_long_enumeration_counts_for_each_value():
    checker = ConfigSchemaChecker({"properties": {"a": {"items": {"enum": list(range(20_000))}}}})
    with pytest.raises(SchemaError, match="steps"):
        checker.faults({"a": [19_999] * 1000})


REF = {"group": "egressproxy.io", "kind": "Backend", "name": "b"}
CALLS: dict[str, Any] = {"backendRefs": [REF]}
EMAIL = {"name": "EMAIL"}
RULE = {"name": "a", "pattern": "x"}
LIMIT: dict[str, Any] = {"type": "Requests", "limit": 5, "unit": "Minute"}
SECRET = {"secretRef": {"name": "s"}}


@pytest.mark.parametrize(
    ("kind", "config", "field"),
    [
        ("PIIDetector", {"entities": [EMAIL, {"name": "FOO"}]}, "entities[1].name"),
        ("PIIDetector", {"entities": [EMAIL, EMAIL]}, "entities[1].name"),
        ("PIIDetector", {"entities": [EMAIL], "patterns": [RULE | EMAIL]}, "patterns[0].name"),
        ("PIIDetector", {"entities": [EMAIL], "presidio": {"backendRef": REF, "entities": [EMAIL]}},
         "presidio.entities[0].name"),
        ("PIIDetector", {"entities": [EMAIL], "countries": ["DE", "ZZ"]}, "countries[1]"),
        ("PIIDetector", {"entities": [EMAIL], "regions": ["DE", "ZZ"]}, "regions[1]"),
        ("PIIDetector", {"patterns": [{"name": "A", "pattern": "x"}, {"name": "B", "pattern": "("}]},
         "patterns[1].pattern"),
        ("PIIDetector", {"presidio": {"backendRef": REF, "entities": [EMAIL]}, "applyTo": "Both"}, "applyTo"),
        ("ResponsePolicy", {"entities": ["EMAIL", "FOO"]}, "entities[1]"),
        ("ResponsePolicy", {"entities": ["EMAIL"], "countries": ["ZZ"]}, "countries[0]"),
        ("ResponsePolicy", {"entities": ["EMAIL"], "regions": ["DE", "ZZ"]}, "regions[1]"),
        ("ResponsePolicy", {"deny": [RULE, {"name": "b", "pattern": "x*"}]}, "deny[1].pattern"),
        ("ResponsePolicy", {"deny": [RULE, {"name": "a", "pattern": "y"}]}, "deny[1].name"),
        ("PromptGuard", {"deny": [RULE, {"name": "A", "pattern": "y"}]}, "deny[1].name"),
        ("PromptGuard", {"deny": [RULE], "allow": [{"name": "b", "pattern": "("}]}, "allow[0].pattern"),
        ("PromptGuard", {"deny": [RULE], "header": "Host"}, "header"),
        ("PromptGuard", {"judge": {"type": "Chat", "backendRef": REF}}, "judge.model"),
        ("QoSController", {"limits": [LIMIT | {"name": "a"}, LIMIT | {"name": "a", "unit": "Hour"}]},
         "limits[1].name"),
        ("QoSController", {"limits": [LIMIT, LIMIT | {"type": "Cost"}]}, "prices"),
        ("QoSController", {"limits": [LIMIT, LIMIT | {"type": "Concurrency"}]}, "limits[1].unit"),
        ("QoSController", {"limits": [LIMIT | {"count": "Input"}]}, "limits[0].count"),
        ("QoSController", {"limits": [LIMIT | {"per": ["Header"]}]}, "limits[0].header"),
        ("QoSController", {"limits": [LIMIT], "per": ["Identity"]}, "per"),
        ("ToolPolicy", {"tools": {"allow": [{"names": ["a"], "arguments": [{"path": "a", "matches": "("}]}]}},
         "tools.allow[0].arguments[0].matches"),
        ("TokenMeter", {"tenant": "Header"}, "tenantHeader"),
        ("HeaderPolicy", {"request": {"set": [{"name": "X-A", "value": "1"}, {"name": "Host", "value": "1"}]}},
         "request.set[1].name"),
        ("HeaderPolicy", {"request": {"add": [{"name": "X-A", "value": "1"}], "remove": ["X-B", "x-a"]}},
         "request.remove[1]"),
        ("Audit", {"folder": "here"}, "folder"),
        ("Audit", {"folder": "/tmp", "requestFields": ["X-Ok", "Authorization"]}, "requestFields[1]"),
        ("CredentialInjector", {**SECRET, "header": "Host"}, "header"),
        ("CredentialInjector", {**SECRET, "basic": {}, "template": "{}"}, "template"),
        ("CredentialInjector", {**SECRET, "bind": {"hosts": ["a.test"]}, "allowPlaintext": True}, "bind.hosts"),
        ("Webhook", {**CALLS, "send": ["request-headers"], "headers": [{"name": "Content-Type", "value": "x"}]},
         "headers[0].name"),
        ("ExternalProcessor", {**CALLS, "processingMode": {"requestBodyMode": "FULL_DUPLEX_STREAMED"}},
         "processingMode.requestTrailerMode"),
        ("ExternalProcessor", {**CALLS, "grpcInitialMetadata": [{"key": "te", "value": "x"}]},
         "grpcInitialMetadata[0].key"),
        ("ExternalProcessor", {**CALLS, "observabilityMode": True, "allowModeOverride": True}, "allowModeOverride"),
        ("UrlRewrite", {"hostname": "a b"}, "hostname"),
        ("RequestRedirect", {"hostname": "a b"}, "hostname"),
    ],
)  # fmt: skip
def test_a_fault_is_told_at_its_field(kind: str, config: dict[str, Any], field: str):
    phase = "backend-request" if kind == "CredentialInjector" else "request-headers"
    extension = {"name": "e", "type": f"egressproxy.io/{kind}:v1", "phase": phase, "config": config}
    text = yaml.safe_dump_all([m.backend("b", "a.test", 443), m.policy(extensions=[extension])])
    with pytest.raises(ConfigError) as caught:
        compile_valid(load_text(text), Catalog(), Defaults())
    (problem,) = caught.value.problems
    assert problem.field_path == f"spec.extensions[0].config.{field}"
    assert problem.line


def test_it_is_told_at_its_line():
    entities = [EMAIL, {"name": "FOO"}]
    extension = {"name": "e", "type": "egressproxy.io/PIIDetector:v1", "config": {"entities": entities}}
    text = yaml.safe_dump_all([m.policy(extensions=[{**extension, "phase": "request-headers"}])])
    with pytest.raises(ConfigError) as caught:
        compile_valid(load_text(text), Catalog(), Defaults())
    assert "FOO" in text.splitlines()[caught.value.problems[0].line - 1]
