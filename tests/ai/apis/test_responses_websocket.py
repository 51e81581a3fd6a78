"""Messages of OpenAI's responses over a WebSocket, as values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import operation_of
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.responses_websocket import ResponsesMessages
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.filters.messages import MESSAGES, MessageKind, Messages, ServerEvent, are_read
from egressproxy.filters.testing import exchange
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import at_once

API = ResponsesMessages()
REQUEST = {
    "model": "gpt-5", "instructions": "be brief", "tools": [{"type": "function", "name": "look"}], "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call_output", "call_id": "c", "output": "found"},
    ],
}  # fmt: skip


def test_what_asks_for_a_response_says_the_same_as_a_request():
    created = AiRequest.read(
        json.dumps({"type": "response.create", **REQUEST}).encode(), operation_of(b"/v1/responses")
    )
    plain = AiRequest.read(json.dumps(REQUEST).encode(), operation_of(b"/v1/responses"))
    assert [part.text for part in created.texts()] == [part.text for part in plain.texts()] != []
    assert [tool.name for tool in created.tools] == ["look"]
    assert (created.model, created.api) == (plain.model, plain.api)


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        ({"type": "response.create", "model": "m"}, True),
        ({"type": "response.create", "generate": False}, True),
        ({"type": "response.processed", "response_id": "r"}, False),
    ],
)
def test_the_events_of_a_client(message: dict[str, Any], begins: bool):
    assert (at_once(API.kind_of(json.dumps(message).encode())) is MessageKind.ASKS_RESPONSE) is begins


@pytest.mark.parametrize(
    "message",
    [
        b"", b"{", b"[]", b'"response.create"', b"{}", b'{"type": 1}', b'{"type": "session.update"}',
        b'{"type": "response.create", "type": "response.processed"}', b'{"type": "response.create", "TYPE": "x"}',
        '{"type": "response.create", "re\u017fponse": {}}'.encode(), b'{"type": "response.create", "response": {}}',
        b'{"type": "response.processed"}', b'{"type": "response.processed", "response_id": {"a": "text"}}',
        b'{"type": "response.processed", "response_id": "%b"}' % (b"a" * 257),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_client_is_not_readable(message: bytes):
    with pytest.raises(Unreadable):
        at_once(API.kind_of(message))


def test_an_event_of_the_server_is_one_of_a_stream_and_comes_back():
    message = b'{"type": "response.output_text.delta",\r\n "delta": "a\\nb"}'
    event = API.event_of(message, is_first=False)
    assert (event.is_last, event.status) == (False, 0)
    assert event.data.startswith(b"event: response.output_text.delta\ndata: {")
    (back,) = API.reader()(event.data, True)
    assert json.loads(back) == json.loads(message)


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed", "cancelled"])
def test_the_ends_of_a_response(kind: str):
    assert API.event_of(b'{"type": "response.%b"}' % kind.encode(), is_first=False).is_last


@pytest.mark.parametrize(
    ("said", "status"), [({"status": 429}, 429), ({"status_code": 503}, 503), ({}, 500), ({"status": 200}, 500)]
)
def test_an_error_in_place_of_a_response_has_its_status(said: dict[str, int], status: int):
    message = json.dumps({"type": "error", "error": {"message": "no"}, **said}).encode()
    assert API.event_of(message, is_first=True) == ServerEvent(message, is_last=True, status=status)
    in_stream = API.event_of(message, is_first=False)
    assert (in_stream.is_last, in_stream.status) == (True, 0)
    assert API.reader()(in_stream.data, False) == [message]


@pytest.mark.parametrize("name", ["a\nb: c", "a\r\n\r\ndata: {}", "ä"])
def test_the_name_of_an_event_breaks_no_lines(name: str):
    message = json.dumps({"type": name}).encode()
    assert API.reader()(API.event_of(message, is_first=False).data, False) == [message]


def test_messages_are_whole_however_filters_cut_them():
    one, other = b'{"type": "a"}', b'{"type": "b"}'
    data = b"".join(API.event_of(each, is_first=False).data for each in (one, other))
    read = API.reader()
    assert [read(data[at : at + 1], False) for at in range(len(data))].count([]) == len(data) - 2
    read = API.reader()
    assert read(data[:-1], False) == [one]
    assert read(b"", True) == [other]


def test_an_error_is_told_as_clients_read_it():
    """Codex reads `status`, `error` and `headers`; OpenAI's SDK reads `code` and `message`."""
    about = {"status": 429, "reason": "token_rate", "message": "too many tokens", "remedy": "wait", "rule": "r"}
    told = json.loads(API.error(about, 7))
    assert told["type"] == "error"
    assert (told["status"], told["code"], told["message"]) == (429, "token_rate", "too many tokens (wait)")
    assert (told["error"]["type"], told["error"]["code"]) == ("rate_limit_error", "token_rate")
    assert told["headers"] == {"retry-after": "7"}
    assert "headers" not in json.loads(API.error(about, 0))


@pytest.mark.parametrize(("said", "told"), [("a.1", "a.1"), ({}, None), ("a" * 257, None)])
def test_an_error_has_the_stream_of_its_request(said: Any, told: str | None):
    api = ResponsesMessages()
    about = {"status": 403, "reason": "model_denied", "message": "no"}
    at_once(api.kind_of(json.dumps({"type": "response.create", "stream_id": said}).encode()))
    assert json.loads(api.error(about, 0)).get("stream_id") == told
    at_once(api.kind_of(b'{"type": "response.create"}'))
    assert "stream_id" not in json.loads(api.error(about, 0))


@pytest.mark.parametrize(
    ("path", "upgrade", "asks"),
    [
        ("/v1/responses", b"websocket", True), ("/backend-api/codex/responses", b"WebSocket", True),
        ("/v1/realtime", b"websocket", False), ("/v1/responses", b"h2c", False), ("/v1/responses", b"", False),
    ],
)  # fmt: skip
def test_messages_are_asked_for_where_their_api_is_known(path: str, upgrade: bytes, asks: bool):
    headers = {
        "Sec-WebSocket-Extensions": "x, permessage-deflate",
        "Sec-WebSocket-Key": "k",
        "Authorization": "Bearer a",
    }
    x = exchange("GET", f"https://api.example{path}", headers)
    x.request.upgrade = upgrade
    assert not asks_for_messages(x)  # nobody can give them
    messages = Messages(x.request.copy())
    x.keep(MESSAGES, messages)
    assert asks_for_messages(x) is asks is are_read(x)
    if asks:
        assert messages.head is not None
        assert dict(messages.head.fields) == {b"authorization": b"Bearer a", b"content-type": b"application/json"}
        assert (messages.head.method, messages.head.upgrade, messages.head.path) == (b"POST", b"", path.encode())
        assert x.request.fields.get(b"sec-websocket-extensions") == b"permessage-deflate"


@pytest.mark.parametrize(("method", "body"), [("POST", 0), ("GET", 5), ("GET", -1)])
def test_an_upgrade_with_another_method_or_a_body_has_none(method: str, body: int):
    x = exchange(method, "https://api.example/v1/responses")
    x.request.upgrade, x.request.body = b"websocket", body
    x.keep(MESSAGES, Messages(x.request.copy()))
    assert not asks_for_messages(x)
