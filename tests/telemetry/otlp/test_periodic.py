"""When metrics are sent, and what is counted of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from egressproxy.errors import NotAnswered
from egressproxy.telemetry.counters import ExportCounts
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.otlp.messages import Envelope
from egressproxy.telemetry.otlp.metrics import MetricEncoder
from egressproxy.telemetry.otlp.periodic import MetricExport
from tests.support.waiting import WAIT_S


class Sent:
    def __init__(self, *answers: bytes | Exception, interval_s: float = 0.001) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.counts = ExportCounts()
        self.came = asyncio.Event()
        self.export = MetricExport(self._read, self._send, MetricEncoder(Envelope({}), 1), self.counts, interval_s)

    async def _read(self) -> list[object]:
        families = Exposition("1").families(Counts(families={"a": MetricFamily(MetricKind.GAUGE, "", (), {(): 1})}))
        return [each for each in families if each.name == "a"]

    async def _send(self, request: bytes) -> bytes:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else b'{"refused": 0, "why": ""}'
        if len(self.requests) > 2:
            self.came.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_collector_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    sent = Sent(b'{"refused": -1, "why": "away"}')
    monkeypatch.setattr(sent.export, "_encoder", SimpleNamespace(requests=lambda *_: [(b"a", 2), (b"b", 3)]))
    await sent.export.export()
    assert (sent.requests, sent.counts.dropped) == ([b"a"], {"unreachable": 5})


async def test_metrics_are_sent_from_time_to_time_and_at_the_end():
    sent = Sent()
    task = asyncio.create_task(sent.export.run())
    await asyncio.wait_for(sent.came.wait(), WAIT_S)
    task.cancel()
    before = len(sent.requests)
    await sent.export.finish()
    assert len(sent.requests) == before + 1
    assert sent.counts.exported == len(sent.requests)


@pytest.mark.parametrize(
    ("answer", "dropped", "why"),
    [
        (b'{"refused": -1, "why": "away"}', "unreachable", "away"),
        (b'{"refused": -2, "why": "400"}', "refused", "400"),
        (b'{"refused": 900000, "why": "too old"}', "refused", "too old"),
        (NotAnswered("no worker serves"), "unreachable", "no worker serves"),
        (b"\xff", "unreachable", "makes no sense"),
        (b"[]", "unreachable", "makes no sense"),
        (json.dumps({"refused": "x"}).encode(), "unreachable", "makes no sense"),
    ],
)
async def test_what_is_not_taken_is_counted(answer: bytes | Exception, dropped: str, why: str):
    sent = Sent(answer)
    await sent.export.export()
    assert (sent.counts.exported, sent.counts.dropped) == (0, {dropped: 1})
    assert why in sent.counts.last_error
    await sent.export.export()
    assert (sent.counts.exported, sent.counts.last_error) == (1, "")
