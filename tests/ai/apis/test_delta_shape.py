from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.apis.delta_shape import DeltaShape
from egressproxy.ai.apis.request import estimated_tokens
from egressproxy.ai.apis.shared import usage_told
from egressproxy.ai.apis.stream_events import read_event
from egressproxy.ai.apis.usage import usage_of
from egressproxy.ai.limits import token_use
from egressproxy.ai.limits.token_use import TokenUse
from egressproxy.filters.testing import exchange
from egressproxy.model.strict_json import Unreadable, loads
from tests.ai.apis.streams import STREAMS

PIECES: dict[str, Callable[[str], dict[str, Any]]] = {
    "chat": lambda text: {
        "id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        "usage": None, "obfuscation": "x" * (len(text) % 7),
    },
    "chat without padding": lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]},
    "responses": lambda text: {
        "type": "response.output_text.delta", "output_index": 0, "delta": text, "sequence_number": len(text),
    },
    "messages": lambda text: {
        "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text},
    },
    "arguments": lambda text: {
        "type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text},
    },
    "converse": lambda text: {"contentBlockIndex": 0, "delta": {"text": text}},
    "titan": lambda text: {"outputText": text, "index": 0},
}  # fmt: skip
EACH = st.sampled_from(list(PIECES))
TEXTS = st.text(max_size=12) | st.sampled_from([":", ",", "text", "delta", '","obfuscation":"', "{}", "日本", "x" * 99])
FORMS = st.sampled_from([{}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def written(kind: str, text: str, form: dict[str, Any]) -> bytes:
    return json.dumps(PIECES[kind](text), **form).encode("utf-8", "surrogatepass")


def shape(payload: bytes) -> DeltaShape | None:
    return DeltaShape.of(payload, read_event(loads(payload)))


def assert_right(made: DeltaShape, payload: bytes) -> None:
    tokens = made.tokens_of(payload)
    if tokens >= 0:
        event = read_event(loads(payload))
        assert tokens == sum(estimated_tokens(delta.text) for delta in event.deltas)
        assert len(event.deltas) <= 1
        assert not event.wholes
        assert not event.ends
        assert usage_of(event.value) is None


@pytest.mark.parametrize("kind", PIECES)
def test_an_event_that_differs_in_its_text_alone_is_known(kind: str):
    made = shape(written(kind, "first words", {}))
    assert made is not None
    for text in ("a", "", " more of them", "日本語"):
        assert made.tokens_of(written(kind, text, {"ensure_ascii": False})) == estimated_tokens(text)
    assert made.tokens_of(written(kind, 'say "hi"', {})) == -1
    for other in PIECES:
        if other != kind:
            assert made.tokens_of(written(other, "a", {})) == -1


@given(EACH, EACH, TEXTS, TEXTS, FORMS)
def test_what_is_told_of_an_event_is_what_its_json_says(kind, other, first, text, form):
    try:
        made = shape(written(kind, first, form))
    except Unreadable:
        return
    if made is not None:
        assert_right(made, written(other, text, form))


@given(EACH, st.data())
def test_an_event_with_another_byte_is_read_or_counted_right(kind, data):
    payload = bytearray(written(kind, "first words", {"separators": (",", ":")}))
    made = shape(bytes(payload))
    assert made is not None
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.sampled_from(b'"\\,:{}[]0aA\n\x00\xc3\xff'))
    assert_right(made, bytes(payload))


@pytest.mark.parametrize("payload", [
    b'{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}',
    b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}',
    b'{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"0"}}],"id":"0"}',
    b'{"choices":[{"index":0,"delta":{"content":":"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"\\u0061"}}],"id":"a"}',
    b'{"choices":[{"index":0,"delta":{"content":"a"}}],"new":"text"}',
])  # fmt: skip
def test_an_event_that_is_not_so_plain_is_no_pattern_for_others(payload: bytes):
    assert shape(payload) is None


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [7, 10_000])
def test_a_stream_is_counted_as_if_each_event_was_read(name: str, size: int, monkeypatch: pytest.MonkeyPatch):
    def counted() -> tuple[object, ...]:
        x, use = exchange("POST", "https://a.example/"), TokenUse()
        kind = b"application/vnd.amazon.eventstream" if name.startswith("Bedrock") else b"text/event-stream"
        use.begin_answer(x, kind)
        stream = STREAMS[name] * 3
        sent = [use.feed(x, stream[at : at + size], False) for at in range(0, len(stream), size)]
        return b"".join(sent), use.seen_tokens, usage_told(x)

    by_shape = counted()
    monkeypatch.setattr(token_use, "_MOST_SHAPES", 0)
    assert counted() == by_shape
