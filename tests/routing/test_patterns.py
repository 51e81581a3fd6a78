import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.routing.patterns import MAX_PROGRAM, PatternError, compile_pattern
from tests.support.properties import examples
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("/v[0-9]+/models/[^/]+/chat", b"/v1/models/gpt-x/chat"),
        (".*/chat", b"/v1/chat"),
        ("/(?:a|b)/[a-z]*", b"/b/xyz"),
        ("/[0-9]{4}-[0-9]{2}", b"/2026-11"),
        ("(?i)/CHAT", b"/chat"),
        ("/(?:[a-z]/){2}x", b"/a/b/x"),
        ("/files/.*", b"/files/a/b"),
        ("/a(?:/b)?", b"/a"),
        (r"^/\d+/\w+/\S$", b"/12/ab/-"),
        (r"/[^\s\d]+", b"/abc"),
        ("(?i:/a)/[^b]", b"/A/x"),
        ("/a|/ab", b"/ab"),
        # What an engine that backtracks has to refuse.
        (r"(?:/[^/\n]+)*", b"/a/b/c"),
        (".*a.*b", b"xaxb"),
        ("(a+)+b", b"aab"),
        ("(?:a|bc)*", b"abca"),
        # Octets that are no text (RFC 9110 section 5.5, obs-text).
        (r"[^/\n]+", b"a\xffb"),
        ("a.b", b"a\xe9b"),
        (r"\xc3\xa9+", b"\xc3\xa9\xa9"),
        (r"[\x80-\xff]", b"\x80"),
        (r"a\\p", rb"a\p"),
    ],
)
def test_an_expression_matches_the_whole_value(text, subject):
    made = compile_pattern(text)
    assert made.matches(subject)
    assert not made.matches(subject + b"\n!")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (r"(?=a)b", "rule of its own"),
        (r"(?!a)b", "rule of its own"),
        (r"(?<!a)b", "rule of its own"),
        (r"(?<=a)b", "rule of its own"),
        (r"(a)\1", "write out"),
        (r"(?P<n>a)(?P=n)", "write out"),
        (r"(a)?(?(1)b|c)", "alternatives"),
        (r"a++", r"a\+ instead of a\+\+"),
        ("(?" + ">a+)b", r"no atomic groups; write \(\?:…\)"),
        (r"/a\Z", r"leave \\Z out"),
        (r"a(?#why)", "leave the comment out"),
        (r"(?x)a b", "leave the flag out"),
        (r"a{,5}", r"\{0,5\}"),
        ("a{1001}", "1000"),
        ("(?:a{100}){100}", "1000"),
        ("é+", r"\(\?:\\xc3\\xa9\)"),
        ("x" * 1025, "1024"),
        ("[ab]{700}c{100}", str(MAX_PROGRAM)),
        ("[ab]{100}c{1000}", str(MAX_PROGRAM)),
        (r"\pL", r"\[A-Za-z\]"),
        (r"a[\P{Greek}]", r"\[\[:alpha:\]\]"),
        ("(?i)" + r"\pL" * 339, r"\[A-Za-z\]"),  # it takes RE2 four seconds
        ("(", "missing"),
        ("[", "missing"),
        ("*a", "no argument"),
        ("a{2,1}", "repetition"),
    ],
)
def test_what_re2_does_not_have_is_refused_with_what_to_write_instead(text, remedy):
    with pytest.raises(PatternError, match=remedy):
        compile_pattern(text)


def test_nothing_is_written_to_standard_error():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from egressproxy.routing.patterns import compile_pattern as c\n"
            "for text in ('(?=a)', '[', '(?:[ab]|[ab][ab]|a[ab]*b){100}'):\n"
            "    try: c(text).matches(b'ab' * 1000)\n"
            "    except ValueError: pass",
        ],
        cwd=ROOT, capture_output=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"", b"")


