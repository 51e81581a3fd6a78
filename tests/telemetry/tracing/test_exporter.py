"""The exporter: its queue, its batches, and what it does when a collector does not take them."""

import asyncio

import pytest

from egressproxy.telemetry.counters import ExportCounts
from egressproxy.telemetry.tracing import exporter as exporting
from egressproxy.telemetry.tracing.exporter import NotTaken, SpanExporter
from egressproxy.telemetry.tracing.otlp import Encoder
from tests.support.collector import ReadRequest, read_request
from tests.support.waiting import WAIT_S
from tests.telemetry.tracing.test_otlp import exchange

#: An attempt whose id is none.
BROKEN = (b"no hexadecimal", 100.0, 0.0, b"/", (b"GET", False, b"", "-", "", 200, ""))


class Collector:
    """Answers with what stands in `answers`, in turn: None takes a batch."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.batches = []
        self.is_held = asyncio.Event()
        self.is_held.set()
        self.came = asyncio.Event()

    async def send(self, data):
        self.batches.append(data)
        self.came.set()
        await self.is_held.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or (0, "")

    @property
    def paths(self):
        return [[span.attributes for span in read_request(each).spans] for each in self.batches]


async def until(condition):
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def exporter_to(collector, counts):
    return SpanExporter("ns/collector", collector.send, Encoder({}, "1"), counts)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(exporting, "INTERVAL_S", 0.0)
    monkeypatch.setattr(exporting, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(exporting, "LONGEST_PAUSE_S", 0.0)


async def test_a_batch_goes_out_behind_the_interval(at_once):
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(3):
        exporter.put_exchange(exchange())
    await collector.came.wait()
    await exporter.drain(5)
    assert [len(each) for each in collector.paths] == [3]
    assert (counts.exported, dict(counts.dropped), counts.last_error) == (3, {}, "")


async def test_a_full_batch_does_not_wait(monkeypatch):
    monkeypatch.setattr(exporting, "MAX_BATCH_SIZE", 1000)
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(exporting.SLICE):
        exporter.put_exchange(exchange())
    await asyncio.wait_for(collector.came.wait(), exporting.INTERVAL_S / 2)
    await exporter.drain(5)
    assert counts.exported == exporting.SLICE


async def test_long_paths_do_not_wait_either(monkeypatch):
    monkeypatch.setattr(exporting, "MAX_BATCH_SIZE", 1000)
    monkeypatch.setattr(exporting, "SLICE", 1)
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(3):
        exporter.put_exchange(exchange(path=b"/" + b"x" * 999))
    await asyncio.wait_for(until(lambda: len(collector.batches) == 3), exporting.INTERVAL_S / 2)
    await exporter.drain(5)
    assert counts.exported == 3


async def test_a_drain_exports_all_that_waits(monkeypatch):
    monkeypatch.setattr(exporting, "MAX_BATCH_SIZE", 1)
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(2 * exporting.SLICE + 1):
        exporter.put_exchange(exchange())
    await exporter.drain(5)
    assert counts.exported == 2 * exporting.SLICE + 1
    assert len(collector.batches) == 3


async def test_what_has_no_room_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(exporting, "MAX_WAITING", 2)
    monkeypatch.setattr(exporting, "SLICE", 1)
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(5):
        exporter.put_exchange(exchange())
    await exporter.drain(5)
    assert (counts.exported, counts.dropped) == (2, {"queue_full": 3})


async def test_long_paths_of_clients_fill_neither_memory_nor_a_request(monkeypatch):
    monkeypatch.setattr(exporting, "LONG", 1000)
    monkeypatch.setattr(exporting, "MAX_SIZE", 4000)
    monkeypatch.setattr(exporting, "MAX_BATCH_SIZE", 2000)
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(3):
        exporter.put_exchange(exchange(path=b"/" + b"x" * 999))
    await exporter.drain(5)
    assert (counts.exported, counts.dropped, len(collector.batches), exporter._size) == (2, {"queue_full": 1}, 2, 0)


async def test_what_a_collector_cannot_take_now_is_sent_again(at_once, caplog):
    collector, counts = Collector(NotTaken("503", 0.0), NotTaken("429", 0.0), None), ExportCounts()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await until(lambda: counts.exported)
    assert len(collector.batches) == 3
    assert len(set(collector.batches)) == 1
    assert (counts.exported, dict(counts.dropped), counts.last_error) == (1, {}, "")
    assert [record.getMessage() for record in caplog.records] == ["traces: ns/collector: 503"]  # one warning a minute


async def test_what_a_collector_never_takes_is_dropped(at_once):
    collector, counts = Collector(NotTaken("400")), ExportCounts()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await until(lambda: counts.dropped)
    assert (counts.dropped, counts.last_error) == ({"refused": 1}, "400")
    assert len(collector.batches) == 1


async def test_a_collector_that_is_away_too_long_loses_spans(at_once, monkeypatch):
    monkeypatch.setattr(exporting, "RETRY_S", 0.0)
    collector, counts = Collector(NotTaken("away", 1.0)), ExportCounts()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await until(lambda: counts.dropped)
    assert counts.dropped == {"unreachable": 1}


async def test_spans_that_a_collector_refuses_of_a_batch_are_counted():
    collector, counts = Collector((2, "too old")), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(3):
        exporter.put_exchange(exchange())
    await exporter.drain(5)
    assert (counts.exported, counts.dropped) == (1, {"refused": 2})
    assert counts.last_error == "the collector refused 2 of 3: too old"


async def test_a_collector_cannot_refuse_more_than_it_got():
    collector, counts = Collector((2**64 - 1, "x")), ExportCounts()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await exporter.drain(5)
    assert (counts.exported, counts.dropped) == (0, {"refused": 1})


async def test_an_exchange_that_cannot_be_encoded_takes_no_other_along():
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for each in (exchange(path=b"/before"), exchange(attempts=[BROKEN]), exchange(path=b"/behind")):
        exporter.put_exchange(each)
    await exporter.drain(5)
    assert (counts.exported, counts.dropped) == (2, {"internal": 2})
    (data,) = collector.batches
    assert [ReadRequest.attributes(span)["url.path"] for span in read_request(data).spans] == ["/before", "/behind"]


async def test_nothing_is_sent_where_nothing_can_be_encoded(caplog):
    collector, counts = Collector(), ExportCounts()
    exporter = exporter_to(collector, counts)
    for _ in range(exporting.SLICE):
        exporter.put_exchange(exchange(attempts=[BROKEN]))
    await exporter.drain(5)
    assert (collector.batches, counts.dropped) == ([], {"internal": 2 * exporting.SLICE})
    assert caplog.messages == ["traces: ns/collector: internal error: spans cannot be encoded (Error)"]


async def test_spans_are_counted_when_the_sender_breaks(caplog):
    collector, counts = Collector(ZeroDivisionError()), ExportCounts()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await exporter.drain(5)
    assert counts.dropped == {"internal": 1}
    assert "internal error in the export of traces to ns/collector" in caplog.text


async def test_a_drain_does_not_wait_for_ever():
    collector, counts = Collector(), ExportCounts()
    collector.is_held.clear()
    exporter = exporter_to(collector, counts)
    exporter.put_exchange(exchange())
    await exporter.drain(0.01)
    await asyncio.sleep(0)
    assert counts.dropped == {"unreachable": 1}


async def test_an_idle_exporter_has_neither_timer_nor_task():
    exporter = exporter_to(Collector(), ExportCounts())
    assert exporter._handle is None
    exporter.put_exchange(exchange())
    await exporter.drain(5)
    await asyncio.sleep(0)
    assert exporter._handle is None
    assert exporter._task is None
