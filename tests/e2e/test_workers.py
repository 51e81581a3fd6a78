"""`run --workers 2`: several processes that answer as one."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from egressproxy import build
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, echo, get, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.other_processes import looks_into_others
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import WAIT_S, wait_until

HOST = "origin.test"
CONNECTIONS = 200


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def forward(port: int, dns: NameServer, allow: tuple[str, ...] = (HOST,), **more: object) -> list[m.Manifest]:
    return [
        m.gateway(m.forward_listener(port)),
        m.policy(allow, dns=dns.address, cidrs=ALLOW_LOOPBACK, **more),
    ]


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def two_workers(folder: Path, objects: list[m.Manifest] | None, *arguments: str) -> GatewayProcess:
    return GatewayProcess(folder, objects, arguments=["--workers", "2", *arguments])


def workers(gateway: GatewayProcess) -> list[int]:
    """The process ids of its workers, lowest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                is_worker = b"egressproxy.processes.workers" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == gateway.pid and is_worker:
                found.append(int(entry.name))
    return sorted(found)


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    if os.geteuid() != 0:
        pytest.skip("only root looks into the processes of a gateway")
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


def connected_to_both(stack: ExitStack, gateway: GatewayProcess, port: int) -> list[socket.socket]:
    """Connections that were used once, of which each worker has at least one."""
    before = {pid: sockets(pid) for pid in workers(gateway)}
    assert len(before) == 2
    made: list[socket.socket] = []
    while any(sockets(pid) <= count for pid, count in before.items()):
        assert len(made) < CONNECTIONS, "one worker alone accepts"
        sock = stack.enter_context(client(port))
        assert ask(sock, get("denied.test", 80))[0] == 403  # no connection to an origin is counted with them
        made.append(sock)
    return made


def tunnel(port: int, origin: Origin) -> socket.socket:
    sock = client(port)
    sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    assert read_head(sock).startswith(b"HTTP/1.1 200 ")
    return sock


def test_both_serve_and_a_scrape_shows_their_sum(dns: NameServer, tmp_path: Path):
    port = free_port()
    with (
        Origin() as origin,
        two_workers(tmp_path / "gw", forward(port, dns)) as gateway,
        ExitStack() as stack,
    ):
        found = connected_to_both(stack, gateway, port)
        for sock in found:
            assert ask(sock, get(HOST, origin.port)) == (200, b"ok")
        gateway.wait_for_metric("egress_requests_total", 2 * len(found))
        assert gateway.metric("egress_requests_total", code="200") == len(found)
        assert gateway.metric("egress_downstream_connections") == len(found)
        assert gateway.metric("egress_workers") == 2
        assert gateway.metric("egress_config_generation") == 1
        one, other = workers(gateway)
        assert f"2 workers serve: processes {one}, {other}\n" in gateway.stderr
        for number in ("1", "2"):
            assert gateway.metric("egress_worker_resident_memory_bytes", worker=number) > 0
        wait_until(lambda: len(gateway.records) == 2 * len(found))


def test_a_reload_is_seen_by_all_and_a_listener_that_is_new_is_served_by_all(
    dns: NameServer, two_workers: SharedGateway
):
    first, second = free_port(), free_port()
    with (
        Origin() as origin,
        two_workers.serving(forward(first, dns)) as gateway,
        ExitStack() as stack,
    ):
        kept = connected_to_both(stack, gateway, first)
        listeners = m.gateway(m.forward_listener(first), m.forward_listener(second, "second"))
        gateway.reload([listeners, *forward(first, dns, ("other.test",))[1:]])
        assert {ask(sock, get(HOST, origin.port))[0] for sock in kept} == {403}
        connected_to_both(stack, gateway, second)

        gateway.reload([m.gateway(m.forward_listener(second, "second")), *forward(first, dns)[1:]])
        assert {sock.recv(10) for sock in kept} == {b""}, "idle connections of a listener that is gone are closed"
        with pytest.raises(ConnectionRefusedError):
            client(first)
        with client(second) as sock:
            assert ask(sock, get(HOST, origin.port))[0] == 200


