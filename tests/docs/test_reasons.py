"""docs/reasons.md has each reason, what it means and what to do, and what the code says with it."""

from __future__ import annotations

from egressproxy.errors import Reason
from tests.docs import reasons

TEXT = reasons.PAGE.read_text(encoding="utf-8")


def test_every_reason_has_a_section_and_no_other_word_has_one():
    assert sorted(reasons.HEADING.findall(TEXT)) == sorted(reason.value for reason in Reason if reason is not Reason.OK)


def test_every_section_says_what_the_reason_means_and_what_to_do():
    _, *parts = reasons.HEADING.split(TEXT)
    for reason, text in zip(parts[::2], parts[1::2], strict=True):
        means, _, to_do = text.partition("\n**To do**: ")
        assert len(means.split()) >= 3, reason
        assert len(to_do.split("\n\n")[0].split()) >= 3, reason


def test_what_the_gateway_says_stands_there_as_the_code_has_it():
    assert reasons.page(TEXT) == TEXT, "run: python -m tests.docs.reasons"
