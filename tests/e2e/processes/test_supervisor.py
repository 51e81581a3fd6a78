"""The supervisor with real workers, in this process's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from egressproxy import build
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities, KilledIdentity
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.net.listening import BindError
from egressproxy.processes.packing import pack
from egressproxy.processes.workers import supervisor as module
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, RouteChanges
from egressproxy.processes.workers.messages import Query
from egressproxy.processes.workers.supervisor import Supervisor
from egressproxy.processes.workers.worker_handle import WorkerHandle
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.metrics import Metrics
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.net import free_port
from tests.support.waiting import WAIT_S

HOST = "127.0.0.1"


@pytest.fixture
async def fleet() -> AsyncIterator[Supervisor]:
    made = Supervisor(RunOptions(workers=2, access_log="off", log_level="error"), Metrics("1"))
    yield made
    await made.stop()
    assert not [handle for handle in made._handles.values() if not handle.has_ended.is_set()]


def configuration(port: int, generation: int = 1, extensions: tuple[ExtensionIR, ...] = ()) -> Configuration:
    listener = ListenerIR(
        "agents/gw", "forward", (HOST,), port, ListenerProtocol.FORWARD_PROXY, extensions=extensions,
        default_backend=WeightedBackend(BackendIR("-", Destination.DYNAMIC)),
    )  # fmt: skip
    return Configuration(pack(ConfigIR((listener,))), {(HOST, port): "agents/gw/forward"}, generation)


def python_filter(folder: Path, when_loaded: str) -> tuple[ExtensionIR, ...]:
    text = "import os, pathlib, time\nfrom egressproxy.filters import Filter\n" + when_loaded
    (folder / "own.py").write_text(text + "\nclass Own(Filter):\n    def request_headers(self, x):\n        pass\n")
    config = '{"path": "own.py"}'
    return (
        ExtensionIR("own", "egressproxy.io/Python:v1", "request-headers", config=config, folder=str(folder)),
    )  # fmt: skip


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)


async def status(port: int) -> bytes:
    """Of a request that no policy allows: who answers it, serves."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), WAIT_S)
    writer.close()
    return line.split(b" ")[1]


async def test_a_configuration_that_ends_who_builds_it_is_refused_and_the_one_before_stays(
    fleet: Supervisor, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    port = free_port()
    await fleet.start()
    await fleet.apply(configuration(port))
    with pytest.raises(ConfigRefused, match=r"no worker could build it: worker \d \(process \d+\) ended with status 7"):
        await fleet.apply(configuration(port, 2, python_filter(tmp_path, "os._exit(7)")))
    await until(lambda: len(fleet._serving()) == 2)
    assert await status(port) == b"403"
    assert {handle.configuration and handle.configuration.generation for handle in fleet._serving()} == {1}
    assert "it is replaced" in caplog.text


async def test_who_has_not_built_in_time_is_replaced_by_one_that_serves_the_new_configuration(
    fleet: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.processes.workers.worker_handle.BUILD_S", 3.0)
    port = free_port()
    await fleet.start()
    await fleet.apply(configuration(port))
    known = {handle.pid for handle in fleet._serving()}
    marker = str(tmp_path / "marker")
    once = f"try:\n    os.mkdir({marker!r})\n    time.sleep(600)\nexcept OSError:\n    pass"
    await fleet.apply(configuration(port, 2, python_filter(tmp_path, once)))
    await until(lambda: len(fleet._serving()) == 2)
    assert len(known & {handle.pid for handle in fleet._serving()}) == 1
    assert {handle.configuration and handle.configuration.generation for handle in fleet._serving()} == {2}
    assert await status(port) == b"403"


async def test_who_takes_the_place_of_another_one_never_serves_without_changed_routes(fleet: Supervisor):
    port = free_port()
    before = [m.gateway(m.forward_listener(port)), m.policy(["other.test"])]
    route = m.http_route("r", m.prefix_rule("/", "missing"), hostnames=["a.test"])
    await fleet.start()
    await fleet.apply(Configuration(pack(compiled_spec(before)), {(HOST, port): "agents/gw/forward"}, 1))
    assert await status(port) == b"403"
    assert await fleet.update_routes(RouteChanges(pack(compiled_spec([*before, route])), ("agents/r",), 1))
    known = {handle.pid for handle in fleet._serving()}
    for pid in known:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not fleet._serving())
    answers = []
    while len(answers) < 20:
        if fleet._serving():
            answers.append(await status(port))
        await asyncio.sleep(0.01)
    assert set(answers) == {b"500"}
    assert not await fleet.update_routes(RouteChanges(pack(compiled_spec(before)), ("agents/r",), 2))
    assert await status(port) == b"500"


async def test_it_is_not_ready_while_nobody_serves_and_takes_a_configuration_all_the_same(fleet: Supervisor):
    first, second = free_port(), free_port()
    await fleet.start()
    assert fleet.why_not_ready() == "no worker serves"
    await fleet.apply(configuration(first))
    assert fleet.why_not_ready() == ""
    for handle in fleet._serving():
        os.kill(handle.pid, signal.SIGKILL)
    await until(lambda: fleet.why_not_ready() == "no worker serves")
    await fleet.apply(configuration(second, 2))
    await until(lambda: len(fleet._serving()) == 2)
    assert await status(second) == b"403"
    with pytest.raises(ConnectionRefusedError):
        await status(first)


async def test_who_dies_again_and_again_is_replaced_more_and_more_slowly(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)
    await fleet.start()
    await fleet.apply(configuration(free_port()))
    for _ in range(4):
        pid = fleet._handles[1].pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: fleet._handles[1].pid != pid and fleet._handles[1].is_serving)  # type: ignore[misc]
    told = [record.getMessage().partition("; ")[2] for record in caplog.records if "replaced" in record.getMessage()]
    assert told == [
        "it is replaced at once",
        "it is replaced again in 0.05 s: it is number 2 in a row",
        "it is replaced again in 0.1 s: it is number 3 in a row",
        "it is replaced again in 0.2 s: it is number 4 in a row",
    ]


