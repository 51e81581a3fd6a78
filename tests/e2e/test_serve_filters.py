"""`egressproxy serve-filters` as a process, asked by a client that says what Envoy says, and what it never would."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.envoy.ext_proc.messages import (
    PROCESS,
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StreamedBody,
)
from egressproxy.envoy.ext_proc.wire import read_response, request_bytes
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.protocols.grpc.framing import GrpcMessageReader, framed
from egressproxy.protocols.grpc.health import CHECK, NOT_SERVING, SERVING, check_message
from tests.support import manifests as m
from tests.support.http2_client import Http2Client
from tests.support.process import GatewayProcess
from tests.support.trailing_filter import trailing_filter
from tests.support.waiting import WAIT_S, wait_until

UPPER = """
from egressproxy.filters import Filter


class Upper(Filter):
    def request_body(self, x, data, last):
        return data.upper()

    response_body = request_body
"""
WHOLE = """
from egressproxy.filters import BodyMode, Filter


class Whole(Filter):
    body_mode = BodyMode.BUFFER

    def request_body(self, x, data, last):
        return b"[" + data + b"]"

    response_body = request_body
"""
WHO = """
from egressproxy.filters import Filter


class Who(Filter):
    def request_headers(self, x):
        x.request.fields.set(b"x-client", x.client.encode())
        x.request.fields.set(b"x-who", f"{x.identity.namespace}/{x.identity.service_account}".encode())
"""
HOLDS = """
from egressproxy.filters import Filter


class Holds(Filter):
    def response_body(self, x, data, last):
        data = x.notes.get("held", b"") + data if x.notes else data
        if last:
            return data.upper()
        x.note("held", data[-1:])
        return data[:-1].upper()

    def response_trailers(self, x, fields):
        fields.set(b"x-seen", b"response")
"""
SEES = """
from egressproxy.filters import Filter


class Sees(Filter):
    needs_body = True

    def backend_request(self, x):
        x.request.fields.set(b"x-seen", b"<" + (x.body or b"") + b">")
"""
CONNECT = """
from egressproxy.filters import Filter


class Connect(Filter):
    def connect(self, x):
        pass
