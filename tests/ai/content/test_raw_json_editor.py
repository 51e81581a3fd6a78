"""JSON scanned as one text: what is found, and what is made of the body, is what its texts one by one give."""

import json
import re
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.content import raw_json_editor
from egressproxy.ai.content.bodies import JsonDocument
from egressproxy.ai.content.entities import ENTITIES, scanner_of
from egressproxy.ai.content.raw_json_editor import RawJsonEditor
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import at_once
from tests.support.properties import examples

SCANNERS = [
    scanner_of(("EMAIL", "CARD", "PHONE", "IBAN"), regions=("US",)),
    scanner_of(("EMAIL",)),
    scanner_of(ENTITIES, regions=("DE",)),
]
KEYS = st.sampled_from(
    ["messages", "role", "content", "text", "type", "data", "arguments", "input", "name", "thinking", "signature",
     "tools", "description", "reasoningText", "logprobs", "id", "a@b.example"]
)  # fmt: skip
PIECES = st.sampled_from(
    ["", "user", "thinking", "text", "tool_use", "gpt-4o", "alice@b.example", '{"to":"bob@b.example","n":[1]}', "[",
     "{", '{"to":"b\\u0040b.example"}', '{"n": 4.111111111111111e15, "m": 4111111111111111}', "4111 1111 1111 1111",
     "é", "data:a;base64,QUFB@a.example", "Zm9v" * 20, "4111" * 20, "bob\uff20b.example", "DE89 3704 0044 0532 0130 00",
     "(212) 555-0123", "+49 30 901820", "4111\u200b1111\u200d", "11111111", "\u0300" * 9, "\U0001f600", "\U0001d7d2",
     "\\", '"', "\n", "\t", "\b", "\x1f", "\0", "/", " ", ".", "-", ",", ":", "\uff02", "\uff3c", "u0040", "n", "a",
     "1",      "sk-ant-" + "a1" * 20, "10.0.0.1", "fe80::1", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
     "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----"]
)  # fmt: skip
STRINGS = st.lists(PIECES, max_size=5).map("".join)
NUMBERS = st.sampled_from(
    [0, 3, 0.5, 4111111111111111, -4111111111111111, 2125550123, 4111111111111111.0, 4.5e20, 1e15]
)
VALUES = st.recursive(
    STRINGS | NUMBERS | st.sampled_from([None, True]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=16,
)


def spelled(value, ascii_, indent, is_odd):
    """The JSON of a value, in one of its spellings."""
    source = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    if is_odd:
        source = source.replace("/", "\\/").replace("@", "\\u0040")
        source = re.sub(r"4111111111111111(?:\.0)?(?![0-9])", "4.111111111111111e15", source)
    return source.encode()


def one_by_one(document, scanner):
    """What is found in each text, and the body that is made of it; None for a body that is refused."""
    found = []

    def replace(entity, value):
        found.append((entity, value))
        return f"[{entity}]"

    try:
        for part in document.texts():
            made = scanner.replaced(part.text, replace)
            if made != part.text:
                if part.is_signed:
                    return found, None
                part.replace(made)
    except Unreadable:
        return found, None
    return found, document.body()


@pytest.mark.parametrize("scanner", SCANNERS)
@given(st.dictionaries(KEYS, VALUES, max_size=6) | st.lists(VALUES, max_size=4), *[st.booleans()] * 4)
@settings(deadline=None, max_examples=examples(200))
@example({"a": "\\", "b": "alice@b.example"}, False, False, False, True)
@example({"arguments": '{"n": 4.111111111111111e15}'}, False, False, False, True)
@example({"arguments": "[4111111111111111]"}, False, False, False, True)
@example({"type": "thinking", "thinking": "alice@b.example"}, False, False, False, True)
@example({"data": "4111" * 20, "text": "alice@b.example"}, False, False, False, True)
@example({"n": 4111111111111110.9999999999}, False, False, False, True)
def test_it_gives_what_the_texts_give_one_by_one(scanner, value, ascii_, indent, is_odd, is_ai):
    source = spelled(value, ascii_, 1 if indent else None, is_odd)

    def document():
        return JsonDocument(JsonMessage(source, json.loads(source)), is_ai)

    written = at_once(RawJsonEditor.of(document(), scanner))
    if written is None:
        return
    spans = scanner.spans(written.text)
    found, expected = one_by_one(document(), scanner)
    if not spans:
        assert found == []
        assert expected is None or expected == source
        return
    told = []

    def replace(entity, value):
        told.append((entity, value))
        return f"[{entity}]"

    made = written.replaced(spans, replace)
    if made is None:
        assert told == []
        return
    assert sorted(told) == sorted(found)
    assert json.loads(made) == json.loads(expected)
    if "\\" not in source.decode():
        assert made == expected


@pytest.mark.parametrize("is_ai", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        "to alice@b.example",
        'she said:\n"alice@b.example"\\',
        "Grüße an alice@b.example \U0001f600",
        "\u200b4111\u200b1111 1111 1111\u200b",
        [{"role": "user", "content": "4111 1111 1111 1111"}, 12, None, {"n": 0.25}],
        {"arguments": "to alice@b.example"},
    ],
)
@pytest.mark.parametrize("ascii_", [True, False])
def test_an_ordinary_body_is_dealt_with_as_one_text(value, ascii_, is_ai):
    source = json.dumps({"model": "m", "content": value}, ensure_ascii=ascii_).encode()
    scanner = SCANNERS[0]
    document = JsonDocument(JsonMessage(source, json.loads(source)), is_ai)
    written = at_once(RawJsonEditor.of(document, scanner))
    made = written.replaced(scanner.spans(written.text), lambda entity, _value: f"[{entity}]")
    assert json.loads(made) == json.loads(one_by_one(document, scanner)[1])
    assert b"[" in re.sub(rb'"content": \[', b"", made)


