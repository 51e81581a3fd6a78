"""The collector of a process, by the variables of OpenTelemetry's SDKs."""

from typing import Any

import pytest

from egressproxy.config.otlp_environment import OPTION, TracingDefaults, tracing_defaults
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.telemetry import OtlpProtocol
from egressproxy.model.secret import SecretBytes

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def read(**environment: str) -> TracingDefaults:
    found = tracing_defaults(environment)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://a:4318", "OTEL_SDK_DISABLED": "TRUE"},
        {ENDPOINT: "http://a:4318", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SERVICE_NAME": "a"},
    ],
)
def test_without_an_endpoint_nothing_is_traced(environment: dict[str, str]):
    assert tracing_defaults(environment) is None


@pytest.mark.parametrize(
    ("url", "host", "port", "protocol", "path"),
    [
        ("http://otel:4318", "otel", 4318, "http/protobuf", "/v1/traces"),
        ("http://otel", "otel", 4318, "http/protobuf", "/v1/traces"),
        ("http://otel:4318/base/", "otel", 4318, "http/protobuf", "/base/v1/traces"),
        ("http://otel:4317", "otel", 4317, "grpc", "/v1/traces"),
        ("https://otel.example:443/otlp", "otel.example", 443, "http/protobuf", "/otlp/v1/traces"),
    ],
)
def test_the_endpoint_is_a_url(url: str, host: str, port: int, protocol: str, path: str):
    found = read(**{ENDPOINT: url})
    backend = found.backend.backend
    assert backend is not None
    assert (backend.destination, backend.hostname, backend.port) == (Destination.FQDN, host, port)
    assert (found.protocol.value, found.path) == (protocol, path)
    assert (backend.protocol is Protocol.GRPC) == (protocol == "grpc")
    assert (backend.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(("host", "address"), [("localhost", "127.0.0.1"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1")])
def test_an_address_is_dialled_as_it_is_written(host: str, address: str):
    backend = read(**{ENDPOINT: f"http://{host}:4318"}).backend.backend
    assert backend is not None
    assert backend.destination is Destination.IP
    assert [(str(each.address), each.port) for each in backend.endpoints] == [(address, 4318)]


def test_an_endpoint_of_traces_is_taken_as_it_is():
    found = read(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://a:4318/x", **{ENDPOINT: "http://b:4318"})
    assert found.path == "/x"
    assert found.backend.backend is not None
    assert found.backend.backend.hostname == "a"


def test_the_option_goes_before_the_variables():
    found = read(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://a:4318/x", **{OPTION: "http://c:4318"})
    assert found.backend.backend is not None
    assert (found.backend.backend.hostname, found.path) == ("c", "/v1/traces")


def test_fields_are_secret_and_url_encoded():
    written = "Authorization=Bearer%20abc, x-tenant = t "
    found = read(OTEL_EXPORTER_OTLP_HEADERS=written, **{ENDPOINT: "http://a:4318"})
    assert found.headers == (("authorization", SecretBytes(b"Bearer abc")), ("x-tenant", SecretBytes(b"t")))
    assert "abc" not in repr(found)


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("", "", (1.0, 1.0)),
        ("always_on", "", (1.0, None)),
        ("always_off", "", (0.0, None)),
        ("traceidratio", "0.25", (0.25, None)),
        ("parentbased_traceidratio", "0.01", (0.01, 1.0)),
        ("parentbased_traceidratio", "", (1.0, 1.0)),
        ("parentbased_always_off", "0.5", (0.0, 1.0)),
    ],
)
def test_the_sampler_is_one_of_the_sdks(sampler: str, argument: str, expected: Any):
    found = read(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument, **{ENDPOINT: "http://a:4318"})
    assert (found.share, found.parent_share) == expected


def test_names_of_services_and_transports_are_taken():
    found = read(OTEL_SERVICE_NAME="egress", OTEL_EXPORTER_OTLP_PROTOCOL="grpc", **{ENDPOINT: "https://a:4318"})
    assert (found.service_name, found.protocol) == ("egress", OtlpProtocol.GRPC)
    assert found.collector("other").service_name == "other"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({ENDPOINT: "otel:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'otel:4318': write a URL"),
        ({OPTION: "ftp://otel"}, "--otlp-endpoint is 'ftp://otel'"),
        ({OPTION: "http://"}, "--otlp-endpoint"),
        ({OPTION: "http://a:99999"}, "--otlp-endpoint"),
        ({OPTION: "http://user:pass@a"}, "--otlp-endpoint"),
        ({OPTION: "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "write http/protobuf or grpc"),
        ({OPTION: "http://a", "OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER is 'jaeger_remote'"),
        (
            {OPTION: "http://a", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG is '2': write a number from 0 to 1",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_remedy(environment: dict[str, str], said: str):
    with pytest.raises(ValueError) as caught:
        tracing_defaults(environment)
    assert said in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("written", ["secret", "a b=secret", "a=secret%0d%0ax"])
def test_wrong_fields_are_told_without_their_values(written: str):
    with pytest.raises(ValueError) as caught:
        tracing_defaults({OPTION: "http://a", "OTEL_EXPORTER_OTLP_HEADERS": written})
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)
    assert "secret" not in str(caught.value)
