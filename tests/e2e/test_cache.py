"""A cache in front of a provider in a real process: what is asked twice is answered once, until a reload."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import Origin, client, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until


def policy(**config: Any) -> m.Manifest:
    extension = {"name": "cache", "type": "egressproxy.io/Cache:v1", "priority": 1000, "config": config}
    return {
        "apiVersion": "egressproxy.io/v1alpha1",
        "kind": "EgressPolicy",
        "metadata": {"name": "cache", "namespace": "agents"},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
            "extensions": [extension],
        },
    }


def cli(gateway: GatewayProcess, *arguments: str, status: int = 0) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("egressproxy")), "cache", *arguments]
    command += ["--admin", f"127.0.0.1:{gateway.admin_port}", "-o", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stderr
    return dict(json.loads(result.stdout)) if result.stdout else {"error": result.stderr}


@pytest.mark.parametrize("with_token", [False, True])
def test_a_purge_takes_answers_out_of_the_caches_of_all_workers(tmp_path: Path, with_token: bool):
    port, token = free_port(), tmp_path / "token"
    token.write_text("a-token-of-those-who-may-write\n")
    asked = list[bytes]()

    def serve(sock: socket.socket) -> None:
        asked.append(read_message(sock)[0])
        sock.sendall(b"HTTP/1.1 200 OK\r\nCache-Control: public, max-age=600\r\nContent-Length: 2\r\n\r\nok")

    def get(path: str) -> bytes:
        head = f"GET {path} HTTP/1.1\r\nHost: ai.test\r\nX-Api-Key: k\r\nConnection: close\r\n\r\n"
        with client(port) as sock:
            sock.sendall(head.encode())
            return read_message(sock)[0].lower()

    def fill(path: str) -> None:
        """Until both workers have it: each has brought it once."""
        before = sum(path.encode() in head for head in asked)
        wait_until(lambda: bool(get(path)) and sum(path.encode() in head for head in asked) == before + 2)

    with Origin(serve) as origin:
        objects = [
            m.gateway(m.http_listener(port)),
            m.ip_backend("here", origin.port),
            m.http_route("one", m.prefix_rule("/one", "here"), section="http"),
            m.http_route("two", m.prefix_rule("/two", "here"), section="http"),
            policy(),
        ]
        arguments = ["--workers", "2"]
        if with_token:
            arguments += ["--state-dir", str(tmp_path / "state"), "--api-writes", "--api-token-file", str(token)]
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments) as gateway:
            assert cli(gateway, "show") == {
                "entries": 0, "bytes": 0, "hits": 0, "purged": 0,
                "caches": [
                    {"filter": "cache", "from": "EgressPolicy agents/cache", "entries": 0, "bytes": 0, "hits": 0,
                     "purged": 0},
                ],
            }  # fmt: skip
            for path in ("/one/a?q=1", "/one/b", "/two/a"):
                fill(path)
            shown = cli(gateway, "show")
            assert shown["entries"] == gateway.metric("egress_cache_entries") == 6
            assert shown["bytes"] > 6 * 1024
            assert shown["hits"] == gateway.metric("egress_cache_requests_total", outcome="hit")

            may = ["--api-token-file", str(token)] if with_token else []
            if with_token:
                assert "writes need the token" in cli(gateway, "purge", "--all", status=2)["error"]
            assert "say which answers" in cli(gateway, "purge", status=2)["error"]
            assert "say which answers" in cli(gateway, "purge", "--all", "--path", "/", status=2)["error"]
            assert "begins with /" in cli(gateway, "purge", "--path", "one", *may, status=2)["error"]
            assert cli(gateway, "purge", "--route", "agents/none", *may)["purged"] == 0
            assert cli(gateway, "purge", "--identity", "agents/me", *may)["purged"] == 0
            found = cli(gateway, "purge", "--route", "agents/one", "--path", "/one/%61", *may)
            assert (found["purged"], found["entries"]) == (2, 4)
            fill("/one/a?q=1")
            assert b"; hit;" in get("/one/b")
            found = cli(gateway, "purge", "--identity", "-/-", "--route", "agents/two", *may)
            assert (found["purged"], found["entries"]) == (2, 4)
            found = cli(gateway, "purge", "--all", *may)
            assert (found["purged"], found["entries"], found["bytes"]) == (4, 0, 0)
            assert gateway.metric("egress_cache_purged_total") == 8
            assert gateway.metric("egress_cache_entries") == 0
            assert b"; fwd=miss" in get("/one/b")

            os.kill(gateway.pid, signal.SIGHUP)
            gateway.wait_for_metric("egress_config_generation", 2)
            wait_until(lambda: cli(gateway, "show")["entries"] == 0)  # nobody finds what was kept before
