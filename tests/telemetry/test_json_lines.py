"""Diagnostics as JSON: one object a line, whoever writes there."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.json_lines import MAX_UNENDED, JsonStream

log = logging.getLogger("egressproxy.test")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def recorded(stream: io.StringIO, origin: str = "", **more: Any) -> dict[str, Any]:
    """What becomes of one record."""
    diagnostics = Diagnostics("info", stream, origin, "json")
    diagnostics.start()
    log.warning("%s lost\n\x1b[31m", "one", **more)
    diagnostics.stop()
    (found,) = objects(stream.getvalue())
    return found


def test_a_record_has_its_time_level_logger_and_message_and_nothing_else(stream: io.StringIO):
    found = recorded(stream)
    moment = found.pop("time")
    assert (len(moment), moment[10], moment[-1]) == (24, "T", "Z")
    assert found == {"level": "warning", "logger": "egressproxy.test", "message": "one lost\n\x1b[31m"}


def test_what_it_is_about_stands_beside_it_and_what_is_empty_does_not(stream: io.StringIO):
    fields = {"object": "Gateway default/gw", "file": "a.yaml", "line": 3, "remedy": "", "message": "not this"}
    found = recorded(stream, "worker 2", extra={"fields": fields})
    assert (found["process"], found["object"], found["file"], found["line"]) == (
        "worker 2", "Gateway default/gw", "a.yaml", 3
    )  # fmt: skip
    assert "remedy" not in found
    assert found["message"].startswith("one lost")


def test_an_exception_is_one_object_with_its_traceback(stream: io.StringIO):
    try:
        raise ValueError("broken")
    except ValueError:
        found = recorded(stream, exc_info=True)
    assert found["error"] == "ValueError: broken"
    assert found["traceback"].startswith("Traceback (most recent call last):\n")


def test_what_is_written_to_the_stream_is_wrapped_line_by_line(stream: io.StringIO):
    wrapped = JsonStream(stream, "worker 1")
    print("half", end=" ", file=wrapped)
    assert stream.getvalue() == ""
    print("a line", "\n\nanother", file=wrapped)
    assert [(each["message"], each["level"], each["process"]) for each in objects(stream.getvalue())] == [
        ("half a line ", "warning", "worker 1"),
        ("another", "warning", "worker 1"),
    ]


PROGRAM = """
import sys, threading, warnings
from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.json_lines import take_over

take_over("worker 7")
warnings.warn("too early")
diagnostics = Diagnostics("info", origin="worker 7", log_format="json")
diagnostics.start()
warnings.warn("in time")
print("printed", file=sys.stderr)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()


class Unraisable:
    def __del__(self):
        raise KeyError("lost")


Unraisable()
diagnostics.stop()
raise RuntimeError("the end")
"""


def test_warnings_tracebacks_and_prints_of_a_whole_process_are_json():
    done = subprocess.run([sys.executable, "-W", "always", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    found = objects(done.stderr)
    for words in ("too early", "in time", "printed", "ZeroDivisionError", "KeyError", "RuntimeError: the end"):
        assert any(words in json.dumps(each) for each in found), words
    named = [each for each in found if each["message"] == "uncaught ZeroDivisionError"]
    assert [each["error"] for each in named] == ["ZeroDivisionError: division by zero"]
    assert {each["process"] for each in found} == {"worker 7"}


def test_octets_that_are_no_text_are_an_escape_and_no_half_of_a_pair(stream: io.StringIO):
    """Strict readers refuse the whole line (RFC 8259, 8.2)."""
    name = b"/etc/\xff.yaml".decode(errors="surrogateescape")
    found = recorded(stream, extra={"fields": {"file": name}})
    assert found["file"] == "/etc/\\udcff.yaml"
    JsonStream(stream).write(f"{name} 🙂\n")
    printed = objects(stream.getvalue())[-1]["message"]
    assert printed == "/etc/\\udcff.yaml 🙂"
    for value in (found["file"], printed):
        value.encode()


def test_a_line_that_does_not_end_is_told_in_pieces(stream: io.StringIO):
    printed = JsonStream(stream)
    for _ in range(100_000):
        printed.write(".")
    assert len(printed._rest) <= MAX_UNENDED
    printed.write("\n")
    assert "".join(each["message"] for each in objects(stream.getvalue())) == "." * 100_000
