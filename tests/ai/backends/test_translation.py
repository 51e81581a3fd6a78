"""Translated requests and answers on their way: heads, credentials, paths, bounds, streams, and what follows a failure.

What a translation says is tested in tests/ai/translation; here a scripted one stands for it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import aws_message
from egressproxy.ai.backends import call as ai_call
from egressproxy.ai.translation import translator
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import TranslatedRequest
from egressproxy.filters.base import Filter
from egressproxy.model.exchange import Exchange
from egressproxy.model.work import Work
from tests.ai.backends.test_aliases import CHAT, body_of, endpoint, post
from tests.gateway.backends.test_failover import answer, asked, wait_for_dial
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.http2 import Http2Origin

STREAM = b'{"model": "gpt-5", "stream": true}'
EVENTS = b"Content-Type: text/event-stream\r\n"
JSON = b"Content-Type: application/json\r\n"


class ScriptedTranslator:
    """Pieces are put into brackets; the piece `fail` ends the stream in an error; an end without `stop` is one, too."""

    def __init__(self, request: Any) -> None:
        self.has_failed = False
        self._is_whole = False

    def whole(self, status: int, body: bytes) -> Work[tuple[int, bytes]]:
        yield
        if body == b"garbage":
            return 502, b"no"
        return status, b"{" + body + b"}"

    def feed(self, data: bytes) -> bytes:
        if self.has_failed:
            return b""
        self.has_failed = b"fail" in data
        self._is_whole = b"stop" in data
        return b"" if data == b"silent" else b"[" + data + b"]"

    def end(self) -> bytes:
        if self._is_whole:
            return b"[end]"
        self.has_failed = True
        return b"[error]"


def unreadable(*_said: object) -> Work[tuple[int, bytes]]:
    yield
    return 502, b"no"


def scripted_request(
    body: bytes, source: Api, target: Api, model: str | None = None, *, drops: bool = False, path_model: str = ""
) -> Any:
    yield
    said = json.loads(body)
    if "refused" in said or ("tuning" in said and not drops):
        raise Untranslatable("refused", "the other API does not know it")
    made = json.dumps({"from": source.value, "model": model or path_model or said["model"]}).encode()
    return TranslatedRequest(
        source,
        target,
        made,
        is_stream=said.get("stream", False),
        client_model=said["model"],
        sent_model=model or said["model"],
        wants_usage=False,
        repeated={},
        dropped=("seed", "tuning") if "tuning" in said else (),
    )


REAL = translator.ResponseTranslator


def scripted_answer(request: TranslatedRequest) -> Any:
    """Counts of tokens are translated as they are."""
    return REAL(request) if request.is_count else ScriptedTranslator(request)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator, "translate_request", scripted_request)
    monkeypatch.setattr(translator, "ResponseTranslator", scripted_answer)


def provider(name: str, *apis: str, extensions: list[Any] | None = None, **more: str) -> m.Manifest:
    """A Backend at NAME.example:80 that serves these APIs; without any it says nothing of them."""
    made = m.backend(name, f"{name}.example", 80)
    if apis:
        options = {"apis": list(apis), **more}
        made["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": options}
    if extensions:
        made["spec"]["extensions"] = extensions
    return made


def config(*objects: m.Manifest, to: str = "a", rule: dict[str, Any] | None = None) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(),
        *(objects or (provider("a", "AnthropicMessages"),)),
        m.http_route("route", m.prefix_rule("/", to, **(rule or {}))),
    ]


def two(**failover: Any) -> list[m.Manifest]:
    """OpenAI's API at a, and behind it Anthropic's at b."""
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1, modelAlias="claude"), **failover)
    return config(provider("a", "OpenAIChat"), provider("b", "AnthropicMessages"), group, to="any")


def respond(talk: Conversation, body: bytes, *fields: bytes, status: int = 200) -> None:
    length = b"Content-Length: %d\r\n" % len(body)
    talk.origin >> b"HTTP/1.1 %d Said\r\n" % status + b"".join(fields) + length + b"\r\n" + body


def stream(talk: Conversation, *pieces: bytes) -> None:
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
    for piece in pieces:
        more(talk, piece)


def more(talk: Conversation, piece: bytes) -> None:
    talk.origin >> b"%x\r\n%b\r\n" % (len(piece), piece)


def heard(talk: Conversation, *pieces: bytes) -> None:
    for piece in pieces:
        talk.client.take(b"^" + b"%x\r\n" % len(piece) + piece.replace(b"[", rb"\[").replace(b"]", rb"\]") + b"\r\n")


# --- requests --------------------------------------------------------------------------------------------------------
def test_a_request_in_another_api_is_translated_and_so_is_its_answer(converse: Start):
    talk = converse(config())
    talk.client >> post(
        CHAT, b"/v1/chat/completions?beta=true", b"Accept: */*", b"Accept-Encoding: gzip", b"X-Team: red"
    )
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[1:-2])}
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"accept"] == b"application/json"
    assert fields[b"accept-encoding"] == b"identity"
    assert fields[b"anthropic-version"] == b"2023-06-01"
    assert fields[b"x-team"] == b"red"
    talk.origin.take(b'{"from": "OpenAIChat", "model": "gpt-5"}')
    respond(talk, b"hi", JSON, b"request-id: r1\r\nanthropic-organization-id: o\r\nETag: x\r\n")
    said = talk.client.take(rb"(HTTP/1.1 200 .*?\r\n\r\n){hi}")[1].lower()
    assert b"x-request-id: r1\r\n" in said
    assert b"content-length: 4\r\n" in said
    assert b"anthropic" not in said
    assert b"etag" not in said
    record = talk.record()
    assert (record["ai_api"], record["ai_backend_api"]) == ("OpenAIChat", "AnthropicMessages")
    assert (record["ai_model"], record["ai_backend_model"], record["path"]) == (
        "gpt-5",
        "gpt-5",
        "/v1/chat/completions",
    )
    labels = ("agents/route", "agents/a", "OpenAIChat", "AnthropicMessages", "ok")
    assert talk.metrics.translations == {labels: 1}


COUNT = b"/v1/messages/count_tokens"
COUNTED = json.dumps({"model": "m", "system": "be brief", "messages": [{"role": "user", "content": "word " * 400}]})


@pytest.mark.parametrize("path", [COUNT, COUNT + b"?beta=true", b"/proxy" + COUNT])
def test_tokens_are_estimated_where_the_provider_does_not_count_them(converse: Start, path: bytes):
    talk = converse(config(provider("a", "OpenAIChat")))
    talk.client >> post(COUNTED.encode(), path)
    said = talk.client.take(rb'HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":(\d+)}')
    assert 480 < int(said[1]) < 600
    talk.client >> post(COUNTED.encode(), path)  # and the connection goes on
    talk.client.take(rb'HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":\d+}')
    assert talk.metrics.translations == {}


@pytest.mark.parametrize(
    ("api", "prefix", "path", "answer", "body"),
    [
        ("Gemini", "", b"/v1beta/models/m:countTokens", b'{"totalTokens": 7}',
         {"generateContentRequest": {"model": "models/m", "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                                     "systemInstruction": {"parts": [{"text": "be brief"}]}}}),
        ("Gemini", "/v1/projects/p/publishers/google", b"/v1/projects/p/publishers/google/models/m:countTokens",
         b'{"totalTokens": 7}', {"contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                                 "systemInstruction": {"parts": [{"text": "be brief"}]}}),
        ("BedrockConverse", "", b"/model/m/count-tokens", b'{"inputTokens": 7}',
         {"input": {"converse": {"messages": [{"role": "user", "content": [{"text": "hi"}]}],
                                 "system": [{"text": "be brief"}]}}}),
    ],
)  # fmt: skip
def test_a_count_is_translated_for_a_provider_that_counts(
    converse: Start, api: str, prefix: str, path: bytes, answer: bytes, body: dict[str, Any]
):
    talk = converse(config(provider("a", api, **({"prefix": prefix} if prefix else {}))))
    counted = {"model": "m", "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}
    talk.client >> post(json.dumps({**counted, "thinking": {"type": "adaptive"}}).encode(), COUNT + b"?beta=true")
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST " + path + b" HTTP/1.1\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert json.loads(talk.origin.take(b"(?s).{%d}" % length)[0]) == body
    respond(talk, answer, JSON)
    talk.client.take(rb'(?s)HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":7}')
    assert (talk.record()["ai_api"], talk.record()["ai_backend_api"]) == ("AnthropicMessages", api)


@pytest.mark.parametrize(("api", "tokens"), [("Gemini", rb"7"), ("OpenAIChat", rb"5\d\d")])
def test_openais_counts_are_answered_too(converse: Start, api: str, tokens: bytes):
    talk = converse(config(provider("a", api)))
    counted = {"model": "m", "instructions": "be brief", "input": "word " * 400}
    talk.client >> post(json.dumps(counted).encode(), b"/v1/responses/input_tokens")
    if api == "Gemini":
        assert b"/models/m:countTokens" in asked(talk, "a", b"POST")
        assert b"be brief" in talk.origin.take(b"(?s){.*}")[0]
        respond(talk, b'{"totalTokens": 7}', JSON)
    talk.client.take(rb'(?s)HTTP/1.1 200 .*?\r\n\r\n{"object":"response.input_tokens","input_tokens":%b}' % tokens)


def test_a_count_of_what_has_no_form_is_estimated(converse: Start):
    talk = converse(config(provider("a", "Gemini")))
    document = {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [document]}]}
    talk.client >> post(json.dumps(body).encode(), COUNT)
    talk.client.take(rb'HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":\d+}')
    talk.no_dial()


def test_a_count_without_a_number_is_a_bad_answer(converse: Start):
    talk = converse(config(provider("a", "Gemini")))
    talk.client >> post(COUNTED.encode(), COUNT)
    asked(talk, "a", b"POST")
    talk.origin.take(b"(?s){.*}")
    respond(talk, b"{}", JSON)
    talk.client.take(rb"HTTP/1.1 502 ")


def test_a_count_that_fails_is_estimated_by_the_next_endpoint(converse: Start):
    group = m.failover("any", endpoint("a", 0, modelAlias="gemini-3-pro"), endpoint("b", 1, modelAlias="gpt"))
    talk = converse(config(provider("a", "Gemini"), provider("b", "OpenAIChat"), group, to="any"))
    talk.client >> post(COUNTED.encode(), COUNT)
    assert asked(talk, "a", b"POST").startswith(b"POST /v1beta/models/gemini-3-pro:countTokens")
    talk.origin.take(b"(?s){.*}")
    respond(talk, b"{}", JSON, status=503)
    talk.client.take(rb'(?s)HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":\d+}')


def test_a_count_that_cannot_be_read_is_refused_in_the_shape_of_its_api(converse: Start):
    talk = converse(config(provider("a", "OpenAIChat")))
    for body, fields in ((b'{"a":1,"a":2}', ()), (COUNTED.encode(), (b"Content-Encoding: gzip",))):
        talk.client >> post(body, COUNT, *fields)
        error = talk.client.take(rb'HTTP/1.1 400 .*?\r\n\r\n({"type":"error".*}})\n')[1]
        assert b"untranslatable" in error


@pytest.mark.parametrize("apis", [(), ("AnthropicMessages",), ("OpenAIChat", "AnthropicMessages")])
def test_a_provider_that_counts_tokens_is_asked(converse: Start, apis: tuple[str, ...]):
    talk = converse(config(provider("a", *apis)))
    talk.client >> post(COUNTED.encode(), COUNT)
    assert asked(talk, "a", b"POST").startswith(b"POST " + COUNT)


def test_a_count_is_estimated_behind_a_provider_that_fails(converse: Start):
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1, modelAlias="gpt"))
    talk = converse(config(provider("a", "AnthropicMessages"), provider("b", "OpenAIChat"), group, to="any"))
    talk.client >> post(COUNTED.encode(), COUNT)
    asked(talk, "a", b"POST")
    talk.origin.take(b"(?s).{%d}" % len(COUNTED))
    respond(talk, b"{}", JSON, status=503)
    talk.client.take(rb'HTTP/1.1 200 .*?\r\n\r\n{"input_tokens":\d+}')


def socket(path: bytes = b"/v1/responses") -> bytes:
    return (
        b"GET %b HTTP/1.1\r\nHost: gw:8080\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" % path
        + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )


@pytest.mark.parametrize("api", ["OpenAIChat", "AnthropicMessages"])
def test_a_websocket_of_responses_is_refused_where_it_would_have_to_be_translated(converse: Start, api: str):
    """Codex asks for one first; behind a 426 it sends plain requests at once, behind any other status in seconds."""
    talk = converse(config(provider("a", api)))
    talk.client >> socket()
    head = talk.client.take(rb"(HTTP/1.1 426 .*?\r\n\r\n){.*plain requests.*}}")[1].lower()
    assert b"\r\nupgrade: http/1.1\r\n" in head
    assert b"\r\nconnection: upgrade\r\n" in head
    record = talk.record()
    assert (record["status"], record["reason"]) == (426, "untranslatable")
    talk.client >> post(CHAT, b"/v1/responses")  # and the connection goes on
    assert asked(talk, "a", b"POST")


@pytest.mark.parametrize("apis", [(), ("OpenAIResponses",), ("OpenAIChat", "OpenAIResponses")])
def test_a_websocket_of_responses_passes_where_they_are_served(converse: Start, apis: tuple[str, ...]):
    talk = converse(config(provider("a", *apis)))
    talk.client >> socket()
    assert asked(talk, "a", b"GET").startswith(b"GET /v1/responses ")


def test_a_websocket_that_is_refused_has_no_fields_of_connections_in_http_2(converse: Start):
    objects = config(provider("a", "OpenAIChat"))
    objects[1] = m.policy(traffic={"http2": {"extendedConnect": True}})
    talk = converse(objects)
    client = speak_http2(talk)
    protocol = (b":protocol", b"websocket"), (b"sec-websocket-version", b"13")
    answer = client.answer(client.ask(b"CONNECT", b"/v1/responses", b"gw:8080", *protocol, ends=False))
    assert answer.status == 426
    assert not {b"upgrade", b"connection"} & {name for name, _ in answer.fields}


@pytest.mark.parametrize("first", [("OpenAIChat", {}), ("OpenAIResponses", {"modelAlias": "gpt"})])
def test_a_websocket_of_responses_goes_to_an_endpoint_that_serves_it_as_it_is(
    converse: Start, first: tuple[str, dict[str, str]]
):
    """Its messages are not read, so that no model in them gets another name."""
    api, alias = first
    group = m.failover("any", endpoint("a", 0, **alias), endpoint("b", 1))
    talk = converse(config(provider("a", api), provider("b", "OpenAIResponses"), group, to="any"))
    talk.client >> socket()
    assert asked(talk, "b", b"GET").startswith(b"GET /v1/responses ")


TUNED = b'{"model": "gpt-5", "tuning": 1}'


@pytest.mark.parametrize("status", [200, 429])
def test_what_is_left_out_is_told_to_the_client_the_log_and_a_metric(converse: Start, status: int):
    talk = converse(config())
    talk.client >> post(TUNED)
    asked(talk, "a", b"POST")
    talk.origin.take(b"{.*}")
    respond(talk, b"{}", JSON, b"X-Egress-Dropped: mine\r\n", status=status)
    head = talk.client.take(rb"(HTTP/1.1 %d .*?\r\n\r\n){{}}" % status)[1]
    assert [line for line in head.split(b"\r\n") if b"Dropped" in line] == [b"X-Egress-Dropped: seed, tuning"]
    assert talk.record()["ai_dropped"] == ["seed", "tuning"]
    labels = ("agents/route", "agents/a", "OpenAIChat", "AnthropicMessages")
    assert talk.metrics.dropped_fields == {(*labels, "seed"): 1, (*labels, "tuning"): 1}


def test_what_is_left_out_of_a_stream_is_told_in_its_head(converse: Start):
    talk = converse(config())
    talk.client >> post(b'{"model": "gpt-5", "stream": true, "tuning": 1}')
    asked(talk, "a", b"POST")
    talk.origin.take(b"{.*}")
    stream(talk, b"stop")
    assert b"\r\nX-Egress-Dropped: seed, tuning\r\n" in talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0]


def test_nothing_is_told_where_nothing_is_left_out(converse: Start):
    talk = converse(config())
    talk.client >> post(CHAT)
    asked(talk, "a", b"POST")
    talk.origin.take(b"{.*}")
    respond(talk, b"{}", JSON, b"X-Egress-Dropped: mine\r\n")
    assert b"Dropped" not in talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0]
    assert "ai_dropped" not in talk.record()
    assert talk.metrics.dropped_fields == {}


def test_a_backend_may_refuse_what_cannot_be_said_and_the_next_one_is_asked(converse: Start):
    strict = provider("a", "AnthropicMessages", untranslatable="Refuse")
    talk = converse(config(strict))
    talk.client >> post(TUNED)
    assert b"untranslatable" in talk.client.take(rb"(?s)HTTP/1.1 400 .*?}}")[0]
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1))
    talk = converse(config(strict, provider("b", "AnthropicMessages"), group, to="any"))
    talk.client >> post(TUNED)
    asked(talk, "b", b"POST")


@pytest.mark.parametrize("objects", [(), (provider("a"),), (provider("a", "AnthropicMessages", "OpenAIChat"),)])
@pytest.mark.parametrize("path", [b"/v1/chat/completions?x=y", b"/openai/v1/chat/completions", b"/v1/files"])
def test_what_the_backend_serves_passes_as_it_is(converse: Start, objects: tuple[m.Manifest, ...], path: bytes):
    if not objects and path != b"/v1/files":
        return
    talk = converse(config(*objects))
    request = post(CHAT, path, b"Authorization: Bearer mine", b"Accept-Encoding: br")
    talk.client >> request[:-5]
    head = asked(talk, "a", b"POST")  # and nobody waits for the rest
    assert head.startswith(b"POST " + path + b" HTTP/1.1\r\n")
    assert b"Authorization: Bearer mine" in head
    talk.client >> request[-5:]
    talk.origin.take(b"(?s).{%d}" % len(CHAT))
    respond(talk, b"hi", b"Content-Encoding: br\r\n")
    talk.client.take(rb"HTTP/1.1 200 .*?Content-Encoding: br.*?\r\n\r\nhi")
    assert talk.metrics.translations == {}


def test_the_prefix_stands_before_all_that_is_served(converse: Start):
    talk = converse(config(provider("a", "OpenAIChat", prefix="/openai/v1")))
    talk.client >> post(CHAT, b"/x/v1/chat/completions?q")
    assert asked(talk, "a", b"POST").startswith(b"POST /openai/v1/chat/completions?q ")
    talk.origin.take(b"(?s).{%d}" % len(CHAT))
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    talk.client >> post(b'{"model": "c"}', b"/v1/messages")
    assert talk.origin.take(rb"POST .*?\r\n\r\n")[0].startswith(b"POST /openai/v1/chat/completions HTTP")
    assert b"anthropic-version" not in talk.origin.take(b"{.*}")[0]


@pytest.mark.parametrize("path", [b"/v1/chat/completions/", b"//v1/chat/completions", b"/v1/%63hat/Completions"])
def test_a_path_in_another_spelling_is_translated_too(converse: Start, path: bytes):
    talk = converse(config())
    talk.client >> post(CHAT, path, b"Authorization: Bearer mine").replace(b"POST", b"Post")
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert b"mine" not in head


@pytest.mark.parametrize(
    "field",
    [
        b"Authorization: Bearer mine",
        b"x-api-key: mine",
        b"X_Api_Key: mine",
        b"-x-api-key-: mine",
        b"api-key: mine",
        b"x-goog-api-key: mine",
        b"Cookie: a=mine",
        b"Helicone-Auth: mine",
        b"cf-aig-authorization: mine",
        b"x-amz-security-token: mine",
        b"DPoP: mine",
        b"X-JWT: mine",
        b"X-Goog-IAP-JWT-Assertion: mine",
        b"X-Bearer: mine",
        b"Signature: sig1=:mine:",
        b"X-Passwd: mine",
        b"OpenAI-Organization: mine",
        b"anthropic-beta: mine",
        b"Idempotency-Key: mine",
    ],
)
def test_no_credential_of_the_client_reaches_a_provider_of_another_api(converse: Start, field: bytes):
    talk = converse(config())
    talk.client >> post(CHAT, b"/v1/chat/completions", field)
    assert b"mine" not in asked(talk, "a", b"POST")


def test_the_credential_of_the_backend_is_sent(converse: Start):
    secret = m.manifest("v1", "Secret", "key", "agents", stringData={"key": "the-providers"})
    injector = {
        "name": "key",
        "type": f"{m.OURS}/CredentialInjector:v1",
        "phase": "backend-request",
        "config": {"secretRef": {"name": "key", "key": "key"}, "header": "x-api-key", "allowPlaintext": True},
    }
    talk = converse(config(provider("a", "AnthropicMessages", extensions=[injector]), secret))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"x-api-key: mine", b"Authorization: Bearer mine")
    head = asked(talk, "a", b"POST")
    assert b"x-api-key: the-providers\r\n" in head
    assert b"mine" not in head


def test_a_rewrite_of_the_rule_says_nothing_of_the_translated_path(converse: Start):
    talk = converse(config(rule={"filters": m.prefix_rule("/", "a", rewrite="/other")["filters"]}))
    talk.client >> post()
    assert asked(talk, "a", b"POST").startswith(b"POST /v1/messages ")


def test_a_path_that_a_filter_has_led_to_an_api_is_one_of_it(converse: Start):
    path = {"type": "ReplaceFullPath", "replaceFullPath": "/v1/chat/completions"}
    talk = converse(config(rule={"filters": [{"type": "URLRewrite", "urlRewrite": {"path": path}}]}))
    talk.client >> post(CHAT, b"/chat")
    assert asked(talk, "a", b"POST").startswith(b"POST /v1/messages ")


def test_a_rewrite_of_the_reference_does_not_take_the_translated_path_for_the_prefix_of_the_client(converse: Start):
    rule = m.prefix_rule("/openai", "a")
    rule["backendRefs"][0]["filters"] = m.prefix_rule("/openai", "a", rewrite="/")["filters"]
    objects = config()
    objects[-1] = m.http_route("route", rule)
    talk = converse(objects)
    talk.client >> post(CHAT, b"/openai/v1/chat/completions")
    assert asked(talk, "a", b"POST").startswith(b"POST /v1/messages ")


def test_a_mirror_gets_the_translation_too(converse: Start):
    ref = {"group": m.OURS, "kind": "Backend", "name": "copy"}
    mirrored = {"filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": ref}}]}
    talk = converse(config(provider("a", "AnthropicMessages"), m.backend("copy", "copy.example", 80), rule=mirrored))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"Authorization: Bearer mine")
    talk.dialled("a.example", 80)
    real = talk.origin
    talk.dialled("copy.example", 80)
    copied = talk.origin
    for peer in (real, copied):
        head, body = peer.take(rb"(POST /v1/messages .*?\r\n\r\n)({.*})").groups()
        assert b"mine" not in head
        assert b"Content-Length: %d\r\n" % len(body) in head


def test_what_cannot_be_translated_names_the_field_in_the_shape_of_the_client(converse: Start):
    talk = converse(config(provider("a", "OpenAIChat")))
    talk.client >> post(b'{"model": "c", "refused": 1}', b"/v1/messages", b"X-Next: 1")
    said = json.loads(talk.client.take(rb"HTTP/1.1 400 .*?\r\n\r\n({.*})")[1])
    assert said["type"] == "error"
    assert said["error"]["type"] == "invalid_request_error"
    assert "`refused`: the other API does not know it" in said["error"]["message"]
    record = talk.record()
    assert (record["reason"], record["status"], record["ai_api"]) == ("untranslatable", 400, "AnthropicMessages")
    assert record["detail"] == "`refused`: the other API does not know it"
    assert "ai_backend_api" not in record
    assert talk.metrics.translations == {("agents/route", "-", "AnthropicMessages", "-", "untranslatable"): 1}


# --- answers ---------------------------------------------------------------------------------------------------------
def test_errors_keep_their_status(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    respond(talk, b"<html>", b"Content-Type: text/html\r\nRetry-After: 7\r\n", status=429)
    said = talk.client.take(rb"(?s)HTTP/1.1 429 .*?\r\n\r\n{<html>}")[0].lower()
    assert b"retry-after: 7\r\n" in said
    assert b"content-type: application/json\r\n" in said
    assert [key[-1] for key in talk.metrics.translations] == ["error"]


def test_a_long_error_says_its_status(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    respond(talk, b"x" * (64 * 1024 + 1), status=500)
    talk.client.take(rb"HTTP/1.1 500 .*?\r\n\r\n{}")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"garbage", b"Content-Type: application/json\r\n"),
        (b"hi", b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"),
        (b"x" * 101, b"Content-Type: application/json\r\n"),
    ],
)
def test_a_success_that_cannot_be_read_is_an_error(
    converse: Start, monkeypatch: pytest.MonkeyPatch, body: bytes, fields: bytes
):
    monkeypatch.setattr(ai_call, "MAX_ANSWER", 100)
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    respond(talk, body, fields)
    talk.client.take(rb'HTTP/1.1 502 .*?\r\n\r\n{.*"upstream_bad_response"')
    assert talk.record()["reason"] == "upstream_bad_response"


def test_a_redirect_is_an_error(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    respond(talk, b"", b"Location: http://elsewhere.example/\r\n", status=307)
    assert b"Location" not in talk.client.take(rb"HTTP/1.1 502 .*?\r\n\r\n{.*}")[0]


def test_an_answer_that_breaks_off_is_an_error(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    talk.origin.ends()
    talk.client.take(rb"HTTP/1.1 502 ")
    assert talk.record()["reason"] == "upstream_incomplete"


def test_an_answer_may_come_in_pieces(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    talk.client.hears_nothing()
    talk.origin >> b"behind"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{halfbehind}")


def test_the_connection_is_used_again(converse: Start):
    talk = converse(config())
    for number in range(2):
        talk.client >> post()
        body_of(talk, "a", is_new=number == 0)
        respond(talk, b"hi")
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_an_error_may_have_no_body(converse: Start, status: int, body: bytes):
    talk = converse(config())
    talk.client >> post(body)
    body_of(talk, "a")
    respond(talk, b"", status=status)
    talk.client.take(rb"HTTP/1.1 %d .*?\r\n\r\n{}" % status)


def test_a_stream_without_a_byte_is_an_error(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ScriptedTranslator, "whole", unreadable)
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    respond(talk, b"", EVENTS)
    talk.client.take(rb"HTTP/1.1 502 ")


# --- streams ---------------------------------------------------------------------------------------------------------
def test_a_stream_is_translated_as_it_comes(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    head = asked(talk, "a", b"POST")
    assert b"accept: text/event-stream\r\n" in head
    talk.origin.take(b"{.*}")
    stream(talk)
    said = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream\r\n" in said
    more(talk, b"one")
    heard(talk, b"[one]")
    more(talk, b"silent")
    talk.client.hears_nothing()
    more(talk, b"stop")
    heard(talk, b"[stop]")
    talk.origin >> b"0\r\n\r\n"
    heard(talk, b"[end]")
    talk.client << b"0\r\n\r\n"
    assert talk.record()["status"] == 200
    assert [key[-1] for key in talk.metrics.translations] == ["ok"]


def test_a_stream_that_is_here_at_once(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    respond(talk, b"stop", EVENTS)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n6\r\n\[stop\]\r\n5\r\n\[end\]\r\n0\r\n\r\n")


def test_a_stream_without_its_end_ends_in_an_error(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    stream(talk, b"one")
    talk.origin >> b"0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[one]", b"[error]")
    talk.client << b"0\r\n\r\n"
    assert talk.record()["reason"] == "upstream_incomplete"
    assert [key[-1] for key in talk.metrics.translations] == ["error"]


def test_a_backend_that_has_failed_is_let_go(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    stream(talk, b"fail")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[fail]")
    talk.client << b"0\r\n\r\n"
    talk.origin.is_closed()
    assert talk.record()["reason"] == "upstream_incomplete"


def test_a_stream_whose_connection_breaks_is_broken_off(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    stream(talk, b"one")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[one]")
    talk.origin.ends()
    talk.client.is_closed()
    assert talk.client.got == b""
    assert talk.record()["reason"] == "upstream_incomplete"


def test_a_client_that_does_not_read_holds_the_backend_back(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    stream(talk)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    talk.client.stalls()
    origin = talk.origin
    for _ in range(8):
        more(talk, b"x" * 65536)
    assert not origin.transport.is_reading()
    talk.client.reads_on()
    assert origin.transport.is_reading()
    more(talk, b"stop")
    talk.origin >> b"0\r\n\r\n"
    talk.client.take(rb"(?s).*\[end\]\r\n0\r\n\r\n")


def test_a_backend_that_says_nothing_for_the_client_is_alive(converse: Start):
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    stream(talk, b"silent")
    for _ in range(4):
        talk.after(40.0)  # idle is 60 s
        more(talk, b"silent")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n$")
    talk.client.is_open()
    talk.after(121.0)
    talk.client.is_closed()
    assert talk.record()["reason"] == "upstream_timeout"


def test_a_whole_answer_may_take_its_time(converse: Start):
    talk = converse(config())
    talk.client >> post()
    body_of(talk, "a")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    for letter in b"abcd":
        talk.after(40.0)
        talk.origin >> bytes((letter,))
    talk.client.hears_nothing()
    talk.origin >> b"e"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{abcde}")


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_what_is_no_stream_is_none(converse: Start, monkeypatch: pytest.MonkeyPatch, kind: bytes):
    seen: list[tuple[int, bytes]] = []
    monkeypatch.setattr(ScriptedTranslator, "whole", lambda _self, *said: seen.append(said) or unreadable())
    talk = converse(config())
    talk.client >> post(STREAM)
    body_of(talk, "a")
    respond(talk, b"hi", b"Content-Type: " + kind + b"\r\n")
    talk.client.take(rb"HTTP/1.1 502 ")
    assert seen == [(200, b"hi")]


# --- failover --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [429, 500, 529])
def test_a_provider_of_another_api_serves_where_the_first_fails(converse: Start, status: int):
    talk = converse(two(attemptsHeader=True))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"Authorization: Bearer mine")
    assert body_of(talk, "a") == CHAT
    answer(talk, status)
    head = asked(talk, "b", b"POST")
    assert head.startswith(b"POST /v1/messages ")
    assert b"mine" not in head
    assert talk.origin.take(b"{.*}")[0] == b'{"from": "OpenAIChat", "model": "claude"}'
    respond(talk, b"hi")
    said = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")[0]
    assert b'"agents/a";outcome=%d' % status in said
    record = talk.record()
    assert (record["backend"], record["ai_backend_api"], record["ai_backend_model"]) == (
        "agents/b",
        "AnthropicMessages",
        "claude",
    )


def test_and_the_other_way_back_to_the_clients_own_api(converse: Start):
    talk = converse(two())
    request = post(b'{"model": "opus"}', b"/v1/messages", b"x-api-key: mine", b"anthropic-version: 2023-06-01")
    talk.client >> request
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST /v1/chat/completions ")
    assert b"anthropic-version" not in head
    talk.origin.take(b"{.*}")
    answer(talk, 503)
    head = asked(talk, "b", b"POST")
    assert head.startswith(b"POST /v1/messages ")
    assert b"anthropic-version: 2023-06-01\r\n" in head
    assert talk.origin.take(b"{.*}")[0] == b'{"model": "claude"}'
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")


@pytest.mark.parametrize("body", [b"garbage", b"half"])
def test_an_answer_that_cannot_be_read_leads_to_the_next(converse: Start, body: bytes):
    talk = converse(two())
    talk.client >> post(b'{"model": "opus"}', b"/v1/messages")
    body_of(talk, "a")
    if body == b"half":
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
        talk.origin.ends()
    else:
        respond(talk, body)
    body_of(talk, "b")
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")


def test_a_stream_without_a_first_byte_leads_to_the_next(converse: Start):
    talk = converse(two(firstByte="60ms"))
    talk.client >> post(STREAM)
    body_of(talk, "a")
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
    talk.client.hears_nothing()
    wait_for_dial(talk)
    body_of(talk, "b")
    stream(talk, b"stop")
    talk.origin >> b"0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n6\r\n\[stop\]\r\n5\r\n\[end\]\r\n0\r\n\r\n")


def test_a_stream_without_a_byte_leads_to_the_next(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ScriptedTranslator, "whole", unreadable)
    talk = converse(two())
    talk.client >> post(b'{"model": "opus", "stream": true}', b"/v1/messages")
    body_of(talk, "a")
    respond(talk, b"", EVENTS)
    body_of(talk, "b")
    respond(talk, b"hi", EVENTS)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")


def test_the_last_error_has_the_shape_of_the_client(converse: Start):
    talk = converse(two())
    talk.client >> post()
    body_of(talk, "a")
    answer(talk, 503)
    body_of(talk, "b")
    answer(talk, 529)
    talk.client.take(rb"HTTP/1.1 529 .*?\r\n\r\n{no}")


def test_a_provider_whose_answers_cannot_be_read_is_put_aside(converse: Start):
    talk = converse(two())
    for number in range(4):
        talk.client >> post(b'{"model": "opus"}', b"/v1/messages")
        if number < 3:
            talk.dialled("a.example", 80).take(rb"POST .*?\r\n\r\n{.*}")
            talk.origin >> b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\ngarbage"
        talk.dialled("b.example", 80).take(rb"POST .*?\r\n\r\n{.*}")
        talk.origin >> b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")


# --- filters, and HTTP/2 -------------------------------------------------------------------------------------------
class Shouts(Filter):
    def backend_request(self, x: Exchange) -> None:
        x.request.fields.set(b"x-seen", x.request.path)

    def response_headers(self, x: Exchange) -> None:
        x.response.fields.set(b"x-type", x.response.fields.get(b"content-type") or b"")

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.upper()


@pytest.mark.parametrize("is_stream", [False, True])
def test_filters_see_the_request_of_the_backend_and_the_answer_of_the_client(converse: Start, is_stream: bool):
    objects = config()
    phases = ("backend-request", "response-headers", "response-body")
    objects[1] = m.policy(extensions=[scripted_filter("shouts", phase) | {"name": phase} for phase in phases])
    talk = converse(objects, filters={"shouts": Shouts()})
    talk.client >> post(STREAM if is_stream else CHAT)
    assert b"x-seen: /v1/messages\r\n" in asked(talk, "a", b"POST")
    talk.origin.take(b"{.*}")
    respond(talk, b"stop", EVENTS if is_stream else b"Content-Type: application/json\r\n")
    said = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n.*0\r\n\r\n")[0]
    assert (b"[STOP]" if is_stream else b"{STOP}") in said
    assert (b"x-type: text/event-stream" if is_stream else b"x-type: application/json") in said


@pytest.mark.parametrize("is_stream", [False, True])
def test_filters_of_the_backend_see_its_head_and_the_body_of_the_client(converse: Start, is_stream: bool):
    class Seen(Filter):
        """What came last."""

        body = b""
        content_type = b""

        def backend_response(self, x: Exchange) -> None:
            self.content_type = x.response.fields.get(b"content-type") or b""

        def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
            self.body += data
            return data.upper()

    seen = Seen()
    phases = ("backend-response", "response-body")
    extensions = [scripted_filter("seen", phase) | {"name": phase} for phase in phases]
    talk = converse(config(provider("a", "AnthropicMessages", extensions=extensions)), filters={"seen": seen})
    talk.client >> post(STREAM if is_stream else CHAT)
    asked(talk, "a", b"POST")
    talk.origin.take(b"{.*}")
    respond(talk, b"stop", EVENTS if is_stream else b"Content-Type: application/x-provider\r\n")
    said = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n.*0\r\n\r\n")[0]
    assert (b"[STOP]" if is_stream else b"{STOP}") in said
    assert seen.body.startswith(b"[stop]" if is_stream else b"{stop}")
    assert seen.content_type == (b"text/event-stream" if is_stream else b"application/x-provider")


def test_clients_of_http2_are_served_the_same(converse: Start):
    talk = converse(config())
    peer = speak_http2(talk)
    number = peer.ask(b"POST", b"/v1/chat/completions", b"x", (b"content-type", b"application/json"), body=STREAM)
    body_of(talk, "a")
    stream(talk, b"one")
    peer.settle()
    assert bytes(peer.answers[number].data) == b"[one]"
    more(talk, b"stop")
    talk.origin >> b"0\r\n\r\n"
    peer.settle()
    assert bytes(peer.answers[number].data) == b"[one][stop][end]"


def over_http2() -> list[m.Manifest]:
    made = provider("a", "AnthropicMessages")
    made["spec"]["destination"]["ports"][0]["protocol"] = "H2C"
    return config(made)


def http2_asked(talk: Conversation, body: bytes) -> Http2Origin:
    """The backend a has the translated request."""
    talk.client >> post(body, b"/v1/chat/completions", b"Authorization: Bearer mine")
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    (seen,) = origin.waits_for(1).values()
    assert seen.headers[b":path"] == b"/v1/messages"
    assert seen.headers[b"content-length"] == b"%d" % len(seen.data)
    assert b"authorization" not in seen.headers
    assert json.loads(bytes(seen.data)) == {"from": "OpenAIChat", "model": "gpt-5"}
    return origin


def test_backends_of_http2_are_asked_the_same(converse: Start):
    talk = converse(over_http2())
    http2_asked(talk, CHAT).responds(1, b"hi", (b"content-type", b"application/json"))
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")


def test_a_stream_of_http2_is_translated_as_it_comes(converse: Start):
    talk = converse(over_http2())
    origin = http2_asked(talk, STREAM)
    origin.responds(1, b"one", (b"content-type", b"text/event-stream"), is_last=False)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[one]")
    origin.server.h2.send_data(1, b"stop", end_stream=True)
    origin.goes_on()
    heard(talk, b"[stop]", b"[end]")
    talk.client << b"0\r\n\r\n"


def test_a_stream_of_http2_that_is_reset_is_broken_off(converse: Start):
    talk = converse(over_http2())
    origin = http2_asked(talk, STREAM)
    origin.responds(1, b"one", (b"content-type", b"text/event-stream"), is_last=False)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[one]")
    origin.server.h2.reset_stream(1)
    origin.goes_on()
    talk.client.is_closed()
    assert talk.client.got == b""


def test_a_backend_of_http2_that_has_failed_is_let_go(converse: Start):
    talk = converse(over_http2())
    origin = http2_asked(talk, STREAM)
    origin.responds(1, b"fail", (b"content-type", b"text/event-stream"), is_last=False)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    heard(talk, b"[fail]")
    talk.client << b"0\r\n\r\n"
    origin.goes_on()
    assert origin.server.calls[1].reset is not None


def test_behind_a_parent(converse: Start):
    behind = provider("a", "AnthropicMessages")
    behind["spec"]["parent"] = {"name": "proxy"}
    talk = converse(config(behind, m.backend("proxy", "proxy.example", 3128)))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"Authorization: Bearer mine")
    talk.dialled("proxy.example", 3128)
    head = talk.origin.take(rb"POST .*?\r\n\r\n")[0]
    assert head.startswith(b"POST http://a.example/v1/messages HTTP/1.1\r\nHost: a.example\r\n")
    assert b"mine" not in head
    talk.origin.take(b"{.*}")
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")


def test_a_connection_that_had_died_is_replaced_for_the_same_translation(converse: Start):
    objects = config(provider("a", "AnthropicMessages"), m.failover("any", endpoint("a", 0)), to="any")
    talk = converse(objects)
    talk.client >> post()
    body_of(talk, "a")
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")
    talk.client >> post(b'{"model": "other"}')
    talk.origin.take(rb"POST /v1/messages .*?\r\n\r\n{.*}")
    talk.origin.resets()
    assert b'"model": "other"' in body_of(talk, "a")
    respond(talk, b"hi")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n{hi}")


def test_retries_of_the_rule_are_translated_again(converse: Start):
    retry = {"retry": {"attempts": 2, "codes": [503], "backoff": "0s"}}
    talk = converse(config(provider("a", "AnthropicMessages"), rule=retry))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"X-Team: red")
    for number in range(3):
        head = asked(talk, "a", b"POST", is_new=number == 0)
        assert head.count(b"x-team") + head.count(b"X-Team") == 1
        assert head.count(b"anthropic-version") == 1
        assert json.loads(talk.origin.take(b"{.*}")[0]) == {"from": "OpenAIChat", "model": "gpt-5"}
        respond(talk, b"no", status=503)
    talk.client.take(rb"HTTP/1.1 503 .*?\r\n\r\n{no}")
    assert talk.record()["attempts"] == 3


# --- APIs whose path has the model -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "prefix", "path"),
    [
        (CHAT, "", b"/v1beta/models/gpt-5:generateContent"),
        (STREAM, "", b"/v1beta/models/gpt-5:streamGenerateContent?alt=sse"),
        (CHAT, "/v1/projects/p/locations/l/publishers/google",
         b"/v1/projects/p/locations/l/publishers/google/models/gpt-5:generateContent"),
    ],
)  # fmt: skip
def test_gemini_has_model_and_stream_in_its_path(converse: Start, body: bytes, prefix: str, path: bytes):
    more = {"prefix": prefix} if prefix else {}
    talk = converse(config(provider("a", "Gemini", **more)))
    talk.client >> post(body, b"/v1/chat/completions?key=k", b"x-goog-api-key: k", b"x-goog-user-project: p")
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST " + path + b" HTTP/1.1\r\n")
    assert b"goog" not in head.lower().partition(b"\r\n")[2]


def test_a_stream_of_bedrock_is_translated_event_by_event(converse: Start):
    talk = converse(config(provider("a", "BedrockConverse")))
    talk.client >> post(STREAM, b"/v1/chat/completions", b"x-amz-date: d", b"X-Amzn-Trace-Id: t")
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST /model/gpt-5/converse-stream HTTP/1.1\r\n")
    assert b"accept: application/vnd.amazon.eventstream\r\n" in head
    assert b"x-amz" not in head.lower()
    talk.origin.take(b"(?s){.*}")
    talk.origin >> (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nx-amzn-RequestId: r1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    said = talk.client.take(rb"(?s)HTTP/1.1 200 .*?\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream\r\n" in said
    assert b"x-request-id: r1\r\n" in said
    for piece in (b"a", b"stop"):
        more(talk, piece)
        heard(talk, b"[" + piece + b"]")


def test_gemini_is_asked_for_the_alias(converse: Start):
    group = m.failover("any", endpoint("a", 0, modelAlias="gemini-3-pro"))
    talk = converse(config(provider("a", "Gemini"), group, to="any"))
    talk.client >> post(CHAT)
    assert asked(talk, "a", b"POST").startswith(b"POST /v1beta/models/gemini-3-pro:generateContent HTTP/1.1\r\n")


# --- Azure's paths ---------------------------------------------------------------------------------------------------
DEPLOYED = b"/openai/deployments/mine/chat/completions?api-version=2023-05-15"
AZURE = {"azureApiVersion": "2024-10-21"}


@pytest.mark.parametrize(
    ("path", "more", "target"),
    [
        (b"/v1/chat/completions?a=b", AZURE, b"/openai/deployments/gpt-5/chat/completions?api-version=2024-10-21"),
        (b"/v1/chat/completions", {**AZURE, "prefix": "/x/openai"},
         b"/x/openai/deployments/gpt-5/chat/completions?api-version=2024-10-21"),
        (DEPLOYED, AZURE, b"/openai/deployments/mine/chat/completions?api-version=2024-10-21"),
        (DEPLOYED, {}, DEPLOYED),
        (DEPLOYED, {"prefix": "/openai/v1"}, DEPLOYED),
        (b"/v1/chat/completions", {"prefix": "/openai/v1"}, b"/openai/v1/chat/completions"),
        (b"/v1/responses", AZURE, b"/openai/responses?api-version=2024-10-21"),
    ],
)  # fmt: skip
def test_requests_that_are_not_translated_go_to_the_paths_of_azure(
    converse: Start, path: bytes, more: dict[str, str], target: bytes
):
    talk = converse(config(provider("a", "OpenAIChat", "OpenAIResponses", **more)))
    talk.client >> post(CHAT, path)
    assert asked(talk, "a", b"POST").startswith(b"POST " + target + b" HTTP/1.1\r\n")


def test_an_alias_names_the_deployment(converse: Start):
    group = m.failover("any", endpoint("a", 0, modelAlias="ours"))
    talk = converse(config(provider("a", "OpenAIChat", **AZURE), group, to="any"))
    talk.client >> post(CHAT)
    assert asked(talk, "a", b"POST").startswith(b"POST /openai/deployments/ours/chat/completions?api-version=")
    assert b'"ours"' in talk.origin.take(b"(?s){.*}")[0]


def test_clients_of_other_apis_are_translated_to_azure(converse: Start):
    talk = converse(config(provider("a", "OpenAIChat", **AZURE)))
    talk.client >> post(CHAT, b"/v1/messages", b"api-key: k")
    head = asked(talk, "a", b"POST")
    assert head.startswith(b"POST /openai/deployments/gpt-5/chat/completions?api-version=2024-10-21 HTTP/1.1\r\n")
    assert b"api-key" not in head


def test_clients_of_azure_are_translated_with_the_model_of_their_path(converse: Start):
    talk = converse(config())
    talk.client >> post(b'{"model": "another"}', DEPLOYED)
    talk.dialled("a.example", 80)
    talk.origin.take(rb'(?s)POST /v1/messages HTTP.*"model": "mine"}')
    respond(talk, b"hi", JSON)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    assert talk.record()["ai_api"] == "OpenAIChat"


@pytest.mark.parametrize("body", [b'{"messages": []}', b'{"model": "../x"}', b'{"model": "a/b"}'])
def test_a_model_that_is_no_deployment_is_refused(converse: Start, body: bytes):
    talk = converse(config(provider("a", "OpenAIChat", **AZURE)))
    talk.client >> post(body)
    assert b"`model`" in talk.client.take(rb"(?s)HTTP/1.1 400 .*?\r\n\r\n({.*}})")[1]
    talk.no_dial()


@pytest.mark.parametrize(
    ("api", "kind", "event"),
    [
        ("Gemini", b"text/event-stream", b'data: {"error": {"code": 503, "message": "m"}}\n\n'),
        ("BedrockConverse", b"application/vnd.amazon.eventstream",
         aws_message({":message-type": "exception", ":exception-type": "throttlingException",
                      ":content-type": "application/json"}, b'{"message": "m"}')),
    ],
)  # fmt: skip
def test_a_stream_that_begins_with_an_error_leads_to_the_next_endpoint(
    converse: Start, api: str, kind: bytes, event: bytes
):
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1, modelAlias="claude"))
    talk = converse(config(provider("a", api), provider("b", "AnthropicMessages"), group, to="any"))
    talk.client >> post(STREAM)
    asked(talk, "a", b"POST")
    talk.origin.take(b"(?s){.*}")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    more(talk, event)
    assert asked(talk, "b", b"POST").startswith(b"POST /v1/messages ")
