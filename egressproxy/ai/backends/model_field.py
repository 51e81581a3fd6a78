"""The `model` of a request to an AI provider: found in its JSON, and replaced without touching anything else."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from egressproxy.ai.apis.long_json import checking, encoding
from egressproxy.ai.apis.splice import past_value, skip_blanks
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work

#: Objects and arrays of a body that is read for its model, and its commas.
MAX_READ: Final = 200_000
MAX_COMMAS_READ: Final = 500_000

_FIELD: Final = "model"


class NamedModel(NamedTuple):
    """The model that a body names, and where in `text` its value begins and ends."""

    text: str
    name: str
    begin: int
    end: int


def find_model(body: bytes) -> Work[NamedModel | None]:
    """The `model` of the outermost object, found in turns; None where it has none. Raises Untranslatable where the body
    is no object of JSON or has too many parts, and where two readers could find two models in it: the name stands
    twice, or in another case.
    """
    try:
        text = yield from checking(body, MAX_READ, MAX_COMMAS_READ)
    except Unreadable as error:
        raise Untranslatable("", str(error)) from None
    at = skip_blanks(text, 0)
    if text[at] != "{":
        raise Untranslatable("", "it is not an object of JSON")
    found: NamedModel | None = None
    at = skip_blanks(text, at + 1)
    while text[at] != "}":
        yield
        end = yield from past_value(text, at)
        key = json.loads(text[at:end])
        begin = skip_blanks(text, skip_blanks(text, end) + 1)
        at = yield from past_value(text, begin)
        if key.lower() == _FIELD:
            if key != _FIELD or found is not None or text[begin] != '"':
                raise Untranslatable(key, "it is not one string, which stands once")
            found = NamedModel(text, json.loads(text[begin:at]), begin, at)
        at = skip_blanks(text, at)
        if text[at] == ",":
            at = skip_blanks(text, at + 1)
    return found


def with_model(named: NamedModel, model: str) -> Work[bytes]:
    """The body with another model, made in turns; every other byte is as it was."""
    text = named.text
    before = yield from encoding(text, 0, named.begin)
    after = yield from encoding(text, named.end, len(text))
    return b"".join((before, json.dumps(model).encode(), after))
