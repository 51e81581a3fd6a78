"""What processors are told of an exchange: attributes, dynamic metadata, heads (pseudo-headers first, as in HTTP/2).

Source: Envoy, Attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.protocols.ext_proc.messages import ProcessingResponse

Lines = tuple[tuple[bytes, bytes], ...]

#: The note with the dynamic metadata of the exchange, by namespace: all processors of it share it.
METADATA: Final = "dynamic metadata"


def attributes(names: Iterable[str], x: Exchange, shown: re.Pattern[bytes] | None = None) -> dict[str, Any]:
    """The values of these attributes, as far as it has them; of fields those whose names match `shown` (None: all)."""
    found = ((name, _READERS[name](x, shown)) for name in names)
    return {name: value for name, value in found if value not in (None, "")}


def known_metadata(x: Exchange, wanted: Iterable[str]) -> dict[str, dict[str, object]]:
    """What processors have said before, under the wanted namespaces."""
    if not wanted or x.notes is None:
        return {}
    known = x.notes.get(METADATA, {})
    return {name: known[name] for name in wanted if name in known}


def keep_metadata(x: Exchange, response: ProcessingResponse, wanted: Iterable[str]) -> None:
    """Keep what a processor says under the wanted namespaces."""
    said = {name: value for name, value in response.dynamic_metadata.items() if name in wanted}
    said = {name: value for name, value in said.items() if isinstance(value, dict)}
    if said:
        known = (x.notes or {}).get(METADATA, {})
        x.note(METADATA, {**known, **said})


def request_lines(x: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the request; `pattern` matches the names that are shown, None: all."""
    request = x.request
    host = x.upstream_host or request.host or (str(x.authority).encode() if x.authority is not None else b"")
    lines = [(b":method", request.method), (b":authority", host)]
    if request.method != b"CONNECT":
        lines += [(b":scheme", x.scheme), (b":path", request.path)]
    lines += request.fields
    if request.body > 0:
        lines.append((b"content-length", b"%d" % request.body))
    return shown(lines, pattern)


def response_lines(x: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the response."""
    response = x.response
    lines = [(b":status", b"%d" % response.status), *response.fields]
    if response.body > 0:
        lines.append((b"content-length", b"%d" % response.body))
    return shown(lines, pattern)


def shown(lines: Iterable[tuple[bytes, bytes]], pattern: re.Pattern[bytes] | None) -> Lines:
    return tuple(lines) if pattern is None else tuple(line for line in lines if pattern.fullmatch(line[0]))


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


Shown = re.Pattern[bytes] | None


def _field(name: bytes) -> Callable[[Exchange, Shown], str]:
    return lambda x, shown: _text(x.request.fields.get(name)) if shown is None or shown.fullmatch(name) else ""


def _lines(fields: Fields, shown: Shown) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields if shown is None or shown.fullmatch(name)}


def _port(address: str) -> int | None:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else None


_OF_REQUEST: Final[Mapping[str, Callable[[Exchange, Shown], Any]]] = {
    "request.path": lambda x, _: _text(x.request.path),
    "request.url_path": lambda x, _: _text(x.request.path.partition(b"?")[0]),
    "request.query": lambda x, _: _text(x.request.path.partition(b"?")[2]),
    "request.host": lambda x, _: _text(x.request.host) or str(x.authority or ""),
    "request.scheme": lambda x, _: _text(x.scheme),
    "request.method": lambda x, _: _text(x.request.method),
    "request.headers": lambda x, shown: _lines(x.request.fields, shown),
    "request.referer": _field(b"referer"),
    "request.useragent": _field(b"user-agent"),
    "request.id": lambda x, _: x.request_id,
    "request.time": lambda x, _: datetime.fromtimestamp(x.started_wall, UTC).isoformat() if x.started_wall else "",
    "request.size": lambda x, _: x.request.body if x.request.body >= 0 else None,
    "source.address": lambda x, _: x.client,
    "source.port": lambda x, _: _port(x.client),
    "xds.route_name": lambda x, _: x.route,
    "xds.cluster_name": lambda x, _: x.backend if x.backend != "-" else "",
    # What Envoy cannot know of our clients and places.
    "egressproxy.gateway": lambda x, _: x.gateway,
    "egressproxy.listener": lambda x, _: x.listener,
    "egressproxy.namespace": lambda x, _: x.identity.namespace,
    "egressproxy.service_account": lambda x, _: x.identity.service_account,
    "egressproxy.identity": lambda x, _: x.identity.name,
}
_OF_RESPONSE: Final[Mapping[str, Callable[[Exchange, Shown], Any]]] = {
    "response.code": lambda x, _: x.response.status,
    "response.headers": lambda x, shown: _lines(x.response.fields, shown),
    "upstream.address": lambda x, _: x.upstream,
    "upstream.port": lambda x, _: _port(x.upstream),
}
_READERS: Final = {**_OF_REQUEST, **_OF_RESPONSE}

REQUEST_ATTRIBUTES: Final = frozenset(_OF_REQUEST)
RESPONSE_ATTRIBUTES: Final = frozenset(_OF_RESPONSE)
