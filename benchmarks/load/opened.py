"""Asks inside of tunnels that the proxy opens: CONNECT, TLS with what the proxy shows, some GETs, close. Prints a line
of JSON.

    python -m benchmarks.load.opened --port 3129 --authority upstream.bench.example:8443 --ca ca.crt --seconds 3

A process of its own, which serves all tunnels as their answers come, like wrk: a thread for each would be slower than
what it measures. The request is read from a file, so that it is the one that was checked before.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import ssl
import sys
import time
from collections.abc import Generator
from pathlib import Path

BODY = 1024
#: No answer for so long means that the proxy has stopped serving.
SILENCE_S = 10.0
#: A tunnel: it gives its connection at first, and then a turn wherever it waits for bytes.
Tunnel = Generator[socket.socket, None, None]


class Tunnels:
    """All of them. Each that ends is followed by another, until the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._port = options.port
        self._authority = options.authority.encode()
        self._host = options.authority.partition(":")[0]
        self._requests = options.requests
        self._request = options.request.read_bytes()
        self._context = ssl.create_default_context(cafile=options.ca)
        self._context.set_alpn_protocols(["http/1.1"])
        self._ends_at = time.perf_counter() + options.seconds
        self._ready = select.epoll()
        self._open: dict[int, Tunnel] = {}  # by descriptor
        self.times: list[float] = []
        self.errors = 0

    def serve(self, width: int) -> None:
        """So many at a time."""
        for _ in range(width):
            self._begin()
        while self._open:
            events = self._ready.poll(SILENCE_S)
            if not events:
                self.errors += len(self._open)
                return
            for number, _ in events:
                self._go_on(number)

    def _begin(self) -> None:
        """Another tunnel, unless the time is over or the proxy takes none."""
        while time.perf_counter() < self._ends_at:
            tunnel = self._tunnel()
            try:
                number = next(tunnel).fileno()
            except OSError:
                self.errors += 1
                continue
            self._open[number] = tunnel
            self._ready.register(number, select.EPOLLIN)
            return

    def _go_on(self, number: int) -> None:
        try:
            next(self._open[number])
            return
        except StopIteration:
            pass
        except OSError:
            self.errors += 1
        del self._open[number]  # its descriptor is closed, and no longer watched
        self._begin()

    def _tunnel(self) -> Tunnel:
        with socket.create_connection(("127.0.0.1", self._port), timeout=SILENCE_S) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setblocking(False)
            plain.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (self._authority, self._authority))
            yield plain
            if not plain.recv(65536).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                raise ConnectionRefusedError("no tunnel")
            with self._context.wrap_socket(
                plain, server_hostname=self._host, do_handshake_on_connect=False
            ) as tls:  # it has the descriptor now
                while not _is_done(tls):
                    yield tls
                for _ in range(self._requests):
                    begun = time.perf_counter()
                    if begun >= self._ends_at:
                        return
                    tls.sendall(self._request)
                    received = b""
                    while not _is_whole(received):
                        piece = _received(tls)
                        if piece is None:
                            yield tls
                        elif piece:
                            received += piece
                        else:
                            raise ConnectionResetError("the proxy closed early")
                    self.times.append(time.perf_counter() - begun)


def _is_done(tls: ssl.SSLSocket) -> bool:
    """Whether the handshake is."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _received(tls: ssl.SSLSocket) -> bytes | None:
    """What is here; None: nothing yet."""
    try:
        return tls.recv(65536)
    except ssl.SSLWantReadError:
        return None


def _is_whole(received: bytes) -> bool:
    head, separator, body = received.partition(b"\r\n\r\n")
    if separator and not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionRefusedError(head[:80])
    return bool(separator) and len(body) >= BODY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--ca", required=True, help="what the proxy's certificates are signed with, PEM")
    parser.add_argument("--request", type=Path, required=True, help="the request, as it is sent")
    parser.add_argument("--requests", type=int, default=1000, help="in each tunnel (default: 1,000)")
    parser.add_argument("--width", type=int, default=64, help="tunnels at a time (default: 64)")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    tunnels = Tunnels(options)
    begun = time.perf_counter()
    tunnels.serve(options.width)
    seconds = time.perf_counter() - begun
    times = sorted(tunnels.times) or [0.0]
    print(
        json.dumps(
            {
                "units": len(tunnels.times),
                "seconds": seconds,
                "errors": tunnels.errors,
                "p50_us": round(times[len(times) // 2] * 1e6),
                "p99_us": round(times[len(times) * 99 // 100] * 1e6),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
