"""Retries, timeouts and sessions of the real process, with real endpoints of a Service."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.test_workers import two_workers, workers
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import SharedGateway
from tests.support.waiting import wait_until


def service(*ports: int) -> list[m.Manifest]:
    """The Service `pods` with an endpoint on each of these ports of this machine."""
    made = [m.manifest("v1", "Service", "pods", "agents", spec={"ports": [{"port": 80}]})]
    for number, port in enumerate(ports):
        labels = {"kubernetes.io/service-name": "pods"}
        made.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"pods-{number}", "namespace": "agents", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.0.0.1"]}],
                "ports": [{"port": port}],
            }
        )
    return made


def to_pods(listener: int, *ports: int, **rule: Any) -> list[m.Manifest]:
    refs = {"backendRefs": [{"name": "pods", "port": 80}]}
    return [m.gateway(m.http_listener(listener)), m.http_route("route", {**refs, **rule}), *service(*ports)]


def named(name: bytes) -> Callable[[socket.socket], None]:
    """An origin that answers with its name."""

    def serve(sock: socket.socket) -> None:
        while True:
            read_message(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + name)

    return serve


def ask(sock: socket.socket, method: str = "GET", **fields: str) -> tuple[int, bytes, bytes]:
    """A request: status, head and body."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    sock.sendall(f"{method} / HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    head, body = read_message(sock)
    return int(head.split(b" ", 2)[1]), head, body


def test_a_session_holds_over_reloads_and_whatever_worker_serves(tmp_path: Path):
    port = free_port()
    with ExitStack() as stack:
        origins = [stack.enter_context(Origin(named(b"%d" % number))) for number in range(3)]
        ports = [origin.port for origin in origins]
        rule = {"sessionPersistence": {"sessionName": "sid"}}
        gateway = stack.enter_context(two_workers(tmp_path, to_pods(port, *ports, **rule)))
        with client(port) as sock:
            _, head, first = ask(sock)
        found = re.search(rb"Set-Cookie: (sid=[\w-]+); Path=/; HttpOnly; SameSite=Lax\r\n", head)
        assert found is not None
        cookie = found[1].decode()

        def is_kept() -> bool:
            answers = set()
            for _ in range(8):
                with client(port) as sock:
                    status, head, body = ask(sock, Cookie=cookie)
                answers.add((status, body, b"Set-Cookie" in head))
            return answers == {(200, first, False)}

        assert is_kept()
        gateway.replace(to_pods(port, *reversed(ports), timeouts={"request": "9s"}, **rule))
        gateway.wait_for_metric("egress_config_generation", 2)
        assert is_kept()
        for pid in workers(gateway):  # whichever made the token, another serves now
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: pid not in workers(gateway) and gateway.metric("egress_workers") == 2)  # type: ignore[misc]
            assert is_kept()


def test_two_gateways_in_a_row_do_not_multiply_their_retries(shared: SharedGateway, second: SharedGateway):
    inner, outer = free_port(), free_port()
    retry = {"attempts": 3, "codes": [503], "backoff": "10ms"}

    def fails(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with Origin(fails) as origin, NameServer({"a.test": ["127.0.0.1"], "proxy.test": ["127.0.0.1"]}) as names:
        policy = m.policy(dns=names.address, cidrs=ALLOW_LOOPBACK)
        backend = m.backend("a", "a.test", origin.port)
        route = m.http_route("route", m.prefix_rule("/", "a", retry=retry), hostnames=["a.test"])
        behind = [m.gateway(m.forward_listener(inner)), policy, backend, route]
        parent = m.backend("proxy", "proxy.test", inner)
        far = m.backend("a", "a.test", origin.port, parent={"name": "proxy"})
        rule = m.http_route("route", m.prefix_rule("/", "a", retry=retry))
        before = [m.gateway(m.http_listener(outer)), policy, parent, far, rule]
        with (
            second.serving(behind),
            shared.serving(before),
            client(outer) as sock,
        ):
            assert ask(sock)[0] == 503
        assert origin.accepted == 4
