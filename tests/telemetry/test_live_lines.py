"""Lines of the access log for those who watch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.model.exchange import Exchange
from egressproxy.telemetry import live_lines
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.live_lines import LiveLines
from egressproxy.telemetry.series import Series


class Written:
    """A writer that keeps what it is given."""

    dropped = 0
    written = 7

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def put(self, chunk: bytes, lines: int) -> None:
        self.chunks.append(chunk)

    def reopen(self) -> None: ...
    def close(self, timeout_s: float) -> None: ...


def ended(path: bytes = b"/") -> Exchange:
    exchange = Exchange("127.0.0.1:1", "ns/gw", "http", 1.0, series=Series(("-",) * 7))  # type: ignore[arg-type]
    exchange.ended_at, exchange.method, exchange.path, exchange.status = 2.0, b"GET", path, 200
    return exchange


async def test_lines_are_kept_for_who_asks_and_still_written():
    inner = Written()
    log = AccessLog(inner)
    live = LiveLines(log)
    assert live.take() == b"0\n"
    log.record(ended(b"/seen"))
    number, line = live.take().splitlines()
    assert (number, b'"path":"/seen"' in line) == (b"0", True)
    assert inner.chunks == [line + b"\n"]
    assert (log.written, log.dropped, live.take()) == (7, 0, b"0\n")


async def test_a_log_that_is_off_is_shown_too_and_off_again_when_nobody_asks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_lines, "LEASE_S", 0.01)
    log = AccessLog("off")
    live = LiveLines(log)
    live.take()
    log.record(ended())
    assert live.take().count(b"\n") == 2
    while log.tap is not None:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    log.record(ended())
    assert (live.take(), log.written) == (b"0\n", 0)


async def test_what_waits_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_lines, "MAX_BYTES", 1000)
    log = AccessLog("off")
    live = LiveLines(log)
    live.take()
    for _ in range(9):
        log.record(ended())
        log.flush()
    lost, *lines = live.take().splitlines()
    assert int(lost) + len(lines) == 9
    assert 1 <= len(lines) < 9
    assert live.take() == b"0\n"


async def test_lines_of_a_flood_of_denials_that_are_not_logged_are_lost_too():
    log = AccessLog("off", max_denials_per_s=1)
    live = LiveLines(log)
    live.take()
    for _ in range(3):
        denied: Any = ended()
        denied.denied, denied.detail = True, "no"
        log.record(denied)
    assert live.take().splitlines()[0] == b"2"
