"""The `model` of a request to an AI provider: found in its JSON, and replaced without touching anything else."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from egressproxy.ai_apis.strict_json import MAX_COMMAS, MAX_PARTS, has_too_many_parts
from egressproxy.translation.errors import Untranslatable

#: Objects and arrays of a body that is read for its model, and its commas: to translate one costs ten times more.
MAX_READ: Final = 50_000
MAX_COMMAS_READ: Final = 500_000

_FIELD: Final = "model"
_BLANKS = re.compile(r"[ \t\n\r]*")
_NOT_AN_OBJECT = "it is not an object of JSON"


class NamedModel(NamedTuple):
    """The model that a body names, and where in `text` its value begins and ends."""

    text: str
    name: str
    begin: int
    end: int


def _refused_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refused_constant)


def check_size(body: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS) -> None:
    """Raises Untranslatable for JSON of so many parts that reading it would hold up all others: of more objects and
    arrays than `parts`, or more `commas` or strings. What stands inside of strings does not count.
    """
    if has_too_many_parts(body, parts, commas):
        raise Untranslatable("", "it has too many parts to be read here")


def named_model(body: bytes) -> NamedModel | None:
    """The `model` of the outermost object; None where it has none. Raises Untranslatable where the body is no object of
    JSON, and where two readers could find two models in it: the name stands twice, or in another case.
    """
    check_size(body, MAX_READ, MAX_COMMAS_READ)
    try:
        return _named(body.decode())
    except RecursionError:
        raise Untranslatable("", "it is nested too deeply") from None
    except ValueError:
        raise Untranslatable("", _NOT_AN_OBJECT) from None


def _named(text: str) -> NamedModel | None:
    """Raises ValueError where it is no object of JSON."""
    found: list[NamedModel] = []
    at = _blanks(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError
    at = _blanks(text, at + 1)
    if text[at : at + 1] == "}":
        _check_end(text, at + 1)
        return None
    while True:
        if text[at : at + 1] != '"':
            raise ValueError
        key, at = _DECODER.raw_decode(text, at)
        at = _blanks(text, at)
        if text[at : at + 1] != ":":
            raise ValueError
        begin = _blanks(text, at + 1)
        value, end = _DECODER.raw_decode(text, begin)
        if key.lower() == _FIELD:
            if key != _FIELD or found or not isinstance(value, str):
                raise Untranslatable(key[:80], "it is not one string, which stands once")
            found.append(NamedModel(text, value, begin, end))
        at = _blanks(text, end)
        mark = text[at : at + 1]
        if mark == "}":
            _check_end(text, at + 1)
            return found[0] if found else None
        if mark != ",":
            raise ValueError
        at = _blanks(text, at + 1)


def with_model(named: NamedModel, model: str) -> bytes:
    """The body with another model; every other byte is as it was."""
    return (named.text[: named.begin] + json.dumps(model) + named.text[named.end :]).encode()


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _check_end(text: str, at: int) -> None:
    if _blanks(text, at) != len(text):
        raise ValueError
