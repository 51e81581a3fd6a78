"""The gateway without its Kubernetes-shaped API: an installation that lacks the package serves traffic all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import egressproxy
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.builds import of_sources
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of programs that find another egressproxy: all of it but `egressproxy.kubeapi`."""
    installed = tmp_path / "installed" / "egressproxy"
    shutil.copytree(Path(egressproxy.__file__).parent, installed, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(installed / "kubeapi")
    with open(installed / "__init__.py", "a") as file:  # an installation for developers would find it elsewhere
        file.write("import sys\nsys.meta_path[:] = [each for each in sys.meta_path if 'ditable' not in repr(each)]\n")
    return {"PYTHONPATH": str(tmp_path / "installed")}


@of_sources  # it copies what is not compiled
def test_it_serves_traffic_health_metrics_and_reloads(tmp_path: Path, environment: dict[str, str]):
    forward = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:

        def objects(name: str) -> list[m.Manifest]:
            policy = m.policy([name], dns=dns.address, cidrs=ALLOW_LOOPBACK)
            return [m.gateway(m.forward_listener(forward)), policy]

        arguments = ["--workers", "2"]
        with GatewayProcess(
            tmp_path / "gw", objects("a.test"), arguments=arguments, environment=environment
        ) as gateway:
            with client(forward) as sock:
                assert ask(sock, get("a.test", origin.port)) == (200, b"ok")
                assert ask(sock, get("b.test", origin.port))[0] == 403
            gateway.replace(objects("b.test"))
            gateway.wait_for_metric("egress_config_generation", 2)
            with client(forward) as sock:
                assert ask(sock, get("b.test", origin.port)) == (200, b"ok")
            assert gateway.admin("/healthz") == (200, "ok\n")
            assert gateway.admin("/readyz") == (200, "ok\n")
            assert gateway.admin("/model")[0] == 200
            assert "/apis" not in gateway.admin("/")[1]
            assert [gateway.admin(path)[0] for path in ("/apis", "/config", "/openapi/v2")] == [404] * 3
            assert gateway.stop() == 0


@of_sources
def test_what_is_written_needs_it(tmp_path: Path, environment: dict[str, str]):
    command = [str(Path(sys.executable).with_name("egressproxy")), "run", "--admin", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path / "state")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 1
    assert "--state-dir: this installation has no package egressproxy.kubeapi to write with" in done.stderr
