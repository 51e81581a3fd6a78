"""Problems of objects that the compiler finds, with their places."""

from __future__ import annotations

from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.config.resources.meta import Resource


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
