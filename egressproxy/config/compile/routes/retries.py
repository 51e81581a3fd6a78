"""How often the requests of a rule are tried, and who of its backends serves the same client again.

Sources: Gateway API v1, HTTPRouteRetry (GEP-1731) and SessionPersistence (GEP-1619); EgressPolicy `traffic.retries`.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from egressproxy.config.resources.policy import Retries
from egressproxy.config.resources.routes import HttpMatch, HttpRule, Retry, SessionPersistence
from egressproxy.ir.policy import RetryBudgetIR, RetryIR
from egressproxy.ir.route import PathMatchType, SessionIR

__all__ = ["policy_retry", "retry_problem", "rule_retry", "session_problem", "session_spec"]

#: `retry` without `attempts`: so many after the first.
DEFAULT_ATTEMPTS: Final = 2
#: One request of a client is not to become any number of them: without a `backoff` they would not even take time.
MAX_ATTEMPTS: Final = 100
#: `retry` without `backoff`, and how many times a backoff a pause may become.
DEFAULT_BACKOFF_S: Final = 0.025
MAX_BACKOFFS: Final = 10

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 section 5.6.2; a cookie's name too (RFC 6265)
#: Fields that mean something else: framing, the hop, the content (RFC 9110). Nor `proxy-…`.
_TAKEN = frozenset((
    "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "date", "expect",
    "host", "keep-alive", "location", "max-forwards", "server", "set-cookie", "te", "trailer", "transfer-encoding",
    "upgrade", "via",
))  # fmt: skip
#: What stands for itself in a regular expression, from its start: not what may be left out or come again.
_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()](?![*?{]))*")


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
        said = retries.budget
        budget = RetryBudgetIR(said.percent, said.interval.seconds, said.min_per_second)
    attempts = min(retries.attempts, MAX_ATTEMPTS)
    return RetryIR(attempts, tuple(sorted(set(retries.codes))), backoff_s, max(backoff_s, most_s), budget)


def session_spec(route: str, index: int, rule: HttpRule) -> SessionIR | None:
    """The session persistence of a rule; `route` is "namespace/name"."""
    persistence = rule.session_persistence
    if persistence is None:
        return None
    scope = f"{route}/{rule.name or index}"
    name = persistence.session_name or ""
    if not name or session_problem(persistence):
        name = f"egress-session-{blake2b(scope.encode(), digest_size=5).hexdigest()}"
    absolute, idle, cookie = persistence.absolute_timeout, persistence.idle_timeout, persistence.cookie_config
    return SessionIR(
        name=name,
        scope=scope,
        is_header=persistence.type == "Header",
        absolute_s=absolute.seconds if absolute is not None else 0.0,
        idle_s=idle.seconds if idle is not None else 0.0,
        is_permanent=cookie is not None and cookie.lifetime_type == "Permanent",
        path=_path_of_patterns(rule.matches),
    )


def session_problem(persistence: SessionPersistence) -> str:
    """Why `sessionName` cannot be used as it is written; "" if it can."""
    name = persistence.session_name
    if not name:
        return ""
    if not _TOKEN.fullmatch(name):
        return f"sessionName {name!r} is no token (RFC 9110), a name is made up in its place"
    lower = name.lower()
    if persistence.type == "Header" and (lower in _TAKEN or lower.startswith("proxy-")):
        return f"sessionName {name} is a field with another meaning, a name is made up in its place"
    return ""


def _path_of_patterns(matches: tuple[HttpMatch, ...]) -> str:
    """What every path that a regular expression of the rule matches begins with, by whole elements; "" without one."""
    starts = [
        "/" if "|" in match.path.value else _LITERAL.match(match.path.value)[0]  # type: ignore[index]  # always
        for match in matches
        if match.path.type is PathMatchType.REGEX
    ]
    if not starts:
        return ""
    common = starts[0] if len(set(starts)) == 1 else "/"
    return common[: common.rfind("/") + 1] or "/"
