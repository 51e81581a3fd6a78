"""The figures of `egressproxy top`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli import top
from egressproxy.cli.main import main
from egressproxy.cli.top import MAX_DENIALS, WINDOW_S, Traffic

LINE = {
    "time": "1970-01-01T00:00:00.000Z", "authority": "a:80", "method": "GET", "namespace": "-", "service_account": "-",
    "client": "10.0.0.9:5000", "backend": "-", "reason": "-", "duration_ms": 2.0, "request_id": "1a-2",
}  # fmt: skip


def traffic(*lines: dict[str, Any], lost: int = 0, at: float = 0.0) -> Traffic:
    made = Traffic(frozenset({"request_rate"}))
    made._began = 0.0
    for each in lines:
        made.add("exchange", {**LINE, **each}, at)
    if lost:
        made.add("lost", {"lost": lost}, at)
    return made


def test_rates_are_of_the_last_seconds_with_what_was_lost():
    made = traffic({}, {"duration_ms": 9.0}, {"reason": "request_rate"}, {"reason": "upstream_timeout"}, lost=6)
    found = made.figures(WINDOW_S)
    assert [found[name] for name in ("requests", "denials", "failures", "lost")] == [1.0, 0.1, 0.1, 0.6]
    assert (found["p50_ms"], found["p95_ms"]) == (2.0, 9.0)
    found = made.figures(WINDOW_S * 2 + 1)
    assert (found["requests"], found["p50_ms"], found["destinations"]) == (0.0, None, [])
    assert len(found["denied"]) == 1


def test_the_busiest_come_first():
    made = traffic({"authority": "b:80"}, {"reason": "request_rate"}, {"namespace": "n", "service_account": "w"})
    found = made.figures(WINDOW_S)
    assert [(each["name"], each["requests"], each["denials"]) for each in found["destinations"]] == [
        ("a:80", 0.2, 0.1), ("b:80", 0.1, 0.0),
    ]  # fmt: skip
    assert [each["name"] for each in found["callers"]] == ["10.0.0.9", "n/w"]


def test_the_latest_denials_are_bounded():
    made = traffic(*({"reason": "request_rate", "request_id": str(number)} for number in range(MAX_DENIALS + 5)))
    denied = made.figures(0.0)["denied"]
    assert (len(denied), denied[0]["request_id"]) == (MAX_DENIALS, str(MAX_DENIALS + 4))


SUMMARY = {"version": "1", "ready": True, "configuration": 3, "is_rejected": True, "workers": 2, "open_connections": 7}


def stream(hold: bool) -> Any:
    def lines(*_: object, **__: object) -> Iterator[bytes]:
        yield b": live\n"
        yield b"\n"
        data = b'{"time":"2026-11-30T10:00:00.000Z","authority":"a:80\x1b","method":"GET","client":"10.0.0.9:5"'
        data += b',"backend":"n/b","reason":"request_rate","duration_ms":2.5,"request_id":"1a-2"}'
        yield from (b"id: 1\n", b"event: exchange\n", b"data: " + data.replace(b"\x1b", b"\\u001b") + b"\n", b"\n")
        while hold:
            top.sleep(0.05)

    return lines


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str, hold: bool = True) -> Any:
    answers = {"/summary": SUMMARY, "/history": {"minutes": [{"tokens": 1200, "cost": 0.5}, {"tokens": 0}]}}
    monkeypatch.setattr(top, "ask", lambda _admin, path: answers[path])
    monkeypatch.setattr(top, "lines", stream(hold))
    return CliRunner().invoke(main, ["top", "--interval", "0.2", *arguments])


def test_where_there_is_no_terminal_it_is_printed_once(monkeypatch: pytest.MonkeyPatch):
    shown = invoke(monkeypatch)
    assert shown.exit_code == 0
    assert "configuration 3  the latest one is rejected  workers 2  connections 7" in shown.output
    assert "1200 tokens/min  0.5 cost/min" in shown.output
    assert "GET a:80? by 10.0.0.9  request_rate  1a-2" in shown.output
    assert "\x1b" not in shown.output
    assert '"destinations"' in invoke(monkeypatch, "-o", "json").output


def test_a_gateway_that_ends_is_said(monkeypatch: pytest.MonkeyPatch):
    shown = invoke(monkeypatch, hold=False)
    assert (shown.exit_code, "has ended" in shown.output) == (2, True)
