"""The SDK of the Model Context Protocol, as client and as server, with the gateway between them.

It has dependencies of its own: EGRESSPROXY_MCP_PYTHON may name an interpreter that has it. Default: that of the tests.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_table import PROGRAMS
from tests.e2e.test_mcp import accepts, to_tools
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

PYTHON = os.environ.get("EGRESSPROXY_MCP_PYTHON", sys.executable)
TOOLS = ["count", "interrupted", "leak", "repeat", "whoami"]


def require_sdk() -> None:
    """Skip where the SDK is not installed; with EGRESSPROXY_CLIENTS=required fail."""
    if subprocess.run(
        [PYTHON, "-c", "import mcp.server.mcpserver, uvicorn"], capture_output=True, check=False
    ).returncode:
        message = "the MCP SDK is not installed and cannot be installed here"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, int]]:
    """Two servers of the SDK: their names, and the ports that they listen on."""
    require_sdk()
    ports = {"alpha": free_port(), "beta": free_port()}
    with ExitStack() as stack:
        for name, port in ports.items():
            command = [PYTHON, str(PROGRAMS / "mcp_server.py"), name, str(port)]
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.terminate)
        for port in ports.values():
            wait_until(lambda port=port: accepts(port), "the MCP server does not listen")  # type: ignore[misc]
        yield ports


def serving(folder: Path, servers: dict[str, int], *arguments: str, **options: str) -> tuple[GatewayProcess, str]:
    """A gateway before these servers, and the URL for clients."""
    port = free_port()
    objects = to_tools(port, *servers.values())
    backend = next(each for each in objects if each["kind"] == "Backend")
    backend["spec"]["destination"]["ports"][0]["protocolOptions"] = {"mcp": {"path": "/mcp", **options}}
    return GatewayProcess(folder, objects, arguments=arguments), f"http://127.0.0.1:{port}/tools"


def run(url: str, mode: str = "legacy") -> dict[str, Any]:
    """What the client program has seen."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [PYTHON, str(PROGRAMS / "mcp_tools.py"), url, mode]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_sessions_tools_progress_and_resumption(tmp_path: Path, servers: dict[str, int]):
    gateway, url = serving(tmp_path, servers, "--workers", "2", version="2025-11-25")
    with gateway:
        seen = [run(url) for _ in range(4)]
        for each in seen:
            (name,) = each["whoami"]  # every call has reached the same server
            assert each == {
                "tools": TOOLS,
                "whoami": [name],
                "counted": f"{name} counted to 5",
                "steps": [1, 2, 3, 4, 5],
                "interrupted": f"{name} was interrupted",
                "steps again": [1, 2],
            }
        assert {each["whoami"][0] for each in seen} == set(servers)
        calls = {"route": "agents/tools", "backend": "agents/tools", "method": "tools/call", "result": "ok"}
        for tool, times in {"whoami": 8, "count": 1, "interrupted": 1}.items():
            assert gateway.metric("egress_mcp_messages_total", tool=tool, **calls) == times * len(seen)
        assert gateway.metric("egress_mcp_messages_total", method="initialize") == len(seen)
        record = gateway.wait_for_record(mcp_tool="count")
        assert (record["mcp_method"], record["status"], record["path"]) == ("tools/call", 200, "/tools")
        ended = gateway.wait_for_record(method="DELETE")
        assert (ended["status"], ended["backend"]) == (200, "agents/tools")


class Balancer:
    """Gives each connection to the next of these ports, as a load balancer of TCP does."""

    def __init__(self, *ports: int) -> None:
        self._ports = itertools.cycle(ports)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            onward = socket.create_connection(("127.0.0.1", next(self._ports)))
            for one, other in ((sock, onward), (onward, sock)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_sessions_over_a_fleet_of_two_gateways_with_one_key(tmp_path: Path, servers: dict[str, int]):
    """The connections of one client go to both gateways."""
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    with ExitStack() as stack:
        made = [serving(tmp_path / str(n), servers, "--session-key", str(key), version="2025-11-25") for n in (1, 2)]
        gateways = [stack.enter_context(gateway) for gateway, _ in made]
        balancer = Balancer(*(int(url.rsplit(":", 1)[1].partition("/")[0]) for _, url in made))
        stack.callback(balancer.close)
        for _ in range(4):
            seen = run(f"http://127.0.0.1:{balancer.port}/tools")
            (name,) = seen["whoami"]
            assert (seen["counted"], seen["interrupted"]) == (f"{name} counted to 5", f"{name} was interrupted")
        for gateway in gateways:
            assert gateway.metric("egress_requests_total", backend="agents/tools") > 0


def test_the_revision_without_sessions_is_spread_over_the_servers(tmp_path: Path, servers: dict[str, int]):
    gateway, url = serving(tmp_path, servers)
    with gateway:
        seen = run(url, "2026-07-28")
        assert seen["tools"] == TOOLS
        assert seen["whoami"] == ["alpha", "beta"]
        assert seen["steps"] == [1, 2, 3, 4, 5]


def test_a_client_that_finds_out_what_is_spoken_falls_back_to_the_revision_of_the_backend(
    tmp_path: Path, servers: dict[str, int]
):
    gateway, url = serving(tmp_path, servers, version="2025-11-25")
    with gateway:
        assert len(run(url, "auto")["whoami"]) == 1
        refused = gateway.wait_for_record(status=400)
        assert (refused["reason"], refused["mcp_method"]) == ("mcp_version", "server/discover")


def test_a_client_is_told_of_a_denial_in_its_own_words(tmp_path: Path, servers: dict[str, int]):
    port = free_port()
    objects = to_tools(port, *servers.values())
    objects.append(m.policy(limits={"requests": [{"per": "Route", "limit": 1, "window": "1h"}]}))
    with GatewayProcess(tmp_path, objects) as gateway:
        url = f"http://127.0.0.1:{port}/tools"
        run(url)
        seen = run(url)
        assert (seen["code"], "more than 1 request" in seen["error"]) == (-32000, True)
        assert gateway.wait_for_record(status=429, mcp_method="initialize")["reason"] == "request_rate"
