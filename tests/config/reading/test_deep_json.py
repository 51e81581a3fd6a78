"""JSON with more levels than can be read."""

from __future__ import annotations

import json

import pytest

from egressproxy.config.reading import deep_json


def nested(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b'"}[\\"{"' + b"]}" * (levels // 2)


def depth(value: object) -> int:
    found = 0
    while isinstance(value, dict | list) and value:
        value, found = next(iter(value.values())) if isinstance(value, dict) else value[0], found + 1
    return found


def test_what_can_be_read_is_as_it_was():
    text = b'{"a":[1,{"b":"\\"}"}],"c":null}'
    assert deep_json.loads(text) == json.loads(text)
    assert deep_json.dumps(json.loads(text)) == text
    assert not deep_json.is_too_deep(text)
    assert not deep_json.is_too_deep(b"[" + b"[],{}," * 500 + b'"[[[["]')


@pytest.mark.parametrize("levels", [102, 900, 10_000, 200_000])
def test_what_is_too_deep_stays_too_deep_and_can_be_read(levels):
    text = b'{"items":[{"name":"first","spec":' + nested(levels) + b'},{"name":"second"}],"end":1}'
    assert deep_json.is_too_deep(text)
    found = deep_json.loads(text)
    assert [each["name"] for each in found["items"]] == ["first", "second"]
    assert found["end"] == 1
    assert deep_json.is_too_deep(deep_json.dumps(found))
    assert depth(found) <= max(1003, levels + 3)


def test_what_can_be_read_and_not_written_is_cut():
    value: object = 1
    for _ in range(200_000):  # more than any Python writes
        value = {"a": value}
    assert depth(json.loads(deep_json.dumps({"a": value, "b": 2}))) == 200


def test_text_that_is_no_json_is_refused():
    with pytest.raises(ValueError, match="Expecting"):
        deep_json.loads(b"[" * 50_000)
