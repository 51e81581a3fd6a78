"""WebSockets of OpenAI's responses whose messages pass filters: the same refusals, changes and counts as in HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable
from typing import Any

import pytest

from egressproxy.filters.base import Filter, OfMessages, Phase
from egressproxy.gateway.exchange import message_relay, websocket_end
from egressproxy.gateway.identity import authenticator
from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
from egressproxy.identity.api_keys import new_record
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http2.head_fields import websocket_accept
from egressproxy.protocols.websocket.frames import (
    CloseCode,
    FrameReader,
    Opcode,
    WebSocketEvent,
    close_payload,
    frame,
)
from tests.ai.backends.test_aliases import endpoint
from tests.gateway.backends.test_failover import asked, refuse
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.identity.test_api_keys import IDENTITY, OTHER, keys
from tests.gateway.identity.test_api_keys import KEY as API_KEY
from tests.support import manifests as m
from tests.support.collector import Seen, traced
from tests.support.conversation import Conversation, Peer, scripted_filter

KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="
SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: %b\r\n%b\r\n"
)
CREATE = {"type": "response.create", "model": "gpt-5", "input": "hello"}
USAGE = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
COMPLETED = {"type": "response.completed", "response": {"id": "r", "model": "gpt-5", "usage": USAGE, "output": []}}
TOKENS = [{"type": "Tokens", "limit": 50, "unit": "Day", "name": "daily"}]


def filters(**configs: Any) -> list[m.Manifest]:
    """Extensions of these types, in this order."""
    return [
        {"name": name.lower(), "type": f"egressproxy.io/{name}:v1", "phase": "request-headers", "config": config}
        for name, config in configs.items()
    ]


def config(*extensions: m.Manifest, **policy: Any) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=list(extensions), **policy),
        m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]


class Side:
    """A side of the WebSocket, as its peer sees it: `says` messages, and takes those that the gateway sends."""

    def __init__(self, peer: Peer, *, is_client: bool, deflates: bool = False) -> None:
        self.peer = peer
        self.is_client = is_client
        self.reader = FrameReader(is_masked=not is_client, deflates=False, max_message=1 << 24)
        self.deflating = zlib.compressobj(wbits=-15) if deflates else None
        self.events: list[WebSocketEvent] = []

    def says(self, *messages: dict[str, Any] | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            if self.deflating is None:
                self.sends(frame(Opcode.TEXT, data, masks=self.is_client))
                continue
            data = (self.deflating.compress(data) + self.deflating.flush(zlib.Z_SYNC_FLUSH))[:-4]
            made = bytearray(frame(Opcode.TEXT, data, masks=self.is_client))
            made[0] |= 0x40
            self.sends(bytes(made))

    def sends(self, data: bytes) -> None:
        self.peer >> data

    def take(self) -> WebSocketEvent:
        """What the gateway has sent next."""

        def look() -> bool:
            got = bytes(self.peer.received)
            self.peer.received.clear()
            self.events += self.reader.feed(got)
            return bool(self.events)

        assert self.peer.talk.until(look), "the gateway has sent nothing"
        return self.events.pop(0)

    def hears(self) -> Any:
        event = self.take()
        assert event.opcode == Opcode.TEXT, event
        return json.loads(event.data)

    def hears_nothing(self) -> None:
        self.peer.talk.settle()
        self.events += self.reader.feed(bytes(self.peer.received))
        self.peer.received.clear()
        assert not self.events

    def is_closed_with(self, code: int) -> str:
        event = self.take()
        assert event.opcode == Opcode.CLOSE, event
        assert int.from_bytes(event.data[:2], "big") == code, event
        return event.data[2:].decode()


def upgrade(path: bytes = b"/v1/responses", *fields: bytes) -> bytes:
    lines = [
        b"GET %b HTTP/1.1" % path, b"Host: gw:8080", b"Connection: Upgrade", b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + KEY, *fields,
    ]  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n"


def opened(talk: Conversation, *fields: bytes, offers: bytes = b"", accepts: bytes = b"") -> tuple[Side, Side]:
    """A WebSocket of the first client, and the head that the server got in `talk.head`."""
    extension = b"Sec-WebSocket-Extensions: "
    talk.client >> upgrade(b"/v1/responses", *fields, *([extension + offers] if offers else []))
    head = asked(talk, "a", b"GET")
    assert head.startswith(b"GET /v1/responses ")
    talk.origin >> SWITCHING % (websocket_accept(KEY), extension + accepts + b"\r\n" if accepts else b"")
    talk.client.take(rb"(?s)HTTP/1.1 101 .*?\r\n\r\n")
    deflates = b"permessage-deflate" in accepts
    return (
        Side(talk.client, is_client=True, deflates=deflates),
        Side(talk.origin, is_client=False, deflates=deflates),
    )


def text_of(*pieces: str) -> list[dict[str, Any]]:
    item = {"item_id": "i", "output_index": 0, "content_index": 0}
    return [{"type": "response.output_text.delta", "delta": piece, **item} for piece in pieces]


TOOLS = filters(ToolPolicy={"tools": {"allow": [{"names": ["look"]}]}})
CALL = {
    "type": "response.output_item.done", "output_index": 0,
    "item": {"type": "function_call", "id": "f", "call_id": "c", "name": "shell", "arguments": "{}"},
}  # fmt: skip


# --- what passes --------------------------------------------------------------------------------------------------
def test_a_response_passes_as_it_is_and_has_a_line_of_its_own(converse_on: Start):
    talk = converse_on(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE)
    assert server.hears() == CREATE
    server.says({"type": "response.created", "response": {"id": "r"}}, *text_of("hi"), COMPLETED)
    assert [client.hears()["type"] for _ in range(3)] == [
        "response.created", "response.output_text.delta", "response.completed",
    ]  # fmt: skip
    record = talk.record()
    assert (record["method"], record["path"], record["status"], record["backend"]) == (
        "POST", "/v1/responses", 200, "agents/a",
    )  # fmt: skip
    client.says({"type": "response.processed", "response_id": "r"})
    assert server.hears()["type"] == "response.processed"
    client.sends(frame(Opcode.CLOSE, close_payload(1000, "bye"), masks=True))
    assert server.is_closed_with(1000) == "bye"
    server.sends(frame(Opcode.CLOSE, close_payload(1000), masks=False))
    assert client.is_closed_with(1000) == "bye"
    talk.client.is_closed()
    whole = talk.record(1)
    assert (whole["method"], whole["status"], whole["reason"]) == ("GET", 101, "-")
    assert record["websocket"] == whole["request_id"]


def test_one_response_follows_the_other(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE, {**CREATE, "input": "more"})
    assert server.hears()["input"] == "hello"
    server.hears_nothing()  # the second waits, so that each event belongs to one response
    server.says(COMPLETED)
    assert client.hears()["type"] == "response.completed"
    assert server.hears()["input"] == "more"


@pytest.mark.parametrize("tracing", [{}, {"continues": False}, {"parent_share": 0.0}], ids=["usual", "new", "sampled"])
def test_a_response_is_below_its_websocket_in_a_trace(converse: Start, tracing: dict[str, Any]):
    talk = converse(traced(config(*filters(TokenMeter={})), **tracing))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    server.says(COMPLETED)
    client.hears()
    talk.client.leaves()
    response, upgrade_span, attempt, *_ = Seen(talk).spans
    assert (response.name, upgrade_span.name, attempt.name) == ("POST", "GET", "GET")
    assert response.trace_id == upgrade_span.trace_id
    assert response.parent_span_id == attempt.span_id


def test_pings_are_answered_while_a_response_is_under_way(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    client.sends(frame(Opcode.PING, b"a", masks=True))
    assert client.take() == WebSocketEvent(Opcode.PONG, b"a")
    server.sends(frame(Opcode.PING, b"b", masks=False))
    assert server.take() == WebSocketEvent(Opcode.PONG, b"b")


def test_compressed_messages_are_read_and_go_on_as_they_are(converse: Start):
    """Each refers to those before it. What is not understood is not offered."""
    talk = converse(config(*TOOLS))
    offers = b"x-other, permessage-deflate; client_max_window_bits"
    client, server = opened(talk, offers=offers, accepts=b"permessage-deflate")
    for _ in range(2):
        client.says(CREATE)
        assert server.hears() == CREATE
        server.says(*text_of("again and again"), COMPLETED)
        assert client.hears()["delta"] == "again and again"
        client.hears()
    shell = {"type": "function", "name": "shell"}
    client.says({**CREATE, "tool_choice": shell, "tools": [shell]})
    assert client.hears()["error"]["code"] == "filter_rejected"


def test_offers_that_are_not_understood_do_not_go_on(converse: Start):
    talk = converse(config(*TOOLS))
    talk.client >> upgrade(b"/v1/responses", b"Sec-WebSocket-Extensions: x-other; a=1, permessage-deflate", b"X-A: 1")
    head = asked(talk, "a", b"GET").lower()
    assert re.findall(rb"sec-websocket-extensions: ([^\r]*)", head) == [b"permessage-deflate"]
    talk.origin >> (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Extensions: x-other\r\n\r\n"
    )
    talk.client.take(rb"(?s)HTTP/1.1 502 .*?extension.*\Z")
    assert talk.record()["reason"] == "upstream_bad_response"


def test_a_route_without_such_filters_passes_bytes(converse: Start):
    talk = converse(config(*filters(HeaderPolicy={"request": {"set": [{"name": "X-A", "value": "b"}]}})))
    client, server = opened(talk, offers=b"x-other")
    client.sends(b"no frame at all")
    server.peer << b"no frame at all"


# --- requests ------------------------------------------------------------------------------------------------------
def test_a_request_that_is_refused_is_told_so_and_the_server_does_not_see_it(converse: Start):
    talk = converse(config(*filters(ModelPolicy={"allow": ["gpt-5"]})))
    client, server = opened(talk)
    client.says({**CREATE, "model": "o9"})
    told = client.hears()
    assert (told["type"], told["status"], told["error"]["type"]) == ("error", 403, "permission_error")
    assert "o9" in told["error"]["message"]
    server.hears_nothing()
    record = talk.record()
    assert (record["status"], record["reason"]) == (403, "model_denied")
    client.says(CREATE)
    assert server.hears() == CREATE


def test_the_model_of_an_alias_goes_out(converse: Start):
    talk = converse(config(*filters(ModelPolicy={"aliases": [{"name": "fast", "model": "gpt-5"}]})))
    client, server = opened(talk)
    client.says({**CREATE, "model": "fast"})
    assert server.hears() == CREATE


def test_a_tool_that_may_not_be_offered_is_taken_out(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("look", "shell")]
    client.says({**CREATE, "tools": tools})
    assert [tool["name"] for tool in server.hears()["tools"]] == ["look"]


def test_placeholders_stand_for_values_as_long_as_the_server_may_remember_them(converse: Start):
    pii = filters(PIIDetector={"entities": [{"name": "EMAIL", "action": "Placeholder"}], "applyTo": "Requests"})
    talk = converse(config(*pii))
    client, server = opened(talk)
    client.says({**CREATE, "input": "write to ann@corp.example"})
    assert server.hears()["input"] == "write to <EMAIL_1>"
    server.says(*text_of("to <EMA", "IL_1>, done"), {"type": "response.output_text.done", "text": "to <EMAIL_1>, done",
                "item_id": "i", "output_index": 0, "content_index": 0}, COMPLETED)  # fmt: skip
    heard = []
    while not heard or heard[-1]["type"] != "response.completed":
        heard.append(client.hears())
    assert "".join(each.get("delta", "") for each in heard) == "to ann@corp.example, done"
    assert next(each["text"] for each in heard if "text" in each) == "to ann@corp.example, done"
    client.says({**CREATE, "input": "and bob@corp.example", "previous_response_id": "r"})
    assert server.hears()["input"] == "and <EMAIL_2>"
    server.says(*text_of("<EMAIL_1>, <EMAIL_2>"), COMPLETED)
    assert client.hears()["delta"] == "ann@corp.example, bob@corp.example"
    client.hears()
    client.says({**CREATE, "input": "once more", "previous_response_id": "r"})  # without a value of its own
    server.hears()
    server.says(*text_of("<EMAIL_1>"), COMPLETED)
    assert client.hears()["delta"] == "ann@corp.example"


def test_tokens_count_for_each_response(converse: Start):
    talk = converse(config(*filters(QoSController={"limits": TOKENS, "outputTokens": 10})))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    server.says(COMPLETED)
    client.hears()
    client.says(CREATE)
    server.hears()
    server.says(COMPLETED)
    client.hears()
    client.says(CREATE)  # 60 of 50 tokens are used
    told = client.hears()
    assert (told["status"], told["error"]["code"]) == (429, "token_rate")
    assert int(told["headers"]["retry-after"]) > 0
    server.hears_nothing()
    assert [record["status"] for record in talk.records] == [200, 200, 429]


@pytest.mark.parametrize("more", [[], [*TOKENS, {"type": "Concurrency", "limit": 1, "name": "one"}]])
def test_a_limit_on_requests_counts_each_response(converse: Start, more: list[dict[str, Any]]):
    requests = {"type": "Requests", "limit": 2, "unit": "Day", "name": "n", "per": ["Identity"]}
    talk = converse(config(*TOOLS, *filters(QoSController={"limits": [requests, *more]})))
    client, server = opened(talk)  # which is a request, too
    client.says(CREATE)
    server.hears()
    server.says(COMPLETED)
    client.hears()
    client.says(CREATE)
    assert client.hears()["error"]["code"] == "request_rate"


def test_a_request_for_another_backend_is_refused(converse: Start):
    routes = {"routes": [{"models": ["gpt-5"], "backend": "agents/b"}]}
    objects = config(*filters(ModelPolicy=routes))
    objects[-1:] = [
        m.backend("b", "b.example", 80),
        m.http_route("route", {"backendRefs": [
            {"group": m.OURS, "kind": "Backend", "name": "a", "weight": 1},
            {"group": m.OURS, "kind": "Backend", "name": "b", "weight": 0},
        ]}),
    ]  # fmt: skip
    talk = converse(objects)
    client, server = opened(talk)
    client.says(CREATE)
    told = client.hears()
    assert told["status"] == 403
    assert "another backend" in told["error"]["message"]
    server.hears_nothing()


@pytest.mark.parametrize(
    "message",
    [
        b"no JSON",
        b'{"type": "response.steer", "input": "x"}',
        b'{"type": "response.create", "response": {"model": "o9"}}',
        b'{"type": "response.create", "Type": "x"}',
        b'{"type": "response.create", "model": "a", "model": "b"}',
        b'{"type": "response.processed", "response_id": "r", "text": "smuggled"}',
        b'[{"type": "response.create"}]',
    ],
)
def test_a_message_that_is_not_understood_ends_the_websocket(converse: Start, message: bytes):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(message)
    told = client.hears()
    assert (told["type"], told["status"]) == ("error", 400)
    assert "cannot be looked at" in client.is_closed_with(CloseCode.POLICY)
    server.is_closed_with(CloseCode.GOING_AWAY)
    record = talk.record()
    assert (record["status"], record["reason"]) == (400, "filter_rejected")


class Slow(Filter):
    """Holds each message until `goes_on`."""

    of_messages = OfMessages.READS
    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def request_headers(self, x: Exchange) -> Awaitable[None] | None:  # type: ignore[override]
        return self._wait() if x.method == b"POST" else None

    async def _wait(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self.waiting.append(waiting)
        await waiting


def test_a_client_that_leaves_while_filters_wait_has_asked_for_nothing(converse: Start):
    slow, limit = Slow(), filters(QoSController={"limits": TOKENS})
    talk = converse(config(*TOOLS, *limit, scripted_filter("slow", timeout="60s")), filters={"slow": slow})
    client, server = opened(talk)
    client.says(CREATE)
    talk.settle()
    client.sends(frame(Opcode.PING, b"", masks=True))
    assert client.take().opcode == Opcode.PONG  # it waits alone
    client.peer.leaves()
    talk.act(lambda: slow.waiting[0].set_result(None))
    server.hears_nothing()
    server.peer.is_closed()
    record = talk.record(0)
    assert (record["status"], record["reason"]) == (499, "client_gone")


# --- answers -------------------------------------------------------------------------------------------------------
def test_a_call_of_a_tool_that_is_denied_ends_the_websocket(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    server.says({"type": "response.created", "response": {"id": "r"}})
    client.hears()
    server.says(CALL)
    told = client.hears()
    assert told["type"] == "error"
    assert "shell" in told["error"]["message"]
    client.is_closed_with(CloseCode.POLICY)
    server.is_closed_with(CloseCode.GOING_AWAY)
    assert talk.record(0)["reason"] == "filter_rejected"


def test_an_error_of_the_server_is_an_answer_without_usage(converse: Start):
    talk = converse(config(*filters(QoSController={"limits": TOKENS}, TokenMeter={})))
    client, server = opened(talk)
    error = {"type": "error", "status": 400, "error": {"code": "previous_response_not_found", "message": "no"}}
    client.says(CREATE)
    server.hears()
    server.says(error)
    assert client.hears() == error
    assert talk.record()["status"] == 400
    client.says(CREATE)
    assert server.hears() == CREATE


def test_the_meter_has_the_usage_of_each_response(converse: Start):
    talk = converse(config(*filters(TokenMeter={})))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    server.says(COMPLETED)
    client.hears()
    record = talk.record()
    assert record["gen_ai.usage.input_tokens"] == 20
    assert record["gen_ai.usage.output_tokens"] == 10


@pytest.mark.parametrize("said", [COMPLETED, {"type": "error", "status": 500, "error": {"message": "x"}}])
def test_what_no_request_has_asked_for_ends_the_websocket(converse: Start, said: dict[str, Any]):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    server.says(said)
    client.is_closed_with(CloseCode.BAD_GATEWAY)
    server.is_closed_with(CloseCode.POLICY)


# --- the protocol --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(Opcode.TEXT, b"{}", masks=False), CloseCode.PROTOCOL_ERROR),
        (frame(3, b"", masks=True), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.BINARY, b"{}", masks=True), CloseCode.UNSUPPORTED),
        (frame(Opcode.TEXT, b"\xff", masks=True), CloseCode.INVALID_DATA),
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask", CloseCode.TOO_BIG),
    ],
    ids=["unmasked", "opcode", "binary", "not UTF-8", "too long"],
)
def test_a_client_that_breaks_the_protocol_is_told_so(converse: Start, data: bytes, code: int):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.sends(data)
    client.is_closed_with(code)
    server.is_closed_with(CloseCode.GOING_AWAY)
    talk.after(message_relay.FAULT_S + 1)
    talk.client.is_closed()
    assert talk.record(0)["reason"] == "bad_framing"


def test_a_server_that_breaks_the_protocol_is_told_so(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    server.sends(frame(Opcode.TEXT, b"{}", masks=True))
    server.is_closed_with(CloseCode.PROTOCOL_ERROR)
    client.is_closed_with(CloseCode.BAD_GATEWAY)
    talk.after(message_relay.FAULT_S + 1)
    assert [talk.record(n)["reason"] for n in (0, 1)] == ["upstream_bad_response"] * 2


@pytest.mark.parametrize("who", ["client", "server"])
@pytest.mark.parametrize("how", ["leaves", "resets", "ends"])
def test_an_end_without_a_close_frame_ends_both(converse: Start, who: str, how: str):
    talk = converse(config(*TOOLS, *filters(QoSController={"limits": TOKENS})))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    getattr(client.peer if who == "client" else server.peer, how)()
    (server.peer if who == "client" else client.peer).is_closed()
    assert talk.record(0)["reason"] == ("client_gone" if who == "client" else "upstream_closed")


def test_a_compressed_message_that_grows_too_long_is_not_read(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket_end, "MAX_MESSAGE", 100_000)
    talk = converse(config(*TOOLS))
    client, _ = opened(talk, offers=b"permessage-deflate", accepts=b"permessage-deflate")
    client.says(json.dumps({**CREATE, "input": "a" * 200_000}).encode())
    client.is_closed_with(CloseCode.TOO_BIG)


def test_bytes_of_messages_count_for_their_client(converse: Start):
    talk = converse(config(*TOOLS, limits={"bufferedBytesPerClient": 1_000_000}))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    held = json.dumps({**CREATE, "input": "x" * 600_000}).encode()
    client.says(held)
    account = next(iter(talk.connection_manager.clients.held.values()))
    assert account.total > 600_000
    server.says(COMPLETED)
    client.hears()
    assert server.hears()["input"][:1] == "x"
    assert not account.total


def test_a_websocket_may_be_idle_as_long_as_a_tunnel(converse: Start):
    talk = converse(config(*TOOLS, traffic={"timeouts": {"tunnelIdle": "10s"}}))
    client, server = opened(talk)
    talk.after(11)
    client.is_closed_with(CloseCode.GOING_AWAY)
    server.is_closed_with(CloseCode.GOING_AWAY)
    talk.after(message_relay.CLOSE_S + 1)  # nobody answers
    talk.client.is_closed()
    assert talk.record()["reason"] == "client_timeout"


# --- ways to the server ---------------------------------------------------------------------------------------------
def test_a_stream_of_http2_is_a_websocket_like_any_other(converse: Start):
    talk = converse(config(*TOOLS, traffic={"http2": {"extendedConnect": True}}))
    client = speak_http2(talk)
    protocol = (b":protocol", b"websocket"), (b"sec-websocket-version", b"13")
    stream = client.ask(b"CONNECT", b"/v1/responses", b"gw:8080", *protocol, ends=False)
    key = re.search(rb"(?i)sec-websocket-key: ([^\r]*)", asked(talk, "a", b"GET"))
    assert key is not None
    talk.origin >> SWITCHING % (websocket_accept(key[1]), b"")
    assert client.answer(stream).status == 200
    server = Side(talk.origin, is_client=False)
    client.says(stream, frame(Opcode.TEXT, json.dumps(CREATE).encode(), masks=True))
    assert server.hears() == CREATE
    server.says(CALL)
    events = FrameReader(is_masked=False, deflates=False, max_message=1 << 20).feed(bytes(client.answer(stream).data))
    assert [event.opcode for event in events] == [Opcode.TEXT, Opcode.CLOSE]
    assert json.loads(events[0].data)["error"]["code"] == "filter_rejected"
    server.is_closed_with(CloseCode.GOING_AWAY)
    server.sends(frame(Opcode.CLOSE, close_payload(1001), masks=False))
    talk.after(message_relay.CLOSE_S + 1)


def test_the_next_endpoint_of_a_failover_takes_the_websocket(converse: Start):
    objects = config(*TOOLS)
    objects[-1:] = [
        m.backend("b", "b.example", 80),
        m.failover("any", endpoint("a", 0), endpoint("b", 1)),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]
    talk = converse(objects)
    talk.client >> upgrade()
    refuse(talk, "a")
    asked(talk, "b", b"GET")
    talk.origin >> SWITCHING % (websocket_accept(KEY), b"")
    talk.client.take(rb"(?s)HTTP/1.1 101 .*?\r\n\r\n")
    client, server = Side(talk.client, is_client=True), Side(talk.origin, is_client=False)
    client.says(CREATE)
    assert server.hears() == CREATE
    server.says(COMPLETED)
    client.hears()
    assert talk.record()["backend"] == "agents/b"


def test_the_credential_of_a_backend_is_masked_in_messages(converse: Start):
    secret = {"secretRef": {"name": "key", "key": "key"}, "scrubResponses": True, "allowPlaintext": True}
    key = {"name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request", "config": secret}
    objects = [*config(*TOOLS), m.secret("key", {"key": "sk-of-the-backend"})]
    objects[2]["spec"]["extensions"] = [key]
    talk = converse(objects)
    talk.client >> upgrade()
    assert b"Bearer sk-of-the-backend" in asked(talk, "a", b"GET")
    talk.origin >> SWITCHING % (websocket_accept(KEY), b"X-Echo: sk-of-the-backend\r\n")
    assert b"sk-of" not in talk.client.take(rb"(?s)HTTP/1.1 101 .*?\r\n\r\n")[0]
    client, server = Side(talk.client, is_client=True), Side(talk.origin, is_client=False)
    client.says(CREATE)
    server.hears()
    server.says(*text_of("it is sk-of-the-backend"), COMPLETED)
    assert client.hears()["delta"] == "it is *****************"


@pytest.mark.parametrize("apis", [("OpenAIResponses",), ("OpenAIChat", "OpenAIResponses")])
def test_a_provider_that_serves_responses_gets_them(converse: Start, apis: tuple[str, ...]):
    objects = config(*TOOLS)
    objects[2]["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": list(apis)}}
    talk = converse(objects)
    client, server = opened(talk)
    client.says(CREATE)
    assert server.hears() == CREATE


@pytest.mark.parametrize("also", [[], TOOLS], ids=["alone", "beside the route's"])
def test_filters_of_a_backend_see_messages(converse: Start, also: list[m.Manifest]):
    """A placeholder of the backend's filter is put back for the route's, which come behind it."""
    objects = config(*also)
    detector = {"entities": [{"name": "EMAIL", "action": "Placeholder"}], "applyTo": "Requests"}
    objects[2]["spec"]["extensions"] = [
        {"name": "pii", "type": "egressproxy.io/PIIDetector:v1", "phase": "backend-request", "config": detector}
    ]
    objects[2]["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": ["OpenAIResponses"]}}
    talk = converse(objects)
    client, server = opened(talk)
    for number, name in enumerate(("ann", "bob"), 1):
        client.says({**CREATE, "input": f"{name}@corp.example"})
        assert server.hears()["input"] == f"<EMAIL_{number}>"
        server.says(*text_of(f"<EMAIL_{number}>"), COMPLETED)
        assert client.hears()["delta"] == f"{name}@corp.example"
        client.hears()


# --- reloads ---------------------------------------------------------------------------------------------------------
def test_a_websocket_goes_on_where_its_rule_is_the_same(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    talk.reload(config(*TOOLS, traffic={"timeouts": {"tunnelIdle": "2h"}}))
    client.says(CREATE)
    assert server.hears() == CREATE


def test_a_websocket_is_opened_again_where_filters_have_changed(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(CREATE)
    server.hears()
    talk.reload(config(*filters(ToolPolicy={"tools": {"deny": [{"names": ["look"]}]}})))
    server.says(COMPLETED)  # the response under way goes on
    assert client.hears()["type"] == "response.completed"
    client.says(CREATE)
    client.is_closed_with(CloseCode.SERVICE_RESTART)
    server.is_closed_with(CloseCode.GOING_AWAY)


def test_a_websocket_of_a_listener_with_other_terms_is_opened_again(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    talk.reload(config(*TOOLS, limits={"maxHeadBytes": 9000}))
    client.says(CREATE)
    client.is_closed_with(CloseCode.SERVICE_RESTART)
    server.is_closed_with(CloseCode.GOING_AWAY)


def test_a_destination_that_is_denied_by_now_is_told_so(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    talk.reload(config(*TOOLS)[:-1])
    client.says(CREATE)
    assert client.hears()["error"]["code"] == "no_route"
    server.hears_nothing()


# --- API keys --------------------------------------------------------------------------------------------------------
def keyed(**members: Any) -> list[m.Manifest]:
    """As `config`, for a client with this API key."""
    models = filters(ModelPolicy={"allow": ["*"]})
    return [*config(*models, identity=IDENTITY), keys(ci=new_record(API_KEY, **members))]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ([*keyed()[:-1], keys(other=OTHER)], "the API key is unknown, or revoked"),
        (keyed(routes=["agents/another"]), "who may ask here has changed"),
        (keyed(models=["gpt-4"]), "who may ask here has changed"),
    ],
    ids=["revoked", "for another route", "for another model"],
)
def test_a_websocket_ends_with_what_its_api_key_is_for(converse: Start, then: list[m.Manifest], why: str):
    talk = converse(keyed())
    client, server = opened(talk, b"x-api-key: " + API_KEY.encode())
    client.says(CREATE)
    assert server.hears() == CREATE
    server.says(COMPLETED)
    client.hears()
    talk.reload(then)
    client.says(CREATE)
    assert client.hears()["error"]["code"] == "credentials_refused"
    assert client.is_closed_with(1008).startswith(why)
    assert server.is_closed_with(1001) == ""


def test_a_key_that_has_expired_asks_for_nothing_more(converse: Start, monkeypatch: pytest.MonkeyPatch):
    talk = converse(keyed(notAfter="2100-01-01T00:00:00Z"))
    client, server = opened(talk, b"x-api-key: " + API_KEY.encode())
    monkeypatch.setattr(authenticator, "time", lambda: 4102444800.0 + 120)
    client.says(CREATE)
    assert client.hears()["error"]["code"] == "credentials_refused"
    assert client.is_closed_with(1008) == "the API key expired 2 min ago"
    assert server.is_closed_with(1001) == ""


def test_a_killed_client_loses_its_websocket(converse: Start):
    talk = converse(keyed())
    opened(talk, b"x-api-key: " + API_KEY.encode())
    killed = KilledIdentities((KilledIdentity("agents/keys#ci"),))
    talk.act(lambda: [state.cut(killed) for port in talk.ports for state in port.states])
    assert talk.until(lambda: talk.client.is_gone and (talk.origin.has_eof or talk.origin.is_gone))


# --- where it stays closed ------------------------------------------------------------------------------------------
def test_an_upgrade_with_a_body_is_a_request(converse: Start):
    """A server that ignores the upgrade reads it, and so do filters."""
    talk = converse(config(*filters(ModelPolicy={"deny": ["o9"]})))
    body = b'{"model": "o9"}'
    for method in (b"POST", b"GET"):
        request = upgrade(b"/v1/responses", b"Content-Type: application/json", b"Content-Length: %d" % len(body))
        talk.client >> request.replace(b"GET", method, 1) + body
        talk.client.take(rb"(?s)HTTP/1.1 403 .*?\r\n\r\n{.*?}}\n?\Z")
        assert talk.record()["reason"] == "model_denied"


@pytest.mark.parametrize(
    "other",
    [
        filters(ApprovalHold={}),
        filters(QoSController={"limits": [{"type": "Concurrency", "limit": 1, "name": "c"}]}),
    ],
    ids=["a person's approval", "concurrency"],
)
def test_it_stays_closed_where_another_filter_could_not_hold(converse: Start, other: list[m.Manifest]):
    talk = converse(config(*TOOLS, *other))
    talk.client >> upgrade()
    told = talk.client.take(rb"(?s)(HTTP/1.1 426 .*?\r\n\r\n)({.*}\n)")
    assert b"\r\nupgrade: http/1.1\r\n" in told[1].lower()
    error = json.loads(told[2])["error"]
    assert error["reason"] == "filter_rejected"
    assert error["remedy"] == "send plain requests (POST)"
    assert "toolpolicy" in error["message"]
    record = talk.record()
    assert (record["status"], record["reason"], record["rule"]) == (
        426,
        "filter_rejected",
        "EgressPolicy agents/default",
    )
