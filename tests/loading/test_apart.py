"""The process that loads, and everything that it may do wrong: a reload is refused then, and says why."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from egressproxy.config.problems import ConfigError
from egressproxy.loading import apart
from egressproxy.loading.apart import Loading, LoadingFailed
from egressproxy.loading.compilation import loaded
from egressproxy.loading.result import Loaded, write_answer
from egressproxy.model.steps import finished
from egressproxy.spec.packing import unpacking
from tests.support import manifests as m
from tests.support.waiting import WAIT_S

BIND = ("127.0.0.1",)
Instead = Callable[[str], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(["a.test"])])
    return tmp_path


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Another program in the place of the one that loads."""

    def put(program: str) -> None:
        monkeypatch.setattr(apart, "_command", lambda _module: [sys.executable, "-I", "-S", "-c", program])

    return put


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_configuration_is_loaded_as_in_this_process(folder: Path):
    made = await Loading((folder,), BIND).result()
    assert finished(unpacking(made.spec)) == loaded((folder,), BIND)[1].spec
    again = await Loading((folder,), BIND, made.memory).result()
    assert again.shown == made.shown


async def test_what_is_wrong_comes_back_whole(tmp_path: Path):
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(99999)), m.policy(["a.test"], mode="Never")])
    with pytest.raises(ConfigError) as here:
        loaded((tmp_path,), BIND)
    with pytest.raises(ConfigError) as there:
        await Loading((tmp_path,), BIND).result()
    assert there.value.problems == here.value.problems


async def test_more_than_a_pipe_holds_comes_through_both_ways(tmp_path: Path):
    rule = m.prefix_rule("/", "b")
    routes = [m.http_route(f"r{number}", rule, hostnames=[f"h{number}.test"], section="http") for number in range(300)]
    padding = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    padding["data"] = {f"k{number}": os.urandom(512).hex() for number in range(2000)}  # does not compress
    m.write(tmp_path / "all.yaml", [m.gateway(m.http_listener(8080)), padding, *routes])
    made = await Loading((tmp_path,), BIND).result()
    assert made.objects == 302
    assert len(made.shown) > 1024 * 1024
    memory = made.memory + bytes(3 * 1024 * 1024)  # what follows is ignored
    assert (await Loading((tmp_path,), BIND, memory).result()).objects == 302


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("raise RuntimeError('out of luck')", "ended with status 1; the log has its words"),
        ("print('I am no pickle')", "gave no whole answer"),
        ("pass", "gave no whole answer"),
        ("import sys; sys.stdin.buffer.read(); print('late')", "gave no whole answer"),
    ],
)
async def test_a_process_that_dies_or_talks_rubbish_is_a_failure(instead: Instead, program: str, said: str):
    instead(program)
    with pytest.raises(LoadingFailed) as caught:
        await Loading((), BIND, bytes(4 * 1024 * 1024)).result()
    assert said in str(caught.value)


async def test_half_an_answer_is_a_failure(instead: Instead):
    half = write_answer(Loaded(b"x" * 10_000))[:5000]
    instead(f"import sys; sys.stdout.buffer.write({half!r})")
    with pytest.raises(LoadingFailed, match="no whole answer"):
        await Loading((), BIND).result()


async def test_a_whole_answer_of_a_process_that_fails_does_not_count(instead: Instead):
    instead(f"import sys; sys.stdout.buffer.write({write_answer(Loaded())!r}); sys.stdout.flush(); sys.exit(1)")
    with pytest.raises(LoadingFailed, match="ended with status 1"):
        await Loading((), BIND).result()


async def test_a_process_that_hangs_is_ended_and_its_words_are_kept(
    instead: Instead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    instead("import sys, time; print('I wait', file=sys.stderr); time.sleep(600)")
    monkeypatch.setattr(apart, "LIMIT_S", 2.0)
    loading = Loading((), BIND)
    with pytest.raises(LoadingFailed, match="was not read within"):
        await loading.result()
    assert not is_running(loading.pid)
    assert "while loading: I wait" in caplog.messages


async def test_a_process_that_closes_its_pipes_and_hangs_is_ended(instead: Instead, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "LIMIT_S", 0.5)
    instead("import os, time; os.close(0); os.close(1); os.close(2); time.sleep(600)")
    loading = Loading((), BIND)
    with pytest.raises(LoadingFailed):
        await loading.result()
    assert not is_running(loading.pid)


async def test_a_process_that_never_stops_talking_is_ended(instead: Instead, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "MAX_ANSWER", 1024 * 1024)
    instead("import sys\nwhile True: sys.stdout.write('x' * 100000)")
    loading = Loading((), BIND)
    with pytest.raises(LoadingFailed, match="larger than 1 MiB"):
        await loading.result()
    assert not is_running(loading.pid)


async def test_a_flood_of_words_is_cut_and_the_answer_still_counts(
    instead: Instead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(apart, "MAX_WORDS", 1000)
    answer = write_answer(Loaded(objects=5))
    instead(f"import sys; sys.stderr.write('word\\n' * 500000); sys.stdout.buffer.write({answer!r})")
    assert (await Loading((), BIND).result()).objects == 5
    assert 0 < len(caplog.records) < 100_000


async def test_what_it_says_on_standard_error_is_logged_and_not_shown(
    instead: Instead, caplog: pytest.LogCaptureFixture
):
    instead("import sys; sys.stderr.write('first\\nsecond\\n'); sys.exit(1)")
    with pytest.raises(LoadingFailed) as caught:
        await Loading((), BIND).result()
    assert "second" not in str(caught.value)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["while loading: first", "while loading: second"]


async def test_a_loading_that_nobody_waits_for_any_more_is_ended(instead: Instead):
    instead("import time; time.sleep(600)")
    loading = Loading((), BIND)
    waiting = asyncio.create_task(loading.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.get_running_loop().run_in_executor(None, until, lambda: not is_running(loading.pid))


def test_it_does_not_outlive_its_parent(folder: Path):
    program = (
        "import os, sys; from pathlib import Path; from egressproxy.loading.apart import Loading\n"
        f"print(Loading((Path({str(folder)!r}),), ('127.0.0.1',)).pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S)
    until(lambda: not is_running(int(done.stdout)))


def test_it_dumps_no_core(folder: Path):
    loading = Loading((folder,), BIND)  # waits for its request

    def is_off() -> bool:
        limits = Path(f"/proc/{loading.pid}/limits").read_text(encoding="ascii")
        return next(line for line in limits.splitlines() if "core" in line).split()[4:6] == ["0", "0"]

    try:
        until(is_off)
    finally:
        loading.end()


def test_it_takes_its_modules_from_where_this_process_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever PYTHON… variables and the working directory say."""
    (folder / "egressproxy.py").write_text("raise SystemExit('not me')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert asyncio.run(Loading((folder / "all.yaml",), BIND).result()).objects == 2
