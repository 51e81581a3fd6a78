"""OwnTracer: reads the context of a request, decides whether its trace is recorded, and writes the context for others.

A trace that is not recorded has no span of ours: a valid context of the client then goes on as it came.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, ClassVar, Final, cast

from egressproxy.errors import Reason
from egressproxy.ir.telemetry import AttributeSource, TracingIR
from egressproxy.model.exchange import LOGGED, Exchange
from egressproxy.model.exchange_trace import TRACE, CallerT, ExchangeTrace, Tracer
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.driver import Driver
from egressproxy.telemetry.series import logged_status
from egressproxy.telemetry.tracing.context import RandomIds, TraceContext, read_context
from egressproxy.telemetry.tracing.exporter import SpanExporter
from egressproxy.telemetry.tracing.sampling import Ratio, Sampler
from egressproxy.telemetry.tracing.span import (
    MAX_CHILDREN,
    Attempt,
    ExchangeFacts,
    ExchangeSpans,
    SpanSettings,
    Wait,
)

_OF_TRACE: Final = every_spelling(("traceparent", "tracestate"))
_TRACEPARENT: Final = every_spelling(("traceparent",))
_TRACESTATE: Final = every_spelling(("tracestate",))
#: What a client says of a trace, and what it gives to everybody behind (W3C Baggage).
_OF_CLIENT: Final = every_spelling(("traceparent", "tracestate", "baggage"))
_OK: Final = Reason.OK
#: Longer values of a client's are cut.
_MAX_FIELD: Final = 256


class OwnTracer(Tracer):
    """One for each listener."""

    __slots__ = ("_continues", "_exporter", "_fields", "_ids", "_keeps_errors", "_sampler", "_settings")

    def __init__(self, spec: TracingIR, exporter: SpanExporter) -> None:
        of_parent = Ratio(spec.parent_share) if spec.parent_share is not None else None
        self._sampler = Sampler(Ratio(spec.share), of_parent)
        self._ids = RandomIds()
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
        self._fields = tuple((name, field.encode()) for name, field in of_kind[AttributeSource.HEADER])

    def start(self, exchange: Exchange, head: RequestHead | None) -> None:
        parent = None
        if head is not None:
            fields = head.fields
            if (_OF_TRACE if self._continues else _OF_CLIENT).search(fields.block) is not None:
                parent = self._take_context(fields)
        ids = self._ids
        trace_id = ids.trace_id() if parent is None else parent.trace_id
        is_sampled = self._sampler.decide(trace_id, parent)
        if is_sampled or self._keeps_errors:
            recording = Recording(self._settings, trace_id, ids.span_id(), self, is_sampled)
            exchange.keep(TRACE, recording)
            if head is not None:
                recording.begin(head, parent, self._fields)
        elif head is not None and parent is None:
            head.fields.block += f"\r\ntraceparent: 00-{trace_id}-{ids.span_id()}-00".encode()

    def _take_context(self, fields: Fields) -> TraceContext | None:
        """The client's context, which stays in the fields; None where none is continued, and none stays."""
        if not self._continues:
            fields.cut(_OF_CLIENT)
            return None
        states = fields.get_all(b"tracestate")
        found = read_context(fields.get_all(b"traceparent"), states)
        if found is None:
            fields.cut(_OF_TRACE)
        elif states and found.tracestate != b",".join(states):
            fields.cut(_TRACESTATE)
            if found.tracestate:
                fields.add(b"tracestate", found.tracestate)
        return found

    def new_span_id(self) -> str:
        return self._ids.span_id()

    def export(self, spans: ExchangeSpans) -> None:
        self._exporter.put(spans)

    @property
    def fields(self) -> tuple[tuple[str, bytes], ...]:
        """The attributes that header fields give, with the names of those."""
        return self._fields

    @property
    def keeps_errors(self) -> bool:
        return self._keeps_errors


