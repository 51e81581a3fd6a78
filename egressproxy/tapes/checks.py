"""Checks of tapes: what cannot be read, what should have been masked, and what servers answer differently today."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from egressproxy.tapes.masking import Masker
from egressproxy.tapes.tape import Headers, Interaction, TapeError, is_json, media_type, read

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Of a request that is sent again: the client writes these itself.
_OWN_FIELDS: Final = frozenset(("host", "content-length", "accept-encoding", "connection", "transfer-encoding"))
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_LIVE_S: Final = 60.0
_MAX_ANSWER: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """`where` is a file, with the number of an interaction, and what was asked; `what` is a sentence about it."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def files_of(paths: tuple[Path, ...]) -> list[Path]:
    """The tapes among these, and in these folders and below. Raises TapeError."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.rglob("*") if each.suffix in (".yaml", ".yml") and each.is_file())
        else:
            found.append(path)
    if not found:
        raise TapeError(f"{', '.join(map(str, paths))}: there is no tape")
    return found


def secrets_in(found: Interaction) -> Iterator[Finding]:
    """What a recording would mask."""
    masked = Masker().interaction(found)
    for name in ("uri", "request_headers", "request_body", "headers", "body"):
        before, after = getattr(found, name), getattr(masked, name)
        if before == after:
            continue
        place = {"uri": "request.uri", "request_headers": "request.headers", "request_body": "request.body"}.get(name)
        fields = ""
        if isinstance(before, list):
            changed = [each[0] for each, other in zip(before, after, strict=True) if each != other]
            fields = f" ({', '.join(dict.fromkeys(changed))})"
        yield Finding(found.title, f"{place or f'response.{name}'}{fields} has what a recording masks")


def check_file(path: Path) -> tuple[list[Interaction], list[Finding]]:
    """The interactions of a tape, and what is wrong with it."""
    try:
        found = read(path)
    except TapeError as error:
        return [], [Finding(str(path), str(error).removeprefix(f"{path}: "))]
    problems = [each for one in found for each in secrets_in(one)]
    mode = path.stat().st_mode & 0o777
    if mode & 0o022:
        problems.append(Finding(str(path), f"mode {mode:o} lets others write the file"))
    return found, problems


# --- what servers answer today ---------------------------------------------------------------------------------------
def header_of(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """A field as an option has it, `Name: value`; $NAME in the value stands for a variable. Raises TapeError."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[\w-]+", name.strip()):
        raise TapeError("write the field as 'Name: value', such as 'Authorization: Bearer $OPENAI_API_KEY'")

    def variable(found: re.Match[str]) -> str:
        key = found.group(1) or found.group(2)
        if key not in environment:
            raise TapeError(f"there is no variable {key} in the environment")
        return environment[key]

    return name.strip().lower(), _VARIABLE.sub(variable, value.strip())


async def drift(session: ClientSession, found: Interaction, headers: Headers) -> list[Finding]:
    """Send the request again, with these fields in place of masked ones, and compare the answers."""
    from aiohttp import ClientError, ClientTimeout

    ours = {name for name, _ in headers}
    asked = [
        (name, value)
        for name, value in found.request_headers
        if name not in _OWN_FIELDS and name not in ours and "[SECRET]" not in value
    ]
    try:
        async with session.request(
            found.method, found.uri, headers=[*asked, *headers], data=found.request_body or None,
            allow_redirects=False, timeout=ClientTimeout(_LIVE_S),
        ) as answer:  # fmt: skip
            body = await answer.content.read(_MAX_ANSWER)
            while more := await answer.content.read(_MAX_ANSWER):
                body += more
                if len(body) > _MAX_ANSWER:
                    return [Finding(found.title, "the answer has more than 64 MiB")]
            now = [(name.lower(), value) for name, value in answer.headers.items()]
            status = answer.status
    except (ClientError, TimeoutError, OSError) as error:
        return [Finding(found.title, f"there is no answer: {type(error).__name__}: {error}")]
    return [Finding(found.title, each) for each in answer_changes(found, status, now, body)]


def answer_changes(found: Interaction, status: int, headers: Headers, body: bytes) -> Iterator[str]:
    """In what an answer differs from the recorded one: status, type, names of fields, and the shape of JSON."""
    if found.status != status:
        yield f"status is {status}, the tape has {found.status}"
    if media_type(found.headers) != media_type(headers):
        yield f"content-type is {media_type(headers) or 'missing'}, the tape has {media_type(found.headers) or 'none'}"
        return
    before, after = shape(found.headers, found.body), shape(headers, body)
    for path in dict.fromkeys((*before, *after)):
        was, now = before.get(path), after.get(path)
        if was is None:
            yield f"{path} is new: {_words(now)}"
        elif now is None:
            yield f"{path} is gone: the tape has {_words(was)}"
        elif not now & was and now | was != {"null"}:
            yield f"{path} is {_words(now)}, the tape has {_words(was)}"


def _words(types: set[str] | None) -> str:
    return " or ".join(sorted(types or ()))


def shape(headers: Headers, body: bytes) -> dict[str, set[str]]:
    """The paths of a body of JSON, or of the events of a stream by their type, each with the types of its values."""
    found: dict[str, set[str]] = {}
    media = media_type(headers)
    if is_json(media):
        _add(found, "$", _read(body))
    elif media == "text/event-stream":
        for event in re.split(rb"\r?\n\r?\n", body):
            lines = [line.partition(b":")[::2] for line in event.splitlines()]
            data = b"\n".join(value.strip() for name, value in lines if name == b"data")
            name = next((value.strip().decode("latin-1") for key, value in lines if key == b"event"), "")
            value = _read(data)
            kind = name or (value.get("type") or value.get("object") if isinstance(value, dict) else "")
            if data and value is not ...:
                _add(found, f"event {kind or 'message'} $", value)
    return found


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return ...


def _add(found: dict[str, set[str]], path: str, value: Any) -> None:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    if value is not ...:
        found.setdefault(path, set()).add(names.get(type(value), "null"))
    if isinstance(value, dict):
        for key, each in value.items():
            _add(found, f"{path}.{key}", each)
    elif isinstance(value, list):
        for each in value:
            _add(found, f"{path}[*]", each)


def secret_fields(found: Interaction) -> list[str]:
    """The fields of the request that have to be given for a live check, since they are masked."""
    return [name for name, value in found.request_headers if "[SECRET]" in value]
