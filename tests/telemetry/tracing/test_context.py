"""W3C contexts, beside OpenTelemetry's own propagator."""

import pytest

from egressproxy.telemetry.tracing.context import (
    IS_SAMPLED,
    MAX_TRACESTATE,
    NewContexts,
    TraceContext,
    find_lines,
    read_context,
    read_tracestate,
    traceparent,
)
from egressproxy.telemetry.tracing.sampling import Ratio

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
GOOD = b"00-%b-%b-01" % (TRACE, SPAN)


def test_a_traceparent_is_read():
    assert read_context([GOOD]) == TraceContext(TRACE, SPAN, 1)
    assert read_context([GOOD[:-2] + b"00"]) == TraceContext(TRACE, SPAN, 0)
    assert read_context([GOOD[:-2] + b"ff"]) == TraceContext(TRACE, SPAN, 3)  # sampled, and random


def test_a_later_version_is_read_as_far_as_it_is_known():
    assert read_context([b"cc" + GOOD[2:] + b"-what-the-future-holds"]) == TraceContext(TRACE, SPAN, 1)


MALFORMED = [
    b"", GOOD.upper(), GOOD[:-1], GOOD + b"0", GOOD + b"-more", b"ff" + GOOD[2:], b" " + GOOD, b"cc" + GOOD[2:] + b".x",
    GOOD.replace(TRACE, b"0" * 32), GOOD.replace(SPAN, b"0" * 16), GOOD.replace(b"-", b"_"),
    GOOD.replace(b"4b", b"4g"), GOOD[:-2] + b"0x", GOOD + b", " + GOOD,
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_traceparent_counts_as_none(value):
    assert read_context([value]) is None


@pytest.mark.parametrize("value", [GOOD, GOOD[:-2] + b"03", b"cc" + GOOD[2:] + b"-more", *MALFORMED])
def test_a_line_is_taken_apart_at_once_only_where_it_is_valid(value):
    ((line, *parts),) = find_lines(b"\r\nHost: a\r\nTraceParent: %b\r\nX-Traceparent: no" % value)
    read = read_context([value.strip()])
    if line:
        assert line == b"TraceParent: " + value
        assert read == TraceContext(parts[0], parts[1], int(parts[2], 16))
    else:
        assert read is None or not value.startswith(b"00")


@pytest.mark.parametrize("name", [b"traceparent", b"TRACESTATE", b"Trace_Parent", b"-trace-state_", b"__traceparent"])
def test_every_spelling_of_a_context_is_found(name):
    line = b"\r\n%b: %b" % (name, GOOD)
    found = find_lines(b"\r\nTrace: 1" + line + b"\r\nX-Trace: 2\r\nUber-Trace-Id: 3" + line)
    assert len(found) == 2
    assert (found[0][0] != b"") is (name == b"traceparent")


def test_of_two_traceparents_neither_counts():
    assert read_context([GOOD, GOOD]) is None
    assert read_context([]) is None


def test_the_sdk_reads_the_same_contexts():
    trace = pytest.importorskip("opentelemetry.trace")
    propagation = pytest.importorskip("opentelemetry.trace.propagation.tracecontext")
    for value in (GOOD, GOOD[:-2] + b"03", *MALFORMED):
        if value == GOOD + b", " + GOOD or value != value.strip():
            continue  # the SDK takes blanks, and what is behind the flags of version 00, more kindly
        carrier = {"traceparent": value.decode()}
        read = trace.get_current_span(propagation.TraceContextTextMapPropagator().extract(carrier)).get_span_context()
        ours = read_context([value])
        assert read.is_valid == (ours is not None), value
        if ours is not None:
            assert trace.format_trace_id(read.trace_id).encode() == ours.trace_id
            assert trace.format_span_id(read.span_id).encode() == ours.span_id
            assert read.trace_flags == ours.flags


def test_members_of_a_tracestate_keep_their_order():
    assert read_tracestate([b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"]) == b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
    assert read_tracestate([b"a=1 , ,b=2", b"c@d=3"]) == b"a=1,b=2,c@d=3"


@pytest.mark.parametrize("values", [[b"a"], [b"A=1"], [b"a=1,a=2"], [b"a=1=2"], [b"a="], [b"a=1", b"a=2"], [b"a=\x80"]])
def test_a_malformed_tracestate_is_dropped_alone(values):
    assert read_tracestate(values) == b""
    assert read_context([GOOD], values) == TraceContext(TRACE, SPAN, 1)


def test_a_tracestate_is_bounded():
    assert read_tracestate([b",".join(b"k%d=v" % each for each in range(33))]) == b""
    long = b"long=" + b"x" * 200
    many = [b"k%02d=%b" % (each, b"y" * 30) for each in range(20)]
    kept = read_tracestate([b",".join((long, *many))])
    assert kept.split(b",") == many[: len(kept.split(b","))]  # the long one goes first, then the last ones
    assert MAX_TRACESTATE - 40 < len(kept) <= MAX_TRACESTATE


def test_ids_are_never_all_zero(monkeypatch):
    blocks = [b"\x01" * 8, b"\x02" * 8, bytes(8) + b"\x02" * 8, b"\x03" * 8, b"\x04" * 8]
    monkeypatch.setattr("os.urandom", lambda _size: blocks.pop(0))
    line = NewContexts(Ratio(1.0)).lines()[0]
    assert line == b"\r\ntraceparent: 00-" + b"01" * 8 + b"03" * 8 + b"-" + b"04" * 8 + b"-03"


def test_new_contexts_differ():
    new = NewContexts(Ratio(1.0))
    lines = [line for _ in range(16) for line in new.lines()]
    assert len({line[18:50] for line in lines}) == len({line[51:67] for line in lines}) == 1024
    assert len({new.span_id() for _ in range(1000)}) == 1000
    for line in lines:
        assert line == traceparent(line[18:50], line[51:67], 3)
        assert read_context([line.removeprefix(b"\r\ntraceparent: ")])


def test_a_new_context_is_sampled_by_its_trace_id():
    ratio = Ratio(0.3)
    new = NewContexts(ratio)
    lines = [line for _ in range(16) for line in new.lines()]
    assert all((line[-1] == IS_SAMPLED) == (line[34:50] < ratio.bound) for line in lines)
    assert 200 < sum(line[-1] == IS_SAMPLED for line in lines) < 400