class Recording(ExchangeSpans, ExchangeTrace):
    """The trace of an exchange. `is_sampled` false: it is exported only if the exchange fails."""

    __slots__ = ("_line", "_tracer")

    def __init__(
        self, settings: SpanSettings, trace_id: str, span_id: str, tracer: OwnTracer, is_sampled: bool
    ) -> None:
        super().__init__(settings, trace_id, span_id)
        self._tracer = tracer
        self._line = b""  # what the head of the exchange has as traceparent
        self.is_sampled = is_sampled

    def begin(self, head: RequestHead, parent: TraceContext | None, named: tuple[tuple[str, bytes], ...]) -> None:
        """Take what the head says, and let the exchange's own span be the parent of all behind."""
        fields = head.fields
        flags = self.is_sampled
        if parent is not None:
            fields.cut(_TRACEPARENT)
            self.parent_id = parent.span_id
            self.tracestate = parent.tracestate
            flags = flags or parent.is_sampled
        self._line = f"\r\ntraceparent: 00-{self.trace_id}-{self.span_id}-0{int(flags)}".encode()
        given = fields.get(b"x-request-id")
        if given is not None:
            self.request_id = given[:_MAX_FIELD].decode("latin-1")
        given = fields.get(b"user-agent")
        if given is not None:
            self.user_agent = given[:_MAX_FIELD].decode("latin-1")
        if named:
            self.headers = _read(named, fields)
        fields.block += self._line

    @property
    def log_fields(self) -> dict[str, str]:
        made = {"trace_id": self.trace_id}
        if self.request_id:
            made["x_request_id"] = self.request_id
        return made

    def calls(self, caller: CallerT, exchange: Exchange) -> CallerT:
        return cast("CallerT", TracedCaller(caller, exchange, self))

    def add_wait(self, name: str, began: float, ended: float) -> None:
        if self.waits is None:
            self.waits = []
        if len(self.waits) < MAX_CHILDREN:
            self.waits.append(Wait(name, self._tracer.new_span_id(), began, ended))

    def begin_attempt(self, exchange: Exchange) -> Attempt:
        """A span for an attempt, which is the parent of all behind. An answer that came before was not good enough."""
        attempt = Attempt(self._tracer.new_span_id(), monotonic())
        if self.attempts is None:
            self.attempts = []
        elif self.attempts[-1].status and not self.attempts[-1].ended:
            self.attempts[-1].ended = attempt.began
        if len(self.attempts) < MAX_CHILDREN:
            self.attempts.append(attempt)
        line = self._line
        if line:
            fields = exchange.request.fields
            fields.block = fields.block.replace(line, line[:-19] + attempt.span_id.encode() + line[-3:], 1)
        return attempt

    def end(self, exchange: Exchange) -> None:
        tracer, status, reason = self._tracer, logged_status(exchange), exchange.reason
        if not self.is_sampled and status < 500 and (reason is _OK or exchange.denied):
            return
        authority, identity = exchange.authority, exchange.identity
        self.facts = ExchangeFacts(
            exchange.method, exchange.scheme, "" if authority is None else authority.host,
            0 if authority is None else authority.port, exchange.is_tunnel, exchange.gateway, exchange.listener,
            exchange.route, exchange.backend, identity.namespace, identity.service_account, status, reason.value,
            exchange.grpc_status,
        )  # fmt: skip
        self.started_wall = exchange.started_wall
        self.started_at = exchange.started_at
        self.ended_at = exchange.ended_at
        self.path = exchange.path
        self.client = exchange.client
        self.bytes_in = exchange.bytes_in
        self.bytes_out = exchange.bytes_out
        self.details = exchange.state.get(LOGGED)
        if tracer.fields and exchange.has_response:
            known = {name for name, _ in self.headers or ()}
            of_answer = tuple(each for each in tracer.fields if each[0] not in known)
            self.headers = (self.headers or []) + _read(of_answer, exchange.response.fields)
        tracer.export(self)


class TracedCaller:
    """An UpstreamCaller that has a span for each attempt of `caller`."""

    __slots__ = ("_attempt", "_caller", "_exchange", "_recording")

    may_flow: ClassVar[bool] = True

    def __init__(self, caller: Any, exchange: Exchange, recording: Recording) -> None:
        self._caller = caller
        self._exchange = exchange
        self._recording = recording
        self._attempt: Attempt | None = None

    @property
    def driver(self) -> Driver:
        """That of the caller."""
        driver: Driver = self._caller.driver
        return driver

    def start_attempt(self) -> None:
        self._caller.start_attempt()
        self._attempt = self._recording.begin_attempt(self._exchange)

    def count_attempt(self, result: str) -> None:
        self._end(0, result)
        self._caller.count_attempt(result)

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        self._end(exchange.response.status, "")
        self._caller.count_answer(exchange, seconds)

    def send_request(self, exchange: Exchange, upstream: Any, body: Any, pseudonym: bytes) -> None:
        self._caller.send_request(exchange, upstream, body, pseudonym)

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        self._caller.pass_interim(head, exchange)

    def _end(self, status: int, reason: str) -> None:
        attempt, exchange = self._attempt, self._exchange
        if attempt is None:
            return
        attempt.status = status
        attempt.reason = reason
        attempt.backend = exchange.backend
        attempt.host = exchange.upstream_host
        attempt.is_secure = exchange.backend_is_secure
        attempt.path = exchange.request.path
        attempt.upstream = exchange.upstream
        if reason:
            attempt.ended = monotonic()


def _read(named: tuple[tuple[str, bytes], ...], fields: Fields) -> list[tuple[str, str]]:
    found = ((name, fields.get(field)) for name, field in named)
    return [(name, value[:_MAX_FIELD].decode("latin-1")) for name, value in found if value is not None]
