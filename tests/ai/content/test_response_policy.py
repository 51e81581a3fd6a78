# ruff: noqa: E501
"""ResponsePolicy, as the gateway builds and runs it."""

import functools
import gzip
import json
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis import framing
from egressproxy.ai.content.own_patterns import Glance
from egressproxy.ai.content.response_policy import ResponsePolicy
from egressproxy.errors import Reason
from egressproxy.filters import Phase
from egressproxy.filters.testing import FilterBuildError, FilterHarness, exchange, response
from tests.ai.content.test_pii_detector import STREAMS, read, stream, tool_events
from tests.support.properties import examples

TYPE = "egressproxy.io/ResponsePolicy:v1"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
CHAT = "https://api.example.com/v1/chat/completions"
ALICE = "alice@example.com"


def policy(**config):
    return FilterHarness(config, phase=Phase.REQUEST_HEADERS, type=TYPE)


def run(harness, said, fields=JSON, url=CHAT, request=b'{"messages": []}', status=200):
    return harness.run(
        exchange("POST", url, JSON), request_body=request, response=response(status, fields), response_body=said
    )


def answer(*texts):
    return json.dumps(
        {
            "choices": [
                {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for n, text in enumerate(texts)
            ]
        }
    ).encode()


def refused(result):
    assert result.error is not None
    assert (result.error.status, result.error.reason) == (502, Reason.CONTENT_DENIED)
    return result.error.message.rpartition(" ")[2]


# --- whole answers


def test_an_answer_with_what_must_not_be_said_is_refused_with_a_status():
    assert refused(run(policy(entities=["EMAIL"]), answer(f"Ask {ALICE}."))) == "EMAIL"
    assert (
        refused(run(policy(deny=[{"name": "FALCON", "pattern": "(?i)falcon"}]), answer("Project Falcon"))) == "FALCON"
    )
    assert ALICE not in str(run(policy(entities=["EMAIL"]), answer(ALICE)).error)
    assert (
        refused(run(policy(deny=[{"name": "no-merger.v2", "pattern": "falcon"}]), answer("falcon"))) == "no-merger.v2"
    )


def test_an_answer_without_it_goes_on_byte_for_byte():
    said = b'{ "choices": [ {"message": {"role":"assistant", "content":"fine \\u00e9"}} ] }'
    assert run(policy(entities=["EMAIL"], maxLength=6), said).response_body == said


def test_a_truncated_answer_ends_before_it_and_says_so():
    result = run(policy(entities=["EMAIL"], action="Truncate"), answer(f"Ask {ALICE} or me.", "me"))
    said = json.loads(result.response_body)["choices"]
    assert [choice["message"]["content"] for choice in said] == ["Ask ", ""]
    assert [choice["finish_reason"] for choice in said] == ["content_filter"] * 2


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (
            {"type": "message", "role": "assistant", "content": [{"type": "text", "text": ALICE}], "stop_reason": "end_turn"},
            {"stop_reason": "refusal"},
        ),
        (
            {"candidates": [{"content": {"role": "model", "parts": [{"text": ALICE}]}, "finishReason": "STOP"}]},
            {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "SAFETY"}]},
        ),
        (
            {"object": "response", "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ALICE}]}]},
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
        ),
        (
            {"output": {"message": {"role": "assistant", "content": [{"text": ALICE}]}}, "stopReason": "end_turn"},
            {"stopReason": "content_filtered"},
        ),
    ],
)  # fmt: skip
def test_each_api_has_its_word_for_it(body, made):
    result = run(policy(entities=["EMAIL"], action="Truncate"), json.dumps(body).encode())
    said = json.loads(result.response_body)
    assert {key: said[key] for key in made} == made
    assert ALICE.encode() not in result.response_body


def test_lengths_have_limits():
    assert refused(run(policy(maxLength=5), answer("123456"))) == "max-length"
    assert run(policy(maxLength=6), answer("123456")).response_body == answer("123456")
    cut = json.loads(run(policy(maxLength=5, action="Truncate"), answer("123", "456")).response_body)["choices"]
    assert [choice["message"]["content"] for choice in cut] == ["123", "45"]
    assert refused(run(policy(maxBytes=10), [b"{" + b" " * 5, b" " * 5 + b"}"])) == "max-bytes"