def test_what_one_worker_refuses_is_served_by_none(dns: NameServer, tmp_path: Path):
    """The filter can be built once in a while: by one worker, and not by the other."""
    port = free_port()
    marker = tmp_path / "marker"
    with (
        Origin() as origin,
        two_workers(tmp_path / "gw", forward(port, dns)) as gateway,
        ExitStack() as stack,
    ):
        kept = connected_to_both(stack, gateway, port)
        python = gateway.config / "once.py"
        python.write_text(
            "import os, sys\n"
            "from egressproxy.filters import Filter\n"
            "if any('egressproxy.processes.workers' in word for word in sys.orig_argv):\n"
            f"    os.mkdir({str(marker)!r})\n"
            "class Once(Filter):\n"
            "    def request_headers(self, x):\n"
            "        pass\n"
        )
        extension = {"name": "once", "type": "egressproxy.io/Python:v1", "phase": "request-headers"}
        extension["config"] = {"path": "once.py"}
        gateway.replace(forward(port, dns, ("other.test",), extensions=[extension]))
        gateway.wait_for_metric("egress_config_last_reload_success", 0)
        assert marker.exists()
        assert gateway.metric("egress_config_generation") == 1
        assert {ask(sock, get(HOST, origin.port))[0] for sock in kept} == {200}
        assert gateway.metric("egress_worker_restarts_total") == 0
        assert gateway.admin("/readyz")[0] == 200


def test_a_port_that_is_taken_is_refused_and_nothing_has_changed(dns: NameServer, two_workers: SharedGateway):
    port = free_port()
    with (
        two_workers.serving(forward(port, dns)) as gateway,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        busy = taken.getsockname()[1]
        listeners = m.gateway(m.forward_listener(port), m.forward_listener(busy, "taken"))
        gateway.replace([listeners, *forward(port, dns)[1:]])
        gateway.wait_for_metric("egress_config_last_reload_success", 0)
        assert f"listener agents/gw/taken: cannot bind 127.0.0.1 port {busy}" in gateway.stderr
        with client(port) as sock:
            assert ask(sock, get("denied.test", 80))[0] == 403


def test_a_worker_that_is_killed_is_replaced_and_no_counter_goes_backwards(dns: NameServer, tmp_path: Path):
    port = free_port()
    with (
        Origin() as origin,
        two_workers(tmp_path / "gw", forward(port, dns)) as gateway,
        ExitStack() as stack,
    ):
        served = len(connected_to_both(stack, gateway, port))
        gateway.replace(forward(port, dns, ("other.test",)))  # a fresh worker has to serve this, not the first one
        gateway.wait_for_metric("egress_config_generation", 2)
        gateway.wait_for_metric("egress_requests_total", served)
        before = workers(gateway)
        cpu_s = gateway.metric("egress_worker_cpu_seconds_total")

        os.kill(before[0], signal.SIGKILL)
        gateway.wait_for_metric("egress_worker_restarts_total", 1)
        assert gateway.metric("egress_requests_total") == served
        assert gateway.metric("egress_worker_cpu_seconds_total") >= cpu_s
        with client(port) as sock:  # somebody serves meanwhile
            assert ask(sock, get(HOST, origin.port))[0] == 403
        gateway.wait_for_metric("egress_workers", 2)
        assert before[1] in workers(gateway)
        connected_to_both(stack, gateway, port)
        assert gateway.admin("/readyz")[0] == 200
        assert f"worker 1 (process {before[0]}) was ended by SIGKILL" in gateway.stderr


def test_a_limit_of_requests_holds_for_all_workers_together(dns: NameServer, tmp_path: Path):
    port = free_port()
    limits = {"requests": [{"per": "Gateway", "limit": 7, "window": "1h"}]}
    with (
        Origin() as origin,
        two_workers(tmp_path / "gw", forward(port, dns, limits=limits)) as gateway,
        ExitStack() as stack,
    ):
        kept = connected_to_both(stack, gateway, port)  # denied, which costs nothing
        found = [ask(sock, get(HOST, origin.port))[0] for _ in range(10) for sock in kept]
        assert found.count(200) == 7
        assert found.count(429) == len(found) - 7
        os.kill(workers(gateway)[0], signal.SIGKILL)
        gateway.wait_for_metric("egress_workers", 2)
        for sock in connected_to_both(stack, gateway, port):
            assert ask(sock, get(HOST, origin.port))[0] == 429, "a worker that is new knows what was spent"


def test_a_request_that_comes_back_to_the_other_worker_is_a_loop_all_the_same(
    dns: NameServer, two_workers: SharedGateway
):
    port = free_port()
    with (
        Origin() as origin,
        two_workers.serving(forward(port, dns)) as gateway,
        ExitStack() as stack,
    ):
        kept = connected_to_both(stack, gateway, port)
        kept[0].sendall(get(HOST, origin.port))
        head, _ = read_message(kept[0])
        via = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"via:"))
        for sock in kept:
            assert ask(sock, get(HOST, origin.port)[:-2] + via + b"\r\n\r\n")[0] == 508
            sock.close()


