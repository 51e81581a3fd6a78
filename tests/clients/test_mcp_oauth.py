"""OAuth with the SDK of the Model Context Protocol at both ends: by the gateway for clients, and by clients."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_mcp import PYTHON, require_sdk
from tests.clients.test_table import PROGRAMS
from tests.e2e.test_mcp import accepts
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.tokens import TokenIssuer
from tests.support.waiting import WAIT_S, wait_until

CLUSTER = TokenIssuer()
ALICE, BOB = (f"Bearer {CLUSTER.token(f'system:serviceaccount:agents:{name}')}" for name in ("alice", "bob"))
CALLBACK = "/tools/oauth"
METADATA = "/.well-known/oauth-protected-resource"


def backend(name: str, port: int, **config: Any) -> m.Manifest:
    extension = {"name": "oauth", "type": f"{m.OURS}/McpAuthorization:v1", "config": config}
    port_spec = {"number": port, "protocol": "MCP", "tls": {"mode": "None"}}
    port_spec["protocolOptions"] = {"mcp": {"path": "/mcp"}}
    destination = {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [port_spec]}
    spec = {"destination": destination, "extensions": [extension] if config else []}
    return m.manifest(f"{m.OURS}/v1alpha1", "Backend", name, "agents", spec=spec)


class World:
    """A server of the SDK with its authorization server, behind three Backends: at /tools of a listener that knows its
    clients in mode AuthorizationCode, and at /machine and /own of another one in ClientCredentials and PassThrough.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.port, self.open_port, self.server = (free_port() for _ in range(3))
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.own_url = f"http://127.0.0.1:{self.open_port}/own"
        command = [PYTHON, str(PROGRAMS / "mcp_oauth_server.py"), str(self.server), self.own_url]
        stack.callback(stack.enter_context(subprocess.Popen(command)).terminate)
        wait_until(lambda: accepts(self.server), "the MCP server does not listen")
        self.issuer = f"http://127.0.0.1:{self.server}"
        login = {"group": m.OURS, "kind": "Backend"}
        config = {
            "mode": "AuthorizationCode", "resource": f"{self.issuer}/mcp", "metadataRef": {**login, "name": "tools"},
            "authorizationServers": [{"url": self.issuer, "backendRef": {**login, "name": "login"}}],
            "redirectUri": self.url + CALLBACK, "stateFolder": str(folder / "tokens"),
        }  # fmt: skip
        machine = {
            **{name: config[name] for name in ("resource", "metadataRef", "authorizationServers")},
            "mode": "ClientCredentials", "clientId": "machine", "clientSecretRef": {"name": "machine", "key": "secret"},
        }  # fmt: skip
        own = m.http_route("own", m.prefix_rule("/own", "own"), section="open")
        own["spec"]["rules"][0]["matches"].append({"path": {"type": "Exact", "value": f"{METADATA}/own"}})
        policy = m.policy(identity={"token": {"issuers": [CLUSTER.written]}})
        policy["spec"]["targetRefs"][0]["sectionName"] = "http"
        objects = [
            m.gateway(m.http_listener(self.port), m.http_listener(self.open_port, "open")), policy,
            CLUSTER.config_map, backend("tools", self.server, **config), m.ip_backend("login", self.server),
            backend("own", self.server, mode="PassThrough", resource=f"{self.issuer}/mcp"),
            m.secret("machine", {"secret": "s3cret"}), backend("machine", self.server, **machine),
            m.http_route("machine", m.prefix_rule("/machine", "machine"), section="open"),
            m.http_route("tools", m.prefix_rule("/tools", "tools"), section="http"), own,
        ]  # fmt: skip
        self.gateway = stack.enter_context(GatewayProcess(folder / "g", objects, arguments=["--workers", "2"]))

    def call(self, url: str, kind: str, authorization: str = "") -> dict[str, Any]:
        """What a client of the SDK has seen."""
        command = [PYTHON, str(PROGRAMS / "mcp_oauth_client.py"), url, kind, authorization]
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def browse(self, url: str, authorization: str = "", method: str = "GET") -> tuple[int, str, str]:
        """Status, Location and text of a page."""
        fields = {"Authorization": authorization} if authorization else {}
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
        try:
            answer = opener.open(urllib.request.Request(url, headers=fields, method=method), timeout=WAIT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers.get("Location", ""), answer.read().decode()

    def allow(self, who: str) -> None:
        """The browser of a user who opens the URL, and allows access."""
        status, target, _ = self.browse(self.url + CALLBACK, who)
        assert (status, target.startswith(f"{self.issuer}/authorize?")) == (302, True)
        _, back, _ = self.browse(target)
        assert back.startswith(self.url + CALLBACK)
        assert self.browse(back)[0] == 401
        status, _, said = self.browse(back, who)
        assert (status, "Access is allowed" in said) == (200, True)

    def seen(self) -> list[str]:
        found: list[str] = json.loads(self.browse(f"{self.issuer}/seen")[2])
        return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_sdk()
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("oauth"))


def test_the_gateway_gets_a_token_for_each_client_that_knows_nothing_of_oauth(world: World):
    url, before = f"{world.url}/tools", len(world.seen())
    asked = world.call(url, "legacy", ALICE)
    assert asked["code"] == -32042
    (elicitation,) = asked["data"]["elicitations"]
    assert (elicitation["mode"], elicitation["url"]) == ("url", world.url + CALLBACK)
    assert world.url + CALLBACK in asked["message"]
    assert ["url", world.url + CALLBACK] in world.call(url, "2026-07-28", ALICE)["opened"]
    world.allow(ALICE)
    first = world.call(url, "legacy", ALICE)["said"]
    world.allow(BOB)
    assert world.call(url, "2026-07-28", BOB)["said"] != first
    shown = world.seen()[before:]
    assert shown
    assert all(each.startswith("Bearer ") for each in shown)
    # All access tokens end: each worker gets another one by itself, and the client sees nothing of it.
    world.browse(f"{world.issuer}/revoke-all", method="POST")
    for file in (world.folder / "tokens").glob("*.token"):  # that they were issued a moment ago is not the point here
        entry = json.loads(file.read_text())
        entry["tokens"]["since"] -= 60
        file.write_text(json.dumps(entry))
    assert world.call(url, "legacy", ALICE)["said"] == first
    assert world.browse(world.url + CALLBACK, ALICE, "DELETE")[0] == 204
    told = world.gateway.stderr + json.dumps(world.gateway.records)
    secrets = {each.removeprefix("Bearer ") for each in world.seen()}
    assert not [each for each in secrets if each in told]
    assert not re.search(r"(code|state)=", told)


def test_the_gateway_has_a_token_of_its_own_for_all_clients(world: World):
    said = world.call(f"http://127.0.0.1:{world.open_port}/machine", "legacy", "Bearer of-the-client")
    assert said == {"said": "machine"}
    assert "Bearer of-the-client" not in world.seen()


def test_a_client_authorizes_itself_by_the_metadata_at_the_gateway(world: World):
    assert world.call(world.own_url, "oauth")["said"]
    status, _, said = world.browse(f"http://127.0.0.1:{world.open_port}{METADATA}/own")
    assert (status, json.loads(said)["resource"]) == (200, world.own_url)
    status, _, _ = world.browse(world.own_url)
    assert status == 401
