"""config/filters beside the configuration of docs/start.md, as its reader would try it."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import yaml

from tests.e2e.world import Origin, client, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess

ROOT = Path(__file__).resolve().parents[2]


def first_configuration(forward: int, http: int) -> list[m.Manifest]:
    """The configuration of docs/start.md on ports that are free here."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    found = re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    objects = list(yaml.safe_load_all(found[1]))
    for listener in objects[0]["spec"]["listeners"]:
        listener["port"] = {"forward": forward, "http": http}[listener["name"]]
    return objects


def ask(port: int, target: str, team: str) -> tuple[bytes, bytes]:
    with client(port) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Team: {team}\r\n\r\n".encode())
        return read_message(sock)


def test_the_example_filter_works_beside_the_configuration_of_the_first_steps(tmp_path: Path):
    forward, http = free_port(), free_port()
    heads: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        heads.append(read_message(sock)[0])
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve) as origin:
        here = {
            "apiVersion": "egressproxy.io/v1alpha1",
            "kind": "Backend",
            "metadata": {"name": "here", "namespace": "agents"},
            "spec": {"destination": {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [{"number": origin.port}]}},
        }
        local = m.http_route("here", m.prefix_rule("/here", "here"), parent="egress", section="http")
        gateway = GatewayProcess(tmp_path, [*first_configuration(forward, http), here, local])
        for name in ("stamp.py", "stamp.yaml"):
            shutil.copy(ROOT / "config" / "filters" / name, gateway.config)
        with gateway:
            head, body = ask(http, "/here", "research")
            assert body == b"ok"
            assert b"\r\nx-paid-by: 4711\r\n" in head.lower()
            assert b"\r\nx-cost-center: 4711\r\n" in heads[0].lower()

            head, body = ask(http, "/here", "strangers")
            assert head.startswith(b"HTTP/1.1 403 Denied: the team in X-Team is not known")
            assert b"data, research" in body
            assert len(heads) == 1

            assert ask(forward, "http://elsewhere.test/", "research")[0].startswith(b"HTTP/1.1 403 ")

            filter_file = gateway.config / "stamp.py"
            filter_file.write_text(filter_file.read_text().replace("the team in X-Team is not known", "who is that"))
            gateway.wait_for_metric("egress_config_generation", 2)
            assert ask(http, "/here", "strangers")[0].startswith(b"HTTP/1.1 403 Denied: who is that")
