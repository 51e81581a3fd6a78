from __future__ import annotations

import json
import re
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis import framing as framing_room
from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Api, operation_of
from egressproxy.ai.apis.aws_event_stream import AwsFraming
from egressproxy.ai.apis.framing import MAX_EVENT_BYTES, JsonArrayFraming, SseFraming
from egressproxy.ai.apis.stream_events import EVERY, Channel
from egressproxy.ai.apis.streams import LenientEditor, StreamEditor, StreamReader, TextFunction, framing_of
from egressproxy.ai.apis.texts import TextKind
from egressproxy.ai.apis.usage import TokenUsage, merged, usage_of
from egressproxy.model.strict_json import Unreadable
from tests.ai.apis.streams import STREAMS, aws, framing, told
from tests.ai.translation.examples import chat_chunk, junk, named, places, unnamed
from tests.support.properties import examples

EACH = pytest.mark.parametrize("name", list(STREAMS))


class Same:
    def feed(self, text: str) -> str:
        return text

    def flush(self) -> str:
        return ""


class Upper(Same):
    def feed(self, text: str) -> str:
        return text.upper()


class Redactor:
    """Replaces "lo th" and "Köln", and holds back what may be the begin of one of them."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = re.sub("lo th|Köln", "<x>", self._held + text)
        for length in (4, 3, 2, 1):
            if any(word.startswith(text[-length:]) for word in ("lo th", "Köln")) and len(text) >= length:
                self._held = text[-length:]
                return text[:-length]
        self._held = ""
        return text

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class AtTheEnd:
    """Holds everything back."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        self._held += text
        return ""

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held.upper()


def edited(name: str, pieces: list[bytes], function: type[TextFunction], **options: Any) -> bytes:
    editor = StreamEditor(framing(name), lambda _channel: function(), **options)
    return b"".join([*map(editor.feed, pieces), editor.end()])


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    return [stream[begin:end] for begin, end in pairwise([0, *sorted(at), len(stream)])]


@EACH
def test_a_stream_tells_its_texts_and_usage(name: str):
    channels, wholes = told(name, STREAMS[name])
    texts = {(channel.kind, text) for channel, text in channels.items()}
    assert (TextKind.TEXT, "Hello there") in texts
    assert (TextKind.ARGUMENTS, '{"city":"Köln"}') in texts or "Köln" in wholes
    usage = None
    for event in StreamReader(framing(name)).feed(STREAMS[name]):
        usage = merged(usage, usage_of(event.value))
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (30, 7)


@EACH
def test_what_is_not_changed_is_byte_for_byte_as_it_came_wherever_it_is_cut(name: str):
    stream = STREAMS[name]
    frames = [frame for frame in framing(name).feed(stream) if frame.raw.strip()]
    for at in range(len(stream)):
        pieces = framing(name)
        found = [*pieces.feed(stream[:at]), *pieces.feed(stream[at:])]
        assert [frame.payload for frame in found if frame.raw.strip()] == [frame.payload for frame in frames]
        assert b"".join([frame.raw for frame in found]) == stream
    for at in range(0, len(stream), len(stream) // 20):
        assert edited(name, [stream[:at], stream[at:]], Same) == stream


@EACH
def test_a_text_is_redacted_wherever_the_stream_is_cut(name: str):
    stream = STREAMS[name]
    whole = edited(name, [stream], Redactor)
    channels, wholes = told(name, whole)
    assert "Hel<x>ere" in channels.values()
    assert '{"city":"<x>"}' in channels.values() or "<x>" in wholes
    assert not re.search("lo th|K(ö|\\\\u00f6)ln".encode(), whole)
    for at in range(0, len(stream), len(stream) // 40):
        assert edited(name, [stream[:at], stream[at:]], Redactor) == whole
    assert edited(name, [stream[at : at + 1] for at in range(len(stream))], Redactor) == whole


@EACH
def test_what_is_held_back_comes_before_its_channel_ends(name: str):
    written = edited(name, [STREAMS[name]], AtTheEnd)
    channels, wholes = told(name, written)
    assert "HELLO THERE" in channels.values()
    assert '{"CITY":"KÖLN"}' in channels.values() or "KÖLN" in wholes
    if name == Api.OPENAI_RESPONSES.value:
        assert set(wholes) >= {"HELLO THERE", '{"CITY":"KÖLN"}'}
    if name == Api.ANTHROPIC.value:
        block = written.split(b"event: content_block_stop")[1]
        assert b'"text":"HELLO THERE"' in block


@EACH
def test_signed_thinking_goes_as_it_came(name: str):
    channels, _ = told(name, edited(name, [STREAMS[name]], Upper))
    thinking = {channel.is_signed: text for channel, text in channels.items() if channel.kind is TextKind.REASONING}
    assert thinking in ({True: "Hm"}, {False: "HM"}, {})


@EACH
def test_a_stream_that_breaks_off_gives_what_was_held_back(name: str):
    stream = STREAMS[name]
    at = stream.rindex(b"there") if b"there" in stream else len(stream) * 2 // 3
    channels, _ = told(name, edited(name, [stream[: at + 60]], AtTheEnd))
    assert any(text in ("HELLO THERE", "HELLO ") for text in channels.values())


@EACH
def test_every_other_event_stays_as_it_came(name: str):
    before = framing(name).feed(STREAMS[name])
    after = {frame.raw for frame in framing(name).feed(edited(name, [STREAMS[name]], Upper))}
    changed = [frame for frame in before if frame.raw not in after]
    assert changed
    for frame in changed:
        assert re.search(rb"Hello|there|Hm|city|K(\xc3\xb6|\\u00f6)ln", frame.payload), frame.payload


def test_lines_may_end_in_any_way_and_comments_stay():
    stream = b": hi\n\nid: 7\r\ndata: " + json.dumps(chat_chunk({"content": "a"})).encode() + b"\r\n\r\n"
    stream += b'data: {\rdata: "choices":[{"index":0,"delta":{"content":"b"}}]}\r\r: bye\r\r'
    for at in range(len(stream)):
        assert edited("sse", [stream[:at], stream[at:]], Same) == stream
        channels, _ = told("sse", edited("sse", [stream[:at], stream[at:]], Upper))
        assert list(channels.values()) == ["AB"]
    assert edited("sse", [stream], Upper).startswith(b": hi\n\nid: 7\r\ndata: {")


def test_half_a_surrogate_pair_meets_its_other_half():
    stream = b"".join(
        b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]}\n\n'
        for text in (rb"a\ud83d", rb"\ude00b")
    )
    seen: list[str] = []

    class Seen(Same):
        def feed(self, text: str) -> str:
            seen.append(text)
            return text

    channels, _ = told("sse", edited("sse", [stream], Seen))
    assert seen == ["a", "\N{GRINNING FACE}b"]
    assert list(channels.values()) == ["a\N{GRINNING FACE}b"]


