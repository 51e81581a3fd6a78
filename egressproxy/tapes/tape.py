"""Tape: recorded exchanges of one host in a YAML file that people read, and that vcrpy loads.

Format: that of vcrpy, version 1. What vcrpy does not know stands under `egressproxy` of an interaction, which it does
not read: when the exchange began, how long it took, the content coding of bodies, the time of each event of a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

import yaml

from egressproxy.model.fields import TOKEN
from egressproxy.model.strict_json import Unreadable, loads_strictly
from egressproxy.net.durable_file import replace_file
from egressproxy.protocols.http1.writer import PHRASES

#: What would not come back as it was from a block of lines.
_NOT_IN_A_BLOCK: Final = re.compile(
    "[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_JSON: Final = re.compile(r"application/(?:[\w.-]+\+)?json|text/json", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
#: In characters, of the host in the name of a file.
_MAX_NAME: Final = 200
#: Of a wrong value in messages.
_SHOWN: Final = 80
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HEAD: Final = "version: 1\ninteractions:\n"

EVENTS: Final = "text/event-stream"
Headers = list[tuple[str, str]]


class TapeError(ValueError):
    """A tape that cannot be read or written; the message names the file and the place."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """A request and its response, without content codings and without secrets.

    `began` is ISO 8601, `took` in seconds. `coding` is that of the response on the wire, "" for none. `events` are the
    times, in seconds behind the head, at which the events of a stream were complete. `is_open`: the client ended the
    response, whose end is not known. `file` and `number` (from 1) say where it is on disk.
    """

    method: str
    uri: str
    request_headers: Headers
    request_body: bytes = field(repr=False)
    status: int
    phrase: str
    headers: Headers
    body: bytes = field(repr=False)
    began: str = ""
    took: float = 0.0
    coding: str = ""
    events: tuple[float, ...] = ()
    is_open: bool = False
    file: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)

    @property
    def title(self) -> str:
        """For people: what was asked, and where it is."""
        where = f" ({self.file}, interaction {self.number})" if self.file else ""
        return f"{self.method} {self.uri}{where}"

    def readable(self) -> Interaction:
        """With JSON in lines, unless a client may compare the response with a digest."""
        asked = _readable(self.request_body, media_type(self.request_headers))
        has_digest = any(name.endswith("digest") for name, _ in self.headers)
        body = self.body if has_digest else _readable(self.body, media_type(self.headers))
        return replace(self, request_body=asked, body=body)


def media_type(headers: Headers) -> str:
    return value_of(headers, "content-type").partition(";")[0].strip().lower()


def value_of(headers: Headers, name: str) -> str:
    """The first value of this field (lower case), or ""."""
    return next((value for each, value in headers if each.lower() == name), "")


def is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def boundary_of(content_type: str) -> bytes:
    """What parts a body of multipart, or b""."""
    found = re.search(r"boundary=\"?([^\";]+)", content_type, re.IGNORECASE)
    return b"" if found is None else found.group(1).encode()


def file_name(uri: str) -> str:
    """The file of the tape with this URI: its host, with a port that is not the usual one."""
    parts = urlsplit(uri)
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"_{parts.port}"
    host = re.sub(r"[^a-z0-9._-]", "_", (parts.hostname or "").lower()).lstrip(".") or "unknown"
    if len(host) > _MAX_NAME:
        host = f"{host[:_MAX_NAME]}-{crc32(host.encode()):08x}"
    return f"{host}{port}.yaml"


def checked_uri(uri: Any) -> str:
    """The URI of a request. Raises ValueError for what is none of http or https."""
    parts = urlsplit(str(uri))
    if not isinstance(uri, str) or parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.port == 0:
        raise ValueError(f"request.uri is {shortened(uri)}: write a URL of http or https")
    return uri


def _readable(body: bytes, media: str) -> bytes:
    """JSON in lines, if that says the same; any other body as it is."""
    try:
        value = loads_strictly(body) if is_json(media) else None
    except Unreadable:
        return body
    return json.dumps(value, indent=2, ensure_ascii=False).encode() if isinstance(value, dict | list) else body


class _Text(str):
    """Text that is written as a block of lines."""


class _Line(list[Any]):
    """A list that is written in one line."""


class _Dumper(yaml.CSafeDumper):
    pass


class _Loader(yaml.CSafeLoader):
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuses `<<`, by which a few lines become a mapping that is longer than memory."""