@pytest.mark.parametrize(
    "source",
    [
        b'{"alice@b.example": 1}',
        b'{"n": 4111111111111111}',
        b'{"arguments": "{\\"to\\": \\"alice@b.example\\"}"}',
        b'{"type": "thinking", "thinking": "alice@b.example"}',
        b'{"logprobs": [], "text": "alice@b.example"}',
        b'{"data": "4111111111111111' + b"A" * 64 + b'"}',
        b'{"text": "' + b"A" * 64 + b'=4111111111111111"}',
        b'{"text": "data:alice@b.example"}',
        b'{"text": " [alice@b.example"}',
        b'{"text": "\\n{alice@b.example"}',
        b'{"text": "alice@b.example", "n": 4111111111111111, "model": "m"}',
        b'{"text": "alice@b.example", "bob@b.example"\t\r\n : "m"}',
    ],
)
def test_what_is_no_ordinary_string_is_left_to_the_texts(source):
    scanner = SCANNERS[0]
    written = at_once(RawJsonEditor.of(JsonDocument(JsonMessage(source, {}), True), scanner))
    found = scanner.spans(written.text)
    assert found
    assert written.replaced(found, lambda *_: pytest.fail("it was replaced")) is None


@given(
    st.lists(
        st.sampled_from(
            ["\\\\", '\\"', "\\n", "\\r", "\\t", "\\b", "\\f", "\\/", "\\u0041", "n", "a word of many characters"]
        ),
        max_size=9,
    ).map("".join)
)
@settings(deadline=None, max_examples=examples(300))
def test_few_escapes_are_read_as_many_are(inside: str):
    source = f'{{"text": "{inside}"}}'.encode()
    texts = []
    for few in (0, 64):
        with mock.patch.object(raw_json_editor, "_FEW", few):
            written = at_once(
                RawJsonEditor.of(JsonDocument(JsonMessage(source, json.loads(source)), True), SCANNERS[0])
            )
            texts.append((written.text, written._index))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("text", ["to alice@b.example", "an alice@b.example", "\u00e9 alice@b.example"])
def test_what_is_only_reported_leaves_the_very_body(text):
    source = json.dumps([text, "4111111111111111", {"name": text}]).encode()
    written = at_once(RawJsonEditor.of(JsonDocument(JsonMessage(source, json.loads(source)), True), SCANNERS[0]))
    told = []
    made = written.replaced(SCANNERS[0].spans(written.text), lambda *each: told.append(each) or each[1])
    assert made is source
    assert [entity for entity, _ in told] == ["EMAIL", "CARD", "EMAIL"]


@pytest.mark.parametrize(
    "source",
    [
        b'"alice@b.example"',
        b"4111111111111111",
        b'{"n": 4.111111111111111e15}',
        b'{"n": 4111111111111110.9999999999}',
        b'{"arguments": "{\\"n\\":4.111111111111111e15}"}',
        b'{"arguments": "{\\"to\\": \\"alice\\\\u0040b.example\\"}"}',
        b'{"arguments": "{\\"to\\": \\"alice\\u005cu0040b.example\\"}"}',
        b'{"\\u0061rguments": "{\\"to\\": \\"alice\\\\u0040b.example\\"}"}',
    ],
)
def test_where_a_scan_of_the_whole_may_pass_something_over_none_is_made(source):
    assert at_once(RawJsonEditor.of(JsonDocument(JsonMessage(source, json.loads(source)), True), SCANNERS[0])) is None
    own = scanner_of((), patterns=[("ANY", "a.b", 3)])
    assert at_once(RawJsonEditor.of(JsonDocument(JsonMessage(b"{}", {}), True), own)) is None


@pytest.mark.parametrize(("unit", "most"), [("a", 512 * 1024 - 12), ("\\u00e9", 4096), ("\\/", 4096)])
def test_what_takes_long_at_once_is_left_to_steps(unit, most):
    for count, is_made in ((most, True), (most + 1, False)):
        source = b'{"text": "' + unit.encode() * count + b'"}'
        document = JsonDocument(JsonMessage(source, json.loads(source)), True)
        assert (at_once(RawJsonEditor.of(document, SCANNERS[0])) is not None) is is_made


def test_what_is_base64_in_a_conversation_is_not_looked_at_however_long_it_is_and_what_only_is_long_is():
    image, text = "A" * 5000 + "/2125550123/", "word " * 1000 + "alice@b.example"
    value = {"data": image, "text": image, "content": text, "type": text}
    source = json.dumps(value).encode()
    for is_ai, phones in ((True, 1), (False, 2)):
        written = at_once(RawJsonEditor.of(JsonDocument(JsonMessage(source, value), is_ai), SCANNERS[0]))
        found = SCANNERS[0].spans(written.text)
        assert [span.entity for span in found] == ["PHONE"] * phones + ["EMAIL"] * 2
        assert written.text[found[-1].start : found[-1].end] == "alice@b.example"
