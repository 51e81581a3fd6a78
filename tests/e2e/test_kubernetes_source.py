"""`run --source kubernetes` as a process: what an API server says is in force, and stays so while it is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from egressproxy.net.listening import bind
from tests.support.api_server import ApiServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.process

OURS, GATEWAY_API = "egressproxy.io/v1alpha1", "gateway.networking.k8s.io/v1"


def gateway(port: int) -> dict[str, Any]:
    listener = {"name": "forward", "port": port, "protocol": "egressproxy.io/forward-proxy"}
    return {
        "apiVersion": GATEWAY_API,
        "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": "infra"},
        "spec": {"gatewayClassName": "egressproxy", "listeners": [listener]},
    }


def policy(*allowed: str, **spec: Any) -> dict[str, Any]:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    return {
        "apiVersion": OURS,
        "kind": "EgressPolicy",
        "metadata": {"name": "p", "namespace": "infra"},
        "spec": {"targetRefs": [target], "destinations": {"allow": [{"hostnames": [*allowed]}]}, **spec},
    }


class Sourced:
    """A gateway whose configuration is an API server's. `host` is asked for through it."""

    def __init__(self, folder: Path, server: ApiServer, *arguments: str, namespace: str = "infra") -> None:
        folder.mkdir(exist_ok=True)
        (folder / "kubeconfig").write_text(server.kubeconfig())
        options = ("--source", "kubernetes", "--kubeconfig", str(folder / "kubeconfig"), *arguments)
        self.process = GatewayProcess(folder, None, arguments=options, environment={"POD_NAMESPACE": namespace})

    async def __aenter__(self) -> GatewayProcess:
        return await asyncio.to_thread(self.process.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.process.stop)


async def reason(port: int, host: str) -> str:
    """Why the gateway refuses a request, or that it would let it pass: names below .invalid do not resolve."""
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    return answer.partition(b'"reason": "')[2].partition(b'"')[0].decode()


async def refused(port: int, host: str) -> None:
    """Return once the gateway refuses requests for a host."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await reason(port, host) == "destination_not_allowed":
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def served(port: int, *objects: dict[str, Any]) -> AsyncIterator[ApiServer]:
    server = ApiServer()
    for each in (gateway(port), *objects):
        server.put(each)
    async with server.running():
        yield server


async def test_what_an_api_server_says_is_in_force_and_stays_while_it_is_away(tmp_path):
    port = free_port()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(port, policy("a.invalid", "b.invalid")))
        state = ("--state-dir", str(tmp_path / "state"))
        async with Sourced(tmp_path / "one", server, *state):
            assert await reason(port, "a.invalid") != "destination_not_allowed"
            assert await reason(port, "c.invalid") == "destination_not_allowed"
            server.put(policy("a.invalid"))  # b is allowed no longer
            await refused(port, "b.invalid")
            await until(lambda: server.objects["egresspolicies", "infra", "p"].get("status"), "no status is written")
            await until(lambda: server.objects["gateways", "infra", "gw"].get("status"))
            saved = tmp_path / "state" / ".cluster-objects"
            await until(lambda: saved.exists() and b"egresspolicies" in saved.read_bytes())
            await server.stop()
            assert await reason(port, "a.invalid") != "destination_not_allowed"
        async with Sourced(tmp_path / "two", server, *state) as process:  # it starts without the API server
            assert "what was kept on disk is served" in process.stderr
            assert await reason(port, "a.invalid") != "destination_not_allowed"
            assert await reason(port, "b.invalid") == "destination_not_allowed"
            server.put(policy("b.invalid"))
            await server.start()
            await refused(port, "a.invalid")


async def test_of_two_gateways_one_writes_status(tmp_path):
    ports = free_port(), free_port()
    async with served(ports[0], policy("a.invalid")) as server:
        async with Sourced(tmp_path / "one", server):
            lease = ("leases", "default", "egressproxy-egressproxy")
            await until(lambda: lease in server.objects)
            first = server.objects[lease]["spec"]["holderIdentity"]
            own = tmp_path / "gateway.yaml"
            own.write_text(str(gateway(ports[1])).replace("'", '"'))  # its own port, by a file that wins
            elsewhere = Sourced(tmp_path / "two", server, "--config", str(own), namespace="other")
            async with elsewhere as process:
                assert await reason(ports[1], "b.invalid") == "destination_not_allowed"
                assert "stands in its place" in process.stderr
                await until(lambda: "status" in server.objects["gateways", "infra", "gw"])
                assert server.objects[lease]["spec"]["holderIdentity"] == first
                names = (lease, ("leases", "default", "egressproxy-egressproxy-namespaces"))
                assert {key for key in server.objects if key[0] == "leases"} == {*names}
                writes = len(server.asked("PATCH"))
                server.put(policy("a.invalid", "b.invalid"))
                await until(lambda: len(server.asked("PATCH")) > writes)
        assert server.objects[lease]["spec"]["holderIdentity"] == ""  # it was given back


async def test_ports_and_sockets_that_a_gateway_cannot_have_hold_up_no_other(tmp_path):
    port, wanted = free_port(), free_port()
    with bind("127.0.0.1", 0) as taken, bind("127.0.0.1", 0) as also_taken:
        greedy = gateway(taken.getsockname()[1])
        greedy["metadata"] = {"name": "greedy", "namespace": "team"}
        greedy["spec"]["listeners"] += [
            {"name": "also", "port": also_taken.getsockname()[1], "protocol": "egressproxy.io/forward-proxy"},
            {"name": "free", "port": wanted, "protocol": "egressproxy.io/forward-proxy"},
        ]
        sly = gateway(3128)
        sly["metadata"] = {"name": "sly", "namespace": "team"}
        path = tmp_path / "sly.sock"
        sly["spec"]["addresses"] = [{"type": "egressproxy.io/UnixSocket", "value": f"unix://{path}"}]
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(served(port, greedy, sly, policy("*.invalid")))
            await stack.enter_async_context(Sourced(tmp_path / "gw", server))
            assert await reason(port, "a.invalid") != "destination_not_allowed"
            assert await reason(wanted, "a.invalid")
            server.put(policy("b.invalid"))
            await refused(port, "a.invalid")
            assert not path.exists()
            await until(lambda: "status" in server.objects["gateways", "team", "greedy"])
            found = server.objects["gateways", "team", "greedy"]["status"]["listeners"]
            said = {each["name"]: each["conditions"] for each in found}
            assert "PortUnavailable" in {each["reason"] for each in said["forward"]}
            assert "PortUnavailable" in {each["reason"] for each in said["also"]}
            assert "PortUnavailable" not in {each["reason"] for each in said["free"]}


async def test_a_plugin_for_credentials_has_nothing_to_read(tmp_path):
    """It would take what the gateway says to the process that starts it."""
    port = free_port()
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
    script = f"cat > /dev/null; printf '%s' '{json.dumps(credential)}'"
    plugin = {"apiVersion": credential["apiVersion"], "command": "sh", "args": ["-c", script]}
    async with served(port, policy("a.invalid")) as server:
        sourced = Sourced(tmp_path / "gw", server)
        file = tmp_path / "gw" / "kubeconfig"
        made = json.loads(file.read_text())
        made["users"][0]["user"] = {"exec": plugin}
        file.write_text(json.dumps(made))
        async with sourced:
            assert await reason(port, "b.invalid") == "destination_not_allowed"
