"""Library: the recordings that answer requests, each found by method, URL and body, in the order in which they came.

Requests are compared as tapes have them: masked, and without what differs from run to run (identifiers in the form of
UUIDs, dates and times, temporary folders, and the members that SDKs fill with such values).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from egressproxy.tapes.tape import Headers, Interaction, TapeError, boundary_of, counted, is_json, media_type, value_of

#: Members that clients fill anew in each run: traces of agents' SDKs, keys of idempotency, and who asks.
IGNORED: Final = (
    "$..trace_id", "$..span_id", "$..parent_id", "$..started_at", "$..ended_at", "$..timestamp", "$..nonce",
    "$..idempotency_key", "$..idempotencyKey", "$..request_id", "$..client_request_id", "$.metadata.user_id",
    "$..progressToken",
)  # fmt: skip
IGNORED_PARAMETERS: Final = ("_", "ts", "timestamp", "nonce", "request_id", "x-amz-date", "x-goog-date", "cachebust")
#: What says another value in each run, wherever it stands.
_CLOCK: Final = r"[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d\b))?"
_CHANGING: Final = (
    (re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(rf"(?<![\w-])\d{{4}}-\d\d-\d\d(?:{_CLOCK})?(?![\w-])"), "<time>"),
    (re.compile(r"(?:/[\w.-]{1,64}){0,8}/pytest-of-[\w.-]{1,64}/pytest-\d+\b"), "<tmp>"),
    (re.compile(r"/(?:var/)?tmp/tmp[a-z0-9_]{6,12}\b"), "<tmp>"),
)
_PATH: Final = re.compile(r"(\.\.|\.)([\w-]+|\*)|\[(\d+|\*)\]|\['([^']+)'\]")
_SHOWN: Final = 60

Step = tuple[bool, str | int]  # at any depth; a member, an index, or "*"


class Rules(NamedTuple):
    """In what requests may differ."""

    body: tuple[tuple[Step, ...], ...]
    query: frozenset[str]

    @classmethod
    def of(cls, ignore_body: Sequence[str] = (), ignore_query: Sequence[str] = ()) -> Rules:
        """IGNORED and IGNORED_PARAMETERS, with these JSON paths and parameters. Raises TapeError."""
        paths = tuple(map(_steps, (*IGNORED, *ignore_body)))
        return cls(paths, frozenset(each.lower() for each in (*IGNORED_PARAMETERS, *ignore_query)))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, masked, as it is compared."""

    method: str
    scheme: str
    host: str
    path: str
    query: tuple[tuple[str, str], ...]
    body: Any = field(repr=False)  # JSON, sorted pairs of a form, text, or bytes

    @classmethod
    def of(cls, rules: Rules, method: str, uri: str, headers: Headers, body: bytes) -> Asked:
        """The masked request, without what `rules` leave out."""
        parts = urlsplit(uri)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        query = sorted((name, steady(value)) for name, value in pairs if name.lower() not in rules.query)
        host = parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ":"))
        return cls(method, parts.scheme, host, steady(parts.path or "/"), tuple(query), _body(rules, headers, body))

    @property
    def key(self) -> str:
        """Equal for equal requests."""
        url = (self.method, self.scheme, self.host, self.path, self.query)
        return json.dumps((url, self.body), sort_keys=True, default=bytes.hex)


def steady(text: str) -> str:
    """The text without what changes from run to run."""
    for pattern, mark in _CHANGING:
        text = pattern.sub(mark, text)
    return text


def _body(rules: Rules, headers: Headers, body: bytes) -> Any:
    media = media_type(headers)
    if media.startswith("multipart/") and (boundary := boundary_of(value_of(headers, "content-type"))):
        body = body.replace(boundary, b"boundary")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if media == "application/x-www-form-urlencoded":
        return sorted([name, steady(value)] for name, value in parse_qsl(text, keep_blank_values=True))
    if is_json(media) or text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            for path in rules.body:
                _remove(value, path)
            return _steady_value(value)
    return steady(text)


def _steady_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_steady_value(each) for each in value]
    return steady(value) if isinstance(value, str) else value


# --- JSON paths ------------------------------------------------------------------------------------------------------
def _steps(path: str) -> tuple[Step, ...]:
    """The steps of a JSON path. Raises TapeError."""
    found = [*_PATH.finditer(path)]
    if not found or path != "$" + "".join(each.group() for each in found):
        raise TapeError(f"{path!r} is no JSON path: write one such as $.user, $.messages[*].id, or $..id for any depth")
    return tuple(
        (dots == "..", name or quoted or (int(index) if index.isdigit() else index))
        for dots, name, index, quoted in (each.groups() for each in found)
    )


