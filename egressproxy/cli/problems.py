"""How problems and warnings are shown: one line each, coloured on a terminal, plain everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from egressproxy.config.problems import Problem

__all__ = ["show_problems", "show_warnings"]


def show_problems(problems: Sequence[Problem], file: IO[str]) -> None:
    """`file:line:column: object: field: message (remedy)`, all of them."""
    if not file.isatty():
        for problem in problems:
            print(problem, file=file)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for problem in problems:
        place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
        line = Text.assemble((place, "bold"), ": ")
        if problem.object:
            line.append(f"{problem.object}: ", "cyan")
        if problem.field_path:
            line.append(f"{problem.field_path}: ", "magenta")
        line.append(problem.message, "red")
        if problem.remedy:
            line.append(f" ({problem.remedy})", "green")
        console.print(line, soft_wrap=True)


def show_warnings(warnings: Sequence[str], file: IO[str]) -> None:
    if not file.isatty():
        for warning in warnings:
            print(f"warning: {warning}", file=file)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for warning in warnings:
        console.print(Text.assemble(("warning: ", "yellow bold"), warning), soft_wrap=True)
