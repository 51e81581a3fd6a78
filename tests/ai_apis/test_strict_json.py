"""What is read without the decoder's own search for blanks is what the decoder reads."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai_apis import strict_json
from egressproxy.ai_apis.strict_json import Unreadable, loads, loads_strictly
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


def test_half_of_a_surrogate_pair_is_found_among_other_escapes():
    assert loads_strictly(rb'"\n\\ \u00e9 \ud83d\ude00"') == "\n\\ \u00e9 \U0001f600"
    with pytest.raises(Unreadable, match="surrogate"):
        loads_strictly(rb'"\n \ud83d"')
