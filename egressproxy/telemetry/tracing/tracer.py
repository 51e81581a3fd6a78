"""OwnTracer: reads the context of a request, decides whether its trace is recorded, and writes the context for others.

A trace that is not recorded has no span of ours: a valid context of the client then goes on as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from time import monotonic, time
from typing import Any, ClassVar, Final, cast

from egressproxy.errors import Reason
from egressproxy.ir.telemetry import AttributeSource, TracingIR
from egressproxy.model.exchange import LOGGED, Exchange, StateSlot
from egressproxy.model.exchange_trace import TRACE, CallerT, ExchangeTrace, Tracer
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.driver import Driver
from egressproxy.telemetry.series import ANSWER, DURATION, FIRST_BYTE, NEVER, logged_status
from egressproxy.telemetry.tracing.context import IS_SAMPLED, NewContexts, TraceContext, read_context, traceparent
from egressproxy.telemetry.tracing.exporter import BatchExporter
from egressproxy.telemetry.tracing.sampling import Ratio
from egressproxy.telemetry.tracing.span import MAX_CHILDREN, Attempt, ExchangeSpans, SpanSettings, Wait

_OF_TRACE: Final = every_spelling(("traceparent", "tracestate"))
_TRACEPARENT: Final = every_spelling(("traceparent",))
_TRACESTATE: Final = every_spelling(("tracestate",))
#: What a client says of a trace, and what it gives to everybody behind (W3C Baggage).
_OF_CLIENT: Final = every_spelling(("traceparent", "tracestate", "baggage"))
#: One search for both fields: two would take twice as long.
_ABOUT: Final = re.compile(rb"\r\n(?=[ux])(?:(user-agent)|x-request-id):[ \t]*+([^\r]{0,256})", re.IGNORECASE)
_OK: Final = Reason.OK
#: The span of the attempt that is being made.
_ATTEMPT: Final[StateSlot[bytes]] = StateSlot("attempt span")
#: Longer values of a client's are cut.
_MAX_FIELD: Final = 256


class OwnTracer(Tracer):
    """One for each listener."""

    __slots__ = (
        "_continues", "_exporter", "_keeps_errors", "_new", "_of_parent", "_ratio", "_settings", "fields",
    )  # fmt: skip

    def __init__(self, spec: TracingIR, exporter: BatchExporter[ExchangeSpans]) -> None:
        self._ratio = Ratio(spec.share)
        self._of_parent = Ratio(spec.parent_share) if spec.parent_share is not None else None
        self._new = NewContexts(self._ratio)
        self._exporter = exporter
        self._continues = spec.continues
        self._keeps_errors = spec.keeps_errors
        of_kind = {
            source: tuple((each.name, each.value) for each in spec.attributes if each.source is source)
            for source in AttributeSource
        }
        self._settings = SpanSettings(
            spec.span_name, of_kind[AttributeSource.LITERAL], of_kind[AttributeSource.ATTRIBUTE]
        )
        #: The attributes that header fields give, with the names of those.
        self.fields = tuple((name, field.encode()) for name, field in of_kind[AttributeSource.HEADER])

    def start(self, exchange: Exchange, head: RequestHead | None) -> None:
        parent = None
        if head is not None:
            fields = head.fields
            if not self._continues:
                fields.cut(_OF_CLIENT)
            elif _OF_TRACE.search(fields.block) is not None:
                parent = _take_context(fields)
                if parent is not None:
                    self._continue(exchange, head, parent)
                    return
        line = self._new.line()
        is_sampled = line[-1] == IS_SAMPLED
        if is_sampled or self._keeps_errors:
            recording = Recording(self._settings, line, is_sampled, self)
            exchange.keep(TRACE, recording)
            if head is not None:
                recording.read(head.fields)
        if head is not None:
            head.fields.block += line

    def _continue(self, exchange: Exchange, head: RequestHead, parent: TraceContext) -> None:
        is_sampled = self._ratio.takes(parent.trace_id)
        if self._of_parent is not None:
            is_sampled = parent.is_sampled and self._of_parent.takes(parent.trace_id)
        if is_sampled or self._keeps_errors:
            line = traceparent(parent.trace_id, self._new.span_id(), is_sampled=is_sampled or parent.is_sampled)
            recording = Recording(self._settings, line, is_sampled, self)
            recording.parent_id = parent.span_id
            recording.tracestate = parent.tracestate
            exchange.keep(TRACE, recording)
            head.fields.cut(_TRACEPARENT)
            recording.read(head.fields)
            head.fields.block += line

    def new_span_id(self) -> bytes:
        """16 hexadecimal digits."""
        return self._new.span_id()

    def export(self, spans: ExchangeSpans) -> None:
        """Hand over the spans of an exchange that has ended."""
        self._exporter.put(spans)


def _take_context(fields: Fields) -> TraceContext | None:
    """The client's context, which stays in the fields; None for an invalid one, which does not."""
    states = fields.get_all(b"tracestate")
    found = read_context(fields.get_all(b"traceparent"), states)
    if found is None:
        fields.cut(_OF_TRACE)
    elif states and found.tracestate != b",".join(states):
        fields.cut(_TRACESTATE)
        if found.tracestate:
            fields.add(b"tracestate", found.tracestate)
    return found


