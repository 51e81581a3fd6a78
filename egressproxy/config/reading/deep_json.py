"""JSON that is nested more deeply than any valid object. An API server accepts 10,000 levels in fields without a
schema; a recursive reader or writer would fail, for all objects of a response.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: The most levels of a valid object.
MAX_DEPTH: Final = 100
#: Levels that are kept of an unreadable text; the object is then still too deep.
_KEPT: Final = 2 * MAX_DEPTH
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def loads(data: bytes) -> Any:
    """The value, with levels too deep to read replaced by null. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_without_depths(data))


def dumps(value: Any) -> bytes:
    """Compact JSON with sorted keys, with levels too deep to write replaced by null."""
    try:
        text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    except RecursionError:
        text = json.dumps(_cut(value, _KEPT), separators=(",", ":"), sort_keys=True)
    return text.encode()


def is_too_deep(text: bytes) -> bool:
    """Whether this JSON has more than MAX_DEPTH levels."""
    if text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case 0x7B | 0x5B:  # { [
                depth += 1
                if depth > MAX_DEPTH:
                    return True
            case 0x7D | 0x5D:
                depth -= 1
    return False


def _without_depths(data: bytes) -> bytes:
    """The text with null in place of every object and list below _KEPT levels."""
    made, depth, end = bytearray(), 0, 0
    for token in _TOKENS.finditer(data):
        match data[token.start()]:
            case 0x7B | 0x5B:
                if depth == _KEPT:
                    made += data[end : token.start()] + b"null"
                depth += 1
            case 0x7D | 0x5D:
                depth -= 1
                if depth == _KEPT:
                    end = token.end()
    return bytes(made + data[end:])


def _cut(value: Any, levels: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each, levels - 1) for name, each in value.items()} if levels else None
    if isinstance(value, list):
        return [_cut(each, levels - 1) for each in value] if levels else None
    return value
