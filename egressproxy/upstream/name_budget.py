"""NameBudget: how many names that nobody has asked for lately each client may have looked up below one domain. Pure.

A name carries data to whoever serves its domain, before any connection is made: a wildcard that is allowed would be a
way out for it. Names that the cache knows cost nothing. Source: EgressPolicy `dns.newNames`.
"""

from __future__ import annotations

from egressproxy.errors import LimitExceeded, Reason

__all__ = ["MAX_COUNTS", "NameBudget", "domain_of"]

#: Counts that are kept, each of one client below one domain; those that have not changed for longest go first.
MAX_COUNTS = 16_384


def domain_of(host: str) -> str:
    """The last two labels of a name: below a public suffix of two labels (co.uk) all names count as one domain's."""
    return ".".join(host.rsplit(".", 2)[-2:])


class NameBudget:
    """`limit` names in each `window_s` seconds, which refill steadily."""

    __slots__ = ("_counts", "_limit", "_window_s")

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._counts: dict[tuple[str, str], tuple[float, float]] = {}  # names that are left, and at what time

    def take(self, client: str, host: str, now: float) -> LimitExceeded | None:
        """Count this name for this client; the error (429) where the client has had too many. `now` in seconds."""
        key = client, domain_of(host)
        left, then = self._counts.pop(key, (float(self._limit), now))
        left = min(float(self._limit), left + (now - then) * self._limit / self._window_s)
        is_allowed = left >= 1.0
        self._counts[key] = left - 1.0 if is_allowed else left, now
        if len(self._counts) > MAX_COUNTS:
            del self._counts[next(iter(self._counts))]
        if is_allowed:
            return None
        return LimitExceeded(
            Reason.NEW_NAMES,
            f"this client has asked for too many new names below {key[1]}",
            remedy="raise dns.newNames.limit where the client needs so many names; else find out what it sends in them",
            detail=f"{host}: more than {self._limit} new names below {key[1]} in {self._window_s:g} s",
            retry_after_s=max(1, round((1.0 - left) * self._window_s / self._limit)),
        )

    def __repr__(self) -> str:
        return f"NameBudget({self._limit} in {self._window_s:g} s, {len(self._counts)} counts)"
