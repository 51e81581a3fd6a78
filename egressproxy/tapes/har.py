"""HAR: tapes as an HTTP Archive 1.2, which browsers and proxies write and read, and the other way round.

Source: the draft of W3C, "HTTP Archive (HAR) format".
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from egressproxy import __version__
from egressproxy.tapes.tape import Headers, Interaction, TapeError, media_type, value_of

#: Not of the exchange, but of its connection.
_DROPPED: Final = frozenset(
    ("content-length", "transfer-encoding", "connection", "content-encoding", "keep-alive", "proxy-connection")
)


def to_har(interactions: Sequence[Interaction]) -> dict[str, Any]:
    """The archive of these exchanges, in the order in which they began."""
    entries = [_entry(each) for each in sorted(interactions, key=lambda each: each.began)]
    creator = {"name": "egressproxy", "version": __version__}
    return {"log": {"version": "1.2", "creator": creator, "entries": entries}}


def _entry(found: Interaction) -> dict[str, Any]:
    query = [_pair(*each) for each in parse_qsl(urlsplit(found.uri).query, keep_blank_values=True)]
    request: dict[str, Any] = {
        "method": found.method,
        "url": found.uri,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": [_pair(*each) for each in found.request_headers],
        "queryString": query,
        "headersSize": -1,
        "bodySize": len(found.request_body),
    }
    if found.request_body:
        media = value_of(found.request_headers, "content-type")
        request["postData"] = {"mimeType": media, **_text(found.request_body)}
    response = {
        "status": found.status,
        "statusText": found.phrase,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": [_pair(*each) for each in found.headers],
        "content": {
            "size": len(found.body),
            "mimeType": value_of(found.headers, "content-type"),
            **_text(found.body),
        },
        "redirectURL": value_of(found.headers, "location"),
        "headersSize": -1,
        "bodySize": -1,
    }
    took = round(found.took * 1000, 3)
    return {
        "startedDateTime": found.began or "1970-01-01T00:00:00Z",
        "time": took,
        "request": request,
        "response": response,
        "cache": {},
        "timings": {"send": 0, "wait": took, "receive": 0},
    }


def _pair(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _text(body: bytes) -> dict[str, str]:
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"text": b64encode(body).decode(), "encoding": "base64"}


def from_har(data: bytes, file: str) -> list[Interaction]:
    """The exchanges of an archive, not masked, without those that have no answer. Raises TapeError."""
    try:
        entries = json.loads(data)["log"]["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TapeError(f"{file}: this is no HAR: it is no JSON with log.entries") from None
    return list(_interactions(entries, file))


def _interactions(entries: Any, file: str) -> Iterator[Interaction]:
    for number, entry in enumerate(entries):
        try:
            found = _interaction(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise TapeError(f"{file}: log.entries[{number}]: {why}") from None
        if found is not None:
            yield found


def _interaction(entry: Any) -> Interaction | None:
    request, response = entry["request"], entry["response"]
    status = int(response["status"])
    if not 200 <= status <= 599 or urlsplit(request["url"]).scheme not in ("http", "https"):
        return None  # a request that failed, a WebSocket, or what was in a browser's cache
    content, posted = response.get("content") or {}, request.get("postData") or {}
    asked, answered = _pairs(request.get("headers")), _pairs(response.get("headers"))
    for headers, media in ((asked, posted.get("mimeType")), (answered, content.get("mimeType"))):
        if media and not media_type(headers):
            headers.append(("content-type", str(media)))
    body = _bytes(posted)
    if not body and posted.get("params"):
        body = "&".join(f"{each['name']}={each.get('value', '')}" for each in posted["params"]).encode()
    return Interaction(
        str(request["method"]),
        request["url"].partition("#")[0],
        asked,
        body,
        status,
        str(response.get("statusText") or ""),
        answered,
        _bytes(content),
        str(entry.get("startedDateTime", "")),
        max(0.0, float(entry.get("time") or 0.0) / 1000),
    )


def _pairs(headers: Any) -> Headers:
    """Without the pseudo-fields of HTTP/2, as browsers write them."""
    pairs = [(str(each["name"]).lower(), str(each["value"])) for each in headers or ()]
    return [(name, value) for name, value in pairs if name not in _DROPPED and not name.startswith(":")]


def _bytes(content: dict[str, Any]) -> bytes:
    text = content.get("text") or ""
    return b64decode(text) if content.get("encoding") == "base64" else str(text).encode()
