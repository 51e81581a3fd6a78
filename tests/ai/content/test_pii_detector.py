# ruff: noqa: E501
"""PIIDetector, as the gateway builds and runs it."""

import base64
import gzip
import json

import pytest

from egressproxy.ai.apis import framing, message
from egressproxy.ai.apis.aws_event_stream import AwsFraming, aws_message
from egressproxy.ai.content.placeholders import Placeholders, Restorer
from egressproxy.errors import Reason
from egressproxy.filters import Phase
from egressproxy.filters.testing import FilterBuildError, FilterHarness, exchange, response

TYPE = "egressproxy.io/PIIDetector:v1"
JSON = {"content-type": "application/json"}
CHAT = "https://api.example.com/v1/chat/completions"
ALICE = "alice@example.com"
CARD = "4111 1111 1111 1111"
ENTITIES = [
    {"name": "EMAIL", "action": "Placeholder"},
    {"name": "CARD", "action": "Block"},
    {"name": "IBAN", "action": "Redact"},
]


def detector(**config):
    return FilterHarness({"entities": ENTITIES, **config}, phase=Phase.REQUEST_HEADERS, type=TYPE)


def ask(text, **more):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def answer(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def run(harness, body, fields=JSON, url=CHAT, pieces=(), answered=None):
    return harness.run(
        exchange("POST", url, fields), request_body=body, response=answered or response(200, JSON), response_body=pieces
    )


# --- requests


def test_a_value_is_replaced_on_the_way_out_and_put_back_in_the_answer():
    result = run(detector(), ask(f"Write to {ALICE}."), pieces=answer("I wrote to <EMAIL_1>: <EMAIL_2>"))
    assert json.loads(result.request_body)["messages"][0]["content"] == "Write to <EMAIL_1>."
    assert json.loads(result.response_body)["choices"][0]["message"]["content"] == f"I wrote to {ALICE}: <EMAIL_2>"


def test_a_value_has_one_placeholder_wherever_it_stands():
    result = run(detector(), ask(f"{ALICE} or bob@example.com or {ALICE}", user=ALICE))
    said = json.loads(result.request_body)
    assert said["messages"][0]["content"] == "<EMAIL_1> or <EMAIL_2> or <EMAIL_1>"
    assert said["user"] == "<EMAIL_1>"


def test_a_redacted_value_is_gone():
    result = run(detector(), ask("DE89 3704 0044 0532 0130 00"), pieces=answer("[IBAN]"))
    assert json.loads(result.request_body)["messages"][0]["content"] == "[IBAN]"
    assert result.response_body == answer("[IBAN]")


def test_a_blocked_value_ends_the_request_and_is_told_nowhere():
    result = run(detector(), ask(f"pay with {CARD}"))
    assert (result.error.status, result.error.reason) == (403, Reason.CONTENT_DENIED)
    assert result.error.message == "filter test: the request has CARD, which must not leave"
    assert "4111" not in f"{result.error!r}{result.error.detail}{result.error.remedy}"


@pytest.mark.parametrize(
    ("action", "more", "looks"),
    [
        ("Redact", {"applyTo": "Requests"}, False),
        ("Placeholder", {"applyTo": "Requests"}, True),
        ("Redact", {"applyTo": "Both"}, True),
        ("Redact", {"applyTo": "Responses"}, True),
    ],
)
def test_answers_are_asked_for_as_the_client_wants_them_where_nobody_looks_at_them(action, more, looks):
    harness = detector(entities=[{"name": "EMAIL", "action": action}], **more)
    result = run(harness, ask("Hello"), {**JSON, "accept-encoding": "lzma"}, pieces=answer("Hello"))
    assert result.exchange.request.fields.get(b"accept-encoding") == (b"identity" if looks else b"lzma")


def test_a_body_without_anything_goes_on_byte_for_byte():
    body = b'{ "model" : "m", "messages": [ {"role":"user", "content":"Gr\\u00fc\\u00dfe"} ] }'
    assert run(detector(), body).request_body == body


def test_what_is_escaped_is_seen():
    body = b'{"messages": [{"role": "user", "content": "a\\u006cice\\u0040example.com \\"x\\""}]}'
    assert b'"<EMAIL_1> \\"x\\""' in run(detector(), body).request_body


def test_the_client_s_own_placeholder_is_not_taken_for_ours():
    body = ask(f"<EMAIL_1> is what I write, for {ALICE}").replace(b"<EMAIL_1>", b"<\\u0045MAIL_1>")
    result = run(detector(), body, pieces=answer("<EMAIL_1> and <EMAIL_2>"))
    assert json.loads(result.request_body)["messages"][0]["content"] == "<EMAIL_1> is what I write, for <EMAIL_2>"
    assert json.loads(result.response_body)["choices"][0]["message"]["content"] == f"<EMAIL_1> and {ALICE}"


def test_a_placeholder_of_another_exchange_is_only_text():
    harness = detector()
    run(harness, ask(f"{ALICE}"))
    assert run(harness, ask("hello"), pieces=answer("<EMAIL_1>")).response_body == answer("<EMAIL_1>")
    assert run(harness, ask("bob@example.com"), pieces=answer("<EMAIL_1>")).response_body == answer("bob@example.com")


def test_arguments_of_tools_are_read_inside():
    call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": ALICE, "n": 1})}}
    body = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]}).encode()
    said = json.loads(run(detector(), body).request_body)
    assert json.loads(said["messages"][0]["tool_calls"][0]["function"]["arguments"]) == {"to": "<EMAIL_1>", "n": 1}


