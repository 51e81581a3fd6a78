from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protobuf_wire import WireError, field, fields, number, text


def test_the_examples_of_the_specification():
    assert number(1, 150) == bytes.fromhex("089601")
    assert text(2, b"testing") == bytes.fromhex("120774657374696e67")
    assert field(3, number(1, 150)) == bytes.fromhex("1a03089601")


def test_what_is_missing_is_not_written_and_what_is_empty_is():
    assert (number(1, 0), text(1, b""), field(1, b"")) == (b"", b"", b"\x0a\x00")


def test_text_is_always_utf_8():
    assert text(1, b"a\xffb\xc3\xa9") == field(1, b"a?b\xc3\xa9")


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(st.integers(1, 2**64 - 1), st.binary(max_size=50)))))
def test_what_was_written_is_read(written: list[tuple[int, int | bytes]]):
    data = b"".join(number(tag, value) if isinstance(value, int) else field(tag, value) for tag, value in written)
    assert list(fields(data)) == written


def test_values_of_fixed_size_are_skipped_whole():
    assert list(fields(b"\x09" + b"x" * 8 + b"\x15" + b"y" * 4 + b"\x18\x01")) == [(1, b"x" * 8), (2, b"y" * 4), (3, 1)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05abc",  # ends behind its message
        b"\x0a",  # no length
        b"\x80",  # a key cut short
        b"\x08" + b"\xff" * 10,  # a number too long
        b"\x08" + b"\xff" * 9 + b"\x7f",  # more than 64 bits
        b"\x00\x01",  # field 0
        b"\x0b\x0c",  # a group
        b"\x0f",  # no such wire type
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
)
def test_what_is_odd_is_refused(data: bytes):
    with pytest.raises(WireError):
        list(fields(data))


@given(st.binary(max_size=100))
def test_anything_is_read_or_refused(data: bytes):
    with contextlib.suppress(WireError):
        list(fields(data))
