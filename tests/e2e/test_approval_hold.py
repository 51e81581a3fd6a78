"""A request that waits in one of two workers, and a person who decides by the command line; a webhook is told."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until


def command(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    done = gateway.verb("holds", *arguments)
    return done.exit_code, done.stdout


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
                    assert command(gateway, verdict, "0" * 16) == (1, "")
                    assert (
                        f"what waits has the ids: {hold['id']}"
                        in gateway.verb("holds", verdict, hold["id"][:-1]).stderr
                    )
                    assert command(gateway, verdict, hold["id"], "--by", "alice") == (0, "done; 0 wait\n")
                    assert status in read_head(sock)
                assert command(gateway, "list")[1] == "nothing waits\n"
            assert gateway.metric("egress_approvals_total", outcome="approved") == 1
            record = gateway.wait_for_record(reason="approval_denied")
            assert (record["approval"]["outcome"], record["approval"]["by"]) == ("denied", "alice")
            wait_until(lambda: len(told) == 2)
            assert json.loads(told[0])["type"] == "egress.approval.requested"


def test_who_waits_when_the_process_stops_is_told_to_ask_again(tmp_path: Path):
    port = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:
        extension = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {"timeout": "1h"}}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(("origin.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK, extensions=[extension]),
        ]
        gateway = GatewayProcess(tmp_path, objects, arguments=["--workers", "2", "--drain-timeout", "60"])
        with gateway, client(port) as sock, client(port) as other:
            sock.sendall(get("origin.test", origin.port))
            other.sendall(
                f"CONNECT origin.test:{origin.port} HTTP/1.1\r\nHost: origin.test:{origin.port}\r\n\r\n".encode()
            )
            wait_until(lambda: gateway.metric("egress_approvals_waiting") == 2)
            assert gateway.stop() == 0  # long before the hour, and before the minute
            for each in (sock, other):
                head = read_head(each)
                assert b" 503 " in head
                assert b"Retry-After: 1\r\n" in head
            assert origin.accepted == 0


def test_a_client_reads_what_waits_of_its_own_in_every_worker_and_an_operator_all(tmp_path: Path):
    port = free_port()
    clients = [
        {"cidrs": [f"127.0.0.{number}/32"], "namespace": "agents", "serviceAccount": name}
        for number, name in ((1, "worker"), (2, "other"))
    ]
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin, ExitStack() as stack:
        config = {"timeout": "1h", "maxWaitingPerClient": 20, "hostnames": ["origin.test"]}
        extension = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": config}
        identity = {"address": {"clients": clients}}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                ("origin.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK, identity=identity, extensions=[extension]
            ),
        ]  # fmt: skip

        def connected(address: str) -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", port), WAIT_S, (address, 0))
            return stack.enter_context(sock)

        with GatewayProcess(tmp_path, objects, arguments=["--workers", "2"]) as gateway:
            for number in range(12):
                connected("127.0.0.1").sendall(get("origin.test", origin.port, f"/{number}"))
            connected("127.0.0.2").sendall(get("origin.test", origin.port, "/other"))
            wait_until(lambda: gateway.metric("egress_approvals_waiting") == 13)

            def paths(address: str) -> set[str]:
                status, body = ask(connected(address), get("egress.internal", 80, "/access"))
                assert status == 200
                return {each["path"] for each in json.loads(body)["waiting"]}

            for _ in range(4):  # whichever worker is asked
                assert paths("127.0.0.1") == {f"/{number}" for number in range(12)}
                assert paths("127.0.0.2") == {"/other"}
            url = f"http://origin.test:{origin.port}/"
            told = gateway.verb("explain", "GET", url, "--as", "agents/worker").stdout
            assert (
                "approval      it waits until a person approves, 3600 s at most (hold, EgressPolicy agents/default"
                in told
            )
            assert told.count("\n  waits       ") == 13