def test_arguments_in_an_answer_get_values_that_are_escaped():
    harness = detector(entities=[], patterns=[{"name": "NAME", "pattern": '"[a-z]+"', "action": "Placeholder"}])
    call = {"function": {"name": "send", "arguments": json.dumps({"to": "<NAME_1>"})}}
    answered = json.dumps({"choices": [{"message": {"tool_calls": [call]}}]}).encode()
    said = json.loads(run(harness, ask('call "bob" now'), pieces=answered).response_body)
    assert json.loads(said["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"to": '"bob"'}


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ({"deep": [{"to": ALICE}], "n": 3}, {"deep": [{"to": "<EMAIL_1>"}], "n": 3}),
        ([ALICE], ["<EMAIL_1>"]),
        ({"name": ALICE, "id": ALICE, "data": ALICE}, {"name": "<EMAIL_1>", "id": "<EMAIL_1>", "data": "<EMAIL_1>"}),
    ],
)  # fmt: skip
def test_every_string_of_other_json_is_looked_at(body, made):
    result = run(detector(), json.dumps(body).encode(), url="https://api.example.com/things")
    assert json.loads(result.request_body) == made


@pytest.mark.parametrize("member", ["Input", "Models", "MESSAGES"])
def test_members_of_an_api_of_ones_own_may_have_any_name(member):
    body = json.dumps({member: [f"to {ALICE}"], "input": ALICE}).encode()
    assert run(detector(), body).error.status == 400  # an AI provider may take it for another
    result = run(detector(), body, url="https://api.example.com/orders")
    assert json.loads(result.request_body) == {member: ["to <EMAIL_1>"], "input": "<EMAIL_1>"}


@pytest.mark.parametrize("url", [CHAT, "https://api.example.com/things"])
def test_names_of_members_and_long_numbers_are_looked_at(url):
    harness = detector()
    assert run(harness, b'{"card": 4111111111111111}', url=url).error.status == 403
    assert run(harness, b'{"4111111111111111": 1}', url=url).error.status == 403
    assert "cannot be changed" in run(harness, b'{"x": {"alice@example.com": 1}}', url=url).error.message


