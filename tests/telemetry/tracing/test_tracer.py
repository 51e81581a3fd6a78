"""The order of events around a traced attempt."""

from egressproxy.filters.testing import exchange
from egressproxy.model.exchange_trace import TRACE
from egressproxy.telemetry.tracing.context import traceparent
from egressproxy.telemetry.tracing.span import SpanSettings
from egressproxy.telemetry.tracing.tracer import Recording

TRACE_ID, FIRST = b"4bf92f3577b34da6a3ce929d0e0e4736", b"b7ad6b7169203331"


def test_an_attempt_may_end_behind_its_exchange():
    x = exchange("GET", "http://a.example/")
    recording = Recording(SpanSettings(), TRACE_ID, TRACE_ID[16:], is_sampled=True)
    recording.line, recording.unused_id = traceparent(TRACE_ID, FIRST, 1), FIRST
    x.keep(TRACE, recording)
    span_id = recording.start_attempt(x)
    x.forget_state()
    recording.end_attempt(x, span_id, 0.0, "cancelled")
    assert recording.attempts is not None
    assert recording.attempts[0][0] == FIRST
