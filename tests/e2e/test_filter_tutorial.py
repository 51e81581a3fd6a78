"""docs/filters/tutorial.md as its reader would work through it: every file, every command, without a network.

The package is built with setuptools as its pyproject.toml asks for; where that is not installed the test is skipped.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.net import free_port
from tests.support.waiting import WAIT_S, wait_until

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "filters" / "tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
REFUSED = "HTTP/1.1 403 Denied: no cost center pays for this namespace"
COMMANDS = [line[2:] for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in text.splitlines()]


def test_every_command_of_the_tutorial_does_what_it_says(tmp_path: Path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "PYTEST"))},
        "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",  # 0 is no isolation
    }  # fmt: skip
    said = {}
    for command in COMMANDS:
        if command == "python3 -m venv .venv":
            venv.create(tmp_path / ".venv", with_pip=True)
        elif " install ../egressproxy " in command:  # this checkout, and what it needs is here already
            (site,) = (tmp_path / ".venv").glob("lib/python*/site-packages")
            here = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
            # In front of what the venv brings: an older setuptools.
            (site / "here.pth").write_text(f"import sys; sys.path[:0] = {here!r}\n")
        else:
            done = subprocess.run(
                shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            said[command] = done.stdout
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["acme_filters-1.0-py3-none-any.whl"]
    assert "4 passed" in next(text for command, text in said.items() if "pytest" in command)
    (described,) = [text for command, text in said.items() if " filters " in command]
    assert '"package acme-filters 1.0"' in described
    assert '"centers"' in described
    assert asked(tmp_path, environment, FILES["config/gateway.yaml"]) == REFUSED
    let_through = FILES["config/gateway.yaml"].replace('{agents: "4711"}', '{"-": "4712"}')
    assert asked(tmp_path, environment, let_through) != REFUSED


def asked(folder: Path, environment: dict[str, str], manifest: str) -> str:
    """The first line that the client of the page gets from a gateway with this manifest."""
    port = free_port()
    (folder / "config" / "gateway.yaml").write_text(manifest.replace("3128", str(port)))
    options = ["run", "-c", "config", "--admin", "off", "--access-log", "off"]
    with subprocess.Popen([".venv/bin/python", "-m", "egressproxy", *options], cwd=folder, env=environment) as gateway:
        try:
            wait_until(lambda: is_listening(port))
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
                client.sendall(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
                return client.makefile("rb").readline().decode().rstrip()
        finally:
            gateway.terminate()


def is_listening(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_page_shows_all_files_and_commands():
    assert f"    {REFUSED}\n" in PAGE
    assert set(FILES) == {
        "acme_filters/__init__.py",
        "pyproject.toml",
        "tests/test_cost_center.py",
        "config/gateway.yaml",
    }
    assert len(COMMANDS) == 7
