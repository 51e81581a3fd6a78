"""XBackend in each version of its types: what is read, and what stays an error."""

from __future__ import annotations

import pytest

from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.resources.x_backend import XBackend, XBackendSpec

HOSTNAME = "externalHostname: {hostname: a.example}"


def text(spec: str) -> str:
    return f"apiVersion: gateway.networking.x-k8s.io/v1alpha1\nkind: XBackend\nmetadata: {{name: b}}\nspec: {spec}\n"


def read(spec: str) -> XBackendSpec:
    (found,) = load_text(text(spec)).objects
    assert isinstance(found, XBackend)
    return found.spec


def refused(spec: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_text(text(spec), "file.yaml")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("port", ["{number: 8443}", "{port: 8443}", "{port: 8443, name: https}", "8443"])
def test_its_port_is_read_in_each_version(port: str):
    assert read(f"{{type: ExternalHostname, port: {port}, {HOSTNAME}}}").port.value == 8443


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("{}", "number is missing"),
        ("{name: https}", "number is missing"),
        ("{number: 1, port: 1}", "number and port are the same"),
        ("{number: 99999}", "99999 is more than 65535"),
    ],
)
def test_a_port_has_one_number(port: str, message: str):
    assert message in refused(f"{{type: ExternalHostname, port: {port}, {HOSTNAME}}}").message


@pytest.mark.parametrize("protocol", ["TCP", "HTTP", "HTTP2", "HTTP11", "H2C", "MCP", "GRPC", "WSS"])
def test_every_protocol_of_the_schema_is_read(protocol: str):
    tls = ", tls: {mode: ServerOnly}" if protocol in ("HTTP2", "WSS") else ""
    assert read(f"{{type: ExternalHostname, port: 1, {HOSTNAME}, protocol: {protocol}{tls}}}").protocol == protocol


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("protocol: H2C, tls: {mode: None}", "protocol H2C has no tls"),
        ("protocol: H2C, tls: {mode: ServerOnly}", "protocol H2C has no tls"),
        ("protocol: HTTP2", "protocol HTTP2 needs tls"),
        ("protocol: WSS", "protocol WSS needs tls"),
    ],
)
def test_tls_belongs_to_the_protocols_that_the_definition_says(fields: str, message: str):
    for place in (HOSTNAME, "endpointSelector: {matchLabels: {app: a}}"):
        kind = "ExternalHostname" if place == HOSTNAME else "EndpointSelector"
        problem = refused(f"{{type: {kind}, port: 1, {place}, {fields}}}")
        assert problem.message == message
        assert problem.remedy


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("{}", "matchLabels is missing"),
        ("{matchLabels: {}}", "1"),
        ("{matchLabels: {a b: c}}", "a b"),
        ("{matchLabels: {a: 'b,c=d'}}", "b,c=d"),
        ("{matchLabels: {a: 1}}", "not text"),
        ("{selector: {app: a}}", "selector"),
    ],
)
def test_pods_are_selected_by_labels(selector: str, message: str):
    problem = refused(f"{{type: EndpointSelector, port: 1, endpointSelector: {selector}}}")
    assert message in f"{problem.message} {problem.remedy} {problem.field_path}"
    assert problem.field_path.startswith("spec.endpointSelector")


def test_what_stands_there_is_what_its_type_says():
    selector = "endpointSelector: {matchLabels: {app: a}}"
    found = read(f"{{type: EndpointSelector, port: 1, {selector}}}").endpoint_selector
    assert found is not None
    assert found.match_labels == {"app": "a"}
    for spec in (
        "{type: ExternalHostname, port: 1}",
        f"{{type: ExternalHostname, port: 1, {HOSTNAME}, {selector}}}",
        "{type: EndpointSelector, port: 1}",
        f"{{type: EndpointSelector, port: 1, {HOSTNAME}}}",
    ):
        problem = refused(spec)
        assert (problem.field_path, "type E" in problem.message) == ("spec", True)
    assert refused(f"{{type: ExternalHostnam, port: 1, {HOSTNAME}}}").remedy == "did you mean ExternalHostname?"


def test_without_a_source_of_trust_it_is_the_systems():
    tls = "tls: {mode: ServerOnly, validation: {hostname: a.example%s}}"
    spec = f"{{type: ExternalHostname, port: 1, {HOSTNAME}, {tls}}}"
    found = read(spec % "").tls
    assert found is not None
    assert found.validation is not None
    assert found.validation.ca_certificate_refs == ()
    both = ", wellKnownCACertificates: System, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]"
    assert "exclude each other" in refused(spec % both).message
