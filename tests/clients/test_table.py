"""Real client programs, each by every way through the gateway that it knows, allowed, denied and with the origin down.

Asserted: the client succeeds or fails as it should, it shows what it can of a denial, and the access log says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import Outcome, Require, Way, World
from tests.support.origins.basic import GREETING
from tests.support.origins.packages import PACKAGE

PROGRAMS = Path(__file__).resolve().parent / "programs"
ALL, BASE_ALONE = (Way.HTTP, Way.TLS, Way.BASE), (Way.BASE,)
PROGRAM, PYTHON, NODE = "", "python:", "node:"
#: What a client shows of a denial: the whole sentence, from the status phrase (REASON) or from the body (BODY).
REASON, BODY = "<reason>", "<body>"
#: What the scripts print when everything came back unchanged.
SAME, STREAM = "unchanged", "stream: three small words"


@dataclass(frozen=True, slots=True)
class Client:
    """One row. `shows` is what the client prints of a denied request, `shows_tunnel` of a refused CONNECT.

    `command` gets the URL and a fresh folder. `prints` is what it prints when all is well.
    """

    name: str
    kind: str
    path: str
    command: Callable[[str, Path], list[str]]
    prints: str
    shows: str
    shows_tunnel: str
    ways: tuple[Way, ...] = ALL


def script(name: str) -> Callable[[str, Path], list[str]]:
    """A program of our own, for a client that is a library."""
    path = PROGRAMS / f"{name}.py"
    if path.exists():
        return lambda url, _folder: [sys.executable, str(path), url]
    return lambda url, _folder: ["node", str(path.with_suffix(".cjs")), url]


def curl(url: str, _folder: Path) -> list[str]:
    return ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "30", url]


def wget(url: str, _folder: Path) -> list[str]:
    return [
        "wget",
        "--no-verbose",
        "--tries=1",
        "--timeout=60",
        "--ca-certificate=../ca.crt",
        "--output-document=-",
        url,
    ]


def git_clone(url: str, folder: Path) -> list[str]:
    return ["git", "clone", "--verbose", url, str(folder / "clone")]


def pip_download(url: str, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"]
    trust = ["--trusted-host", url.split("/")[2]] if url.startswith("http:") else []
    return [*command, "--retries", "0", *trust, "--index-url", url, "--dest", str(folder), PACKAGE]


def npm_pack(url: str, folder: Path) -> list[str]:
    options = [
        "--cafile=../ca.crt",
        "--fetch-retries=0",
        "--replace-registry-host=always",
        f"--cache={folder / 'cache'}",
        "--registry",
        url,
    ]
    return ["npm", "pack", PACKAGE, f"--pack-destination={folder}", *options]


# fmt: off
CLIENTS = [
    #      name          kind      path                 command                  all well  denied   CONNECT refused
    Client("curl",       PROGRAM,  "/hello",            curl,                    GREETING, BODY,    "403"),
    Client("wget",       PROGRAM,  "/hello",            wget,                    GREETING, REASON,  REASON),
    Client("git",        PROGRAM,  "/git/project.git",  git_clone,               "Cloning", "403",  "403"),
    Client("pip",        PYTHON,   "/simple/",          pip_download,            "Saved",  PACKAGE, PACKAGE),
    Client("requests",   PYTHON,   "/hello",            script("requests_get"),  GREETING, REASON,  REASON),
    Client("urllib3",    PYTHON,   "/hello",            script("urllib3_get"),   GREETING, REASON,  REASON),
    Client("httpx",      PYTHON,   "/hello",            script("httpx_get"),     GREETING, REASON,  REASON),
    Client("aiohttp",    PYTHON,   "/hello",            script("aiohttp_get"),   GREETING, REASON,  REASON),
    Client("boto3",      PYTHON,   "/s3",               script("boto3_objects"), SAME,     "403",   "proxy"),
    Client("openai",     PYTHON,   "/openai/v1",        script("openai_chat"),   STREAM,   BODY,    "Connection error"),
    Client("anthropic",  PYTHON,   "/anthropic",        script("anthropic_chat"), STREAM,  BODY,    "Connection error"),
    Client("websockets", PYTHON,   "/ws",               script("websockets_echo"), SAME,   "403",   "403"),
    Client("undici",     NODE,     "/hello",            script("undici_get"),    GREETING, "403",   "403"),
    Client("axios",      NODE,     "/hello",            script("axios_get"),     GREETING, "403",   "403"),
    Client("npm",        PROGRAM,  "/npm/",             npm_pack,                ".tgz",   REASON,  REASON),
    Client("fetch",      NODE,     "/hello",            script("fetch_get"),     GREETING, REASON,  "", BASE_ALONE),
]
# fmt: on

#: These take a second or more of the processor for a single request: by one way each here, the others are `slow`.
LONG = {"pip", "boto3", "openai", "anthropic", "npm"}


def row(client: Client, way: Way) -> Any:
    is_slow = client.name in LONG and way is not Way.TLS
    return pytest.param(client, way, id=f"{client.name}-{way.value}", marks=[pytest.mark.nightly] if is_slow else [])


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.value)
@pytest.mark.parametrize(("client", "way"), [row(client, way) for client in CLIENTS for way in client.ways])
def test_a_client_is_served_denied_or_told(
    world: World, require: Require, node_modules: str, tmp_path: Path, client: Client, way: Way, outcome: Outcome
):
    require(client.kind + client.name)
    since = world.gateway.mark()
    command = client.command(world.url(way, outcome, client.path), tmp_path)

    ended = world.run(command, way, folder=world.home, NODE_PATH=node_modules, PIP_CONFIG_FILE="/dev/null")

    if outcome is Outcome.ALLOWED:
        assert ended.status == 0, ended.output
        assert client.prints in ended.output
    else:
        assert ended.status != 0, ended.output
        if outcome is Outcome.DENIED:
            shown = client.shows_tunnel if way is Way.TLS else client.shows
            sentence = world.denial(way)
            expected = {REASON: f"Denied: {sentence}", BODY: sentence}.get(shown, shown)
            assert expected in ended.output.replace('\\"', '"')  # as it stands in JSON, or not
    wanted = world.expected_record(way, outcome)
    if client.path == "/ws" and outcome is Outcome.ALLOWED:
        wanted["status"] = world.websocket_status(way)
    record = world.gateway.wait_for_record(since=since, **wanted)
    assert record["request_id"]
