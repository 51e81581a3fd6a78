"""YAML to plain values: places, traps, limits."""

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.config.reading.yaml import MAX_DEPTH, MAX_FILE_BYTES, Document, Fault, SourceLocation, read_documents


def read(text: str | bytes) -> list[Document | Fault]:
    return list(read_documents(text if isinstance(text, bytes) else text.encode()))


def value(text: str) -> object:
    (document,) = read(text)
    assert isinstance(document, Document)
    assert not document.faults
    return document.value


def fault(text: str | bytes) -> Fault:
    """The only fault, in or outside of a document."""
    faults: list[Fault] = []
    for part in read(text):
        faults += part.faults if isinstance(part, Document) else [part]
    (found,) = faults
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("-7", -7),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("no", False),
        ("On", True),
        ("~", None),
        ("y", "y"),
        ("22:22", "22:22"),
        ("0777", "0777"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
        ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00Z"),
        ("1.2.3", "1.2.3"),
        (".inf", ".inf"),
        ("=", "="),
        ('"1"', "1"),
        ("'no'", "no"),
        ("!!str 5", "5"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_scalar_is_what_json_would_call_it(text: str, expected: object) -> None:
    assert value(f"a: {text}") == {"a": expected}


def test_keys_are_text_as_written() -> None:
    assert value("404: a\nno: b\n1.0: c") == {"404": "a", "no": "b", "1.0": "c"}


def test_a_field_knows_its_place() -> None:
    (document,) = read("a:\n  - b: 1\n    cc: x\n")
    assert isinstance(document, Document)
    assert document.location_of(("a", 0, "cc")) == SourceLocation(3, 9)
    assert document.location_of(("a", 0, "cc"), key=True) == SourceLocation(3, 5)
    assert document.written(("a", 0, "b")) == "1"


def test_a_missing_field_is_placed_at_its_nearest_parent() -> None:
    (document,) = read("a:\n  - b: 1\n")
    assert isinstance(document, Document)
    assert document.location_of(("a", 0, "missing")) == SourceLocation(2, 5)
    assert document.location_of(("a", 7)) == SourceLocation(2, 3)
    assert document.written(("a", 0, "missing")) is None


def test_the_places_of_a_part_are_those_of_its_fields() -> None:
    (document,) = read("a:\n  - b: 1\n    cc: x\n")
    assert isinstance(document, Document)
    assert list(document.located_fields(("a",))) == [
        (("a",), SourceLocation(2, 3), SourceLocation(1, 1)),
        (("a", 0), SourceLocation(2, 5), SourceLocation(2, 5)),
        (("a", 0, "b"), SourceLocation(2, 8), SourceLocation(2, 5)),
        (("a", 0, "cc"), SourceLocation(3, 9), SourceLocation(3, 5)),
    ]
    assert list(document.located_fields(("missing",))) == []


def test_documents_are_read_one_by_one_and_empty_ones_left_out() -> None:
    assert [part.value for part in read("---\na: 1\n---\n---\nb: 2\n") if isinstance(part, Document)] == [
        {"a": 1},
        {"b": 2},
    ]


def test_documents_before_a_syntax_error_are_still_read() -> None:
    first, second = read("a: 1\n---\nb: [1\n")
    assert isinstance(first, Document)
    assert isinstance(second, Fault)
    assert second.location == SourceLocation(4, 1)


def test_a_key_that_stands_twice_is_named_with_both_lines() -> None:
    found = fault("a: 1\nb: 2\na: 3\n")
    assert found.location == SourceLocation(3, 1)
    assert "a stands twice, first on line 1" in found.message


def test_tags_that_make_objects_do_nothing(tmp_path) -> None:
    target = tmp_path / "made"
    found = fault(f'a: !!python/object/apply:os.system ["touch {target}"]')
    assert "!!python/object/apply:os.system" in found.message
    assert not target.exists()


def test_a_local_tag_is_not_repeated_since_it_may_be_a_secret() -> None:
    found = fault("password: !hunter2\n")
    assert "hunter2" not in found.message + found.remedy


def test_an_alias_without_anchor_is_not_repeated_since_it_may_be_a_secret() -> None:
    found = fault("password: *hunter2\n")
    assert "hunter2" not in found.message + found.remedy
    assert found.location.line == 1


@pytest.mark.parametrize("text", ["a: [*.test]", "a:\n  - *.test\n", "a: *.test"])
def test_a_wildcard_without_quotes_is_told_to_be_quoted_and_not_repeated(text: str) -> None:
    found = fault(text)
    assert found.remedy == 'quote it, as in "*.example.com"'
    assert "test" not in found.message


@pytest.mark.parametrize(("text", "line"), [("a:\n\tb: 1", 2), ("ä: 1\nb:\n  c: 1\n\td: 1", 4), ("\ta: 1", 1)])
def test_a_tab_is_called_a_tab(text: str, line: int) -> None:
    found = fault(text)
    assert (found.location, found.remedy) == (SourceLocation(line, 1), "indent with blanks")


def test_anchors_and_aliases_work() -> None:
    assert value("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}


def test_aliases_that_multiply_are_refused_at_once() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    started = time.process_time()
    assert "aliases multiply" in fault(bomb).message
    assert time.process_time() - started < 2


def test_an_alias_that_contains_itself_is_refused() -> None:
    assert "contains itself" in fault("a: &a [*a]\n").message


def test_a_later_anchor_of_the_same_name_replaces_the_first() -> None:
    """As kubectl and Helm read it; documents before it are read once."""
    documents = read("first: 1\n---\na: &n 1\nb: *n\nc: &n 2\nd: *n\n---\nlast: 3\n")
    assert [each.value for each in documents] == [{"first": 1}, {"a": 1, "b": 1, "c": 2, "d": 2}, {"last": 3}]
    assert fault("a: &n 1\nb: &n [*n]\n").message == "an alias contains itself"
    assert "does not fit" in fault("a: &n 1\nb: &n 2\nc: *hunter2\n").message


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n", {"x": 1, "y": 3}),
        ("a: &a {x: 1}\nb: {y: 3, <<: *a}\n", {"x": 1, "y": 3}),
        ("a: [&a {x: 1, y: 2}, &b {x: 9, z: 4}]\nb: {<<: [*a, *b]}\n", {"x": 1, "y": 2, "z": 4}),
        ("a: &a {x: 1}\nc: &c {<<: *a, y: 2}\nb: {<<: *c}\n", {"x": 1, "y": 2}),
        ("b: {<<: {x: 1}}\n", {"x": 1}),
        ('b: {"<<": 1}\n', {"<<": 1}),
    ],
)
def test_merge_keys_are_those_of_yaml_1_1(text: str, merged: dict[str, Any]) -> None:
    assert value(text)["b"] == merged


def test_what_cannot_be_merged_is_told_at_its_place_and_aliases_stay_bounded() -> None:
    found = fault("a: &a 1\nb: {<<: *a}\n")
    assert (found.location.line, found.message) == (2, "<< merges mappings alone")
    assert "contains itself" in fault("a: &a {<<: *a}\n").message
    bomb = "a0: &a0 {x: [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
    bomb += "".join(f"a{i}: &a{i} {{<<: *a{i - 1}, k{i}: [{','.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 30))
    assert "aliases multiply" in fault(bomb).message


def test_the_place_of_a_merged_field_is_where_it_is_written() -> None:
    (document,) = read("a: &a\n  x: 1\nb:\n  <<: *a\n  y: 2\n")
    assert document.location_of(("b", "x")) == SourceLocation(2, 6)
    assert document.written(("b", "y")) == "2"


def test_nesting_has_an_end() -> None:
    assert "nested deeper" in fault("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)).message
    assert "nested deeper" in fault("[" * 100_000).message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a: 1".encode("utf-16"), "UTF-16"),
        (bytes(range(256)), "binary"),
        (b"a: 1\nb: \xff\n", "not UTF-8"),
        (b"a: \x07\n", "control character"),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_what_is_no_text_is_refused(data: bytes, message: str) -> None:
    assert message in fault(data).message


def test_a_wrong_octet_is_placed() -> None:
    assert fault(b"a: 1\nb: \xff\n").location == SourceLocation(2, 4)


def test_a_utf8_byte_order_mark_is_skipped() -> None:
    (document,) = read(b"\xef\xbb\xbfa: 1\n")
    assert isinstance(document, Document)
    assert document.value == {"a": 1}


def test_json_is_yaml() -> None:
    assert value('{\n\t"a": [1, "no", null, true, 1.5, "\\u00e4"]\n}\n') == {"a": [1, "no", None, True, 1.5, "ä"]}


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(st.characters(codec="ascii"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_PLAIN)
def test_what_pyyaml_writes_is_read_back(plain: object) -> None:
    assert value(yaml.safe_dump({"a": plain})) == {"a": plain}


@given(st.binary(max_size=200))
def test_any_octets_are_read_or_refused(data: bytes) -> None:
    for part in read(data):
        assert isinstance(part, Document | Fault)


@given(st.text(alphabet=":-[]{}&*!|>'\"#%@`,?\n ab~1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for part in read(text):
        assert isinstance(part, Document | Fault)
