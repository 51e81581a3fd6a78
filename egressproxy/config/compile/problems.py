"""Load errors that only the compiler sees: collected, so that all are shown at once, with their places."""

from __future__ import annotations

from egressproxy.config.problems import ConfigError, Problem
from egressproxy.config.resources.meta import Resource

__all__ = ["Problems"]


class Problems:
    """Every load error found so far."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def add(self, resource: Resource, field_path: str, message: str, remedy: str = "") -> None:
        """Note what is wrong with one field; the line is that of the object."""
        origin = resource.origin
        line = origin.line if origin.file else 0
        problem = Problem(origin.file or "-", line, 1, str(resource), field_path, message, remedy)
        self._found[problem] = None

    def raise_if_any(self) -> None:
        """Raise ConfigError with everything found, in the order of files and lines."""
        if self._found:
            raise ConfigError(sorted(self._found, key=lambda p: (p.file, p.line, p.field_path)))
