"""Payload processing in the form of the working group's proposal 7: read as the processors of a pipeline of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, of_object, of_route, rule

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: scanner}
spec: {ports: [{name: grpc, port: 9000}]}
"""
PROCESSORS = """
  - name: guardrails
    backendRefs: [{kind: Service, name: scanner}]
    config: {timeout: 500ms, failureMode: open, context: {tenant_id: customer-a}}
"""
PIPELINE = f"""
apiVersion: gateway.networking.k8s.io/v1alpha1
kind: PayloadProcessingPipeline
metadata: {{name: guarded}}
spec:
  processors:{PROCESSORS}"""
OWN = PIPELINE.replace("gateway.networking.k8s.io", "egressproxy.io").replace(
    PROCESSORS,
    """
  - name: guardrails
    backendRefs: [{kind: Service, name: scanner, port: 9000}]
    timeout: 500ms
    failureMode: open
    config:
      processingMode: {requestBodyMode: BUFFERED, responseBodyMode: STREAMED}
      grpcInitialMetadata: [{key: tenant_id, value: customer-a}]
""",
)
BY_REF = "{type: PayloadProcessingRef, payloadProcessingRef: {name: guarded}}"
BY_EXTENSION = (
    "{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: PayloadProcessingPipeline, name: guarded}}"
)


def inline(**processor: Any) -> str:
    """A PayloadProcessing filter with one processor."""
    made = {"name": "guardrails", "backendRefs": [{"kind": "Service", "name": "scanner"}], **processor}
    return json.dumps({"type": "PayloadProcessing", "payloadProcessing": [made]})


def route(entry: str) -> str:
    return ROUTE.replace("- backendRefs", f"- filters: [{entry}]\n    backendRefs")


def extension(*manifests: str) -> ExtensionIR:
    """The only extension of the only rule."""
    (found,) = rule(compiled(REVERSE, PLAIN, SERVICE, *manifests)).extensions
    return found


def test_the_published_pipeline_means_what_ours_does():
    theirs, ours = extension(route(BY_REF), PIPELINE), extension(route(BY_EXTENSION), OWN)
    assert (theirs.type, theirs.phase, theirs.fail_open, theirs.timeout_s) == (
        "egressproxy.io/ExternalProcessor:v1", "request-headers", True, 0.5,
    )  # fmt: skip
    assert json.loads(theirs.config) == json.loads(ours.config)
    assert theirs.calls == ours.calls
    assert theirs.calls[0][1].backend is not None  # type: ignore[attr-defined]


def test_a_filter_may_have_the_processors_itself():
    found = extension(route(inline(config={"timeout": "500ms"}, context={"Tenant_ID": "customer-a"})))
    assert (found.name, found.fail_open, found.timeout_s) == ("guardrails", False, 0.5)
    assert json.loads(found.config)["grpcInitialMetadata"] == [{"key": "tenant_id", "value": "customer-a"}]
    assert found.source == "HTTPRoute default/route"


def test_a_processor_is_shown_the_phases_that_are_named():
    phases = {"responseHeaders": True, "responseBody": True}
    assert json.loads(extension(route(inline(config={"phases": phases}))).config)["processingMode"] == {
        "requestHeaderMode": "SKIP",
        "requestBodyMode": "NONE",
        "responseHeaderMode": "SEND",
        "responseBodyMode": "STREAMED",
    }


def test_a_pipeline_that_is_not_there_closes_the_rule():
    made = compiled(REVERSE, PLAIN, SERVICE, route(BY_REF), OWN)
    assert rule(made).backends[0].backend is None
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "ExtensionRefNotFound")
    message = of_route(made, "ResolvedRefs")[2]
    assert "PayloadProcessingRef: PayloadProcessingPipeline default/guarded does not exist (one of egr" in message
    assert message.endswith("is there: name it in an ExtensionRef with group: egressproxy.io)")


def test_a_server_that_is_not_there_is_told_where_it_is_named():
    made = compiled(REVERSE, PLAIN, route(inline()))
    status, reason, message = of_route(made, "ResolvedRefs")
    assert (status, reason) == ("False", "BackendNotFound")
    assert "spec.rules[0].filters[0].payloadProcessing[0].backendRefs[0]: Service default/scanner" in message
    made = compiled(REVERSE, PLAIN, route(BY_REF), PIPELINE)
    assert of_object(made, "PayloadProcessingPipeline", "default/guarded", "ResolvedRefs")[0] == "False"
    assert of_object(made, "PayloadProcessingPipeline", "default/guarded", "Accepted")[0] == "True"


def test_a_service_of_several_ports_needs_one():
    several = SERVICE.replace("port: 9000}", "port: 9000}, {name: other, port: 9001}")
    with pytest.raises(ConfigError, match="port"):
        compiled(REVERSE, PLAIN, several, route(BY_REF), PIPELINE)


@pytest.mark.parametrize(
    "entry",
    [
        '{"type": "PayloadProcessing", "payloadProcessing": []}',
        inline(backendRefs=[]),
        inline(config={"failureMode": "maybe"}),
        inline(context={"the tenant": "a"}),
        inline(context={"tenant": "a\nb"}),
        "{type: PayloadProcessingRef, payloadProcessingRef: {name: guarded, kind: Other}}",
        "{type: PayloadProcessingRef}",
    ],
)
def test_what_the_form_does_not_have_is_a_load_error(entry: str):
    with pytest.raises(ConfigError):
        compiled(REVERSE, PLAIN, SERVICE, route(entry), PIPELINE)


# --- published filter types in the phases of the proposal ------------------------------------------------------------
POLICY = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: policy}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: route}]
  extensions:
  - name: pii
    type: gateway.networking.k8s.io/PIIDetector:v1
    phase: PHASE
    config: {entities: [{name: EMAIL, action: Redact}]}
"""


@pytest.mark.parametrize(
    ("phase", "direction"),
    [
        ("request-headers", None),
        ("request-body", "Requests"),
        ("backend-response", "Responses"),
        ("response-headers", "Responses"),
        ("response-body", "Responses"),
    ],
)
def test_a_phase_of_a_content_filter_stands_for_its_direction(phase: str, direction: str | None):
    found = extension(ROUTE, POLICY.replace("PHASE", phase))
    assert (found.type, found.phase, found.is_known) == ("egressproxy.io/PIIDetector:v1", "request-headers", True)
    assert json.loads(found.config).get("applyTo") == direction


def test_a_direction_against_the_phase_closes_the_place():
    policy = POLICY.replace("PHASE", "response-body").replace("config: {", "config: {applyTo: Requests, ")
    made = compiled(REVERSE, PLAIN, ROUTE, policy)
    assert rule(made).backends[0].backend is None
    with pytest.raises(ConfigError, match="in phase response-body is applyTo: Responses, and Requests is written"):
        compiled(REVERSE, PLAIN, ROUTE, policy.replace("gateway.networking.k8s.io/PII", "egressproxy.io/PII"))
