"""The process that loads, and everything that it may do wrong: its request fails then, says why, and it is ended."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from egressproxy.config.reading.load import read_all
from egressproxy.config.reading.problems import ConfigError
from egressproxy.model.work import at_once
from egressproxy.net.tls_contexts.system_roots import mark
from egressproxy.processes.loader import process as apart
from egressproxy.processes.loader.answer import answer
from egressproxy.processes.loader.compilation import Machine, compiled
from egressproxy.processes.loader.loader import LOAD, SCHEMA
from egressproxy.processes.loader.process import LoaderProcess, LoadingFailed
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig, read_answer
from egressproxy.processes.packing import unpacking
from tests.support import manifests as m
from tests.support.other_processes import looks_into_others
from tests.support.waiting import WAIT_S, wait_until

BIND = ("127.0.0.1",)
Instead = Callable[[str], LoaderProcess]

#: What any program has to do that serves a request: take its descriptors for standard input, output and error.
TAKE = """
import os, socket, sys
control = socket.socket(fileno=os.dup(0))
_, descriptors, _, _ = socket.recv_fds(control, 256, 3)
control.detach()  # it is closed with the process, and not before
for number, descriptor in enumerate(descriptors):
    os.dup2(descriptor, number)
    os.close(descriptor)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(["a.test"])])
    return tmp_path


@pytest.fixture(params=[True, False], ids=["kept", "for one request"])
def process(request: pytest.FixtureRequest) -> Iterator[LoaderProcess]:
    """The real one."""
    made = LoaderProcess(is_kept=request.param)
    yield made
    made.close()


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instead]:
    """Another program in its place, which has taken the request."""
    started = []

    def start(program: str) -> LoaderProcess:
        command = [sys.executable, "-I", "-S", "-c", TAKE + program]
        monkeypatch.setattr(apart, "child_command", lambda _: command)
        started.append(LoaderProcess(is_kept=False))
        return started[-1]

    yield start
    for each in started:
        each.close()


def load(process: LoaderProcess, *paths: Path, memory: bytes = b"") -> CompiledConfig:
    return read_answer(process.ask(LOAD, write_request(LoadRequest(paths, BIND, memory))))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def copies(process: LoaderProcess) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_a_configuration_is_loaded_as_in_this_process(process: LoaderProcess, folder: Path):
    there = Machine(system_roots=mark())
    assert at_once(unpacking(load(process, folder).spec)) == compiled(read_all((folder,)), BIND, machine=there).spec


def test_it_serves_one_request_after_the_other(folder: Path):
    process = LoaderProcess(is_kept=True)
    try:
        made = load(process, folder)
        again = load(process, folder, memory=made.memory)
        assert again.shown == made.shown
        with pytest.raises(ConfigError):
            load(process, folder / "missing.yaml")
        assert load(process, folder).spec == made.spec
        assert process.is_waiting()
    finally:
        process.close()
    assert not process.is_waiting()


def test_what_is_not_kept_serves_one_request_and_ends(folder: Path):
    process = LoaderProcess(is_kept=False)
    load(process, folder)
    assert not process.is_waiting()
    assert not is_running(process.pid)