def test_a_long_answer_is_looked_at_in_steps():
    said = answer("word " * 20_000 + ALICE)
    assert refused(run(policy(entities=["EMAIL"]), said)) == "EMAIL"
    cut = run(policy(entities=["EMAIL"], action="Truncate"), said)
    assert json.loads(cut.response_body)["choices"][0]["message"]["content"] == "word " * 20_000


@pytest.mark.parametrize(
    ("content_type", "passes"), [("application/json", True), ("application/json; charset=utf-8", True), ("text/html", False), ("image/png", False)]
)  # fmt: skip
def test_only_types_that_are_named_come_back(content_type, passes):
    result = run(policy(contentTypes=["application/json", "text/event-*"]), answer("x"), {"content-type": content_type})
    assert (result.error is None) is passes
    if not passes:
        assert refused(result) == "content-type"


def test_what_cannot_be_looked_at_is_refused_unless_that_is_allowed():
    image = {"content-type": "image/png"}
    assert run(policy(entities=["EMAIL"]), b"\x89", image).error.status == 502
    assert run(policy(entities=["EMAIL"], unreadable="Allow"), b"\x89", image).response_body == b"\x89"
    assert run(policy(entities=["EMAIL"]), b"{").error.status == 502
    assert run(policy(maxBytes=5), b"\x89", image).response_body == b"\x89"
    assert policy(entities=["EMAIL"]).run(exchange("CONNECT", "api.example.com:443")).error.status == 403


def test_report_only_counts():
    result = run(policy(entities=["EMAIL"], maxLength=2, mode="Report"), answer(ALICE))
    assert result.response_body == answer(ALICE)
    assert result.exchange.would_deny == [Reason.CONTENT_DENIED]


def test_names_and_arguments_are_refused_where_they_cannot_be_cut():
    call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": ALICE})}}
    said = json.dumps({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}).encode()
    assert refused(run(policy(entities=["EMAIL"], action="Truncate"), said)) == "EMAIL"
    assert refused(run(policy(entities=["EMAIL"], action="Truncate"), json.dumps({ALICE: 1}).encode())) == "EMAIL"


# --- tools

TOOLS = json.dumps({"messages": [], "tools": [{"type": "function", "function": {"name": "search"}}]}).encode()


def calling(name):
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return call, json.dumps({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}).encode()


def test_only_tools_that_are_offered_may_be_called():
    offered, none = policy(toolCalls="Offered"), policy(toolCalls="None")
    assert run(offered, calling("search")[1], request=TOOLS).error is None
    assert refused(run(offered, calling("delete")[1], request=TOOLS)) == "tool-call"
    assert refused(run(offered, calling("search")[1])) == "tool-call"
    assert refused(run(none, calling("search")[1], request=TOOLS)) == "tool-call"


@pytest.mark.parametrize(("name", "passes"), [("search", True), ("delete", False)])
def test_calls_in_a_stream_are_seen_before_they_go_on(name, passes):
    body = stream([{"choices": [{"index": 0, "delta": {"tool_calls": [calling(name)[0]]}}]}, *tool_events(["{}"])])
    result = run(policy(toolCalls="Offered"), body, EVENTS, request=TOOLS)
    assert (result.error is None) is passes
    assert passes is (result.response_body == body)


@pytest.mark.parametrize(
    "call",
    [
        {"index": 0, "id": "1", "type": "function", "function": {"name": "delete"}},
        {"index": 0, "id": "1", "type": "custom", "custom": {"name": "delete"}},
    ],
)
@pytest.mark.parametrize("calls", ["Offered", "None"])
def test_a_call_is_seen_before_it_has_arguments(call, calls):
    body = stream([{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}])
    assert refused(run(policy(toolCalls=calls), body, EVENTS, request=TOOLS)) == "tool-call"
    whole = json.dumps({"choices": [{"message": {"tool_calls": [call]}}]}).encode()
    assert refused(run(policy(toolCalls=calls), whole, request=TOOLS)) == "tool-call"
    item = {"type": "function_call", "call_id": "1", "name": "delete"}
    body = stream([{"type": "response.output_item.added", "output_index": 0, "item": item}])
    assert refused(run(policy(toolCalls=calls), body, EVENTS, request=TOOLS)) == "tool-call"


