"""Texts of a body: those that may have what is looked for are the same as those of all that have it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai_apis.answer import AiAnswer
from egressproxy.ai_apis.request import AiRequest
from egressproxy.ai_apis.strict_json import Unreadable
from egressproxy.filters.content.bodies import _JsonDocument
from egressproxy.filters.content.entities import scanner_of

SCANNER = scanner_of(("EMAIL", "CARD", "PHONE", "IBAN"))
KEYS = st.sampled_from(
    ["messages", "role", "content", "text", "type", "data", "arguments", "input", "name", "thinking", "signature",
     "tools", "description", "reasoningText", "logprobs", "id", "a@b.example"]
)  # fmt: skip
STRINGS = st.sampled_from(
    ["", "user", "thinking", "text", "tool_use", "gpt-4o", "to alice@b.example", '{"to":"bob@b.example","n":[1]}',
     '{"to":"b\\u0040b.example"}', "4111 1111 1111 1111", "data:a;base64,QUFB@a.example", "Zm9v" * 20, "4111" * 20,
     "bob\uff20b.example"]
)  # fmt: skip
VALUES = st.recursive(
    STRINGS | st.sampled_from([None, True, 3, 4111111111111111]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=16,
)


@pytest.mark.parametrize("kind", [AiRequest, AiAnswer])
@pytest.mark.parametrize("is_ai", [True, False])
@given(st.dictionaries(KEYS, VALUES, max_size=6))
@settings(deadline=None, max_examples=300)
def test_the_texts_with_a_find_are_the_same_and_what_is_made_of_the_body_is(kind, is_ai, value):
    source = json.dumps(value, ensure_ascii=False).encode()
    made, places = [], []
    for may_have in (None, SCANNER.filter_for(source)):
        read = json.loads(source)
        message = AiRequest(source, read, None) if kind is AiRequest else AiAnswer(source, read)
        document = _JsonDocument(message, is_ai)
        found = []
        try:
            for part in document.texts(may_have):
                if SCANNER.spans(part.text):
                    found.append((part.where, part.text, part.is_signed, part.role, part.kind))
                    if not part.is_signed:
                        part.replace(SCANNER.replaced(part.text, lambda entity, _value: f"<{entity}>"))
        except Unreadable as error:
            found = [str(error)]
        places.append(found)
        made.append(document.body())
    assert places[0] == places[1]
    assert made[0] == made[1]
