"""What is known of a worker that a signal has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from egressproxy.net.file_lock import memory_file
from egressproxy.processes.workers import worker_handle as module
from egressproxy.processes.workers.worker_handle import MAX_CALLS, crash, watching
from tests.support.waiting import WAIT_S


@pytest.fixture
def file() -> Iterator[int]:
    made = memory_file("crash")
    yield made
    os.close(made)


def ended(program: str, file: int) -> int:
    command = [sys.executable, "-I", "-c", f"{watching(file)}\n{program}"]
    return subprocess.run(command, pass_fds=(file,), check=False, timeout=WAIT_S, capture_output=True).returncode


@pytest.mark.parametrize("number", sorted(module.CRASHES))
def test_every_crash_says_which_functions_ran_the_latest_first(file: int, number: signal.Signals):
    program = f"import os\ndef inner(secret): os.kill(os.getpid(), {int(number)})\ndef outer(): inner('xyzzy')\nouter()"
    status = ended(program, file)
    assert status == -number
    told = crash(status, file)
    assert "the latest calls in Python: <string>:3 in inner, <string>:4 in outer, <string>:5 in <module>" in told
    assert "xyzzy" not in told


def test_of_many_calls_the_latest_are_told(file: int):
    program = "import os, sys\ndef deeper(n): deeper(n - 1) if n else os.kill(os.getpid(), 11)\ndeeper(50)"
    assert crash(ended(program, file), file).count(" in deeper") == MAX_CALLS


def test_a_crash_before_python_could_write_is_one_all_the_same(file: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.build, "name", lambda: module.build.PURE)
    assert crash(-signal.SIGSEGV, file) == "compiled code of a library has crashed"


def test_a_build_with_compiled_modules_says_how_to_do_without(file: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.build, "name", lambda: module.build.COMPILED)
    assert crash(-signal.SIGSEGV, file) == (
        "compiled code has crashed, the gateway's or a library's; "
        "EGRESSPROXY_PURE=1 in the environment runs the gateway without compiled modules of its own"
    )


@pytest.mark.parametrize("status", [0, 1, -signal.SIGKILL, -signal.SIGTERM])
def test_other_ends_are_no_crash(file: int, status: int):
    assert crash(status, file) == ""