def test_what_cannot_match_is_free_and_what_may_costs_by_octets_and_instructions():
    made = compile_pattern("/v[0-9]+/models/.*")
    assert made.work(b"/v2/models/x" * 100) == made.work(b"/v1/models/") + 1189 * (made.size + 64)
    assert made.work(b"/other") == made.work(b"") == made.work(b"/w1/models/x") == 0
    assert made.work(b"/v") > 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"/\d+(?!x)", r"expression '/\d+(?!x)' is"),
        (r"/\pL", r"expression '/\pL' holds"),
        ("/\n(", r"expression '/\n(' is"),
    ],
)
def test_a_refused_expression_is_told_as_it_is_written(text: str, shown: str):
    with pytest.raises(PatternError) as caught:
        compile_pattern(text)
    assert shown in str(caught.value)


@pytest.mark.parametrize("text", ["(?:" * 16 + "x" + "){16}" * 16, "(((a{9}){9}){9}){9}"])
def test_a_nested_repeat_is_refused_before_it_is_compiled(text):
    with pytest.raises(PatternError, match="1000"):
        compile_pattern(text)


def test_a_repeat_of_ambiguous_parts_has_a_small_program():
    made = compile_pattern("[a-z]{1,2}" * 30)
    assert made.size < 200
    assert made.matches(b"a" * 49)
    assert not made.matches(b"a" * 49 + b"!")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("/v[0-9]+/x", b"/v"), (r"^/a\.b/(?:c|d)/e", b"/a.b/"), ("/abc+", b"/abc"), ("/abc*", b"/ab"),
        ("/abc?x", b"/ab"),
        ("/abc{2}", b"/ab"), ("/a[|]b", b"/a"), (r"/a\|b", b"/a|b"), ("/a", b"/a"),
        ("/a|/b", b""), ("/a(?:b)|c", b""), ("/a[]|]b|c", b""), ("(?i)/a", b""), (".*", b""), (r"\Q/a\E", b""),
        ("", b""),
        (r"/a\d", b"/a"), (r"/a\x41", b"/a"),
    ],
)  # fmt: skip
def test_what_every_value_begins_with_is_known(text, start):
    assert compile_pattern(text).start == start


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"^a\b.\z", b"a\xe9"), (r"(?i)^\xff\W+", b"\xff\x00"), (r"^b\b(?:[\xe0-\xff]*)", b"b\xff\xff"),
        (r"a\b\W", b"a\xff"), (r"\xff+", b"\xff\xff"), (r"(?i)a\b.", b"A\xff"),
    ],
)  # fmt: skip
def test_nothing_that_matches_is_taken_for_what_cannot(text, value):
    made = compile_pattern(text)
    assert made.matches(value)
    assert made.work(value)


# -- against Python's engine, on what both read alike -----------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", "/", ".", "[ab]", "[^/]", r"\.", "[a-b/]", r"\w", r"\W", "(?i:A)", r"\xff", "[]|]"])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?"])
PATTERNS = st.recursive(
    st.builds(lambda atom, repeat: atom + repeat, ATOMS, REPEATS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.builds(lambda one, two: f"(?:{one}|{two})", inner, inner),
        st.builds(lambda one, repeat: f"(?:{one}){repeat}", inner, st.sampled_from(["", "?", "{2}", "*"])),
    ),
    max_leaves=5,
)
SUBJECTS = st.lists(st.sampled_from([b"a", b"b", b"/", b".", b"A", b"\xff", b"\n"]), max_size=8).map(b"".join)


@settings(max_examples=examples(600), deadline=None)
@given(
    st.sampled_from(["", "", "", "(?i)", "^", "(?s)", "(?m)^"]), PATTERNS, st.lists(SUBJECTS, min_size=1, max_size=6)
)
def test_it_matches_what_another_engine_matches(start, text, subjects):
    text = start + text
    made, other = compile_pattern(text), re.compile(text.encode())
    for subject in subjects:
        assert made.matches(subject) == (other.fullmatch(subject) is not None), (text, subject)
        assert made.work(subject) or not made.matches(subject)
