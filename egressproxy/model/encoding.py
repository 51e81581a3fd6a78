"""JSON for people and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def encoded(body: Mapping[str, Any]) -> bytes:
    """With line breaks, as one reads it."""
    return json.dumps(body, indent=1, default=_unknown).encode() + b"\n"


def line(body: Mapping[str, Any]) -> bytes:
    """In one line, without its end."""
    return json.dumps(body, default=_unknown).encode()


def _unknown(_value: object) -> str:
    """A value that JSON does not know is never shown: it might be one that must not be."""
    return "redacted"
