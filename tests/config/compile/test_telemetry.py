"""XTelemetryPolicies: which one holds, what it asks for, and its status."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.otlp_environment import NO_TELEMETRY, OtlpSettings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.doors.catalog import Catalog
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import AttributeSource, CollectorIR, OtlpProtocol, Signal, SpanAttributeIR, TracingIR
from egressproxy.model.secret import SecretBytes
from egressproxy.model.work import at_once
from egressproxy.processes.packing import pack, unpacking
from tests.support import manifests as m
from tests.support.compiling import compile_valid
from tests.support.manifests import Manifest

GATEWAY = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
COLLECTOR = {"group": "egressproxy.io", "kind": "Backend", "name": "otel"}
OWN = CollectorIR(
    WeightedBackend(BackendIR("--otlp-endpoint", Destination.FQDN, "otlp.example", 4318)),
    service_name="of-the-process",
)
LOGS = replace(OWN, signal=Signal.LOGS)


def telemetry(name: str = "t", *, targets: Any = (GATEWAY,), annotations: Any = None, **tracing: Any) -> Manifest:
    spec: dict[str, Any] = {"targetRefs": list(targets)}
    if tracing:
        spec["tracing"] = tracing
    made = m.manifest("gateway.networking.x-k8s.io/v1alpha1", "XTelemetryPolicy", name, "agents", spec=spec)
    made["metadata"]["annotations"] = annotations or {}
    return made


def compile_of(*more: Manifest, tracing: TracingIR | None = None) -> Compiled:
    objects = [
        m.gateway(m.forward_listener(3128)), m.policy(["a.example"]), m.backend("otel", "otel.example", 4318), *more,
    ]  # fmt: skip
    settings = NO_TELEMETRY if tracing is None else OtlpSettings(tracing, (LOGS,), "of-the-process", (("team", "a"),))
    defaults = Defaults(("127.0.0.1",), telemetry=settings)
    return compile_valid(load_text(yaml.safe_dump_all(objects), "test.yaml"), Catalog(), defaults)


def tracing_of(made: Compiled) -> TracingIR:
    (listener,) = made.spec.listeners
    assert listener.tracing is not None
    return listener.tracing


def conditions(made: Compiled, name: str = "t") -> dict[str, tuple[str, str, str]]:
    status = made.statuses["gateway.networking.x-k8s.io", "XTelemetryPolicy", "agents", name]
    (ancestor,) = status["ancestors"]
    assert ancestor["ancestorRef"] == {**GATEWAY, "namespace": "agents"} or name.startswith("odd")
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in ancestor["conditions"]}


def test_without_a_policy_nothing_is_traced():
    assert compile_of().spec.listeners[0].tracing is None


def test_a_policy_says_how_exchanges_are_traced():
    made = compile_of(
        telemetry(
            provider={"backendRef": COLLECTOR, "headers": [{"name": "X-Key", "value": "k-1"}]},
            samplingRate={"numerator": 1, "denominator": 1000},
            parentBasedSampling={"samplingRate": {"numerator": 50}},
            serviceName="svc",
            spanName="egress",
            attributes=[
                {"name": "user", "type": "Header", "headerName": "X-User"},
                {"name": "env", "type": "Literal", "literalValue": "Prod"},
                {"name": "verb", "type": "Attribute", "attributeKey": "http.request.method"},
            ],
        )
    )
    found = tracing_of(made)
    assert (found.share, found.parent_share, found.span_name) == (0.001, 0.5, "egress")
    assert (found.continues, found.keeps_errors) == (True, False)
    assert found.attributes == (
        SpanAttributeIR("user", AttributeSource.HEADER, "x-user"),
        SpanAttributeIR("env", AttributeSource.LITERAL, "Prod"),
        SpanAttributeIR("verb", AttributeSource.ATTRIBUTE, "http.request.method"),
    )
    collector = found.collector
    assert collector.backend.backend is not None
    assert collector.backend.backend.hostname == "otel.example"
    assert (collector.protocol, collector.service_name) == (OtlpProtocol.HTTP, "svc")
    assert collector.headers == (("x-key", SecretBytes(b"k-1")),)
    assert "k-1" not in repr(found)
    assert conditions(made) == {
        "Accepted": (
            "True", "Accepted", "the policy is in force: 0.1% of new traces are recorded; spans go to agents/otel "
            "by OTLP (http/protobuf)",
        ),
        "ResolvedRefs": ("True", "ResolvedRefs", "every reference is resolved"),
    }  # fmt: skip
    assert at_once(unpacking(pack(made.spec))) == made.spec


def test_by_default_every_trace_is_recorded_and_clients_do_not_decide():
    found = tracing_of(compile_of(telemetry(provider={"backendRef": COLLECTOR})))
    assert (found.share, found.parent_share, found.collector.service_name) == (1.0, None, "egressproxy")


@pytest.mark.parametrize(("mode", "share"), [("Enabled", 1.0), ("ImplementationDefault", 1.0), ("Disabled", None)])
def test_the_mode_of_parents_says_whether_clients_decide(mode: str, share: float | None):
    policy = telemetry(provider={"backendRef": COLLECTOR}, parentBasedSampling={"mode": mode})
    assert tracing_of(compile_of(policy)).parent_share == share


@pytest.mark.parametrize("tracing", [{}, {"mode": "Disabled"}, {"samplingRate": {"numerator": 1}}])
def test_a_policy_without_a_collector_traces_nothing(tracing: dict[str, Any]):
    made = compile_of(telemetry(**tracing))
    assert made.spec.listeners[0].tracing is None
    assert conditions(made)["Accepted"] == ("True", "Accepted", "the policy is in force: exchanges are not traced")


def test_annotations_say_what_the_api_has_no_fields_for():
    named = {"egressproxy.io/trace-context": "Restart", "egressproxy.io/trace-errors": "true"}
    found = tracing_of(compile_of(telemetry(annotations=named, provider={"backendRef": COLLECTOR})))
    assert (found.continues, found.keeps_errors) == (False, True)


def test_an_annotation_that_is_misspelt_is_told_of():
    named = {"egressproxy.io/trace-context": "restart"}
    made = compile_of(telemetry(annotations=named, provider={"backendRef": COLLECTOR}))
    assert "egressproxy.io/trace-context does nothing: write Continue or Restart" in conditions(made)["Accepted"][2]


@pytest.mark.parametrize(
    ("port", "protocol", "expected"),
    [(4317, "HTTP", "grpc"), (4318, "HTTP", "http/protobuf"), (4318, "GRPC", "grpc"), (443, "HTTP11", "http/protobuf")],
)
def test_the_port_or_the_protocol_of_the_backend_chooses_the_transport(port: int, protocol: str, expected: str):
    backend = m.backend("other", "otel.example", port, protocol=protocol)
    made = compile_of(backend, telemetry(provider={"backendRef": {**COLLECTOR, "name": "other"}}))
    assert tracing_of(made).collector.protocol.value == expected


def test_a_collector_that_does_not_exist_closes_nothing():
    made = compile_of(telemetry(provider={"backendRef": {**COLLECTOR, "name": "otle"}}))
    status, reason, message = conditions(made)["ResolvedRefs"]
    assert (status, reason) == ("False", "BackendNotFound")
    assert "agents/otle" in message
    assert message.endswith("spans are dropped")
    assert tracing_of(made).collector.backend.backend is None


def test_a_collector_is_a_fixed_place():
    made = compile_of(m.dynamic("any"), telemetry(provider={"backendRef": {**COLLECTOR, "name": "any"}}))
    assert conditions(made)["ResolvedRefs"][:2] == ("False", "UnsupportedValue")


def test_a_collector_of_another_namespace_needs_a_grant():
    made = compile_of(
        m.backend("otel", "otel.example", 4318, namespace="observability"),
        telemetry(provider={"backendRef": {**COLLECTOR, "namespace": "observability"}}),
    )
    assert conditions(made)["ResolvedRefs"][:2] == ("False", "RefNotPermitted")
    grant = m.manifest("gateway.networking.k8s.io/v1", "ReferenceGrant", "g", "observability", spec={
        "from": [{"group": "gateway.networking.x-k8s.io", "kind": "XTelemetryPolicy", "namespace": "agents"}],
        "to": [{"group": "egressproxy.io", "kind": "Backend"}],
    })  # fmt: skip
    made = compile_of(
        m.backend("otel", "otel.example", 4318, namespace="observability"),
        grant,
        telemetry(provider={"backendRef": {**COLLECTOR, "namespace": "observability"}}),
    )
    assert conditions(made)["ResolvedRefs"][0] == "True"


def test_of_two_policies_for_a_gateway_the_older_one_holds():
    older = telemetry("z", provider={"backendRef": COLLECTOR}, serviceName="older")
    older["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    younger = telemetry("a", provider={"backendRef": COLLECTOR}, serviceName="younger")
    younger["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    made = compile_of(younger, older)
    assert tracing_of(made).collector.service_name == "older"
    assert conditions(made, "z")["Accepted"][0] == "True"
    assert conditions(made, "a") == {
        "Accepted": ("False", "Conflicted", "XTelemetryPolicy agents/z is older and has the same target")
    }


def test_of_two_policies_of_one_age_the_first_name_holds():
    made = compile_of(telemetry("b"), telemetry("a", provider={"backendRef": COLLECTOR}))
    assert tracing_of(made)
    assert conditions(made, "b")["Accepted"][1] == "Conflicted"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({**GATEWAY, "kind": "HTTPRoute"}, "TargetNotFound"),
        ({**GATEWAY, "name": "gx"}, "TargetNotFound"),
        ({**GATEWAY, "namespace": "other"}, "Invalid"),
    ],
)
def test_a_target_that_cannot_be_is_refused(target: dict[str, str], reason: str):
    made = compile_of(telemetry("odd", targets=[target], provider={"backendRef": COLLECTOR}))
    assert conditions(made, "odd")["Accepted"][:2] == ("False", reason)
    assert made.spec.listeners[0].tracing is None


def test_nothing_is_said_of_gateways_of_others():
    theirs = m.gateway(m.forward_listener(3129), name="theirs")
    theirs["spec"]["gatewayClassName"] = "others"
    others = m.manifest("gateway.networking.k8s.io/v1", "GatewayClass", "others", "", spec={"controllerName": "a/b"})
    del others["metadata"]["namespace"]
    policy = telemetry(targets=[{**GATEWAY, "name": "theirs"}, GATEWAY], provider={"backendRef": COLLECTOR})
    assert conditions(compile_of(theirs, others, policy))["Accepted"][0] == "True"  # of ours, the only ancestor


@pytest.mark.parametrize("name", ["Authorization", "cookie", "X-Api-Key"])
def test_a_credential_never_becomes_an_attribute(name: str):
    attributes = [{"name": "a", "type": "Header", "headerName": name}]
    made = compile_of(telemetry(provider={"backendRef": COLLECTOR}, attributes=attributes))
    assert tracing_of(made).attributes == ()
    assert f"The attribute a does nothing: {name} may hold a credential" in conditions(made)["Accepted"][2]


@pytest.mark.parametrize(
    "attribute",
    [
        {"name": "url.path", "type": "Literal", "literalValue": "x"},
        {"name": "egressproxy.route", "type": "Header", "headerName": "x"},
        {"name": "a", "type": "Attribute", "attributeKey": "no.such"},
        {"name": "a", "type": "Attribute", "attributeKey": "url.full"},
    ],
)
def test_an_attribute_stands_once_in_a_span_and_repeats_one_that_is_there(attribute: dict[str, str]):
    made = compile_of(telemetry(provider={"backendRef": COLLECTOR}, attributes=[attribute]))
    assert tracing_of(made).attributes == ()
    assert f"The attribute {attribute['name']} does nothing" in conditions(made)["Accepted"][2]


def test_policies_of_the_gateway_add_nothing_to_requests_for_the_collector():
    """Else a credential for all backends of a Gateway would go to the collector, too."""
    injector = {
        "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
        "config": {"secretRef": {"name": "s", "key": "token"}, "allowPlaintext": True},
    }  # fmt: skip
    policy = m.policy(None, name="keys", extensions=[injector])
    made = compile_of(m.secret("s", {"token": "t"}), policy, telemetry(provider={"backendRef": COLLECTOR}))
    assert tracing_of(made).collector.backend.extensions == ()


DEFAULT = TracingIR(OWN, 0.25, 1.0)


def test_collectors_of_the_process_reach_those_who_serve():
    spec = compile_of(tracing=DEFAULT).spec
    assert spec.collectors == (LOGS,)
    assert at_once(unpacking(pack(spec))).collectors == (LOGS,)


def test_the_collector_of_the_process_is_for_gateways_without_one():
    found = tracing_of(compile_of(tracing=DEFAULT))
    assert (found.collector.backend, found.collector.service_name) == (OWN.backend, "of-the-process")
    assert (found.share, found.parent_share) == (0.25, 1.0)
    found = tracing_of(compile_of(telemetry(serviceName="own", samplingRate={"numerator": 1}), tracing=DEFAULT))
    assert (found.collector.backend, found.collector.service_name, found.share) == (OWN.backend, "own", 0.01)
    assert found.parent_share is None  # the policy's sampling is that of the API, as a whole
    own = tracing_of(compile_of(telemetry(provider={"backendRef": COLLECTOR}), tracing=DEFAULT))
    assert own.collector.backend != OWN.backend
    assert (own.collector.service_name, own.collector.resource) == ("of-the-process", (("team", "a"),))
    assert compile_of(telemetry(mode="Disabled"), tracing=DEFAULT).spec.listeners[0].tracing is None


@pytest.mark.parametrize(
    ("tracing", "said"),
    [
        ({"mode": "Enabled"}, "mode Enabled needs provider"),
        ({"mode": "Disabled", "provider": {"backendRef": COLLECTOR}}, "provider does not belong to mode Disabled"),
        ({"samplingRate": {"numerator": 101}}, "greater than one"),
        ({"attributes": [{"name": "a", "type": "Header"}]}, "type Header needs headerName"),
        ({"attributes": [{"name": "a", "type": "Literal", "literalValue": "x", "headerName": "y"}]}, "does not belong"),
        ({"attributes": 2 * [{"name": "a", "type": "Literal", "literalValue": "x"}]}, "more than once"),
    ],
)
def test_what_the_rules_of_the_api_refuse_is_a_load_error(tracing: dict[str, Any], said: str):
    text = yaml.safe_dump_all([telemetry(**tracing)])
    with pytest.raises(ConfigError, match=said):
        load_text(text, "test.yaml")
