"""JSON that is nested more deeply than anything that means something here. An API server lets 10,000 levels pass, in
fields that have no schema; what reads or writes them level by level would fail, for all objects of an answer.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Levels of an object that is read.
MAX_DEPTH: Final = 100
#: What is deeper than this is dropped where the whole could not be read: an object with it is still too deep.
_KEPT: Final = 2 * MAX_DEPTH
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def loads(data: bytes) -> Any:
    """The value, without what is so deep that it could not be read. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_without_depths(data))


def dumps(value: Any) -> bytes:
    """As compact text with sorted keys, without what is so deep that it could not be written."""
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