"""


def rule(name: str, *extensions: m.Manifest, backends: int = 1, parent: str = "gw") -> list[m.Manifest]:
    """A route at /name with these filters, to a backend of that name."""
    refs = [{"group": "egressproxy.io", "kind": "Backend", "name": name}] * backends
    match = [{"path": {"type": "PathPrefix", "value": f"/{name}"}}]
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
    spec = {"targetRefs": [target], "extensions": list(extensions)}
    made = [
        m.backend(name, f"{name}.test", 443, tls=True),
        m.http_route(name, {"matches": match, "backendRefs": refs}, parent=parent),
    ]
    if extensions:
        made.append(m.manifest("egressproxy.io/v1alpha1", "EgressPolicy", name, "agents", spec=spec))
    return made


def python(file: str, phase: str) -> m.Manifest:
    return {"name": f"{file}-{phase}", "type": "egressproxy.io/Python:v1", "phase": phase, "config": {"path": file}}


def header(value: str, name: str = "X-Set") -> m.Manifest:
    config = {"request": {"set": [{"name": name, "value": value}]}}
    return {"name": "set", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": config}


def configuration(*more: m.Manifest, name: str = "gw") -> list[m.Manifest]:
    return [m.gateway(m.http_listener(80), name=name), *more]


FILTERED = (
    *rule("set", header("1")),
    *rule("upper", python("upper.py", "request-body"), python("upper.py", "response-body")),
    *rule("whole", python("whole.py", "request-body"), python("whole.py", "response-body")),
    *rule("who", python("who.py", "request-headers")),
    *rule("trails", python("trails.py", "request-headers"), python("trails.py", "response-headers")),
    *rule("wholetrails", python("trails.py", "request-headers"), python("whole.py", "request-body")),
    *rule("holds", python("holds.py", "response-body")),
    *rule("plain"),
)


#: How docs/serve-filters.md configures Envoy.
BUFFERED = ProtocolConfiguration(BodySendMode.BUFFERED, BodySendMode.BUFFERED)


class Envoy:
    """Calls over one connection."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(str(path))
        self.client = Http2Client()

    def flush(self) -> None:
        if said := self.client.outgoing():
            self.sock.sendall(said)

    def hear(self) -> bool:
        self.flush()
        said = self.sock.recv(65536)
        self.client.take(said)
        self.flush()
        return bool(said)

    def call(self, path: bytes = PROCESS, **metadata: str) -> Call:
        return Call(self, path, metadata)

    def unary(self, path: bytes, message: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
        call = self.call(path)
        call.say(framed(message), ends=True)
        return call.rest(), call.trailers()


class Call:
    def __init__(self, envoy: Envoy, path: bytes, metadata: dict[str, str]) -> None:
        self.envoy = envoy
        lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in metadata.items()]
        self.stream = envoy.client.request(
            [
                (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"filters"), (b":path", path),
                (b"te", b"trailers"), (b"content-type", b"application/grpc"), *lines,
            ],
            ends=False,
        )  # fmt: skip
        self.answer = envoy.client.of(self.stream)
        self.reader = GrpcMessageReader(1 << 24)
        self.taken = 0
        self.messages: list[bytes] = []

    def say(self, data: bytes, *, ends: bool = False) -> None:
        self.envoy.client.h2.send_data(self.stream, data, end_stream=ends)
        self.envoy.flush()

    def ask(self, request: ProcessingRequest) -> ProcessingResponse:
        self.say(framed(request_bytes(request)))
        return self.next()

    def head(
        self, path: str, *fields: tuple[bytes, bytes], ends: bool = True, method: bytes = b"GET", **more: Any
    ) -> ProcessingResponse:
        lines = (
            (b":method", method), (b":scheme", b"https"), (b":authority", b"api.test"), (b":path", path.encode()),
            *fields,
        )  # fmt: skip
        more.setdefault("protocol", BUFFERED)
        return self.ask(ProcessingRequest(MessagePart.REQUEST_HEADERS, lines, end_of_stream=ends, **more))

    def response(self, *fields: tuple[bytes, bytes], ends: bool = False, status: bytes = b"200") -> ProcessingResponse:
        return self.ask(
            ProcessingRequest(MessagePart.RESPONSE_HEADERS, ((b":status", status), *fields), end_of_stream=ends)
        )

    def body(self, part: MessagePart, data: bytes, *, ends: bool) -> ProcessingResponse:
        return self.ask(ProcessingRequest(part, body=data, end_of_stream=ends))

    def _collect(self) -> None:
        new = bytes(self.answer.data[self.taken :])
        self.taken += len(new)
        self.messages += self.reader.feed(new)

    def next(self) -> ProcessingResponse:
        self._collect()
        while not self.messages:
            assert not self.answer.is_whole, self.answer
            assert self.envoy.hear(), self.answer
            self._collect()
        return read_response(self.messages.pop(0))

    def rest(self) -> list[bytes]:
        while not self.answer.is_whole:
            assert self.envoy.hear(), self.answer
        self._collect()
        return self.messages

    def trailers(self) -> dict[bytes, bytes]:
        self.rest()
        return dict(self.answer.trailers or self.answer.fields)


def refusal(response: ProcessingResponse) -> tuple[int, dict[str, Any]]:
    assert response.immediate is not None
    return response.immediate.status, json.loads(response.immediate.body)["error"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with process(tmp_path_factory.mktemp("filters"), configuration(*FILTERED)) as made:
        yield made


def process(folder: Path, objects: list[m.Manifest], *arguments: str) -> GatewayProcess:
    listen = ["--listen", f"unix:{folder / 'f.sock'}"]
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}  # Envoy's own spans are enough
    made = GatewayProcess(folder / "p", (), arguments=[*listen, *arguments], environment=traces, verb="serve-filters")
    for name, text in (
        ("upper", UPPER),
        ("whole", WHOLE),
        ("who", WHO),
        ("connect", CONNECT),
        ("sees", SEES),
        ("trails", trailing_filter()),
        ("holds", HOLDS),
    ):
        (made.config / f"{name}.py").write_text(text)
    made.replace(objects)
    return made


