"""Checks of tapes: what cannot be read, what should have been masked, and what servers answer differently today."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from egressproxy.tapes.masking import MARK, Masker
from egressproxy.tapes.tape import EVENTS, Headers, Interaction, TapeError, is_json, media_type, read

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Of a request that is sent again: the client writes these itself.
_OWN_FIELDS: Final = frozenset(("host", "content-length", "accept-encoding", "connection", "transfer-encoding"))
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_LIVE_S: Final = 60.0
_TYPES: Final = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The tapes among these, and in these folders and below. Raises TapeError."""
    found = [
        each
        for path in paths
        for each in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if each == path or (each.suffix in (".yaml", ".yml") and each.is_file())
    ]
    if not found:
        raise TapeError(f"{', '.join(map(str, paths))}: there is no tape")
    return found


def check_file(path: Path) -> tuple[list[Interaction], list[str]]:
    """The interactions of a tape, and sentences about what is wrong with it."""
    try:
        found = read(path)
    except TapeError as error:
        return [], [str(error)]
    problems = [each for one in found for each in secrets_in(one)]
    mode = path.stat().st_mode & 0o777
    if mode & 0o022:
        problems.append(f"{path}: mode {mode:o} lets others write the file")
    return found, problems


def secrets_in(found: Interaction) -> Iterator[str]:
    """What a recording would mask."""
    masked = Masker().interaction(found)
    for each in fields(found):
        before, after = getattr(found, each.name), getattr(masked, each.name)
        if before == after:
            continue
        message, _, part = each.name.rpartition("_")
        place = f"{message or ('request' if part == 'uri' else 'response')}.{part}"
        if part == "headers":
            changed = dict.fromkeys(name for (name, was), (_, now) in zip(before, after, strict=True) if was != now)
            place += f" ({', '.join(changed)})"
        yield f"{found.title}: {place} has what a recording masks"


# --- what servers answer today ---------------------------------------------------------------------------------------
def header_of(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """A field as an option has it, `Name: value`; $NAME in the value stands for a variable. Raises TapeError."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[\w-]+", name.strip()):
        raise TapeError("write the field as 'Name: value', such as 'Authorization: Bearer $OPENAI_API_KEY'")
    try:
        made = _VARIABLE.sub(lambda found: environment[found.group(1) or found.group(2)], value.strip())
    except KeyError as error:
        raise TapeError(f"there is no variable {error.args[0]} in the environment") from None
    return name.strip().lower(), made


def is_to(found: Interaction, host: str) -> bool:
    """Whether the request goes to this host, of any port or of that of `host`."""
    parts = urlsplit(found.uri)
    return host.lower() in (parts.hostname, f"{parts.hostname}:{parts.port}")


async def drift(session: ClientSession, found: Interaction, headers: Headers) -> list[str]:
    """Send the request again, with these fields in place of masked ones, and compare the answers. In plain HTTP the
    fields are not sent.
    """
    from aiohttp import ClientError, ClientTimeout

    given = headers if found.uri.startswith("https:") else []
    left_out = _OWN_FIELDS.union(name for name, _ in headers)
    asked = [each for each in found.request_headers if each[0].lower() not in left_out and MARK not in each[1]]
    try:
        async with session.request(
            found.method, found.uri, headers=[*asked, *given], data=found.request_body or None,
            allow_redirects=False, timeout=ClientTimeout(_LIVE_S),
        ) as answer:  # fmt: skip
            changes = answer_changes(found, answer.status, [*answer.headers.items()], await answer.read())
            return [f"{found.title}: {each}" for each in changes]
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        return [f"{found.title}: there is no answer: {type(error).__name__}: {error}"]


def answer_changes(found: Interaction, status: int, headers: Headers, body: bytes) -> Iterator[str]:
    """In what an answer differs from the recorded one: status, type, names of fields, and the shape of JSON."""
    if found.status != status:
        yield f"status is {status}, the tape has {found.status}"
    if media_type(found.headers) != media_type(headers):
        yield f"content-type is {media_type(headers) or 'missing'}, the tape has {media_type(found.headers) or 'none'}"
        return
    before, after = shape(found.headers, found.body), shape(headers, body)
    for path in dict.fromkeys((*before, *after)):
        was, now = before.get(path, set()), after.get(path, set())
        if not was:
            yield f"{path} is new: {_words(now)}"
        elif not now:
            yield f"{path} is gone: the tape has {_words(was)}"
        elif not now & was and now | was != {"null"}:
            yield f"{path} is {_words(now)}, the tape has {_words(was)}"


def _words(types: set[str]) -> str:
    return " or ".join(sorted(types))


def shape(headers: Headers, body: bytes) -> dict[str, set[str]]:
    """The paths of a body of JSON, or of the events of a stream by their type, each with the types of its values."""
    found: dict[str, set[str]] = {}
    with suppress(ValueError, RecursionError):
        if is_json(media_type(headers)):
            _add(found, "$", json.loads(body))
    for event in re.split(r"\r?\n\r?\n", body.decode("utf-8", "replace")) if media_type(headers) == EVENTS else ():
        lines = [line.partition(":")[::2] for line in event.splitlines()]
        with suppress(ValueError, RecursionError):
            value = json.loads("\n".join(value for name, value in lines if name == "data"))
            kind = next((value.strip() for name, value in lines if name == "event"), "")
            if not kind and isinstance(value, dict):
                kind = value.get("type") or value.get("object") or ""
            _add(found, f"event {kind or 'message'} $", value)
    return found


def _add(found: dict[str, set[str]], path: str, value: Any) -> None:
    found.setdefault(path, set()).add(_TYPES.get(type(value), "null"))
    for key, each in value.items() if isinstance(value, dict) else ():
        _add(found, f"{path}.{key}", each)
    for each in value if isinstance(value, list) else ():
        _add(found, f"{path}[*]", each)
