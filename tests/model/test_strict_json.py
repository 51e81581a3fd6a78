"""What is read without the decoder's own search for blanks is what the decoder reads."""

import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.long_json import checking, dumping, reading
from egressproxy.model import strict_json
from egressproxy.model.strict_json import Unreadable, dumps, has_too_many_parts, loads, loads_strictly
from egressproxy.model.work import at_once
from tests.support.properties import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
AROUND = st.text(alphabet=" \t\n\r\f\v\x00\u00a0\ufeff,{}x1", max_size=3)


def outcome(read, text):
    try:
        return repr(read(text))
    except Unreadable as error:
        return f"Unreadable: {error}"


def decoded(text):
    try:
        return strict_json._decode(text)
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None


def decoded_strictly(text):
    try:
        return strict_json._decode_strictly(text)
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None


@settings(max_examples=examples(400), deadline=None)
@given(before=AROUND, value=VALUES, after=AROUND, cut=st.integers(0, 3), is_ascii=st.booleans())
def test_what_is_read_and_what_is_said_of_the_rest_is_what_the_decoder_says(before, value, after, cut, is_ascii):
    written = json.dumps(value, ensure_ascii=is_ascii)
    text = before + written[: len(written) - cut] + after
    assert outcome(loads, text) == outcome(decoded, text)
    if not any("\ud800" <= character <= "\udfff" for character in text) and "\\ud" not in text:
        assert outcome(loads_strictly, text) == outcome(decoded_strictly, text)


@pytest.mark.parametrize("blanks", ["", "\n", "\r\n \t"])
def test_a_name_that_stands_twice_is_found_behind_blanks(blanks):
    with pytest.raises(Unreadable, match="twice"):
        loads_strictly(f'{blanks}{{"a": 1, "a": 2}}{blanks}'.encode())


@pytest.mark.parametrize("read", [loads, loads_strictly])
@pytest.mark.parametrize("end", ["\f", "\v", "\u00a0", "\x1c", " \f", "]"])
def test_what_is_no_blank_of_json_is_none_behind_a_value(read, end):
    assert read(b'{"a": 1} \t\r\n') == read(b'{"a": 1}') == {"a": 1}
    with pytest.raises(Unreadable, match="Extra data"):
        read(f'{{"a": 1}}{end}'.encode())


def test_half_of_a_surrogate_pair_is_found_among_other_escapes():
    assert loads_strictly(rb'"\n\\ \u00e9 \ud83d\ude00"') == "\n\\ \u00e9 \U0001f600"
    with pytest.raises(Unreadable, match="surrogate"):
        loads_strictly(rb'"\n \ud83d"')


@given(
    opener=st.sampled_from(["[", '{"a":']),
    levels=st.sampled_from([1, 2, 99, 100, 101]),
    in_string=st.text("[{", max_size=200),
)
@settings(max_examples=examples(60), deadline=None)
def test_levels_of_a_long_text_are_those_of_a_short_one(opener, levels, in_string):
    inner = opener * (levels - 1) + json.dumps(in_string) + ("]" if opener == "[" else "}") * (levels - 1)
    short, long = f"[{inner}]", f'[{inner},"{"x" * strict_json._LONG}"]'
    if levels <= strict_json.MAX_DEPTH:
        assert loads_strictly(long)[:1] == loads_strictly(short)
    else:
        for text in (short, long):
            with pytest.raises(Unreadable, match="levels"):
                loads_strictly(text)


def counted_one_by_one(text, parts, commas, strings):
    """Character by character: what a backslash escapes counts for nothing, what stands in a string for nothing else."""
    quotes, outside = 0, Counter()
    for character in re.sub(r'\\[\\"]', "", text.decode()):
        if character == '"':
            quotes += 1
        elif quotes % 2 == 0:
            outside[character] += 1
    return quotes > 2 * strings or outside["{"] + outside["["] > parts or outside[","] > commas


