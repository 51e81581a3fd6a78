"""Diagnostics come out as one line each, and a blocked stderr blocks nobody."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from egressproxy.telemetry.diagnostics import MAX_WAITING, Diagnostics
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    names = ("asyncio", "watchfiles", "aiohttp", "hpack")
    levels = [logging.getLogger(name).level for name in names]
    yield
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def written(*records: tuple[int, str, tuple[object, ...]], level: str = "info") -> str:
    stream = io.StringIO()
    diagnostics = Diagnostics(level, stream)
    diagnostics.start()
    for number, message, arguments in records:
        logging.getLogger("egressproxy.test").log(number, message, *arguments)
    diagnostics.stop()
    return stream.getvalue()


def test_a_line_is_time_level_logger_message():
    line = written((logging.INFO, "listening on %s", ("127.0.0.1:3128",)))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info egressproxy\.test listening on 127\.0\.0\.1:3128\n", line
    )


def test_a_level_keeps_lesser_records_out():
    lines = written(
        (logging.DEBUG, "quiet", ()), (logging.INFO, "quiet", ()), (logging.WARNING, "loud", ()), level="warning"
    )
    assert lines.count("\n") == 1
    assert "loud" in lines


def test_control_characters_cannot_forge_a_line():
    lines = written((logging.INFO, "host %s", ("a\n2023 error forged\x1b[31m\x9b",)))
    assert lines.count("\n") == 1
    assert "\\x1b[31m" in lines
    assert "\x9b" not in lines


@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_watcher_of_files_does_not_tell_of_every_change(level: str):
    """In a watched folder, a log file that is told of each change would change by that."""
    stream = io.StringIO()
    diagnostics = Diagnostics(level, stream)
    diagnostics.start()
    logging.getLogger("watchfiles.main").info("1 change detected")
    diagnostics.stop()
    assert stream.getvalue() == ""


def test_a_traceback_is_indented_below_its_line():
    stream = io.StringIO()
    diagnostics = Diagnostics("info", stream)
    diagnostics.start()
    try:
        raise ValueError("broken\x1b")
    except ValueError:
        logging.getLogger("egressproxy.test").exception("a defect")
    diagnostics.stop()
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("a defect")
    assert rest[-1] == "  ValueError: broken\\x1b"


def test_stop_gives_the_root_logger_back():
    before = logging.getLogger().handlers[:]
    written()
    assert logging.getLogger().handlers == before


def test_a_stderr_that_blocks_stops_nothing():
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    diagnostics = Diagnostics("info", stream)
    diagnostics.start()
    logger = logging.getLogger("egressproxy.test")
    started = time.monotonic()
    for _ in range(MAX_WAITING + 1500):
        logger.info("x" * 200)
    assert time.monotonic() - started < WAIT_S, "it waited for the reader"
    assert diagnostics.dropped > 0
    os.close(reading)
    logging.raiseExceptions = False  # the broken pipe is this test's doing
    try:
        diagnostics.stop()
    finally:
        logging.raiseExceptions = True
    diagnostics._thread.join(WAIT_S)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_records_that_were_dropped_are_counted_in_the_log_when_there_is_room_again():
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    diagnostics = Diagnostics("info", stream)
    diagnostics.start()
    for _ in range(MAX_WAITING + 1500):
        logging.getLogger("egressproxy.test").info("x" * 200)
    lost = diagnostics.dropped
    assert lost > 0
    found: list[str] = []

    def read() -> None:
        with open(reading) as file:
            found.extend(line for line in file if "x" * 200 not in line)

    reader = threading.Thread(target=read)
    reader.start()
    diagnostics.stop()
    diagnostics._thread.join(WAIT_S)
    stream.close()
    reader.join(WAIT_S)
    (line,) = found
    assert line.endswith(f" warning egressproxy {lost} records were not logged: standard error is read too slowly\n")


def test_a_client_whose_server_name_is_no_text_writes_nothing(monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))
    server = Pki().issue("a.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.configure_cert(context)
    context.sni_callback = lambda _peer, _name, _context: None
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    said = ssl.MemoryBIO()
    said.write(hello.read().replace(b"a.example", b"\xff.example"))
    diagnostics = Diagnostics("info", io.StringIO())
    diagnostics.start()
    try:
        with pytest.raises(ssl.SSLError, match="callback failed"):
            context.wrap_bio(said, ssl.MemoryBIO(), server_side=True).do_handshake()
        assert told == []
        raised = KeyError("a defect")
        _breaks_when_it_goes(raised)
        assert told == [raised]
    finally:
        diagnostics.stop()


def _breaks_when_it_goes(error: Exception) -> None:
    class Broken:
        def __del__(self) -> None:
            raise error

    Broken()
