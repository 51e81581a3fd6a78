"""A header section kept as octets: look-ups, cuts and additions splice it, and what cannot be in a field is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egressproxy.model.fields import Fields, every_spelling

TOKENS = st.from_regex(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,12}", fullmatch=True)
VALUES = st.from_regex(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]{0,20}[!-~\x80-\xff])?)?", fullmatch=True)
LINES = st.lists(st.tuples(TOKENS, VALUES), max_size=8)


def test_a_field_is_found_in_any_case_without_its_blanks():
    fields = Fields(b"\r\nContent-TYPE: \t text/plain \t\r\nX-A: 1\r\nx-a:2")
    assert fields.get(b"content-type") == b"text/plain"
    assert fields.get_all(b"x-a") == [b"1", b"2"]
    assert fields.get(b"a") is None
    assert b"x-a" in fields
    assert len(fields) == 3


def test_set_replaces_every_line_and_remove_takes_them_out():
    fields = Fields(b"\r\nX-A: 1\r\nX-Ab: 2\r\nx-a: 3")
    fields.set(b"X-A", b"new")
    assert list(fields) == [(b"x-ab", b"2"), (b"x-a", b"new")]
    fields.remove(b"x-ab")
    assert fields.block == b"\r\nX-A: new"


def test_a_cut_takes_all_its_names_and_nothing_that_only_begins_like_them():
    fields = Fields(b"\r\nCookie: a\r\nCookie2: b\r\nAuthorization: c\r\nX: cookie: d")
    fields.cut(every_spelling(("cookie", "authorization")))
    assert list(fields) == [(b"cookie2", b"b"), (b"x", b"cookie: d")]


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nb", b"a\rb", b"a\x00b", b"a\x7fb", b" a", b"a "])
def test_a_value_that_would_be_something_else_on_the_wire_is_refused(value: bytes):
    with pytest.raises(ValueError, match="cannot carry"):
        Fields().add(b"x", value)


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", "é".encode()])
def test_a_name_that_is_no_token_is_refused(name: bytes):
    with pytest.raises(ValueError, match="field name"):
        Fields().add(name, b"v")


@given(LINES)
def test_what_is_added_is_read_back_in_order(lines: list[tuple[bytes, bytes]]):
    fields = Fields.of(lines)
    assert list(fields) == [(name.lower(), value) for name, value in lines]
    for name, _ in lines:
        assert fields.get_all(name.lower()) == [v for n, v in lines if n.lower() == name.lower()]


@given(LINES, TOKENS)
@example([(b"!_", b"")], b"!")
def test_removing_one_name_leaves_the_others_as_they_are(lines: list[tuple[bytes, bytes]], name: bytes):
    fields = Fields.of(lines)
    fields.remove(name.lower())
    assert list(fields) == [(n.lower(), v) for n, v in lines if _bare(n) != _bare(name)]


def _bare(name: bytes) -> bytes:
    """What all spellings of a name have in common."""
    return name.lower().replace(b"_", b"-").strip(b"-")


def test_values_never_show():
    assert "secret" not in repr(Fields(b"\r\nAuthorization: secret"))


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
    start = time.process_time()
    assert fields.get(b"date") == value.strip()
    assert time.process_time() - start < 2, "the square of the length would take half a minute"


@pytest.mark.parametrize("twin", [b"x_a_b", b"X-A_B", b"_x-a-b", b"X_a-b_"])
def test_remove_and_set_take_out_every_spelling(twin):
    fields = Fields.of([(twin, b"1"), (b"x-a-b", b"2"), (b"x-ab", b"3")])
    fields.set(b"x-a-b", b"4")
    assert list(fields) == [(b"x-ab", b"3"), (b"x-a-b", b"4")]
    fields = Fields.of([(twin, b"1")])
    fields.remove(b"x-a-b")
    assert len(fields) == 0


@pytest.mark.parametrize("name", ["-", "---", "_a_", "a--b"])
def test_a_name_of_many_hyphens_is_looked_for_in_one_pass(name):
    block = b"\r\n" + b"-_" * 30000 + b"!: x"
    started = time.process_time()
    assert every_spelling((name,)).search(block) is None
    assert every_spelling((name,)).sub(b"", b"\r\n%s: x\r\nother: y" % name.encode()) == b"\r\nother: y"
    assert time.process_time() - started < 2


SPELT = st.from_regex(r"[-_]{0,2}[aAbB^&|~.!1][-_aAbB1]{0,3}", fullmatch=True)


@given(st.lists(SPELT, max_size=3), st.lists(SPELT, max_size=6))
@example([], ["-", "a"])
@example(["-"], ["--", "_", "a"])
def test_of_some_names_every_spelling_is_found_and_no_other_name(names: list[str], lines: list[str]):
    def plain(name: str) -> str:
        return name.lower().strip("-_").replace("_", "-")

    wanted = {plain(name) for name in names} or {""}
    kept = [line for line in lines if plain(line) not in wanted]
    block = b"".join(b"\r\n%s: a: b" % line.encode() for line in lines)
    assert every_spelling(tuple(names)).sub(b"", block) == b"".join(b"\r\n%s: a: b" % line.encode() for line in kept)
