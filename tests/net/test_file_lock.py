"""Several processes, one pipe, whole lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from egressproxy.net.file_lock import FileLock, memory_file
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
WRITERS, LINES, LENGTH = 4, 300, 3000

#: Writes in batches far beyond PIPE_BUF, through the access log's own writer.
WRITER = """
import sys
from egressproxy.telemetry.log_writer import LogWriter
from egressproxy.net.file_lock import FileLock
name, pipe, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = LogWriter(pipe, 1 << 30, FileLock(turn))
line = '{"writer":"' + name + '","filler":"' + name * %d + '"}\\n'
for _ in range(%d // 20):
    writer.put((line * 20).encode(), 20)
writer.close(60)
"""


def test_lines_of_several_processes_are_never_mixed_in_a_pipe():
    reading, writing = os.pipe()
    turn = memory_file("test")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER % (LENGTH, LINES), name, str(writing), str(turn)],
            cwd=ROOT,
            pass_fds=(writing, turn),
        )
        for name in "abcdefgh"[:WRITERS]
    ]
    os.close(writing)
    os.close(turn)
    data = b""
    while piece := os.read(reading, 3000):  # a slow reader: the pipe is full, and who writes has to wait within a batch
        data += piece
    os.close(reading)
    lines = data.splitlines()
    assert [process.wait(WAIT_S) for process in started] == [0] * WRITERS
    assert len(lines) == WRITERS * LINES
    for line in lines:
        found = json.loads(line)
        assert found["filler"] == found["writer"] * LENGTH


def test_a_process_that_is_killed_gives_its_turn_back():
    descriptor = memory_file("test")
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from egressproxy.net.file_lock import FileLock\n"
            "with FileLock(int(sys.argv[1])): print(flush=True); time.sleep(60)",
            str(descriptor),
        ],
        cwd=ROOT, pass_fds=(descriptor,), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with FileLock(descriptor):
        pass
    os.close(descriptor)
