"""Problem: what is to be said of the configuration, how grave it is, and where. ConfigError: why it is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

#: The code of a problem with an object of a cluster, which is left out, or in whose place something closed stands.
CANNOT_BE_READ: Final = "CannotBeRead"


class Severity(StrEnum):
    """What follows from a problem. The values are those of machine-readable output."""

    #: The configuration is refused as a whole.
    ERROR = "error"
    #: It is put into service, and this part of it is not served as it is written.
    UNSERVED = "unserved"
    #: It is served as it is written; check whether that is intended.
    WARNING = "warning"
    #: For information: nothing has to be changed.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """`line` and `column` count from 1, 0 where the place is the file as a whole; `file` is "" where it is no file's.

    `object` is "Kind namespace/name" as far as it could be read; `field_path` is written as in `spec.rules[0].matches`.
    `code` is one CamelCase word for what it is about, that of a status condition where one says it. Neither `message`
    nor `remedy` ever holds a secret's value.
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
        """That a file or folder cannot be read, and why."""
        reason = (error.strerror or type(error).__name__).lower()
        return cls.of_file(file, f"cannot be read: {reason}", "check that it is there and readable for this user")

    @property
    def sentence(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        parts = [part for part in (place, self.object, self.field_path) if part]
        text = ": ".join((*parts, self.sentence))
        # One line on a terminal and in a log, whatever stands in a name or a key.
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
    """The configuration cannot be used; `problems` holds everything that was found, in the order of files and lines."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
