"""A processor written with grpcio and Envoy's published messages, and the gateway that asks it about its exchanges."""

from __future__ import annotations

import http.client
import importlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import Require
from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

TYPE = "egressproxy.io/ExternalProcessor:v1"
REF = {"kind": "Service", "name": "processor", "port": 80}
MEGABYTE = 1024 * 1024
#: What the processor of each route is asked. A name says what `Processor` does there.
ROUTES: dict[str, dict[str, Any]] = {
    "heads": {},
    "buffered": {"processingMode": {"requestBodyMode": "BUFFERED", "responseBodyMode": "BUFFERED"}},
    "streamed": {"processingMode": {"requestBodyMode": "STREAMED", "responseBodyMode": "STREAMED"}},
    "duplex": {
        "processingMode": {
            "requestBodyMode": "FULL_DUPLEX_STREAMED", "requestTrailerMode": "SEND",
            "responseBodyMode": "FULL_DUPLEX_STREAMED", "responseTrailerMode": "SEND",
        }
    },
    "observed": {
        "observabilityMode": True,
        "processingMode": {"requestBodyMode": "STREAMED", "responseBodyMode": "STREAMED"},
    },
    "hangs": {"messageTimeout": "100ms"},
    "aborts": {},
    "twice": {},
    "floods": {},
    "giant": {},
    "away": {"backendRefs": [{"kind": "Service", "name": "away", "port": 80}]},
}  # fmt: skip
FAILING = ("hangs", "aborts", "twice", "floods", "giant", "away")