def test_two_choices_are_two_channels():
    stream = unnamed(
        {"choices": [{"index": 0, "delta": {"content": "lo"}}, {"index": 1, "delta": {"content": " th"}}]},
        {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": " th"}, "finish_reason": "stop"}]},
    )
    channels, _ = told("sse", edited("sse", [stream], Redactor))
    assert sorted(channels.values()) == [" thx", "<x>"]


def test_log_probabilities_go_where_the_text_changes():
    chunk = chat_chunk({"content": "a"})
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -1}]}
    assert b"token" in edited("sse", [unnamed(chunk)], Same)
    assert b"token" not in edited("sse", [unnamed(chunk)], Upper)


@pytest.mark.parametrize(
    "event",
    [
        {"new": {"shape": "a secret"}},
        {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a secret"}]}},
        {"choices": [{"index": 0, "delta": {"new": ["a secret"]}}]},
        {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "a secret"}]}}]},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "text": "a secret"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a secret"}},
        {"type": "response.new", "item": {"new": "a secret"}},
        {"type": "response.output_text.done", "output_index": 0, "text": "a secret"},
        {"error": {"message": "a secret"}},
        {"candidates": [{"content": {"parts": [{"executableCode": {"code": "a secret"}}]}}]},
        {"message": "a secret"},
    ],
)
def test_nothing_passes_because_nobody_knows_it(event: dict[str, Any]):
    written = edited("sse", [unnamed(event)], Upper)
    assert b"A SECRET" in written
    assert b"a secret" not in written


@pytest.mark.parametrize(
    ("events", "last"),
    [
        ([{"outputText": "Hello "}, {"outputText": "there", "completionReason": "FINISH"}], b"FINISH"),
        ([{"generation": "Hello "}, {"generation": "there"}, {"generation": "", "stop_reason": "stop"}], b"stop"),
        ([{"outputs": [{"text": "Hello "}]}, {"outputs": [{"text": "there", "stop_reason": "stop"}]}], b"stop"),
        ([{"text": "Hello ", "is_finished": False}, {"text": "there", "is_finished": True}], b"true"),
    ],
)
def test_models_of_amazon_with_a_form_of_their_own_have_one_channel(events: list[dict[str, Any]], last: bytes):
    metrics = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 3, "outputTokenCount": 4}}
    stream = b"".join(
        aws("chunk", {"bytes": b64encode(json.dumps(each).encode()).decode()}) for each in [*events, metrics]
    )
    assert edited("Bedrock", [stream], Same) == stream
    for function, text in ((Redactor, "Hel<x>ere"), (AtTheEnd, "HELLO THERE")):
        written = edited("Bedrock", [stream[:77], stream[77:]], function)
        channels, _ = told("Bedrock", written)
        assert list(channels.values()) == [text]
    usage = [usage_of(event.value) for event in StreamReader(framing("Bedrock")).feed(stream)]
    assert usage[-1] == TokenUsage(3, 4)
    assert last in b"".join(frame.payload for frame in framing("Bedrock").feed(written))