_Dumper.add_representer(_Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), "|"))
_Dumper.add_representer(
    _Line, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def written(found: Interaction) -> str:
    """The interaction as an entry of the list `interactions`."""
    events = _Line(round(each, 3) for each in found.events)
    extra = {"coding": found.coding, "events": events, "open": found.is_open}
    entry = {
        "request": {
            "method": found.method,
            "uri": found.uri,
            "body": _value(found.request_body) if found.request_body else None,
            "headers": _mapping(found.request_headers),
        },
        "response": {
            "status": {"code": found.status, "message": found.phrase},
            "headers": _mapping(found.headers),
            "body": {"string": _value(found.body)},
        },
        "egressproxy": {
            "began": found.began,
            "took": round(found.took, 3),
            **{name: each for name, each in extra.items() if each},
        },
    }
    dumped: str = yaml.dump([entry], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return dumped.removesuffix("...\n")  # behind what ends with an empty line: other entries follow


def _value(body: bytes) -> str | bytes:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if "\x00" in text:
        return body
    return text if "\n" not in text or _NOT_IN_A_BLOCK.search(text) is not None else _Text(text)


def _mapping(headers: Headers) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, _Line()).append(value)
    return found


def write(path: Path, entries: Iterable[str]) -> None:
    """Replace the tape by these entries, as `written` has them; nobody else may read it. Raises OSError."""
    replace_file(path, (_HEAD + "".join(entries)).encode())


def tapes_in(folder: Path) -> list[Path]:
    """The files of a folder, in order. Raises TapeError where there is no such folder."""
    if not folder.is_dir():
        raise TapeError(f"{folder}: there is no such folder; record tapes into it with --record")
    return sorted(each for each in folder.iterdir() if each.suffix in (".yaml", ".yml") and each.is_file())


def read_folder(folder: Path) -> list[Interaction]:
    """All interactions of a folder's tapes. Raises TapeError."""
    return [each for path in tapes_in(folder) for each in read(path)]


def read(path: Path) -> list[Interaction]:
    """The interactions of a tape, also of one that vcrpy has written. Raises TapeError."""
    try:
        data = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 (a safe loader)
    except OSError as error:
        raise TapeError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise TapeError(f"{path}: its values are too deep") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:  # as of `!!bool x`
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise TapeError(f"{path}{where}: this is not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("interactions", 0), list | None):
        raise TapeError(f"{path}: this is no tape: it has no list `interactions`")
    if data.get("version") != 1:
        raise TapeError(f"{path}: version is {shortened(data.get('version'))}; tapes have version 1")
    found = []
    for number, entry in enumerate(data.get("interactions") or [], 1):
        with told_at(f"{path}: interaction {number}"):
            found.append(_interaction(entry, str(path), number))
    return found


@contextmanager
def told_at(place: str) -> Iterator[None]:
    """Raises TapeError, with the place, for what an entry lacks or has wrong."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TapeError(f"{place}: {why}") from None


def _interaction(entry: Any, file: str, number: int) -> Interaction:
    request, response, extra = entry["request"], entry["response"], entry.get("egressproxy") or {}
    status = response["status"]
    code = status["code"]
    if not isinstance(code, int) or not 200 <= code <= 599:
        raise ValueError(f"response.status.code is {shortened(code)}: write a number from 200 to 599")
    return Interaction(
        scalar(request["method"]), checked_uri(request["uri"]), _pairs(request.get("headers")),
        _bytes(request.get("body"), "request.body"),
        code, scalar(status.get("message")) or PHRASES.get(code, b"").decode(), _pairs(response.get("headers")),
        _bytes((response.get("body") or {}).get("string"), "response.body.string"),
        scalar(extra.get("began")), float(extra.get("took", 0.0)), scalar(extra.get("coding")),
        tuple(map(float, extra.get("events", ()))), bool(extra.get("open", False)), file, number,
    )  # fmt: skip


def checked_field(name: Any, value: Any) -> tuple[str, str]:
    """A field that HTTP allows. Raises ValueError."""
    if not isinstance(name, str) or not TOKEN.fullmatch(name.encode()):
        raise ValueError(f"field {shortened(name)} has a name that HTTP does not allow")
    return name, scalar(value)


def scalar(value: Any) -> str:
    """Text in one line; a list that repeats others by aliases may be longer than memory. Raises ValueError."""
    if (
        isinstance(value, dict | list | bytes)
        or _CONTROL.search(text := "" if value is None else str(value)) is not None
    ):
        raise ValueError(f"{shortened(value)} is no text of one line")
    return text


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(value: Any) -> str:
    return repr(value)[:_SHOWN] if isinstance(value, str | int | float | None) else type(value).__name__


def _bytes(value: Any, where: str) -> bytes:
    if value is None or isinstance(value, bytes):
        return value or b""
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"{where} is {type(value).__name__}: write text, or !!binary")


def _pairs(headers: Any) -> Headers:
    listed = ((name, each if isinstance(each, list) else [each]) for name, each in (headers or {}).items())
    return [checked_field(name, value) for name, values in listed for value in values]
