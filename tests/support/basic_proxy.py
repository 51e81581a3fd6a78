"""BasicProxy: an HTTP proxy that lets nobody in without username and password (RFC 7617), in threads.

It speaks as corporate proxies do: 407 with a challenge and a page of its own, CONNECT, and plain http in absolute-form.
Every name leads to loopback.
"""

from __future__ import annotations

import base64
import socket
import threading

__all__ = ["BasicProxy", "pump"]

WAIT_S = 30.0
CHALLENGE = b'Proxy-Authenticate: Negotiate\r\nProxy-Authenticate: Basic realm="corp"\r\n'


class BasicProxy:
    """`asked` has the request lines that were let in, `refused` counts the others."""

    def __init__(self, username: str, password: str) -> None:
        self.allow(username, password)
        self.asked: list[bytes] = []
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="basic-proxy").start()

    def allow(self, username: str, password: str) -> None:
        """These and no others are let in from now on."""
        self._wanted = b"Basic " + base64.b64encode(f"{username}:{password}".encode())

    def __enter__(self) -> BasicProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        try:
            with sock:
                while self._request(sock):
                    pass
        except OSError:
            pass

    def _request(self, sock: socket.socket) -> bool:
        """One request; whether another may follow."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            octet = sock.recv(1)
            if not octet:
                return False
            head += octet
        line, *fields = head[:-4].split(b"\r\n")
        shown = [value for name, _, value in (field.partition(b": ") for field in fields) if _is_ours(name)]
        if shown != [self._wanted]:
            self.refused += 1
            sock.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\n" + CHALLENGE + b"Content-Length: 4\r\n\r\nno!\n"
            )
            return True
        self.asked.append(line)
        method, target, _ = line.split(b" ")
        authority = target if method == b"CONNECT" else target.split(b"/")[2]
        port = int(authority.rpartition(b":")[2]) if b":" in authority else 80
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as origin:
            if method == b"CONNECT":
                sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                other = threading.Thread(target=pump, args=(sock, origin), daemon=True)
                other.start()
                pump(origin, sock)
                other.join(WAIT_S)
                return False
            kept = [field for field in fields if not _is_ours(field.partition(b":")[0])]
            origin.sendall(b"\r\n".join([line, *kept, b"Connection: close", b"", b""]))
            origin.shutdown(socket.SHUT_WR)
            pump(origin, sock)
        return False


def _is_ours(name: bytes) -> bool:
    return name.lower() == b"proxy-authorization"


def pump(one: socket.socket, other: socket.socket) -> None:
    """Pass everything on, and the end of it."""
    try:
        while piece := one.recv(65536):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