def test_a_string_alone_is_a_text():
    stream = b'data: "Hello there"\n\ndata: "lo th\\u0065re"\n\ndata: 7\n\n'
    assert edited("OpenAIChat", [stream], Redactor) == b'data: "Hel<x>ere"\n\ndata: "<x>ere"\n\ndata: 7\n\n'
    assert edited("OpenAIChat", [stream], Same) == stream


def test_what_is_no_json_is_a_text_as_it_stands():
    assert edited("sse", [b"data: lo\ndata: th\n\ndata: lo th\n\n"], Redactor) == b"data: lo\ndata: th\n\ndata: <x>\n\n"


@given(st.data())
def test_whatever_an_event_holds_no_text_is_left_and_nothing_breaks(data: st.DataObject):
    name = data.draw(st.sampled_from([api for api in STREAMS if "Bedrock" not in api and "array" not in api]))
    events = []
    for frame in SseFraming().feed(STREAMS[name]):
        value = json.loads(frame.payload) if frame.payload != b"[DONE]" else {}
        where = data.draw(st.sampled_from([*places(value), (None, None)]))
        if where[0] is not None:
            where[0][where[1]] = data.draw(junk)
        events.append(value)
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    at = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    once = edited(name, [stream], Upper)
    assert edited(name, cut(stream, at), Upper) == once
    if b"ud800" not in stream:  # half a surrogate pair waits for its other half
        assert edited(name, [stream], Same) == stream
    channels, wholes = told(name, once)
    for text in (*(text for channel, text in channels.items() if not channel.is_signed), *wholes):
        assert text == text.upper()


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 60000, b"x" * 60000 + b"\n"])
def test_an_event_is_bounded(piece: bytes):
    editor = StreamEditor(SseFraming(), lambda _channel: Same())
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        assert editor.feed(piece) == b""
    with pytest.raises(Unreadable, match="more than"):
        editor.feed(piece)


def test_what_is_kept_of_a_stream_is_bounded():
    editor = StreamEditor(SseFraming(), lambda _channel: Same())
    event = named({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x" * 60000})
    for _ in range((MAX_EVENT_BYTES - 64) // 120000):
        editor.feed(event)
    with pytest.raises(Unreadable, match="more text than is kept"):
        editor.feed(event)


def test_a_wrong_checksum_ends_the_stream():
    stream = bytearray(STREAMS["Bedrock Converse"])
    stream[40] ^= 1
    with pytest.raises(Unreadable, match="checksum"):
        AwsFraming().feed(bytes(stream))


@pytest.mark.parametrize("stream", [b'["a"]', b'[{}, "a", {}]', b"x", b"[1]"])
def test_an_array_of_other_things_is_unreadable(stream: bytes):
    with pytest.raises(Unreadable, match="array of objects"):
        JsonArrayFraming().feed(stream)


def test_an_error_alone_is_a_stream_of_one():
    """Gemini answers so, with a status of 4xx or 5xx, to a request for a stream of events."""
    error = b'{"error": {"code": 429, "details": [{"a": []}, {}], "message": "}[{"}}'
    for cut in range(len(error)):
        framing = JsonArrayFraming()
        frames = [*framing.feed(error[:cut]), *framing.feed(error[cut:] + b"\n")]
        assert [(frame.payload, framing.write(frame, None, ())) for frame in frames] == [(error, error)]
    for more in (b"{}", b"[]", b'"a"'):
        with pytest.raises(Unreadable):
            JsonArrayFraming().feed(error + more)


@pytest.mark.parametrize(
    ("media_type", "path", "kind"),
    [
        (b"text/event-stream", b"/v1/chat/completions", SseFraming),
        (b"application/vnd.amazon.eventstream", b"/model/m/converse-stream", AwsFraming),
        (b"application/json", b"/v1beta/models/g:streamGenerateContent", JsonArrayFraming),
        (b"application/json", b"/v1beta/models/g:generateContent", type(None)),
        (b"application/json", b"/v1/chat/completions", type(None)),
    ],
)
def test_the_type_of_an_answer_tells_its_framing(media_type: bytes, path: bytes, kind: type):
    assert isinstance(framing_of(media_type, operation_of(path)), kind)


def test_a_function_that_lets_a_channel_pass_costs_its_text_nothing():
    def only_text(channel: Channel) -> TextFunction | None:
        return Upper() if channel.kind is TextKind.TEXT else None

    editor = StreamEditor(SseFraming(), only_text)
    written = editor.feed(STREAMS[Api.OPENAI_CHAT.value]) + editor.end()
    channels, _ = told("sse", written)
    assert sorted(channels.values()) == ["HELLO THERE", '{"city":"Köln"}']


def test_an_event_is_changed_in_place():
    body = b'{"id" : 1e2, "choices":[{"index":0,"delta":{"content":"a"}}]}'
    written = edited("sse", [b"data:" + body + b"\n\n"], Upper)
    assert written == b'data: {"id" : 1e2, "choices":[{"index":0,"delta":{"content":"A"}}]}\n\n'
    assert AiAnswer.read(body).body() is body


def test_a_stream_has_no_more_texts_at_once_than_are_kept():
    editor = StreamEditor(SseFraming(), lambda _: Upper())
    event = b'data: {"choices": [{"index": %d, "delta": {"content": "a"}}]}\n\n'
    with pytest.raises(Unreadable, match="2000 texts"):
        editor.feed(b"".join(event % number for number in range(2001)))


PARTS = [
    b"data: a\n\n", b"event: x\ndata: b\n\n", b"data:c\n\n", b"\n", b"\r", b"\r\n", b"data: ", b"event: y", b" ",
    b"event:z\n",
    b": note\n\n", b"id: 1\n", b"\xef\xbb\xbf", b"data:  two\x0b\x1c\x85\n\n", b"\xff", b"event: \ndata: d\n\n",
]  # fmt: skip


@settings(max_examples=examples(400))
@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=4).map(b"".join), max_size=5))
@example([b"data: a\rb\n\n", b"event: x\ry\ndata: a\n\n", b"data: a\n\n\n", b"data: a\n\ndata: b\r\n\r\n"])
def test_plain_events_are_cut_as_all_others(pieces: list[bytes]):
    def cut() -> list[object]:
        made = SseFraming()
        return [made.feed(b"data: first\n\n"), *map(made.feed, pieces), made.rest()]

    plain = cut()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing_room, "_PLAIN_EVENT", re.compile(rb"(?!)"))
        assert cut() == plain


