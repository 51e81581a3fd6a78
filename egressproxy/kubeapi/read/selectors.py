"""Label and field selectors. Source: Kubernetes, Labels and Selectors (grammar), and Field Selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from egressproxy.admin.status import bad_request

Predicate = Callable[[Mapping[str, Any]], bool]

_KEY: Final = r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?"
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})", re.ASCII)
_EQUALS: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})", re.ASCII)
_ORDER: Final = re.compile(rf"({_KEY})\s*([<>])\s*(-?\d{{1,18}})", re.ASCII)
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)", re.ASCII)
_FIELD: Final = re.compile(r"([A-Za-z][\w.]*)(==|=|!=)(.*)", re.ASCII | re.DOTALL)
#: A requirement, up to a comma outside of parentheses. No part after it can fail, so each byte is read once.
_PART: Final = re.compile(r"(?:[^,(]++|\([^()]*+\)?+)+")
#: The most requirements, each of which is checked for each object.
MAX_REQUIREMENTS: Final = 100


def label_selector(text: str) -> Predicate | None:
    """A predicate on manifests; None if it selects all objects. Raises ApiError(400)."""
    tests = [_label_test(part) for part in _bounded(map(str.strip, _PART.findall(text)))]
    if not tests:
        return None

    def holds(manifest: Mapping[str, Any]) -> bool:
        labels = (manifest.get("metadata") or {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return holds


def field_selector(text: str, fields: Collection[str]) -> Predicate | None:
    """The same for `metadata.name=x,…`; `fields` are those that may be selected by. Raises ApiError(400)."""
    tests = []
    for part in _bounded(re.split(r"(?<!\\),", text)):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: {part!r}; write field=value or field!=value")
        path, operator, value = match.groups()
        if path not in fields:
            raise bad_request(f'field label not supported: "{path}"; supported are {", ".join(sorted(fields))}')
        tests.append((path.split("."), operator == "!=", re.sub(r"\\(.)", r"\1", value)))
    if not tests:
        return None
    return lambda manifest: all((_text_at(manifest, path) != value) is differs for path, differs, value in tests)


def _text_at(manifest: Mapping[str, Any], path: list[str]) -> str:
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if path == ["source"] and isinstance(value, Mapping):
        value = value.get("component")
    return "" if value is None else str(value)


def _bounded(texts: Iterable[str]) -> list[str]:
    """The non-empty requirements. Raises ApiError(400) for too many."""
    parts = list(filter(None, texts))
    if len(parts) > MAX_REQUIREMENTS:
        raise bad_request(f"the selector has {len(parts)} requirements; {MAX_REQUIREMENTS} are served")
    return parts


def _label_test(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _EQUALS.fullmatch(part) or _SET.fullmatch(part):
        key, operator, values = match.groups()  # one value is a set, too
        accepted = {each.strip() for each in values.split(",")}
        if not all(re.fullmatch(_VALUE, each, re.ASCII) for each in accepted):
            raise bad_request(f"unable to parse requirement: {part!r}")
        is_out = operator in ("!=", "notin")
        return lambda labels: (labels.get(key) in accepted) is not is_out
    if match := _ORDER.fullmatch(part):
        key, operator, bound = match.groups()
        return lambda labels: _is_beyond(labels.get(key), operator, int(bound))
    if match := _EXISTS.fullmatch(part):
        absent, key = match.groups()
        return lambda labels: (key in labels) is not bool(absent)
    raise bad_request(f"unable to parse requirement: {part!r}; write key=value, key!=value, key in (a,b), key or !key")


def _is_beyond(value: str | None, operator: str, bound: int) -> bool:
    if value is None or not re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return False
    return int(value) > bound if operator == ">" else int(value) < bound
