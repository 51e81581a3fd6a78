"""Opens tunnels as fast as a proxy lets it: CONNECT, a GET inside, read the whole answer, close. Prints a line of JSON.

    python -m benchmarks.load.tunnels --port 3128 --authority h137.bench.example:8000 --seconds 3

A process of its own, one epoll, raw sockets: asyncio would cost more than the proxies under test. It is bounded in time
and in number, and closes first, which suits every proxy. `--raw` leaves the CONNECT out, for plain TCP forwarding.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time

BODY = 1024
CONNECTED, WAITING_FOR_TUNNEL, WAITING_FOR_ANSWER = range(3)
#: No event for so long means that the proxy has stopped serving.
SILENCE_S = 5.0


class Tunnel:
    """One connection and what it waits for."""

    __slots__ = ("received", "socket", "started", "state")

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.started = time.perf_counter()
        self.received = b""
        self.state = CONNECTED
        self.socket.connect_ex(("127.0.0.1", port))


class Generator:
    """Keeps `width` tunnels going until `seconds` are over or `count` are done; errors are counted, never retried."""

    def __init__(self, port: int, authority: str, *, width: int, seconds: float, count: int, raw: bool) -> None:
        self._port = port
        self._width = width
        self._seconds = seconds
        self._count = count
        self._connect = b"" if raw else b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % ((authority.encode(),) * 2)
        self._get = b"GET /tunnel HTTP/1.1\r\nHost: %b\r\nUser-Agent: bench\r\n\r\n" % authority.encode()
        self._epoll = select.epoll()
        self._open: dict[int, Tunnel] = {}
        self._times: list[float] = []
        self._errors = 0

    def run(self) -> dict[str, float]:
        begun = time.perf_counter()
        end = begun + self._seconds
        for _ in range(self._width):
            self._begin()
        while self._open:
            events = self._epoll.poll(SILENCE_S)
            if not events:
                self._errors += len(self._open)
                break
            for number, _ in events:
                tunnel = self._open[number]
                try:
                    is_done = self._go_on(tunnel)
                except OSError:
                    self._errors += 1
                    is_done = True
                if is_done:
                    self._finish(tunnel)
                    if time.perf_counter() < end and len(self._times) + len(self._open) < self._count:
                        self._begin()
        seconds = time.perf_counter() - begun
        times = sorted(self._times) or [0.0]
        return {
            "units": len(self._times),
            "seconds": seconds,
            "errors": self._errors,
            "p50_us": round(times[len(times) // 2] * 1e6),
            "p99_us": round(times[len(times) * 99 // 100] * 1e6),
        }

    def _begin(self) -> None:
        tunnel = Tunnel(self._port)
        number = tunnel.socket.fileno()
        self._open[number] = tunnel
        self._epoll.register(number, select.EPOLLOUT)

    def _go_on(self, tunnel: Tunnel) -> bool:
        """True when it is over. Raises OSError for whatever was not as it should be."""
        if tunnel.state == CONNECTED:
            tunnel.socket.sendall(self._connect or self._get)
            tunnel.state = WAITING_FOR_TUNNEL if self._connect else WAITING_FOR_ANSWER
            self._epoll.modify(tunnel.socket.fileno(), select.EPOLLIN)
            return False
        data = tunnel.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the proxy closed early")
        tunnel.received += data
        head, separator, body = tunnel.received.partition(b"\r\n\r\n")
        if not separator:
            return False
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            raise ConnectionRefusedError(head[:80])
        if tunnel.state == WAITING_FOR_TUNNEL:
            tunnel.received = b""
            tunnel.state = WAITING_FOR_ANSWER
            tunnel.socket.sendall(self._get)
            return False
        if len(body) < BODY:
            return False
        self._times.append(time.perf_counter() - tunnel.started)
        return True

    def _finish(self, tunnel: Tunnel) -> None:
        del self._open[tunnel.socket.fileno()]
        tunnel.socket.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--width", type=int, default=16, help="tunnels at a time (default: 16)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=20_000, help="at most so many (default: 20,000)")
    parser.add_argument("--raw", action="store_true", help="no CONNECT: the port forwards TCP")
    options = parser.parse_args()
    generator = Generator(
        options.port,
        options.authority,
        width=options.width,
        seconds=options.seconds,
        count=options.count,
        raw=options.raw,
    )
    print(json.dumps(generator.run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
