import time

import pytest

from egressproxy.routing.patterns import MAX_SUBJECT, PatternError, compile_pattern


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
    ],
)
def test_an_expression_of_bounded_cost_matches_the_whole_value(text, subject):
    assert compile_pattern(text).fullmatch(subject)
    assert not compile_pattern(text).fullmatch(subject + b"\n!")


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+b", "(a|a)*b", "(?:/[^/]+)*", "(a*)*", "(?:a{1,9}){1,9}", "(a|ab){0,20}c",  # nested repeats
        r"(a)\1", "(?=a)b", "(?<!a)b", "(?!a)b", "(a)?(?(1)b|c)",                          # not regular
        ".*a.*b", "[a-z]*[a-z]*[a-z]*x", ".*.*.*x",                                          # polynomial
        "a?" * 30 + "a" * 30, "(?:a|bc)" * 12,                                               # too many ways
        "(", "[", "*a", "a{2,1}", "x" * 1025,                                               # malformed, too long
    ],
)  # fmt: skip
def test_an_expression_of_unbounded_cost_is_refused(text):
    with pytest.raises(PatternError):
        compile_pattern(text)


@pytest.mark.parametrize("text", [".*[^/]+/x", "[a-z]*ab/", ".*[0-9]+-[0-9]+x", "[^/]*[^/]?[^/]?z"])
def test_the_worst_accepted_expression_answers_soon(text):
    pattern = compile_pattern(text)
    for filler in (b"a", b"1", b"ab", b"-1"):
        started = time.process_time()
        pattern.fullmatch((filler * MAX_SUBJECT)[:MAX_SUBJECT])
        assert time.process_time() - started < 0.5


def test_the_message_says_what_to_write_instead():
    with pytest.raises(PatternError, match=r"end each with a character that it cannot match"):
        compile_pattern(".*a.*b")
    with pytest.raises(PatternError, match=r"repeat a character class"):
        compile_pattern("(ab)*")
