"""Styled lines: printed in colour on a terminal, as plain text everywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

#: The parts of one line, each a text and its style in rich's words ("" for none).
StyledLine = Sequence[tuple[str, str]]


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
