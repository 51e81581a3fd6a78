"""Traces of a real gateway, at collectors that speak OTLP: over HTTP, and over gRPC by grpcio."""

from __future__ import annotations

import gzip
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support import manifests as m
from tests.support.collector import (
    CLIENT,
    INTERNAL,
    SERVER,
    ReadRequest,
    read_logs,
    read_metrics,
    read_request,
    value_of,
)
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
EXPORT = re.compile(r"/opentelemetry\.proto\.collector\.(\w+)\.v1\.(?:Trace|Logs|Metrics)Service/Export")


class Got:
    """What a collector has got: requests, and the fields or metadata of each."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[tuple[dict[str, str], ReadRequest]] = []

        self.others: dict[str, list[bytes]] = {"logs": [], "metrics": []}
        self.fields: dict[str, dict[str, str]] = {}

    def take(self, signal: str, fields: dict[str, str], data: bytes) -> None:
        """A request of a signal, as it is called in paths."""
        signal = "traces" if signal == "trace" else signal
        self.fields[signal] = fields
        if signal == "traces":
            self.requests.append((fields, read_request(data)))
        else:
            self.others[signal].append(data)

    def wait(self, signal: str, is_enough: Callable[[bytes], bool]) -> list[bytes]:
        """The requests of a signal, when one of them is enough."""
        wait_until(lambda: any(map(is_enough, list(self.others[signal]))))
        return self.others[signal]

    def spans(self, count: int) -> list[Any]:
        """Wait for so many spans."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = [span for _, request in self.requests for span in request.spans]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise AssertionError(f"{len(found)} spans came, of {count}")


class Handler(BaseHTTPRequestHandler):
    got: Got

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        fields = {name.lower(): value for name, value in self.headers.items()}
        if fields.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.got.take(self.path.removeprefix("/v1/"), fields, body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """As an origin: says what it was told of the trace."""
        said = (self.headers["traceparent"] or "-").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_arguments: Any) -> None: ...


def served_http(tls: ssl.SSLContext | None = None) -> Iterator[Got]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    got = Got(server.server_address[1])
    server.RequestHandlerClass.got = got  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield got
    server.shutdown()
    server.server_close()
    thread.join()


def served_grpc() -> Iterator[Got]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    got = Got(server.add_insecure_port("127.0.0.1:0"))

    def export(signal: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        got.take(signal, {name: str(value) for name, value in context.invocation_metadata()}, request)
        return b""

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            found = EXPORT.fullmatch(details.method)
            return found and grpc.unary_unary_rpc_method_handler(partial(export, found[1]))

    server.add_generic_rpc_handlers((Service(),))
    server.start()
    yield got
    server.stop(None).wait()


@pytest.fixture
def origin() -> Iterator[Got]:
    yield from served_http()


@pytest.fixture(params=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, Got]]:
    served = served_http() if request.param == "http" else served_grpc()
    for got in served:
        yield request.param, got


def asked(port: int, origin: Got, **headers: str) -> str:
    proxy = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{port}"})
    request = urllib.request.Request(f"http://127.0.0.1:{origin.port}/x?key=1", headers=headers)
    with urllib.request.build_opener(proxy).open(request, timeout=WAIT_S) as response:
        return str(response.read().decode())


def gateway(port: int, *more: m.Manifest) -> list[m.Manifest]:
    allow = {"allow": [{"cidrs": ["127.0.0.0/8"]}]}
    policy = m.policy(cidrs=["127.0.0.0/8"], destinations=allow)
    return [m.gateway(m.forward_listener(port)), policy, *more]


@pytest.mark.parametrize("workers", [1, 2])
def test_spans_of_a_policy_come_to_the_collector(tmp_path: Path, origin: Got, collector: tuple[str, Got], workers: int):
    kind, got = collector
    port = free_port()
    provider = {
        "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "otel"},
        "headers": [{"name": "X-Tenant", "value": "secret-tenant"}],
    }
    spec = {
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
        "tracing": {"provider": provider, "serviceName": "egress", "parentBasedSampling": {"mode": "Enabled"}},
    }
    objects = gateway(
        port,
        m.ip_backend("otel", got.port, protocol="GRPC" if kind == "grpc" else "HTTP"),
        m.manifest("gateway.networking.x-k8s.io/v1alpha1", "XTelemetryPolicy", "t", "agents", spec=spec),
    )
    with GatewayProcess(tmp_path, objects, arguments=["--workers", str(workers)]) as process:
        told = asked(port, origin, traceparent=f"00-{TRACE}-{SPAN}-01")
        record = process.wait_for_record(status=200)
        connect, whole, attempt = sorted(got.spans(3), key=lambda span: span.kind)
        fields, request = got.requests[0]
        process.wait_for_metric("egress_spans_exported_total", 3)
        assert "secret-tenant" not in process.stderr
    assert told == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert (connect.name, connect.kind, whole.kind, attempt.kind) == ("connect", INTERNAL, SERVER, CLIENT)
    assert whole.trace_id.hex() == attempt.trace_id.hex() == TRACE == record["trace_id"]
    assert (whole.parent_span_id.hex(), attempt.parent_span_id) == (SPAN, whole.span_id)
    assert request.resource["service.name"] == "egress"
    assert request.attributes(whole)["url.path"] == "/x"
    assert request.attributes(attempt)["network.peer.port"] == origin.port
    assert abs(whole.start_time_unix_nano / 1e9 - time.time()) < 600
    assert fields["x-tenant"] == "secret-tenant"
    assert "traceparent" not in fields


