from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.protocols.http1.framing import any_case

NAMES = ["te", "tea", "transfer-encoding", "via", "x-a", "x-a-b", "x-b"]


@pytest.mark.parametrize("name", NAMES)
def test_each_of_the_names_is_found_in_any_case(name: str):
    pattern = re.compile(any_case(" ".join(NAMES)))
    for spelling in (name, name.upper(), name.title()):
        assert pattern.fullmatch(spelling.encode())


@given(st.lists(st.text("ab-", min_size=1, max_size=4), min_size=1, max_size=8), st.text("aAbB-", max_size=5))
def test_nothing_else_is_found(names: list[str], text: str):
    found = re.compile(rb"(?:%b):" % any_case(" ".join(names))).match(text.encode() + b":")
    assert (found is not None) is (text.lower() in names)
