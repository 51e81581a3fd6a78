"""The kill switch of a real process with two workers: what is open ends, and nothing gets past it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.test_workers import workers
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, echo, get, read_head
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

WORKER, OTHER = "127.0.0.1", "127.0.0.2"
CLIENTS = [
    {"cidrs": ["127.0.0.1/32"], "namespace": "agents", "serviceAccount": "worker"},
    {"cidrs": ["127.0.0.2/32"], "namespace": "agents", "serviceAccount": "other"},
]


def client(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S, source_address=(address, 0))


def tunnel(port: int, to: int, address: str) -> socket.socket:
    sock = client(port, address)
    sock.sendall(f"CONNECT origin.test:{to} HTTP/1.1\r\nHost: origin.test:{to}\r\n\r\n".encode())
    assert b" 200 " in read_head(sock)
    return sock


def has_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def kill_switch(gateway: GatewayProcess, *arguments: str) -> str:
    done = gateway.verb("kill-switch", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_an_identity_is_cut_off_in_every_worker_and_over_reloads_until_it_is_restored(tmp_path: Path):
    port = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(echo) as origin, Origin() as web:

        def status(address: str) -> int:
            with client(port, address) as sock:
                return ask(sock, get("origin.test", web.port))[0]

        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                ("origin.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK, identity={"address": {"clients": CLIENTS}}
            ),
        ]  # fmt: skip
        with GatewayProcess(tmp_path, objects, arguments=["--workers", "2"]) as gateway:
            cut = [tunnel(port, origin.port, WORKER) for _ in range(8)]
            kept = tunnel(port, origin.port, OTHER)
            assert (status(WORKER), status(OTHER)) == (200, 200)
            done = gateway.verb("kill-switch", "kill", "spiffe://any.test/ns/agents/sa/worker", "--why", "leaks keys")
            assert done.stdout == "done in every worker; 8 exchanges were cut\n"
            assert "none of the latest requests" not in done.stderr
            assert all(has_ended(sock) for sock in cut)
            kept.sendall(b"hello")
            assert kept.recv(5) == b"hello"
            gateway.wait_for_record(
                kind="tunnel", reason="identity_killed", identity="system:serviceaccount:agents:worker"
            )
            assert {status(WORKER) for _ in range(8)} == {403}
            assert status(OTHER) == 200
            slip = gateway.verb("kill-switch", "kill", "system:serviceaccount:agents:wroker")
            assert (slip.exit_code, slip.stdout) == (0, "done in every worker; 0 exchanges were cut\n")
            assert "none of the latest requests was of a client of this name" in slip.stderr
            assert "clients were: system:serviceaccount:agents:worker" in slip.stderr
            assert kill_switch(gateway, "restore", "system:serviceaccount:agents:wroker") == "done in every worker\n"
            missed = gateway.verb("kill-switch", "restore", "system:serviceaccount:agents:wroker")
            assert (missed.exit_code, missed.stdout) == (1, "")
            assert "nobody is out of service under the name system:serviceaccount:agents:wroker" in missed.stderr
            assert "out of service are: spiffe://any.test/ns/agents/sa/worker" in missed.stderr
            assert "spiffe://any.test/ns/agents/sa/worker since 2" in kill_switch(gateway, "list")
            gateway.replace(objects)
            gateway.wait_for_metric("egress_identities_killed", 1)
            assert status(WORKER) == 403
            before = workers(gateway)
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: len(set(workers(gateway)) - set(before)) == 2)
            wait_until(lambda: gateway.metric("egress_workers") == 2)
            assert {status(WORKER) for _ in range(8)} == {403}
            kill_switch(gateway, "restore", "spiffe://any.test/ns/agents/sa/worker")
            assert {status(WORKER) for _ in range(8)} == {200}
            assert kill_switch(gateway, "list") == "nobody is out of service\n"


@pytest.mark.parametrize("count", ["1", "2"])
def test_who_is_out_of_service_stays_so_over_a_restart_and_a_damaged_file_serves_nobody(tmp_path: Path, count: str):
    port = free_port()
    state = tmp_path / "state"
    file = state / ".kill-switch.json"
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as web:

        def status(address: str) -> int:
            with client(port, address) as sock:
                return ask(sock, get("origin.test", web.port))[0]

        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                ("origin.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK, identity={"address": {"clients": CLIENTS}}
            ),
        ]  # fmt: skip
        gateway = GatewayProcess(tmp_path, objects, arguments=["--workers", count, "--state-dir", str(state)])
        name = "system:serviceaccount:agents:worker"
        with gateway:
            done = gateway.verb("kill-switch", "kill", name, "--why", "leaks keys")
            assert (done.exit_code, done.stderr) == (0, "")
            assert file.stat().st_mode & 0o777 == 0o600
            os.kill(gateway.pid, signal.SIGKILL)  # it has no time to write anything more
            gateway.stop()
        with gateway:
            assert gateway.metric("egress_identities_killed") == 1
            assert {status(WORKER) for _ in range(4)} == {403}
            assert status(OTHER) == 200
            assert "leaks keys" in kill_switch(gateway, "list")
            kept = file.read_text()
            file.unlink()
            file.mkdir()  # what cannot be replaced by a file
            failed = gateway.verb("kill-switch", "restore", name)
            assert failed.exit_code == 2
            assert "it stays out of service" in failed.stderr
            assert status(WORKER) == 403
            failed = gateway.verb("kill-switch", "kill", "system:serviceaccount:agents:other")
            assert failed.exit_code == 2
            assert "until the process ends" in failed.stderr
            assert status(OTHER) == 403
            file.rmdir()
            kill_switch(gateway, "restore", "system:serviceaccount:agents:other")
        file.write_text(kept[:-10])
        with pytest.raises(RuntimeError, match=r"status 1:[^$]*kill-switch.json does not say who is out of service"):
            gateway.start()
        file.write_text(kept)
        with gateway:
            assert status(WORKER) == 403
            kill_switch(gateway, "restore", name)
            assert status(WORKER) == 200
        with gateway:
            assert status(WORKER) == 200
