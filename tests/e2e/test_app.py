"""The composition root, without a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egressproxy import app as app_module
from egressproxy.app import App
from egressproxy.config.reading.problems import ConfigError
from egressproxy.gateway.server.gateway_server import ARRIVE_S
from egressproxy.processes.loader import process as apart
from egressproxy.processes.workers.data_plane import Configuration
from egressproxy.protocols.http1 import request_head
from egressproxy.run_options import RunOptions
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.waiting import WAIT_S


@pytest.fixture(autouse=True)
def _collector_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start changes for its process would hold for all tests that come after it in this one."""
    monkeypatch.setattr(app_module, "settle_heap", lambda: None)


def options(folder: Path, *objects: m.Manifest) -> RunOptions:
    m.write(folder / "all.yaml", objects)
    return RunOptions(config=(folder,), admin=None, access_log="off")


async def test_a_start_that_cannot_build_its_configuration_says_so_and_is_a_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whatever a part raises as ValueError is what a reload would refuse: no traceback at the start either."""

    def refuse(*_: object) -> None:
        raise ValueError("server x cannot be read")

    monkeypatch.setattr("egressproxy.gateway.builders.snapshot_builder.SnapshotBuilder.snapshot", refuse)
    app = App(options(tmp_path, m.gateway(m.forward_listener(free_port()))))
    assert await app.serve() == 1
    assert "server x cannot be read" in capsys.readouterr().err


async def test_a_start_on_a_python_that_misreads_http_serves_nothing_and_is_a_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    port = free_port()
    monkeypatch.setattr(request_head, "plain_section_pattern", lambda *_: re.compile(b"(.*)"))
    assert await App(options(tmp_path, m.gateway(m.forward_listener(port)))).serve() == 1
    assert "egressproxy: this Python misreads HTTP: " in capsys.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_start_with_a_bad_manifest_raises_every_problem(tmp_path: Path):
    app = App(options(tmp_path, m.gateway(m.forward_listener(99999)), m.policy(["a.test"], mode="Never")))
    with pytest.raises(ConfigError) as caught:
        await app.serve()
    assert len(caught.value.problems) >= 2


def test_a_process_is_not_ready_before_it_listens():
    assert App(RunOptions()).why_not_ready() == "the listeners are not bound yet"
    assert list(App(RunOptions())._live.published.objects()) == []


async def served(app: App, state: str = "") -> None:
    """Serve, and stop as soon as it does (or is unready for this reason); a start that fails, fails the test."""
    serving = asyncio.create_task(app.serve())
    while app.why_not_ready() != state and not serving.done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0


async def test_an_open_proxy_says_so_and_how_to_try_it_once_it_listens(
    capsys: pytest.CaptureFixture[str],
):
    port = free_port()
    await served(App(RunOptions(admin=None, access_log="off", open_port=port)))
    said = capsys.readouterr()
    assert "OPEN" in said.err
    assert f"curl -x http://127.0.0.1:{port} " in said.err
    assert said.out == ""  # standard output belongs to the access log


@pytest.mark.parametrize(
    ("what", "place", "why"),
    [
        ("admin", ("192.0.2.1", 15900), r"--admin: cannot bind 192.0.2.1 port 15900: .* \(this machine has no such"),
        ("metrics", ("127.0.0.1", 0), r"--metrics: cannot bind 127.0.0.1 port \d+: .* \(`ss -ltnp` shows who has it"),
    ],
)
async def test_an_address_of_its_own_that_cannot_be_had_is_told_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, place: tuple[str, int], why: str
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = (place[0], place[1] or taken.getsockname()[1])
        asked = replace(options(tmp_path, m.gateway(m.forward_listener(free_port()))), **{what: place})  # type: ignore[arg-type]
        assert await App(asked).serve() == 1
    assert re.search(why, capsys.readouterr().err)


async def test_where_it_answers_scrapers_is_told_with_the_port_that_the_system_chose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "egressproxy")
    asked = options(tmp_path, m.gateway(m.forward_listener(free_port())))
    app = App(replace(asked, admin=("::1", 0), metrics=("127.0.0.1", 0)))
    await served(app)
    (admin,) = (message for message in caplog.messages if message.startswith("admin on "))
    (metrics,) = (message for message in caplog.messages if message.startswith("metrics on "))
    assert re.fullmatch(r"admin on http://\[::1\]:[1-9]\d*/", admin)
    assert re.fullmatch(r"metrics on http://127\.0\.0\.1:[1-9]\d*/", metrics)


async def test_a_start_and_an_end_are_told_in_plain_words(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "egressproxy")
    await served(App(options(tmp_path, m.gateway(m.forward_listener(free_port())))))
    assert "configuration 1 is in service: 1 object" in caplog.messages
    assert caplog.messages[-1] == "stopped"


async def test_a_backend_whose_certificate_is_not_verified_is_told_when_it_comes_into_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    loose = m.backend("loose", "a.example", 443, tls=True)
    loose["spec"]["destination"]["ports"][0]["tls"]["insecureSkipVerify"] = True
    app = App(options(tmp_path, m.gateway(m.forward_listener(free_port())), loose))
    await served(app)
    (told,) = [record for record in caplog.records if "not verified" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "Backend agents/loose" in told.getMessage()
    (finding,) = app._live._told
    app._live._tell_shortcomings([finding])  # the next configuration has it, too
    assert sum("not verified" in message for message in caplog.messages) == 1
    app._live._tell_shortcomings([])
    app._live._tell_shortcomings([finding])
    assert sum("not verified" in message for message in caplog.messages) == 2


async def test_a_process_that_serves_nothing_is_not_ready_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    gateway = m.gateway(m.forward_listener(free_port()))
    gateway["spec"]["gatewayClassName"] = "istio"
    await served(App(options(tmp_path, gateway)), "no listener is served")
    assert any(message.startswith("no listener is served") for message in caplog.messages)


async def test_a_hangup_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "egressproxy")
    app = App(options(tmp_path))
    app._asked_to_reload()
    assert caplog.messages[0].startswith("SIGHUP")
    assert app._live._reload.is_set()


async def test_a_start_whose_configuration_nobody_could_read_says_so_and_is_a_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(apart, "child_command", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    assert await App(options(tmp_path, m.gateway(m.forward_listener(free_port())))).serve() == 1
    assert "ended with status 3" in capsys.readouterr().err


async def test_a_reload_that_nobody_could_read_is_refused_and_the_configuration_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    app = App(options(tmp_path, m.gateway(m.forward_listener(free_port()))))
    serving = asyncio.create_task(app.serve())
    while app.why_not_ready():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    source = app._live.published
    (before,) = source.objects()
    monkeypatch.setattr(apart, "child_command", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    app._loader._drop()
    app._asked_to_reload()
    while not app.metrics.reloads.get("failure"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert app.why_not_ready() == ""
    (gateway,) = source.objects()
    assert (gateway.name, gateway.generation) == (before.name, before.generation)
    assert gateway.status is not None
    status = json.loads(gateway.status)
    assert status["conditions"][-1]["type"] == "egressproxy.io/ReloadRejected"
    assert "ended with status 3" in status["conditions"][-1]["message"]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0


async def test_a_configuration_that_is_taken_while_the_drain_begins_does_not_end_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a write through the API may be: its client is answered, and nobody else is let in."""
    app = App(options(tmp_path, m.gateway(m.forward_listener(free_port()))))
    serving = asyncio.create_task(app.serve())
    while app.why_not_ready():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    apply, drain = app._data_plane.apply, app._data_plane.drain
    has_begun, goes_on, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_apply(configuration: Configuration) -> None:
        has_begun.set()
        await goes_on.wait()
        await apply(configuration)

    async def slow_drain(*asked: Any) -> int:
        await ends.wait()
        return await drain(*asked)

    monkeypatch.setattr(app._data_plane, "apply", slow_apply)
    monkeypatch.setattr(app._data_plane, "drain", slow_drain)
    taking = asyncio.create_task(app._live.take())
    await has_begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    while app.why_not_ready() != "draining":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    goes_on.set()
    await taking
    assert app.why_not_ready() == app._live.why_not_writable() == "draining"
    assert await asyncio.wait_for(app.reload(""), WAIT_S) == "draining"
    ends.set()
    assert await serving == 0


