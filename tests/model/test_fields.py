"""Fields: what looking one up gives, and what it costs."""

from __future__ import annotations

import time

import pytest

from egressproxy.model.fields import Fields


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"", b""),
        (b" \t ", b""),
        (b"a", b"a"),
        (b" a b\t", b"a b"),
        (b"\ta \t b  c \x80 ", b"a \t b  c \x80"),
    ],
)
def test_a_value_has_no_blanks_around_it(value: bytes, found: bytes):
    fields = Fields(b"\r\nX-A:" + value + b"\r\nX-B: 1\r\nx-a: 2")
    assert fields.get(b"x-a") == found
    assert fields.get_all(b"x-a") == [found, b"2"]
    assert b"x-a" in fields
    assert fields.get(b"a") is None


@pytest.mark.parametrize("value", [b"a" + b" " * 60_000 + b"b", b" " * 60_000 + b"b", b"a " * 30_000])
def test_a_value_of_many_blanks_costs_one_pass(value: bytes):
    fields = Fields(b"\r\nDate: " + value)
    start = time.perf_counter()
    assert fields.get(b"date") == value.strip()
    assert time.perf_counter() - start < 0.5, "the square of the length would take half a minute"
