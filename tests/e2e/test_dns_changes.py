"""A name that leads elsewhere while requests go to it: the real process, a real name server, one warm connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.world import ALLOW_LOOPBACK, ask, client, read_message
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S


@contextmanager
def origins() -> Iterator[tuple[int, list[str]]]:
    """A port on every loopback address that answers with the address; and the addresses of its connections."""
    accepted: list[str] = []
    with socket.create_server(("0.0.0.0", 0)) as listener:

        def serve(sock: socket.socket) -> None:
            own = sock.getsockname()[0]
            accepted.append(own)
            try:
                while True:
                    read_message(sock)
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(own), own.encode()))
            except (OSError, AssertionError):
                sock.close()

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], accepted
        listener.shutdown(socket.SHUT_RDWR)


def test_requests_go_to_the_new_address_when_the_ttl_is_over_and_none_is_lost(tmp_path: Path):
    port = free_port()
    with origins() as (backend, accepted), NameServer({"a.test": ["127.0.0.2"]}) as names:
        names.zone["a.test"] = Rule(("127.0.0.2",), ttl=1)
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=names.address, cidrs=ALLOW_LOOPBACK),
            m.backend("a", "a.test", backend),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
        with GatewayProcess(tmp_path, objects), client(port) as sock:
            request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            assert ask(sock, request) == (200, b"127.0.0.2")
            began = time.monotonic()
            for address in ("127.0.0.3", "127.0.0.4"):
                names.zone["a.test"] = Rule((address,), ttl=1)
                deadline = time.monotonic() + WAIT_S
                while True:
                    status, body = ask(sock, request)
                    assert status == 200
                    if body == address.encode():
                        break
                    assert time.monotonic() < deadline, "the answer before had a life of a second"
            assert accepted == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
            took_s = time.monotonic() - began
            assert names.asked("a.test") < 20 + 4 * took_s, "for both families, about once a second"
            asked = names.asked("a.test")
            names.zone["a.test"] = Rule(rcode="SERVFAIL")
            while names.asked("a.test") < asked + 4:  # twice for each family
                assert ask(sock, request) == (200, b"127.0.0.4")
            assert len(accepted) == 3
