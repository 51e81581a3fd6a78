"""OwnTracer: reads the context of a request, decides whether its trace is recorded, and writes the context for others.

A trace that is not recorded has no span of ours: a valid context of the client then goes on as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from egressproxy.errors import Reason
from egressproxy.ir.telemetry import AttributeSource, TracingIR
from egressproxy.model.exchange import LOGGED, Exchange
from egressproxy.model.exchange_trace import ExchangeTrace, Tracer
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.message import RequestHead
from egressproxy.telemetry.series import ANSWER, DURATION, FIRST_BYTE, NEVER, Series, logged_status
from egressproxy.telemetry.tracing.attributes import GRPC_FAULTS, split_host
from egressproxy.telemetry.tracing.context import (
    FLAGS_OF,
    IS_SAMPLED,
    SAMPLED,
    NewContexts,
    TraceContext,
    find_lines,
    read_context,
    traceparent,
)
from egressproxy.telemetry.tracing.exporter import SpanExporter
from egressproxy.telemetry.tracing.sampling import Ratio
from egressproxy.telemetry.tracing.span import MAX_CHILDREN, ExchangeSpans, SpanSettings, Wait

#: What a client says of a trace.
_OF_TRACE: Final = every_spelling(("traceparent", "tracestate"))
_TRACEPARENT: Final = every_spelling(("traceparent",))
_TRACESTATE: Final = every_spelling(("tracestate",))
#: What a client says of a trace, and what it gives to everybody behind (W3C Baggage).
_OF_CLIENT: Final = every_spelling(("traceparent", "tracestate", "baggage"))
#: One search for both fields: two would take twice as long.
_ABOUT: Final = re.compile(
    rb"\r\n(?=[UuXx])(?:(?i:user-agent):[ \t]*+([^\r]{0,256})|(?i:x-request-id):[ \t]*+([^\r]{0,256}))"
)
#: Bytes of an id that JSON does not escape.
_PLAIN: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_./:=+-"
_OK: Final = Reason.OK
_OK_TEXT: Final = _OK.value
#: The least time between two exchanges of one series that leave exemplars. A slow one counts as if it had ended later,
#: by the time that it took, up to _MAX_LEAD_S.
EXEMPLARS_S: Final = 0.1
_MAX_LEAD_S: Final = 1.0
#: Greater than all digits.
_NEVER_REACHED: Final = b"g"
#: Longer values of a client's are cut.
_MAX_FIELD: Final = 256


_Answer = tuple[Series, bytes, float, float]


class OwnTracer(Tracer):
    """One for each listener."""

    __slots__ = (
        "_bound", "_continues", "_keeps_errors", "_lines", "_parent_bound", "_unrecorded", "contexts", "copies",
        "exporter", "fields", "settings",
    )  # fmt: skip

    def __init__(self, spec: TracingIR, exporter: SpanExporter) -> None:
        ratio = Ratio(spec.share)
        #: As of `Ratio.bound`. The second one holds for traces that a client has sampled, and None where it has no say.
        self._bound = ratio.bound
        self._parent_bound = Ratio(spec.parent_share).bound if spec.parent_share is not None else None
        #: A client's trace with these digits, or greater ones, is not recorded in any case.
        self._unrecorded = _NEVER_REACHED if spec.keeps_errors else self._parent_bound or self._bound
        self.contexts = NewContexts(ratio)
        self._lines: list[bytes] = []
        self.exporter = exporter
        self._continues = spec.continues
        self._keeps_errors = spec.keeps_errors
        of_kind = {
            source: tuple((each.name, each.value) for each in spec.attributes if each.source is source)
            for source in AttributeSource
        }
        self.settings = SpanSettings(
            spec.span_name, of_kind[AttributeSource.LITERAL], of_kind[AttributeSource.ATTRIBUTE]
        )
        self.copies = of_kind[AttributeSource.ATTRIBUTE]
        #: The attributes that header fields give, with the names of those.
        self.fields = tuple((name, field.encode()) for name, field in of_kind[AttributeSource.HEADER])

    def start(self, exchange: Exchange, head: RequestHead | None) -> None:
        if head is not None:
            fields = head.fields
            if not self._continues:
                fields.cut(_OF_CLIENT)
            else:
                found = find_lines(fields.block)
                if found:
                    given, trace_id, parent_id, flags = found[0]
                    if given and len(found) == 1:  # the usual case
                        if trace_id[16:] >= self._unrecorded:
                            return
                        self._continue(exchange, fields, given, trace_id, parent_id, FLAGS_OF[flags[1]], b"")
                        return
                    parent = _take_context(fields)
                    if parent is not None:
                        self._continue(
                            exchange, fields, b"", parent.trace_id, parent.span_id, parent.flags, parent.tracestate
                        )
                        return
        if not self._lines:
            self._lines = self.contexts.lines()
        line = self._lines.pop()
        is_sampled = line[-1] == IS_SAMPLED
        if is_sampled or self._keeps_errors:
            trace_id = line[18:50]
            recording = exchange.trace = Recording(self, line, trace_id, trace_id[16:], is_sampled)
            if head is not None:
                recording.read(head.fields)
        if head is not None:
            head.fields.block += line

    def _continue(
        self, exchange: Exchange, fields: Fields, given: bytes, trace_id: bytes, parent_id: bytes, flags: int,
        tracestate: bytes,
    ) -> None:  # fmt: skip
        """Go on with the context of a client. `given`: its one line, without CRLF; b"": there are others."""
        bound = self._parent_bound
        if bound is None:
            is_sampled = trace_id[16:] < self._bound
        else:
            is_sampled = flags & SAMPLED != 0 and trace_id[16:] < bound
        if not is_sampled and not self._keeps_errors:
            return
        contexts = self.contexts
        line = traceparent(trace_id, contexts.span_id(), flags | is_sampled)
        recording = exchange.trace = Recording(self, line, trace_id, contexts.span_id(), is_sampled)
        recording.parent_id = parent_id
        recording.tracestate = tracestate
        recording.read(fields)
        if given:
            fields.block = fields.block.replace(b"\r\n" + given, line, 1)  # the whole line: others may end like it
        else:
            fields.cut(_TRACEPARENT)
            fields.block += line


def _take_context(fields: Fields) -> TraceContext | None:
    """The client's context, which stays in the fields; None for an invalid one, which does not, and for none."""
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
    """The trace of an exchange. `is_sampled` false: it is exported only if the exchange fails.

    `line` is the context that goes on, with `unused_id`: that of the first attempt, b"" once there is one. `answer` is
    of the last attempt that has one: the series that counts it, the span, its beginning, and its seconds.
    """

    __slots__ = ("answer", "line", "tracer", "unused_id")

    def __init__(self, tracer: OwnTracer, line: bytes, trace_id: bytes, span_id: bytes, is_sampled: bool) -> None:
        super().__init__(tracer.settings, trace_id, span_id, is_sampled)
        self.tracer = tracer
        self.line = line
        self.unused_id = line[51:67]
        self.answer: _Answer | None = None

    def read(self, fields: Fields) -> None:
        """Take what the client says of itself and of its request."""
        for agent, request_id in _ABOUT.findall(fields.block):
            if agent:
                self.user_agent = agent.rstrip()
            elif request_id:
                self.request_id = request_id.rstrip()
        if self.tracer.fields:
            self.headers = _read(self.tracer.fields, fields)

    @property
    def log_text(self) -> str:
        given = self.request_id
        if not given:
            return f'"trace_id":"{self.trace_id.decode()}"'
        if not given.translate(None, _PLAIN):
            return f'"trace_id":"{self.trace_id.decode()}","x_request_id":"{given.decode()}"'
        return f'"trace_id":"{self.trace_id.decode()}","x_request_id":{json.dumps(given.decode("utf-8", "replace"))}'

    @property
    def ids(self) -> tuple[bytes, bytes]:
        return self.trace_id, self.span_id

    @property
    def sampled_ids(self) -> tuple[bytes, bytes] | None:
        return self.ids if self.is_sampled else None

    def below(self, parent_id: bytes) -> Recording:
        """As of ExchangeTrace: what the client says of itself holds for it, too."""
        made = Recording(self.tracer, self.line, self.trace_id, self.tracer.contexts.span_id(), self.is_sampled)
        made.parent_id, made.user_agent, made.request_id = parent_id, self.user_agent, self.request_id
        made.headers = self.headers
        return made

    def start_attempt(self, exchange: Exchange) -> bytes:
        """As of ExchangeTrace. The span of the attempt is the parent of what is behind."""
        span_id = self.unused_id
        if span_id:
            self.unused_id = b""
        else:
            span_id = self.tracer.contexts.span_id()
            fields = exchange.request.fields
            block = fields.block
            at = block.rfind(self.line)
            if at >= 0:
                fields.block = block[: at + 51] + span_id + block[at + 67 :]
        exchange.attempt_span_id = span_id
        return span_id

    def end_attempt(self, exchange: Exchange, span_id: bytes, began: float, reason: str) -> None:
        self._keep_attempt(exchange, span_id, began, monotonic(), 0, reason)

    def answer_attempt(self, exchange: Exchange, span_id: bytes, began: float, seconds: float) -> None:
        self._keep_attempt(exchange, span_id, began, -(began + seconds), exchange.response.status, "")
        if self.answer is not None and self.is_sampled:
            self._show_answer(exchange, self.answer)
        self.answer = exchange.series, span_id, began, seconds

    def _keep_attempt(
        self, exchange: Exchange, span_id: bytes, began: float, ended: float, status: int, reason: str
    ) -> None:
        request = exchange.request
        attempt = (
            span_id, began, ended, request.path,
            (
                request.method, exchange.backend_is_secure, exchange.upstream_host, exchange.backend, exchange.upstream,
                status, reason,
            ),
        )  # fmt: skip
        if self.attempts is None:
            self.attempts = [attempt]
        elif len(self.attempts) < MAX_CHILDREN:
            self.attempts.append(attempt)

    def add_wait(
        self, exchange: Exchange, name: str, began: float, attributes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        if self.waits is None:
            self.waits = []
        waits, parent_id = self.waits, exchange.attempt_span_id
        if any(attempt[0] == parent_id for attempt in self.attempts or ()):  # it has its answer
            parent_id = b""
        if attributes and waits and (waits[-1].attributes, waits[-1].parent_id) == (attributes, parent_id):
            waits[-1] = waits[-1]._replace(ended=monotonic())
        elif len(waits) < MAX_CHILDREN:
            waits.append(Wait(name, self.tracer.contexts.span_id(), began, monotonic(), parent_id, attributes))

    def add_attributes(self, attributes: Mapping[str, str | float]) -> None:
        self.details = {**(self.details or {}), **attributes}

    def end(self, exchange: Exchange) -> None:
        status, reason = exchange.status or logged_status(exchange), exchange.reason
        if not self.is_sampled and not _has_failed(exchange, status):
            return
        authority, identity = exchange.authority, exchange.identity
        host, port = ("", 0) if authority is None else (authority.host, authority.port)
        self.facts = (
            exchange.method, exchange.scheme, host, port, exchange.is_tunnel, exchange.gateway, exchange.listener,
            exchange.route, exchange.backend, identity.namespace, identity.service_account, status,
            _OK_TEXT if reason is _OK else reason.value, exchange.grpc_status,
        )  # fmt: skip
        self.started_wall = exchange.started_wall
        self.started_at = exchange.started_at
        self.ended_at = exchange.ended_at
        self.path = exchange.path
        self.client = exchange.client
        logged = exchange.state.get(LOGGED)
        if logged is not None:
            self.details = {**logged, **(self.details or {})}
        if self.tracer.fields or self.tracer.copies:
            self._add_named(exchange)
        self.tracer.exporter.put_exchange(self)
        series = exchange.series
        took_s = exchange.ended_at - exchange.started_at
        rank = exchange.ended_at + (took_s if took_s < _MAX_LEAD_S else _MAX_LEAD_S)
        if rank >= series.next_exemplars:
            series.next_exemplars = rank + EXEMPLARS_S
            self._show_exemplars(exchange, took_s)

    def _show_exemplars(self, exchange: Exchange, took_s: float) -> None:
        if self.answer is not None:
            self._show_answer(exchange, self.answer)
        series, first_at = exchange.series, exchange.first_byte_at
        exemplar = (self.trace_id, self.span_id, took_s, exchange.started_wall + took_s)
        series.show(DURATION, exemplar)
        if not first_at:
            series.show(FIRST_BYTE, exemplar)
        elif first_at != NEVER:
            series.show(FIRST_BYTE, (*exemplar[:2], first_at - exchange.started_at, exemplar[3]))

    def _show_answer(self, exchange: Exchange, answer: _Answer) -> None:
        series, span_id, began, seconds = answer
        at_s = exchange.started_wall + (began - exchange.started_at) + seconds
        series.show(ANSWER, (self.trace_id, span_id, seconds, at_s))

    def _add_named(self, exchange: Exchange) -> None:
        """Add the attributes that the response gives, and copies of those that are of this exchange alone."""
        found = [*(self.headers or ())]  # `below` shares it
        if exchange.has_response:
            known = {name for name, _ in found}
            found += _read([each for each in self.tracer.fields if each[0] not in known], exchange.response.fields)
        if self.tracer.copies:
            own = {key: str(value).encode() for key, value in (self.details or {}).items()} | {
                "url.path": self.path.removeprefix(b"-"), "client.address": split_host(self.client, 0)[0].encode(),
                "user_agent.original": self.user_agent, "http.request.header.x-request-id": self.request_id,
            }  # fmt: skip
            found += [(name, own[key]) for name, key in self.tracer.copies if own.get(key)]
        self.headers = found


def _has_failed(exchange: Exchange, status: int) -> bool:
    is_fault = exchange.reason is not _OK and not exchange.denied
    return is_fault or status >= 500 or exchange.grpc_status in GRPC_FAULTS


def _read(named: Sequence[tuple[str, bytes]], fields: Fields) -> list[tuple[str, bytes]]:
    found = ((name, fields.get(field)) for name, field in named)
    return [(name, value[:_MAX_FIELD]) for name, value in found if value is not None]