class Recording(ExchangeSpans, ExchangeTrace):
    """The trace of an exchange. `is_sampled` false: it is exported only if the exchange fails."""

    __slots__ = ("_tracer",)

    def __init__(self, settings: SpanSettings, line: bytes, is_sampled: bool, tracer: OwnTracer) -> None:
        ExchangeSpans.__init__(self, settings, line, is_sampled)
        self._tracer = tracer

    def read(self, fields: Fields) -> None:
        """Take what the client says of itself and of its request."""
        for agent, value in _ABOUT.findall(fields.block):
            if agent:
                self.user_agent = value.rstrip()
            else:
                self.request_id = value.rstrip()
        if self._tracer.fields:
            self.headers = _read(self._tracer.fields, fields)

    @property
    def log_text(self) -> str:
        if self.request_id:
            given = json.dumps(self.request_id.decode("utf-8", "replace"))
            return f'"trace_id":"{self.trace_id.decode()}","x_request_id":{given}'
        return f'"trace_id":"{self.trace_id.decode()}"'

    @property
    def ids(self) -> tuple[bytes, bytes]:
        return self.trace_id, self.span_id

    @property
    def sampled_ids(self) -> tuple[bytes, bytes] | None:
        return self.ids if self.is_sampled else None

    def calls(self, caller: CallerT, exchange: Exchange) -> CallerT:
        return cast("CallerT", TracedCaller(caller, exchange, self, self._tracer))

    def add_wait(
        self, exchange: Exchange, name: str, began: float, attributes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        if self.waits is None:
            self.waits = []
        waits, parent_id = self.waits, exchange.state.get(_ATTEMPT) or b""
        if attributes and waits and (waits[-1].attributes, waits[-1].parent_id) == (attributes, parent_id):
            waits[-1] = waits[-1]._replace(ended=monotonic())
        elif len(waits) < MAX_CHILDREN:
            waits.append(Wait(name, self._tracer.new_span_id(), began, monotonic(), parent_id, attributes))

    def add_attributes(self, attributes: Mapping[str, str | float]) -> None:
        self.details = {**(self.details or {}), **attributes}

    def end(self, exchange: Exchange) -> None:
        status, reason = logged_status(exchange), exchange.reason
        if not self.is_sampled and status < 500 and (reason is _OK or exchange.denied):
            return
        authority, identity = exchange.authority, exchange.identity
        host, port = ("", 0) if authority is None else (authority.host, authority.port)
        self.facts = (
            exchange.method, exchange.scheme, host, port, exchange.is_tunnel, exchange.gateway, exchange.listener,
            exchange.route, exchange.backend, identity.namespace, identity.service_account, status, reason.value,
            exchange.grpc_status,
        )  # fmt: skip
        self.started_wall = exchange.started_wall
        self.started_at = exchange.started_at
        self.ended_at = exchange.ended_at
        self.path = exchange.path
        self.client = exchange.client
        logged = exchange.state.get(LOGGED)
        if logged is not None:
            self.details = {**logged, **(self.details or {})}
        named = self._tracer.fields
        if named and exchange.has_response:
            known = {name for name, _ in self.headers or ()}
            of_answer = tuple(each for each in named if each[0] not in known)
            self.headers = (self.headers or []) + _read(of_answer, exchange.response.fields)
        self._tracer.export(self)
        took_s, first_at, series = exchange.ended_at - exchange.started_at, exchange.first_byte_at, exchange.series
        trace_id, span_id, at_s = self.trace_id, self.span_id, exchange.started_wall + took_s
        series.show(DURATION, (trace_id, span_id, took_s, at_s))
        if first_at != NEVER:
            first_s = first_at - exchange.started_at if first_at else took_s
            series.show(FIRST_BYTE, (trace_id, span_id, first_s, at_s))


class TracedCaller:
    """An UpstreamCaller that has a span for each attempt of `caller`."""

    __slots__ = ("_began", "_caller", "_exchange", "_recording", "_span_id", "_tracer")

    may_flow: ClassVar[bool] = True

    def __init__(self, caller: Any, exchange: Exchange, recording: Recording, tracer: OwnTracer) -> None:
        self._caller = caller
        self._exchange = exchange
        self._recording = recording
        self._tracer = tracer

    @property
    def driver(self) -> Driver:
        """That of the caller."""
        driver: Driver = self._caller.driver
        return driver

    def start_attempt(self) -> None:
        """As of UpstreamCaller. The span of the attempt is the parent of what is behind."""
        self._caller.start_attempt()
        self._began = monotonic()
        self._span_id = span_id = self._tracer.new_span_id()
        self._exchange.keep(_ATTEMPT, span_id)
        fields, line = self._exchange.request.fields, self._recording.line
        fields.block = fields.block.replace(line, b"%b%b%b" % (line[:-19], span_id, line[-3:]), 1)

    def count_attempt(self, result: str) -> None:
        self._end(self._exchange, 0, result, monotonic())
        self._caller.count_attempt(result)

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        self._end(exchange, exchange.response.status, "", 0.0)
        if self._recording.is_sampled:
            exchange.series.show(ANSWER, (self._recording.trace_id, self._span_id, seconds, time()))
        self._caller.count_answer(exchange, seconds)

    def send_request(self, exchange: Exchange, upstream: Any, body: Any, pseudonym: bytes) -> None:
        """As of UpstreamCaller."""
        self._caller.send_request(exchange, upstream, body, pseudonym)

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        """As of UpstreamCaller."""
        self._caller.pass_interim(head, exchange)

    def _end(self, exchange: Exchange, status: int, reason: str, ended: float) -> None:
        recording, request = self._recording, exchange.request
        exchange.keep(_ATTEMPT, b"")
        attempts = recording.attempts
        if attempts is None:
            attempts = recording.attempts = []
        if len(attempts) < MAX_CHILDREN:
            facts = (
                request.method, exchange.backend_is_secure, exchange.upstream_host, exchange.backend, exchange.upstream,
                status, reason,
            )  # fmt: skip
            attempts.append(Attempt(self._span_id, self._began, ended, request.path, facts))


def _read(named: tuple[tuple[str, bytes], ...], fields: Fields) -> list[tuple[str, bytes]]:
    found = ((name, fields.get(field)) for name, field in named)
    return [(name, value[:_MAX_FIELD]) for name, value in found if value is not None]
