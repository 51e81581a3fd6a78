"""What is probably meant by an unknown word on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from egressproxy.cli.styled_lines import printable

#: Words that are shown where one is not known.
_SHOWN: Final = 5


def near_lines(word: str, known: Iterable[str], nothing: str, what: str) -> str:
    """What to show where this word is not known: "WHAT: a, b", the words that are most like it, or the first of all;
    `nothing` where there is none.
    """
    by_lower = {each.lower(): each for each in known}
    near = [each for lower, each in by_lower.items() if word and lower.startswith(word.lower())][:_SHOWN]
    near = near or [by_lower[each] for each in get_close_matches(word.lower(), by_lower, n=_SHOWN, cutoff=0.5)]
    shown = near or list(by_lower.values())[:_SHOWN]
    return f"{what}: {', '.join(map(printable, shown))}" if shown else nothing
