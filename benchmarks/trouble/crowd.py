"""Many raw sockets at once, cheaper than any transport: opened in batches, asked in turn, read slowly."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence

BATCH = 64
ANSWER_S = 20.0
PIECE = bytes(64 * 1024)


class Crowd:
    """Connections to one port. `close` ends them all."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    async def open(self, count: int, requests: Callable[[int], Iterable[tuple[bytes, bytes]]]) -> None:
        """So many connections. `requests(number)` gives what each sends in turn, and how the answer has to end.

        Raises OSError, TimeoutError, or ValueError where the answer is not a 200.
        """
        for first in range(0, count, BATCH):
            batch = range(first, min(count, first + BATCH))
            self.sockets += await asyncio.gather(*(self._one(requests(number)) for number in batch))

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()

    async def _one(self, requests: Iterable[tuple[bytes, bytes]]) -> socket.socket:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.sock_connect(sock, ("127.0.0.1", self._port))
                for request, end in requests:
                    await loop.sock_sendall(sock, request)
                    answer = b""
                    while not answer or not answer.endswith(end):
                        piece = await loop.sock_recv(sock, 65536)
                        if not piece:
                            raise ConnectionResetError(f"closed after {answer[:100]!r}")
                        answer += piece
                    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                        raise ValueError(f"not a 200: {answer[:100]!r}")
        except BaseException:
            sock.close()
            raise
        return sock


class Client:
    """A blocking connection that does not block any more once it is made; in a tunnel, in TLS, or both."""

    def __init__(self, port: int, preamble: bytes, tls: tuple[ssl.SSLContext, str] | None) -> None:
        """`preamble` is a CONNECT, or empty; TLS comes behind it. Blocks: in a thread. Raises OSError or ValueError."""
        self.octets = 0
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        if preamble:
            self._sock.sendall(preamble)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                octet = self._sock.recv(1)
                if not octet:
                    raise ConnectionResetError("the gateway closed")
                head += octet
            if not head.startswith(b"HTTP/1.1 200"):
                raise ValueError(f"not a 200: {head[:100]!r}")
        if tls is not None:
            self._sock = tls[0].wrap_socket(self._sock, server_hostname=tls[1])

    def close(self) -> None:
        self._sock.close()


class Reader(Client):
    """Takes a body slowly: `step` reads a few KiB of whatever has come."""

    def __init__(self, port: int, preamble: bytes, tls: tuple[ssl.SSLContext, str] | None, request: bytes) -> None:
        super().__init__(port, preamble, tls)
        self._sock.sendall(request)
        if not self._sock.recv(15).startswith(b"HTTP/1.1 200"):
            raise ValueError("not a 200")
        self._sock.setblocking(False)

    def step(self, octets: int) -> None:
        """Raises ConnectionResetError where the body has ended early."""
        try:
            piece = self._sock.recv(octets)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        if not piece:
            raise ConnectionResetError(f"ended after {self.octets} bytes")
        self.octets += len(piece)


class Sender(Client):
    """Says a head, and then as much of a body as is taken."""

    def __init__(self, port: int, preamble: bytes, tls: tuple[ssl.SSLContext, str] | None, request: bytes) -> None:
        super().__init__(port, preamble, tls)
        self._sock.sendall(request)
        self._sock.setblocking(False)

    def step(self, octets: int) -> None:
        """Send, until that many are sent in all or nobody takes more."""
        while self.octets < octets:
            try:
                self.octets += self._sock.send(PIECE[: octets - self.octets])
            except (BlockingIOError, ssl.SSLWantWriteError):
                return


async def step_all(clients: Sequence[Reader | Sender], seconds: float, octets: int, every_s: float) -> int:
    """A step of all of them, again and again; returns how many steps failed."""
    broken = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            try:
                client.step(octets)
            except OSError:
                broken += 1
        await asyncio.sleep(every_s)
    return broken
