"""Metrics as OTLP, with cumulative temporality: what a scrape shows, as ExportMetricsServiceRequests. Pure.

Source: opentelemetry-proto, metrics/v1/metrics.proto; OpenTelemetry specification, "Prometheus and OpenMetrics
Compatibility".
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Iterator
from struct import Struct, pack
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from egressproxy.telemetry.otlp.messages import Envelope, key_value
from egressproxy.telemetry.protobuf import number, sized

#: Bytes of data points in one request: collectors read messages of gRPC up to 4 MiB.
MAX_REQUEST: Final = 1024 * 1024
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9
_CUMULATIVE: Final = number(2, 2)
_MONOTONIC: Final = number(3, True)
#: start_time_unix_nano and time_unix_nano, with their tags.
_TIMES: Final = Struct("<cQcQ").pack
_START, _TIME = b"\x11", b"\x19"
_FIXED: Final = Struct("<cQ").pack
_FLOAT: Final = Struct("<cd").pack
_UNITS: Final = {"seconds": "s", "bytes": "By"}

Labels = tuple[tuple[str, str], ...]


class MetricEncoder:
    """Encodes for one resource. `started_ns`: since when all is counted, in nanoseconds since 1970."""

    __slots__ = ("_envelope", "_started_ns")

    def __init__(self, envelope: Envelope, started_ns: int) -> None:
        self._envelope = envelope
        self._started_ns = started_ns

    def requests(self, families: Iterable[Metric], now_ns: int) -> Iterator[tuple[bytes, int]]:
        """These metrics in as many requests as they need, with the number of data points in each."""
        times = _TIMES(_START, self._started_ns, _TIME, now_ns)
        metrics: list[bytes] = []
        size = count = 0
        for family in families:
            kind, points = _points(family, times)
            while points:
                part: list[bytes] = []
                while points and (not (part or metrics) or size + len(points[-1]) <= MAX_REQUEST):
                    size += len(points[-1])
                    part.append(points.pop())
                if part:
                    metrics.append(_metric(family, kind, part))
                    count += len(part)
                if points:
                    yield self._envelope.request(metrics), count
                    metrics = []
                    size = count = 0
        if metrics:
            yield self._envelope.request(metrics), count


def _metric(family: Metric, kind: int, points: Iterable[bytes]) -> bytes:
    data = b"".join(sized(1, each) for each in points)
    if kind != _GAUGE:
        data += _CUMULATIVE
    if kind == _SUM:
        data += _MONOTONIC
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    described = sized(1, family.name.encode()) + sized(2, family.documentation.encode())
    return described + (sized(3, unit.encode()) if unit else b"") + sized(kind, data)


def _points(family: Metric, times: bytes) -> tuple[int, list[bytes]]:
    """The kind of a metric, and its data points, the last one first."""
    if family.type == "histogram":
        found: dict[Labels, list[Sample]] = {}
        for sample in family.samples:
            labels = tuple(each for each in sample.labels.items() if each[0] != "le")
            found.setdefault(labels, []).append(sample)
        return _HISTOGRAM, [_histogram(labels, samples, times) for labels, samples in reversed(found.items())]
    values = [each for each in family.samples if not each.name.endswith("_created")]
    # Prometheus and its clients know no other kinds that are counted.
    kind = _SUM if family.type == "counter" else _GAUGE
    own_times = times if kind == _SUM else times[9:]
    return kind, [
        _attributes(7, tuple(each.labels.items())) + own_times + _FLOAT(b"\x21", each.value)
        for each in reversed(values)
    ]


def _histogram(labels: Labels, samples: Iterable[Sample], times: bytes) -> bytes:
    """Of buckets in ascending order, each of which counts what is in those before, too."""
    parts, bounds, counts = [_attributes(9, labels), times], [], []
    before = 0
    for sample in samples:
        value = sample.value
        if sample.name.endswith("_bucket"):
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
            counts.append(int(value) - before)
            before = int(value)
            shown = sample.exemplar
            if shown is not None:
                ids = (unhexlify(shown.labels[name]) for name in ("span_id", "trace_id"))
                stamp = _FIXED(b"\x11", int(float(shown.timestamp or 0) * 1e6) * 1000) + _FLOAT(b"\x19", shown.value)
                parts.append(sized(8, stamp + b"".join(sized(4 + at, each) for at, each in enumerate(ids))))
        elif sample.name.endswith("_sum"):
            parts.append(_FLOAT(b"\x29", value))
    parts += [_FIXED(b"\x21", before), sized(6, pack(f"<{len(counts)}Q", *counts))]
    parts.append(sized(7, pack(f"<{len(bounds)}d", *bounds)))
    return b"".join(parts)


def _attributes(field: int, labels: Labels) -> bytes:
    return b"".join(sized(field, key_value(*each)) for each in labels)
