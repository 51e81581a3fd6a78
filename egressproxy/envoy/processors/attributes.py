"""What processors are told of an exchange: attributes, dynamic metadata, heads (pseudo-headers first, as in HTTP/2).

Source: Envoy, Attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from egressproxy.envoy.ext_proc.messages import ProcessingResponse
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import Fields

Lines = tuple[tuple[bytes, bytes], ...]

#: The dynamic metadata of the exchange, by namespace: all processors of it share it.
_METADATA: Final[StateSlot[dict[str, dict[str, object]]]] = StateSlot("dynamic metadata")


def attributes(names: Iterable[str], exchange: Exchange, shown: re.Pattern[bytes] | None = None) -> dict[str, Any]:
    """The values of these attributes, as far as it has them; of fields those whose names match `shown` (None: all)."""
    found = ((name, _READERS[name](exchange, shown)) for name in names)
    return {name: value for name, value in found if value not in (None, "")}


def known_metadata(exchange: Exchange, names: Iterable[str]) -> dict[str, dict[str, object]]:
    """What processors have said before, under the wanted namespaces."""
    known = exchange.state.get(_METADATA)
    if known is None:
        return {}
    return {name: known[name] for name in names if name in known}


def keep_metadata(exchange: Exchange, response: ProcessingResponse, names: Iterable[str]) -> None:
    """Keep what a processor says under the wanted namespaces."""
    metadata = {name: value for name, value in response.dynamic_metadata.items() if name in names}
    metadata = {name: value for name, value in metadata.items() if isinstance(value, dict)}
    if metadata:
        known = exchange.state.get(_METADATA)
        exchange.keep(_METADATA, metadata if known is None else {**known, **metadata})


def request_lines(exchange: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the request; `pattern` matches the names that are shown, None: all."""
    request = exchange.request
    host = (
        exchange.upstream_host
        or request.host
        or (str(exchange.authority).encode() if exchange.authority is not None else b"")
    )
    lines = [(b":method", request.method), (b":authority", host)]
    if request.method != b"CONNECT":
        lines += [(b":scheme", exchange.scheme), (b":path", request.path)]
    lines += request.fields
    if request.body > 0:
        lines.append((b"content-length", b"%d" % request.body))
    return shown(lines, pattern)


def response_lines(exchange: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the response."""
    response = exchange.response
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
    return lambda exchange, shown: (
        _text(exchange.request.fields.get(name)) if shown is None or shown.fullmatch(name) else ""
    )


def _lines(fields: Fields, shown: Shown) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields if shown is None or shown.fullmatch(name)}


def _port(address: str) -> int | None:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else None


_OF_REQUEST: Final[Mapping[str, Callable[[Exchange, Shown], Any]]] = {
    "request.path": lambda exchange, _: _text(exchange.request.path),
    "request.url_path": lambda exchange, _: _text(exchange.request.path.partition(b"?")[0]),
    "request.query": lambda exchange, _: _text(exchange.request.path.partition(b"?")[2]),
    "request.host": lambda exchange, _: _text(exchange.request.host) or str(exchange.authority or ""),
    "request.scheme": lambda exchange, _: _text(exchange.scheme),
    "request.method": lambda exchange, _: _text(exchange.request.method),
    "request.headers": lambda exchange, shown: _lines(exchange.request.fields, shown),
    "request.referer": _field(b"referer"),
    "request.useragent": _field(b"user-agent"),
    "request.id": lambda exchange, _: exchange.request_id,
    "request.time": lambda exchange, _: (
        datetime.fromtimestamp(exchange.started_wall, UTC).isoformat() if exchange.started_wall else ""
    ),
    "request.size": lambda exchange, _: exchange.request.body if exchange.request.body >= 0 else None,
    "source.address": lambda exchange, _: exchange.client,
    "source.port": lambda exchange, _: _port(exchange.client),
    "xds.route_name": lambda exchange, _: exchange.route,
    "xds.cluster_name": lambda exchange, _: exchange.backend if exchange.backend != "-" else "",
    # What Envoy cannot know of our clients and places.
    "egressproxy.gateway": lambda exchange, _: exchange.gateway,
    "egressproxy.listener": lambda exchange, _: exchange.listener,
    "egressproxy.namespace": lambda exchange, _: exchange.identity.namespace,
    "egressproxy.service_account": lambda exchange, _: exchange.identity.service_account,
    "egressproxy.identity": lambda exchange, _: exchange.identity.name,
}
_OF_RESPONSE: Final[Mapping[str, Callable[[Exchange, Shown], Any]]] = {
    "response.code": lambda exchange, _: exchange.response.status,
    "response.headers": lambda exchange, shown: _lines(exchange.response.fields, shown),
    "upstream.address": lambda exchange, _: exchange.upstream,
    "upstream.port": lambda exchange, _: _port(exchange.upstream),
}
_READERS: Final = {**_OF_REQUEST, **_OF_RESPONSE}

REQUEST_ATTRIBUTES: Final = frozenset(_OF_REQUEST)
RESPONSE_ATTRIBUTES: Final = frozenset(_OF_RESPONSE)
