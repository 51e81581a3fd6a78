"""TLS handshakes of this process, as a metric: which of them resumed a session, and which failed."""

from __future__ import annotations

from egressproxy.net.tls import handshakes
from egressproxy.telemetry.counts import FilterMetric, MetricKind


def read_handshakes() -> dict[str, FilterMetric]:
    """The metric by its name; none before the first handshake."""
    if not handshakes:
        return {}
    values: dict[tuple[str, ...], float] = {labels: float(count) for labels, count in handshakes.items()}
    text = "TLS handshakes with clients, and with backends and DNS servers, by what became of them."
    return {"egress_tls_handshakes": FilterMetric(MetricKind.COUNTER, text, ("side", "result"), values)}
