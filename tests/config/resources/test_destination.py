"""The published spellings of a destination: what is read, and what stays an error with place and remedy."""

from __future__ import annotations

import pytest

from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.resources.backend import Backend, GatewayBackend, WorkingGroupBackend, XBackendDestination
from egressproxy.config.resources.meta import GATEWAY_GROUP

GROUPS = {
    Backend: "egressproxy.io/v1alpha1",
    WorkingGroupBackend: "gateway.networking.k8s.io/v1alpha1",
    XBackendDestination: "ainetworking.prototype.x-k8s.io/v0alpha0",
}
Kind = type[Backend] | type[WorkingGroupBackend] | type[XBackendDestination]


def text(spec: str, kind: Kind = WorkingGroupBackend) -> str:
    return f"apiVersion: {GROUPS[kind]}\nkind: {kind.KIND}\nmetadata: {{name: b}}\nspec: {spec}\n"


def read(spec: str, kind: Kind = WorkingGroupBackend) -> Backend | WorkingGroupBackend | XBackendDestination:
    (found,) = load_text(text(spec, kind)).objects
    assert isinstance(found, Backend | WorkingGroupBackend | XBackendDestination)
    return found


def refused(spec: str, kind: Kind = WorkingGroupBackend) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_text(text(spec, kind), "file.yaml")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("kind", list(GROUPS))
@pytest.mark.parametrize(
    ("written", "block", "means"),
    [
        ("FQDN", "fqdn: {hostname: a.example}", "Fqdn"),
        ("fqdn", "fqdn: {hostname: a.example}", "Fqdn"),
        ("IPAddress", "ip: {address: 192.0.2.1}", "Ip"),
        ("IP", "ip: {address: 192.0.2.1}", "Ip"),
        ("KubernetesService", "service: {name: s}", "Service"),
        ("KUBERNETESSERVICE", "kubernetesService: {name: s}", "Service"),
    ],
)
def test_types_are_read_in_every_published_spelling(kind: Kind, written: str, block: str, means: str):
    found = read(f"{{destination: {{type: {written}, {block}, ports: [{{number: 443}}]}}}}", kind)
    assert found.spec.destination.type == means
    assert found.to_manifest()["spec"]["destination"]["type"] == written


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("SIMPLE", "Simple"),
        ("simple", "Simple"),
        ("MUTUAL", "Mutual"),
        ("NONE", "None"),
        ("PLATFORM_PROVIDED", "PlatformProvided"),
        ("PlatformProvided", "PlatformProvided"),
        ("INSECURE_DISABLE", "InsecureDisable"),
        ("InsecureDisable", "InsecureDisable"),
        ("PASSTHROUGH", "Passthrough"),
        ("Terminate", "Terminate"),
    ],
)
def test_modes_are_read_in_every_published_spelling(written: str, means: str):
    tls = f"{{mode: {written}, clientCertificateRef: {{name: c}}}}"
    found = read(f"{{destination: {{type: FQDN, fqdn: {{hostname: a.example}}}}, tls: {tls}}}")
    assert found.spec.tls is not None
    assert found.spec.tls.mode == means
    assert found.to_manifest()["spec"]["tls"]["mode"] == written


@pytest.mark.parametrize(
    ("spec", "field_path", "line", "message", "remedy"),
    [
        ("{destination: {type: FQND, fqdn: {hostname: a.example}}}", "spec.destination.type", 4, "FQND", "Fqdn"),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}},\n       tls: {mode: SIMPEL}}",
            "spec.tls.mode",
            5,
            "SIMPEL: not a mode",
            "did you mean Simple?",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}},\n       tls: {mode: SIMPLE, serverNam: a.b}}",
            "spec.tls.serverNam",
            5,
            "unknown field serverNam",
            "did you mean serverName?",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}, ports: [{number: 443, protocol: HTPT}]}}",
            "spec.destination.ports[0].protocol",
            4,
            "not a protocol",
            "did you mean HTTP?",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}, ports: [{number: 443, protocol: example.com/}]}}",
            "spec.destination.ports[0].protocol",
            4,
            "not a protocol",
            "possible are",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example, prot: 443}}}",
            "spec.destination.fqdn.prot",
            4,
            "unknown field prot",
            "did you mean port",
        ),
    ],
)
def test_what_is_misspelled_stays_a_load_error(spec: str, field_path: str, line: int, message: str, remedy: str):
    problem = refused(spec)
    assert (problem.field_path, problem.line, problem.file) == (field_path, line, "file.yaml")
    assert message in problem.message
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example, port: 443}, ports: [{number: 443}]}}",
            "fqdn.port says again what ports says",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}, tls: {mode: Simple}}, tls: {mode: None}}",
            "tls for all ports stands at spec.tls and destination.tls",
        ),
        (
            "{destination: {type: Service, service: {name: s}, kubernetesService: {name: t}}}",
            "service and kubernetesService are the same",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}}, "
            "tls: {mode: Simple, sni: a.example, serverName: b.example}}",
            "sni and serverName say different names",
        ),
        (
            "{destination: {type: FQDN, fqdn: {hostname: a.example}}, "
            "tls: {mode: Simple, sni: a.example, validation: {hostname: a.example}}}",
            "validation says what sni beside it says",
        ),
    ],
)
def test_what_is_said_twice_is_a_load_error(spec: str, message: str):
    assert message in refused(spec).message


def test_a_client_certificate_that_its_mode_does_not_use_is_an_error_where_our_schema_says_so():
    spec = (
        "{{destination: {{type: Fqdn, fqdn: {{hostname: a.example}}, ports: [{{number: 443, tls: {{mode: {}}}}}]}}}}"
    ).format
    assert "needs clientCertificateRef" in refused(spec("Mutual"), Backend).message
    assert read(spec("Mutual")).spec.destination.ports[0].tls is not None


def test_a_gateway_backend_may_have_the_shape_of_an_xbackend():
    spec = "{type: ExternalHostname, port: 443, externalHostname: {hostname: a.example}, tls: {mode: ServerOnly}}"
    (found,) = load_text(text(spec)).objects
    assert isinstance(found, GatewayBackend)
    assert (found.key[:2], found.spec.port.value) == ((GATEWAY_GROUP, "Backend"), 443)
    assert found.to_manifest()["spec"]["port"] == 443


def test_what_is_neither_shape_is_told_of_the_one_that_it_is_nearest_to():
    assert (refused("{}").field_path, refused("{}").message) == ("spec.destination", "destination is missing")
    problem = refused("{type: ExternalHostnam, port: 443, externalHostname: {hostname: a.example}}")
    assert (problem.field_path, problem.remedy) == ("spec.type", "did you mean ExternalHostname?")


def test_one_name_in_both_shapes_is_one_object():
    both = text("{destination: {type: FQDN, fqdn: {hostname: a.example}}}") + "---\n"
    both += text("{type: ExternalHostname, port: 443, externalHostname: {hostname: a.example}}")
    with pytest.raises(ConfigError, match="the same object stands at"):
        load_text(both)