def test_what_a_killed_worker_held_of_a_limit_is_free_again(dns: NameServer, tmp_path: Path):
    port = free_port()
    limits = {"concurrency": [{"per": "Gateway", "limit": 3}]}
    with (
        Origin(echo) as origin,
        two_workers(tmp_path / "gw", forward(port, dns, limits=limits)) as gateway,
        ExitStack() as stack,
    ):
        known = workers(gateway)
        for _ in range(3):
            stack.enter_context(tunnel(port, origin))
        for _ in range(5):
            with client(port) as sock:
                sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                assert read_head(sock).startswith(b"HTTP/1.1 503 ")
        for pid in known:
            os.kill(pid, signal.SIGKILL)
        gateway.wait_for_metric("egress_worker_restarts_total", 2)
        gateway.wait_for_metric("egress_workers", 2)
        for _ in range(3):
            stack.enter_context(tunnel(port, origin))


def test_a_worker_that_does_not_answer_holds_up_no_scrape(dns: NameServer, tmp_path: Path):
    port = free_port()
    with two_workers(tmp_path / "gw", forward(port, dns)) as gateway, ExitStack() as stack:
        served = len(connected_to_both(stack, gateway, port))
        gateway.wait_for_metric("egress_requests_total", served)
        stopped = workers(gateway)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert gateway.metric("egress_requests_total") == served  # within the 5 s of `admin`
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert gateway.stop() == 0


def test_a_hangup_opens_the_access_log_again_in_all(dns: NameServer, tmp_path: Path):
    port = free_port()
    log, moved = tmp_path / "log.jsonl", tmp_path / "log.jsonl.1"
    with (
        two_workers(tmp_path / "gw", forward(port, dns), "--access-log", str(log)) as gateway,
        ExitStack() as stack,
    ):
        kept = connected_to_both(stack, gateway, port)
        wait_until(lambda: log.read_bytes().count(b"\n") == len(kept))
        log.rename(moved)
        os.kill(gateway.pid, signal.SIGHUP)
        gateway.wait_for_metric("egress_config_generation", 2)
        for sock in kept:
            assert ask(sock, get("denied.test", 80))[0] == 403
        wait_until(lambda: log.read_bytes().count(b"\n") == len(kept))
        assert moved.read_bytes().count(b"\n") == len(kept)


def test_lines_of_both_are_whole_in_a_pipe_whatever_their_length(dns: NameServer, tmp_path: Path):
    port = free_port()
    path = "/" + "x" * 6000  # a pipe takes 4,096 octets as one
    gateway = two_workers(tmp_path / "gw", forward(port, dns))
    os.mkfifo(gateway.access_log_path)
    lines: list[bytes] = []

    def read() -> None:
        with open(gateway.access_log_path, "rb") as pipe:
            lines.extend(pipe)

    reader = threading.Thread(target=read)
    reader.start()
    with gateway, ExitStack() as stack:
        before = connected_to_both(stack, gateway, port)
        asked = get("denied.test", 80, path) * 25
        for _ in range(4):
            for sock in before:
                sock.sendall(asked)
            for sock in before:
                for _ in range(25):
                    assert read_message(sock)[0].startswith(b"HTTP/1.1 403 ")
        assert gateway.stop() == 0
    reader.join(WAIT_S)
    found = [json.loads(line) for line in lines]
    assert len(found) == 101 * len(before)
    assert sum(record["path"] == path for record in found) == 100 * len(before)


