"""The short way of a usage without details tells what the long way tells."""

from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.apis.usage import usage_of

NUMBERS = st.integers(-2, 9) | st.integers(10**12 - 2, 10**12 + 2) | st.booleans() | st.floats() | st.none() | st.text()


@given(st.fixed_dictionaries({"prompt_tokens": NUMBERS}, optional={"completion_tokens": NUMBERS}))
def test_numbers_without_details_are_those_beside_empty_details(told):
    assert usage_of({"usage": told}) == usage_of({"usage": {**told, "prompt_tokens_details": {}}})