class Echo(BaseHTTPRequestHandler):
    """Says what it got; a GET gets events, a little apart."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])) if "content-length" in self.headers else b"".join(
            iter(self._chunk, b"")
        )  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Got", json.dumps(dict(self.headers)))
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self) -> bytes:
        piece = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return piece

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in (b"one", b"two", b"three"):
            event = b"data: %s\n\n" % word
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(0.02)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: Any) -> None:
        pass


class Processor:
    """What it does is in the path: `/heads/…` and so on. Every body comes back in capitals."""

    def __init__(self, grpc: Any, pb: Any) -> None:
        self.grpc = grpc
        self.pb = pb
        self.seen: list[tuple[str, str]] = []  # (route, part)
        self.ended: list[str] = []
        self.bodies: dict[str, int] = {}

    def handler(self) -> Any:
        pb = self.pb
        kinds = {
            "Process": self.grpc.stream_stream_rpc_method_handler(
                self.process, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
            )
        }
        return self.grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", kinds)

    def process(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        route = ""
        held = b""
        for request in requests:
            part = request.WhichOneof("request")
            if part == "request_headers":
                fields = {h.key: h.raw_value.decode() for h in request.request_headers.headers.headers}
                route = fields[":path"].split("/")[1]
                if "immediate" in fields[":path"]:
                    yield self.immediate()
                    continue
            self.seen.append((route, part))
            body = getattr(request, part)
            if route == "observed":
                continue
            if route in FAILING:
                yield from self.fail(route, context)
                continue
            if part.endswith("_trailers"):
                if held:
                    if part == "request_trailers":
                        yield self.headers("request_headers")
                    yield self.streamed(part.replace("trailers", "body"), held.upper())
                    held = b""
                yield self.trailers(part)
                continue
            if not part.endswith("_body"):
                if route != "duplex" or body.end_of_stream or part == "response_headers":
                    yield self.headers(part)
                continue
            self.bodies[route] = max(self.bodies.get(route, 0), len(body.body))
            if route != "duplex":
                yield self.body(part, body=body.body.upper())
            elif part == "response_body" and b"data:" in body.body + held:
                yield self.streamed(part, body.body.upper(), end=body.end_of_stream)
            else:
                held += body.body
                if body.end_of_stream:
                    if part == "request_body":
                        yield self.headers("request_headers")
                    for at in range(0, len(held), 50_000):
                        yield self.streamed(part, held[at : at + 50_000].upper())
                    yield self.streamed(part, b"", end=True)
                    held = b""
        self.ended.append(route)

    def headers(self, part: str) -> Any:
        pb = self.pb
        mutation = pb.HeaderMutation()
        option = mutation.set_headers.add()
        option.header.key, option.header.raw_value = "x-processed", part.encode()
        option = mutation.set_headers.add()
        option.header.key, option.header.raw_value = "host", b"evil.example"
        mutation.remove_headers.append("x-remove")
        return pb.ProcessingResponse(**{part: pb.HeadersResponse(response=pb.CommonResponse(header_mutation=mutation))})

    def trailers(self, part: str) -> Any:
        pb = self.pb
        mutation = pb.HeaderMutation()
        for name in ("x-processed", "transfer-encoding"):
            option = mutation.set_headers.add()
            option.header.key, option.header.raw_value = name, part.encode()
        mutation.remove_headers.append("x-remove")
        return pb.ProcessingResponse(**{part: pb.TrailersResponse(header_mutation=mutation)})

    def body(self, part: str, **mutation: Any) -> Any:
        pb = self.pb
        common = pb.CommonResponse(body_mutation=pb.BodyMutation(**mutation))
        return pb.ProcessingResponse(**{part: pb.BodyResponse(response=common)})

    def streamed(self, part: str, body: bytes, *, end: bool = False) -> Any:
        return self.body(part, streamed_response=self.pb.StreamedBodyResponse(body=body, end_of_stream=end))

    def immediate(self) -> Any:
        response = self.pb.ImmediateResponse(body=b"not today", details="because")
        response.status.code = 451
        return self.pb.ProcessingResponse(immediate_response=response)

    def fail(self, route: str, context: Any) -> Iterator[Any]:
        if route == "hangs":
            wait_until(lambda: not context.is_active())
        elif route == "aborts":
            context.abort(self.grpc.StatusCode.INTERNAL, "broken")
        elif route == "twice":
            yield self.headers("request_headers")
            yield self.headers("request_headers")
        elif route == "giant":
            yield self.body("request_body", body=bytes(4 * MEGABYTE))
        while route == "floods" and context.is_active():
            yield self.headers("response_headers")


class ExtProcWorld:
    """The processor, the origin and the gateway."""

    def __init__(self, folder: Path) -> None:
        grpc: Any = importlib.import_module("grpc")
        self.pb: Any = importlib.import_module("envoy.service.ext_proc.v3.external_processor_pb2")
        self.processor = Processor(grpc, self.pb)
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.server = grpc.server(futures.ThreadPoolExecutor(32), options=options)
        self.server.add_generic_rpc_handlers((self.processor.handler(),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.origin = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        threading.Thread(target=self.origin.serve_forever, daemon=True).start()
        self.port = free_port()
        self.gateway = GatewayProcess(folder, self._manifests(port)).start()

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        said = response.read()
        connection.close()
        return response, said

    def record(self, path: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = [record for record in self.gateway.records if record.get("path") == path]
            return bool(found)

        wait_until(is_there)
        return found[-1]

    def close(self) -> None:
        self.gateway.stop()
        self.server.stop(0).wait(WAIT_S)
        self.origin.shutdown()
        self.origin.server_close()

    def _manifests(self, processor: int) -> list[Manifest]:
        made = [
            m.gateway(m.http_listener(self.port)),
            *service("origin", self.origin.server_port),
            *service("processor", processor),
            *service("away", free_port()),
        ]
        for name, config in ROUTES.items():
            for fail_open in (False, True):
                made += self._route(f"{name}-open" if fail_open else name, name, config, fail_open=fail_open)
        return made

    def _route(self, name: str, prefix: str, config: dict[str, Any], *, fail_open: bool) -> list[Manifest]:
        path = f"/{prefix}/open" if fail_open else f"/{prefix}"
        rule = {
            "matches": [{"path": {"type": "PathPrefix", "value": path}}],
            "backendRefs": [{"name": "origin", "port": 80}],
        }
        spec = {"parentRefs": [{"name": "gw"}], "rules": [rule]}
        extension = {
            "name": "processor", "type": TYPE, "phase": "request-headers", "failOpen": fail_open,
            "config": {"backendRefs": [REF], **config},
        }  # fmt: skip
        target = {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": name}
        return [
            m.manifest(f"{m.GATEWAY_API}/v1", "HTTPRoute", name, "agents", spec=spec),
            m.manifest(
                f"{m.OURS}/v1alpha1", "EgressPolicy", name, "agents",
                spec={"targetRefs": [target], "extensions": [extension]},
            ),
        ]  # fmt: skip


def service(name: str, port: int) -> list[Manifest]:
    piece = m.manifest("discovery.k8s.io/v1", "EndpointSlice", name, "agents")
    piece["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    piece |= {"addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}
    piece["ports"] = [{"name": "main", "port": port}]
    spec = {"ports": [{"name": "main", "port": 80}]}
    return [m.manifest("v1", "Service", name, "agents", spec=spec), piece]


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[ExtProcWorld]]:
    made: list[ExtProcWorld] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def world(worlds: list[ExtProcWorld], require: Require, tmp_path_factory: pytest.TempPathFactory) -> ExtProcWorld:
    require("python:grpc")
    require("python:envoy")  # of xds-protos
    if not worlds:
        worlds.append(ExtProcWorld(tmp_path_factory.mktemp("ext_proc")))
    return worlds[0]


def test_heads_are_changed_as_the_processor_says(world: ExtProcWorld):
    response, body = world.ask("/heads/a", b"hello", {"X-Remove": "1", "X-Keep": "2"})
    assert (response.status, body) == (200, b"hello")
    got = json.loads(response.headers["x-got"])
    assert got["x-processed"] == "request_headers"
    assert got["X-Keep"] == "2"
    assert "X-Remove" not in got
    assert "evil.example" not in got.values()
    assert response.headers["x-processed"] == "response_headers"


@pytest.mark.parametrize("route", ["buffered", "streamed", "duplex"])
@pytest.mark.parametrize("size", [1, 1000, 500_000])
def test_bodies_larger_than_the_windows_are_changed_both_ways(world: ExtProcWorld, route: str, size: int):
    body = b"abcdefghij" * (size // 10 or 1)
    response, said = world.ask(f"/{route}/a", body)
    assert response.status == 200
    assert said == body.upper()
    assert world.processor.bodies[route] <= (len(body) if route == "buffered" else 65536) or size < 500_000


@pytest.mark.parametrize("route", ["buffered", "streamed", "duplex"])
def test_many_exchanges_at_once_share_connections(world: ExtProcWorld, route: str):
    bodies = [bytes([65 + number % 26]) * (50_000 + number) for number in range(24)]
    with futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: world.ask(f"/{route}/many", body)[1], bodies))
    assert answers == bodies


@pytest.mark.parametrize("route", ["streamed", "duplex"])
def test_events_are_changed_as_they_come(world: ExtProcWorld, route: str):
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=WAIT_S)
    connection.request("GET", f"/{route}/events")
    response = connection.getresponse()
    assert response.read1(9) == b"DATA: ONE"
    assert response.read() == b"\n\nDATA: TWO\n\nDATA: THREE\n\n"
    connection.close()


def test_an_immediate_response_is_what_the_client_gets(world: ExtProcWorld):
    response, body = world.ask("/heads/immediate", b"hello")
    assert (response.status, body) == (451, b"not today")
    record = world.record("/heads/immediate")
    assert (record["reason"], record["detail"]) == ("filter_rejected", "because")


def test_who_observes_sees_all_and_holds_up_nothing(world: ExtProcWorld):
    response, body = world.ask("/observed/a", b"hello")
    assert (response.status, body) == (200, b"hello")
    parts = ["request_headers", "request_body", "response_headers", "response_body"]
    wait_until(
        lambda: list(dict.fromkeys(part for route, part in world.processor.seen if route == "observed")) == parts
    )


@pytest.mark.parametrize("route", FAILING)
def test_a_processor_that_fails_is_closed(world: ExtProcWorld, route: str):
    response, _ = world.ask(f"/{route}/closed", b"hello")
    assert response.status == 502
    assert world.record(f"/{route}/closed")["reason"] == "filter_failed"


@pytest.mark.parametrize("route", FAILING)
def test_a_processor_that_fails_is_open_where_it_is_said(world: ExtProcWorld, route: str):
    response, body = world.ask(f"/{route}/open", b"hello")
    assert (response.status, body) == (200, b"hello")


def test_streams_end_with_their_exchanges(world: ExtProcWorld):
    before = len(world.processor.ended)
    for _ in range(5):
        world.ask("/heads/end", b"x")
    wait_until(lambda: len(world.processor.ended) >= before + 5)
