"""What the policies that win say of endpoints and attempts: `loadBalancer`, `healthCheck`, `circuitBreaker`, `retries`
and `hedging` of `traffic`; and `retry` of a rule within the policy's budget.

Sources: Gateway API v1 HTTPRouteRetry (GEP-1731); EgressPolicy `traffic`.
"""

from __future__ import annotations

from typing import Final

from egressproxy.config.resources.resilience import (
    ActiveHealthCheck,
    CircuitBreaker,
    HttpHealthCheck,
    LoadBalancer,
    PassiveHealthCheck,
)
from egressproxy.config.resources.routes import Retry
from egressproxy.config.resources.traffic import Hedging, Retries
from egressproxy.ir.policy import HedgingIR, RetryBudgetIR, RetryIR
from egressproxy.ir.resilience import (
    CheckType,
    CircuitBreakerIR,
    HashSource,
    HealthCheckIR,
    LoadBalancerIR,
    LoadBalancerType,
    OutlierDetectionIR,
)
from egressproxy.model.grpc_status import GrpcStatus

#: `retry` without `attempts`: so many after the first (the default of the field since Gateway API v1.7).
DEFAULT_ATTEMPTS: Final = 1
#: One request of a client is not to become any number of them: without a `backoff` they would not even take time.
MAX_ATTEMPTS: Final = 100
#: `retry` without `backoff`, and how many times a backoff a pause may become.
DEFAULT_BACKOFF_S: Final = 0.025
MAX_BACKOFFS: Final = 10


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


def rule_retry(retry: Retry, policy: RetryIR | None) -> RetryIR:
    """What a rule's `retry` asks for, within the budget of the policy that holds for it: a budget is a restriction."""
    backoff_s = retry.backoff.seconds if retry.backoff is not None else DEFAULT_BACKOFF_S
    attempts = retry.attempts if retry.attempts is not None else DEFAULT_ATTEMPTS
    codes, budget = tuple(sorted(set(retry.codes))), policy.budget if policy is not None else None
    return RetryIR(min(attempts, MAX_ATTEMPTS), codes, backoff_s, backoff_s * MAX_BACKOFFS, budget)


def retry_problem(retry: Retry | Retries) -> str:
    """What of a rule's `retry`, or of `traffic.retries`, is not done; "" if all of it is."""
    if retry.attempts is None or retry.attempts <= MAX_ATTEMPTS:
        return ""
    return f"attempts {retry.attempts} counts as {MAX_ATTEMPTS}, the most that there are"


def policy_retry(retries: Retries | None) -> RetryIR | None:
    """What `traffic.retries` of a policy asks for."""
    if retries is None:
        return None
    backoff_s = retries.backoff.seconds if retries.backoff is not None else DEFAULT_BACKOFF_S
    most_s = retries.max_backoff.seconds if retries.max_backoff is not None else backoff_s * MAX_BACKOFFS
    budget = None
    if retries.budget is not None:
        written = retries.budget
        budget = RetryBudgetIR(written.percent, written.interval.seconds, written.min_per_second)
    attempts = min(retries.attempts, MAX_ATTEMPTS)
    of_grpc = {GrpcStatus[trigger.upper().replace("-", "_")].value for trigger in retries.retry_on.triggers}
    codes = tuple(sorted(set(retries.codes)))
    return RetryIR(attempts, codes, backoff_s, max(backoff_s, most_s), budget, tuple(sorted(of_grpc)))


def policy_hedging(hedging: Hedging | None) -> HedgingIR | None:
    """What `traffic.hedging` of a policy asks for."""
    if hedging is None:
        return None
    codes, methods = sorted(set(hedging.non_fatal_status_codes)), dict.fromkeys(hedging.methods)
    return HedgingIR(hedging.hedging_delay.seconds, hedging.max_attempts, tuple(codes), tuple(methods))
