"""The agents Claude Code, Codex and Gemini CLI, one prompt each: by base URL, in opened tunnels, served by another API,
denied, limited, and by the second of two providers. They reach loopback alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.clients.world import Ended, Require
from tests.e2e.world import tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins.cloud_providers import CloudProvider
from tests.support.origins.providers import Provider
from tests.support.origins.server import OriginServer
from tests.support.own_network import can_have_own_network, own_network
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

EGRESSPROXY = str(Path(sys.executable).with_name("egressproxy"))
PROMPT = "three small words"
APIS = ("OpenAIChat", "OpenAIResponses", "AnthropicMessages")
#: Refuses the first request of each agent that has a body, as a limit would that has room again a second later; for
#: Claude Code, which says nothing of such a wait, an hour later.
LIMIT = """
from egressproxy.filters import Filter, Rejected

class Once(Filter):
    refused = set()

    def request_headers(self, x):
        path = x.request.path  # each has an API of its own
        if x.request.body and path not in self.refused:
            self.refused.add(path)
            is_long = path.startswith(b"/v1/messages")
            raise Rejected("the budget is spent", status=429, retry_after_s=3600 if is_long else 1)
"""
GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


@dataclass(frozen=True, slots=True)
class Agent:
    """`host` is where it asks by itself. `says_limited`: what the user reads of a limit."""

    name: str
    host: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    says_limited: str

    def at(self, url: str) -> tuple[list[str], dict[str, str]]:
        """Its command and environment, for this base URL; "": for its own."""
        command, environment = [*self.command], {**self.environment}
        if url and self.name == "codex":
            command[1:1] = ["-c", f'openai_base_url="{url}/v1"']
        elif url:
            environment["ANTHROPIC_BASE_URL" if self.name == "claude" else "GOOGLE_GEMINI_BASE_URL"] = url
        return command, environment


AGENTS = {
    each.name: each
    for each in (
        Agent("claude", "api.anthropic.com", ("claude", "-p", PROMPT),
              {"ANTHROPIC_API_KEY": "unused", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
              "API Error: Request rejected (429) · the budget is spent"),
        Agent("codex", "api.openai.com",
              ("codex", "exec", "--skip-git-repo-check", "-c", "check_for_update_on_startup=false",
               "-c", "analytics.enabled=false", PROMPT), {"CODEX_API_KEY": "unused"}, "Reconnecting... 1/5"),
        Agent("gemini", "generativelanguage.googleapis.com", ("gemini", "-m", "gemini-2.5-pro", "-p", PROMPT),
              {"GEMINI_API_KEY": "unused", "GEMINI_CLI_TRUST_WORKSPACE": "true"}, "the budget is spent"),
    )
}  # fmt: skip
EVERY = list(AGENTS.values())
EACH = pytest.mark.parametrize("agent", EVERY, ids=AGENTS)


async def no_socket(request: web.Request) -> web.Response:
    """A provider without WebSockets, of which Codex asks for one first."""
    return web.Response(status=426)


async def overloaded(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "overloaded"}}, status=503)


class AgentWorld:
    """Providers of every API, a gateway with a reverse listener before them, and the agents."""

    def __init__(self, folder: Path, stack: ExitStack, programs: str) -> None:
        self._folder, self._programs = folder, programs
        pki = Pki()
        # At the first one Codex gets its list of models: where that is denied, it tries again for seconds.
        hosts = ["chatgpt.com", *(each.host for each in AGENTS.values())]
        routes = [Provider().routes(), CloudProvider().routes(), [web.get("/v1/responses", no_socket)]]
        self.origin = stack.enter_context(OriginServer(routes, pki.server_context(*hosts)))
        self._down = stack.enter_context(
            OriginServer([[web.route("*", "/{_:.*}", overloaded)]], pki.server_context("a"))
        )
        dns = stack.enter_context(NameServer({host: [self.origin.address] for host in hosts}))
        self._port = free_port()
        self.gateway = GatewayProcess(folder / "gateway", self._reverse())
        (self.gateway.config / "once.py").write_text(LIMIT)
        stack.enter_context(self.gateway)
        pem, key = new_ca("agents", time.time(), 30, permitted=hosts)
        intercept = {"hostnames": hosts, "caCertificateRef": {"name": "interception"}}
        for name, allowed in (("open", hosts), ("closed", hosts[:1])):
            policy = m.policy(allowed, dns=dns.address, cidrs=["127.0.0.0/8"], intercept=intercept,
                              tls={"caBundleRefs": [{"kind": "ConfigMap", "name": "ca"}]})  # fmt: skip
            objects = [m.gateway(m.forward_listener(free_port())), policy, m.config_map("ca", {"ca.crt": pki.ca_pem}),
                       tls_secret("interception", pem, key.reveal())]  # fmt: skip
            (folder / name).mkdir()
            m.write(folder / name / "manifests.yaml", objects)

    def _reverse(self) -> list[m.Manifest]:
        """/plain/AGENT, /API/AGENT, /denied/AGENT, /limited/AGENT, and /failover/AGENT."""
        provider = self.origin.plain_port, self.origin.address
        objects = [
            m.gateway(m.http_listener(self._port)),
            m.policy(cidrs=["127.0.0.0/8"]),
            m.ip_backend("plain", *provider),
        ]
        rules = {}
        for name in AGENTS:
            objects.append(m.ip_backend(f"down-{name}", self._down.plain_port, self._down.address))
            objects.append(m.failover(f"failover-{name}", f"down-{name}", "plain"))
            ways = {"plain": "plain", "failover": f"failover-{name}", "denied": "plain", "limited": "plain"}
            for way, backend in {**ways, **{api: api.lower() for api in APIS}}.items():
                rules.setdefault(way, []).append(m.prefix_rule(f"/{way}/{name}", backend, rewrite="/"))
        for api in APIS:
            backend = m.ip_backend(api.lower(), *provider)
            backend["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": [api]}}
            objects.append(backend)
        objects += [m.http_route(way.lower(), *each) for way, each in rules.items()]
        filters = {"denied": ("ModelPolicy", {"allow": ["small-*"]}), "limited": ("Python", {"path": "once.py"})}
        for way, (kind, config) in filters.items():
            extension = {"name": way, "type": f"{m.OURS}/{kind}:v1", "phase": "request-headers", "config": config}
            policy = m.policy(name=way, target=way, extensions=[extension])
            policy["spec"]["targetRefs"][0]["kind"] = "HTTPRoute"
            objects.append(policy)
        return objects

    def ask(self, agent: Agent, way: str, status: int = 200) -> tuple[Ended, list[dict[str, Any]]]:
        """Let it ask by base URL: how it ended, and what the access log has of it, up to an answer with this status."""
        since = self.gateway.mark()
        command, environment = agent.at(f"http://127.0.0.1:{self._port}/{way}/{agent.name}")
        # Whatever else it looks for, it finds nobody.
        nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
        ended = self._run(agent, command, {**environment, **nowhere, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
        self.gateway.wait_for_record(since=since, method="POST", status=status)
        return ended, self.gateway.records[since:]

    def ask_wrapped(self, agent: Agent, config: str) -> tuple[Ended, set[tuple[int, str]]]:
        """The same behind `egressproxy run`, at the host where it asks by itself: status and reason of its requests."""
        if self.origin.tls_port != 443:
            pytest.skip("agents ask at port 443, where this process may not listen")
        log = self._folder / f"{config}-{agent.name}.log"
        command, environment = agent.at("")
        ours = [EGRESSPROXY, "run", "--config", str(self._folder / config), "--access-log", str(log), "--"]
        ended = self._run(agent, [*ours, *command], environment)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        asked = [each for each in records if each["authority"] == f"{agent.host}:443" and each["method"] == "POST"]
        return ended, {(each["status"], each["reason"]) for each in asked}

    def _run(self, agent: Agent, command: list[str], environment: Mapping[str, str]) -> Ended:
        home = self._folder / f"home-{time.monotonic_ns()}"
        (home / "work").mkdir(parents=True)
        (home / ".gemini").mkdir()
        (home / ".gemini" / "settings.json").write_text(json.dumps(GEMINI_SETTINGS))
        usual = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(home),
            "LC_ALL": "C.UTF-8",
        }
        if "PYTHONPATH" in os.environ:
            usual["PYTHONPATH"] = os.environ["PYTHONPATH"]
        done = subprocess.run(
            command, cwd=home / "work", env={**usual, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=WAIT_S, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout.decode("utf-8", "replace"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, node_modules: str, agents: str) -> Iterator[AgentWorld]:
    """In a network of its own, where that can be had: the programs are installed before."""
    with ExitStack() as stack:
        if can_have_own_network():
            stack.enter_context(own_network())
        yield AgentWorld(tmp_path_factory.mktemp("agents"), stack, agents)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, require: Require) -> None:
    agent: Agent = request.getfixturevalue("agent")
    require(f"agent:{agent.name}")
    if agent.name == "gemini":
        require("node")
        told = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
        if int(re.findall(r"\d+", told)[0]) < 20:
            pytest.skip(f"Gemini CLI needs Node 20: this is {told.strip()}")


def served(ended: Ended) -> None:
    """It ended well, and printed the answer, which repeats the prompt."""
    assert ended.status == 0, ended.output
    assert re.search(rf"You said: [^§]*{PROMPT}", ended.output), ended.output


@EACH
def test_it_is_served_by_its_base_url(world: AgentWorld, agent: Agent):
    ended, records = world.ask(agent, "plain")
    served(ended)
    assert [each["status"] for each in records if each["method"] == "POST"] == [200]


@EACH
def test_it_is_served_in_an_opened_tunnel(world: AgentWorld, agent: Agent):
    ended, asked = world.ask_wrapped(agent, "open")
    served(ended)
    assert 200 in {status for status, _ in asked}  # Codex may leave before the end of its answer has come


@pytest.mark.parametrize(
    "agent",
    [pytest.param(each, id=each.name, marks=[] if each.name == "claude" else [pytest.mark.nightly]) for each in EVERY],
)
def test_it_shows_why_it_was_denied_in_an_opened_tunnel(world: AgentWorld, agent: Agent):
    ended, asked = world.ask_wrapped(agent, "closed")
    assert ended.status != 0, ended.output
    assert f"{agent.host} is not allowed by policy agents/default" in ended.output
    assert asked == {(403, "destination_not_allowed")}


@pytest.mark.parametrize(
    ("agent", "api"),
    [(AGENTS[name], api) for name, own in (("claude", APIS[2]), ("codex", APIS[1])) for api in APIS if api != own],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_it_is_served_by_another_api(world: AgentWorld, agent: Agent, api: str):
    ended, records = world.ask(agent, api)
    served(ended)
    (post,) = (each for each in records if each["method"] == "POST")
    assert (post["status"], post["ai_backend_api"]) == (200, api)


@EACH
def test_it_shows_why_it_was_denied(world: AgentWorld, agent: Agent):
    ended, records = world.ask(agent, "denied", 403)
    assert ended.status != 0, ended.output
    assert re.search(r"403.*filter denied: model '[^']+' is not allowed", ended.output), ended.output
    assert {(each["status"], each["reason"]) for each in records if each["method"] == "POST"} == {(403, "model_denied")}


@EACH
def test_it_waits_out_a_short_limit_and_shows_a_long_one(world: AgentWorld, agent: Agent):
    is_long = agent.name == "claude"
    ended, records = world.ask(agent, "limited", 429 if is_long else 200)
    assert agent.says_limited in ended.output
    assert [each["status"] for each in records if each["method"] == "POST"] == ([429] if is_long else [429, 200])
    if is_long:
        assert ended.status != 0
    else:
        served(ended)


@EACH
def test_it_is_served_by_the_second_of_two_providers(world: AgentWorld, agent: Agent):
    ended, records = world.ask(agent, "failover")
    served(ended)
    assert 2 in [each.get("attempts") for each in records]
