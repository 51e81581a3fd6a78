"""Tracers of listeners, and exporters of all signals. Imported only where a Gateway traces, or a process exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from egressproxy import __version__
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.builders.reusable_components import ReusableComponents
from egressproxy.gateway.own_calls.otlp_sender import OtlpSender
from egressproxy.gateway.snapshot import Exporters, Snapshot
from egressproxy.ir.telemetry import CollectorIR, Signal, TracingIR
from egressproxy.model.exchange_trace import Exporter, Tracer
from egressproxy.telemetry.metrics import Metrics
from egressproxy.telemetry.otlp.logs import LogEncoder, LogExporter
from egressproxy.telemetry.otlp.messages import Envelope, resource_of
from egressproxy.telemetry.tracing.exporter import SpanExporter
from egressproxy.telemetry.tracing.otlp import Encoder
from egressproxy.telemetry.tracing.tracer import OwnTracer


def tracer_of(
    spec: TracingIR, parts: ReusableComponents, known: Exporters, made: Exporters, metrics: Metrics
) -> Tracer:
    """The tracer of a listener. Its exporter is one of those that are `made` or `known`, or is added to `made`."""

    def exporter_to(sender: OtlpSender) -> Exporter:
        encoder = Encoder(resource_of(spec.collector), __version__)
        return SpanExporter(sender.name, sender.send, encoder, metrics.spans)

    exporter = _exporter(spec.collector, parts, known, made, exporter_to)
    assert isinstance(exporter, SpanExporter)
    return OwnTracer(spec, exporter)


def with_exports(
    snapshot: Snapshot, collectors: Iterable[CollectorIR], parts: ReusableComponents, known: Exporters, metrics: Metrics
) -> Snapshot:
    """This snapshot with what sends the access log and the metrics to their collectors."""
    for collector in collectors:
        if collector.signal is Signal.METRICS:
            snapshot = replace(snapshot, send_metrics=_sender(collector, parts)[0].send)
            continue

        def exporter_to(sender: OtlpSender, to: CollectorIR = collector) -> Exporter:
            encoder = LogEncoder(Envelope(resource_of(to)))
            return LogExporter(sender.name, sender.send, encoder, metrics.log_records, "access log")

        exporter = _exporter(collector, parts, known, snapshot.exporters, exporter_to)
        assert isinstance(exporter, LogExporter)
        snapshot = replace(snapshot, line_exporter=exporter)
    return snapshot


def _exporter(
    collector: CollectorIR, parts: ReusableComponents, known: Exporters, made: Exporters,
    exporter_to: Callable[[OtlpSender], Exporter],
) -> Exporter:  # fmt: skip
    sender, key = _sender(collector, parts)
    exporter = made[key] = made.get(key) or known.get(key) or exporter_to(sender)
    return exporter


def _sender(collector: CollectorIR, parts: ReusableComponents) -> tuple[OtlpSender, tuple[CollectorIR, Cluster | None]]:
    denied, cluster = parts.reachable(collector.backend)
    fault = denied.error().message if denied is not None and cluster is None else collector.backend.error
    sender = OtlpSender(collector, cluster, parts.chain(collector.backend.extensions), fault)
    return sender, (collector, cluster)
