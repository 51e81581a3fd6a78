"""Lines of an access log, as short as a test wants them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from egressproxy.operators.learning.judgement import Judgement, Thresholds, judge
from egressproxy.operators.learning.observations import Observations

BEGIN = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def line(host: str, minute: float = 0, account: str = "worker", port: int = 443, **more: Any) -> dict[str, Any]:
    """One tunnel, so many minutes after midnight."""
    return {
        "time": datetime.fromtimestamp(BEGIN + 60 * minute, UTC).isoformat().replace("+00:00", "Z"),
        "gateway": "agents/gw", "route": "-", "namespace": "agents", "service_account": account, "method": "CONNECT",
        "authority": f"{host}:{port}", "path": "-", "reason": "-", "upstream": "151.101.0.1:443", "bytes_in": 900,
        "bytes_out": 9000, **more,
    }  # fmt: skip


def often(host: str, times: int = 12, account: str = "worker", every: float = 60, **more: Any) -> list[dict[str, Any]]:
    """The same once an hour."""
    return [line(host, at * every, account, **more) for at in range(times)]


def seen(*lines: dict[str, Any], most: int = 1000) -> Observations:
    """What is kept of these lines."""
    made = Observations(most)
    for each in sorted(lines, key=lambda each: each["time"]):
        made.add_log(each)
    return made


def judged(*lines: dict[str, Any], **thresholds: Any) -> Judgement:
    return judge(seen(*lines), Thresholds(**thresholds))


def outcome(*lines: dict[str, Any], **thresholds: Any) -> dict[str, str]:
    """Each host with why it is left out, or "learnt"."""
    found = judged(*lines, **thresholds)
    return {each.host: "learnt" for each in found.learnt} | {each.record.host: each.why.name for each in found.left_out}
