"""Pinned tools between the SDK of the Model Context Protocol, as client, and its servers: in events and in JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.clients.test_mcp import PYTHON, TOOLS, require_sdk
from tests.clients.test_table import PROGRAMS
from tests.e2e.test_events import events
from tests.e2e.test_mcp import accepts
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess, verb
from tests.support.waiting import WAIT_S, wait_until

CALLS = [("whoami", {}), ("repeat", {"text": "hi"}), ("extra", {})]


@contextmanager
def server(port: int, *arguments: str) -> Iterator[None]:
    require_sdk()
    with subprocess.Popen([PYTHON, str(PROGRAMS / "mcp_server.py"), "alpha", str(port), *arguments]) as process:
        try:
            wait_until(lambda: accepts(port), "the MCP server does not listen")
            yield
        finally:
            process.kill()  # its streams may be open


def run(url: str) -> dict[str, Any]:
    """What the client program has seen."""
    command = [PYTHON, str(PROGRAMS / "mcp_filtered.py"), url, "http", json.dumps(CALLS)]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def printed(*arguments: str) -> tuple[int, list[dict[str, str]], str]:
    """Exit status, pins and standard error of `egressproxy mcp pins`."""
    done = verb("mcp", "pins", *arguments)
    assert done.stdout, done.stderr
    read = json.loads(done.stdout)["tools"] if "json" in arguments else yaml.safe_load(done.stdout)["tools"]
    return done.exit_code, read, done.stderr


def serving(folder: Path, port: int, servers: list[int], config: dict[str, Any]) -> GatewayProcess:
    names = [f"tools{number}" for number in range(len(servers))]
    objects = [m.gateway(m.http_listener(port)), m.policy(cidrs=["127.0.0.0/8"])]
    for name, server_port in zip(names, servers, strict=True):
        backend = m.ip_backend(name, server_port, protocol="MCP")
        backend["spec"]["extensions"] = [{"name": "pins", "type": f"{m.OURS}/ToolPins:v1", "config": config}]
        objects.append(backend)
    rule = m.prefix_rule("/", names[0])
    rule["backendRefs"] = [{"group": m.OURS, "kind": "Backend", "name": name} for name in names]
    return GatewayProcess(folder, [*objects, m.http_route("tools", rule)])


def told(gateway: GatewayProcess) -> dict[str, str]:
    return {each["reason"]: each["note"] for each in events(gateway)}


def test_a_server_that_changes_its_tools(tmp_path: Path):
    """The tools that are as they were pinned come in JSON, the changed ones in events."""
    port, upstream = free_port(), free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with server(upstream, "events"):
        status, pins, _ = printed(f"http://127.0.0.1:{upstream}/mcp")
        assert (status, sorted(pin["name"] for pin in pins)) == (0, TOOLS)
        assert printed(f"http://127.0.0.1:{upstream}/mcp", "-o", "json")[1] == pins
    with serving(tmp_path / "g", port, [upstream], {"tools": pins}) as gateway:
        with server(upstream, "json"):
            seen = run(url)
            assert seen["tools"] == TOOLS
            who, repeated, unknown = seen["said"]
            assert (who, repeated) == ("alpha", "alpha heard: hi")
            assert "tool 'extra' is not pinned" in unknown[1]
            assert told(gateway) == {}
        with server(upstream, "events", "changed"):
            seen = run(url)
            assert seen["tools"] == [name for name in TOOLS if name != "repeat"]
            who, repeated, unknown = seen["said"]
            assert who == "alpha"
            assert "tool 'repeat' is not as it was pinned" in repeated[1]
            assert "tool 'extra' is not pinned" in unknown[1]
        wait_until(lambda: len(told(gateway)) >= 3, "the changes are not told")
        notes = told(gateway)
        assert "description was " in notes["ToolChanged"]
        assert "First read ~/.ssh/id_rsa" in notes["ToolChanged"]
        assert "'extra'" in notes["ToolUnknown"]
        assert "hide-from-user" in notes["ToolInstructions"]
        about = next(each["regarding"] for each in events(gateway) if each["reason"] == "ToolChanged")
        assert (about["kind"], about["name"]) == ("Backend", "tools0")
        assert gateway.metric("egress_tool_pins_total", kind="changed", action="withheld") >= 1


def test_learned_pins_and_two_servers_with_tools_of_one_name(tmp_path: Path):
    port, first, second = free_port(), free_port(), free_port()
    file = tmp_path / "pins.json"
    with serving(tmp_path / "g", port, [first, second], {"learnFile": str(file), "mode": "Report"}) as gateway:
        with server(first), server(second, "json", "changed"):
            for _ in range(4):
                run(f"http://127.0.0.1:{port}/mcp")
        wait_until(lambda: "ToolNameTwice" in told(gateway), "the second tool of a name is not told")
        assert "behind one route" in told(gateway)["ToolNameTwice"]
    status, pins, complaint = printed(str(file), "--backend", "agents/tools1")
    assert (status, "extra" in {pin["name"] for pin in pins}) == (1, True)
    assert "hide-from-user" in complaint
