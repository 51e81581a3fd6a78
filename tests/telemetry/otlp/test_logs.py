"""Lines of the access log as log records, read by `opentelemetry-proto`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.counters import ExportCounts
from egressproxy.telemetry.otlp.logs import LogEncoder, LogExporter
from egressproxy.telemetry.otlp.messages import Envelope
from egressproxy.telemetry.tracing import exporter as exporting
from tests.support.collector import read_logs, value_of
from tests.telemetry.test_access_log import exchange

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Lines:
    """A log with an exporter, and what both have got. Its timer never fires: the loop runs no further."""

    def __init__(self, *, has_file: bool = True) -> None:
        self.written: list[bytes] = []
        self.dropped = 0
        self.requests: list[bytes] = []
        self.counts = ExportCounts()
        encoder = LogEncoder(Envelope({"service.name": "egress"}))
        self.exporter = LogExporter("c", self._send, encoder, self.counts, "access log")
        self.log = AccessLog(self if has_file else "off")  # type: ignore[arg-type]
        self.log.exporter = self.exporter

    def put(self, chunk: bytes, _lines: int) -> None:
        self.written.append(chunk)

    async def _send(self, request: bytes) -> tuple[int, str]:
        self.requests.append(request)
        return 0, ""

    async def records(self, *exchanges: Exchange) -> list[Any]:
        for each in exchanges:
            self.log.record(each)
        await self.exporter.drain(5)
        self.log.flush()
        return [record for each in self.requests for record in read_logs(each)]


def attributes(record: Any) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in record.attributes}


async def test_a_record_has_the_fields_of_its_line():
    x = exchange(path=b'/"\xff', reason=Reason.DNS_TIMEOUT, status=502, detail="why", attempts=2)
    x.add_log_fields({"gen_ai.usage.input_tokens": 7, "ai_cost": 0.25, "ai_dropped": ["a", "b"], "approval": {"id": 1}})
    x.add_log_fields({"huge": 2**70, "none": None, "yes": True})
    lines = Lines()
    (record,) = await lines.records(x)
    line = json.loads(b"".join(lines.written))
    assert record.time_unix_nano == 1_700_000_000_250_000_000
    assert record.observed_time_unix_nano - record.time_unix_nano == 125_000_000
    assert line.pop("time") == "2023-11-14T22:13:20.250Z"
    assert attributes(record) == {**line, "huge": str(2**70)}
    assert (record.severity_text, record.severity_number, record.event_name) == ("ERROR", 17, "egressproxy.access")
    assert record.body.string_value == 'GET api.example.com:443 /"ÿ 502'
    assert (record.trace_id, record.span_id, record.flags) == (b"", b"", 0)


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_a_record_of_a_traced_exchange_has_its_ids(is_sampled: bool):
    ids, text = (TRACE_ID.encode(), SPAN_ID.encode()), f'"trace_id":"{TRACE_ID}"'
    x = exchange()
    trace: Any = SimpleNamespace(ids=ids, sampled_ids=ids if is_sampled else None, log_text=text)
    x.trace = trace
    (record,) = await Lines().records(x)
    assert (record.trace_id.hex(), record.span_id.hex(), record.flags) == (TRACE_ID, SPAN_ID, is_sampled)
    assert "trace_id" not in attributes(record)


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({}, "INFO"), ({"status": 404}, "INFO"), ({"status": 503}, "ERROR"), ({"status": 0}, "ERROR"),
        ({"status": 403, "reason": Reason.DESTINATION_DENIED, "denied": True}, "WARN"),
    ],
)  # fmt: skip
async def test_a_failure_is_more_severe_than_a_denial(fields: dict[str, Any], severity: str):
    (record,) = await Lines().records(exchange(**fields))
    assert record.severity_text == severity


@pytest.mark.parametrize(
    "field",
    [
        {"time": "x"}, {"status": None}, {"duration_ms": "1"}, {"time": 1, "path": []}, {"duration_ms": -1e18},
        {"time": "0001-01-01T00:00:00Z"},
    ],
)  # fmt: skip
async def test_what_a_filter_logs_in_place_of_our_fields_loses_no_other_line(field: dict[str, Any]):
    odd = exchange()
    odd.add_log_fields(field)
    record, other = await Lines().records(odd, exchange())
    assert json.loads(record.body.string_value)["request_id"] == "abc-1"
    assert other.severity_text == "INFO"


@pytest.mark.parametrize("size", [0, 90, 107, 108, 109, 110, 111, 112, 128, 300])
async def test_texts_of_every_length_are_read_back(size: int):
    (record,) = await Lines().records(exchange(path=b"/" + b"x" * size))
    assert attributes(record)["path"] == "/" + "x" * size


async def test_the_log_may_go_to_the_collector_alone():
    lines = Lines(has_file=False)
    assert len(await lines.records(exchange(), exchange())) == 2
    assert lines.written == []
    assert (lines.counts.exported, lines.log._lines) == (2, [])


async def test_lines_that_wait_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch):
    long = [exchange(path=b"/" + b"x" * 1000) for _ in range(5)]
    monkeypatch.setattr(exporting, "MAX_SIZE", 5000)
    monkeypatch.setattr(exporting, "MAX_BATCH_SIZE", 3000)
    lines = Lines()
    assert len(await lines.records(*long)) == 3
    assert len(lines.requests) == 2  # of at most MAX_BATCH
    assert (lines.counts.dropped, lines.exporter._size) == ({"queue_full": 2}, 0)
