# ruff: noqa: E501
"""What is found is the same however a text is cut, and where it is found does not depend on what came long before."""

import json
import re
import time
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.ai.content import folding
from egressproxy.ai.content.entities import ENTITIES, scanner_of
from egressproxy.ai.content.folding import MAX_UNSEEN, Folder
from egressproxy.ai.content.spans import Scanner, Span, SpanStream, apart
from tests.support.properties import examples

EVERYTHING = scanner_of(
    ENTITIES, regions=("DE", "US"), patterns=[("PROJECT", r"\bPROJ-\d+\b", 24), ("CODE", "x[^y]*y", 8)]
)
ORDINARY = scanner_of(("EMAIL", "PHONE", "CARD"), regions=("DE",))
#: Without own patterns, which hold back as much as their matches may be long.
KNOWN = scanner_of(ENTITIES, regions=("DE", "US"))

VALUES = [
    "alice@example.com", "o'neil+x@mail.example.co.uk", "müller@münchen.de", "a@b.co", "x" * 70 + "@example.org",
    "+49 30 901820", "+1 (415) 555-2671", "0049 89 1234567", "030 901820",
    "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "DE89 3704 0044 0532 0130 00",
    "GB33BUKB20201555555555", "123-45-6789", "AB 12 34 56 C", "86 095 742 719", "12345678Z", "X1234567L",
    "RSSMRA85T10A562S", "756.9217.0769.85", "192.168.1.1", "2001:db8::1", "::1",
    "sk-proj-abcdefghijklmnopqrstuvwx", "AKIAIOSFODNN7EXAMPLE", "xoxb-123456789012-abcdef", "PROJ-4711",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_def",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nMIIabc=",
]  # fmt: skip
BETWEEN = [
    "", " ", ".", ",", "-", "/", "@", "a", "1", "12", "_", "+", "(", ":", "\n", " and ", "E", "eyJ", "sk-", "-----",
    "\u200b", "\u200b\u2060\ufeff" * 4, "xy", "PROJ-", "４１", "é", "日本", " 2024 ", "BEGIN",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(VALUES) | st.sampled_from(BETWEEN) | st.text("a1@. -+:", max_size=6), max_size=8).map(
    "".join
)


def marked(entity: str, value: str) -> str:
    return f"<{entity}:{value}>"


def streamed(scanner: Scanner, pieces: list[str], has_escapes: bool = False) -> str:
    stream = scanner.stream(marked, has_escapes=has_escapes)
    return "".join([stream.feed(piece, n == len(pieces)) for n, piece in enumerate(pieces, 1)])


class Unhurried(Scanner):
    """Asks every detector about every text."""

    def __init__(self, scanner: Scanner) -> None:
        super().__init__(scanner._detectors)
        self._needed = re.compile("").search


@pytest.mark.parametrize("entity", [*ENTITIES, "all"])
@given(TEXTS, st.data())
@settings(deadline=None, max_examples=examples(100))
def test_no_text_is_passed_over_that_a_detector_finds_something_in(entity, text, data):
    scanner = scanner_of(ENTITIES if entity == "all" else (entity,), regions=("DE", "US"))
    found = Unhurried(scanner).spans(text)
    assert scanner.spans(text) == found
    cut = data.draw(st.integers(0, len(text)))
    assert streamed(scanner, [text[:cut], text[cut:]]) == streamed(Unhurried(scanner), [text[:cut], text[cut:]])


