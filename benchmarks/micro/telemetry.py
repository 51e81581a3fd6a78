"""What is counted and logged at the end of an exchange."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.micro.stage import Stage
from egressproxy.errors import Reason
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics

GROUP = "telemetry"


def stages() -> Iterator[Stage]:
    x, denied = exchange(), exchange()
    denied.reason, denied.denied, denied.detail = Reason.DESTINATION_NOT_ALLOWED, True, "a.test is not allowed"
    series = Metrics("0").series("a/gw", "a/r", "a/b")
    yield Stage(GROUP, "Exchange made", lambda: Exchange("127.0.0.1:1", "a/gw", "l", 0.0))
    yield Stage(GROUP, "metrics: observe", lambda: series.observe(x))
    log, off = AccessLog("/dev/null", max_denials_per_s=10**9), AccessLog("off")
    yield Stage(GROUP, "access log: record, with its share of the writing thread", lambda: log.record(x))
    yield Stage(GROUP, "access log: record of a denial", lambda: log.record(denied))
    yield Stage(GROUP, "access log: record, with the log off", lambda: off.record(x))
    yield Stage(GROUP, "access log: the line alone", lambda: log._plain(x))


def exchange() -> Exchange:
    x = Exchange("10.0.0.9:50123", "default/bench", "forward", 100.0)
    x.authority = Authority("api.example.com", 443)
    x.method, x.path = b"GET", b"/v1/models"
    x.route, x.backend, x.upstream = "default/route", "default/backend", "93.184.216.34:443"
    x.request_id = "5f2c1d4e-1f"
    x.started_wall, x.ended_at = 1_785_000_000.25, 100.0123
    x.status, x.bytes_in, x.bytes_out = 200, 700, 1700
    return x
