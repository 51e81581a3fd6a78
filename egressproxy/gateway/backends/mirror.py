"""Mirror: one RequestMirror filter of a rule, live: where copies go, which requests are copied, and the bounds.

Source: Gateway API v1 HTTPRequestMirrorFilter, GEP-3171.
"""

from __future__ import annotations

import random
from dataclasses import InitVar, dataclass, field
from typing import Final

from egressproxy.filters.chain import Chain
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.ir.policy import Mode, PolicyIR
from egressproxy.model.per_client_quota import PerClientQuota, most_of
from egressproxy.routing.destinations import Denial, DestinationPolicy, Permission
from egressproxy.telemetry.series import Series

#: Copies of one filter at once; others are dropped. One client has three quarters of each bound here and in `Network`.
MAX_AT_ONCE: Final = 256
#: Bytes of bodies that wait for a mirror: of one copy, and of one filter's.
MAX_HELD: Final = 1024 * 1024
MAX_HELD_TOGETHER: Final = 16 * MAX_HELD
#: How long a copy may rest, where its backend's timeouts do not say it: while it is sent, and until its answer is over.
REST_S: Final = 60.0


@dataclass(slots=True, eq=False, repr=False)
class Mirror:
    """`limits` are the steps of its own backend that look at a request before it is sent (limits of bodies); `chain`
    has everything else that runs for a copy. `denied`: its place is denied by a policy. `permission`: what the route
    permits a Dynamic one. `held` counts the bytes that wait for it.
    """

    backend: str
    cluster: Cluster
    limits: FilterSteps | None
    chain: Chain
    series: Series
    policy: InitVar[PolicyIR]
    destinations: DestinationPolicy
    ratio: tuple[int, int]  # numerator, denominator
    denied: Denial | None = None
    permission: Permission | None = None
    mode: Mode = field(init=False)
    rest_s: float = field(init=False)
    held: PerClientQuota = field(init=False)
    in_progress: PerClientQuota = field(init=False)
    _due: int = field(init=False)

    def __post_init__(self, policy: PolicyIR) -> None:
        self.mode = policy.mode
        self.rest_s = policy.timeouts.backend_request_s or REST_S
        self.held = PerClientQuota(MAX_HELD_TOGETHER, most_of(MAX_HELD_TOGETHER))
        self.in_progress = PerClientQuota(MAX_AT_ONCE, most_of(MAX_AT_ONCE))
        # Spread evenly, so that any number of requests has its share; where it begins is chance: a reload begins anew.
        self._due = random.randrange(self.ratio[1])  # noqa: S311 (a share of traffic is no secret)

    @property
    def share(self) -> float:
        """The share of requests that is copied, from 0 to 1."""
        numerator, denominator = self.ratio
        return numerator / denominator

    def count_request(self) -> bool:
        """Count one more request. Returns whether it is one of the share, and is copied."""
        numerator, denominator = self.ratio
        self._due += numerator
        if self._due < denominator:
            return False
        self._due -= denominator
        return True
