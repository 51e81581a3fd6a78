"""Real clients behind a proxy that asks who they are: with a token in the proxy's URL, an old one, and a password."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from tests.clients.test_table import CLIENTS, LONG, PROGRAMS, REASON, Client
from tests.clients.world import ORIGIN, Outcome, Require, Way, World
from tests.support import manifests
from tests.support.net import free_port
from tests.support.origins.basic import GREETING
from tests.support.process import GatewayProcess
from tests.support.tokens import TokenIssuer

CLUSTER = TokenIssuer()
PASSWORD = "Open-Sesame_4711"  # axios, for one, does not decode what URLs escape
#: Libraries that take no credential from the URL of a proxy.
DEAF = {"urllib3"}


class Asking:
    """A gateway beside that of the world, which knows tokens of a cluster, and one user."""

    def __init__(self, world: World, folder: Path) -> None:
        self.port = free_port()
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        identity = {"token": {"issuers": [CLUSTER.written]}, "basic": {"secretRef": {"name": "users"}}}
        self.gateway = GatewayProcess(
            folder,
            [
                manifests.gateway(manifests.forward_listener(self.port)),
                manifests.policy([ORIGIN], dns=world.dns.address, cidrs=["127.0.0.0/8"], identity=identity),
                manifests.secret("users", {"team.robot": hashed}),
                CLUSTER.config_map,
            ],
        ).start()

    def proxy(self, user: str, password: str) -> dict[str, str]:
        shown = f"{user}:{password}@" if user else ""
        url = f"http://{shown}127.0.0.1:{self.port}"
        return dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), url)


@pytest.fixture(scope="module")
def asking(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    made = Asking(world, tmp_path_factory.mktemp("identity") / "gateway")
    yield made
    made.gateway.stop()


def rows() -> list[Any]:
    return [
        pytest.param(client, way, id=f"{client.name}-{way.value}")
        for client in CLIENTS
        for way in (Way.HTTP, Way.TLS)
        if way in client.ways and client.name not in DEAF and (client.name not in LONG or way is Way.TLS)
    ]


@pytest.mark.parametrize("shows", ["token", "password"])
@pytest.mark.parametrize(("client", "way"), rows())
def test_a_client_that_shows_who_it_is_is_served(
    world: World, asking: Asking, require: Require, node_modules: str, tmp_path: Path, client: Client, way: Way,
    shows: str,
):  # fmt: skip
    require(client.kind + client.name)
    since = asking.gateway.mark()
    proxy = asking.proxy("anything", CLUSTER.token()) if shows == "token" else asking.proxy("team.robot", PASSWORD)
    command = client.command(world.url(way, Outcome.ALLOWED, client.path), tmp_path)
    ended = world.run(command, way, folder=world.home, NODE_PATH=node_modules, PIP_CONFIG_FILE="/dev/null", **proxy)
    assert ended.status == 0, ended.output
    assert client.prints in ended.output
    record = asking.gateway.wait_for_record(since=since, reason="-")
    assert (record["namespace"], record["service_account"]) == ("team", "robot")


@pytest.mark.parametrize(("client", "way"), rows())
def test_a_client_with_an_old_token_fails_and_does_not_ask_for_ever(
    world: World, asking: Asking, require: Require, node_modules: str, tmp_path: Path, client: Client, way: Way
):
    require(client.kind + client.name)
    since = asking.gateway.mark()
    proxy = asking.proxy("anything", CLUSTER.token(exp=1_700_000_000))
    command = client.command(world.url(way, Outcome.ALLOWED, client.path), tmp_path)
    ended = world.run(command, way, folder=world.home, NODE_PATH=node_modules, PIP_CONFIG_FILE="/dev/null", **proxy)
    assert ended.status != 0, ended.output
    asking.gateway.wait_for_record(since=since, status=407, reason="credentials_refused")
    assert "the token expired" in ended.output or client.shows != REASON, ended.output


def test_curl_with_a_field(world: World, asking: Asking, require: Require):
    require("curl")
    field = f"Proxy-Authorization: Bearer {CLUSTER.token()}"
    url = world.url(Way.TLS, Outcome.ALLOWED, "/hello")
    ended = world.run(["curl", "-sS", "--proxy-header", field, url], Way.TLS, **asking.proxy("", ""))
    assert ended.status == 0, ended.output


@pytest.mark.parametrize("way", [Way.HTTP, Way.TLS])
@pytest.mark.parametrize("is_old", [False, True], ids=["token", "old"])
def test_java_shows_a_token_as_a_password(
    world: World, asking: Asking, require: Require, tmp_path: Path, way: Way, is_old: bool
):
    require("java")
    require("keytool")
    if shutil.which("javac") is None:
        pytest.skip("this Java runs no source files: default-jdk-headless does")
    since = asking.gateway.mark()
    store = tmp_path / "store"
    importing = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(world.pki.ca_file), "-keystore"]
    world.run([*importing, str(store), "-storepass", "changeit"], Way.BASE)
    token = CLUSTER.token(exp=1_700_000_000) if is_old else CLUSTER.token()
    options = [
        f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit",
        "-Djdk.http.auth.tunneling.disabledSchemes=", "-DproxyUser=anything", f"-DproxyPassword={token}",
    ]  # fmt: skip
    for scheme in ("http", "https"):
        options += [f"-D{scheme}.proxyHost=127.0.0.1", f"-D{scheme}.proxyPort={asking.port}"]
    url = world.url(way, Outcome.ALLOWED, "/hello")
    ended = world.run(["java", *options, str(PROGRAMS / "Get.java"), url], Way.BASE)
    if is_old:
        assert ended.status != 0, ended.output
        asking.gateway.wait_for_record(since=since, status=407, reason="credentials_refused")
        return
    assert ended.status == 0, ended.output
    assert GREETING in ended.output
    record = asking.gateway.wait_for_record(since=since, reason="-")
    assert (record["namespace"], record["service_account"]) == ("team", "robot")


@pytest.fixture(scope="module")
def go_client(tmp_path_factory, require: Require) -> str:
    """The path of a program of Go: it is built once, with all of its HTTP client, which takes half a minute."""
    require("go")
    folder = tmp_path_factory.mktemp("go")
    environment = os.environ | {"GOCACHE": str(folder / "cache"), "GOTOOLCHAIN": "local", "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-o", str(folder / "get"), str(PROGRAMS / "get.go")], env=environment, check=True)
    return str(folder / "get")


@pytest.mark.nightly
@pytest.mark.parametrize("way", [Way.HTTP, Way.TLS])
def test_go_takes_the_token_from_the_url_of_the_proxy(world: World, asking: Asking, go_client: str, way: Way):
    since = asking.gateway.mark()
    url = world.url(way, Outcome.ALLOWED, "/hello")
    ended = world.run([go_client, url], way, **asking.proxy("anything", CLUSTER.token()))
    assert ended.status == 0, ended.output
    assert asking.gateway.wait_for_record(since=since, reason="-")["service_account"] == "robot"
    ended = world.run([go_client, url], way, **asking.proxy("anything", CLUSTER.token(exp=1_700_000_000)))
    assert ended.status != 0
    assert "the token expired" in ended.output


def test_no_credential_is_in_the_log_nor_at_the_origin(world: World, asking: Asking, require: Require):
    require("curl")
    token = CLUSTER.token()
    url = world.url(Way.HTTP, Outcome.ALLOWED, "/headers")
    ended = world.run(["curl", "-sS", url], Way.HTTP, **asking.proxy("anything", token))
    assert "uthorization" not in ended.output
    assert token[:40] not in ended.output
    assert token[-40:] not in str(asking.gateway.records) + asking.gateway.stderr
