"""A request that waits in one of two workers, and a person who decides by the command line; a webhook is told."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, get, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until


def command(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    whole = [sys.executable, "-m", "egressproxy", "holds", *arguments, "--admin", f"127.0.0.1:{gateway.admin_port}"]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout


def test_a_person_decides_about_what_waits_in_any_worker(tmp_path: Path):
    port, told = free_port(), list[bytes]()

    def webhook(sock: socket.socket) -> None:
        told.append(read_message(sock)[1])
        sock.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin, Origin(webhook) as hook:
        config = {"timeout": "5m", "webhook": {"group": "egressproxy.io", "kind": "Backend", "name": "hook"}}
        extension = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": config}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.ip_backend("hook", hook.port),
            m.policy(("origin.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK, extensions=[extension]),
        ]
        with GatewayProcess(tmp_path, objects, arguments=["--workers", "2"]) as gateway:
            for verdict, status in (("approve", b" 200 "), ("deny", b" 403 ")):
                with client(port) as sock:
                    sock.sendall(get("origin.test", origin.port))
                    wait_until(lambda: json.loads(command(gateway, "list", "-o", "json")[1])["holds"])
                    (hold,) = json.loads(command(gateway, "list", "-o", "json")[1])["holds"]
                    assert f"{hold['id']}  127.0.0.1:" in command(gateway, "list")[1]
                    assert command(gateway, verdict, "0" * 16)[0] == 1
                    assert command(gateway, verdict, hold["id"], "--by", "alice") == (0, "done; 0 wait\n")
                    assert status in read_head(sock)
                assert command(gateway, "list")[1] == "nothing waits\n"
            assert gateway.metric("egress_approvals_total", outcome="approved") == 1
            record = gateway.wait_for_record(reason="approval_denied")
            assert (record["approval"]["outcome"], record["approval"]["by"]) == ("denied", "alice")
            wait_until(lambda: len(told) == 2)
            assert json.loads(told[0])["type"] == "egress.approval.requested"
