"""The bound of log lines."""

from __future__ import annotations

from egressproxy.telemetry.log_rate import LINES, LogRate


def test_what_is_left_out_is_counted_and_told_once():
    rate = LogRate()
    assert [rate.admit(100.0) for _ in range(LINES + 2)] == [*[0] * LINES, None, None]
    assert [rate.admit(now) for now in (100.5, 101.0, 101.0, 102.0, 101.0)] == [None, 3, None, 1, None]
