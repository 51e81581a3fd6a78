"""JSON and times, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def encoded(body: Mapping[str, Any]) -> bytes:
    """JSON with line breaks, for people."""
    return json.dumps(body, indent=1, default=_unknown).encode() + b"\n"


def line(body: Mapping[str, Any]) -> bytes:
    """JSON in one line, without the line end."""
    return json.dumps(body, default=_unknown).encode()


def json_object(data: bytes | str) -> dict[str, Any] | None:
    """The object in this JSON; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def counted(number: int, one: str, more: str = "") -> str:
    """`1 object`, `2 objects`; `more` where the plural has another end."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def rfc3339(seconds: float) -> str:
    """A time in seconds since 1970, to the second, in UTC (RFC 3339; metav1.Time of Kubernetes)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unknown(_value: object) -> str:
    """The placeholder for a value that JSON does not know: its `repr` might show a secret."""
    return "redacted"
