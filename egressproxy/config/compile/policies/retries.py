"""How often a request may be tried: `traffic.retries` of a policy, and `retry` of a rule within the policy's budget;
and how many attempts there may be at once, `traffic.hedging`.

Sources: Gateway API v1 HTTPRouteRetry (GEP-1731); EgressPolicy `traffic.retries` and `traffic.hedging`.
"""

from __future__ import annotations

from typing import Final

from egressproxy.config.resources.routes import Retry
from egressproxy.config.resources.traffic import Hedging, Retries
from egressproxy.ir.policy import HedgingIR, RetryBudgetIR, RetryIR
from egressproxy.model.grpc_status import GrpcStatus

#: `retry` without `attempts`: so many after the first.
DEFAULT_ATTEMPTS: Final = 2
#: One request of a client is not to become any number of them: without a `backoff` they would not even take time.
MAX_ATTEMPTS: Final = 100
#: `retry` without `backoff`, and how many times a backoff a pause may become.
DEFAULT_BACKOFF_S: Final = 0.025
MAX_BACKOFFS: Final = 10


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
