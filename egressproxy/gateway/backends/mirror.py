"""Mirror: one RequestMirror filter of a rule, live: where copies go, which requests are copied, and the bounds.

Source: Gateway API v1 HTTPRequestMirrorFilter, GEP-3171.
"""

from __future__ import annotations

import random
from typing import Final

from egressproxy.filters.chain import Chain, Steps
from egressproxy.gateway.backends.connector import Connector
from egressproxy.ir.policy import PolicyIR
from egressproxy.model.shares import Shares, most_of
from egressproxy.routing.destinations import Denial, DestinationPolicy
from egressproxy.routing.permission import Permission
from egressproxy.telemetry.series import Series

__all__ = ["MAX_HELD", "Mirror"]

#: Copies of one filter at once; further ones are dropped. One client has three quarters of each of these bounds, and of
#: those for the process (`Network`).
MAX_AT_ONCE: Final = 256
#: Octets of bodies that wait for a mirror: of one copy, and of one filter's.
MAX_HELD: Final = 1024 * 1024
MAX_HELD_TOGETHER: Final = 16 * MAX_HELD
#: How long a copy may rest, where its backend's timeouts do not say it: while it is sent, and until its answer is over.
REST_S: Final = 60.0


class Mirror:
    """One RequestMirror filter, live: where copies go, and which requests are copied.

    `limits` are the steps of its own backend that look at a request before it is sent (limits of bodies); `chain` has
    everything else that runs for a copy. `denied`: its place is denied by a policy. `permission`: what the route
    permits a Dynamic one. `held` counts the octets that wait for it.
    """

    __slots__ = (
        "_denominator",
        "_due",
        "_numerator",
        "backend",
        "chain",
        "connector",
        "denied",
        "destinations",
        "held",
        "in_progress",
        "limits",
        "mode",
        "permission",
        "rest_s",
        "series",
    )

    def __init__(
        self,
        backend: str,
        connector: Connector,
        limits: Steps | None,
        chain: Chain,
        series: Series,
        policy: PolicyIR,
        destinations: DestinationPolicy,
        share: tuple[int, int],
        denied: Denial | None = None,
        permission: Permission | None = None,
    ) -> None:
        self.backend = backend
        self.connector = connector
        self.limits = limits
        self.chain = chain
        self.series = series
        self.mode = policy.mode
        self.destinations = destinations
        self.denied = denied
        self.permission = permission
        self.rest_s = policy.timeouts.backend_request_s or REST_S
        self.held = Shares(MAX_HELD_TOGETHER, most_of(MAX_HELD_TOGETHER))
        self.in_progress = Shares(MAX_AT_ONCE, most_of(MAX_AT_ONCE))
        self._numerator, self._denominator = share
        # Spread evenly, so that any number of requests has its share; where it begins is chance: a reload begins anew.
        self._due = random.randrange(self._denominator)  # noqa: S311 (a share of traffic is no secret)

    @property
    def share(self) -> float:
        """Of the requests, from 0 to 1."""
        return self._numerator / self._denominator

    def count_request(self) -> bool:
        """Count one more request. Returns whether it is one of the share, and is copied."""
        self._due += self._numerator
        if self._due < self._denominator:
            return False
        self._due -= self._denominator
        return True

    def __repr__(self) -> str:
        return f"Mirror({self.backend}, {self._numerator}/{self._denominator}, {self.in_progress.total} in progress)"