def test_sigterm_finishes_requests_and_tunnels_and_exits_0(dns: NameServer, tmp_path: Path):
    port = free_port()
    asked, go = threading.Semaphore(0), threading.Event()

    def slow(sock: socket.socket) -> None:
        read_message(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhe")
        asked.release()
        assert go.wait(WAIT_S)
        sock.sendall(b"re")

    with (
        Origin(slow) as origin,
        Origin(echo) as mirror,
        two_workers(tmp_path / "gw", forward(port, dns)) as gateway,
        ExitStack() as stack,
    ):
        idle = connected_to_both(stack, gateway, port)
        busy = [stack.enter_context(client(port)) for _ in range(6)]
        tunnels = [stack.enter_context(tunnel(port, mirror)) for _ in range(6)]
        for sock in busy:
            sock.sendall(get(HOST, origin.port))
            assert asked.acquire(timeout=WAIT_S)
        os.kill(gateway.pid, signal.SIGTERM)
        assert {sock.recv(10) for sock in idle} == {b""}
        with pytest.raises(ConnectionRefusedError):
            client(port)
        assert gateway.admin("/readyz") == (503, "not ready: draining\n")
        for sock in tunnels:
            sock.sendall(b"still here")
            assert sock.recv(100) == b"still here"
            sock.close()
        go.set()
        assert {read_message(sock)[1] for sock in busy} == {b"here"}
        assert gateway.stop() == 0
        assert sum(record["kind"] == "tunnel" for record in gateway.records) == 6
        assert sum(record["status"] == 200 for record in gateway.records) == 12


def test_a_second_signal_ends_at_once(dns: NameServer, tmp_path: Path):
    port = free_port()
    with (
        Origin(echo) as origin,
        two_workers(tmp_path / "gw", forward(port, dns), "--drain-timeout", "60") as gateway,
        tunnel(port, origin) as sock,
    ):
        known = workers(gateway)
        os.kill(gateway.pid, signal.SIGTERM)
        wait_until(lambda: gateway.admin("/readyz")[0] == 503)
        sock.sendall(b"still here")
        assert sock.recv(100) == b"still here"
        assert gateway.stop() == 0  # which sends the second, and waits for less than the drain
        assert not any(Path(f"/proc/{pid}").exists() for pid in known)
        assert [(record["kind"], record["reason"]) for record in gateway.records] == [("tunnel", "drained")]
        assert "1 connection cut at the second signal" in gateway.stderr


def test_a_drain_has_an_end_and_what_it_cuts_is_counted(dns: NameServer, tmp_path: Path):
    port = free_port()
    process = two_workers(tmp_path / "gw", forward(port, dns), "--drain-timeout", "1")
    with Origin(echo) as origin, process as gateway, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(tunnel(port, origin))
        assert gateway.stop() == 0
        assert "5 connections cut at the deadline" in gateway.stderr
        assert [(record["kind"], record["reason"]) for record in gateway.records] == [("tunnel", "drained")] * 5


def test_signals_to_a_worker_are_for_the_supervisor(dns: NameServer, tmp_path: Path):
    """A terminal and a service manager send them to the whole group."""
    port = free_port()
    with two_workers(tmp_path / "gw", forward(port, dns)) as gateway, ExitStack() as stack:
        known = workers(gateway)
        for pid in known:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)
        connected_to_both(stack, gateway, port)
        assert workers(gateway) == known


def test_workers_do_not_outlive_their_supervisor(dns: NameServer, tmp_path: Path):
    port = free_port()
    with two_workers(tmp_path / "gw", forward(port, dns)) as gateway:
        known = workers(gateway)
        assert len(known) == 2
        os.kill(known[1], signal.SIGSTOP)  # not even one that can do nothing
        os.kill(gateway.pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in known))
        wait_until(lambda: is_refused(port))  # a moment later: their other threads hold the socket until then


def is_refused(port: int) -> bool:
    try:
        client(port).close()
    except ConnectionRefusedError:
        return True
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_access_log_that_cannot_be_opened_is_a_1_at_the_start(dns: NameServer, tmp_path: Path):
    process = two_workers(tmp_path / "gw", forward(free_port(), dns), "--access-log", str(tmp_path / "no" / "folder"))
    with pytest.raises(RuntimeError, match=r"(?s)status 1:.*access log .*No such file"):
        process.start()


@looks_into_others
def test_a_worker_is_small(dns: NameServer, tmp_path: Path):
    config = {"request": {"set": [{"name": "X-A", "value": "1"}]}}
    edits = {"name": "h", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": config}
    with two_workers(tmp_path / "gw", forward(free_port(), dns, extensions=[edits])) as gateway:
        for pid in workers(gateway):
            assert comm(pid) == "egress-worker"
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            most = 45 if build.name() == build.PURE else 50  # with code that all workers share
            assert pages * os.sysconf("SC_PAGE_SIZE") < most * 2**20
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "pydantic_core" not in maps
            assert "aiohttp" not in maps
