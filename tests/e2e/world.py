"""What the end-to-end tests share: raw sockets as clients, and small origins in a thread, plain or TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.waiting import WAIT_S

ALLOW_LOOPBACK = ["127.0.0.0/8"]


def client(port: int, context: ssl.SSLContext | None = None, name: str | None = None) -> socket.socket:
    """Connected to a listener, inside TLS where a context is given. What is written small goes out at once."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock, server_hostname=name) if context is not None else sock


def read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        octet = sock.recv(1)
        assert octet, f"the connection ended within {head!r}"
        head += octet
    return head


def read_message(sock: socket.socket) -> tuple[bytes, bytes]:
    """A head and, where it has a Content-Length, its body."""
    head = read_head(sock)
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = b""
    while len(body) < length:
        piece = sock.recv(length - len(body))
        assert piece, "the connection ended within the body"
        body += piece
    return head, body


def ask(sock: socket.socket, request: bytes) -> tuple[int, bytes]:
    """Send a request; its status and body."""
    sock.sendall(request)
    head, body = read_message(sock)
    return int(head.split(b" ", 2)[1]), body


def get(host: str, port: int, path: str = "/", *, absolute: bool = True) -> bytes:
    target = f"http://{host}:{port}{path}" if absolute else path
    return f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


class Origin:
    """Serves each connection with `serve(socket)` in a thread each; the default answers every request with "ok"."""

    def __init__(
        self, serve: Callable[[socket.socket], None] | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self._serve = serve or self._answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # and so what it accepts
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self.peers: list[str] = []  # common names of client certificates
        threading.Thread(target=self._accept, daemon=True, name="origin").start()

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Origin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        try:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
                shown = sock.getpeercert() or {}
                self.peers.append(dict(part[0] for part in shown.get("subject", ())).get("commonName", "-"))
            self._serve(sock)
        except (OSError, AssertionError):
            pass
        finally:
            sock.close()

    @staticmethod
    def _answer(sock: socket.socket) -> None:
        while True:
            read_message(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


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


def echo(sock: socket.socket) -> None:
    """Sends back whatever comes, to the end."""
    while piece := sock.recv(65536):
        sock.sendall(piece)


def tls_secret(name: str, chain: str, key: bytes) -> Manifest:
    return m.secret(name, {"tls.crt": chain, "tls.key": key.decode()}, kind="kubernetes.io/tls")


def terminate(secret: str) -> Manifest:
    return {"mode": "Terminate", "certificateRefs": [{"name": secret}]}
