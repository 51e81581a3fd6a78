"""The body of a write, read: JSON as JSON, everything else as YAML, and nothing that could hurt who works on it.

Source: RFC 8259; RFC 7493 (I-JSON) on numbers, duplicate names and surrogates.
"""

from __future__ import annotations

import json
from collections import Counter
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from egressproxy.config.reading.yaml import Fault, read_documents
from egressproxy.kubeapi.write.checks import MAX_LEVELS, too_large

#: Of an integer, as in manifests: no field takes more.
MAX_DIGITS: Final = 19
#: One sentence, however deep this Python's own reader of JSON goes before it gives up.
_TOO_DEEP: Final = f"it is nested deeper than {MAX_LEVELS} levels"


def read_body(data: bytes) -> Any:
    """The value of a body, JSON or YAML, within the bounds of `checks`. Raises ValueError with a sentence."""
    value = read_json(data) if data.lstrip(b" \t\r\n")[:1] in (b"{", b"[") else read_document(data)
    if why := too_large(value):
        raise ValueError(why)
    return value


def read_json(data: bytes) -> Any:
    """The value of JSON; text that only begins like JSON may be YAML in flow style. Raises ValueError."""
    try:
        value = json.loads(data, object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_float)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        return read_document(data)
    if b"\\u" in data:
        _check_surrogates(value)
    return value


def read_document(data: bytes) -> Any:
    """The value of YAML that is one document. Raises ValueError with a sentence."""
    found = list(read_documents(data))
    if len(found) != 1:
        raise ValueError("one object is expected")
    (document,) = found
    if isinstance(document, Fault):
        raise ValueError(document.message)
    for fault in document.faults:
        raise ValueError(fault.message)
    return document.value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = max(Counter(name for name, _ in pairs).items(), key=itemgetter(1))[0]
        raise ValueError(f"the key {json.dumps(twice[:100])} stands twice")
    return made


def _int(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is too large, or is none")
    return value


def _check_surrogates(value: Any) -> None:
    """A half of a pair is no character: no text can hold it. Raises ValueError."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a \\u escape is half of a surrogate pair") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
