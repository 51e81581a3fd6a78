"""HTTP and SOCKS5 over Unix sockets: the real process, with one worker and with two."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, get
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import WAIT_S, wait_until

HOST = "origin.egress.test"


def on_socket(path: Path, listener: m.Manifest, name: str = "gw", query: str = "?mode=0660") -> m.Manifest:
    gateway = m.gateway(listener, name=name)
    gateway["spec"]["addresses"] = [{"type": "egressproxy.io/UnixSocket", "value": f"unix://{path}{query}"}]
    return gateway


def client(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(WAIT_S)
    sock.connect(str(path))
    return sock


def status(gateway: GatewayProcess, name: str) -> dict[str, Any]:
    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways/{name}"
    found: dict[str, Any] = json.loads(gateway.admin(path)[1])["status"]
    return found


def test_a_forward_proxy_on_a_unix_socket(tmp_path: Path):
    path = tmp_path / "proxy.sock"
    with Origin() as origin, NameServer({HOST: ["127.0.0.1"]}) as dns:
        objects = [on_socket(path, m.forward_listener(3128)), m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK)]
        gateway = GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", "2"]).start()
        try:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
            with client(path) as sock:
                assert ask(sock, get(HOST, origin.port)) == (200, b"ok")
                assert ask(sock, get("denied.egress.test", origin.port))[0] == 403
            record = gateway.wait_for_record(authority=f"{HOST}:{origin.port}")
            assert record["client"] == f"uid-{os.getuid()}:{os.getpid()}"
            with client(path) as sock:  # a tunnel between a Unix socket and TCP
                sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}:{origin.port}\r\n\r\n".encode())
                assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
                assert ask(sock, get(HOST, origin.port, absolute=False)) == (200, b"ok")
            gateway.wait_for_record(kind="tunnel", reason="-")
            address = status(gateway, "gw")["addresses"]
            assert address == [{"type": "egressproxy.io/UnixSocket", "value": f"unix://{path}?mode=0660"}]
        finally:
            gateway.stop()
        assert not path.exists()


def test_curl_speaks_http_and_socks_over_unix_sockets(tmp_path: Path, shared: SharedGateway):
    reverse, socks = tmp_path / "http.sock", tmp_path / "socks.sock"
    with Origin() as origin, NameServer({HOST: ["127.0.0.1"]}) as dns:
        objects = [
            on_socket(reverse, m.http_listener(8080)),
            on_socket(socks, {"name": "socks", "port": 1080, "protocol": "egressproxy.io/socks5"}, name="other"),
            m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK, name="other", target="other"),
            m.backend("a", HOST, origin.port),
            m.http_route("r", m.prefix_rule("/", "a")),
        ]
        with shared.serving(objects):
            base = ["curl", "--silent", "--show-error", "--fail", "--max-time", "20"]
            direct = [*base, "--unix-socket", str(reverse), "http://anything/"]
            proxied = [*base, "--proxy", f"socks5h://localhost{socks}", f"http://{HOST}:{origin.port}/"]
            for command in (direct, proxied):
                done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
                assert done.stdout == b"ok", done.stderr


def test_a_path_belongs_to_the_gateway_that_has_it_first_and_to_one_port(tmp_path: Path, shared: SharedGateway):
    path = tmp_path / "a.sock"
    first = on_socket(path, m.http_listener(8080), name="first")
    first["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    second = on_socket(path, m.http_listener(8081), name="second", query="")
    both = on_socket(tmp_path / "b.sock", m.http_listener(8080), name="both")
    both["spec"]["listeners"].append(m.http_listener(8082, "more"))
    with shared.serving([first, second, both]) as gateway:
        assert "belongs to Gateway agents/first" in str(status(gateway, "second"))
        assert "a Unix socket is one port" in str(status(gateway, "both"))


def test_a_socket_that_a_killed_gateway_has_left_is_replaced(tmp_path: Path):
    path = tmp_path / "a.sock"
    objects = [on_socket(path, m.http_listener(8080))]
    first = GatewayProcess(tmp_path / "one", objects).start()
    os.kill(first.pid, 9)
    first.stop()
    assert path.exists()
    with GatewayProcess(tmp_path / "two", objects), client(path) as sock:
        assert ask(sock, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")[0] == 404


def test_a_gateway_that_goes_takes_its_socket_with_it(tmp_path: Path, shared: SharedGateway):
    path = tmp_path / "a.sock"
    kept = on_socket(tmp_path / "kept.sock", m.http_listener(8080), name="kept")
    with shared.serving([on_socket(path, m.http_listener(8080)), kept]) as gateway:
        assert path.exists()
        gateway.replace([kept])
        os.kill(gateway.pid, signal.SIGHUP)
        wait_until(lambda: not path.exists())
        with client(tmp_path / "kept.sock") as sock:
            assert ask(sock, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")[0] == 404


def test_sockets_are_in_their_folder_and_a_reload_that_puts_one_elsewhere_is_refused(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    here = on_socket(folder / "a.sock", m.http_listener(8080))
    gateway = GatewayProcess(tmp_path / "gw", [here], arguments=["--socket-dir", str(folder)])
    with gateway:
        for elsewhere in (tmp_path / "b.sock", folder / "link" / "b.sock"):
            gateway.replace([here, on_socket(elsewhere, m.http_listener(8081), name="other")])
            os.kill(gateway.pid, signal.SIGHUP)
            gateway.wait_for_diagnostics(f"unix://{elsewhere}?mode=0660 is not in --socket-dir ({folder})")
            assert not (tmp_path / "b.sock").exists()
        with client(folder / "a.sock") as sock:
            assert ask(sock, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")[0] == 404


class Answers(urllib.request.HTTPErrorProcessor):
    """A refusal is an answer, too."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        return response


def test_objects_of_the_api_make_no_socket_but_where_the_operator_says(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    address = {"type": "egressproxy.io/UnixSocket", "value": f"unix://{folder / 'a.sock'}"}
    written = m.gateway(m.http_listener(8080))
    written["spec"]["addresses"] = [address]
    writing = ["--state-dir", str(tmp_path / "state"), "--api-writes"]
    for number, (more, status_, is_there) in enumerate(
        (([], 422, False), (["--socket-dir", str(folder)], 201, True))
    ):  # fmt: skip
        objects = [m.gateway(m.http_listener(free_port()), name="first")]
        with GatewayProcess(tmp_path / str(number), objects, arguments=[*writing, *more]) as gateway:
            url = f"http://127.0.0.1:{gateway.admin_port}/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways"
            request = urllib.request.Request(
                url, json.dumps(written).encode(), {"Content-Type": "application/json"}, method="POST"
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Answers())
            with opener.open(request, timeout=WAIT_S) as answer:
                assert answer.status == status_
                assert ("not in --socket-dir" in answer.read().decode()) is not is_there
            assert (folder / "a.sock").exists() is is_there
