"""Spans as OTLP: the bytes of an ExportTraceServiceRequest, and what its answer says. Pure.

Source: opentelemetry-proto, trace/v1/trace.proto and collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final, TypeVar

from egressproxy.telemetry.protobuf import (
    attribute,
    fields_of,
    key_of,
    list_attribute,
    number,
    sized,
    text_attribute,
    varint,
)
from egressproxy.telemetry.tracing.attributes import (
    BROKEN_OFF,
    CANCELLED,
    CLIENT_GONE,
    Attributes,
    is_failed_attempt,
    is_failed_exchange,
    of_attempt,
    of_exchange,
    span_name,
    split_host,
)
from egressproxy.telemetry.tracing.span import (
    Attempt,
    AttemptFacts,
    ExchangeFacts,
    ExchangeSpans,
    OneAttempt,
    SpanSettings,
    Wait,
)

#: How many encoded parts are kept, of each sort: the routes, statuses and clients of one time.
MAX_KEPT: Final = 4096
#: The longest path with which one is kept.
MAX_KEPT_PATH: Final = 128
#: The longest request id with which it is kept.
MAX_KEPT_ID: Final = 64
SCOPE: Final = "egressproxy"

_INTERNAL: Final = 1
_SERVER: Final = 2
_CLIENT: Final = 3
_KIND: Final = 6
_STATUS: Final = 15
_ERROR: Final = sized(_STATUS, number(3, 2))
#: start_time_unix_nano, end_time_unix_nano and flags: tags and values.
_TIMES: Final = Struct("<BQBQHI").pack
_START: Final = 0x39
_END: Final = 0x41
_FLAGS: Final = 0x0185
#: trace_id, span_id, parent_span_id: tags and sizes, in hexadecimal digits.
_TRACE_ID: Final = b"0a10"
_SPAN_ID: Final = b"1208"
_PARENT_ID: Final = b"2208"
#: Bytes of trace id, span id, times and flags, and of the id of a parent.
_ROOT_SIZE: Final = 18 + 10 + 9 + 9 + 6
_PARENT_SIZE: Final = 10
#: Span.flags: whether the parent is of another process is known, and so it is.
_KNOWS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
#: Fields of the access log that have the names of attributes (TokenMeter).
_OF_DETAILS: Final = "gen_ai."
#: Settings, facts, attempts before, and the path without its query.
_AttemptKey = tuple[SpanSettings, OneAttempt, int, bytes]
_PATH: Final = key_of("url.path")
_URL: Final = key_of("url.full")
_REQUEST_ID: Final = key_of("http.request.header.x-request-id")
_BEGAN: Final = itemgetter(1)

T = TypeVar("T")


class EncodedSpans:
    """The spans of one exchange, as fields of ScopeSpans, and their number."""

    __slots__ = ("count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data)


class Encoder:
    """Encodes for one resource, which has these attributes."""

    __slots__ = (
        "_agents", "_attempt_parts", "_attempts", "_before", "_clients", "_exchanges", "_paths", "_scope", "_usual",
    )  # fmt: skip

    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        attributes = (key_of(name) + sized(2, sized(1, value.encode())) for name, value in resource.items())
        self._before = sized(1, b"".join(sized(1, each) for each in attributes))
        self._scope = sized(1, sized(1, SCOPE.encode()) + sized(2, version.encode()))
        self._exchanges: dict[Hashable, bytes] = {}
        self._attempts: dict[Hashable, bytes] = {}
        self._attempt_parts: dict[Hashable, bytes] = {}
        self._clients: dict[Hashable, bytes] = {}
        self._agents: dict[Hashable, bytes] = {}
        self._paths: dict[Hashable, bytes] = {}
        self._usual: dict[Hashable, tuple[bytes, bytes, bytes]] = {}

    def request(self, batch: Sequence[EncodedSpans]) -> tuple[bytes, int]:
        """An ExportTraceServiceRequest with the spans of these exchanges, and how many spans there are."""
        spans = [each.data for each in batch]
        size = len(self._scope) + sum(map(len, spans))
        before = self._before + b"\x12" + varint(size)  # the field scope_spans of ResourceSpans
        whole = b"".join([b"\x0a" + varint(len(before) + size), before, self._scope, *spans])  # once: it is long
        return whole, sum([each.count for each in batch])

    def encoded(self, exchange: ExchangeSpans) -> EncodedSpans:
        """The spans of an exchange."""
        attempts, request_id = exchange.attempts, exchange.request_id
        if (
            attempts is not None
            and len(attempts) == 1
            and not (exchange.waits or exchange.details or exchange.headers or exchange.tracestate)
            and len(request_id) <= MAX_KEPT_ID
            and request_id.isascii()
        ):
            return self._of_one_attempt(exchange, attempts[0])
        trace_id, span_id = exchange.trace_id, exchange.span_id
        # To the microsecond: a float has no more of the time of today.
        wall = round((exchange.started_wall - exchange.started_at) * 1e6)  # of a monotonic time, as all others are
        start = (wall + int(exchange.started_at * 1e6)) * 1000
        end = (wall + int(exchange.ended_at * 1e6)) * 1000
        flags = exchange.is_sampled | _KNOWS_REMOTE
        client, path, agent = exchange.client, exchange.path, exchange.user_agent
        parts = [
            self._exchanges.get((exchange.settings, exchange.facts)) or self._of_exchange(exchange),
            self._clients.get(client) or self._of_client(client),
        ]
        if exchange.parent_id:
            parts.append(unhexlify(_TRACE_ID + trace_id + _SPAN_ID + span_id + _PARENT_ID + exchange.parent_id))
            parts.append(_TIMES(_START, start, _END, end, _FLAGS, flags | _IS_REMOTE))
            if exchange.tracestate:
                parts.append(sized(3, exchange.tracestate))
        else:
            parts.append(unhexlify(_TRACE_ID + trace_id + _SPAN_ID + span_id))
            parts.append(_TIMES(_START, start, _END, end, _FLAGS, flags))
        if path != b"-":
            parts.append(self._paths.get(path) or self._of_path(path))
        if agent:
            parts.append(self._agents.get(agent) or self._of_agent(agent))
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
            named = b"".join([text_attribute(key_of(name), value) for name, value in exchange.headers])
            parts.append(named)
        spans = [b"".join(parts)]
        if attempts is not None:
            last_id = attempts[-1][0]
            attempts.sort(key=_BEGAN)  # hedged ones may end in any order
            last_began = attempts[-1][1]
            for resends, (own_id, began, ended, path, facts) in enumerate(attempts):
                if ended < 0 and last_began >= -ended:
                    ended = -ended
                until = (wall + int(ended * 1e6)) * 1000 if ended > 0 else end
                if b"?" in path:
                    path = path.partition(b"?")[0]  # a query may hold a key
                if facts[6] == CLIENT_GONE and exchange.facts[12] != CLIENT_GONE:
                    facts = (*facts[:6], CANCELLED)
                elif own_id == last_id:
                    facts = _with_break(facts, exchange.facts[12])
                key = (exchange.settings, facts, resends, path)
                span = (
                    (self._attempts.get(key) or self._of_attempt(key))
                    + unhexlify(_TRACE_ID + trace_id + _SPAN_ID + own_id + _PARENT_ID + span_id)
                    + _TIMES(_START, (wall + int(began * 1e6)) * 1000, _END, until, _FLAGS, flags)
                )
                spans.append(span + named if named else span)
        known = {each[0] for each in attempts or ()} if exchange.waits else set()
        for wait in exchange.waits or ():
            # An attempt that a filter has answered has no span.
            parent_id = wait.parent_id if wait.parent_id in known else span_id
            began_ns, ended_ns = (wall + int(wait.began * 1e6)) * 1000, (wall + int(wait.ended * 1e6)) * 1000
            ids = unhexlify(_TRACE_ID + trace_id + _SPAN_ID + wait.span_id + _PARENT_ID + parent_id)
            times = _TIMES(_START, began_ns, _END, ended_ns, _FLAGS, flags)
            spans.append(_of_wait(wait, exchange.settings) + ids + times + named)
        return EncodedSpans(b"".join([_tag(len(span)) + span for span in spans]), len(spans))

    def _of_one_attempt(self, exchange: ExchangeSpans, attempt: Attempt) -> EncodedSpans:
        """Those of most exchanges: what does not change from one to the next is looked up once."""
        own_id, began, ended, path, facts = attempt
        trace_id, span_id, parent_id = exchange.trace_id, exchange.span_id, exchange.parent_id
        request_id, started_at = exchange.request_id, exchange.started_at
        key = (
            exchange.settings, exchange.facts, exchange.client, exchange.path, exchange.user_agent, len(request_id),
            not parent_id, path, facts,
        )  # fmt: skip
        parts = self._usual.get(key)
        if parts is None:
            parts = self._parts_of(key, exchange)
        wall = int(exchange.started_wall * 1e6)
        start, end = wall * 1000, (wall + int((exchange.ended_at - started_at) * 1e6)) * 1000
        until = (wall + int((ended - started_at) * 1e6)) * 1000 if ended > 0 else end
        begun = (wall + int((began - started_at) * 1e6)) * 1000
        flags = exchange.is_sampled | _KNOWS_REMOTE
        if parent_id:
            own = unhexlify(_TRACE_ID + trace_id + _SPAN_ID + span_id + _PARENT_ID + parent_id)
            own += _TIMES(_START, start, _END, end, _FLAGS, flags | _IS_REMOTE)
        else:
            own = unhexlify(_TRACE_ID + trace_id + _SPAN_ID + span_id)
            own += _TIMES(_START, start, _END, end, _FLAGS, flags)
        ids = unhexlify(_TRACE_ID + trace_id + _SPAN_ID + own_id + _PARENT_ID + span_id)
        times = _TIMES(_START, begun, _END, until, _FLAGS, flags)
        return EncodedSpans(b"".join((parts[0], own, parts[1], request_id, parts[2], ids, times)), 2)

    def _parts_of(self, key: tuple[Any, ...], exchange: ExchangeSpans) -> tuple[bytes, bytes, bytes]:
        """What is before the ids and times of the exchange, before its request id, and before those of its attempt."""
        settings, _, client, exchange_path, agent, id_size, is_root, path, facts = key
        path = path.partition(b"?")[0]  # a query may hold a key
        before = self._exchanges.get((settings, exchange.facts)) or self._of_exchange(exchange)
        before += self._clients.get(client) or self._of_client(client)
        after = b""
        if exchange_path != b"-":
            after += self._paths.get(exchange_path) or self._of_path(exchange_path)
        if agent:
            after += self._agents.get(agent) or self._of_agent(agent)
        if id_size:
            after += list_attribute(_REQUEST_ID, b"-" * id_size)[:-id_size]
        attempt_key = (settings, _with_break(facts, exchange.facts[12]), 0, path)
        of_attempt = self._attempts.get(attempt_key) or self._of_attempt(attempt_key)
        size = len(before) + (_ROOT_SIZE if is_root else _ROOT_SIZE + _PARENT_SIZE) + len(after) + id_size
        attempt_size = len(of_attempt) + _ROOT_SIZE + _PARENT_SIZE
        parts = _tag(size) + before, after, _tag(attempt_size) + of_attempt
        if len(path) + len(exchange_path) <= MAX_KEPT_PATH:
            _keep(self._usual, key, parts)
        return parts

    def _of_exchange(self, exchange: ExchangeSpans) -> bytes:
        facts, settings = ExchangeFacts(*exchange.facts), exchange.settings
        made = _shared(settings.name or span_name(facts), _SERVER, of_exchange(facts), settings)
        return _keep(self._exchanges, (settings, exchange.facts), made + _ERROR if is_failed_exchange(facts) else made)

    def _of_attempt(self, key: _AttemptKey) -> bytes:
        settings, values, resends, path = key
        parts = (settings, values, resends)
        shared = self._attempt_parts.get(parts)
        if shared is None:
            facts = AttemptFacts(*values, resends)
            shared = _shared(span_name(facts), _CLIENT, of_attempt(facts), settings)
            if is_failed_attempt(facts):
                shared += _ERROR
            _keep(self._attempt_parts, parts, shared)
        host = values[2]
        if host and path:
            if not path.startswith(b"http"):  # the path toward a parent is a URL
                path = (b"https://" if values[1] else b"http://") + host + path
            shared += text_attribute(_URL, path)
        return _keep(self._attempts, key, shared) if len(path) <= MAX_KEPT_PATH else shared

    def _of_path(self, path: bytes) -> bytes:
        made = text_attribute(_PATH, path)
        return _keep(self._paths, path, made) if len(path) <= MAX_KEPT_PATH else made

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


def _with_break(facts: OneAttempt, reason: str) -> OneAttempt:
    """The facts of the last attempt, with the reason of the exchange if that broke off the answer."""
    return (*facts[:6], reason) if reason in BROKEN_OFF and not facts[6] else facts


def _of_wait(wait: Wait, settings: SpanSettings) -> bytes:
    return _shared(wait.name, _INTERNAL, dict(wait.attributes), settings)


@lru_cache(maxsize=1024)
def _tag(size: int) -> bytes:
    """What stands before a span of so many bytes in ScopeSpans."""
    return b"\x12" + varint(size)


def _keep(kept: dict[Hashable, T], key: Hashable, made: T) -> T:
    if len(kept) >= MAX_KEPT:
        kept.clear()
    kept[key] = made
    return made
