"""EndpointHealth: the health of one endpoint of a backend, which decides whether it gets requests. It does no I/O.

| state | takes requests | becomes |
|---|---|---|
| HEALTHY | yes | EJECTED after failures in a row; UNHEALTHY after failed health checks |
| EJECTED | no | TRIAL when its time is over; HEALTHY after enough passed checks |
| TRIAL | one at a time | HEALTHY after a good answer; EJECTED, for longer, after a failure |
| UNHEALTHY | no | HEALTHY after enough passed checks |

Each ejection is longer than the last by the base time, up to a maximum; an interval without one takes that back step
by step. Times are monotonic seconds that the caller gives. Source: Envoy, outlier detection and health checking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from weakref import WeakValueDictionary

from egressproxy.ir.backend import BackendIR
from egressproxy.ir.resilience import HealthCheckIR, OutlierDetectionIR

#: Seconds after which the next trial may begin if the outcome of a trial was never reported.
TRIAL_S = 10.0
NEVER = float("inf")
GATEWAY_ERRORS = frozenset((502, 503, 504))


class HealthState(Enum):
    """Whether an endpoint may take requests."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    TRIAL = "trial"
    UNHEALTHY = "unhealthy"


class Why(str, Enum):
    """Why an endpoint changed its state, for metrics and Events."""

    CONSECUTIVE_5XX = "consecutive_5xx"
    CONSECUTIVE_GATEWAY = "consecutive_gateway_errors"
    CONSECUTIVE_LOCAL = "consecutive_local_origin_failures"
    TRIAL_FAILED = "trial_failed"
    CHECK_FAILED = "health_check_failed"
    CHECK_PASSED = "health_check_passed"
    TRIAL_PASSED = "trial_passed"

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Why.CONSECUTIVE_5XX: "too many answers of 500 and above in a row",
    Why.CONSECUTIVE_GATEWAY: "too many gateway errors in a row",
    Why.CONSECUTIVE_LOCAL: "too many failed connections in a row",
    Why.TRIAL_FAILED: "the trial request failed, too",
    Why.CHECK_FAILED: "health checks failed",
    Why.CHECK_PASSED: "health checks passed",
    Why.TRIAL_PASSED: "the trial request succeeded",
}


class HealthRegistry:
    """The health of every endpoint in use; it survives reloads with equal settings. `version` counts all changes;
    `tell` is called with the endpoint and the reason.
    """

    __slots__ = ("_known", "_tell", "version")

    def __init__(self, tell: Callable[[EndpointHealth, Why], None] = lambda _health, _why: None) -> None:
        self.version = 0
        self._tell = tell
        self._known: WeakValueDictionary[object, EndpointHealth] = WeakValueDictionary()

    def of(
        self, scope: object, backend: str, owner: BackendIR, address: str, outliers: OutlierDetectionIR | None,
        check: HealthCheckIR | None, now: float,
    ) -> EndpointHealth:  # fmt: skip
        """The known or new health of this address ("host:port"). `scope` is hashable: users with equal scopes share it.
        `backend` is the `owner` in metrics.
        """
        found = self._known.get((scope, address))
        if found is None:
            found = self._known[scope, address] = EndpointHealth(self, backend, owner, address, outliers, check, now)
        return found

    def changed(self, health: EndpointHealth, why: Why) -> None:
        """Count and report a change."""
        self.version += 1
        self._tell(health, why)