@given(TEXTS, st.data())
@settings(deadline=None, max_examples=examples(400))
@pytest.mark.parametrize("scanner", [EVERYTHING, ORDINARY], ids=["everything", "ordinary"])
def test_a_text_in_pieces_gives_what_the_whole_gives(scanner, text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert streamed(scanner, pieces) == scanner.replaced(text, marked)
    assert streamed(scanner, [*text, ""]) == scanner.replaced(text, marked)


@pytest.mark.parametrize("value", VALUES)
def test_every_single_cut_of_a_value_in_a_sentence(value):
    text = f"Ask {value}, or {value} again."
    whole = EVERYTHING.replaced(text, marked)
    assert "<" in whole
    for cut in range(len(text) + 1):
        assert streamed(EVERYTHING, [text[:cut], text[cut:]]) == whole


@given(TEXTS, st.data())
@settings(deadline=None, max_examples=examples(200))
def test_the_inside_of_json_is_seen_unescaped(text, data):
    """Some characters are escaped: what is found are the same values, and the text between them stays as it came."""
    escapes = data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    inside = "".join(
        f"\\u{ord(each):04x}" if is_escaped or each in '"\\' or each < " " else each
        for each, is_escaped in zip(text, escapes, strict=True)
    )
    escaped = '{"x": "' + inside + '"}'
    if all(ord(each) <= 0x7F for each in text):
        found = [entity for *_, entity, _ in KNOWN.spans(escaped, KNOWN.escaped)]
        assert found == [entity for *_, entity, _ in KNOWN.spans(text)]
    stream = KNOWN.stream(lambda entity, value: f"<{entity}>", has_escapes=True)
    made = "".join([stream.feed(each) for each in escaped]) + stream.flush()
    once = KNOWN.stream(lambda entity, value: f"<{entity}>", has_escapes=True)
    assert made == once.feed(escaped, last=True)
    if text.isascii():
        assert json.loads(made)["x"] == KNOWN.replaced(text, lambda entity, value: f"<{entity}>")


OTHERS = st.sampled_from(
    ["é", "ß", "日本", "\u00ad", "\u200b", "\uff14", "\u2014", "\U0001d7d2", "\U0001f600", "\U000e0001", "\ud800"]
)


@given(
    st.lists(OTHERS | st.sampled_from(["a", "4", " of words ", "\\u200b", '"']), max_size=10).map("".join),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(500))
def test_a_text_with_few_other_characters_is_folded_as_one_with_many(text: str, has_escapes: bool):
    folder = Folder(has_escapes=has_escapes)
    with mock.patch.object(folding, "_beyond_ascii", lambda text: text):
        expected = folder.fold(text)
    assert folder.fold(text) == expected


def test_of_a_text_with_few_other_characters_only_these_are_looked_at():
    assert Folder().fold("one \U0001d7d2 of a few") == ("one 4 of a few", None)
    assert folding._beyond_ascii("Grüße an Jürgen, schön \U0001f600") == "üßüö\U0001f600"


def test_a_number_of_json_becomes_a_string_where_it_is_replaced():
    stream = KNOWN.stream(lambda entity, value: f"[{entity}]", has_escapes=True)
    said = '{"card": 4111111111111111, "list": ["\\"", 4111111111111111, "4111111111111111"]}'
    made = json.loads("".join([stream.feed(each) for each in said]) + stream.flush())
    assert made == {"card": "[CARD]", "list": ['"', "[CARD]", "[CARD]"]}


@given(TEXTS)
@example("\u200b\u200b\u200b111")
@settings(deadline=None, max_examples=examples(200))
def test_what_is_held_back_has_a_bound(text):
    """Characters that are not seen come on top, as many as may stand between two that are."""
    most = 2 * 330 * (1 if folding._UNSEEN_THERE.search(text) is None else 1 + MAX_UNSEEN)
    stream = ORDINARY.stream(marked)
    for _ in range(6):
        stream.feed(text * 20)
        assert len(stream._held) <= most


@pytest.mark.parametrize("unseen", [1, MAX_UNSEEN, MAX_UNSEEN + 1])
def test_characters_that_are_not_seen_do_not_grow_what_is_held_back(unseen: int):
    stream = ORDINARY.stream(marked)
    most = 0
    for _ in range(1000):
        stream.feed(("\u200b" * unseen + "1") * 20)
        most = max(most, len(stream._held))
    assert most <= 2 * 330 * (1 + unseen)


def test_a_word_goes_out_with_the_next_one():
    stream = scanner_of(("EMAIL", "CARD", "PHONE", "API_KEY")).stream(marked)
    said = [stream.feed(piece) for piece in ("Hel", "lo", " my", " friend", ",", " how")]
    assert said == ["", "", "Hello ", "my ", "friend,", " "]


@pytest.mark.parametrize(
    "unit",
    ["a@b.co ", "@", "a@", "+49 30 901820 ", "1 ", "4 ", "1", ":", "A1", "A1 ", "DE89 3704 ", "sk-", "a-", "eyJ", "eyJaaaaaaaaa.", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "a.", "1.", "\u200b", "４"],
)  # fmt: skip
def test_time_is_linear(unit):
    """Twice the text takes about twice as long; a quadratic one would take four times."""

    def best(length):
        text = (unit * length)[:length]
        times = []
        for _ in range(3):
            began = time.process_time()
            KNOWN.spans(text)
            times.append(time.process_time() - began)
        return min(times)

    short = best(1 << 12)
    assert best(1 << 15) < 8 * 3 * short + 0.05


@pytest.mark.parametrize("piece", ["4", "a", "4\u200b"])
def test_a_run_without_an_end_is_not_looked_at_for_each_of_its_characters(piece: str, monkeypatch: pytest.MonkeyPatch):
    scanner = scanner_of(ENTITIES)
    looked: list[int] = []
    scan = Scanner.scan
    monkeypatch.setattr(Scanner, "scan", lambda self, *how: looked.append(1) or scan(self, *how))
    stream = SpanStream(scanner, scanner.plain)
    said = "".join(stream.take(piece, False)[0] for _ in range(3000)) + stream.take("", True)[0]
    assert said == piece * 3000
    assert len(looked) < 200


@pytest.mark.parametrize("piece", ["4\u200b", "4" + "\u200b" * 8, "1 \u200b", "a\u200b", "a", "\uff14", "4"])
def test_what_is_held_back_of_a_stream_is_read_anew_for_more_than_its_next_character(piece: str, monkeypatch):
    scanner = scanner_of(ENTITIES, regions=("US",))
    read: list[int] = []
    fold = Folder.fold
    monkeypatch.setattr(Folder, "fold", lambda self, text: read.append(len(text)) or fold(self, text))
    stream = SpanStream(scanner, scanner.plain)
    said = "".join(stream.take(piece, False)[0] for _ in range(4000)) + stream.take("", True)[0]
    assert said == piece * 4000
    assert sum(read) < 12 * len(said)


PLACES = st.builds(
    lambda start, length, entity: Span(start, start + length, entity, start),
    st.integers(0, 30),
    st.integers(1, 6),
    st.sampled_from("ABC"),
)


@given(st.lists(PLACES, max_size=6), st.none() | st.integers(1, 12))
@settings(deadline=None, max_examples=examples(300))
def test_of_spans_each_character_belongs_to_the_first_and_longest_one(found: list[Span], end: int | None):
    start = 5
    kept = [] if end is None else [Span(0, end, "KEPT", 0)]
    at = end or start
    expected = list(kept)
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        if span.end > at:
            expected.append(span._replace(start=max(at, span.start)))
            at = span.end
    assert apart(list(found), start, kept) == expected
