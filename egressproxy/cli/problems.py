"""Problems and warnings of a configuration, one line each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Final

from egressproxy.cli.styled_lines import print_lines

if TYPE_CHECKING:
    from egressproxy.config.reading.problems import Problem
    from egressproxy.ir.gateway import ConfigIR
    from egressproxy.model.secret import ConfigSource

_COLOURS: Final = {"unserved": "red bold", "warning": "yellow bold", "note": "bold"}


def show_problems(problems: Iterable[Problem], file: IO[str]) -> None:
    """Print `file:line:column: object: field: message (remedy)` for each."""
    print_lines(([*_parts(problem, "red")] for problem in problems), file)


def show_findings(findings: Iterable[Problem], file: IO[str]) -> None:
    """The same with the severity in front: `unserved`, `warning` or `note`."""
    words = ((finding, finding.severity.value) for finding in findings)
    print_lines(([(f"{word}: ", _COLOURS[word]), *_parts(finding, "")] for finding, word in words), file)


def compiled_or_exit(paths: Sequence[ConfigSource], bind: tuple[str, ...], experimental: bool) -> ConfigIR:
    """These files, folders and Secrets, compiled. If refused, prints the problems on stderr and exits with 2."""
    from egressproxy.config.reading.load import read_all
    from egressproxy.config.reading.problems import ConfigError
    from egressproxy.processes.loader.compilation import Machine, compiled

    try:
        return compiled(read_all(paths), bind, machine=Machine(experimental=experimental)).spec
    except ConfigError as error:
        show_problems(error.problems, sys.stderr)
        sys.exit(2)


def _parts(problem: Problem, style: str) -> Iterator[tuple[str, str]]:
    """The text of `str(problem)`, in parts."""
    location = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    for part, of_part in ((location, "bold"), (problem.object, "cyan"), (problem.field_path, "magenta")):
        if part:
            yield part, of_part
            yield ": ", ""
    yield problem.message, style
    if problem.remedy:
        yield f" ({problem.remedy})", "green"
