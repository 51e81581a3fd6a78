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
from egressproxy.tapes.tape import (
    Headers,
    Interaction,
    TapeError,
    checked_field,
    checked_uri,
    media_type,
    scalar,
    told_at,
    value_of,
)

#: Not of the exchange, but of its connection.
_DROPPED: Final = frozenset(
    ("content-length", "transfer-encoding", "connection", "content-encoding", "keep-alive", "proxy-connection")
)
#: What each message has to have.
_EMPTY: Final = {"httpVersion": "HTTP/1.1", "cookies": [], "headersSize": -1}


def to_har(interactions: Sequence[Interaction]) -> dict[str, Any]:
    """The archive of these exchanges, in the order in which they began."""
    entries = [_entry(each) for each in sorted(interactions, key=lambda each: each.began)]
    creator = {"name": "egressproxy", "version": __version__}
    return {"log": {"version": "1.2", "creator": creator, "entries": entries}}


def _entry(found: Interaction) -> dict[str, Any]:
    took, query = round(found.took * 1000, 3), parse_qsl(urlsplit(found.uri).query, keep_blank_values=True)
    request = {
        "method": found.method, "url": found.uri, "headers": _listed(found.request_headers),
        "queryString": _listed(query), "bodySize": len(found.request_body), **_EMPTY,
    }  # fmt: skip
    if found.request_body:
        request["postData"] = _content(found.request_headers, found.request_body)
    response = {
        "status": found.status, "statusText": found.phrase, "headers": _listed(found.headers),
        "content": {"size": len(found.body), **_content(found.headers, found.body)},
        "redirectURL": value_of(found.headers, "location"), "bodySize": -1, **_EMPTY,
    }  # fmt: skip
    return {
        "startedDateTime": found.began or "1970-01-01T00:00:00Z", "time": took, "request": request,
        "response": response, "cache": {}, "timings": {"send": 0, "wait": took, "receive": 0},
    }  # fmt: skip


def _listed(pairs: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _content(headers: Headers, body: bytes) -> dict[str, str]:
    media = {"mimeType": value_of(headers, "content-type")}
    try:
        return {**media, "text": body.decode()}
    except UnicodeDecodeError:
        return {**media, "text": b64encode(body).decode(), "encoding": "base64"}


def from_har(data: bytes, file: str) -> Iterator[Interaction]:
    """The exchanges of an archive, not masked, without those that have no answer. Raises TapeError."""
    try:
        entries = enumerate(json.loads(data)["log"]["entries"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TapeError(f"{file}: this is no HAR: it is no JSON with log.entries") from None
    for number, entry in entries:
        with told_at(f"{file}: log.entries[{number}]"):
            # Without what failed, a WebSocket, or what was in a browser's cache.
            is_http = urlsplit(entry["request"]["url"]).scheme in ("http", "https")
            if is_http and 200 <= int(entry["response"]["status"]) <= 599:
                yield _interaction(entry, entry["request"], entry["response"])


def _interaction(entry: Any, request: Any, response: Any) -> Interaction:
    asked, body = _message(request, request.get("postData") or {})
    answered, content = _message(response, response.get("content") or {})
    return Interaction(
        scalar(request["method"]), checked_uri(request["url"].partition("#")[0]), asked, body,
        int(response["status"]), scalar(response.get("statusText")), answered, content,
        scalar(entry.get("startedDateTime")), max(0.0, float(entry.get("time") or 0.0) / 1000),
    )  # fmt: skip


def _message(message: Any, content: Any) -> tuple[Headers, bytes]:
    """Fields, without the pseudo-fields of HTTP/2 as browsers write them, and the body."""
    pairs = [
        checked_field(name, value)
        for name, values in ((each["name"].lower(), each["value"]) for each in message.get("headers") or ())
        if name not in _DROPPED and not name.startswith(":")
        for value in values.split("\n")  # as browsers join several
    ]
    if content.get("mimeType") and not media_type(pairs):
        pairs.append(checked_field("content-type", content["mimeType"]))
    text = content.get("text") or "&".join(
        f"{each['name']}={each.get('value', '')}" for each in content.get("params") or ()
    )
    return pairs, b64decode(text) if content.get("encoding") == "base64" else str(text).encode()
