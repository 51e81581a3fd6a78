"""Where uvloop is installed and cannot be imported, the gateway serves on asyncio's loop, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess

pytestmark = pytest.mark.parametrize("how", ["library", "package"])


@pytest.fixture
def environment(tmp_path: Path, how: str) -> dict[str, str]:
    """Of programs that find another uvloop: its library is of another system, or its package raises."""
    package = tmp_path / "installed" / "uvloop"
    package.mkdir(parents=True)
    (package / f"loop{EXTENSION_SUFFIXES[0]}").write_bytes(b"of another system")
    statement = "from .loop import Loop" if how == "library" else "raise RuntimeError('a broken package')"
    (package / "__init__.py").write_text(f"{statement}\n")
    return {"PYTHONPATH": os.pathsep.join([str(package.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}


def test_the_gateway_serves_and_warns_once_of_the_cause(how: str, tmp_path: Path, environment: dict[str, str]):
    forward = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:
        policy = m.policy(["a.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK)
        objects = [m.gateway(m.forward_listener(forward)), policy]
        arguments = ["--workers", "2"]
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments, environment=environment) as gateway:
            gateway.wait_for_diagnostics("event loop: asyncio")
            with client(forward) as sock:
                assert ask(sock, get("a.test", origin.port)) == (200, b"ok")
            assert gateway.metric("egress_build_info", event_loop="asyncio") == 1
            cause = "ImportError: " if how == "library" else "RuntimeError: a broken package"
            assert gateway.stderr.count("uvloop is installed but cannot be imported") == 1
            assert f"warning egressproxy uvloop is installed but cannot be imported ({cause}" in gateway.stderr
            assert "Traceback" not in gateway.stderr


def test_the_version_names_the_loop_that_would_serve(environment: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-m", "egressproxy", "version"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "event loop asyncio)" in done.stdout
