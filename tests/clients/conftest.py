"""The world that client programs run in, once for all of them, and the programs that have to be installed first."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.clients.world import Require, World

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
#: Versions that run on Node 18 and later.
NODE_PACKAGES = {"undici": "^6.19.0", "axios": "^1.7.0"}
OIDC_PROVIDER = {"oidc-provider": "^8.8.1"}
#: Agents, 760 MB: of each the version that docs/clients.md names, since every week has another one. Gemini CLI needs
#: Node 20.
AGENTS = {"@anthropic-ai/claude-code": "2.1.197", "@openai/codex": "0.171.0", "@google/gemini-cli": "0.61.0"}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("clients"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def node_modules() -> str:
    """The folder with undici and axios, for NODE_PATH; empty where they cannot be installed."""
    return _installed("node-clients", NODE_PACKAGES)


@pytest.fixture(scope="session")
def agents() -> str:
    """The folder with the programs of AGENTS; empty where they cannot be installed."""
    modules = _installed("agents", AGENTS)
    return f"{modules}/.bin" if modules else ""


@pytest.fixture(scope="session")
def oidc_provider() -> str:
    """The folder with a provider that the OpenID Foundation has certified; empty where it cannot be installed."""
    return _installed("oidc-provider", OIDC_PROVIDER)


def _installed(name: str, packages: Mapping[str, str]) -> str:
    """The node_modules with these packages, in these versions, in a folder of this name; empty where there is none."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps({"private": True, "dependencies": packages})
    has_all = folder / ".installed"
    with open(folder / ".lock", "w") as lock:  # one process installs, and those beside it find what it did
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_here = has_all.is_file() and has_all.read_text(encoding="utf-8") == wanted
        if not is_here and shutil.which("npm"):
            (folder / "package.json").write_text(wanted, encoding="utf-8")
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(command, cwd=folder, timeout=240, check=False, capture_output=True)
            is_here = done.returncode == 0
            if is_here:
                has_all.write_text(wanted, encoding="utf-8")
        return str(folder / "node_modules") if is_here else ""


@pytest.fixture(scope="session")
def require(request: pytest.FixtureRequest, node_modules: str) -> Require:
    """Skip where a client is not installed: a program, a Python module ("python:NAME"), a Node package ("node:NAME") or
    an agent ("agent:NAME").

    With EGRESSPROXY_CLIENTS=required a missing client is a failure, so that a pipeline does not pass by skipping.
    """

    def check(client: str) -> None:
        kind, _, name = client.rpartition(":")
        if kind == "python":
            found = importlib.util.find_spec(name) is not None
        elif kind == "node":
            found = shutil.which("node") is not None and (name == "fetch" or bool(node_modules))
        elif kind == "agent":
            found = shutil.which(name, path=request.getfixturevalue("agents")) is not None
        else:
            found = shutil.which(name) is not None
        if found:
            return
        message = f"{client} is not installed and cannot be installed here"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(message)
        pytest.skip(message)

    return check
