"""How problems, and what else is found, are shown: one line each, coloured on a terminal, plain everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.text import Text

    from egressproxy.config.reading.problems import Problem

__all__ = ["show_findings", "show_problems"]

_COLOURS: Final = {"unserved": "red bold", "warning": "yellow bold", "note": "bold"}


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


def show_findings(findings: Sequence[Problem], file: IO[str]) -> None:
    """As problems, with their severity in front: `unserved`, `warning` or `note`."""
    if not file.isatty():
        for finding in findings:
            print(f"{finding.severity.value}: {finding}", file=file)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for finding in findings:
        word = (f"{finding.severity.value}: ", _COLOURS[finding.severity.value])
        console.print(Text.assemble(word, _coloured(finding, "")), soft_wrap=True)


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
