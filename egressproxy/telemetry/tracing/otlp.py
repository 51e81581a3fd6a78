"""Spans as OTLP: the bytes of an ExportTraceServiceRequest, and what its answer says. Pure.

Source: opentelemetry-proto, trace/v1/trace.proto and collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from egressproxy.telemetry.tracing.attributes import (
    Attributes,
    is_failed_attempt,
    is_failed_exchange,
    of_attempt,
    of_exchange,
    span_name,
)
from egressproxy.telemetry.tracing.protobuf import attribute, fields_of, number, sized, varint
from egressproxy.telemetry.tracing.span import Attempt, AttemptFacts, ExchangeSpans, SpanSettings, Wait

#: How many encoded beginnings of spans are kept: routes, backends and statuses that are in use at one time.
MAX_KEPT: Final = 4096
SCOPE: Final = "egressproxy"

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
#: Numbers of the fields of a Span that are no text.
_KIND, _ATTRIBUTES, _STATUS = 6, 9, 15
_START, _END = bytes((7 << 3 | 1,)), bytes((8 << 3 | 1,))
_FLAGS: Final = varint(16 << 3 | 5)
_ERROR: Final = sized(_STATUS, number(3, 2))
#: Span.flags: whether the parent is of another process is known, and so it is.
_KNOWS_REMOTE, _IS_REMOTE = 0x100, 0x200
#: Fields of the access log that have the names of attributes: tokens, models, times (TokenMeter), calls of MCP.
_OF_DETAILS: Final = ("gen_ai.", "mcp.")


class Encoder:
    """Encodes for one resource, which has these attributes. For one thread at a time."""

    __slots__ = ("_attempts", "_before", "_exchanges", "_scope")

    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        self._before = sized(1, b"".join(attribute(1, name, value) for name, value in resource.items()))
        self._scope = sized(1, sized(1, SCOPE.encode()) + sized(2, version.encode()))
        self._exchanges: dict[tuple[object, ...], bytes] = {}
        self._attempts: dict[tuple[object, ...], bytes] = {}

    def request(self, batch: Sequence[ExchangeSpans]) -> tuple[bytes, int]:
        """An ExportTraceServiceRequest with the spans of these exchanges, and how many spans there are."""
        spans = [sized(2, span) for exchange in batch for span in self._spans(exchange)]
        return sized(1, self._before + sized(2, self._scope + b"".join(spans))), len(spans)

    def _spans(self, exchange: ExchangeSpans) -> Iterator[bytes]:
        yield self._of_exchange(exchange)
        attempts = exchange.attempts or ()
        for resends, attempt in enumerate(attempts):
            yield self._of_attempt(exchange, attempt, resends)
        for wait in exchange.waits or ():
            yield self._of_wait(exchange, wait)

    def _of_exchange(self, exchange: ExchangeSpans) -> bytes:
        facts, settings = exchange.facts, exchange.settings
        assert facts is not None
        key = (settings, facts)
        shared = self._exchanges.get(key)
        if shared is None:
            attributes = of_exchange(facts)
            shared = _beginning(settings.name or span_name(facts), _SERVER, attributes, settings)
            shared = _keep(self._exchanges, key, shared + _ERROR if is_failed_exchange(facts) else shared)
        client, _, port = exchange.client.rpartition(":")
        made = [
            _frame(exchange, exchange.span_id, exchange.parent_id, exchange.started_at, exchange.ended_at),
            shared,
            attribute(_ATTRIBUTES, "client.address", client.strip("[]")),
            attribute(_ATTRIBUTES, "http.request.size", exchange.bytes_in),
            attribute(_ATTRIBUTES, "http.response.size", exchange.bytes_out),
        ]
        if port.isdigit():
            made.append(attribute(_ATTRIBUTES, "client.port", int(port)))
        if not facts.is_tunnel and exchange.path != b"-":
            made.append(attribute(_ATTRIBUTES, "url.path", exchange.path.decode("latin-1")))
        if exchange.user_agent:
            made.append(attribute(_ATTRIBUTES, "user_agent.original", exchange.user_agent))
        if exchange.request_id:
            made.append(attribute(_ATTRIBUTES, "http.request.header.x-request-id", (exchange.request_id,)))
        if exchange.details:
            made += (
                attribute(_ATTRIBUTES, name, value)
                for name, value in exchange.details.items()
                if name.startswith(_OF_DETAILS) and isinstance(value, str | int | float)
            )
        if exchange.headers:
            made += (attribute(_ATTRIBUTES, *each) for each in exchange.headers)
        return b"".join(made)

    def _of_attempt(self, exchange: ExchangeSpans, attempt: Attempt, resends: int) -> bytes:
        assert exchange.facts is not None
        facts = AttemptFacts(
            exchange.facts.method, attempt.is_secure, attempt.host, attempt.backend, attempt.upstream, attempt.status,
            attempt.reason, resends,
        )  # fmt: skip
        key = (exchange.settings, facts)
        shared = self._attempts.get(key)
        if shared is None:
            shared = _beginning(span_name(facts), _CLIENT, of_attempt(facts), exchange.settings)
            shared = _keep(self._attempts, key, shared + _ERROR if is_failed_attempt(facts) else shared)
        ended = attempt.ended or exchange.ended_at
        framed = _frame(exchange, attempt.span_id, exchange.span_id, attempt.began, ended)
        scheme = "https" if attempt.is_secure else "http"
        path = attempt.path.partition(b"?")[0].decode("latin-1")  # a query may hold a key
        url = f"{scheme}://{attempt.host.decode('latin-1')}{path}" if attempt.host else ""
        return framed + shared + (attribute(_ATTRIBUTES, "url.full", url) if url else b"") + _headers(exchange)

    def _of_wait(self, exchange: ExchangeSpans, wait: Wait) -> bytes:
        shared = _beginning(wait.name, _INTERNAL, {}, exchange.settings)
        return _frame(exchange, wait.span_id, exchange.span_id, wait.began, wait.ended) + shared + _headers(exchange)


def rejected_spans(answer: bytes) -> tuple[int, str]:
    """How many spans a collector has not taken, and why, by its ExportTraceServiceResponse; (0, "") for all taken."""
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


def _beginning(name: str, kind: int, attributes: Attributes, settings: SpanSettings) -> bytes:
    """Name, kind and shared attributes."""
    written = [attribute(_ATTRIBUTES, *each) for each in (*attributes.items(), *settings.literals)]
    copies = ((copy, attributes[key]) for copy, key in settings.copies if key in attributes)
    written += (attribute(_ATTRIBUTES, *each) for each in copies)
    return sized(5, name.encode()) + number(_KIND, kind) + b"".join(written)


def _frame(exchange: ExchangeSpans, span_id: str, parent_id: str, began: float, ended: float) -> bytes:
    """Ids, times and flags."""
    start = exchange.started_wall + (began - exchange.started_at)
    flags = _KNOWS_REMOTE | exchange.is_sampled
    parent = b""
    if parent_id:
        parent = b"\x22\x08" + bytes.fromhex(parent_id)
        if parent_id is exchange.parent_id:
            flags |= _IS_REMOTE
    state = sized(3, exchange.tracestate) if exchange.tracestate else b""
    return b"".join((
        b"\x0a\x10", bytes.fromhex(exchange.trace_id), b"\x12\x08", bytes.fromhex(span_id), state, parent,
        _START, _nanoseconds(start),
        _END, _nanoseconds(start + max(0.0, ended - began)),
        _FLAGS, flags.to_bytes(4, "little"),
    ))  # fmt: skip


def _nanoseconds(wall: float) -> bytes:
    """A fixed64 of this time (seconds since 1970), to the microsecond: a float has no more of it."""
    return (round(wall * 1_000_000) * 1000).to_bytes(8, "little")


def _headers(exchange: ExchangeSpans) -> bytes:
    return b"".join(attribute(_ATTRIBUTES, *each) for each in exchange.headers) if exchange.headers else b""


def _keep(kept: dict[tuple[object, ...], bytes], key: tuple[object, ...], made: bytes) -> bytes:
    if len(kept) >= MAX_KEPT:
        kept.clear()
    kept[key] = made
    return made
