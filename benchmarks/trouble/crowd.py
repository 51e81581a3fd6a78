"""Many raw sockets at once, cheaper than any transport: opened in batches, asked in turn, read slowly."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable

__all__ = ["Crowd", "Reader"]

BATCH = 64
ANSWER_S = 20.0
#: Beyond it the ports of one address of ours run out; loopback has many.
PER_ADDRESS = 20_000


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


class Reader:
    """A client that takes a body slowly: `step` reads a few KiB of whatever has come. TLS where a context is given."""

    def __init__(self, port: int, preamble: bytes, request: bytes, tls: tuple[ssl.SSLContext, str] | None) -> None:
        """`preamble` is a CONNECT, or empty; TLS comes behind it. Blocks, in a thread. Raises OSError or ValueError."""
        self.octets = 0
        sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._sock = sock
        if preamble:
            sock.sendall(preamble)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                octet = sock.recv(1)
                if not octet:
                    raise ConnectionResetError("the gateway closed")
                head += octet
            if not head.startswith(b"HTTP/1.1 200"):
                raise ValueError(f"not a 200: {head[:100]!r}")
        if tls is not None:
            self._sock = tls[0].wrap_socket(sock, server_hostname=tls[1])
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
            raise ConnectionResetError(f"ended after {self.octets} octets")
        self.octets += len(piece)

    def close(self) -> None:
        self._sock.close()


async def read_slowly(readers: list[Reader], seconds: float, octets: int, every_s: float) -> int:
    """All of them, so many octets at a time; returns how many broke off."""
    broken = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for reader in readers:
            try:
                reader.step(octets)
            except OSError:
                broken += 1
        await asyncio.sleep(every_s)
    return broken
