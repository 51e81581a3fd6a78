"""Fetches a large body through several tunnels at a time, again and again. Prints a line of JSON; the unit is a byte.

    python -m benchmarks.load.transfers --port 3128 --authority h137.bench.example:8000 --seconds 3

One process, one epoll, reads into one buffer. Each tunnel carries one GET and is closed when its body is complete; what
is under way when the time is over is finished. `--raw` leaves the CONNECT out, for plain TCP forwarding.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import socket
import sys
import time

from benchmarks.load.holding import open_tunnel

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SILENCE_S = 5.0
BUFFER_BYTES = 512 * 1024


class Transfer:
    """One tunnel; `left` bytes of its answer are still to come, or its head (None)."""

    __slots__ = ("left", "socket", "started")

    def __init__(self, tunnel: socket.socket) -> None:
        self.socket = tunnel
        self.left: int | None = None
        self.started = time.perf_counter()


class Fetcher:
    """`run` keeps `width` transfers going for `seconds`. Raises OSError for whatever was not as it should be."""

    def __init__(self, port: int, authority: str, *, width: int, seconds: float, raw: bool) -> None:
        self._port = port
        self._width = width
        self._seconds = seconds
        self._connect = b"" if raw else b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % ((authority.encode(),) * 2)
        self._get = b"GET /large HTTP/1.1\r\nHost: %b\r\n\r\n" % authority.encode()
        self._epoll = select.epoll()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._open: dict[int, Transfer] = {}
        self._times: list[float] = []
        self._bytes = 0

    def run(self) -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(self._width):
            self._begin()
        while self._open:
            events = self._epoll.poll(SILENCE_S)
            if not events:
                raise TimeoutError("nothing comes any more")
            for descriptor, _ in events:
                transfer = self._open[descriptor]
                if not self._read(transfer):
                    continue
                self._times.append(time.perf_counter() - transfer.started)
                del self._open[descriptor]
                transfer.socket.close()
                if time.perf_counter() - begun < self._seconds:
                    self._begin()
        seconds = time.perf_counter() - begun
        times = sorted(self._times)
        return {
            "units": self._bytes,
            "seconds": seconds,
            "errors": 0,
            "p50_us": round(times[len(times) // 2] * 1e6),
            "p99_us": round(times[len(times) * 99 // 100] * 1e6),
        }

    def _begin(self) -> None:
        tunnel = open_tunnel(self._port, self._connect)
        tunnel.sendall(self._get)
        tunnel.setblocking(False)
        self._open[tunnel.fileno()] = Transfer(tunnel)
        self._epoll.register(tunnel.fileno(), select.EPOLLIN)

    def _read(self, transfer: Transfer) -> bool:
        """True when the body is complete."""
        count = transfer.socket.recv_into(self._buffer)
        if not count:
            raise ConnectionResetError("the proxy closed early")
        if transfer.left is None:
            head, separator, body = bytes(self._buffer[:count]).partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            if not separator or length is None or not head.startswith(b"HTTP/1.1 200"):
                raise ConnectionRefusedError(f"answered {head[:80]!r}")
            transfer.left, count = int(length[1]), len(body)
        transfer.left -= count
        self._bytes += count
        return transfer.left <= 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--width", type=int, default=8, help="tunnels at a time (default: 8)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--raw", action="store_true", help="no CONNECT: the port forwards TCP")
    options = parser.parse_args()
    fetcher = Fetcher(options.port, options.authority, width=options.width, seconds=options.seconds, raw=options.raw)
    try:
        print(json.dumps(fetcher.run()))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