def test_a_choice_of_a_tool_is_no_call():
    told = json.dumps({"tool_choice": {"type": "function", "name": "search"}, "output": []}).encode()
    assert run(policy(toolCalls="None"), told).error is None


@pytest.mark.parametrize("kind", [JSON, EVENTS])
@pytest.mark.parametrize("mode", [{}, {"unreadable": "Allow"}])
@pytest.mark.parametrize(
    "call",
    [
        {"function": {"Name": "search", "arguments": "{}"}},
        {"function": {"name": "search", "Name": "delete", "arguments": "{}"}},
        {"Type": "tool_use", "NAME": "search", "Input": {}},
        {"functioncall": {"name": "search", "args": {}}},
    ],
)
def test_a_call_that_some_clients_read_otherwise_is_none_that_is_offered(call, kind, mode):
    whole = {"choices": [{"message": {"tool_calls": [call]}}]}
    body = stream([whole]) if kind is EVENTS else json.dumps(whole).encode()
    result = run(policy(toolCalls="Offered", **mode), body, kind, request=TOOLS)
    assert (result.error.status, result.error.reason) == (502, Reason.CONTENT_DENIED)
    assert "denied by the rule tool-call: it has " in result.error.message


# --- streams

SAID = f"Write to {ALICE}, please."


def cuts(text):
    return [[text[:at], text[at:]] for at in range(1, len(text))] + [list(text)]


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_is_broken_off_before_the_value_is_told(api):
    url, events_of, _ = STREAMS[api]
    for pieces in cuts(SAID)[::5]:
        whole = stream(events_of(pieces))
        result = run(policy(entities=["EMAIL"]), [whole[n : n + 40] for n in range(0, len(whole), 40)], EVENTS, url)
        assert refused(result) == "EMAIL"


#: How the stream of each API says that it was cut.
CUT = {
    "chat": lambda events: events[-1]["choices"][0]["finish_reason"] == "content_filter",
    "anthropic": lambda events: (
        events[-2]["delta"]["stop_reason"] == "refusal" and events[-1]["type"] == "message_stop"
    ),
    "responses": lambda events: events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"},
    "gemini": lambda events: events[-1]["candidates"][0]["finishReason"] == "SAFETY",
}


def texts_of(api, events):
    said = []
    for event in events:
        if api == "chat":
            said.append(event["choices"][0]["delta"].get("content", ""))
        elif api == "anthropic":
            said.append(event.get("delta", {}).get("text", ""))
        elif api == "responses":
            said.append(event.get("delta", ""))
        else:
            said += [part["text"] for part in event["candidates"][0]["content"]["parts"]]
    return "".join(said)


@pytest.mark.parametrize("api", STREAMS)
def test_a_truncated_stream_ends_at_the_same_place_however_it_is_cut(api):
    url, events_of, _ = STREAMS[api]
    for number, pieces in enumerate(cuts(SAID)):
        whole = stream(events_of(pieces))
        step = 7 + 5 * number
        sent = [whole[n : n + step] for n in range(0, len(whole), step)]
        result = run(policy(entities=["EMAIL"], action="Truncate"), sent, EVENTS, url)
        assert result.error is None
        events = read(result.response_body)
        assert texts_of(api, events) == "Write to "
        assert CUT[api](events)


def response_events(*pieces, first="Hello. "):
    """A stream of OpenAI responses with two messages behind thoughts, as the API sends it."""
    head = {"id": "resp_1", "object": "response", "created_at": 17.5, "model": "m-1", "output": [], "status": "queued"}
    events = [{"type": "response.created", "response": head}, {"type": "response.in_progress", "response": head}]
    thought = {"id": "rs_1", "type": "reasoning", "summary": []}
    events.append({"type": "response.output_item.added", "output_index": 0, "item": thought})
    for index, said in ((1, [first]), (2, pieces)):
        item = {"id": f"msg_{index}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        at = {"output_index": index, "content_index": 0, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.content_part.added", **at, "part": part})
        events += [{"type": "response.output_text.delta", **at, "delta": each, "logprobs": []} for each in said]
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


