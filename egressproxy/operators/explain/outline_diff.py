"""Outline diff: what a configuration has added, removed and changed, object by object and field by field, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, Final

from egressproxy.operators.explain.outline import Outline

#: What may be a credential in a line: what a field or parameter with a telling name has, in a filter's config (JSON) or
#: to the end of the line of a match; user and password of a URL.
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_MAY_BE_SECRET: Final = re.compile(
    r'(?i)(?P<before>"(?:values?|[^"]*(?:auth|cookie|credential|key|passw|secret|token)[^"]*)":|\bvalue: |://)'
    rf'(?P<text>(?<=":)(?:{_STRING}|\[{_STRING}(?:,{_STRING})*\])|(?<=value: ).+|(?<=://)[^/@\s]+(?=@))'
)
#: Without it somebody could try which short text has a digest.
_KEY: Final = token_bytes(16)


def compare(old: Outline, new: Outline) -> dict[str, Any]:
    """Returns `added` and `removed` objects with their fields, and `changed` by object and field, with `old` and `new`
    (None: the field is not there).
    """
    changed = {}
    for name in old:
        if name in new and old[name] != new[name]:
            before, after = old[name], new[name]
            changed[name] = {
                path: {"old": before.get(path), "new": after.get(path)}
                for path in dict.fromkeys((*before, *after))
                if before.get(path) != after.get(path)
            }
    return {
        "added": {name: values for name, values in new.items() if name not in old},
        "removed": {name: values for name, values in old.items() if name not in new},
        "changed": changed,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """One line for each difference: `+` new, `-` gone, `~` changed, `!` a decision that flips."""
    for sign, kind in (("-", "removed"), ("+", "added")):
        for name, values in found[kind].items():
            yield f"{sign} {name}"
            for path, value in values.items():
                yield f"  {sign} {path}: {_text(value)}"
    for name, values in found["changed"].items():
        yield f"~ {name}"
        for path, value in values.items():
            yield from _field(path, value["old"], value["new"])
    for each in found.get("flips", ()):
        yield _flip(each)
    if "replayed" in found:
        count = len(found["flips"])
        yield f"{found['replayed']} recent decisions were made again; {count or 'none'} of them would change"


def _field(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list) and sorted(old) != sorted(new):
        yield from (f"  - {path}: {value}" for value in old if value not in new)
        yield from (f"  + {path}: {value}" for value in new if value not in old)
    elif old is None:
        yield f"  + {path}: {_text(new)}"
    elif new is None:
        yield f"  - {path}: {_text(old)}"
    else:
        yield f"  ~ {path}: {_text(old)} -> {_text(new)}"


def _flip(each: Mapping[str, Any]) -> str:
    path = "" if each["method"] in ("-", "CONNECT") else each["path"]
    identity = "" if each["namespace"] == "-" else f" as {each['namespace']}/{each['serviceAccount']}"
    before, after = (
        each[when] if each[f"{when}Reason"] == "-" else f"{each[when]} ({each[f'{when}Reason']})"
        for when in ("before", "after")
    )
    sure = "" if each["isSure"] else " (not certain: it depends on headers or addresses)"
    where = f"{each['gateway']}/{each['listener']}"
    return f"! {each['method']} {each['authority']}{path}{identity} on {where}: {before} -> {after}{sure}"


def _text(value: Any) -> str:
    text = "; ".join(value) if isinstance(value, list) else str(value)
    return text or "none"


def masked(line: str) -> str:
    """The line with digests in place of what may be a credential, which differ where that does."""

    def digest(found: re.Match[str]) -> str:
        text = found["text"].encode("utf-8", "backslashreplace")
        return f"{found['before']}digest {blake2b(text, digest_size=8, key=_KEY).hexdigest()}"

    return _MAY_BE_SECRET.sub(digest, line)