def _remove(value: Any, steps: Sequence[Step]) -> None:
    if not isinstance(value, dict | list):
        return
    (is_deep, step), *rest = steps
    for key, each in [*(value.items() if isinstance(value, dict) else enumerate(value))][::-1]:
        if is_deep:
            _remove(each, steps)
        if step in ("*", key):
            if rest:
                _remove(each, rest)
            else:
                del value[key]


def differences(before: Any, after: Any, path: str = "$") -> Iterator[tuple[str, Any, Any]]:
    """Where two values of JSON differ: path, what was, and what is; `...` for nothing."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            inner = f"{path}.{key}" if re.fullmatch(r"[\w-]+", key) else f"{path}['{key}']"
            yield from differences(before.get(key, ...), after.get(key, ...), inner)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            was, now = (each[index] if index < len(each) else ... for each in (before, after))
            yield from differences(was, now, f"{path}[{index}]")
    elif before != after or (type(before) is not type(after) and bool in (type(before), type(after))):
        yield path, before, after


def shown(value: Any) -> str:
    """A value for people, in one line; of long texts the beginning."""
    if value is ...:
        return "nothing"
    text = repr(value) if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def first_difference(recorded: Asked, asked: Asked) -> str:
    """The first field in which two requests differ, as a sentence without an end."""
    for name in ("method", "scheme", "host", "path"):
        before, after = getattr(recorded, name), getattr(asked, name)
        if before != after:
            return f"{name} is {after}, the tape has {before}"
    was, now = dict(recorded.query), dict(asked.query)
    for key in dict.fromkeys((*was, *now)):
        if was.get(key, ...) != now.get(key, ...):
            return f"parameter {key} is {shown(now.get(key, ...))}, the tape has {shown(was.get(key, ...))}"
    for path, before, after in differences(recorded.body, asked.body):
        if isinstance(before, str) and isinstance(after, str) and before[:_SHOWN] == after[:_SHOWN]:
            begin = max(0, _common(before, after) - 20)
            before, after = f"…{before[begin:]}", f"…{after[begin:]}"
        return f"body {path} is {shown(after)}, the tape has {shown(before)}"
    return "nothing but the number of times that it was asked"


# --- the recordings ------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Recording:
    """A recording, and how often it was played."""

    interaction: Interaction
    asked: Asked
    played: int = 0


class Library:
    """The recordings of a folder. A repeated request gets the next recording of it, at the end the last one again;
    with `is_strict` each recording is played once.
    """

    def __init__(self, interactions: Sequence[Interaction], rules: Rules, *, is_strict: bool) -> None:
        self.rules = rules
        self._is_strict = is_strict
        self._by_key: dict[str, list[Recording]] = {}
        self.all: list[Recording] = []
        for each in interactions:
            asked = Asked.of(rules, each.method, each.uri, each.request_headers, each.request_body)
            self.all.append(made := Recording(each, asked))
            self._by_key.setdefault(asked.key, []).append(made)

    def find(self, asked: Asked) -> Recording | None:
        """The recording that answers this request, which counts as played; None: there is none (left)."""
        found = self._by_key.get(asked.key, [])
        chosen = next((each for each in found if not each.played), None)
        if chosen is None and found and (not self._is_strict or found[-1].interaction.is_open):
            chosen = found[-1]
        if chosen is not None:
            chosen.played += 1
        return chosen

    def why_missing(self, asked: Asked) -> str:
        """Why no recording answers: the first field in which the nearest one differs, and that one."""
        if again := self._by_key.get(asked.key):
            last = again[-1].interaction.title
            return f"it was recorded {counted(len(again), 'time')} and has been played as often (last: {last})"
        nearest = min(self.all, key=lambda each: _distance(each.asked, asked), default=None)
        if nearest is None:
            return "the tapes are empty"
        return f"{first_difference(nearest.asked, asked)} (nearest: {nearest.interaction.title})"


def _distance(recorded: Asked, asked: Asked) -> tuple[int, ...]:
    """The most different first; within one URL by the fields of the body."""
    is_same_url = recorded.host == asked.host and recorded.path == asked.path
    return (
        recorded.host != asked.host,
        recorded.path != asked.path,
        -_common(recorded.path, asked.path),
        recorded.method != asked.method,
        len(set(recorded.query) ^ set(asked.query)),
        sum(1 for _ in differences(recorded.body, asked.body)) if is_same_url else 0,
    )


def _common(one: str, other: str) -> int:
    """The characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
