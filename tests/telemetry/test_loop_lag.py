from __future__ import annotations

import asyncio
import time

import pytest

from egressproxy.telemetry import loop_lag
from egressproxy.telemetry.loop_lag import LoopLag


async def test_a_loop_that_stood_still_shows_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 0.01)
    lag = LoopLag()
    lag.start()
    time.sleep(0.1)  # noqa: ASYNC251 - standing still is the point
    await asyncio.sleep(0.01)
    assert lag.take() > 0.05
    lag.stop()
    assert lag.take() == 0.0