def socket_of(served: GatewayProcess) -> Path:
    return served.config.parent.parent / "f.sock"


@pytest.fixture
def envoy(served: GatewayProcess) -> Iterator[Envoy]:
    made = Envoy(socket_of(served))
    yield made
    made.sock.close()


# --- one exchange ----------------------------------------------------------------------------------------------------
def test_a_rule_without_backends_has_the_body_that_its_filters_need(tmp_path: Path):
    with process(tmp_path, configuration(*rule("sees", python("sees.py", "backend-request"), backends=0))) as served:
        call = Envoy(socket_of(served)).call()
        asked = call.head("/sees", (b"content-length", b"6"), ends=False, method=b"POST")
        assert not asked.headers
        sent = call.body(MessagePart.REQUEST_BODY, b"secret", ends=True)
        assert (b"x-seen", b"<secret>") in [(change.name, change.value) for change in sent.headers]
        asked = Envoy(socket_of(served)).call().head("/sees", (b"max-forwards", b"0"), method=b"OPTIONS")
        assert asked.immediate is None, "Envoy counts the hops"


def test_a_second_head_of_a_response_is_refused(envoy: Envoy):
    call = envoy.call()
    call.head("/upper")
    call.response((b"content-length", b"3"))
    assert call.response((b"content-length", b"3")).immediate is not None


