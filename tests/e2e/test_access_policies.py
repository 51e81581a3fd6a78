"""XAccessPolicy by the real process: an MCP server whose tools are open to a client with a token, over a reload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_mcp import CALL, INITIALIZE, McpServer, ask, field, to_tools
from tests.gateway.test_access_policies import BACKEND, BASE, GATEWAY, access, rule
from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.tokens import TokenIssuer

pytestmark = pytest.mark.timeout(90)
CODER = {"type": "ServiceAccount", "serviceAccount": {"name": "coder"}}
TOOLS = {**BACKEND, "name": "tools"}


@pytest.mark.parametrize("target", [GATEWAY, TOOLS], ids=["gateway", "backend"])
def test_tools_are_open_to_the_clients_of_a_rule_in_every_worker_and_after_a_reload(tmp_path: Path, target: Manifest):
    port, cluster = free_port(), TokenIssuer()
    identity = {"token": {"issuers": [cluster.written]}, "required": False}
    coder = cluster.token("system:serviceaccount:agents:coder")

    def allowing(expression: str) -> Manifest:
        base = rule("base", source=CODER, mcp={"mcpBaseProtocolMethodsOption": BASE})
        return access(base, rule("tools", source=CODER, cel={"expression": expression}), target=target)

    with McpServer("a") as server:
        objects = [
            *to_tools(port, server.port),
            m.policy(identity=identity, cidrs=["127.0.0.0/8"]),
            cluster.config_map,
        ]
        policy = allowing("request.mcp.tool_name.startsWith('who')")
        with GatewayProcess(tmp_path / "gw", [*objects, policy], arguments=["--workers", "2"]) as gateway:

            def asked(message: Any, session: str = "", token: str = coder) -> tuple[int, bytes, Any]:
                fields = {"Authorization": f"Bearer {token}"} if token else {}
                return ask(port, message, **fields, **({"Mcp-Session-Id": session} if session else {}))

            assert asked(INITIALIZE, token="")[0] == 403
            session = field(asked(INITIALIZE)[1], "mcp-session-id")
            other = {**CALL, "params": {"name": "delete"}}
            for _ in range(4):
                assert asked(CALL, session)[2]["result"]["served"] == "a"
                status, _, said = asked(other, session)
                assert (status, said["id"], said["error"]["code"]) == (200, 2, 403)
                assert said["error"]["data"]["rule"] == "XAccessPolicy agents/access"
            record = gateway.wait_for_record(reason="access_denied", status=200)
            assert (record["service_account"], record["rule"]) == ("coder", "XAccessPolicy agents/access")
            counted = {"filter": "agents/access", "rule": "tools", "decision": "allowed"}
            assert gateway.metric("egress_access_decisions_total", **counted) == 4
            gateway.reload([*objects, allowing("request.mcp.tool_name == 'delete'")])
            assert asked(other, session)[2]["result"]["served"] == "a"
            assert asked(CALL, session)[2]["error"]["code"] == 403
