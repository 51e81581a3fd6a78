"""What the policies that win say of endpoints: `loadBalancer`, `healthCheck` and `circuitBreaker` of `traffic`."""

from __future__ import annotations

from egressproxy.config.resources.resilience import (
    ActiveHealthCheck,
    CircuitBreaker,
    HttpHealthCheck,
    LoadBalancer,
    PassiveHealthCheck,
)
from egressproxy.ir.resilience import (
    CheckType,
    CircuitBreakerIR,
    HashSource,
    HealthCheckIR,
    LoadBalancerIR,
    LoadBalancerType,
    OutlierDetectionIR,
)


def load_balancer(written: LoadBalancer | None) -> LoadBalancerIR:
    """`traffic.loadBalancer`; None: round robin."""
    if written is None:
        return LoadBalancerIR()
    source, name, percent = HashSource.SOURCE_IP, "", 0
    if (by := written.consistent_hash) is not None:
        source = HashSource(by.type)
        named = by.header or by.cookie
        name = named.name if named is not None else ""
        percent = by.hash_balance_factor or 0
    local = written.zone_aware.prefer_local if written.zone_aware is not None else None
    return LoadBalancerIR(
        type=LoadBalancerType(written.type),
        hash_source=source,
        hash_name=name.lower() if source is HashSource.HEADER else name,
        hash_balance_percent=percent,
        slow_start_s=written.slow_start.window.seconds if written.slow_start is not None else 0.0,
        prefers_zone=local is not None,
        min_endpoints=local.min_endpoints_threshold if local is not None else 1,
        min_in_zone=local.force.min_endpoints_in_zone_threshold if local is not None else 1,
    )


def outlier_detection(written: PassiveHealthCheck | None) -> OutlierDetectionIR | None:
    """`traffic.healthCheck.passive`."""
    if written is None:
        return None
    return OutlierDetectionIR(
        consecutive_5xx=written.consecutive_5xx_errors,
        consecutive_gateway=written.consecutive_gateway_errors,
        consecutive_local_origin=written.consecutive_local_origin_failures,
        splits_local_origin=written.split_external_local_origin_errors,
        interval_s=written.interval.seconds,
        base_ejection_s=written.base_ejection_time.seconds,
        max_ejection_s=written.max_ejection_time.seconds,
        max_ejection_percent=written.max_ejection_percent,
    )


def health_check(written: ActiveHealthCheck | None) -> HealthCheckIR | None:
    """`traffic.healthCheck.active`."""
    if written is None:
        return None
    http = written.http or HttpHealthCheck()
    return HealthCheckIR(
        type=CheckType(written.type),
        path=http.path,
        method=http.method,
        hostname=http.hostname or "",
        statuses=tuple(sorted(set(http.expected_statuses))),
        interval_s=written.interval.seconds,
        timeout_s=written.timeout.seconds,
        healthy_threshold=written.healthy_threshold,
        unhealthy_threshold=written.unhealthy_threshold,
        service=written.grpc.service if written.grpc is not None else "",
    )


def circuit_breaker(written: CircuitBreaker | None) -> CircuitBreakerIR | None:
    """`traffic.circuitBreaker`."""
    if written is None:
        return None
    return CircuitBreakerIR(
        max_connections=written.max_connections,
        max_pending=written.max_pending_requests,
        max_requests=written.max_parallel_requests,
        max_retries=written.max_parallel_retries,
    )
