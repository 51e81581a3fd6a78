"""Problem: a message about the configuration, with severity and place. ConfigError: the problems of a refused one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

#: The code of an unreadable object of a cluster, which is left out or replaced by a closed one.
CANNOT_BE_READ: Final = "CannotBeRead"


class Severity(StrEnum):
    """The effect of a problem. The values are those of machine-readable output."""

    #: The configuration is refused as a whole.
    ERROR = "error"
    #: The configuration is put into service, but this part is not served as written.
    UNSERVED = "unserved"
    #: The part is served as written; check whether that is intended.
    WARNING = "warning"
    #: For information only.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """`line` and `column` count from 1, 0 for the file as a whole; `file` is "" without a file.

    `object` is "Kind namespace/name" as far as readable; `field_path` has the form `spec.rules[0].matches`. `code` is
    one CamelCase word, the reason of a status condition if there is one. Neither `message` nor `remedy` ever holds a
    secret's value.
    """

    file: str
    line: int
    column: int
    object: str
    field_path: str
    message: str
    remedy: str = ""
    severity: Severity = Severity.ERROR
    code: str = "Invalid"

    @classmethod
    def of_file(cls, file: str | Path, message: str, remedy: str) -> Self:
        return cls(str(file), 0, 0, "", "", message, remedy)

    @classmethod
    def unreadable(cls, file: Path, error: OSError) -> Self:
        """The problem of an unreadable file or folder."""
        reason = (error.strerror or type(error).__name__).lower()
        return cls.of_file(file, f"cannot be read: {reason}", "check that it is there and readable for this user")

    @property
    def sentence(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        parts = [part for part in (location, self.object, self.field_path) if part]
        text = ": ".join((*parts, self.sentence))
        # One line on a terminal and in a log, for any name or key.
        return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)

    def as_dict(self) -> dict[str, str | int]:
        """For machine-readable output. Bytes of a file name that are not UTF-8 are escaped."""
        made: dict[str, str | int] = {}
        for name in ("severity", "code", "file", "line", "column", "object", "field_path", "message", "remedy"):
            value = getattr(self, name)
            key = "fieldPath" if name == "field_path" else name
            made[key] = value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        return made


class ConfigError(Exception):
    """The configuration is refused; `problems` has all problems in the order of files and lines."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
