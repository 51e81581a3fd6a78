"""What is probably meant by an unknown word on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """A hint for an error: the known word that is most like this one (case is ignored), or `otherwise` if there is
    none. `cutoff` is difflib's measure of likeness, from 0 to 1.
    """
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f"did you mean {by_lower[near[0]]}?" if near else otherwise
