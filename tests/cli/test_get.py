"""`egressproxy get` against an admin server of this process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from egressproxy.admin.server import AdminServer
from egressproxy.admin.status import HEADERS
from egressproxy.cli.asking import MARKS
from egressproxy.cli.main import main
from egressproxy.config.reading.load import load_text
from tests.admin.kit import Holder, State, admin_server, entry
from tests.support.net import free_port
from tests.support.waiting import WAIT_S

TEXT = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: egress, namespace: agents, labels: {team: red}}
spec: {gatewayClassName: c, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: ours}
spec: {destination: {type: Dynamic}}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {token: CANARY}
"""
STATUS = {"conditions": [{"type": "Programmed", "status": "True"}, {"type": "Accepted", "status": "True"}]}

Get = Callable[..., Result]


@pytest.fixture(scope="module")
def admin() -> Iterator[AdminServer]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> AdminServer:
        state = State()
        state.source = Holder([entry(each, STATUS) for each in load_text(TEXT).objects])
        server = admin_server(state, "127.0.0.1", 0)
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_S)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()


@pytest.fixture
def get(admin: AdminServer) -> Get:
    return lambda *arguments: CliRunner().invoke(main, ["get", *arguments, "--admin", f"127.0.0.1:{admin.port}"])


@pytest.mark.parametrize("kind", ["gw", "gateway", "Gateway", "gateways", "gateways.gateway.networking.k8s.io"])
def test_a_kind_goes_by_many_names(get: Get, kind: str):
    head, row = get(kind, "-n", "agents").output.splitlines()
    assert head.split() == ["NAME", "CLASS", "ADDRESS", "PROGRAMMED", "AGE"]
    assert row.split() == ["egress", "c", "True", "<unknown>"]


def test_all_namespaces_are_named(get: Get):
    head, row = get("gw", "-A", "-o", "wide").output.splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"]
    assert row.split()[:2] == ["agents", "egress"]
    assert row.endswith("http:80     0")


def test_several_kinds_stand_below_each_other(get: Get):
    output = get("gw,secrets", "-A").output
    assert "gateway/egress" in output
    assert "secret/key" in output


def test_a_name_of_several_groups_means_ours(get: Get):
    assert get("backends", "-o", "name").output.split() == ["backend.egressproxy.io/ours"]
    assert "nothing found" in get("backends.gateway.networking.k8s.io").output


def test_objects_come_as_yaml_and_json(get: Get):
    one = yaml.safe_load(get("gw", "egress", "-n", "agents", "-o", "yaml").output)
    assert (one["kind"], one["status"]) == ("Gateway", STATUS)
    many = json.loads(get("gw", "-A", "-o", "json").output)
    assert [item["metadata"]["name"] for item in many["items"]] == ["egress"]


def test_labels_select(get: Get):
    assert get("gw", "-A", "-l", "team=red", "-o", "name").output != ""
    assert "nothing found" in get("gw", "-A", "-l", "team=blue").output
    assert get("gw", "-A", "-l", "team in").exit_code == 2


def test_what_is_not_there_is_said_with_a_remedy(get: Get):
    for more in ((), ("-o", "yaml")):
        result = get("gw", "nope", *more)
        assert result.exit_code == 1
        assert "not found" in result.output
    assert "nothing found in namespace default (-n NS looks in another one, -A in all)" in get("gw").output


def test_a_secret_is_not_shown(get: Get):
    for output in ("yaml", "json", "wide"):
        assert "CANARY" not in get("secrets", "-A", "-o", output).output


def test_an_unknown_kind_has_a_nearest_one(get: Get):
    result = get("gatway")
    assert result.exit_code == 2
    assert "did you mean gateway?" in result.output


def test_a_watch_shows_what_is_there_and_ends_with_the_gateway(admin: AdminServer, get: Get):
    timer = threading.Timer(0.5, lambda: admin.end_watches())
    timer.start()
    result = get("gw", "-A", "-w")
    timer.join()
    assert result.exit_code == 0
    assert "egress" in result.output


def test_what_a_watch_begins_with_is_sorted_and_aligned(admin: AdminServer, get: Get):
    timer = threading.Timer(0.5, lambda: admin.end_watches())
    timer.start()
    lines = get("ns", "-w").output.splitlines()
    timer.join()
    assert [line.split()[0] for line in lines] == ["NAME", "agents", "default"]
    assert {line.index("Active") for line in lines[1:]} == {lines[0].index("STATUS")}


def test_nobody_who_answers_is_told_as_that():
    result = CliRunner().invoke(main, ["get", "gw", "--admin", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 2
    assert "does not answer" in result.output


def test_a_shell_is_offered_kinds_names_and_namespaces(admin: AdminServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGRESSPROXY_ADMIN", f"127.0.0.1:{admin.port}")
    complete = ShellComplete(main, {}, "egressproxy", "_EGRESSPROXY_COMPLETE").get_completions

    def values(*words: str) -> list[str]:
        return [each.value for each in complete(["get", *words[:-1]], words[-1])]

    assert values("gatew") == ["gatewayclasses", "gateways"]
    assert {"backends", "backends.gateway.networking.k8s.io", "backendtlspolicies"} < {*values("backend")}
    assert values("secrets,httpr") == ["secrets,httproutes"]
    assert values("gw", "") == []
    assert values("gw", "-n", "agents", "") == ["egress"]
    assert values("gw", "-n", "") == ["agents"]
    assert values("backends", "") == ["ours"]
    assert values("nonsense", "") == []


@contextmanager
def other_program(said: bytes) -> Iterator[str]:
    """The address of a program that answers its first connection so."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{other.getsockname()[1]}"
        thread.join()


def test_a_proxy_before_the_admin_address_may_have_its_name():
    assert MARKS.items() <= HEADERS.items()
    name = "Content-Security-Policy"
    said = f'HTTP/1.1 200 OK\r\nServer: envoy\r\n{name}: {MARKS[name]}\r\nContent-Length: 12\r\n\r\n{{"model":{{}}}}'
    with other_program(said.encode()) as address:
        result = CliRunner().invoke(main, ["env", "--admin", address])
    assert "the gateway at --admin has no forward-proxy listener" in result.output


def test_nothing_that_another_program_says_is_taken_for_a_listener():
    with other_program(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"model":[]}') as address:
        result = CliRunner().invoke(main, ["env", "--admin", address])
    assert "export HTTPS_PROXY='http://127.0.0.1:3128'" in result.output


@pytest.mark.parametrize(
    ("said", "who"),
    [
        (
            b"HTTP/1.1 200 OK\r\nServer: other/1\x1b[31m\r\nContent-Length: 2\r\n\r\n{}",
            "another server of HTTP (other/1",
        ),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "another server of HTTP answers there"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "a program that does not speak HTTP"),
        (b"", "a program that closes the connection"),
    ],
    ids=["server", "nameless", "ssh", "closes"],
)
def test_another_program_at_the_address_is_told_as_that(said: bytes, who: str):
    with other_program(said) as address:
        result = CliRunner().invoke(main, ["get", "gw", "--admin", address])
    assert result.exit_code == 2
    assert f"{address} is not the admin address of a gateway: {who}" in result.output
    assert "\x1b" not in result.output
