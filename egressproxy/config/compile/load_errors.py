"""Load errors that only the compiler sees: collected, so that all are shown at once, with their places."""

from __future__ import annotations

from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.config.resources.meta import Resource

__all__ = ["LoadErrors", "problem_at", "unserved"]


def problem_at(
    resource: Resource,
    field_path: str,
    message: str,
    remedy: str = "",
    *,
    on_key: bool = False,
    severity: Severity = Severity.ERROR,
    code: str = "Invalid",
) -> Problem:
    """A problem of one field of an object (or of its key), with file, line and column if they are known."""
    line, column = resource.origin.place_of(field_path, key=on_key)
    return Problem(resource.origin.file, line, column, str(resource), field_path, message, remedy, severity, code)


def unserved(resource: Resource, field_path: str, message: str, remedy: str, code: str) -> Problem:
    """A problem of what is not served, for an object that has no status to say it in."""
    return problem_at(resource, field_path, message, remedy, severity=Severity.UNSERVED, code=code)


class LoadErrors:
    """Every load error found so far."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def add(self, resource: Resource, field_path: str, message: str, remedy: str = "", *, on_key: bool = False) -> None:
        """Note what is wrong with one field, or with its key."""
        self._found[problem_at(resource, field_path, message, remedy, on_key=on_key)] = None

    def raise_if_any(self) -> None:
        """Raise ConfigError with everything found, in the order of files and lines."""
        if self._found:
            raise ConfigError(sorted(self._found, key=lambda p: (p.file, p.line, p.column, p.field_path)))
