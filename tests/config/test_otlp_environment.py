"""The collector of a process, by the variables of OpenTelemetry's SDKs."""

from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.otlp_environment import OPTION, SIGNALS_OPTION, otlp_settings, signals_of
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.telemetry import CollectorIR, OtlpProtocol, Signal
from egressproxy.model.secret import SecretBytes
from tests.support.pki import Pki

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def read(**environment: str) -> CollectorIR:
    """The collector of traces."""
    found = otlp_settings(environment).traces
    assert found is not None
    return found.collector


def collectors(**environment: str) -> dict[str, CollectorIR]:
    """By signal."""
    found = otlp_settings(environment)
    every = [*found.collectors, *([found.traces.collector] if found.traces is not None else [])]
    return {each.signal.value: each for each in every}


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
    assert otlp_settings(environment).traces is None


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
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument, ENDPOINT: "http://a:4318"}
    found = otlp_settings(variables).traces
    assert found is not None
    assert (found.share, found.parent_share) == expected


def test_names_of_services_and_transports_are_taken():
    found = read(OTEL_SERVICE_NAME="egress", OTEL_EXPORTER_OTLP_PROTOCOL="grpc", **{ENDPOINT: "https://a:4318"})
    assert (found.service_name, found.protocol) == ("egress", OtlpProtocol.GRPC)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({ENDPOINT: "otel:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'otel:4318': write a URL"),
        ({OPTION: "ftp://otel"}, "--otlp-endpoint is 'ftp://otel'"),
        ({OPTION: "http://"}, "--otlp-endpoint"),
        ({OPTION: "http://a:99999"}, "--otlp-endpoint"),
        ({OPTION: "http://user:pass@a"}, "--otlp-endpoint"),
        ({OPTION: "http://a?key=pass@"}, "--otlp-endpoint is a URL that may hold a secret"),
        ({OPTION: "http://a/x y"}, "--otlp-endpoint"),
        ({OPTION: "https://a", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere.pem"}, "OTEL_EXPORTER_OTLP_CERTIFICATE is"),
        ({OPTION: "https://a", "OTEL_EXPORTER_OTLP_CERTIFICATE": __file__}, "which has no certificate"),
        ({OPTION: "http://a", SIGNALS_OPTION: "traces,spans"}, "--otlp-signals has 'spans': write a list of traces"),
    ],
)
def test_a_wrong_value_is_told_with_its_remedy(environment: dict[str, str], said: str):
    with pytest.raises(ValueError) as caught:
        otlp_settings(environment)
    assert said in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("written", ["secret", "a b=secret", "a=secret%0d%0ax"])
def test_wrong_fields_are_told_without_their_values(written: str):
    with pytest.raises(ValueError) as caught:
        otlp_settings({OPTION: "http://a", "OTEL_EXPORTER_OTLP_HEADERS": written})
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "written", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf or grpc"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "a number from 0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1", "a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip or none"),
        ("OTEL_SDK_DISABLED", "yes", "true or false"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team", "name=value"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "a.pem", "an XTelemetryPolicy whose Backend has tls"),
    ],
)
def test_a_value_that_is_none_of_those_allowed_is_ignored_with_a_warning(variable: str, written: str, said: str):
    environment = {ENDPOINT: "http://a", "OTEL_TRACES_SAMPLER": "traceidratio", variable: written}
    found = otlp_settings(environment)
    (warning,) = found.warnings
    assert f"{variable} is {written!r}, which is ignored: write {said}" in warning
    assert found.traces == otlp_settings({**environment, variable: ""}).traces or variable == "OTEL_TRACES_SAMPLER"
    assert found.traces is not None
    assert found.traces.share == 1.0


def test_each_signal_has_an_endpoint_of_its_own_or_a_path_below_the_general_one():
    environment = {
        ENDPOINT: "http://a:4318/base/", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://b/as/is",
        "OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "OTLP", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "k=general", "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "k=own",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1500", "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "0",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip", "OTEL_METRIC_EXPORT_INTERVAL": "250",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=r,team=a%20b",
    }  # fmt: skip
    found = collectors(**environment)
    assert {name: each.path for name, each in found.items()} == {
        "traces": "/base/v1/traces", "logs": "/base/v1/logs", "metrics": "/as/is",
    }  # fmt: skip
    assert {name: each.protocol.value for name, each in found.items()} == {
        "traces": "http/protobuf", "logs": "http/protobuf", "metrics": "grpc",
    }  # fmt: skip
    assert [found[name].headers[0][1].reveal() for name in ("traces", "logs")] == [b"general", b"own"]
    assert [found[name].timeout_s for name in ("traces", "logs")] == [1.5, 300.0]
    assert [found[name].is_compressed for name in ("traces", "logs")] == [True, False]
    backend = found["metrics"].backend.backend
    assert backend is not None
    assert (backend.port, backend.tls is not None) == (4317, True)
    assert (found["logs"].service_name, found["logs"].resource) == ("r", (("team", "a b"),))
    assert otlp_settings(environment).interval_s == 0.25


@pytest.mark.parametrize(
    ("environment", "signals"),
    [
        ({}, set()),
        ({ENDPOINT: "http://a"}, {"traces"}),
        ({ENDPOINT: "http://a", "OTEL_METRICS_EXPORTER": "none,otlp"}, {"traces", "metrics"}),
        ({"OTEL_LOGS_EXPORTER": "otlp"}, {"logs"}),  # to the default endpoint
        ({ENDPOINT: "http://a", "OTEL_LOGS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, set()),
        ({ENDPOINT: "http://a", SIGNALS_OPTION: "metrics, logs", "OTEL_LOGS_EXPORTER": "none"}, {"metrics", "logs"}),
    ],
)
def test_a_signal_is_exported_where_it_is_asked_for(environment: dict[str, str], signals: set[str]):
    assert set(collectors(**environment)) == signals


def test_a_certificate_is_what_servers_are_verified_with(tmp_path: Path):
    file = tmp_path / "ca.pem"
    file.write_text(Pki().ca_pem)
    found = read(OTEL_EXPORTER_OTLP_CERTIFICATE=str(file), **{ENDPOINT: "https://a"}).backend.backend
    assert found is not None
    assert found.tls is not None
    assert found.tls.ca_pem == file.read_text()


def test_the_option_names_signals():
    assert signals_of("Traces, logs") == {Signal.TRACES, Signal.LOGS}
