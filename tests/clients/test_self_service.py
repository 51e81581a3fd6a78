"""egress.internal by way of the proxy, asked by curl, by a client of the MCP SDK and by a browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
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


def browser(tmp_path: Path, proxy: str) -> list[str]:
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", f"--proxy-server={proxy}"]
    return [found, *options]


def test_a_browser_shows_the_page(proxy: str, tmp_path: Path):
    url = "http://egress.internal/?url=https%3A%2F%2Fevil.example%2F%22%3E%3Cimg%3E"
    shown = run([*browser(tmp_path, proxy), "--dump-dom", url], proxy)
    assert "system:serviceaccount:agents:worker" in shown
    assert '<strong class="bad">denied (destination_not_allowed)</strong>' in shown
    assert "<img" not in shown


@pytest.mark.parametrize(
    ("options", "background"),
    [([], (246, 246, 248)), (["--force-dark-mode", "--blink-settings=preferredColorScheme=0"], (17, 17, 19))],
    ids=["light", "dark"],
)
def test_the_page_has_its_colours_on_a_telephone_by_day_and_by_night(
    proxy: str, tmp_path: Path, options: list[str], background: tuple[int, int, int]
):
    """The style is in the page, and its Content-Security-Policy lets it pass."""
    file = tmp_path / "page.png"
    size = ["--window-size=390,800", "--hide-scrollbars", f"--screenshot={file}"]
    run([*browser(tmp_path, proxy), *size, *options, "http://egress.internal/"], proxy)
    assert first_pixel(file.read_bytes()) == background


def first_pixel(png: bytes) -> tuple[int, int, int]:
    """Red, green and blue. Source: PNG, third edition, sections 5.3, 9 (no filter changes the first pixel)."""
    data, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += size + 12
    row = zlib.decompressobj().decompress(data, 4)
    return row[1], row[2], row[3]