def _call_with(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": arguments}}
    return ask("go on", tools=[], history=[]).replace(
        b'"messages": [', b'"messages": [' + json.dumps({"role": "assistant", "tool_calls": [call]}).encode() + b", "
    )


@pytest.mark.parametrize(
    "arguments",
    [
        '{"to": "x", "4111 1111 1111 1111": 1}',
        '{"to": "x", "card": 4111111111111111}',
        '{"to": "x", "card": [{"n": 4111111111111111.0}]}',
        '{"to": "x", "card": "4111 1111 1111 1111", "card": "none"}',
        ' {"to": "x", "card": "\\u0034111 1111 1111 1111"}',
        "[" + "[]," * 60_000 + '"\\u0034111 1111 1111 1111"]',
    ],
)
def test_all_that_arguments_in_a_string_say_is_looked_at(arguments):
    result = run(detector(), _call_with(arguments))
    assert result.error.status in (400, 403)
    assert not result.request_body


def test_a_long_number_in_arguments_is_redacted_there():
    harness = detector(entities=[{"name": "CARD", "action": "Redact"}])
    said = json.loads(run(harness, _call_with('{"to": "x", "card": 4111111111111111}')).request_body)
    arguments = said["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": "x", "card": "[CARD]"}


@pytest.mark.parametrize(
    "member",
    [
        {"metadata": {"data": "My card number is 4111 1111 1111 1111 and it expires soon please note this"}},
        {"metadata": {"bytes": "4111-1111-1111-1111 " * 8}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:;base64,{CARD}"}}]}
            ]
        },
        {"id": f"data:text/plain;base64,, {CARD}"},
        {"amount": 4111111111111111.0},
    ],
)
def test_text_that_calls_itself_base64_is_text(member):
    assert run(detector(), ask("look", **member)).error.status == 403


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_utf_16_is_no_utf_8_with_nul_characters(content_type):
    body = ask(f"pay with {CARD}").decode().encode("utf-16-le")
    assert run(detector(), body, {"content-type": content_type} if content_type else {}).error.status == 400


def test_lines_of_json_have_a_bound():
    result = run(detector(), b"1\n" * 300_000, {"content-type": "application/x-ndjson"})
    assert result.error.status == 400
    assert "too many parts" in result.error.message