_BROKEN = {
    "OpenAIChat": b"data: " + b"x" * 4000,
    "Gemini as an array": b",\r\n7, {}",
    "Bedrock Converse": b"\0\0\0\x20\0\0\0\0wrong" * 3,
}


@pytest.mark.parametrize("name", _BROKEN)
@settings(max_examples=40, deadline=None)
@given(at=st.lists(st.integers(0, 100_000), max_size=20))
def test_a_lenient_editor_loses_nothing_of_a_stream_whose_framing_breaks(name: str, at: list[int]):
    whole = STREAMS[name]
    whole = whole.rstrip(b"]\r\n") if name == "Gemini as an array" else whole
    stream = whole + _BROKEN[name] + b"and all that follows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing_room, "MAX_EVENT_BYTES", 3000)
        editor = LenientEditor(framing(name), lambda _channel: None)
        made = [editor.feed(piece) for piece in cut(stream, [each % len(stream) for each in at])]
        assert b"".join(made) + editor.end() == stream
        holding = LenientEditor(framing(name), lambda _channel: AtTheEnd())
        said = [holding.feed(piece) for piece in cut(stream, [each % len(stream) for each in at])]
    assert (b"".join(said) + holding.end()).endswith(b"and all that follows")
    assert not holding._flushed(EVERY, {})


def test_a_lenient_editor_lets_an_event_pass_that_cannot_be_read_and_edits_the_next():
    odd = b'data: {"a": NaN, "b": "\\u0061"}\n\n'
    secret = unnamed(chat_chunk({"content": "secret"}))
    editor = LenientEditor(SseFraming(), lambda _channel: Upper())
    made = editor.feed(secret + odd + secret) + editor.end()
    assert odd in made
    assert made.count(b"SECRET") == 2


def test_a_lenient_reader_tells_what_it_can_read():
    secret = unnamed(chat_chunk({"content": "secret"}))
    reader = StreamReader(SseFraming(), is_lenient=True)
    assert len(reader.feed(secret + b'data: {"a": NaN}\n\n' + secret)) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing_room, "MAX_EVENT_BYTES", 300)
        assert len(reader.feed(secret + b"data: " + b"x" * 400)) == 1
    assert reader.feed(b"\n\n" + secret) == []


def test_lines_of_an_event_have_an_end():
    lines = b"data: a\n" * (framing_room.MAX_LINES + 1)
    framing = SseFraming()
    [first] = framing.feed(b"data: b\n\n")
    assert first.payload == b"b"
    with pytest.raises(Unreadable, match="more than 20000 lines"):
        framing.feed(lines + b"\n")
    framing = SseFraming()
    assert framing.feed(lines) == []
    assert framing.rest() is None, "it is left out"
