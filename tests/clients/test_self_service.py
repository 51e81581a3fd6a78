"""egress.internal by way of the proxy, asked by curl, by a client of the MCP SDK and by a browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_mcp import PYTHON, require_sdk
from tests.clients.test_table import PROGRAMS
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

WORKER = {"cidrs": ["127.0.0.0/8"], "namespace": "agents", "serviceAccount": "worker"}
LIMITS = {"requests": [{"per": "Identity", "limit": 5, "unit": "Hour"}]}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a forward proxy that knows its clients by their address, with two workers."""
    port = free_port()
    objects = [
        m.gateway(m.forward_listener(port)),
        m.policy(["api.example.com"], identity={"address": {"clients": [WORKER]}}, limits=LIMITS),
    ]
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), objects, arguments=["--workers", "2"]):
        yield f"http://127.0.0.1:{port}"


def run(command: list[str], proxy: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "http_proxy": proxy, "HTTP_PROXY": proxy}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_mcp_sdk_calls_the_tools(proxy: str):
    require_sdk()
    seen = json.loads(run([PYTHON, str(PROGRAMS / "mcp_egress.py"), "https://evil.example/"], proxy))
    assert seen["tools"] == ["egress_access", "egress_check"]
    assert seen["access"]["identity"]["name"] == "system:serviceaccount:agents:worker"
    assert seen["access"]["allow"] == [[{"hostnames": ["api.example.com"]}]]
    assert [each["left"] for each in seen["access"]["limits"]] == [5]
    assert (seen["check"]["allowed"], seen["check"]["reason"]) == (False, "destination_not_allowed")


@pytest.mark.parametrize("through", [[], ["--proxytunnel"]])
def test_curl_reads_json(proxy: str, through: list[str]):
    told = json.loads(run(["curl", "-sS", *through, "http://egress.internal/access"], proxy))
    assert told["listener"]["kind"] == "forward"


def test_a_browser_shows_the_page(proxy: str, tmp_path: Path):
    browser = shutil.which("chromium")
    if browser is None:
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", f"--proxy-server={proxy}"]
    url = "http://egress.internal/?url=https%3A%2F%2Fevil.example%2F%22%3E%3Cimg%3E"
    shown = run([browser, *options, "--dump-dom", url], proxy)
    assert "system:serviceaccount:agents:worker" in shown
    assert "<strong>denied (destination_not_allowed)</strong>" in shown
    assert "<img" not in shown
