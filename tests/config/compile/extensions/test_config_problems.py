"""What is wrong with the config of a built-in filter is told at its field, and at its line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.filters.catalog import Catalog
from tests.support import manifests as m

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
        compile_config(load_text(text), Catalog(), Defaults())
    (problem,) = caught.value.problems
    assert problem.field_path == f"spec.extensions[0].config.{field}"
    assert problem.line


def test_it_is_told_at_its_line():
    entities = [EMAIL, {"name": "FOO"}]
    extension = {"name": "e", "type": "egressproxy.io/PIIDetector:v1", "config": {"entities": entities}}
    text = yaml.safe_dump_all([m.policy(extensions=[{**extension, "phase": "request-headers"}])])
    with pytest.raises(ConfigError) as caught:
        compile_config(load_text(text), Catalog(), Defaults())
    assert "FOO" in text.splitlines()[caught.value.problems[0].line - 1]