async def test_who_crashes_is_replaced_and_the_log_says_where_it_was_in_python(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(build, "name", lambda: build.COMPILED)
    await fleet.start()
    await fleet.apply(configuration(free_port()))
    pid = fleet._handles[1].pid
    os.kill(pid, signal.SIGSEGV)
    await until(lambda: fleet._handles[1].pid != pid and fleet._handles[1].is_serving)
    (told,) = [message for message in caplog.messages if "replaced" in message]
    assert told.startswith(
        f"worker 1 (process {pid}) was ended by SIGSEGV (compiled code has crashed, the gateway's or a library's; "
        "the latest calls in Python: "
    )
    assert ", process.py:" in told  # it waited in the loop, which `main` of that file runs
    assert told.endswith(
        "; EGRESSPROXY_PURE=1 in the environment runs the gateway without compiled modules of its own); "
        "it is replaced at once"
    )
    assert "\n" not in told


async def test_who_is_ended_while_it_starts_is_told_once(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    await fleet.start()
    await fleet.apply(configuration(free_port()))
    killed: list[int] = []
    bring_up = fleet._bring_up

    async def killed_at_first(handle: WorkerHandle) -> None:
        if not killed:
            killed.append(handle.pid)
            os.kill(handle.pid, signal.SIGKILL)
        await bring_up(handle)

    monkeypatch.setattr(fleet, "_bring_up", killed_at_first)
    os.kill(fleet._handles[1].pid, signal.SIGKILL)
    await until(lambda: bool(killed) and len(fleet._serving()) == 2)
    assert [f"(process {killed[0]})" in message for message in caplog.messages].count(True) == 1


async def test_where_nobody_else_serves_nobody_waits_long(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(module, "LONGEST_PAUSE_ALONE_S", 0.01)
    await fleet.start()
    await fleet.apply(configuration(free_port()))
    for _ in range(2):
        await until(lambda: len(fleet._serving()) == 2)
        for handle in fleet._serving():
            os.kill(handle.pid, signal.SIGKILL)
        await until(lambda: not fleet._serving())
    await until(lambda: len(fleet._serving()) == 2)
    told = [record.getMessage() for record in caplog.records if "number 2 in a row" in record.getMessage()]
    assert "again in 0.01 s" in told[-1]


async def test_what_a_worker_counted_stays_when_it_is_gone(fleet: Supervisor):
    port = free_port()
    await fleet.start()
    await fleet.apply(configuration(port))
    for _ in range(5):
        await status(port)

    async def denied() -> int:
        counts = await fleet.counts()
        return sum(sum(series.denied.values()) for series in counts.series.values())

    assert await denied() == 5
    spent = sum(figures.cpu_s for figures in fleet.figures())
    for handle in fleet._serving():
        os.kill(handle.pid, signal.SIGKILL)
        assert await denied() == 5
        assert sum(figures.cpu_s for figures in fleet.figures()) >= spent
    await until(lambda: len(fleet._serving()) == 2)
    assert await denied() == 5
    counts = await fleet.counts()
    assert counts.families["egress_workers"].values[()] == 2
    assert counts.families["egress_worker_restarts"].values[()] == 2
    assert counts.families["egress_event_loop_lag_max_seconds"].values[()] >= 0


async def test_the_lag_of_all_workers_is_added_up(fleet: Supervisor):
    await fleet.start()
    await fleet.apply(configuration(free_port()))

    def ticks(counts: Counts) -> int:
        return sum(counts.families["egress_event_loop_lag_seconds"].buckets[()])

    async with asyncio.timeout(WAIT_S):
        while True:
            total = ticks(await fleet.counts())
            each = [ticks(handle.counts) for handle in fleet._serving()]
            if len(each) == 2 and all(each):
                break
            await asyncio.sleep(0.05)
    assert total == sum(each)


async def test_a_place_that_cannot_be_bound_leaves_nothing_bound(fleet: Supervisor):
    port, free = free_port(), free_port()
    await fleet.start()
    await fleet.apply(configuration(port))
    with socket.create_server((HOST, 0)) as taken:
        busy = taken.getsockname()[1]
        asked = configuration(port, 2)
        places = {**asked.places, (HOST, free): "agents/gw/b", (HOST, busy): "agents/gw/c"}
        with pytest.raises(BindError, match=f"listener agents/gw/c: cannot bind {HOST} port {busy}"):
            await fleet.apply(Configuration(asked.packed, places, 2))
    with pytest.raises(ConnectionRefusedError):
        await status(free)
    assert await status(port) == b"403"


async def test_a_worker_that_cannot_begin_fails_the_start(tmp_path: Path):
    fleet = Supervisor(RunOptions(workers=2, access_log=str(tmp_path / "no" / "log"), log_level="error"), Metrics("1"))
    with pytest.raises(ConfigRefused, match=r"access log .*: No such file or directory"):
        await fleet.start()
    await fleet.stop()


async def test_a_worker_whose_python_misreads_http_fails_the_start(monkeypatch: pytest.MonkeyPatch):
    broken = (
        "import re, sys; sys.path[:] = {path!r}; from egressproxy.protocols.http1 import request_head;"
        " request_head.plain_section_pattern = lambda *_: re.compile(b'(.*)');"
        " from egressproxy.processes.workers.process import main; sys.exit(main({descriptor}))"
    )

    def start(descriptor: int, _crash_file: int) -> subprocess.Popen[bytes]:
        program = broken.format(path=sys.path, descriptor=descriptor)
        return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, pass_fds=(descriptor,))

    monkeypatch.setattr("egressproxy.processes.workers.worker_handle._start", start)
    fleet = Supervisor(RunOptions(workers=1, access_log="off", log_level="error"), Metrics("1"))
    with pytest.raises(ConfigRefused, match="this Python misreads HTTP"):
        await fleet.start()
    await fleet.stop()


async def test_nothing_is_told_of_a_fleet_that_goes_well(fleet: Supervisor, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    await fleet.start()
    await fleet.apply(configuration(free_port()))
    assert await fleet.drain(1.0) == 0
    assert caplog.messages == []


async def test_who_cannot_be_sent_a_socket_is_replaced_and_nobody_is_forgotten(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    first, second = free_port(), free_port()
    await fleet.start()
    await fleet.apply(configuration(first))
    known = {handle.pid for handle in fleet._serving()}
    real, failures = os.dup, [OSError(24, "Too many open files") for _ in range(2)]

    def dup(descriptor: int) -> int:
        if failures:
            raise failures.pop()
        return real(descriptor)

    monkeypatch.setattr("egressproxy.processes.workers.channel.os.dup", dup)
    await fleet.apply(configuration(second, 2))  # both cannot be sent the new socket
    assert not failures
    failures.append(OSError(24, "Too many open files"))  # nor, at first, what a fresh one begins with
    await until(lambda: len(fleet._serving()) == 2)
    assert not failures
    assert not known & {handle.pid for handle in fleet._serving()}
    assert {handle.configuration and handle.configuration.generation for handle in fleet._serving()} == {2}
    assert await status(second) == b"403"
    assert "no longer looked after" not in caplog.text


async def test_a_change_of_who_is_killed_is_sent_alone_and_all_names_to_who_has_missed_one(
    fleet: Supervisor, monkeypatch: pytest.MonkeyPatch
):
    sent: list[tuple[int, str]] = []
    answer = WorkerHandle.answer

    async def noted(self: WorkerHandle, asked: Query) -> object:
        sent.append((self.number, asked.name))
        return await answer(self, asked)

    monkeypatch.setattr(WorkerHandle, "answer", noted)
    killed = KilledIdentities(KilledIdentity(f"user-{number}") for number in range(3))

    async def change(name: str, *, kills: bool) -> list[tuple[int, str]]:
        nonlocal killed
        sent.clear()
        asked = KillChange(name, kills)
        killed = killed.changed(asked)
        await fleet.kill(killed, asked)
        return sorted(sent, key=lambda each: each[0])

    await fleet.start()
    await fleet.kill(killed)
    assert [kind for _, kind in sent] == ["set_killed", "set_killed"]
    assert await change("alice", kills=True) == [(1, "kill"), (2, "kill")]
    assert await change("user-1", kills=False) == [(1, "kill"), (2, "kill")]

    lost = KillChange("bob", kills=True)
    killed = killed.changed(lost)
    await answer(fleet._handles[1], Query("kill", (lost, killed.revision)))  # the other one never hears of it
    assert await change("carol", kills=True) == [(1, "kill"), (2, "kill"), (2, "set_killed")]
    assert await change("carol", kills=False) == [(1, "kill"), (2, "kill")]

    before = fleet._handles[2]
    os.kill(before.pid, signal.SIGKILL)
    await fleet.apply(configuration(free_port()))
    await until(lambda: fleet._handles[2] is not before and fleet._handles[2].is_serving)
    assert (2, "set_killed") in sent
    assert await change("dave", kills=True) == [(1, "kill"), (2, "kill")]
