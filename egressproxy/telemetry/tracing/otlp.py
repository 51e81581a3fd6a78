"""Spans as OTLP: the bytes of an ExportTraceServiceRequest, and what its answer says. Pure.

Source: opentelemetry-proto, trace/v1/trace.proto and collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Hashable, Sequence
from struct import Struct
from typing import Final

from egressproxy.telemetry.otlp.messages import Envelope
from egressproxy.telemetry.protobuf import attribute, fields_of, key_of, list_attribute, number, sized, text_attribute
from egressproxy.telemetry.tracing.attributes import (
    Attributes,
    is_failed_attempt,
    is_failed_exchange,
    of_attempt,
    of_exchange,
    span_name,
    split_host,
)
from egressproxy.telemetry.tracing.span import AttemptFacts, ExchangeFacts, ExchangeSpans, SpanSettings, Wait

#: How many encoded parts are kept, of each sort: the routes, statuses and clients of one time.
MAX_KEPT: Final = 4096

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_KIND, _STATUS = 6, 15
_ERROR: Final = sized(_STATUS, number(3, 2))
#: trace_id, span_id, parent_span_id, start_time_unix_nano, end_time_unix_nano, flags: tags and values.
_BELOW: Final = Struct("<2s16s2s8s2s8scQcQ2sI").pack
_ROOT: Final = Struct("<2s16s2s8scQcQ2sI").pack
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_START, _END, _FLAGS = b"\x39", b"\x41", b"\x85\x01"
#: Span.flags: whether the parent is of another process is known, and so it is.
_KNOWS_REMOTE, _IS_REMOTE = 0x100, 0x200
#: Fields of the access log that have the names of attributes (TokenMeter).
_OF_DETAILS: Final = "gen_ai."
_PATH, _URL, _REQUEST_ID = key_of("url.path"), key_of("url.full"), key_of("http.request.header.x-request-id")


class Encoder:
    """Encodes for one resource. For one thread at a time."""

    __slots__ = ("_agents", "_attempts", "_clients", "_envelope", "_exchanges")

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._exchanges: dict[Hashable, bytes] = {}
        self._attempts: dict[Hashable, bytes] = {}
        self._clients: dict[Hashable, bytes] = {}
        self._agents: dict[Hashable, bytes] = {}

    def request(self, batch: Sequence[ExchangeSpans]) -> tuple[bytes, int]:
        """An ExportTraceServiceRequest with the spans of these exchanges, and how many spans there are."""
        spans: list[bytes] = []
        for exchange in batch:
            self._add(exchange, spans)
        # Nearly every span has from 128 to 16,383 bytes.
        written = [
            b"\x12%c%c%b" % (len(span) & 127 | 128, len(span) >> 7, span) if 127 < len(span) < 16384 else sized(2, span)
            for span in spans
        ]
        return self._envelope.around(b"".join(written)), len(spans)

    def _add(self, exchange: ExchangeSpans, spans: list[bytes]) -> None:
        trace_id, span_id = unhexlify(exchange.trace_id), unhexlify(exchange.span_id)
        wall = exchange.started_wall - exchange.started_at  # of a monotonic time
        start, end = _nanoseconds(exchange.started_wall), _nanoseconds(wall + exchange.ended_at)
        flags = exchange.is_sampled | _KNOWS_REMOTE
        parts = [
            self._exchanges.get((exchange.settings, exchange.facts)) or self._of_exchange(exchange),
            self._clients.get(exchange.client) or self._of_client(exchange.client),
        ]
        if exchange.parent_id:
            parent_id = unhexlify(exchange.parent_id)
            parts.append(
                _BELOW(
                    _TRACE_ID, trace_id, _SPAN_ID, span_id, _PARENT_ID, parent_id, _START, start, _END, end, _FLAGS,
                    flags | _IS_REMOTE,
                )
            )  # fmt: skip
            if exchange.tracestate:
                parts.append(sized(3, exchange.tracestate))
        else:
            parts.append(_ROOT(_TRACE_ID, trace_id, _SPAN_ID, span_id, _START, start, _END, end, _FLAGS, flags))
        if exchange.path != b"-":
            parts.append(text_attribute(_PATH, exchange.path))
        if exchange.user_agent:
            parts.append(self._agents.get(exchange.user_agent) or self._of_agent(exchange.user_agent))
        if exchange.request_id:
            parts.append(list_attribute(_REQUEST_ID, exchange.request_id))
        if exchange.details:
            parts += (
                attribute(name, value)
                for name, value in exchange.details.items()
                if name.startswith(_OF_DETAILS) and isinstance(value, str | int | float)
            )
        named = b""
        if exchange.headers:
            named = b"".join(text_attribute(key_of(name), value) for name, value in exchange.headers)
            parts.append(named)
        spans.append(b"".join(parts))
        attempts = exchange.attempts
        if attempts is not None:
            last = len(attempts) - 1
            for resends, (own_id, began, ended, path, facts) in enumerate(attempts):
                if not ended and resends < last:
                    ended = attempts[resends + 1].began
                key = (exchange.settings, facts, resends)
                shared = self._attempts.get(key) or self._of_attempt(exchange.settings, (*facts, resends))
                host = facts[2]
                if host and path:
                    target = path.partition(b"?")[0] if b"?" in path else path  # a query may hold a key
                    shared += text_attribute(_URL, (b"https://" if facts[1] else b"http://") + host + target)
                framed = _BELOW(
                    _TRACE_ID, trace_id, _SPAN_ID, unhexlify(own_id), _PARENT_ID, span_id, _START,
                    _nanoseconds(wall + began), _END, _nanoseconds(wall + ended) if ended else end, _FLAGS, flags,
                )  # fmt: skip
                spans.append(framed + shared + named)
        known = {each.span_id for each in attempts or ()} if exchange.waits else set()
        for wait in exchange.waits or ():
            # An attempt that a filter has answered has no span.
            parent_id = unhexlify(wait.parent_id) if wait.parent_id in known else span_id
            framed = _BELOW(
                _TRACE_ID, trace_id, _SPAN_ID, unhexlify(wait.span_id), _PARENT_ID, parent_id, _START,
                _nanoseconds(wall + wait.began), _END, _nanoseconds(wall + wait.ended), _FLAGS, flags,
            )  # fmt: skip
            spans.append(framed + _of_wait(wait, exchange.settings) + named)

    def _of_exchange(self, exchange: ExchangeSpans) -> bytes:
        facts, settings = ExchangeFacts(*exchange.facts), exchange.settings
        made = _shared(settings.name or span_name(facts), _SERVER, of_exchange(facts), settings)
        return _keep(self._exchanges, (settings, exchange.facts), made + _ERROR if is_failed_exchange(facts) else made)

    def _of_attempt(self, settings: SpanSettings, values: tuple[bytes, bool, bytes, str, str, int, str, int]) -> bytes:
        facts = AttemptFacts(*values)
        made = _shared(span_name(facts), _CLIENT, of_attempt(facts), settings)
        key = (settings, values[:-1], facts.resends)
        return _keep(self._attempts, key, made + _ERROR if is_failed_attempt(facts) else made)

    def _of_client(self, client: str) -> bytes:
        host, port = split_host(client, 0)
        made = attribute("client.address", host)
        return _keep(self._clients, client, made + attribute("client.port", port) if port else made)

    def _of_agent(self, user_agent: bytes) -> bytes:
        return _keep(self._agents, user_agent, text_attribute(key_of("user_agent.original"), user_agent))


def rejected(answer: bytes) -> tuple[int, str]:
    """How many spans, log records or data points a collector has not taken, and why, by its response; (0, ""): none."""
    count, why = 0, b""
    try:
        for field, value in fields_of(answer):
            if field == 1 and isinstance(value, bytes):
                for inner, each in fields_of(value):
                    if inner == 1 and isinstance(each, int):
                        count = each
                    elif inner == 2 and isinstance(each, bytes):
                        why = each
    except ValueError:
        return 0, ""
    return count, why[:200].decode("utf-8", "replace")


def _shared(name: str, kind: int, attributes: Attributes, settings: SpanSettings) -> bytes:
    """Name, kind and shared attributes."""
    written = [attribute(*each) for each in (*attributes.items(), *settings.literals)]
    copies = ((copy, attributes[key]) for copy, key in settings.copies if key in attributes)
    written += (attribute(*each) for each in copies)
    return sized(5, name.encode()) + number(_KIND, kind) + b"".join(written)


def _of_wait(wait: Wait, settings: SpanSettings) -> bytes:
    return _shared(wait.name, _INTERNAL, dict(wait.attributes), settings)


def _nanoseconds(wall: float) -> int:
    """Of this time (seconds since 1970), to the microsecond: a float has no more of it."""
    return round(wall * 1_000_000) * 1000


def _keep(kept: dict[Hashable, bytes], key: Hashable, made: bytes) -> bytes:
    if len(kept) >= MAX_KEPT:
        kept.clear()
    kept[key] = made
    return made
