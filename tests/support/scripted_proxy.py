"""Proxies as companies have them, in threads: every name leads to loopback."""

from __future__ import annotations

import base64
import socket
import threading
from abc import ABC, abstractmethod
from typing import Final, Self

WAIT_S: Final = 30.0
CHALLENGE: Final = b'Proxy-Authenticate: Negotiate\r\nProxy-Authenticate: Basic realm="corp"\r\n'
REFUSED: Final = b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"
CONNECTED: Final = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00"


class _Proxy(ABC):
    """`refused` counts those who were not let in."""

    def __init__(self, port: int = 0) -> None:
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
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
                self._talk(sock)
        except (OSError, EOFError):
            pass

    @abstractmethod
    def _talk(self, sock: socket.socket) -> None:
        """All that is said on one connection."""


class BasicProxy(_Proxy):
    """HTTP, with username and password (RFC 7617). `asked` has the request lines that were let in.

    It speaks as corporate proxies do: 407 with a challenge and a page of its own, CONNECT, and plain http in
    absolute-form.
    """

    def __init__(self, username: str, password: str, port: int = 0) -> None:
        self.allow(username, password)
        self.asked: list[bytes] = []
        super().__init__(port)

    def allow(self, username: str, password: str) -> None:
        """These and no others are let in from now on."""
        self._wanted = b"Basic " + base64.b64encode(f"{username}:{password}".encode())

    def _talk(self, sock: socket.socket) -> None:
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += exactly(sock, 1)
            line, *fields = head[:-4].split(b"\r\n")
            shown = [value for name, _, value in (field.partition(b": ") for field in fields) if _is_ours(name)]
            if shown == [self._wanted]:
                return self._serve_one(sock, line, fields)
            self.refused += 1
            sock.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\n" + CHALLENGE + b"Content-Length: 4\r\n\r\nno!\n"
            )

    def _serve_one(self, sock: socket.socket, line: bytes, fields: list[bytes]) -> None:
        self.asked.append(line)
        method, target, _ = line.split(b" ")
        authority = target if method == b"CONNECT" else target.split(b"/")[2]
        port = int(authority.rpartition(b":")[2]) if b":" in authority else 80
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as origin:
            if method == b"CONNECT":
                sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                join(sock, origin)
                return
            kept = [field for field in fields if not _is_ours(field.partition(b":")[0])]
            origin.sendall(b"\r\n".join([line, *kept, b"Connection: close", b"", b""]))
            origin.shutdown(socket.SHUT_WR)
            pump(origin, sock)


class SocksProxy(_Proxy):
    """SOCKS5 (RFC 1928), with username and password (RFC 1929) or open. `asked` has hosts and ports."""

    def __init__(self, username: str = "", password: str = "") -> None:
        self._login = (username.encode(), password.encode())
        self.asked: list[tuple[str, int]] = []
        super().__init__()

    def _talk(self, sock: socket.socket) -> None:
        if self._lets_in(sock):
            self._connect(sock)

    def _lets_in(self, sock: socket.socket) -> bool:
        _, count = exactly(sock, 2)
        methods = exactly(sock, count)
        method = 2 if self._login[0] else 0
        if method not in methods:
            self.refused += 1
            sock.sendall(b"\x05\xff")
            return False
        sock.sendall(bytes((5, method)))
        if method == 0:
            return True
        username = exactly(sock, exactly(sock, 2)[1])
        password = exactly(sock, exactly(sock, 1)[0])
        if (username, password) != self._login:
            self.refused += 1
            sock.sendall(b"\x01\x01")
            return False
        sock.sendall(b"\x01\x00")
        return True

    def _connect(self, sock: socket.socket) -> None:
        kind = exactly(sock, 4)[3]
        if kind == 3:
            host = exactly(sock, exactly(sock, 1)[0]).decode()
        else:
            family, size = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, exactly(sock, size))
        port = int.from_bytes(exactly(sock, 2), "big")
        self.asked.append((host, port))
        try:
            origin = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        except OSError:
            sock.sendall(REFUSED)
            return
        with origin:
            sock.sendall(CONNECTED)
            join(sock, origin)


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def join(one: socket.socket, other: socket.socket) -> None:
    """A tunnel: both ways, until both have ended."""
    back = threading.Thread(target=pump, args=(one, other), daemon=True)
    back.start()
    pump(other, one)
    back.join(WAIT_S)


def pump(one: socket.socket, other: socket.socket) -> None:
    """Pass everything on, and the end of it."""
    try:
        while piece := one.recv(65536):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _is_ours(name: bytes) -> bool:
    return name.lower() == b"proxy-authorization"
