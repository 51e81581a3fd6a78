"""Problem: one thing that is wrong with the configuration, and where; also a warning. ConfigError: all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ConfigError", "Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """`line` and `column` count from 1, 0 where the place is the file as a whole; `file` is "" where it is no file's.

    `object` is "Kind namespace/name" as far as it could be read; `field_path` is written as in `spec.rules[0].matches`.
    Neither `message` nor `remedy` ever holds a secret's value.
    """

    file: str
    line: int
    column: int
    object: str
    field_path: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        parts = [part for part in (place, self.object, self.field_path) if part]
        remedy = f" ({self.remedy})" if self.remedy else ""
        text = f"{': '.join((*parts, self.message))}{remedy}"
        # One line on a terminal and in a log, whatever stands in a name or a key.
        return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)

    def as_dict(self) -> dict[str, str | int]:
        """For machine-readable output."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "object": self.object,
            "fieldPath": self.field_path,
            "message": self.message,
            "remedy": self.remedy,
        }


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds everything that was found, in the order of files and lines."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
