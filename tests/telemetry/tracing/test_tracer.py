"""A recording: the order of events around an attempt, and exemplars."""

from types import SimpleNamespace
from typing import Any

from egressproxy.filters.testing import exchange
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import CollectorIR, TracingIR
from egressproxy.telemetry.series import DURATION, Series
from egressproxy.telemetry.tracing.context import traceparent
from egressproxy.telemetry.tracing.tracer import OwnTracer, Recording

TRACE_ID, FIRST = b"4bf92f3577b34da6a3ce929d0e0e4736", b"b7ad6b7169203331"
COLLECTOR = CollectorIR(WeightedBackend(BackendIR("a/otel", Destination.FQDN, "otel.example", 4318)))


def tracer() -> OwnTracer:
    exporter: Any = SimpleNamespace(put_exchange=repr)
    return OwnTracer(TracingIR(COLLECTOR), exporter)


def test_an_attempt_may_end_behind_its_exchange():
    x = exchange("GET", "http://a.example/")
    line = traceparent(TRACE_ID, FIRST, 1)
    recording = Recording(tracer(), line, TRACE_ID, TRACE_ID[16:], is_sampled=True)
    x.trace = recording
    span_id = recording.start_attempt(x)
    x.forget_state()
    recording.end_attempt(x, span_id, 0.0, "cancelled")
    assert recording.attempts is not None
    assert recording.attempts[0][0] == FIRST


def test_an_exemplar_gives_way_to_a_slower_or_later_one():
    """Exchanges that end at 100.0 s and behind, in `series` one after the other."""
    series = Series(("ns/gw", *"------"))
    ours, shown = tracer(), []
    for number, (at_s, took_s) in enumerate(
        ((100.0, 0.02), (100.05, 0.02), (100.06, 0.09), (100.2, 50.0), (101.4, 0.02))
    ):
        trace_id = b"%032x" % number
        x = exchange("GET", "http://a.example/")
        x.series, x.started_at, x.ended_at = series, at_s - took_s, at_s
        recording = Recording(ours, traceparent(trace_id, FIRST, 1), trace_id, FIRST, is_sampled=True)
        recording.end(x)
        shown.append(trace_id in {each[0] for each in series.exemplars_of(DURATION).values()})
    assert shown == [True, False, True, True, True]