def test_many_values_in_arguments_take_time_that_grows_with_their_number(monkeypatch):
    written = []
    dumps = message.dumps
    monkeypatch.setattr(message, "dumps", lambda value: written.append(1) or dumps(value))
    arguments = json.dumps({"to": [f"a{number}@example.com" for number in range(2000)]})
    said = json.loads(run(detector(), _call_with(arguments)).request_body)
    assert "@" not in said["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert len(written) < 10
    searched = []
    splicing_text = message.splicing_text
    monkeypatch.setattr(message, "splicing_text", lambda *how: searched.append(1) or splicing_text(*how))
    said = run(detector(), ask("", to=[f"a{number}@example.com" for number in range(2000)])).request_body
    assert b"@" not in said
    assert len(searched) < 10


def test_images_of_a_conversation_are_not_text():
    data = "QUJD" * 2000
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    assert run(detector(), body).request_body == body


@pytest.mark.parametrize(
    ("content_type", "body", "made"),
    [
        ("text/plain", f"to {ALICE}", "to <EMAIL_1>"),
        ("text/plain; charset=utf-8", f"é {ALICE}", "é <EMAIL_1>"),
        ("application/x-www-form-urlencoded", "to=alice%40example.com&x=a+b", "to=%3CEMAIL_1%3E&x=a+b"),
        ("application/x-ndjson", f'{{"to":"{ALICE}"}}\r\n\n["{ALICE}"]\n', '{"to":"<EMAIL_1>"}\r\n\n["<EMAIL_1>"]\n'),
        ("application/vnd.api+json", f'["{ALICE}"]', '["<EMAIL_1>"]'),
        ("", f'["{ALICE}"]', '["<EMAIL_1>"]'),
        ("", f"to {ALICE}", "to <EMAIL_1>"),
    ],
)  # fmt: skip
def test_other_bodies_that_are_text(content_type, body, made):
    fields = {"content-type": content_type} if content_type else {}
    assert run(detector(), body.encode(), fields).request_body == made.encode()


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("image/png", b"\x89PNG", 415), ("multipart/form-data; boundary=x", b"--x", 415),
        ("application/grpc", b"\0\0\0\0\0", 415), ("text/plain; charset=utf-16", "é".encode("utf-16"), 415),
        ("application/json", b"{", 400), ("application/json", b'{"a": 1, "a": 2}', 400), ("text/plain", b"\xff", 400),
        ("", b"\xff", 400),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_refused_unless_that_is_allowed(content_type, body, status):
    fields = {"content-type": content_type} if content_type else {}
    refused = run(detector(), body, fields)
    assert (refused.error.status, refused.error.reason) == (status, Reason.CONTENT_DENIED)
    assert run(detector(unreadable="Allow"), body, fields).request_body == body


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_json_is_read_as_json_whatever_its_type_says(content_type):
    body = b' {"to": "alice\\u0040example.com"}'
    assert run(detector(), body, {"content-type": content_type}).request_body == b' {"to": "<EMAIL_1>"}'
    assert run(detector(), b"{{ name }} " + ALICE.encode(), {"content-type": "text/plain"}).request_body == (
        b"{{ name }} <EMAIL_1>"
    )
    twice = b'{"a": 1, "a": "alice\\u0040example.com"}'
    assert run(detector(), twice, {"content-type": content_type}).error.status == 400


def test_two_content_types_are_none():
    fields = [("content-type", "application/json"), ("content-type", "image/png")]
    assert run(detector(), b"{}", fields).error.status == 415


def test_tunnels_and_upgrades_are_refused_unless_that_is_allowed():
    assert detector().run(exchange("CONNECT", "api.example.com:443")).error.status == 403
    assert detector(unreadable="Allow").run(exchange("CONNECT", "api.example.com:443")).error is None
    x = exchange("GET", "https://api.example.com/")
    x.request.upgrade = b"websocket"
    assert detector().run(x).error.status == 403


def test_the_query_and_the_fields_that_are_named_are_looked_at():
    fields = [("x-asked-by", ALICE), ("x-other", ALICE)]
    x = exchange("GET", "https://api.example.com/find?q=alice%40example.com&n=1", fields)
    result = detector(headers=["X-Asked-By"]).run(x)
    assert result.request.path == b"/find?q=%3CEMAIL_1%3E&n=1"
    assert result.request.fields.get(b"x-asked-by") == b"<EMAIL_1>"
    assert result.request.fields.get(b"x-other") == ALICE.encode()
    assert detector().run(exchange("GET", f"https://api.example.com/?c={CARD.replace(' ', '')}")).error.status == 403
    assert (
        detector(query=False).run(exchange("GET", f"https://a.example/?q={ALICE}")).request.path
        == b"/?q=" + ALICE.encode()
    )


def test_a_long_body_gives_the_same_in_steps():
    text = f"{ALICE} {'word ' * 9000}bob@example.com "
    body = ask(text * 3)
    said = json.loads(run(detector(), body).request_body)["messages"][0]["content"]
    assert said == text.replace(ALICE, "<EMAIL_1>").replace("bob@example.com", "<EMAIL_2>") * 3


def test_report_counts_and_changes_nothing():
    harness = detector(entities=[{"name": "EMAIL", "action": "Report"}])
    body = ask(f"to {ALICE}")
    assert run(harness, body).request_body == body


def test_gzipped_bodies_are_read():
    fields = {**JSON, "content-encoding": "gzip"}
    result = run(detector(), gzip.compress(ask(f"to {ALICE}")), fields, pieces=answer("<EMAIL_1>"))
    assert b"<EMAIL_1>" in gzip.decompress(result.request_body)


@pytest.mark.parametrize("action", ["Placeholder", "Redact"])
def test_a_message_with_more_values_than_are_kept_is_refused(action):
    harness = detector(entities=[{"name": "EMAIL", "action": action}], unreadable="Allow")
    refused = run(harness, ask(" ".join(f"a{n}@b.co" for n in range(10_100))))
    assert (refused.error.status, refused.error.reason) == (403, Reason.CONTENT_DENIED)
    assert run(harness, ask(" ".join(f"a{n}@b.co" for n in range(9_900)))).error is None
    many = json.dumps([f"a{n}@b.co" for n in range(10_100)]).encode()
    assert (run(harness, many).error is None) is (action == "Redact")


def test_numbers_that_the_client_writes_are_passed_over_however_many_they_are():
    said = " ".join(f"EMAIL_{n}" for n in range(10_100))
    sent = json.loads(run(detector(), ask(f"{said} {ALICE}")).request_body)["messages"][0]["content"]
    assert sent == f"{said} <EMAIL_1000000001>"


@pytest.mark.parametrize("at", range(65_440, 65_540, 7))
def test_numbers_that_the_client_writes_are_passed_over_wherever_they_stand(at: int):
    said = "x " * (at // 2) + "EMAIL_71 " + "x " * 40_000
    sent = json.loads(run(detector(), ask(f"{said} {ALICE}")).request_body)["messages"][0]["content"]
    assert sent == f"{said} <EMAIL_72>"


# --- answers


def test_answers_are_looked_at_where_that_is_asked_for():
    both = detector(applyTo="Both")
    said = run(both, ask(f"to {ALICE}"), pieces=answer("<EMAIL_1> bob@example.com DE89370400440532013000"))
    assert said.response_body == answer(f"{ALICE} [EMAIL] [IBAN]")
    refused = run(both, ask("hello"), pieces=answer(CARD))
    assert (refused.error.status, refused.error.reason) == (502, Reason.CONTENT_DENIED)
    only = detector(applyTo="Responses")
    assert run(only, ask(ALICE), pieces=answer(ALICE)).request_body == ask(ALICE)
    assert run(only, ask(ALICE), pieces=answer(ALICE)).response_body == answer("[EMAIL]")


@pytest.mark.parametrize("filler", ["", "word " * 9000])
@pytest.mark.parametrize(
    "said", ["<EMAIL_1>", "&lt;EMAIL_1&gt;", "\\u003cEMAIL_1\\u003e", "\\u0026lt;EMAIL_1&gt;", "EMAIL_1", ""]
)
def test_what_is_found_in_an_answer_and_what_is_put_back_are_so_in_long_ones_too(filler, said):
    answered = answer(f"{filler}to bob@example.com @").replace(b'@"', said.encode() + b'"')
    expected = ALICE if "lt;" in said or "<" in said or "u003c" in said else said
    for applies in ("Both", "Requests"):
        made = run(detector(applyTo=applies), ask(ALICE), pieces=answered).response_body
        other = "[EMAIL]" if applies == "Both" else "bob@example.com"
        assert json.loads(made) == json.loads(answer(f"{filler}to {other} {expected}"))


def test_an_answer_that_cannot_be_looked_at_is_refused_where_it_has_to_be():
    image = response(200, {"content-type": "image/png"})
    assert run(detector(applyTo="Both"), ask("x"), pieces=b"\x89PNG", answered=image).error.status == 502
    image = response(200, {"content-type": "image/png"})
    assert run(detector(), ask(ALICE), pieces=b"\x89PNG", answered=image).response_body == b"\x89PNG"


def test_a_text_in_pieces_gets_its_values_back():
    plain = response(200, {"content-type": "text/plain"})
    said = run(detector(), ask(f"{ALICE}"), pieces=[b"to <EM", b"AIL_1>, \xc3", b"\xa9 <EMAIL_9>"], answered=plain)
    assert said.response_body == f"to {ALICE}, é <EMAIL_9>".encode()


# --- streams, of each API


def chat_events(pieces):
    for piece in pieces:
        yield {"id": "c", "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
    yield {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chat_text(events):
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def tool_events(pieces):
    for piece in pieces:
        call = {"index": 0, "function": {"arguments": piece}}
        yield {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def tool_text(events):
    deltas = [event["choices"][0]["delta"] for event in events]
    return "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))


def anthropic_events(pieces):
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for piece in pieces:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_stop"}


def anthropic_text(events):
    return "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


def responses_events(pieces):
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    for piece in pieces:
        yield {"type": "response.output_text.delta", **place, "delta": piece}
    yield {"type": "response.output_text.done", **place, "text": "".join(pieces)}


def responses_text(events):
    said = "".join(event["delta"] for event in events if event["type"].endswith("delta"))
    assert events[-1]["text"] == said
    return said


def gemini_events(pieces):
    for piece in pieces:
        yield {"candidates": [{"content": {"role": "model", "parts": [{"text": piece}]}, "index": 0}]}
    yield {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0, "finishReason": "STOP"}]}


def gemini_text(events):
    return "".join(event["candidates"][0]["content"]["parts"][0]["text"] for event in events)


STREAMS = {
    "chat": (CHAT, chat_events, chat_text),
    "anthropic": ("https://api.example.com/v1/messages", anthropic_events, anthropic_text),
    "responses": ("https://api.example.com/v1/responses", responses_events, responses_text),
    "gemini": (
        "https://api.example.com/v1beta/models/g:streamGenerateContent?alt=sse", gemini_events, gemini_text
    ),
}  # fmt: skip
SAID = "Dear <EMAIL_1>, bob@example.com has <EMAIL_2> & <EMAIL_3>. DE89 3704 0044 0532 0130 00!"
HEARD = "Dear alice@example.com, [EMAIL] has carol@example.com & <EMAIL_3>. [IBAN]!"


def stream(events):
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def read(body):
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_gives_the_same_however_its_text_and_its_bytes_are_cut(api):
    url, events_of, text_of = STREAMS[api]
    harness = detector(applyTo="Both")
    request = ask(f"{ALICE} carol@example.com")
    texts = [[SAID[:cut], SAID[cut:]] for cut in range(1, len(SAID))]
    texts += [list(SAID), [SAID[n : n + 7] for n in range(0, len(SAID), 7)]]
    for number, pieces in enumerate(texts):
        body = stream(events_of(pieces))
        step = 1 + number * 3
        cut = [body[n : n + step] for n in range(0, len(body), step)]
        x = exchange("POST", url, JSON)
        result = harness.run(
            x, request_body=request, response=response(200, {"content-type": "text/event-stream"}), response_body=cut
        )
        assert result.error is None
        assert text_of(read(result.response_body)) == HEARD


def test_arguments_in_a_stream_are_seen_unescaped_and_get_values_that_are_escaped():
    harness = detector(
        entities=[{"name": "EMAIL", "action": "Placeholder"}],
        patterns=[{"name": "NAME", "pattern": '"[a-z]+"', "action": "Placeholder"}],
        applyTo="Both",
    )
    said = r'{"to":"\u003cEMAIL_1\u003e","cc":"<NAME_1>","from":"dave\u0040example.com"}'
    for cut in range(1, len(said)):
        result = run(
            harness, ask(f'{ALICE} "bob"'), pieces=stream(tool_events([said[:cut], said[cut:]])),
            answered=response(200, {"content-type": "text/event-stream"}),
        )  # fmt: skip
        heard = json.loads(tool_text(read(result.response_body)))
        assert heard == {"to": ALICE, "cc": '"bob"', "from": "[EMAIL]"}


def test_a_gzipped_stream_gets_its_values_back():
    head = response(200, {"content-type": "text/event-stream", "content-encoding": "gzip"})
    body = gzip.compress(stream(chat_events(list("to <EMAIL_1>!"))))
    result = run(detector(), ask(ALICE), pieces=[body[:20], body[20:]], answered=head)
    assert chat_text(read(gzip.decompress(result.response_body))) == f"to {ALICE}!"


def test_a_stream_of_bedrock_gets_its_values_back_at_every_cut_of_its_text():
    def frames(pieces):
        for piece in pieces:
            told = json.dumps({"contentBlockIndex": 0, "delta": {"text": piece}}).encode()
            yield aws_message(
                {":message-type": "event", ":event-type": "contentBlockDelta", ":content-type": "application/json"},
                told,
            )
        yield aws_message(
            {":message-type": "event", ":event-type": "contentBlockStop", ":content-type": "application/json"},
            b'{"contentBlockIndex":0}',
        )

    harness = detector(applyTo="Both")
    for cut in range(1, len(SAID)):
        body = b"".join(frames([SAID[:cut], SAID[cut:]]))
        result = run(
            harness, ask(f"{ALICE} carol@example.com"), url="https://api.example.com/model/m/converse-stream",
            pieces=[body[n : n + 11 + cut] for n in range(0, len(body), 11 + cut)],
            answered=response(200, {"content-type": "application/vnd.amazon.eventstream"}),
        )  # fmt: skip
        told = [json.loads(frame.payload) for frame in AwsFraming().feed(result.response_body)]
        assert "".join(event.get("delta", {}).get("text", "") for event in told) == HEARD


def test_a_blocked_value_breaks_a_stream_off_before_it_is_told():
    head = response(200, {"content-type": "text/event-stream"})
    result = run(detector(applyTo="Both"), ask("x"), pieces=stream(chat_events(list(f"card {CARD} is"))), answered=head)
    assert result.error.reason is Reason.CONTENT_DENIED


def test_what_the_provider_has_signed_goes_as_it_is_or_not_at_all():
    def thinking(text):
        content = [{"type": "thinking", "thinking": text, "signature": "s"}]
        return json.dumps({"messages": [{"role": "assistant", "content": content}]}).encode()

    url = "https://api.example.com/v1/messages"
    assert run(detector(), thinking("hmm <EMAIL_1>"), url=url).request_body == thinking("hmm <EMAIL_1>")
    refused = run(detector(), thinking(f"hmm {ALICE}"), url=url)
    assert refused.error.message == "filter test: messages[0].content[0].thinking has EMAIL and cannot be changed"


# --- placeholders


@pytest.mark.parametrize("said", ["<EMAIL_1>", "&lt;EMAIL_1&gt;", "x<<EMAIL_1>>", "a < b <EMAIL_1> &amp; &lt;EMAIL_2"])
@pytest.mark.parametrize("has_escapes", [False, True])
def test_a_placeholder_is_put_back_at_every_cut(said, has_escapes):
    placeholders = Placeholders()
    assert placeholders.name("EMAIL", ALICE) == "<EMAIL_1>"
    whole = said.replace("<EMAIL_1>", ALICE).replace("&lt;EMAIL_1&gt;", ALICE)
    for cut in range(len(said) + 1):
        restorer = Restorer(placeholders, has_escapes=has_escapes)
        assert restorer.feed(said[:cut]) + restorer.feed(said[cut:]) + restorer.flush() == whole


@pytest.mark.parametrize("phase", [Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST])
@pytest.mark.parametrize(("unreadable", "passes"), [("Deny", False), ("Allow", True)])
def test_no_tunnel_goes_past_it_on_a_route_or_a_backend(phase, unreadable, passes):
    harness = FilterHarness({"entities": ENTITIES, "unreadable": unreadable}, phase=phase, type=TYPE)
    result = harness.run(exchange("CONNECT", "api.example.com:443", addresses=["192.0.2.1"]))
    assert (result.error is None) is passes


# --- the config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"entities": []}, "`entities`, `patterns` or `presidio` has to say what is looked for"),
        ({"entities": [{"name": "EMAILS"}]}, "EMAILS is no entity; known are EMAIL, PHONE"),
        ({"patterns": [{"name": "EMAIL", "pattern": "x"}]}, "EMAIL is there twice"),
        ({"patterns": [{"name": "X", "pattern": "("}]}, "is not an expression of RE2"),
        ({"countries": ["ZZ"]}, "'ZZ' has no identifiers here"),
        ({"entities": [{"name": "PHONE"}], "regions": ["ZZ"]}, "'ZZ' is no region"),
        ({"applyTo": "Both", "presidio": {"backendRef": {"name": "p", "port": 1}, "entities": [{"name": "PERSON"}]}}, "looks at requests alone"),
        ({"unknown": 1}, "unknown"),
    ],
)  # fmt: skip
def test_a_wrong_config_says_what_is_wrong(config, message):
    with pytest.raises(FilterBuildError, match=message.replace("(", r"\(")):
        detector(**config)


# --- streams that cannot be looked at


@pytest.mark.parametrize("more", [{"applyTo": "Both", "unreadable": "Allow"}, {"applyTo": "Requests"}])
def test_nothing_is_lost_of_a_stream_that_cannot_be_looked_at_where_it_may_pass(monkeypatch, more):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 300)
    said = [
        b'data: {"a": NaN, "b": "\\u0061"}\n\n',
        b"data: " + b"x" * 200,
        b"x" * 200,
        b"\n\n",
        b"data: <EMAIL_1>\n\n",
    ]
    head = response(200, {"content-type": "text/event-stream"})
    result = run(detector(**more), ask(ALICE), pieces=said, answered=head)
    assert (result.error, result.response_body) == (None, b"".join(said))
    early = run(detector(**more), ask(ALICE), pieces=[b"data: <EMAIL_1>\n\n", *said], answered=head)
    assert early.response_body == b"data: %s\n\n" % ALICE.encode() + b"".join(said)
    strict = run(detector(applyTo="Both"), ask("hello"), pieces=said[1:], answered=head)
    assert "an event of the stream has more than" in strict.error.message


@pytest.mark.parametrize(
    "content_type",
    [
        "application/grpc", "application/grpc+json", "application/grpc+xml", "application/grpc-web",
        "application/grpc-web+json", "application/grpc-web-text", "application/grpc-web-text+proto",
        "Application/gRPC-Web-Text+xml; charset=utf-8", "application/grpc-web-text+json", "application/connect+json",
    ],
)  # fmt: skip
def test_messages_in_envelopes_are_not_text_whatever_is_in_them(content_type):
    message = b"\0\0\0\0" + bytes([len(ALICE)]) + ALICE.encode()
    for body in (base64.b64encode(message), message):
        assert run(detector(), body, {"content-type": content_type}).error.status == 415
        head = response(200, {"content-type": content_type})
        assert run(detector(applyTo="Both"), ask("hello"), pieces=[body], answered=head).error.status == 502
