"""Styled lines: in colour on a terminal, as plain text everywhere else; and what an unknown word probably means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final

#: The parts of one line, each a text and its style in rich's words ("" for none).
StyledLine = Sequence[tuple[str, str]]


def print_found(found: object, output: str, as_text: Callable[[], None]) -> None:
    """Print what was found by `-o`: as JSON, or by this function."""
    if output == "json":
        print(json.dumps(found, indent=2))
    else:
        as_text()


def print_lines(lines: Iterable[StyledLine], file: IO[str]) -> None:
    """Print one line for each. Characters that are not printable become "?": names and keys are written by others."""
    safe = ([(printable(text), style) for text, style in line] for line in lines)
    if not file.isatty():
        for line in safe:
            print("".join(text for text, _ in line).rstrip(), file=file)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for line in safe:
        console.print(Text.assemble(*line), soft_wrap=True)


def printable(text: str) -> str:
    """The text with "?" for each control or other invisible character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


#: Words that are shown where one is not known.
_SHOWN: Final = 5


def near_lines(word: str, known: Iterable[str], nothing: str, what: str) -> str:
    """ "WHAT: a, b": words like this unknown one, or the first of all; `nothing` where there is none."""
    from difflib import get_close_matches  # only here: most verbs do without

    by_lower = {each.lower(): each for each in known}
    near = [each for lower, each in by_lower.items() if word and lower.startswith(word.lower())][:_SHOWN]
    near = near or [by_lower[each] for each in get_close_matches(word.lower(), by_lower, n=_SHOWN, cutoff=0.5)]
    shown = near or list(by_lower.values())[:_SHOWN]
    return f"{what}: {', '.join(map(printable, shown))}" if shown else nothing
