"""Real clients behind `egressproxy run --`: nothing else tells them of the gateway, or of the CA of opened tunnels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_interception import OpenedWorld
from tests.clients.test_table import BODY, CLIENTS, PROGRAMS, REASON, Client
from tests.clients.world import DENIED, ORIGIN, Ended, Outcome, Require, Way
from tests.support.origins.basic import GREETING
from tests.support.waiting import WAIT_S

EGRESSPROXY = str(Path(sys.executable).with_name("egressproxy"))
#: They have a test below; or know no proxy, or ask for an upgrade, which is logged in another way.
OTHERS = {"wget", "npm", "fetch", "websockets"}


class WrappedWorld(OpenedWorld):
    """Names, origins and manifests; each command has a gateway of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gateway.stop()
        self._log = folder / "wrapped.log"

    def wrapped(self, command: list[str], *options: str, **more: str) -> tuple[Ended, list[dict[str, Any]]]:
        """Run a command behind `egressproxy run`: how it ended, and what the access log has of it."""
        self._log.unlink(missing_ok=True)
        ours = [EGRESSPROXY, "run", "--config", str(self.gateway.config), "--listener", "forward"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8", **more}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        done = subprocess.run(
            [*ours, "--access-log", str(self._log), *options, "--", *command],
            cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=WAIT_S, check=False,
        )  # fmt: skip
        records = [json.loads(line) for line in self._log.read_text().splitlines()]
        return Ended(done.returncode, done.stdout.decode("utf-8", "replace")), records

    def judged(self, outcome: Outcome, ended: Ended, records: list[dict[str, Any]], prints: str, shows: str) -> None:
        """What each client has to come to."""
        host = DENIED if outcome is Outcome.DENIED else ORIGIN
        authority = f"{host}:{self.origin.tls_port}"
        of_host = [each for each in records if each["authority"] == authority and each["kind"] == "request"]
        if outcome is Outcome.ALLOWED:
            assert ended.status == 0, ended.output
            assert prints in ended.output
            assert [each for each in of_host if each["reason"] == "-"], records
        else:
            assert ended.status != 0, ended.output
            assert shows in ended.output.replace('\\"', '"')
            assert {each["reason"] for each in of_host} == {"destination_not_allowed"}, records


@pytest.fixture(scope="module")
def wrapped_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WrappedWorld]:
    made = WrappedWorld(tmp_path_factory.mktemp("wrapped"))
    yield made
    made.close()


outcomes = pytest.mark.parametrize("outcome", [Outcome.ALLOWED, Outcome.DENIED], ids=lambda outcome: outcome.value)


def row(client: Client) -> object:
    marks = [] if client.name in {"curl", "git", "openai"} else [pytest.mark.nightly]
    return pytest.param(client, id=client.name, marks=marks)


@outcomes
@pytest.mark.parametrize("client", [row(each) for each in CLIENTS if Way.TLS in each.ways and each.name not in OTHERS])
def test_a_client_is_served_and_shows_why_it_was_denied(
    wrapped_world: WrappedWorld, require: Require, node_modules: str, tmp_path: Path, client: Client, outcome: Outcome
):
    require(client.kind + client.name)
    world = wrapped_world
    command = client.command(world.url(Way.TLS, outcome, client.path), tmp_path)
    ended, records = world.wrapped(command, NODE_PATH=node_modules, PIP_CONFIG_FILE="/dev/null")
    sentence = world.denial(Way.TLS)
    shows = {REASON: f"Denied: {sentence}", BODY: sentence}.get(client.shows, client.shows)
    world.judged(outcome, ended, records, client.prints, shows)


@outcomes
def test_wget_takes_the_bundle_as_an_option(wrapped_world: WrappedWorld, require: Require, outcome: Outcome):
    require("wget")
    url = wrapped_world.url(Way.TLS, outcome, "/hello")
    script = f'exec wget --no-verbose --tries=1 --ca-certificate="$SSL_CERT_FILE" --output-document=- {url}'
    ended, records = wrapped_world.wrapped(["sh", "-c", script])
    wrapped_world.judged(outcome, ended, records, GREETING, f"Denied: {wrapped_world.denial(Way.TLS)}")


