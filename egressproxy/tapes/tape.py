"""Tape: recorded exchanges of one host in a YAML file that people read, and that vcrpy loads.

Format: that of vcrpy, version 1. What vcrpy does not know stands under `egressproxy` of an interaction, which it does
not read: when the exchange began, how long it took, the content coding of bodies, the time of each event of a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from egressproxy.model.fields import TOKEN
from egressproxy.net.durable_file import replace_file

_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What would not come back as it was from a block of lines.
_NOT_IN_A_BLOCK: Final = re.compile(
    "[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_JSON: Final = re.compile(r"application/(?:[\w.-]+\+)?json|text/json", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HEAD: Final = "version: 1\ninteractions:\n"

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

    @property
    def host(self) -> str:
        return urlsplit(self.uri).netloc.lower()

    @property
    def is_stream(self) -> bool:
        return media_type(self.headers) == "text/event-stream"


def media_type(headers: Headers) -> str:
    return value_of(headers, "content-type").partition(";")[0].strip().lower()


def value_of(headers: Headers, name: str) -> str:
    """The first value of this field (lower case), or ""."""
    return next((value for each, value in headers if each.lower() == name), "")


def is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def file_name(uri: str) -> str:
    """The file of the tape with this URI: its host, with a port that is not the usual one."""
    parts = urlsplit(uri)
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"_{parts.port}"
    return re.sub(r"[^a-z0-9._-]", "_", (parts.hostname or "unknown").lower()).lstrip(".") + port + ".yaml"


def _readable(body: bytes, media: str) -> bytes:
    """JSON in lines, if that says the same; any other body as it is."""
    if not is_json(media):
        return body
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_refuse)
        lines = json.dumps(value, indent=2, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return body
    return lines if body.strip()[:1] in (b"{", b"[") else body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a member twice")
    return dict(pairs)


def _refuse(text: str) -> Any:
    raise ValueError(text)


class _Text(str):
    """Text that is written as a block of lines."""


class _Line(list[Any]):
    """A list that is written in one line."""


class _Dumper(_DUMPER):  # type: ignore[misc,valid-type]
    pass


_Dumper.add_representer(_Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), "|"))
_Dumper.add_representer(
    _Line, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def written(found: Interaction) -> str:
    """The interaction as an entry of the list `interactions`."""
    extra: dict[str, Any] = {"began": found.began, "took": round(found.took, 3)}
    if found.coding:
        extra["coding"] = found.coding
    if found.events:
        extra["events"] = _Line(round(each, 3) for each in found.events)
    if found.is_open:
        extra["open"] = True
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
        "egressproxy": extra,
    }
    dumped: str = yaml.dump([entry], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return dumped.removesuffix("...\n")  # behind what ends with an empty line: other entries follow


def _value(body: bytes) -> str | bytes:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if "\x00" in text or (_NOT_IN_A_BLOCK.search(text) is not None and text.count("\n") < len(text) // 400):
        return body if "\x00" in text else text
    return text if _NOT_IN_A_BLOCK.search(text) is not None or "\n" not in text else _Text(text)


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
        return parsed(path.read_bytes(), path)
    except OSError as error:
        raise TapeError(f"{path}: {error.strerror or error}") from None


def parsed_entries(entries: Iterable[str], path: Path) -> list[Interaction]:
    """The interactions of these entries, as `written` has them."""
    return parsed((_HEAD + "".join(entries)).encode(), path)


def parsed(text: bytes, path: Path) -> list[Interaction]:
    """The interactions of the text of a tape. Raises TapeError."""
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 (a safe loader)
    except RecursionError:
        raise TapeError(f"{path}: its values are too deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise TapeError(f"{path}{where}: this is not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("interactions", 0), list | None):
        raise TapeError(f"{path}: this is no tape: it has no list `interactions`")
    if data.get("version") != 1:
        raise TapeError(f"{path}: version is {data.get('version')!r}; tapes have version 1")
    return list(_interactions(path, data.get("interactions") or []))


def _interactions(path: Path, entries: Sequence[Any]) -> Iterator[Interaction]:
    for number, entry in enumerate(entries, 1):
        try:
            yield _interaction(entry, str(path), number)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise TapeError(f"{path}: interaction {number}: {why}") from None


def _interaction(entry: Any, file: str, number: int) -> Interaction:
    request, response, extra = entry["request"], entry["response"], entry.get("egressproxy") or {}
    status = response["status"]
    code = status["code"]
    if not isinstance(code, int) or not 200 <= code <= 599:
        raise ValueError(f"response.status.code is {code!r}: write a number from 200 to 599")
    uri = request["uri"]
    if urlsplit(uri).scheme not in _DEFAULT_PORTS or not urlsplit(uri).hostname:
        raise ValueError(f"request.uri is {uri!r}: write a URL of http or https")
    return Interaction(
        str(request["method"]), uri, _pairs(request.get("headers")), _bytes(request.get("body"), "request.body"),
        code, str(status.get("message") or _phrase(code)), _pairs(response.get("headers")),
        _bytes((response.get("body") or {}).get("string"), "response.body.string"),
        str(extra.get("began", "")), float(extra.get("took", 0.0)), str(extra.get("coding", "")),
        tuple(float(each) for each in extra.get("events", ())), bool(extra.get("open", False)), file, number,
    )  # fmt: skip


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return ""


def _bytes(value: Any, where: str) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"{where} is {type(value).__name__}: write text, or !!binary")


def _pairs(headers: Any) -> Headers:
    found: Headers = []
    for name, value in _listed(headers):
        if not TOKEN.fullmatch(name.encode()) or _CONTROL.search(value) is not None:
            raise ValueError(f"field {name!r} has a name or a value that HTTP does not allow")
        found.append((name, value))
    return found


def _listed(headers: Any) -> Headers:
    found: Headers = []
    for name, values in (headers or {}).items():
        found += [(str(name), str(value)) for value in (values if isinstance(values, list) else [values])]
    return found
