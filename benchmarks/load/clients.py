"""Asks on many connections in turn, on each what is its own: so many clients, each with a connection of its own.

    python -m benchmarks.load.clients --port 3128 --requests 2000.requests --connections 2000 --width 64

`--requests` is a file of requests, one in each line as JSON; the connections have them in turn. At any time `--width`
of the connections wait for an answer, and when one has come, the next connection in the row asks. Prints two lines of
JSON: `{"open": 2000}` when every connection has had an answer, and, after a line on standard input that says how many
seconds, the outcome of these. One process, one epoll.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path

LENGTH = b"\r\ncontent-length: "
#: No answer for so long means that the proxy has stopped serving.
SILENCE_S = 10.0
#: Of first requests: a proxy may bound how many credentials of one address are checked at once.
FEW = 4


class Connection:
    """One client."""

    __slots__ = ("asked_at", "received", "request", "socket")

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.received = b""
        self.asked_at = 0.0

    def ask(self) -> None:
        self.asked_at = time.perf_counter()
        self.received = b""
        self.socket.sendall(self.request)

    def hear(self) -> bool:
        """Whether the answer is whole. Raises ConnectionError for another than 200, and where there is none."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the proxy has closed a connection")
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"the answer is {head[:100]!r}")
        lower = head.lower()
        begin = lower.index(LENGTH) + len(LENGTH)
        return len(body) >= int(lower[begin:].partition(b"\r\n")[0])


class Clients:
    """All of them, in a row."""

    def __init__(self, port: int, requests: list[bytes], connections: int) -> None:
        self._row = deque(Connection(port, requests[number % len(requests)]) for number in range(connections))
        self._by_number = {each.socket.fileno(): each for each in self._row}
        self._ready = select.epoll()
        for number in self._by_number:
            self._ready.register(number, select.EPOLLIN)
        self.times: list[float] = []

    def ask(self, width: int, count: int = 0, seconds: float = 0.0) -> float:
        """So many requests, or for so long. Returns how long it took. Raises ConnectionError."""
        begun = time.perf_counter()
        self.times.clear()
        asked = 0
        waiting = 0
        while True:
            while waiting < width and (asked < count if count else time.perf_counter() - begun < seconds):
                self._row[0].ask()
                self._row.rotate(-1)
                asked += 1
                waiting += 1
            if not waiting:
                return time.perf_counter() - begun
            events = self._ready.poll(SILENCE_S)
            if not events:
                raise ConnectionError("the proxy does not answer")
            for number, _ in events:
                connection = self._by_number[number]
                if connection.hear():
                    self.times.append(time.perf_counter() - connection.asked_at)
                    waiting -= 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    options = parser.parse_args()
    requests = [json.loads(line).encode() for line in options.requests.read_text().splitlines()]
    clients = Clients(options.port, requests, options.connections)
    clients.ask(FEW, count=options.connections)
    print(json.dumps({"open": options.connections}), flush=True)
    seconds = clients.ask(options.width, seconds=float(sys.stdin.readline()))
    times = sorted(clients.times)
    outcome = {
        "units": len(times), "seconds": seconds, "errors": 0,
        "p50_us": round(times[len(times) // 2] * 1e6), "p99_us": round(times[len(times) * 99 // 100] * 1e6),
    }  # fmt: skip
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
