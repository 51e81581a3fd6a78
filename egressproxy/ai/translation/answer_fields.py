"""Reading what providers send. A field of the wrong type is a `BadAnswer`, and one that is new is let be."""

from __future__ import annotations

import secrets
from typing import Any, Final

from egressproxy.ai.translation.conversation import Usage
from egressproxy.ai.translation.errors import BadAnswer

#: What ids of answers begin with. The same id begins with another word in each API.
_PREFIXES: Final = ("chatcmpl-", "resp_", "msg_")


def text(value: dict[str, Any], name: str) -> str | None:
    """A string, or None."""
    found = value.get(name)
    if found is not None and type(found) is not str:
        raise BadAnswer(f"{name} is not a string")
    return found


def needed_text(value: dict[str, Any], name: str) -> str:
    """A string that has to be there."""
    found = value.get(name)
    if type(found) is not str:
        raise BadAnswer(f"{name} is missing, or is not a string")
    return found


def count(value: dict[str, Any], name: str) -> int:
    """A whole number; 0 if it is not there. Some servers write 3.0 for 3."""
    found = value.get(name)
    if found is None:
        return 0
    if type(found) is float and 0 <= found < 2**53:
        return int(found)
    if type(found) is not int or found < 0:
        raise BadAnswer(f"{name} is not a count")
    return found


def needed_count(value: dict[str, Any], name: str) -> int:
    """A whole number that has to be there."""
    if value.get(name) is None:
        raise BadAnswer(f"{name} is missing")
    return count(value, name)


def object_in(value: dict[str, Any], name: str) -> dict[str, Any]:
    """An object; an empty one if it is not there."""
    found = value.get(name)
    if found is None:
        return {}
    if type(found) is not dict:
        raise BadAnswer(f"{name} is not an object")
    return found


def objects_in(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """An array of objects; an empty one if it is not there."""
    found = value.get(name)
    if found is None:
        return []
    if type(found) is list:
        for one in found:
            if type(one) is not dict:
                break
        else:
            return found
    raise BadAnswer(f"{name} is not an array of objects")


def no_more_than(value: dict[str, Any], name: str, *harmless: Any) -> None:
    """Content that no other API has a form for: it must not be there."""
    found = value.get(name)
    if found is not None and found not in harmless:
        raise BadAnswer(f"the answer has {name}, which the client's API has no form for")


def of_no_form(what: str, kind: Any) -> BadAnswer:
    """The error for content of a type that the client's API has no form for, or that nobody here knows."""
    return BadAnswer(f"{what} of type {str(kind)[:80]!r}, which the client's API has no form for")


def seconds(value: dict[str, Any], name: str) -> int | None:
    """A time in whole seconds since 1970; None if it is not there."""
    found = value.get(name)
    return int(found) if isinstance(found, int | float) and 0 < found < 1e11 else None


def id_in(value: dict[str, Any], prefix: str) -> str:
    """The id, or one that is made up: some servers write none, and clients need one to answer to."""
    return text(value, "id") or prefix + secrets.token_hex(12)


def content_in(value: dict[str, Any]) -> str:
    """A string, or an array of parts that are texts, as some servers have it; how the model has thought is left out."""
    if type(value.get("content")) is not list:
        return text(value, "content") or ""
    texts = []
    for part in objects_in(value, "content"):
        kind = text(part, "type")
        if kind in ("text", "output_text", None):
            texts.append(needed_text(part, "text"))
        elif kind not in ("thinking", "reasoning"):
            raise of_no_form("content has a part", kind)
    return "".join(texts)


def without_prefix(id_: str) -> str:
    """An id of an answer without the word of its API; whatever follows is the same in all of them."""
    for prefix in _PREFIXES:
        if id_.startswith(prefix):
            return id_[len(prefix) :]
    return id_


def openai_usage(usage: dict[str, Any], asked: str, answered: str) -> Usage:
    """The tokens of an answer of OpenAI. Their names begin with `asked` (prompt or input) and `answered` (completion or
    output). Raises BadAnswer.
    """
    details = object_in(usage, f"{asked}_tokens_details")
    return Usage(
        count(usage, f"{asked}_tokens"),
        count(usage, f"{answered}_tokens"),
        count(details, "cached_tokens"),
        count(details, "cache_write_tokens"),
        count(object_in(usage, f"{answered}_tokens_details"), "reasoning_tokens"),
    )
