"""JSON and times, for people and programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

_SPAN: Final = re.compile(r"([1-9][0-9]{0,8})([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


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


def time_span(text: str) -> float | None:
    """The seconds of a text such as 90s, 10m, 12h, 30d or 2w; None for another one, and for none at all."""
    found = _SPAN.fullmatch(text)
    return float(int(found[1]) * _SECONDS[found[2]]) if found is not None else None


def counted(number: int, one: str, more: str = "") -> str:
    """`1 object`, `2 objects`; `more` where the plural has another end."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def rfc3339(seconds: float) -> str:
    """A time in seconds since 1970, to the second, in UTC (RFC 3339; metav1.Time of Kubernetes)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unknown(_value: object) -> str:
    """The placeholder for a value that JSON does not know: its `repr` might show a secret."""
    return "redacted"