@pytest.mark.nightly
@outcomes
def test_npm_needs_no_option(wrapped_world: WrappedWorld, require: Require, tmp_path: Path, outcome: Outcome):
    require("npm")
    (client,) = [each for each in CLIENTS if each.name == "npm"]
    command = client.command(wrapped_world.url(Way.TLS, outcome, client.path), tmp_path)
    command.remove("--cafile=../ca.crt")
    ended, records = wrapped_world.wrapped(command)
    wrapped_world.judged(outcome, ended, records, ".tgz", f"Denied: {wrapped_world.denial(Way.TLS)}")


@outcomes
def test_java_has_a_trust_store_and_a_proxy(wrapped_world: WrappedWorld, require: Require, outcome: Outcome):
    require("java")
    url = wrapped_world.url(Way.TLS, outcome, "/hello")
    ended, records = wrapped_world.wrapped(["java", str(PROGRAMS / "Get.java"), url])
    wrapped_world.judged(outcome, ended, records, f"HTTP_2 200 {GREETING}", wrapped_world.denial(Way.TLS))


@pytest.mark.nightly
@outcomes
def test_go(wrapped_world: WrappedWorld, tmp_path: Path, outcome: Outcome):
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    built = tmp_path / "get"
    environment = os.environ | {"GOCACHE": str(tmp_path / "cache"), "GOTOOLCHAIN": "local", "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-o", str(built), str(PROGRAMS / "get.go")], env=environment, check=True)
    ended, records = wrapped_world.wrapped([str(built), wrapped_world.url(Way.TLS, outcome, "/hello")])
    wrapped_world.judged(outcome, ended, records, f"200 {GREETING}", wrapped_world.denial(Way.TLS))


@outcomes
def test_cargo_asks_its_registry(wrapped_world: WrappedWorld, tmp_path: Path, outcome: Outcome):
    """The origin has no crates: that it is asked, or denied, is what counts."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").touch()
    manifest = tmp_path / "Cargo.toml"
    dependency = '[dependencies]\nsmall = {version = "1", registry = "ours"}\n'
    manifest.write_text(f'[package]\nname = "a"\nversion = "0.1.0"\nedition = "2021"\n{dependency}')
    index = f"sparse+{wrapped_world.url(Way.TLS, outcome, '/crates/')}"
    ended, records = wrapped_world.wrapped(
        ["cargo", "fetch", "--manifest-path", str(manifest)], CARGO_REGISTRIES_OURS_INDEX=index,
        CARGO_HOME=str(tmp_path / "home"), CARGO_NET_RETRY="0",
        RUSTUP_HOME=os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
    )  # fmt: skip
    assert ended.status != 0
    is_allowed = outcome is Outcome.ALLOWED
    wanted = (404, "-") if is_allowed else (403, "destination_not_allowed")
    asked = {(each["status"], each["reason"]) for each in records if each["kind"] == "request"}
    assert asked == {wanted}, (ended.output, records)
    assert ("config.json not found in registry" if is_allowed else wrapped_world.denial(Way.TLS)) in ended.output


def test_the_sdk_takes_the_base_url_from_the_environment(wrapped_world: WrappedWorld, require: Require):
    require("python:openai")
    world = wrapped_world
    url = world.url(Way.BASE, Outcome.ALLOWED, "/openai/v1")
    program = (
        "import openai\nasked = dict(model='gpt-test', messages=[{'role': 'user', 'content': 'three small words'}])\n"
        "print(openai.OpenAI(api_key='none').chat.completions.create(**asked).choices[0].message.content)"
    )
    ended, records = world.wrapped([sys.executable, "-c", program], "--base-url", f"openai={url}")
    assert (ended.status, "three small words" in ended.output) == (0, True), ended.output
    assert [each["listener"] for each in records] == ["http"]
