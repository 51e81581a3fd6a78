"""Why a write is refused. Source: Kubernetes API conventions (Status, StatusReason, CauseType)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.kubeapi.write.write import Write, WriteRefused

#: Of one refusal, and characters of each; and problems of other objects that it tells: `check` shows the rest.
MAX_CAUSES: Final = 100
MAX_CAUSE: Final = 1000
MAX_OTHERS: Final = 10


def title(write: Write) -> str:
    """The object as what is said of its content names it: `Gateway.gateway.networking.k8s.io "models"`."""
    return f'{write.kind}{"." if write.group else ""}{write.group} "{write.name}"'


def bad_request(message: str) -> WriteRefused:
    """400: the request itself cannot be understood."""
    return WriteRefused(400, "BadRequest", message)


def conflict(write: Write, why: str) -> WriteRefused:
    """409: the object is not what the client takes it for."""
    return WriteRefused(409, "Conflict", f"Operation cannot be fulfilled on {write.full_name}: {why}")


def invalid(write: Write, causes: Sequence[tuple[str, str, str]], why: str = "") -> WriteRefused:
    """422: the object cannot be what it would become. `causes` as in WriteRefused; they say why, unless `why` does."""
    why = why or ", ".join(f"{field}: {message}" if field else message for _, message, field in causes)
    return WriteRefused(422, "Invalid", f"{title(write)} is invalid: {why}", causes, write.name)


def unreadable(problems: Sequence[Problem]) -> WriteRefused:
    """503: what is there already is refused, so nothing can be written beside it."""
    listed = "; ".join(str(problem)[:MAX_CAUSE] for problem in problems[:MAX_OTHERS])
    more = f"; and {len(problems) - MAX_OTHERS} more" if len(problems) > MAX_OTHERS else ""
    message = f"the configuration cannot be read, with or without this: {listed}{more}"
    return WriteRefused(503, "ServiceUnavailable", message)


def refusal_of(error: ConfigError, write: Write, file: Path) -> WriteRefused:
    """A configuration that is refused: because of this object in `file` (422), or without it already (503)."""
    others = [problem for problem in error.problems if problem.file not in ("", str(file))]
    if others:
        return unreadable(others)
    causes = []
    for problem in error.problems[:MAX_CAUSES]:
        kind = "Required" if "missing" in problem.message else "Invalid"
        causes.append((f"FieldValue{kind}", f"{kind} value: {problem.sentence}"[:MAX_CAUSE], problem.field_path))
    if len(error.problems) > MAX_CAUSES:
        causes.append(("FieldValueInvalid", f"and {len(error.problems) - MAX_CAUSES} more", "<nil>"))
    return invalid(write, causes)
