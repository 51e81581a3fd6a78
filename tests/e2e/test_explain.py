"""Explanations and decisions of a running gateway."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from egressproxy.admin.introspection import VIEWS
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess, verb
from tests.support.waiting import WAIT_S

TOKEN = "sk-never-shown"
INJECTOR = {
    "name": "inject", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
    "config": {"secretRef": {"name": "key", "key": "token"}, "header": "Authorization", "allowPlaintext": True},
}  # fmt: skip


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def manifests(port: int, origin: int, dns: NameServer) -> list[m.Manifest]:
    return [
        m.gateway(m.forward_listener(port)),
        m.policy(("a.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK),
        m.backend("api", "api.test", origin, extensions=[INJECTOR]),
        m.secret("key", {"token": TOKEN}),
        m.http_route("api", m.prefix_rule("/v1", "api"), m.prefix_rule("/v1/x", "api"), hostnames=("api.test",)),
    ]


def command(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    """A verb of the command line against this process: its exit status and what it printed."""
    done = gateway.verb(*arguments)
    return done.exit_code, done.output


def address(gateway: GatewayProcess) -> str:
    return f"http://127.0.0.1:{gateway.admin_port}"


def fetch(gateway: GatewayProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{address(gateway)}{path}", timeout=WAIT_S) as answer:
        return json.load(answer)


def test_the_running_gateway_explains_and_remembers(dns: NameServer, tmp_path: Path):
    port = free_port()
    with (
        Origin() as origin,
        GatewayProcess(tmp_path / "gw", manifests(port, origin.port, dns), arguments=["--workers", "2"]) as gateway,
    ):
        url = f"http://api.test:{origin.port}/v1/x"
        status, text = command(gateway, "explain", "GET", url, "-H", "X-Team: red")
        assert status == 0, text
        assert "HTTPRoute agents/api rule 1: api.test, PathPrefix /v1/x" in text
        assert "its path is longer" in text
        assert f"dial   127.0.0.1 port {origin.port}: loopback: allowed by EgressPolicy agents/default" in text
        assert "Secret key/token" in text
        assert TOKEN not in text
        assert origin.accepted == 0, "nothing is sent to a backend"
        assert fetch(gateway, "/decisions") == {"decisions": []}
        status, text = command(gateway, "explain", "CONNECT", "b.test:443")
        assert status == 1
        assert "add {hostnames" in text
        with client(port) as sock, urllib.request.urlopen(f"{address(gateway)}/live", timeout=WAIT_S) as live:
            assert live.readline() == b": live\n"
            assert ask(sock, get("api.test", origin.port, "/v1/x?key=hush")) == (200, b"ok")
            assert ask(sock, get("b.test", 80))[0] == 403
            events = [json.loads(line[6:]) for line in islice((each for each in live if each.startswith(b"data")), 2)]
        assert {each["authority"] for each in events} == {f"api.test:{origin.port}", "b.test:80"}
        assert "hush" not in str(events)
        (denial,) = fetch(gateway, "/denials")["denials"]
        assert denial["change"]["file"].startswith(str(gateway.config))
        assert '\n+    - {hostnames: ["b.test"], ports: [80]}\n' in denial["change"]["diff"]
        known = fetch(gateway, f"/decisions?request={denial['request_id']}")
        assert (known["decisions"][0]["authority"], known["denial"]["why"]) == ("b.test:80", denial["why"])
        shown = {path: fetch(gateway, path) for path in VIEWS}
        assert (shown["/summary"]["workers"], shown["/summary"]["routes"], shown["/summary"]["ready"]) == (2, 1, True)
        assert [each["secret"] for each in shown["/certificates"]["credentials"]] == ["key/token"]
        backends = {each["name"]: each["requests"] for each in shown["/backends"]["backends"]}
        assert backends["agents/api"] == 1
        assert sum(each["requests"] for each in shown["/history"]["minutes"]) == 2
        assert [each["by"] for each in shown["/configurations"]["configurations"]] == ["start"]
        assert TOKEN not in str(shown)
        assert fetch(gateway, "/decisions?request=gone") == {"decisions": [], "denial": None}
        found = fetch(gateway, "/decisions")["decisions"]
        assert [(each["authority"], each["path"], each["reason"]) for each in found] == [
            ("b.test:80", "/", "destination_not_allowed"), (f"api.test:{origin.port}", "/v1/x", "-"),
        ]  # fmt: skip
        assert "hush" not in str(found)
        before = gateway.metric("egress_requests_total")
        assert fetch(gateway, f"/explain?method=GET&url={url}&as=agents/me")["request"]["namespace"] == "agents"
        assert gateway.metric("egress_requests_total") == before, "an explanation is no traffic"


def test_a_new_configuration_is_compared_with_the_running_gateway_and_its_decisions(dns: NameServer, tmp_path: Path):
    port = free_port()
    with Origin() as origin, GatewayProcess(tmp_path / "gw", manifests(port, origin.port, dns)) as gateway:
        with client(port) as sock:
            assert ask(sock, get("b.test", origin.port))[0] == 403
            assert ask(sock, get("api.test", origin.port, "/v1")) == (200, b"ok")
        assert command(gateway, "diff", str(gateway.config)) == (
            0, "2 recent decisions were made again; none of them would change\n",
        )  # fmt: skip
        assert TOKEN not in str(fetch(gateway, "/model"))
        changed = manifests(port, origin.port, dns)
        changed[1] = m.policy(("a.test", "b.test"), dns=dns.address, cidrs=ALLOW_LOOPBACK)
        m.write(tmp_path / "new.yaml", changed)
        status, text = command(gateway, "diff", str(tmp_path / "new.yaml"))
        assert status == 1
        assert "~ Listener agents/gw/forward\n" in text
        assert fetch(gateway, "/model")["bind"] == ["127.0.0.1"]
        assert f"! GET b.test:{origin.port}/ on agents/gw/forward: deny (destination_not_allowed) -> allow" in text


def test_a_denied_place_is_told_in_the_same_words_by_check_explain_answer_and_log(dns: NameServer, tmp_path: Path):
    port = free_port()
    denied = {"allow": [{"hostnames": ["*.test"]}], "deny": [{"hostnames": ["api.test"]}, {"cidrs": ["127.0.0.2/32"]}]}
    objects = [
        m.gateway(m.http_listener(port)),
        m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK, destinations=denied),
        m.backend("api", "api.test", 80),
        m.dynamic(),
        m.http_route("fixed", m.prefix_rule("/", "api"), hostnames=("front.test",)),
        m.http_route("all", m.prefix_rule("/", "any")),
    ]
    said = "api.test is denied by policy agents/default"
    entry = 'backend agents/api leads to api.test:80; denied by {hostnames: ["api.test"]} in destinations.deny'
    dns.zone["other.test"] = Rule(("127.0.0.2",))
    with Origin() as origin, GatewayProcess(tmp_path / "gw", objects) as gateway:
        _, text = command(gateway, "explain", "GET", "/", "-H", "Host: front.test")
        assert said in text
        assert entry in text
        with client(port) as sock:
            status, body = ask(sock, b"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n")
            assert status == 403
            assert json.loads(body)["error"]["message"] == said
            asked = f"other.test:{origin.port}"
            status, body = ask(sock, f"GET / HTTP/1.1\r\nHost: {asked}\r\n\r\n".encode())
            assert (status, json.loads(body)["error"]["reason"]) == (403, "resolved_denied")
            assert ask(sock, b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n")[0] == 403
            assert ask(sock, f"GET / HTTP/1.1\r\nHost: a.test:{origin.port}\r\n\r\n".encode()) == (200, b"ok")
        assert origin.accepted == 1
        folder = tmp_path / "manifests"
        folder.mkdir()
        m.write(folder / "all.yaml", objects)
        assert f"{said} ({entry})" in verb("check", str(folder)).output
        assert gateway.wait_for_record(reason="destination_denied")["detail"] == entry
