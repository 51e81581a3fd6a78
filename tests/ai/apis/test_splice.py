from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.apis.splice import Path, past_value, spliced, splicing_text
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import at_once


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ('{"a" : 1.50, "b":[ "x" , "\\u00e9" ]}', {("b", 0): "y"}, '{"a" : 1.50, "b":[ "y" , "\\u00e9" ]}'),
        (' {"a":{"b":{}}} ', {("a", "b", "c"): True}, ' {"a":{"b":{"c":true}}} '),
        ('{"a":1}', {("b",): 2, ("a",): [3]}, '{"a":[3],"b":2}'),
        ("{}", {("a", "b"): None}, '{"a":{"b":null}}'),
        ('{"a":1e5,"b":{"c":1}}', {("b",): "é"}, '{"a":1e5,"b":"é"}'),
        ("[1, [2, 3]]", {(1, 1): 4}, "[1, [2, 4]]"),
    ],
)
def test_a_value_is_replaced_and_every_other_byte_stays(text: str, changes: dict[Path, Any], expected: str):
    assert spliced(text, changes) == expected


@pytest.mark.parametrize(("text", "path"), [('{"a":1}', ("a", "b")), ("[1]", (1,)), ('{"a":[]}', ("a", "b"))])
def test_a_path_that_leads_nowhere_is_refused(text: str, path: Path):
    with pytest.raises(Unreadable, match="cannot be replaced"):
        spliced(text, {path: 1})


def paths(value: Any, path: Path = ()) -> list[Path]:
    found = [path] if path else []
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        found += paths(inner, (*path, step))
    return found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_the_end_of_a_value_is_found_in_turns(value: Any, is_ascii: bool):
    written = json.dumps(value, ensure_ascii=is_ascii, indent=1)
    text = f'{{"value":{written},"behind":"{"[" * 300_000}"}}'
    at = len('{"value":')
    assert at_once(past_value(text, at)) == at + len(written)
    assert at_once(past_value(text, 0)) == len(text)


@given(JSON, st.data(), st.booleans())
def test_what_is_replaced_is_read_again(value: Any, data: st.DataObject, is_ascii: bool):
    every = paths(value)
    if not every:
        return
    path = data.draw(st.sampled_from(every))
    text = json.dumps(value, ensure_ascii=is_ascii, indent=data.draw(st.sampled_from([None, 1])))
    read = json.loads(spliced(text, {path: ["new"]}))
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = ["new"]
    assert read == value


@pytest.mark.parametrize(
    ("source", "before", "made"),
    [
        (b'{"a":"x","b":"y"}', "x", b'{"a":"<z>","b":"y"}'),
        ('{"a":"é \\n"}'.encode(), "é \n", b'{"a":"<z>"}'),
        (b'{"x":"x"}', "x", None),
        (b'{"a":"x","b":"x"}', "x", None),
        (b'{"a":"\\u0078","x":1}', "x", None),
        (b'{"a":"a\\/b","a/b":1}', "a/b", None),
        (b'{"a":",","b":"c"}', ",", None),
        (b'{"a":["a",","]}', ",", None),
    ],
)
def test_a_string_is_replaced_at_a_glance_only_where_no_other_can_be_meant(source, before, made):
    assert at_once(splicing_text(source, before, "<z>")) == made