async def test_a_process_that_is_asked_to_stop_while_it_starts_serves_what_it_has_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It listens a little before its start is over."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        app._asked_to_stop()
        await asyncio.sleep(3 * ARRIVE_S)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as origin:
        port, where = free_port(), origin.sockets[0].getsockname()[1]
        routed = [m.ip_backend("a", where), m.http_route("route", m.prefix_rule("/", "a"))]
        app = App(options(tmp_path, m.gateway(m.http_listener(port)), m.policy(), *routed))
        apply, clients = app._data_plane.apply, []

        async def apply_and_be_slow(asked: Configuration) -> None:
            await apply(asked)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            clients.append((reader, writer))
            await asyncio.Event().wait()

        monkeypatch.setattr(app._data_plane, "apply", apply_and_be_slow)
        async with asyncio.timeout(WAIT_S):
            assert await app.serve() == 0
            assert (await clients[0][0].read()).endswith(b"hi")


async def test_a_successor_that_is_asked_to_stop_while_it_starts_leaves_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = replace(options(tmp_path, m.gateway(m.forward_listener(free_port()))), takeover=tmp_path / "takeover.sock")
    first = App(asked)
    serving = asyncio.create_task(first.serve())
    while first.why_not_ready():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    second = App(asked)
    take = second._live.take

    async def take_and_stop() -> None:
        await take()
        second._asked_to_stop()

    monkeypatch.setattr(second._live, "take", take_and_stop)
    assert await second.serve() == 0
    assert first.why_not_ready() == ""
    assert await asyncio.wait_for(first.reload(""), WAIT_S) == ""
    third = App(asked)
    succeeding = asyncio.create_task(third.serve())
    assert await asyncio.wait_for(serving, WAIT_S) == 0
    assert third.why_not_ready() == ""
    third._asked_to_stop()
    assert await succeeding == 0
    assert not (tmp_path / "takeover.sock").exists()
