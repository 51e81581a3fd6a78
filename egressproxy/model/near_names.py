"""Suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """A remedy: "did you mean x?" with the nearest of the known words (case is ignored), or `otherwise`. `cutoff`, from
    0 to 1, is how alike they have to be, as for `difflib.get_close_matches`.
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, cutoff)
    return f"did you mean {by_lower[near[0]]}?" if near else otherwise