def test_the_last_event_of_a_truncated_response_tells_what_was_sent():
    """The SDK of OpenAI refuses another id than that of the first event, and takes its output for all that was said."""
    _responses = pytest.importorskip("openai.lib.streaming.responses._responses")
    types, made = pytest.importorskip("openai.types.responses"), pytest.importorskip("openai._models").construct_type
    url = STREAMS["responses"][0]
    for pieces in cuts(SAID)[::10]:
        whole = stream(response_events(*pieces))
        sent = [whole[n : n + 50] for n in range(0, len(whole), 50)]
        events = read(run(policy(entities=["EMAIL"], action="Truncate"), sent, EVENTS, url).response_body)
        told = events[-1]["response"]
        assert (told["id"], told["model"], told["created_at"], told["status"]) == ("resp_1", "m-1", 17.5, "incomplete")
        assert [(each["id"], each["content"][0]["text"]) for each in told["output"]] == [
            ("msg_1", "Hello. "), ("msg_2", "Write to ")
        ]  # fmt: skip
        state = _responses.ResponseStreamState(input_tools=[], text_format=pytest.importorskip("openai").omit)
        for event in events:
            (last,) = state.handle_event(made(type_=types.ResponseStreamEvent, value=event))
        assert last.response.output_text == "Hello. Write to "


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_ends_at_its_length(api):
    url, events_of, _ = STREAMS[api]
    result = run(policy(maxLength=7, action="Truncate"), stream(events_of(["12345", "67890", "x"])), EVENTS, url)
    events = read(result.response_body)
    assert texts_of(api, events) == "1234567"
    assert CUT[api](events)


def test_a_stream_of_text_ends_there():
    pieces = [b"Write to ali", b"ce@example.com, ", b"please"]
    result = run(policy(entities=["EMAIL"], action="Truncate"), pieces, {"content-type": "text/plain"})
    assert result.response_body == b"Write to "


def test_a_stream_in_another_framing_is_broken_off():
    url = "https://api.example.com/v1beta/models/g:streamGenerateContent"
    body = json.dumps([*STREAMS["gemini"][1]([SAID])]).encode()
    result = run(policy(entities=["EMAIL"], action="Truncate"), body, JSON, url)
    assert result.error.reason is Reason.CONTENT_DENIED


def test_a_gzipped_stream_is_looked_at():
    body = gzip.compress(stream(STREAMS["chat"][1](list(SAID))))
    fields = {**EVENTS, "content-encoding": "gzip"}
    result = run(policy(entities=["EMAIL"], action="Truncate"), [body[:30], body[30:]], fields)
    assert texts_of("chat", read(gzip.decompress(result.response_body))) == "Write to "


@pytest.mark.parametrize("phase", [Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST])
@pytest.mark.parametrize(("unreadable", "passes"), [("Deny", False), ("Allow", True)])
def test_no_tunnel_goes_past_it_on_a_route_or_a_backend(phase, unreadable, passes):
    harness = FilterHarness({"entities": ["EMAIL"], "unreadable": unreadable}, phase=phase, type=TYPE)
    result = harness.run(exchange("CONNECT", "api.example.com:443", addresses=["192.0.2.1"]))
    assert (result.error is None) is passes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "nothing is limited"),
        ({"entities": ["EMAILS"]}, "EMAILS is no entity"),
        ({"deny": [{"name": "X", "pattern": "("}]}, "is not an expression of RE2"),
        ({"contentTypes": ["json"]}, "contentTypes"),
        ({"deny": [{"name": "a", "pattern": "x"}, {"name": "A", "pattern": "y"}]}, "a is another rule"),
        ({"deny": [{"name": "email", "pattern": "x"}]}, "EMAIL is another rule"),
    ],
)
def test_a_wrong_config_says_what_is_wrong(config, message):
    with pytest.raises(FilterBuildError, match=message):
        policy(**config)


# --- at a glance, and text by text

