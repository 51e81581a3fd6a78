"""OutlierDetection: ejects endpoints that fail, as long as not too many of them are out. It does no I/O.

It belongs to the endpoints of one backend, and is told what became of each request. Times are monotonic seconds.
Source: Envoy, outlier detection.
"""

from __future__ import annotations

from collections.abc import Collection

from egressproxy.ir.resilience import OutlierDetectionIR
from egressproxy.upstream.endpoint_health import EndpointHealth, HealthState, Why


class OutlierDetection:
    """`healths` are those of all endpoints of the backend; the collection may change. `spec` None ejects none."""

    __slots__ = ("_spec", "healths")

    def __init__(self, spec: OutlierDetectionIR | None, healths: Collection[EndpointHealth]) -> None:
        self._spec = spec
        self.healths = healths

    def answered(self, health: EndpointHealth, status: int, now: float) -> bool:
        """This endpoint gave a final answer with this status. Returns whether it is ejected for that."""
        if status < 500:
            if not health.is_clean:
                health.good(now)
            return False
        return self._judge(health, health.bad_status(status), now)

    def failed(self, health: EndpointHealth, now: float) -> bool:
        """This endpoint gave no answer: no connection, one that broke, or none in time. Returns as `answered`."""
        return self._judge(health, health.local_failure(), now)

    def _judge(self, health: EndpointHealth, why: Why | None, now: float) -> bool:
        if why is None or (why is not Why.TRIAL_FAILED and not self._may_eject_another(health)):
            return False
        health.eject(now, why)
        return True

    def _may_eject_another(self, health: EndpointHealth) -> bool:
        """At most `maxEjectionPercent` of all endpoints are out at the same time. Of several endpoints one may be in
        any case, with a percentage above 0. A lone endpoint is ejected with 100 alone.
        """
        if self._spec is None:
            return False
        percent, count = self._spec.max_ejection_percent, len(self.healths)
        out = sum(each.state in (HealthState.EJECTED, HealthState.TRIAL) for each in self.healths if each is not health)
        most = int(count * percent / 100)
        return out < (max(1, most) if percent > 0 and count > 1 else most)