@given(st.text('{[,"\\x', max_size=30), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=examples(400), deadline=None)
def test_parts_that_are_counted_together_first_are_those_that_are_counted_one_by_one(text, parts, commas, strings):
    many = has_too_many_parts(text.encode(), parts, commas, strings)
    assert many == counted_one_by_one(text.encode(), parts, commas, strings)


@pytest.mark.parametrize(
    ("body", "parts", "commas"),
    [
        (b'{"a":[{"b":[1]}]}', 4, 0),
        (b'{"a":"[[[[{{{{,,,,"}', 1, 0),
        (b'{"a":"\\"[[[[\\"{{{{"}', 1, 0),
        (b'{"a":"\\\\",[],"b":"[[[["}', 2, 2),
        (b'{"a":"\\\\\\"[[[[", "b":"{"}', 1, 1),
    ],
)
def test_the_parts_of_json_are_counted_outside_of_strings(body: bytes, parts: int, commas: int):
    assert not has_too_many_parts(body, parts, commas)
    assert has_too_many_parts(body, parts - 1, commas)
    assert not commas or has_too_many_parts(body, parts, commas - 1)


PADDING = "[" + "1," * 33_000 + "1]"  # which makes any value a long one, of many marks


def long(text: str) -> bytes:
    return f'{{"padding":{PADDING},"value":{text}}}'.encode("utf-8", "surrogatepass")


@settings(max_examples=examples(100), deadline=None)
@given(value=VALUES, cut=st.integers(0, 3), at=st.integers(0, 40), put=AROUND, is_ascii=st.booleans())
def test_what_is_read_in_turns_is_what_is_read_at_once(value, cut, at, put, is_ascii):
    written = json.dumps(value, ensure_ascii=is_ascii)
    body = long(written[:at] + put + written[at : len(written) - cut])
    assert said(lambda text: at_once(reading(text, 1 << 20, 1 << 20)), body) == said(loads_strictly, body)
    assert said(lambda text: at_once(checking(text, 1 << 20, 1 << 20)), body) == said(
        lambda text: loads(text) and text.decode(), body
    )


def said(read, body):
    """What it reads; for what it refuses, that it does."""
    try:
        return repr(read(body))
    except Unreadable:
        return Unreadable


@pytest.mark.parametrize(
    "text",
    [r'"\ud83d"', r'"\ud83d\u0061"', '"' + r"\ud83d\ude00" * 9000 + '"', '"' + r"a\ud83d\ude00" * 9000 + r'\ud83d"'],
)
def test_pairs_are_whole_wherever_a_long_text_is_cut(text):
    assert said(lambda body: at_once(reading(body)), long(text)) == said(loads_strictly, long(text))
    assert at_once(checking(long(text), 20, 40_000)) == long(text).decode()


@given(value=VALUES, times=st.sampled_from([1, 200]), text=st.text(max_size=3))
def test_what_is_written_in_turns_is_what_is_written_at_once(value, times, text):
    value = {"many": [value] * times, "long": text * 9000, **dict.fromkeys(map(str, range(times)), text)}
    assert said(lambda each: at_once(dumping(each)), value) == said(dumps, value)
    in_order = json.loads(json.dumps(value, sort_keys=True))
    assert said(lambda each: at_once(dumping(each, is_sorted=True)), value) == said(dumps, in_order)


@pytest.mark.parametrize("name", ["a" * 70_000, r"\"" * 35_000, r"\u0061" * 12_000])
def test_a_name_as_long_as_a_text_is_refused(name):
    with pytest.raises(Unreadable, match="not JSON"):
        at_once(reading(long(f'{{"{name}":1}}')))


@pytest.mark.parametrize("text", ["1" + " " * 70_000, "\n" * 70_000 + "1", "1." + "1" * 600, "1" * 600])
def test_blanks_and_digits_of_a_long_text_are_not_read_without_end(text):
    for read in (reading, lambda body: checking(body, 100, 40_000)):
        with pytest.raises(Unreadable, match=r"65536 blanks in one place|more than 300 digits|too long"):
            at_once(read(long(text)))