def test_what_has_not_gone_yet_goes_out_when_the_gateway_ends(tmp_path: Path, origin: Got, collector: tuple[str, Got]):
    kind, got = collector
    port = free_port()
    protocol = "grpc" if kind == "grpc" else "http/protobuf"
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=t%201",
        "OTEL_SERVICE_NAME": "of-the-process",
    }
    arguments = ["--otlp-endpoint", f"http://localhost:{got.port}"]
    with GatewayProcess(tmp_path, gateway(port), arguments=arguments, environment=environment):
        told = asked(port, origin)
        assert told.endswith("-03")
        begun = time.monotonic()
    assert time.monotonic() - begun < 30
    fields, request = got.requests[0]
    assert fields["x-tenant"] == "t 1"
    assert request.resource["service.name"] == "of-the-process"
    assert [span.kind for span in request.spans] == [SERVER, CLIENT, INTERNAL]
    assert told.split("-")[1] == request.spans[0].trace_id.hex()


@pytest.fixture(params=["https", "grpc"])
def own_collector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Got]]:
    pki = Pki(tmp_path)
    for got in served_http(pki.server_context("localhost")) if request.param == "https" else served_grpc():
        yield request.param, got


def test_the_access_log_and_the_metrics_come_to_the_collector(
    tmp_path: Path, origin: Got, own_collector: tuple[str, Got]
):
    kind, got = own_collector
    workers, scheme = (2, "http") if kind == "grpc" else (1, "https")
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc" if kind == "grpc" else "http/protobuf",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.crt"),
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=secret-tenant",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a",
    }
    port = free_port()
    arguments = ["--otlp-endpoint", f"{scheme}://localhost:{got.port}", "--otlp-signals", "traces,logs,metrics"]
    arguments += ["--workers", str(workers)]
    with GatewayProcess(tmp_path, gateway(port), arguments=arguments, environment=environment) as process:
        for _ in range(4):
            asked(port, origin)
        written = process.wait_for_record(status=200)
        wait_until(lambda: sum(len(read_logs(each)) for each in list(got.others["logs"])) == 4)
        got.wait("metrics", lambda request: requests_in(request) == 4)
        wait_until(lambda: process.metric("egress_log_records_exported_total") == 4)
        wait_until(lambda: process.metric("egress_metric_points_exported_total") > 10)
        assert process.metric("egress_metric_points_last_export_success") == 1
        assert "secret-tenant" not in process.stderr
    spans = {span.span_id: span for _, request in got.requests for span in request.spans}
    records = [record for each in got.others["logs"] for record in read_logs(each)]
    for record in records:
        assert spans[record.span_id].trace_id == record.trace_id
        assert (spans[record.span_id].kind, record.flags, record.severity_text) == (SERVER, 1, "INFO")
    named = [{each.key: value_of(each.value) for each in record.attributes} for record in records]
    (found,) = [each for each in named if each["request_id"] == written["request_id"]]
    assert found == {name: value for name, value in written.items() if name not in ("time", "trace_id")}
    resource, _ = read_metrics(got.others["metrics"][-1])
    assert (resource["service.name"], resource["team"]) == ("egressproxy", "a")
    assert {fields["x-tenant"] for fields in got.fields.values()} == {"secret-tenant"}
    assert set(got.fields) == {"traces", "logs", "metrics"}


def requests_in(request: bytes) -> float:
    """How many requests these metrics have counted, in all workers."""
    _, metrics = read_metrics(request)
    found = [each for each in metrics if each.name == "egress_requests"]
    return sum(point.as_double for each in found for point in each.sum.data_points)