DENIED = [
    [{"name": "FALCON", "pattern": r"(?i)project\s+falcon"}, {"name": "EXPORT", "pattern": "(?:not|never) for export"}],
    [{"name": "LINE", "pattern": "^falcon$"}, {"name": "WORD", "pattern": r"\bAB[$^b]\b"}],
    [{"name": "PATH", "pattern": r"c:\\falcon|\d{9}"}, {"name": "LONG", "pattern": r"fa.*\z", "maxLength": 4}],
    [{"name": "QUOTED", "pattern": r"\Qa.b\E"}, {"name": "GREEK", "pattern": r"\p{^Latin}\x{e9}|[]x]{3}"}],
    [{"name": "ONE", "pattern": "(?P<a>abc)"}, {"name": "TWO", "pattern": "(?P<a>bcd)|1e3"}],
]
WORDS = [
    "project", "Falcon", "falcon", " ", "  ", "\n", "\t", '"', "\\", "/", "never", "for export", "AB$", "ABb", "c:\\falcon", "a.b", "é",
    "\u0395é", "abcd", "]xx", "123456789", "1e3", "fa", "\u200b", "\uff46", "😀", ALICE, "4111 1111 1111 1111", "\x00", "{", "}", "\uff46alcon",
]  # fmt: skip
TOLD = st.lists(st.sampled_from(WORDS), max_size=5).map("".join)
NUMBERS = st.sampled_from([1, 123456789, 1234567890.0, 1e9, -123456789, 0.5, True, None, 1e300])
ARGUMENTS = st.one_of(
    TOLD,
    st.dictionaries(TOLD, st.one_of(TOLD, NUMBERS), max_size=2).map(json.dumps),
    st.just('{"a": 1, "a": 2}'),
    st.just("[" + "1" * 400 + "]"),
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TOLD},
    optional={
        "tool_calls": ARGUMENTS.map(lambda said: [{"function": {"name": "f", "arguments": said}}]),
        "annotations": st.lists(st.one_of(TOLD, NUMBERS), max_size=2),
        "refusal": TOLD,
    },
)
ANSWERS = st.builds(
    lambda messages, more, spelt: json.dumps(
        {
            **more,
            "choices": [{"index": n, "message": each, "finish_reason": "stop"} for n, each in enumerate(messages)],
        },
        ensure_ascii=spelt[0],
        indent=spelt[1],
    ),
    st.lists(MESSAGES, max_size=2),
    st.dictionaries(TOLD, st.one_of(TOLD, NUMBERS), max_size=2),
    st.tuples(st.booleans(), st.sampled_from([None, 1])),
)


def outcome(harness, said):
    result = run(harness, said.encode())
    error = None if result.error is None else (result.error.status, result.error.message)
    return error, None if error else result.response_body, dict(harness.metrics())


@functools.cache
def at_a_glance_and_not(number, action, entities, max_length):
    config = {"deny": DENIED[number], "action": action, "entities": list(entities), "maxLength": max_length}
    quick = policy(**config)
    with mock.patch.object(Glance, "of", return_value=None):
        return quick, policy(**config)


def _not_seen(*_: object) -> Iterator[None]:
    """Nothing is seen at a glance."""
    yield
    return False


SPELT = [
    (2, '{"n": 1e9}'), (2, '{"n": 123456789.0}'), (2, '{"a": [-12.3456789E8]}'), (4, '{"content": "1\\u0065\\u0033"}'),
    (0, '{"content": "never \\u0066or export"}'), (1, '{"content": "\uff46alcon"}'), (1, '{"content": "a\\nfalcon"}'),
    (2, '{"content": "c:\\\\falcon"}'), (2, '{"content": "c:\\\\\\\\falcon"}'), (0, '{"never for export": 1}'),
    (2, '{"arguments": "{\\"a\\": \\"c:\\\\\\\\falcon\\"}"}'), (2, '{"arguments": "{\\"a\\": 1e9}"}'), (0, '["never for export"]'),
    (2, '{"arguments": "[\\"x\\", %s]"}' % ("1" * 400)), (0, '{"arguments": "{\\"a\\": 2, \\"a\\": \\"x\\"}"}'), (0, '"never for export"'), (0, '{"a": 1, "a": 2}'), (0, "\ufeff{}"),
    (0, '{"content": "never for"}'), (0, '{"content": "never", "b": "for export"}'), (0, '{"content": "never\\/for export"}'),
]  # fmt: skip