class EndpointHealth:
    """The health of one endpoint."""

    __slots__ = (
        "_5xx", "__weakref__", "_check", "_checks_failed", "_checks_passed", "_gateway", "_local", "_outliers",
        "_registry", "_trial_until", "address", "backend", "ejected_until", "is_clean", "kind", "multiplier", "name",
        "returned_at", "state",
    )  # fmt: skip

    def __init__(
        self, registry: HealthRegistry, backend: str, owner: BackendIR, address: str,
        outliers: OutlierDetectionIR | None, check: HealthCheckIR | None, now: float,
    ) -> None:  # fmt: skip
        self._registry = registry
        self.backend = backend
        self.kind, self.name = owner.kind, owner.name
        self.address = address
        self._outliers = outliers
        self._check = check
        self.state = HealthState.HEALTHY
        self.is_clean = True  # healthy after a good response: another good response changes nothing
        self.ejected_until = 0.0
        self.multiplier = 0  # of the base ejection time, in the last ejection
        self.returned_at = now  # start of the slow start
        self._trial_until = 0.0
        self._5xx = self._gateway = self._local = 0
        self._checks_failed = self._checks_passed = 0

    # --- whether it may take a request ---------------------------------------------------------------------------
    def next_change(self, now: float) -> float:
        """The time at which `is_usable` may change: the end of an ejection, or of a trial without outcome."""
        if self.state is HealthState.EJECTED:
            return self.ejected_until
        if self.state is HealthState.TRIAL and self._trial_until > now:
            return self._trial_until
        return NEVER

    def is_usable(self, now: float) -> bool:
        """Whether a request may go there. An ejection whose time is over becomes a trial here."""
        if self.state is HealthState.HEALTHY:
            return True
        if self.state is HealthState.EJECTED and now >= self.ejected_until:
            self.state = HealthState.TRIAL
            self._trial_until = 0.0
        return self.state is HealthState.TRIAL and now >= self._trial_until

    def begin_trial(self, now: float) -> None:
        """Start a trial with one request; no other request goes to the endpoint until its outcome is reported."""
        self._trial_until = now + TRIAL_S
        self._registry.version += 1

    # --- outcomes of requests ------------------------------------------------------------------------------------
    def good(self, now: float) -> None:
        """Record a response without a server error."""
        self._5xx = self._gateway = self._local = 0
        if self.state is HealthState.TRIAL:
            self._return(now, Why.TRIAL_PASSED)
        self.is_clean = self.state is HealthState.HEALTHY

    def bad_status(self, status: int) -> Why | None:
        """Record a status of 500 or higher. Returns the reason why the endpoint is an outlier now, or None."""
        outliers = self._outliers
        if outliers is None:
            return None
        self.is_clean = False
        self._local = 0  # the endpoint is reachable
        self._5xx += 1
        self._gateway = self._gateway + 1 if status in GATEWAY_ERRORS else 0
        return self._judged(outliers)

    def local_failure(self) -> Why | None:
        """Record a failed or broken connection, or a timeout. Returns as `bad_status`."""
        outliers = self._outliers
        if outliers is None:
            return None
        self.is_clean = False
        if outliers.splits_local_origin:
            self._local += 1
        else:
            self._5xx += 1
            self._gateway += 1
        return self._judged(outliers)

    def _judged(self, outliers: OutlierDetectionIR) -> Why | None:
        if self.state is HealthState.TRIAL:
            return Why.TRIAL_FAILED
        if self.state is not HealthState.HEALTHY:
            return None  # by an earlier request
        for count, most, why in (
            (self._5xx, outliers.consecutive_5xx, Why.CONSECUTIVE_5XX),
            (self._gateway, outliers.consecutive_gateway, Why.CONSECUTIVE_GATEWAY),
            (self._local, outliers.consecutive_local_origin, Why.CONSECUTIVE_LOCAL),
        ):
            if 0 < most <= count:
                return why
        return None

    def eject(self, now: float, why: Why) -> None:
        """Eject the endpoint, for longer than the last time."""
        outliers = self._outliers
        assert outliers is not None
        healthy_s = max(0.0, now - max(self.returned_at, self.ejected_until))
        steps_down = int(healthy_s / outliers.interval_s) if outliers.interval_s else 0
        if why is Why.TRIAL_FAILED:
            steps_down = 0
        self.multiplier = max(0, self.multiplier - steps_down) + 1
        seconds = min(
            outliers.base_ejection_s * self.multiplier, max(outliers.base_ejection_s, outliers.max_ejection_s)
        )
        self.ejected_until = now + seconds
        self.state = HealthState.EJECTED
        self.is_clean = False
        self._5xx = self._gateway = self._local = 0
        self._checks_passed = 0
        self._registry.changed(self, why)

    def end_trial(self) -> None:
        """End a trial without outcome (a filter refused the request); the next request may go."""
        self._trial_until = 0.0
        self._registry.version += 1

    # --- outcomes of health checks -------------------------------------------------------------------------------
    def check_passed(self, now: float) -> None:
        """Record a passed health check. After enough in a row the endpoint is healthy, even if ejected."""
        check = self._check
        assert check is not None
        self._checks_failed = 0
        self._checks_passed += 1
        if self.state is not HealthState.HEALTHY and self._checks_passed >= check.healthy_threshold:
            self._return(now, Why.CHECK_PASSED)

    def check_failed(self) -> None:
        """Record a failed health check. After enough in a row the endpoint gets no requests."""
        check = self._check
        assert check is not None
        self._checks_passed = 0
        self._checks_failed += 1
        if self.state is not HealthState.UNHEALTHY and self._checks_failed >= check.unhealthy_threshold:
            self.state = HealthState.UNHEALTHY
            self.is_clean = False
            self._registry.changed(self, Why.CHECK_FAILED)

    def _return(self, now: float, why: Why) -> None:
        self.state = HealthState.HEALTHY
        self.returned_at = now
        self.ejected_until = min(self.ejected_until, now)
        self._5xx = self._gateway = self._local = 0
        self.is_clean = True
        self._registry.changed(self, why)


class OutlierDetection:
    """Ejects failing endpoints of one backend, up to a percentage. `healths` has all endpoints; the collection may
    change. `spec` None ejects none. Source: Envoy, outlier detection.
    """

    __slots__ = ("_spec", "healths")

    def __init__(self, spec: OutlierDetectionIR | None, healths: Collection[EndpointHealth]) -> None:
        self._spec = spec
        self.healths = healths

    def answered(self, health: EndpointHealth, status: int, now: float) -> bool:
        """Record the status of a final response. Returns whether the endpoint is ejected for it."""
        if status < 500:
            if not health.is_clean:
                health.good(now)
            return False
        return self._judge(health, health.bad_status(status), now)

    def failed(self, health: EndpointHealth, now: float) -> bool:
        """Record a failed or broken connection, or a timeout. Returns as `answered`."""
        return self._judge(health, health.local_failure(), now)

    def _judge(self, health: EndpointHealth, why: Why | None, now: float) -> bool:
        if why is None or (why is not Why.TRIAL_FAILED and not self._may_eject_another(health)):
            return False
        health.eject(now, why)
        return True

    def _may_eject_another(self, health: EndpointHealth) -> bool:
        """Whether `maxEjectionPercent` allows one more ejection. One of several endpoints may always be ejected, unless
        the percentage is 0. A single endpoint is ejected only with 100.
        """
        if self._spec is None:
            return False
        percent, count = self._spec.max_ejection_percent, len(self.healths)
        out = sum(each.state in (HealthState.EJECTED, HealthState.TRIAL) for each in self.healths if each is not health)
        most = int(count * percent / 100)
        return out < (max(1, most) if percent > 0 and count > 1 else most)
