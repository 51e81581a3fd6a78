"""The world that client programs run in, once for all of them, and the programs that have to be installed first."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.world import Require, World

ROOT = Path(__file__).resolve().parents[2]
NODE_CLIENTS = ROOT / ".cache" / "node-clients"
#: Versions that run on Node 18 and later.
NODE_PACKAGES = {"undici": "^6.19.0", "axios": "^1.7.0"}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("clients"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def node_modules() -> str:
    """The folder with undici and axios, for NODE_PATH; empty where they cannot be installed."""
    folder = NODE_CLIENTS / "node_modules"
    NODE_CLIENTS.mkdir(parents=True, exist_ok=True)
    with open(NODE_CLIENTS / ".lock", "w") as lock:  # one process installs, and those beside it find what it did
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).is_dir() for name in NODE_PACKAGES) and shutil.which("npm"):
            (NODE_CLIENTS / "package.json").write_text('{"private": true}', encoding="utf-8")
            wanted = [f"{name}@{version}" for name, version in NODE_PACKAGES.items()]
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *wanted]
            subprocess.run(command, cwd=NODE_CLIENTS, timeout=110, check=False, capture_output=True)
        return str(folder) if all((folder / name).is_dir() for name in NODE_PACKAGES) else ""


@pytest.fixture(scope="session")
def require(node_modules: str) -> Require:
    """Skip where a client is not installed: a program, a Python module ("python:NAME") or a Node package ("node:NAME").

    With EGRESSPROXY_CLIENTS=required a missing client is a failure, so that a pipeline does not pass by skipping.
    """

    def check(client: str) -> None:
        kind, _, name = client.rpartition(":")
        if kind == "python":
            found = importlib.util.find_spec(name) is not None
        elif kind == "node":
            found = shutil.which("node") is not None and (name == "fetch" or bool(node_modules))
        else:
            found = shutil.which(name) is not None
        if found:
            return
        message = f"{client} is not installed and cannot be installed here"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(message)
        pytest.skip(message)

    return check
