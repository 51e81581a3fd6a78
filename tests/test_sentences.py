"""The counter of riddles, and the most of them that each part of the repository may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sentences import ROOT, SHARE, Sentence, riddles, sentences

#: These numbers may only fall: lower them when sentences are mended.
MOST = {"egressproxy": 0, "docs": 0, "config": 0, "deploy": 0, "*.md": 0}


def share(text: str) -> float:
    return Sentence(Path("a.md"), 1, text).share


@pytest.mark.parametrize("place", MOST)
def test_no_part_gets_more_riddles(place):
    found = [str(riddle) for path in ROOT.glob(place) for riddle in riddles(path)]
    assert len(found) <= MOST[place], (
        f"{place} has {len(found)} sentences with too many pronouns and relative words, {MOST[place]} are allowed. "
        f"`python -m tests.sentences {place}` lists them. Write nouns: the subject by its name, then a verb and an "
        "object; put the reason into a second sentence."
    )


@pytest.mark.parametrize(
    ("riddle", "plain"),
    [
        ("That its requests come in.", "The tunnel that carries the requests of this client, or None."),
        (
            "Everything else is what its name says, or None.",
            "The other fields are in seconds, and None if the gateway has not reached their phase.",
        ),
        (
            "Of what was there, those that one of them has asked for.",
            "The trailers to forward: those received, minus those that body filters removed.",
        ),
    ],
)
def test_pro_forms_in_place_of_nouns_make_a_riddle(riddle, plain):
    assert share(plain) <= SHARE < share(riddle)


def test_a_determiner_before_its_noun_names_something():
    assert share("Each of these is another one.") > SHARE
    assert share("Each worker of this gateway has another port.") == 0


def test_code_names_something_and_a_short_text_is_no_sentence():
    assert share("`it` is `what` they call it") == pytest.approx(2 / 6)
    assert share("What it does") == 0


def test_prose_is_found_and_code_and_tables_are_not(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nOne\ntwo. Three:\n\n    four\n\n```\nfive\n```\n| six |\n* seven\n")
    (tmp_path / "a.py").write_text('"""One."""\n\nx = f"two {3} four"  # five\n# six\n')
    found = [(place.line, place.text) for name in ("a.md", "a.py") for place in sentences(tmp_path / name)]
    assert found == [
        *[(1, "A"), (3, "One two."), (3, "Three:"), (12, "seven")],
        *[(1, "One."), (3, "two `X` four"), (3, "five six")],
    ]