def test_only_what_changes_is_said(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/set", (b"x-set", b"0"), (b"x-set", b"2"), (b"accept", b"*/*"))
    assert asked == ProcessingResponse(
        MessagePart.REQUEST_HEADERS,
        headers=(FieldChange(b"x-set", FieldAction.SET, b"1"),),
        mode_override=asked.mode_override,
    )
    assert call.response(ends=True) == ProcessingResponse(MessagePart.RESPONSE_HEADERS)
    assert call.trailers()[b"grpc-status"] == b"0"


def test_bodies_that_no_filter_reads_are_not_asked_for(envoy: Envoy):
    call = envoy.call()
    protocol = ProtocolConfiguration(BodySendMode.STREAMED, BodySendMode.BUFFERED)
    asked = call.head("/plain", ends=False, method=b"POST", protocol=protocol)
    assert asked.mode_override is not None
    assert asked.mode_override.request_body_mode is BodySendMode.NONE
    assert asked.mode_override.response_body_mode is BodySendMode.NONE
    assert call.response() == ProcessingResponse(MessagePart.RESPONSE_HEADERS)
    assert call.trailers()[b"grpc-status"] == b"0"


def test_a_stream_is_answered_piece_by_piece(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/upper", ends=False, method=b"POST")
    assert asked.mode_override is not None
    assert asked.mode_override.request_body_mode is BodySendMode.STREAMED
    assert call.body(MessagePart.REQUEST_BODY, b"ab", ends=False).body == b"AB"
    assert call.body(MessagePart.REQUEST_BODY, b"AB", ends=False).body is None
    answered = call.response()  # before the end of the request
    assert answered.mode_override is not None
    assert answered.mode_override.response_body_mode is BodySendMode.STREAMED
    assert answered.mode_override.request_body_mode is BodySendMode.STREAMED
    assert call.body(MessagePart.RESPONSE_BODY, b"x", ends=False).body == b"X"
    assert call.body(MessagePart.REQUEST_BODY, b"c", ends=True).body == b"C"
    assert call.body(MessagePart.RESPONSE_BODY, b"y", ends=True).body == b"Y"
    assert call.trailers()[b"grpc-status"] == b"0"


def test_a_whole_body_comes_before_its_head_goes(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/whole", (b"content-length", b"3"), ends=False, method=b"POST")
    assert asked.headers == ()
    assert asked.mode_override is not None
    assert asked.mode_override.request_body_mode is BodySendMode.BUFFERED
    sent = call.body(MessagePart.REQUEST_BODY, b"abc", ends=True)
    assert sent.body == b"[abc]"
    assert sent.headers == (FieldChange(b"content-length", FieldAction.SET, b"5"),)


def test_envoy_that_ignores_what_is_asked_for_gets_no_request_through(envoy: Envoy, served: GatewayProcess):
    call = envoy.call()
    call.head("/whole", (b"content-length", b"3"), ends=False, method=b"POST")
    status, error = refusal(call.response())
    assert status == 500
    assert "without the body" in error["message"]
    assert "allow_mode_override" in error["remedy"]


@pytest.mark.parametrize(
    "protocol",
    [
        ProtocolConfiguration(BodySendMode.FULL_DUPLEX_STREAMED),
        ProtocolConfiguration(response_body_mode=BodySendMode.GRPC),
        ProtocolConfiguration(send_body_without_waiting_for_header_response=True),
    ],
)
def test_a_mode_that_cannot_be_changed_is_refused(envoy: Envoy, protocol: ProtocolConfiguration):
    status, error = refusal(envoy.call().head("/plain", protocol=protocol))
    assert (status, error["reason"]) == (500, "filter_failed")


def test_a_body_behind_its_end_is_refused(envoy: Envoy):
    call = envoy.call()
    call.head("/upper", ends=False, method=b"POST")
    assert call.body(MessagePart.REQUEST_BODY, b"a", ends=True).body == b"A"
    assert refusal(call.body(MessagePart.REQUEST_BODY, b"b", ends=True))[0] == 500


def test_what_a_client_says_of_its_identity_is_removed(envoy: Envoy):
    asked = envoy.call().head(
        "/plain", (b"x-egress-identity", b"me"), (b"proxy-authorization", b"Basic x"), (b"te", b"trailers")
    )
    assert asked.headers == (
        FieldChange(b"proxy-authorization", FieldAction.REMOVE), FieldChange(b"x-egress-identity", FieldAction.REMOVE),
    )  # fmt: skip


def test_a_malformed_request_is_refused(envoy: Envoy):
    status, error = refusal(envoy.call().head("/plain", (b"a b", b"1")))
    assert (status, error["reason"]) == (400, "bad_field")


def test_connect_is_refused(envoy: Envoy):
    call = envoy.call()
    lines = ((b":method", b"CONNECT"), (b":authority", b"api.test:443"))
    status, error = refusal(call.ask(ProcessingRequest(MessagePart.REQUEST_HEADERS, lines)))
    assert (status, error["reason"]) == (405, "method_not_allowed")


def test_a_client_of_grpc_is_told_in_its_words(envoy: Envoy):
    refused = envoy.call().head("/nowhere", (b"content-type", b"application/grpc"), ends=False, method=b"POST")
    assert refused.immediate is not None
    assert (refused.immediate.status, refused.immediate.grpc_status) == (200, 12)
    assert refused.immediate.body.startswith(b"no_route")


def test_the_client_is_the_one_that_envoy_tells(envoy: Envoy, served: GatewayProcess):
    asked = envoy.call().head("/who", attributes={"ext_proc": {"source.address": "192.0.2.7:4711"}})
    assert {change.name: change.value for change in asked.headers} == {b"x-client": b"192.0.2.7:4711", b"x-who": b"-/-"}
    told = {"egressproxy.io": {"namespace": "agents", "serviceAccount": "crawler"}}
    asked = envoy.call().head("/who", metadata=told)
    assert FieldChange(b"x-who", FieldAction.SET, b"agents/crawler") in asked.headers
    uri = {"ext_proc": {"connection.uri_san_peer_certificate": "spiffe://cluster.local/ns/agents/sa/crawler"}}
    asked = envoy.call().head("/who", attributes=uri)
    assert FieldChange(b"x-who", FieldAction.SET, b"-/-") in asked.headers  # nobody believes this trust domain


def test_trailers_behind_a_filtered_body_are_dropped(envoy: Envoy):
    call = envoy.call()
    call.head("/upper", ends=True)
    call.response()
    assert call.body(MessagePart.RESPONSE_BODY, b"x", ends=False).body == b"X"
    last = call.ask(ProcessingRequest(MessagePart.RESPONSE_TRAILERS, ((b"x-sum", b"1"), (b"grpc-status", b"0"))))
    assert {change.name for change in last.headers} == {b"x-sum"}


def names(response: ProcessingResponse) -> dict[bytes, bytes | None]:
    """The changes of an answer: None for what is removed."""
    return {change.name: None if change.action is FieldAction.REMOVE else change.value for change in response.headers}


TRAILERS = ((b"x-drop", b"1"), (b"x-kept", b"2"))


def test_trailers_pass_the_filters_that_see_them(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/trails", ends=False, method=b"POST")
    assert asked.mode_override is not None
    assert asked.mode_override.request_body_mode is BodySendMode.NONE
    assert asked.mode_override.request_trailer_mode is HeaderSendMode.SEND
    assert asked.mode_override.response_trailer_mode is HeaderSendMode.SEND
    sent = call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, TRAILERS))
    assert names(sent) == {b"x-drop": None, b"x-seen": b"request"}
    call.response()
    answered = call.ask(ProcessingRequest(MessagePart.RESPONSE_TRAILERS, TRAILERS))
    assert names(answered) == {b"x-drop": None, b"x-seen": b"response"}
    assert call.trailers()[b"grpc-status"] == b"0"


def test_trailers_come_behind_a_whole_body(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/wholetrails", (b"content-length", b"3"), ends=False, method=b"POST")
    assert asked.mode_override is not None
    assert asked.mode_override.request_body_mode is BodySendMode.BUFFERED
    assert asked.mode_override.request_trailer_mode is HeaderSendMode.SEND
    assert call.body(MessagePart.REQUEST_BODY, b"abc", ends=False).body == b"[abc]"
    sent = call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, TRAILERS))
    assert names(sent) == {b"x-drop": None, b"x-kept": None}, "a filter of the body has not seen them"


def test_trailers_that_no_filter_of_the_head_sees_go_no_further(envoy: Envoy):
    call = envoy.call()
    asked = call.head("/set", ends=False, method=b"POST")
    assert asked.mode_override is not None
    assert asked.mode_override.request_trailer_mode is HeaderSendMode.SEND
    sent = call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, TRAILERS))
    assert names(sent) == {b"x-drop": None, b"x-kept": None}


def test_trailers_without_filters_are_not_asked_for(envoy: Envoy):
    asked = envoy.call().head("/plain", ends=False, method=b"POST")
    assert asked.mode_override is not None
    assert asked.mode_override.request_trailer_mode is HeaderSendMode.SKIP
    assert asked.mode_override.response_trailer_mode is HeaderSendMode.SKIP


def test_a_filter_refuses_trailers(envoy: Envoy):
    call = envoy.call()
    call.head("/trails", ends=False, method=b"POST")
    status, error = refusal(call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, ((b"x-bad", b"1"),))))
    assert (status, error["message"]) == (422, "not so late")


@pytest.mark.parametrize("field", [(b"content-length", b"1"), (b"x-forwarded-for", b"192.0.2.1"), (b"host", b"a")])
def test_what_must_not_come_late_does_not(envoy: Envoy, field: tuple[bytes, bytes]):
    call = envoy.call()
    call.head("/trails", ends=False, method=b"POST")
    sent = call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, (field, (b"x-kept", b"2"))))
    assert names(sent) == {field[0]: None, b"x-seen": b"request"}


def test_trailers_that_are_malformed_are_refused(envoy: Envoy):
    call = envoy.call()
    call.head("/trails", ends=False, method=b"POST")
    status, error = refusal(call.ask(ProcessingRequest(MessagePart.REQUEST_TRAILERS, ((b"a b", b"1"),))))
    assert (status, error["reason"]) == (400, "bad_field")


def test_what_a_filter_holds_back_of_a_call_goes_before_its_trailers(envoy: Envoy):
    call = envoy.call()
    call.head("/holds", (b"content-type", b"application/grpc"), ends=True, method=b"POST")
    answered = call.response()
    assert answered.mode_override is not None
    assert answered.mode_override.response_body_mode is BodySendMode.FULL_DUPLEX_STREAMED
    assert call.body(MessagePart.RESPONSE_BODY, b"ab", ends=False).streamed == StreamedBody(b"A")
    said = call.ask(ProcessingRequest(MessagePart.RESPONSE_TRAILERS, ((b"grpc-status", b"0"),)))
    assert said.streamed == StreamedBody(b"B")
    assert names(call.next()) == {b"x-seen": b"response"}


def test_what_a_filter_holds_back_of_another_response_breaks_it_off(envoy: Envoy):
    call = envoy.call()
    call.head("/holds", ends=True)
    call.response()
    assert call.body(MessagePart.RESPONSE_BODY, b"ab", ends=False).body == b"A"
    assert refusal(call.ask(ProcessingRequest(MessagePart.RESPONSE_TRAILERS, ((b"x-sum", b"0"),))))[0] == 500


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/upper", ProtocolConfiguration(BodySendMode.NONE, BodySendMode.BUFFERED)),
        ("/upper", ProtocolConfiguration(BodySendMode.BUFFERED, BodySendMode.NONE)),
        ("/whole", ProtocolConfiguration(BodySendMode.NONE, BodySendMode.BUFFERED)),
        ("/holds", ProtocolConfiguration(BodySendMode.BUFFERED)),
        ("/holds", None),
    ],
)
def test_an_envoy_that_would_send_no_body_if_it_ignored_overrides_is_refused(
    envoy: Envoy, path: str, protocol: ProtocolConfiguration | None
):
    status, error = refusal(envoy.call().head(path, ends=False, method=b"POST", protocol=protocol))
    assert status == 500
    assert "request_body_mode and response_body_mode: BUFFERED" in error["remedy"]


def test_a_piece_is_not_taken_for_a_whole_body(envoy: Envoy):
    call = envoy.call()
    protocol = ProtocolConfiguration(BodySendMode.STREAMED, BodySendMode.BUFFERED)
    call.head("/whole", ends=False, method=b"POST", protocol=protocol)
    status, error = refusal(call.body(MessagePart.REQUEST_BODY, b"[", ends=False))
    assert (status, "needs all of it" in error["message"]) == (500, True)


def test_an_exchange_is_logged_and_counted(envoy: Envoy, served: GatewayProcess):
    mark = served.mark()
    call = envoy.call()
    call.head("/set?secret=1")
    call.response(status=b"418", ends=True)
    call.rest()
    record = served.wait_for_record(since=mark, path="/set")
    assert (record["status"], record["route"], record["backend"]) == (418, "agents/set", "agents/set")
    assert (record["gateway"], record["listener"], record["authority"]) == ("agents/gw", "http", "api.test:443")
    assert "trace_id" not in record


def test_a_client_that_leaves_is_logged(envoy: Envoy, served: GatewayProcess):
    mark = served.mark()
    call = envoy.call()
    call.head("/set")
    envoy.client.h2.reset_stream(call.stream)
    envoy.flush()
    assert served.wait_for_record(since=mark, path="/set")["reason"] == "client_gone"


def test_many_calls_that_are_reset_are_no_flood(envoy: Envoy):
    for _ in range(1000):
        call = envoy.call()
        call.head("/set")
        envoy.client.h2.reset_stream(call.stream)
    assert envoy.call().head("/set").part is MessagePart.REQUEST_HEADERS


# --- calls that are none ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (framed(b"\xff\xff"), b"3"),
        (framed(b""), b"3"),
        (b"\1\0\0\0\1x", b"12"),
        (b"\0\xff\xff\xff\xff", b"8"),
    ],
    ids=["no-message", "empty", "compressed", "too-long"],
)
def test_what_is_no_message_ends_the_call(envoy: Envoy, data: bytes, status: bytes):
    call = envoy.call()
    call.say(data)
    assert call.trailers()[b"grpc-status"] == status
    assert envoy.call().head("/set").part is MessagePart.REQUEST_HEADERS


def test_a_call_that_begins_with_another_part_is_refused(envoy: Envoy):
    assert refusal(envoy.call().response())[0] == 500


def test_another_method_is_not_implemented(envoy: Envoy):
    assert envoy.unary(b"/a.B/C", b"")[1][b"grpc-status"] == b"12"


def test_health(envoy: Envoy):
    assert envoy.unary(CHECK, b"") == ([SERVING], {b"grpc-status": b"0"})
    name = "envoy.service.ext_proc.v3.ExternalProcessor"
    assert envoy.unary(CHECK, check_message(name))[0] == [SERVING]
    assert envoy.unary(CHECK, check_message("other"))[1][b"grpc-status"] == b"5"


# --- which Gateway ---------------------------------------------------------------------------------------------------
def test_the_call_names_the_gateway_and_the_listener(tmp_path: Path):
    two = m.gateway(m.http_listener(82), m.http_listener(81, name="other"), name="two")
    objects = [*configuration(*rule("set", header("1"))), two, *rule("second", header("2"), parent="two")]
    with process(tmp_path, objects) as made:
        envoy = Envoy(tmp_path / "f.sock")
        status, error = refusal(envoy.call().head("/set"))
        assert status == 500
        assert "agents/gw, agents/two" in error["message"]
        assert envoy.call(egressproxy_gateway="agents/gw").head("/set").headers[0].value == b"1"
        assert "several ports" in refusal(envoy.call(egressproxy_gateway="agents/two").head("/second"))[1]["message"]
        call = envoy.call(egressproxy_gateway="agents/two", egressproxy_listener="other")
        assert call.head("/second").headers[0].value == b"2"
        assert refusal(envoy.call(egressproxy_gateway="agents/none").head("/set"))[0] == 500
        assert "initial_metadata" in made.stderr
        envoy.sock.close()


def test_a_spiffe_id_of_a_domain_that_is_believed(tmp_path: Path):
    with process(tmp_path, configuration(*FILTERED), "--trust-domain", "cluster.local"):
        envoy = Envoy(tmp_path / "f.sock")
        uri = {"ext_proc": {"connection.uri_san_peer_certificate": "spiffe://cluster.local/ns/agents/sa/crawler"}}
        assert (
            FieldChange(b"x-who", FieldAction.SET, b"agents/crawler")
            in envoy.call().head("/who", attributes=uri).headers
        )
        envoy.sock.close()


def test_a_policy_for_some_clients_is_for_them_alone(tmp_path: Path):
    target = {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": "plain"}
    limits = {"requests": [{"per": "Identity", "limit": 1, "window": "1h"}]}
    theirs = m.policy(subjects=[{"namespace": "agents"}], limits=limits, targetRefs=[target])
    with process(tmp_path, configuration(*rule("plain"), theirs)):
        envoy = Envoy(tmp_path / "f.sock")

        def asked(namespace: str) -> ProcessingResponse:
            told = {"egressproxy.io": {"namespace": namespace, "serviceAccount": "crawler"}}
            return envoy.call().head("/plain", metadata=told)

        assert asked("agents").immediate is None
        assert refusal(asked("agents"))[0] == 429
        assert asked("others").immediate is None
        assert asked("others").immediate is None
        envoy.sock.close()


# --- its life --------------------------------------------------------------------------------------------------------
def test_a_rule_that_cannot_hold_is_refused_at_the_start_and_by_a_reload(tmp_path: Path):
    bad = configuration(*rule("connects", python("connect.py", "connect")), *rule("weighs", backends=2))
    with pytest.raises(RuntimeError) as refused:
        process(tmp_path / "a", bad).start()
    assert "HTTPRoute agents/connects: filter connect.py-connect" in str(refused.value)
    assert "HTTPRoute agents/weighs: several backends" in str(refused.value)
    with process(tmp_path / "b", configuration(*rule("set", header("1")))) as made:
        made.replace(bad)
        made.wait_for_diagnostics("HTTPRoute agents/weighs: several backends")
        envoy = Envoy(tmp_path / "b" / "f.sock")
        assert envoy.call().head("/set").headers[0].value == b"1"
        envoy.sock.close()


def test_a_reload_holds_for_the_next_exchange(tmp_path: Path):
    with process(tmp_path, configuration(*rule("set", header("1")))) as made:
        envoy = Envoy(tmp_path / "f.sock")
        assert envoy.call().head("/set").headers[0].value == b"1"
        made.reload(configuration(*rule("set", header("2"))))
        assert envoy.call().head("/set").headers[0].value == b"2"
        envoy.sock.close()


@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize("body", [b"", b"aaaa"])
def test_what_waited_for_a_person_is_decided_by_the_configuration_in_force(tmp_path: Path, body: bytes, denied: bool):
    hold = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1"}
    rewritten = m.prefix_rule("/v1", "api", rewrite="/other")
    objects = configuration(m.backend("api", "api.test", 443, tls=True), m.http_route("api", rewritten))
    deny = {"destinations": {"deny": [{"hostnames": ["api.test"]}]}} if denied else {}
    with process(tmp_path, [*objects, m.policy(extensions=[hold])]) as made:
        envoy = Envoy(tmp_path / "f.sock")
        call = envoy.call()
        lines = (
            (b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"api.test"), (b":path", b"/v1/pay"),
        )  # fmt: skip
        head = ProcessingRequest(MessagePart.REQUEST_HEADERS, lines, end_of_stream=not body, protocol=BUFFERED)
        if body:
            call.ask(head)
            call.say(framed(request_bytes(ProcessingRequest(MessagePart.REQUEST_BODY, body=body, end_of_stream=True))))
        else:
            call.say(framed(request_bytes(head)))
        wait_until(lambda: json.loads(made.admin("/holds")[1])["holds"])
        (found,) = json.loads(made.admin("/holds")[1])["holds"]
        made.reload([*objects, m.policy(extensions=[hold], **deny)])
        at = f"127.0.0.1:{made.admin_port}"
        assert CliRunner().invoke(main, ["holds", "approve", found["id"], "--admin", at]).exit_code == 0
        answer = call.next()
        if denied:
            assert refusal(answer)[0] == 403
            assert refusal(answer)[1]["reason"] == "destination_denied"
        else:
            assert FieldChange(b":path", FieldAction.SET, b"/other/pay") in answer.headers
        envoy.sock.close()


def test_a_drain_ends_what_is_under_way_and_takes_no_more(tmp_path: Path):
    made = process(tmp_path, configuration(*rule("set", header("1")))).start()
    envoy = Envoy(tmp_path / "f.sock")
    call = envoy.call()
    call.head("/set")
    made._process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    wait_until(lambda: envoy.hear() and envoy.client.goaways)
    assert call.response(ends=True).part is MessagePart.RESPONSE_HEADERS
    assert made.stop() == 0
    assert not (tmp_path / "f.sock").exists()
    assert "cut" not in made.stderr


def test_the_socket_is_for_its_owner(served: GatewayProcess):
    assert socket_of(served).stat().st_mode & 0o777 == 0o600


def test_a_socket_that_nobody_serves_is_replaced_and_another_is_not(tmp_path: Path):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "f.sock"))
    stale.close()
    with process(tmp_path, configuration(*FILTERED)):
        second = GatewayProcess(
            tmp_path / "q", configuration(*rule("set", header("1"))), verb="serve-filters",
            arguments=["--listen", f"unix:{tmp_path / 'f.sock'}"],
        )  # fmt: skip
        with pytest.raises(RuntimeError, match="Address already in use"):
            second.start()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:9000"], "--tls-cert"),
        (["--listen", "unix:"], "1 to 107 bytes"),
        (["--listen", "127.0.0.1:9000", "--tls-key", __file__], "TLS needs all"),
        (["--listen", "127.0.0.1:9000", "--socket-mode", "rw"], "octal"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, tmp_path: Path):
    command = [sys.executable, "-m", "egressproxy", "serve-filters", "--config", str(tmp_path), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 2
    assert words in ran.stderr


def test_not_serving_is_another_word():
    assert NOT_SERVING != SERVING