def memory_of(pid: int) -> bytes:
    """All that it can write to."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            region, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(edge, 16) for edge in region.split("-"))
                memory.seek(start)
                with suppress(OSError):  # it has gone meanwhile
                    found.append(memory.read(end - start))
    return b"".join(found)


@looks_into_others
def test_it_keeps_nothing_of_what_it_read(folder: Path):
    process = LoaderProcess(is_kept=True)
    try:
        sizes = [0, 1, 2]

        def is_steady() -> bool:
            """It has made all that it makes before it is asked."""
            load(process, folder)
            sizes.append(len(memory_of(process.pid)))
            return len(set(sizes[-3:])) == 1

        wait_until(is_steady)
        before, descriptors = sizes[-1], os.listdir(f"/proc/{process.pid}/fd")
        m.write(folder / "more.yaml", [m.config_map(f"c{number}", {"a": "CANARY-41"}) for number in range(1000)])
        assert load(process, folder).objects == 1002
        assert not copies(process)
        after = memory_of(process.pid)
        assert b"egressproxy.processes.loader" in after
        assert b"CANARY-41" not in after
        assert len(after) - before < 256 * 1024
        assert os.listdir(f"/proc/{process.pid}/fd") == descriptors
    finally:
        process.close()


@looks_into_others
def test_it_has_no_descriptor_of_its_parent(folder: Path):
    process = LoaderProcess(is_kept=True)
    with open(folder / "all.yaml", "rb") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            load(process, folder)
            assert len(os.listdir(f"/proc/{process.pid}/fd")) == 3
        finally:
            process.close()


def test_it_makes_the_schema(process: LoaderProcess):
    assert b'"HTTPRoute"' in process.ask(SCHEMA, b"")


def test_what_is_wrong_comes_back_whole(process: LoaderProcess, tmp_path: Path):
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(99999)), m.policy(["a.test"], mode="Never")])
    with pytest.raises(ConfigError) as here:
        compiled(read_all((tmp_path,)), BIND)
    with pytest.raises(ConfigError) as there:
        load(process, tmp_path)
    assert there.value.problems == here.value.problems


def test_more_than_a_pipe_holds_comes_through_both_ways(process: LoaderProcess, tmp_path: Path):
    rule = m.prefix_rule("/", "b")
    routes = [m.http_route(f"r{number}", rule, hostnames=[f"h{number}.test"], section="http") for number in range(300)]
    padding = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    padding["data"] = {f"k{number}": os.urandom(512).hex() for number in range(2000)}  # does not compress
    m.write(tmp_path / "all.yaml", [m.gateway(m.http_listener(8080)), padding, *routes])
    before = read_answer(answer(write_request(LoadRequest((tmp_path,), BIND)))).memory
    memory = before + bytes(3 * 1024 * 1024)  # what follows is ignored
    made = load(process, tmp_path, memory=memory)
    assert made.objects == 302
    assert len(made.shown) > 1024 * 1024


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("raise RuntimeError('out of luck')", "ended with status 1; the log has its words"),
    ],
)
def test_a_process_that_dies_is_a_failure(instead: Instead, program: str, said: str):
    with pytest.raises(LoadingFailed) as caught:
        instead(program).ask(LOAD, bytes(4 * 1024 * 1024))
    assert said in str(caught.value)


def test_a_process_that_is_dead_already_is_a_failure():
    process = LoaderProcess(is_kept=True)
    os.kill(process.pid, 9)
    with pytest.raises(LoadingFailed, match="was ended by SIGKILL"):
        process.ask(LOAD, bytes(4 * 1024 * 1024))


def test_a_copy_that_is_killed_is_a_failure(folder: Path):
    """By a system that is short of memory."""
    process = LoaderProcess(is_kept=True)
    load(process, folder)
    os.mkfifo(folder / "pipe.txt")

    def kill() -> None:
        wait_until(lambda: bool(copies(process)))
        os.kill(copies(process)[0], 9)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LoadingFailed, match="was ended by SIGKILL"):
        load(process, folder / "pipe.txt")  # to read it takes for ever
    killer.join()
    assert not process.is_waiting()


def test_a_process_that_cannot_start_is_a_failure_and_its_words_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(apart, "child_command", lambda _: [sys.executable, "-c", "import no_such_module"])
    with pytest.raises(LoadingFailed, match="ended with status 1"):
        LoaderProcess(is_kept=True).ask(LOAD, b"")
    assert "no_such_module" in caplog.text


def test_a_whole_answer_of_a_process_that_fails_does_not_count(instead: Instead):
    with pytest.raises(LoadingFailed, match="ended with status 1"):
        instead("sys.stdout.write('whole'); sys.stdout.flush(); sys.exit(1)").ask(LOAD, b"")


def test_a_process_that_hangs_is_ended_and_its_words_are_kept(
    instead: Instead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(apart, "LIMIT_S", 2.0)
    process = instead("import time; print('I wait', file=sys.stderr, flush=True); time.sleep(600)")
    with pytest.raises(LoadingFailed, match="was not read within"):
        process.ask(LOAD, b"")
    assert not is_running(process.pid)
    assert "while loading: I wait" in caplog.messages


def test_a_copy_that_hangs_is_ended_with_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    process = LoaderProcess(is_kept=True)
    load(process, folder)
    os.mkfifo(folder / "pipe.txt")
    monkeypatch.setattr(apart, "LIMIT_S", 1.0)
    seen: list[int] = []
    looking = threading.Thread(target=lambda: wait_until(lambda: bool(seen.extend(copies(process)) or seen)))
    looking.start()
    with pytest.raises(LoadingFailed, match="was not read within"):
        load(process, folder / "pipe.txt")
    looking.join()
    wait_until(lambda: not any(map(is_running, (process.pid, *seen))))


def test_a_process_that_closes_its_pipes_and_hangs_is_ended(instead: Instead, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "LIMIT_S", 0.5)
    process = instead("import time; os.close(0); os.close(1); os.close(2); time.sleep(600)")
    with pytest.raises(LoadingFailed):
        process.ask(LOAD, b"")
    assert not is_running(process.pid)


def test_a_process_that_never_stops_talking_is_ended(instead: Instead, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "MAX_ANSWER", 1024 * 1024)
    process = instead("while True: sys.stdout.write('x' * 100000)")
    with pytest.raises(LoadingFailed, match="larger than 1 MiB"):
        process.ask(LOAD, b"")
    assert not is_running(process.pid)


def test_a_flood_of_words_is_cut_and_the_answer_still_counts(
    instead: Instead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(apart, "MAX_WORDS", 1000)
    process = instead("sys.stderr.write('word\\n' * 500000); sys.stdout.write('the answer')")
    assert process.ask(LOAD, b"") == b"the answer"
    assert 0 < len(caplog.records) < 100_000


def test_what_it_says_on_standard_error_is_logged_and_not_shown(instead: Instead, caplog: pytest.LogCaptureFixture):
    with pytest.raises(LoadingFailed) as caught:
        instead("sys.stderr.write('first\\nsecond\\n'); sys.exit(1)").ask(LOAD, b"")
    assert "second" not in str(caught.value)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["while loading: first", "while loading: second"]


@pytest.mark.parametrize("is_asked", [False, True])
def test_it_does_not_outlive_its_parent(folder: Path, is_asked: bool):
    os.mkfifo(folder / "pipe.txt")
    program = (
        "import os, sys, threading; from pathlib import Path\n"
        "from egressproxy.processes.loader.process import LoaderProcess\n"
        "from egressproxy.processes.loader.request import LoadRequest, write_request\n"
        "from egressproxy.processes.loader.loader import LOAD\n"
        "process = LoaderProcess(is_kept=True)\n"
        f"request = write_request(LoadRequest([Path({str(folder / 'pipe.txt')!r})], ('127.0.0.1',)))\n"
        f"process.ask(LOAD, write_request(LoadRequest([Path({str(folder)!r})], ('127.0.0.1',))))\n"
        f"if {is_asked}: threading.Thread(target=process.ask, args=(LOAD, request)).start()\n"
        "children = Path(f'/proc/{process.pid}/task/{process.pid}/children')\n"
        f"while {is_asked} and not children.read_text(): pass\n"
        "print(process.pid, children.read_text(), flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S)
    processes = [int(number) for number in done.stdout.split()]
    assert len(processes) == 1 + is_asked
    wait_until(lambda: not any(map(is_running, processes)))


def test_it_dumps_no_core(folder: Path):
    process = LoaderProcess(is_kept=True)
    try:
        load(process, folder)
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="ascii")
        assert next(line for line in limits.splitlines() if "core" in line).split()[4:6] == ["0", "0"]
    finally:
        process.close()


def test_it_takes_its_modules_from_where_this_process_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever PYTHON… variables and the working directory say."""
    (folder / "egressproxy.py").write_text("raise SystemExit('not me')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load(LoaderProcess(is_kept=False), folder / "all.yaml").objects == 2
