"""SocksProxy: a SOCKS5 proxy that asks for username and password, or for nothing (RFC 1928, RFC 1929), in threads.

Every name leads to loopback.
"""

from __future__ import annotations

import socket
import threading

from tests.support.basic_proxy import pump

__all__ = ["SocksProxy"]

WAIT_S = 30.0
REFUSED = b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"
CONNECTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00"


class SocksProxy:
    """`asked` has the hosts and ports that it was asked for, `refused` counts those who were not let in."""

    def __init__(self, username: str = "", password: str = "") -> None:
        self._login = (username.encode(), password.encode())
        self.asked: list[tuple[str, int]] = []
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="socks-proxy").start()

    def __enter__(self) -> SocksProxy:
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
                if self._lets_in(sock):
                    self._connect(sock)
        except (OSError, EOFError):
            pass

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
            other = threading.Thread(target=pump, args=(sock, origin), daemon=True)
            other.start()
            pump(origin, sock)
            other.join(WAIT_S)


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
