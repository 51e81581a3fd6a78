"""The kill switch of a real process with two workers: what is open ends, and nothing gets past it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

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
    command = [sys.executable, "-m", "egressproxy", "kill-switch", *arguments]
    command += ["--admin", f"127.0.0.1:{gateway.admin_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
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
            told = kill_switch(gateway, "kill", "spiffe://any.test/ns/agents/sa/worker", "--why", "leaks keys")
            assert told == "done in every worker; 8 exchanges were cut\n"
            assert all(has_ended(sock) for sock in cut)
            kept.sendall(b"hello")
            assert kept.recv(5) == b"hello"
            gateway.wait_for_record(
                kind="tunnel", reason="identity_killed", identity="system:serviceaccount:agents:worker"
            )
            assert {status(WORKER) for _ in range(8)} == {403}
            assert status(OTHER) == 200
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
