"""Lines for people say what a line of JSON says, and nothing of a stranger's text reaches the terminal raw."""

from __future__ import annotations

import json
import os
import pty
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.errors import Reason
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.text_log import MAX_WHERE, TextLines
from tests.telemetry.test_access_log import exchange

PLAIN = TextLines(is_coloured=False)


def values(**fields: Any) -> dict[str, Any]:
    return {
        "time": "2026-11-30T10:02:54.837Z", "namespace": "-", "service_account": "-", "backend": "-", "method": "GET",
        "authority": "paste.example:443", "path": "/x", "status": 200, "reason": "-", "duration_ms": 12.345, **fields,
    }  # fmt: skip


def test_what_passed_has_its_duration_its_client_and_its_backend():
    line = PLAIN.line(values(namespace="team", service_account="bot", backend="agents/openai"))
    assert line == "10:02:54.837Z 200 GET     paste.example:443/x  12 ms  team/bot → agents/openai"


def test_what_was_denied_has_the_reason_and_the_change_that_allows_it():
    denied = values(
        method="CONNECT", path="-", status=403, reason="destination_not_allowed", rule="EgressPolicy agents/default"
    )
    assert PLAIN.line(denied) == (
        "10:02:54.837Z 403 CONNECT paste.example:443  destination_not_allowed: add"
        ' {hostnames: ["paste.example"], ports: [443]} to destinations.allow of EgressPolicy agents/default'
    )
    assert "leave it closed" in PLAIN.line({**denied, "authority": "169.254.169.254:80"})
    rebound = {**denied, "reason": "resolved_denied", "detail": "169.254.169.254 (cloud metadata)"}
    assert "resolved_denied: 169.254.169.254 (cloud metadata); leave it closed" in PLAIN.line(rebound)


def test_details_and_reports_are_told():
    line = PLAIN.line(values(status=502, reason="filter_failed", detail="x.py:3", would_deny=["no_policy"]))
    assert "filter_failed: x.py:3" in line
    assert "mode Enforce would deny: no_policy" in line


@pytest.mark.parametrize("reason", [each.value for each in Reason if each is not Reason.OK])
def test_every_reason_has_a_line(reason: str):
    for authority in ("paste.example:443", "-", "[::1]:1", "192.0.2.1:80"):
        assert f" {reason}" in PLAIN.line(values(status=403, reason=reason, authority=authority))


@settings(max_examples=25)
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=8))
def test_nothing_invisible_reaches_a_terminal(path: str, detail: str, method: str):
    line = PLAIN.line(
        values(path=path, detail=detail, method=method, authority=detail, reason="no_route", namespace=path)
    )
    assert line.isprintable()


HOSTILE = ["\x1b]0;t\x07", "\x9b31m", "\u202egnp.exe", "\u2066", "a\nb", "\r", "\u2028", "\x7f"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_path_is_escaped(hostile: str):
    chunk = json.dumps(values(path=f"/{hostile}", would_deny=[])).encode() + b"\n"
    text = PLAIN.render(chunk).decode()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()


@pytest.mark.parametrize("field", ["status", "reason", "would_deny", "duration_ms", "method", "namespace", "rule"])
def test_a_field_of_a_filter_in_the_place_of_ours_hides_no_exchange(field: str):
    reading, writing = os.pipe()
    log = AccessLog(writing, log_format="text")
    for fields in ({field: {"\x7f": 1}}, {field: float("inf")}, {}):
        finished = exchange()
        finished.add_log_fields(fields)
        log.record(finished)
    log.close()
    os.close(writing)
    with open(reading) as file:
        lines = file.read().splitlines()
    assert len(lines) == 3
    assert lines[0].isprintable()


def test_a_long_path_is_cut():
    assert len(PLAIN.line(values(path="/" + "x" * 8000))) < MAX_WHERE + 60


def on_a_terminal(*, log_format: str = "auto") -> str:
    """What is written to a terminal for one denial."""
    master, slave = pty.openpty()
    try:
        log = AccessLog(slave, log_format=log_format)
        log.record(exchange(status=403, reason=Reason.NO_POLICY, path=b"/\x1b[2J"))
        log.close()
        return os.read(master, 4096).decode()
    finally:
        os.close(master)
        os.close(slave)


def test_a_terminal_is_shown_text_in_colour(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = on_a_terminal()
    assert "\x1b[33m403\x1b[0m" in text
    assert "\x1b[2J" not in text
    assert text.count("\n") == 1


def test_a_terminal_without_colours_is_shown_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal()


def test_json_is_had_on_a_terminal_where_it_is_asked_for():
    assert json.loads(on_a_terminal(log_format="json"))["reason"] == "no_policy"


def test_a_pipe_has_json_and_on_request_text():
    for log_format, begins in (("auto", "{"), ("text", "22:13:20.250Z 200 GET ")):
        reading, writing = os.pipe()
        log = AccessLog(writing, log_format=log_format)
        log.record(exchange())
        log.close()
        os.close(writing)
        with open(reading) as file:
            assert file.read().startswith(begins)
