"""Endpoints, parents and backends of Failovers that leave service or return: what is counted, and told of them."""

from __future__ import annotations

from functools import partial

from egressproxy.errors import Reason
from egressproxy.gateway.backends.network import NetworkReports
from egressproxy.ir.backend import BackendIR
from egressproxy.telemetry.event_aggregator import EventAggregator, EventType, InvolvedObject
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.endpoint_health import EndpointHealth, HealthState, Why

OWN = ".egressproxy.io"


def reports_to(metrics: Metrics) -> NetworkReports:
    """What happens on the way to backends, counted and told there."""
    queries = metrics.dns_queries
    return NetworkReports(
        metrics.count_dns, queries.count, queries.count_reverse, partial(report_endpoint, metrics),
        partial(report_parent, metrics), partial(report_failover, metrics.notices),
    )  # fmt: skip


def report_endpoint(metrics: Metrics, health: EndpointHealth, why: Why) -> None:
    """Count an ejection; an Event in any case, at the backend's object."""
    backend = InvolvedObject.of(health.kind.removesuffix(OWN), health.name)
    notices = metrics.notices
    if health.state is HealthState.HEALTHY:
        message = f"endpoint {health.address} takes requests again: {why.text}"
        notices.changed("Balance", backend, "EndpointReturned", message, EventType.NORMAL)
        return
    metrics.count_ejection(health.backend, health.address, why.value)
    reason = "EndpointEjected" if health.state is HealthState.EJECTED else "EndpointUnhealthy"
    notices.changed("Balance", backend, reason, f"endpoint {health.address} takes no requests: {why.text}")


def report_parent(metrics: Metrics, parent: BackendIR, reason: Reason | None, message: str) -> None:
    """Count that it is put aside; an Event in any case, at the parent's object."""
    backend = InvolvedObject.of(parent.kind.removesuffix(OWN), parent.name)
    if reason is None:
        metrics.notices.changed("Balance", backend, "ParentReturned", message, EventType.NORMAL)
        return
    metrics.parents_put_aside[parent.name, reason.value] += 1
    metrics.notices.changed("Balance", backend, "ParentPutAside", message)


def report_failover(notices: EventAggregator, backend: BackendIR, why: str, aside: float) -> None:
    """An Event at the backend's object. `aside`: the seconds for which it is put aside; 0.0 where it returns."""
    regarding = InvolvedObject.of(backend.kind.removesuffix(OWN), backend.name)
    if aside:
        message = f"{why}: a Failover asks others for {aside:.0f} s, and then tries it"
        notices.changed("Balance", regarding, "BackendPutAside", message)
        return
    notices.changed("Balance", regarding, "BackendReturned", f"{why}: it takes requests again", EventType.NORMAL)
