"""One process stays warm for the next request, goes when nobody asks, and is replaced when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.processes.loader import loader as loader_module
from egressproxy.processes.loader import process as apart
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.process import LoaderProcess, LoadingFailed
from egressproxy.processes.loader.request import LoadRequest
from tests.e2e.processes.test_process import TAKE, copies, is_running
from tests.support import manifests as m
from tests.support.waiting import until, wait_until

BIND = ("127.0.0.1",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(["a.test"])])
    return tmp_path


async def reading(loader: Loader, before: LoaderProcess | None = None) -> LoaderProcess:
    """The process, once a copy of it reads; another one than that before."""
    await until(lambda: loader._process not in (None, before) and copies(loader._process))  # type: ignore[arg-type]
    assert loader._process is not None
    return loader._process


@pytest.fixture
async def loader() -> AsyncIterator[Loader]:
    made = Loader()
    yield made
    made.close()


async def test_the_next_request_is_served_by_the_same_process(loader: Loader, folder: Path):
    await loader.load(LoadRequest((folder,), BIND))
    first = loader.pid
    assert first is not None
    m.write(folder / "all.yaml", [m.gateway(m.forward_listener(99999))])
    with pytest.raises(ConfigError):
        await loader.load(LoadRequest((folder,), BIND))
    assert b'"HTTPRoute"' in await loader.schema()
    assert loader.pid == first


async def test_one_that_was_started_already_is_used(folder: Path):
    first = LoaderProcess(is_kept=True)
    loader = Loader(first)
    await loader.load(LoadRequest((folder,), BIND))
    assert loader.pid == first.pid
    loader.close()
    assert not is_running(first.pid)


async def test_where_a_process_serves_one_request_the_next_one_waits_already(
    monkeypatch: pytest.MonkeyPatch, folder: Path
):
    """As on macOS."""
    monkeypatch.setattr(LoaderProcess.__init__, "__kwdefaults__", {"is_kept": False})
    loader = Loader()
    await loader.load(LoadRequest((folder,), BIND))
    first = loader.pid
    assert first is not None
    assert is_running(first)
    await loader.load(LoadRequest((folder,), BIND))
    assert loader.pid not in (None, first)
    loader.close()


async def test_it_goes_when_nobody_asks_and_comes_with_the_next_request(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader_module, "QUIET_S", 0.05)
    loader = Loader()
    await loader.load(LoadRequest((folder,), BIND))
    first = loader.pid
    assert first is not None
    await until(lambda: not is_running(first))
    assert loader.pid is None
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2
    assert loader.pid != first
    loader.close()


async def test_one_that_was_killed_while_it_waited_is_replaced(loader: Loader, folder: Path):
    await loader.load(LoadRequest((folder,), BIND))
    process = loader._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not process.is_waiting())
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2


@pytest.mark.parametrize("is_copy", [True, False], ids=["the one that reads", "the one that waits for it"])
async def test_what_is_asked_of_one_that_is_killed_is_asked_once_more(
    loader: Loader, folder: Path, is_copy: bool, caplog: pytest.LogCaptureFixture
):
    """No fault of what is read: nobody would change the files again for it."""
    os.mkfifo(folder / "pipe.txt")
    asked = asyncio.create_task(loader.load(LoadRequest((folder / "pipe.txt",), BIND)))
    first = await reading(loader)
    os.kill(copies(first)[0] if is_copy else first.pid, signal.SIGKILL)
    await reading(loader, first)
    (folder / "pipe.txt").write_text((folder / "all.yaml").read_text())
    assert (await asked).objects == 2
    assert "was ended by SIGKILL (as the system does where memory is short); the log has its words" in caplog.text
    assert "; it is asked of another one" in caplog.text


async def test_what_ends_two_of_them_fails(loader: Loader, folder: Path):
    os.mkfifo(folder / "pipe.txt")
    asked = asyncio.create_task(loader.load(LoadRequest((folder / "pipe.txt",), BIND)))
    first = await reading(loader)
    os.kill(first.pid, signal.SIGSEGV)
    os.kill((await reading(loader, first)).pid, signal.SIGSEGV)
    with pytest.raises(LoadingFailed, match="was ended by SIGSEGV"):
        await asked


async def test_one_that_was_stopped_goes_on_when_it_is_asked(loader: Loader, folder: Path):
    await loader.load(LoadRequest((folder,), BIND))
    first = loader.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2
    assert loader.pid == first


def test_where_memory_is_short_it_goes_and_not_who_serves():
    process = LoaderProcess()
    wait_until(lambda: Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n")
    process.close()


async def test_one_that_hangs_fails_its_request_and_is_replaced(
    loader: Loader, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(folder / "pipe.txt")
    await loader.load(LoadRequest((folder,), BIND))
    first = loader.pid
    assert first is not None
    monkeypatch.setattr(apart, "LIMIT_S", 0.5)
    with pytest.raises(LoadingFailed, match="was not read within"):
        await loader.load(LoadRequest((folder / "pipe.txt",), BIND))
    monkeypatch.undo()
    assert not is_running(first)
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2


@pytest.mark.parametrize("answer", ["b'I am no pickle'", "b''", "b'\\x80\\x05]'"])
async def test_one_that_talks_rubbish_fails_its_request_and_is_replaced(
    loader: Loader, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str
):
    with monkeypatch.context() as patch:
        program = f"{TAKE}\nsys.stdin.read(); sys.stdout.buffer.write({answer})"
        patch.setattr(apart, "child_command", lambda _: [sys.executable, "-c", program])
        with pytest.raises(LoadingFailed, match="gave no whole answer"):
            await loader.load(LoadRequest((folder,), BIND))
    loader._drop()  # the one that was started meanwhile is of the same kind
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2


async def test_requests_wait_for_each_other(loader: Loader, folder: Path):
    made = await asyncio.gather(*(loader.load(LoadRequest((folder,), BIND)) for _ in range(5)), loader.schema())
    assert [each.objects for each in made[:5]] == [2] * 5


async def test_a_loading_that_nobody_waits_for_any_more_is_ended(loader: Loader, folder: Path):
    os.mkfifo(folder / "pipe.txt")
    await loader.load(LoadRequest((folder,), BIND))
    process = loader._process
    assert process is not None
    waiting = asyncio.create_task(loader.load(LoadRequest((folder / "pipe.txt",), BIND)))
    await until(lambda: bool(copies(process)))
    ended = [process.pid, *copies(process)]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not any(map(is_running, ended)))
    assert (await loader.load(LoadRequest((folder,), BIND))).objects == 2


async def test_a_schema_that_nobody_waits_for_any_more_is_made_all_the_same(loader: Loader, folder: Path):
    await loader.load(LoadRequest((folder,), BIND))
    process = loader._process
    assert process is not None
    waiting = asyncio.create_task(loader.schema())
    await until(lambda: bool(copies(process)))
    waiting.cancel()
    await loader.load(LoadRequest((folder,), BIND))
    assert loader.pid == process.pid


async def test_the_end_ends_what_is_under_way(folder: Path):
    os.mkfifo(folder / "pipe.txt")
    loader = Loader()
    await loader.load(LoadRequest((folder,), BIND))
    process = loader._process
    assert process is not None
    waiting = asyncio.create_task(loader.load(LoadRequest((folder / "pipe.txt",), BIND)))
    await until(lambda: bool(copies(process)))
    loader.close()
    with pytest.raises(LoadingFailed):
        await waiting
    assert loader.pid is None
    with pytest.raises(OSError, match="the gateway ends"):
        await loader.load(LoadRequest((folder,), BIND))


async def test_no_process_to_be_had_is_told(loader: Loader, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "child_command", lambda _: ["/no/such/program"])
    with pytest.raises(OSError, match="No such file"):
        await loader.load(LoadRequest((folder,), BIND))
    with pytest.raises(OSError, match="No such file"):
        await loader.schema()


async def test_who_cannot_start_it_reads_what_and_which_program(
    loader: Loader, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    program = folder / "python"
    program.touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(OSError, match=r"^the process that reads the configuration cannot be started: Permission"):
        await loader.load(LoadRequest((folder,), BIND))
    program.unlink()
    with pytest.raises(OSError, match=rf"No such file or directory \({program}\)$"):
        await loader.load(LoadRequest((folder,), BIND))
