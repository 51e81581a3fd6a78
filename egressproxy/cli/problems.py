"""How problems and warnings are shown: one line each, coloured on a terminal, plain everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from egressproxy.config.problems import Problem

__all__ = ["show_problems", "show_warnings"]


def show_problems(problems: Sequence[Problem], file: IO[str]) -> None:
    """`file:line:column: object: field: message (remedy)`, all of them."""
    if not file.isatty():
        for problem in problems:
            print(problem, file=file)
        return
    from rich.console import Console

    console = Console(file=file, highlight=False)
    for problem in problems:
        console.print(_coloured(problem, "red"), soft_wrap=True)


def show_warnings(warnings: Sequence[Problem], file: IO[str]) -> None:
    """As problems, with the word `warning` in front."""
    if not file.isatty():
        for warning in warnings:
            print(f"warning: {warning}", file=file)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for warning in warnings:
        console.print(Text.assemble(("warning: ", "yellow bold"), _coloured(warning, "")), soft_wrap=True)


def _coloured(problem: Problem, style: str) -> Text:
    from rich.text import Text

    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    line = Text()
    for part, of_part in ((place, "bold"), (problem.object, "cyan"), (problem.field_path, "magenta")):
        if part:
            line.append(part, of_part).append(": ")
    line.append(problem.message, style)
    if problem.remedy:
        line.append(f" ({problem.remedy})", "green")
    return line
