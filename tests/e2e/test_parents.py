"""Through a corporate proxy with a password: the real process, and proxies that let nobody in without."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message
from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import SharedGateway
from tests.support.scripted_proxy import BasicProxy

pytestmark = pytest.mark.timeout(90)
PASSWORD = "c0rrect-horse"
PARENT = {"name": "corp", "credentialsRef": {"name": "login"}, "allowPlaintext": True}


def through(port: int, proxy_port: int, dns: str, password: str = PASSWORD) -> list[Manifest]:
    return [
        m.gateway(m.forward_listener(port)),
        m.policy(["api.test", "files.test"], dns=dns, cidrs=ALLOW_LOOPBACK, parent=PARENT),
        m.backend("corp", "proxy.corp.test", proxy_port),
        m.secret("login", {"username": "robot", "password": password}, kind="kubernetes.io/basic-auth"),
    ]


def tunnel(sock: socket.socket, host: str, port: int) -> int:
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    return int(read_message(sock)[0].split(b" ", 2)[1])


def test_two_hosts_through_a_proxy_with_a_password_that_changes(two_workers: SharedGateway):
    forward = free_port()
    with (
        NameServer({"proxy.corp.test": ["127.0.0.1"]}) as dns,  # and no other: the proxy resolves what it is asked for
        Origin() as origin,
        BasicProxy("robot", PASSWORD) as proxy,
    ):
        objects = through(forward, proxy.port, dns.address)
        with two_workers.serving(objects) as gateway:
            with client(forward) as sock:
                assert ask(sock, get("api.test", origin.port)) == (200, b"ok")
            with client(forward) as sock:
                assert tunnel(sock, "files.test", origin.port) == 200
                assert ask(sock, get("files.test", origin.port, absolute=False)) == (200, b"ok")
            with client(forward) as sock:
                assert ask(sock, get("other.test", origin.port))[0] == 403
            assert [line.split(b" ")[0] for line in proxy.asked] == [b"GET", b"CONNECT"]
            assert proxy.refused == 0
            gateway.mark()  # of all workers
            for entry in ("api.test", "files.test"):
                assert gateway.metric("egress_requests_total", policy="agents/default", entry=entry, route="-") == 1
            assert gateway.metric("egress_denied_total", policy="agents/default", entry="-") == 1
            assert gateway.wait_for_record(kind="tunnel")["entry"] == "files.test"

            proxy.allow("robot", "changed-horse")
            with client(forward) as sock:
                sock.sendall(get("api.test", origin.port))
                head, body = read_message(sock)
                assert head.startswith(b"HTTP/1.1 502 ")
                assert b"proxy-authenticate" not in head.lower()
                assert b"correct username and password in Secret agents/login" in body
            record = gateway.wait_for_record(status=502)
            assert (record["reason"], record["authority"]) == ("parent_auth", f"api.test:{origin.port}")

            gateway.reload(through(forward, proxy.port, dns.address, "changed-horse"))
            with client(forward) as sock:
                assert tunnel(sock, "api.test", origin.port) == 200

            question = f"/explain?method=CONNECT&url=api.test:{origin.port}"
            said = gateway.admin(question)[1]
            assert "Secret agents/login" in said
            assert "EgressPolicy agents/default" in said
            api = "/api/v1/namespaces/agents/secrets/login"
            shown = [said, gateway.admin("/metrics")[1], gateway.admin(api)[1], gateway.stderr, str(gateway.records)]
            for password in (PASSWORD, "changed-horse"):
                basic = base64.b64encode(f"robot:{password}".encode()).decode()
                secret = base64.b64encode(password.encode()).decode()
                for text in shown:
                    assert not [each for each in (password, basic, secret) if each in text]


# --- a real proxy --------------------------------------------------------------------------------------------------
def needs(*names: str) -> None:
    """As for clients: skipped where it is not installed, unless EGRESSPROXY_CLIENTS=required."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing and os.environ.get("EGRESSPROXY_CLIENTS") == "required":
        pytest.fail(f"{missing[0]} is not installed")
    if missing:
        pytest.skip(f"{missing[0]} is not installed")


@contextmanager
def tinyproxy(folder: Path, password: str) -> Iterator[int]:
    """Gives its port. It resolves names as the machine does, so it is asked for addresses."""
    port = free_port()
    config = folder / "tinyproxy.conf"
    config.write_text(
        f"Port {port}\nListen 127.0.0.1\nTimeout 30\nMaxClients 20\nAllow 127.0.0.1\nBasicAuth robot {password}\n"
        f'LogFile "{folder}/tinyproxy.log"\nPidFile "{folder}/tinyproxy.pid"\n'
    )
    process = subprocess.Popen(
        ["tinyproxy", "-d", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, "tinyproxy has ended"
                assert time.monotonic() < deadline, "tinyproxy does not listen"
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize(
    ("password", "plain", "connect"), [(PASSWORD, 200, 200), ("another", 401, 502), ("", 502, 502)]
)
def test_tinyproxy_lets_in_whoever_shows_the_password(
    password: str, plain: int, connect: int, tmp_path: Path, shared: SharedGateway
):
    """It says 407 where nothing is shown, and 401 of a wrong password, which in a plain request may be the origin's."""
    needs("tinyproxy")
    forward = free_port()
    with Origin() as origin, tinyproxy(tmp_path, PASSWORD) as proxy_port:
        ip = {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [{"number": proxy_port}]}
        allow = {"allow": [{"cidrs": ALLOW_LOOPBACK}]}
        objects = [
            m.gateway(m.forward_listener(forward)),
            m.policy(cidrs=ALLOW_LOOPBACK, destinations=allow, parent=PARENT if password else {"name": "corp"}),
            m.manifest(f"{m.OURS}/v1alpha1", "Backend", "corp", "agents", spec={"destination": ip}),
            m.secret("login", {"username": "robot", "password": password}),
        ]
        with shared.serving(objects) as gateway:
            with client(forward) as sock:
                assert ask(sock, get("127.0.0.1", origin.port))[0] == plain
            with client(forward) as sock:
                assert tunnel(sock, "127.0.0.1", origin.port) == connect
                if connect == 200:
                    assert ask(sock, get("127.0.0.1", origin.port, absolute=False)) == (200, b"ok")
            gateway.mark()
            assert {record["reason"] for record in gateway.records if record["status"] == 502} == (
                set() if password == PASSWORD else {"parent_auth"}
            )
