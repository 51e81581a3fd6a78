"""Tracers of listeners, and the exporters that they share. Imported only where a Gateway traces."""

from __future__ import annotations

import os
import socket

from egressproxy import __version__
from egressproxy.gateway.builders.reusable_components import ReusableComponents
from egressproxy.gateway.own_calls.otlp_sender import OtlpSender
from egressproxy.gateway.snapshot import Exporters
from egressproxy.ir.telemetry import CollectorIR, TracingIR
from egressproxy.model.exchange_trace import Exporter, Tracer
from egressproxy.telemetry.metrics import Metrics
from egressproxy.telemetry.tracing.exporter import SpanExporter
from egressproxy.telemetry.tracing.otlp import Encoder
from egressproxy.telemetry.tracing.tracer import OwnTracer


def tracer_of(
    spec: TracingIR, parts: ReusableComponents, known: Exporters, made: Exporters, metrics: Metrics
) -> Tracer:
    """The tracer of a listener. Its exporter is one of those that are `made` or `known`, or is added to `made`."""
    collector = spec.collector
    denied, cluster = parts.reachable(collector.backend)
    key = collector, cluster
    exporter: Exporter | None = made.get(key) or known.get(key)
    if exporter is None:
        fault = denied.error().message if denied is not None and cluster is None else collector.backend.error
        sender = OtlpSender(collector, cluster, parts.chain(collector.backend.extensions), fault)
        exporter = SpanExporter(sender.name, sender.send, Encoder(_resource(collector), __version__), metrics.spans)
    made[key] = exporter
    assert isinstance(exporter, SpanExporter)
    return OwnTracer(spec, exporter)


def _resource(collector: CollectorIR) -> dict[str, str]:
    """The attributes of this process. A name is that of the service in the policy, or of its operator's environment."""
    return {
        "service.name": collector.service_name,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        "telemetry.sdk.name": "egressproxy",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
    }
