"""Retries, timeouts and sessions of the real process, with real endpoints of a Service."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.test_workers import two_workers, workers
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import WAIT_S, wait_until


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


def resets(sock: socket.socket) -> None:
    """Takes the request, and resets the connection."""
    read_head(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_requests_find_the_endpoint_that_serves_among_those_that_refuse_and_reset(shared: SharedGateway):
    port = free_port()
    with (
        Origin() as healthy,
        Origin(resets) as broken,
        shared.serving(to_pods(port, free_port(), broken.port, healthy.port, retry={"attempts": 3})) as gateway,
        client(port) as sock,
    ):
        assert [ask(sock)[0] for _ in range(12)] == [200] * 12
        assert ask(sock, "PUT")[0] == 200
        posts = [ask(sock, "POST")[0] for _ in range(6)]
        assert set(posts) == {200, 502}  # one that was reset may have been seen
        assert broken.accepted >= 3
        assert any(record.get("attempts", 1) > 1 for record in gateway.records)


def test_an_attempt_of_700_ms_is_followed_by_others_and_the_whole_ends_with_504(shared: SharedGateway):
    port, seen, over = free_port(), [], threading.Event()

    def slow(sock: socket.socket) -> None:
        while True:
            read_message(sock)
            seen.append(sock)
            if len(seen) % 3:
                over.wait(WAIT_S)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    rule = {"retry": {"attempts": 2}, "timeouts": {"backendRequest": "700ms"}}
    with Origin(slow) as origin, shared.serving(to_pods(port, origin.port, **rule)) as gateway:
        with client(port) as sock:
            status, _, _ = ask(sock)
        over.set()
        assert (status, len(seen)) == (200, 3)
        whole = {
            "retry": {"attempts": 9, "backoff": "100ms"},
            "timeouts": {"request": "500ms", "backendRequest": "200ms"},
        }
        gateway.reload(to_pods(port, free_port(), **whole))
        with client(port) as sock:
            began = time.monotonic()
            status, head, _ = ask(sock)
        assert status == 504
        assert time.monotonic() - began >= 0.5
        assert b"http_response_timeout" in head


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


def test_gateways_with_one_session_key_know_each_others_sessions(tmp_path: Path):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    ports = free_port(), free_port()
    with ExitStack() as stack:
        origins = [stack.enter_context(Origin(named(b"%d" % number))) for number in range(3)]
        for number, port in enumerate(ports):
            objects = to_pods(port, *(origin.port for origin in origins), sessionPersistence={"sessionName": "sid"})
            arguments = ["--session-key", str(key), "--workers", str(number + 1)]
            stack.enter_context(GatewayProcess(tmp_path / str(number), objects, arguments=arguments))
        with client(ports[0]) as sock:
            _, head, first = ask(sock)
        found = re.search(rb"Set-Cookie: (sid=[\w-]+);", head)
        assert found is not None
        for port in ports * 4:
            with client(port) as sock:
                _, head, body = ask(sock, Cookie=found[1].decode())
            assert body == first
            assert b"Set-Cookie" not in head


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
