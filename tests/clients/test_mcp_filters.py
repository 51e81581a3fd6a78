"""The content filters between the SDK of the Model Context Protocol, as client, and its servers in each transport."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.clients.test_mcp import PYTHON, require_sdk
from tests.clients.test_table import PROGRAMS
from tests.e2e.test_mcp import accepts
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

#: The transports of the servers, and what the client speaks.
TRANSPORTS = {"events": "http", "json": "http", "sse": "sse"}
ALICE = "alice@example.com"
FILTERS: dict[str, dict[str, Any]] = {
    "QoSController": {"tokensPerDay": 1_000_000},
    "PromptGuard": {
        "deny": [{"name": "falcon", "pattern": r"project\s+falcon"}],
        "roles": ["user", "assistant", "tool"],
    },
    "ToolPolicy": {
        "tools": {
            "deny": [{"names": ["interrupted"]}],
            "allow": [
                {"names": ["repeat", "leak", "interrupted"]},
                {"names": ["count"], "arguments": [{"path": "upto", "max": 10}]},
            ],
        },
    },
    "ResponsePolicy": {"entities": ["CARD"]},
    "PIIDetector": {"entities": [{"name": "EMAIL", "action": "Placeholder"}]},
    "TokenMeter": {},
}


class World:
    """A gateway with every content filter in front of one server for each transport."""

    def __init__(self, stack: ExitStack, folder: Any) -> None:
        self._ports = {transport: free_port() for transport in TRANSPORTS}
        servers = {transport: free_port() for transport in TRANSPORTS}
        for transport, port in servers.items():
            command = [PYTHON, str(PROGRAMS / "mcp_server.py"), transport, str(port), transport]
            stack.callback(stack.enter_context(subprocess.Popen(command)).terminate)
        for port in servers.values():
            wait_until(lambda port=port: accepts(port), "the MCP server does not listen")  # type: ignore[misc]
        extensions = [
            {"name": kind.lower(), "type": f"{m.OURS}/{kind}:v1", "phase": "request-headers", "config": config}
            for kind, config in FILTERS.items()
        ]
        listeners = [m.http_listener(port, name) for name, port in self._ports.items()]
        objects = [m.gateway(*listeners), m.policy(cidrs=["127.0.0.0/8"], extensions=extensions)]
        for name, port in servers.items():
            # Of the old transport a Backend of protocol MCP knows nothing: it is a server of HTTP.
            protocol = "HTTP11" if name == "sse" else "MCP"
            objects.append(m.ip_backend(name, port, protocol=protocol))
            objects.append(m.http_route(name, m.prefix_rule("/", name), section=name))
        self.gateway = stack.enter_context(GatewayProcess(folder, objects))

    def run(self, transport: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        """What the client program has seen."""
        path = "/sse" if transport == "sse" else "/mcp"
        url = f"http://127.0.0.1:{self._ports[transport]}{path}"
        command = [PYTHON, str(PROGRAMS / "mcp_filtered.py"), url, TRANSPORTS[transport], json.dumps(calls)]
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_sdk()
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("mcp") / "g")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_lists_are_shortened_and_allowed_calls_are_served(world: World, transport: str):
    seen = world.run(transport, ("count", {"upto": 5}), ("repeat", {"text": f"write to {ALICE}"}))
    assert seen["tools"] == ["count", "leak", "repeat"]
    # In the old transport the answer is an event of another exchange, which has not made the placeholder.
    shown = "<EMAIL_1>" if transport == "sse" else ALICE
    assert seen["said"] == [f"{transport} counted to 5", f"{transport} heard: write to {shown}"]


@pytest.mark.parametrize("transport", ["events", "json"])
def test_a_denial_is_an_error_of_json_rpc_and_the_session_goes_on(world: World, transport: str):
    calls: list[tuple[str, dict[str, Any]]] = [
        ("interrupted", {}), ("count", {"upto": 11}), ("repeat", {"text": "about project falcon"}), ("leak", {}),
        ("repeat", {"text": "and so on"}),
    ]  # fmt: skip
    by_name, by_arguments, prompt, answer, last = world.run(transport, *calls)["said"]
    assert "tool 'interrupted' is not allowed" in by_name[1]
    assert "tool 'count' is not allowed with these arguments" in by_arguments[1]
    assert "falcon" in prompt[1]
    assert "CARD" in answer[1]
    assert last == f"{transport} heard: and so on"


def test_over_sse_a_denied_call_reaches_no_server_and_the_session_goes_on(world: World):
    """The client waits for an event that does not come, until its own time is over."""
    since = len(world.gateway.records)
    calls: list[tuple[str, dict[str, Any]]] = [("interrupted", {}), ("count", {"upto": 11}), ("count", {"upto": 2})]
    by_name, by_arguments, last = world.run("sse", *calls)["said"]
    for denied in (by_name, by_arguments):
        assert "timed out" in denied[1].lower()
    assert last == "sse counted to 2"
    refused = [each for each in world.gateway.records[since:] if each["reason"] == "filter_rejected"]
    assert len(refused) == 2
