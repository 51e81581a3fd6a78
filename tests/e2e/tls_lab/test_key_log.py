"""Keys of TLS connections are written where the command line says so, and nowhere else."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.tls_lab.authority import issue, server
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

HOST, FRONT = "origin.test", "front.test"
ROOT = issue("Lab Root", is_ca=True)


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as name_server:
        yield name_server


@pytest.mark.parametrize(("option", "workers"), [(True, "1"), (True, "2"), (False, "1")])
def test_keys_are_written_by_the_option_alone(dns: NameServer, tmp_path: Path, option: bool, workers: str):
    pki, port = Pki(), free_port()
    keys, unasked = tmp_path / "keys", tmp_path / "unasked"
    front = pki.issue(FRONT)
    with Origin(context=server(issue(HOST, ROOT))) as origin:
        objects = [
            m.gateway({"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK), m.config_map("ca", {"ca.crt": ROOT.pem}),
            tls_secret("front", chain(front), front.private_key_pem.bytes()),
            m.backend("o", HOST, origin.port, tls=True, ca="ca"), m.http_route("r", m.prefix_rule("/", "o")),
        ]  # fmt: skip
        arguments = ["--workers", workers, *(["--tls-key-log", str(keys)] if option else [])]
        environment = {"SSLKEYLOGFILE": str(unasked)}
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments, environment=environment) as gateway:
            with client(port, pki.client_context(), FRONT) as sock:
                assert ask(sock, get(FRONT, port, absolute=False)) == (200, b"ok")
            if option:
                wait_until(lambda: keys.read_text().count("CLIENT_TRAFFIC_SECRET_0 ") >= 2, "of both connections")
                assert stat.S_IMODE(keys.stat().st_mode) == 0o600
                gateway.wait_for_diagnostics(f"the keys of all TLS connections are written to {keys}")
            else:
                assert "keys of all TLS" not in gateway.stderr
        # aiohttp makes contexts that serve nothing: Python writes a line of comment for them.
        assert not unasked.exists() or "CLIENT" not in unasked.read_text()
        assert keys.exists() is option


def test_a_file_that_others_can_read_is_refused(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.touch(mode=0o644)
    keys.chmod(0o644)
    command = [sys.executable, "-m", "egressproxy", "run", "--tls-key-log", str(keys)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "other users can read the file: chmod 600" in done.stderr