@pytest.mark.parametrize(("number", "said"), SPELT)
def test_a_glance_misses_no_spelling(number, said):
    quick, slow = at_a_glance_and_not(number, "Reject", (), 0)
    with mock.patch.object(ResponsePolicy, "_is_harmless", side_effect=_not_seen):
        expected = outcome(slow, said)
    assert outcome(quick, said) == expected


@settings(max_examples=examples(200), deadline=None)
@given(
    said=ANSWERS,
    number=st.integers(0, len(DENIED) - 1),
    action=st.sampled_from(["Reject", "Truncate"]),
    entities=st.sampled_from([(), ("EMAIL", "CARD")]),
    max_length=st.sampled_from([0, 5, 10_000]),
)
def test_what_is_seen_at_a_glance_is_what_a_look_at_each_text_finds(said, number, action, entities, max_length):
    quick, slow = at_a_glance_and_not(number, action, entities, max_length)
    with mock.patch.object(ResponsePolicy, "_is_harmless", side_effect=_not_seen):
        expected = outcome(slow, said)
    assert outcome(quick, said) == expected


@settings(max_examples=examples(80), deadline=None)
@given(
    pieces=st.lists(TOLD, max_size=8),
    number=st.integers(0, len(DENIED) - 1),
    action=st.sampled_from(["Reject", "Truncate"]),
)
def test_and_of_each_piece_of_a_stream(pieces, number, action):
    events = b"".join(
        b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": each}}]}).encode()
        for each in pieces
    )
    quick, slow = (
        run(each, [*events.splitlines(keepends=True), b"data: [DONE]\n\n"], EVENTS)
        for each in at_a_glance_and_not(number, action, (), 0)
    )
    assert (quick.response_body, str(quick.error)) == (slow.response_body, str(slow.error))


# --- streams that cannot be looked at


def delta(text):
    return b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


@pytest.mark.parametrize("more", [{"unreadable": "Allow"}, {"mode": "Report"}, {"mode": "Report", "toolCalls": "None"}])
def test_nothing_is_lost_of_a_stream_that_cannot_be_looked_at_where_it_may_pass(monkeypatch, more):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 300)
    harness = policy(entities=["EMAIL"], **more)
    odd = b'data: {"a": NaN, "b": "\\u0061"}\n\n'
    said = [
        delta("Hi. "),
        odd + delta("Ho. ") + b"data: " + b"x" * 200,
        b"x" * 200,
        b"\n\n" + delta("Ha. "),
        b"data: [DONE]\n\n",
    ]
    result = run(harness, said, EVENTS)
    assert (result.error, result.response_body) == (None, b"".join(said))


def test_what_can_be_read_behind_what_cannot_is_looked_at(monkeypatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 300)
    harness = policy(entities=["EMAIL"], unreadable="Allow")
    odd = b'data: {"a": NaN, "b": "\\u0061"}\n\n'
    assert refused(run(harness, [odd, delta(f"{ALICE} ")], EVENTS)) == "EMAIL"
    assert refused(run(harness, [delta(f"{ALICE} ") + b"data: " + b"x" * 400], EVENTS)) == "EMAIL"
    strict = run(policy(entities=["EMAIL"]), [delta("Hi. "), b"data: " + b"x" * 400], EVENTS)
    assert "an event of the stream has more than" in strict.error.message


@pytest.mark.parametrize("cut", range(1, 8))
def test_text_that_is_no_utf_8_passes_whole_where_it_may(cut):
    said = "Grüße ".encode() + b"\xff and more"
    pieces = [said[:cut], said[cut:]]
    result = run(policy(entities=["EMAIL"], unreadable="Allow"), pieces, {"content-type": "text/plain"})
    assert (result.error, result.response_body) == (None, said)
    ended = "Grüße ü".encode()[:-1]
    result = run(policy(entities=["EMAIL"], unreadable="Allow"), [ended], {"content-type": "text/plain"})
    assert (result.error, result.response_body) == (None, ended)


def test_a_stream_that_is_cut_at_its_very_end_says_so():
    said = delta(f"Hello {ALICE}")  # its end is where the value is known
    made = run(policy(entities=["EMAIL"], action="Truncate"), said, EVENTS).response_body
    assert ALICE.encode() not in made
    assert b'"finish_reason":"content_filter"' in made
    assert made.endswith(b"data: [DONE]\n\n")
