"""Reads event streams through a proxy, and says how long events take to come. Prints lines of JSON.

    python -m benchmarks.load.events --port 8080 --host events.bench.example --streams 200

Three lines, each after a line on standard input but the first: `{"open": 200}` when an event has come in every stream,
then the outcome of so many seconds as were written on that line, then nothing: it closes. So the caller can
look at the proxy's CPU time while streams flow, without their beginnings and ends. One process, one epoll. Every event
is counted, and its number has to follow that of the one before: a stream that loses one, or ends, is an error.
`--direct` speaks TLS to the origin itself, with what the proxy would have put in: latency without a proxy.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import socket
import ssl
import sys
import time

EVENT = re.compile(rb'"n":(\d{10}),"t":(\d{20}),[^\n]*\n\n')
SILENCE_S = 5.0


class Lost(Exception):
    """A stream ended, was refused, or lost an event."""


class Stream:
    """One stream and the number of its last event."""

    __slots__ = ("number", "rest", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.rest = b""
        self.number = 0


class Reader:
    """`open` and `listen` raise Lost."""

    def __init__(self, port: int, request: bytes, context: ssl.SSLContext | None, name: str) -> None:
        self._address = ("127.0.0.1", port)
        self._request = request
        self._context = context
        self._name = name
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self.delays_ns: list[int] = []

    def open(self, count: int) -> None:
        for _ in range(count):
            self._begin()
        end = time.monotonic() + SILENCE_S
        while any(not stream.number for stream in self._streams.values()):
            self._take(SILENCE_S)
            if time.monotonic() > end:
                raise Lost(f"in {sum(not each.number for each in self._streams.values())} streams no event came")

    def listen(self, seconds: float) -> dict[str, float]:
        self.delays_ns.clear()
        begun = time.perf_counter()
        while (left := begun + seconds - time.perf_counter()) > 0:
            self._take(left)
        passed = time.perf_counter() - begun
        delays = sorted(self.delays_ns) or [0]
        return {
            "units": len(self.delays_ns),
            "seconds": passed,
            "errors": 0,
            "p50_us": round(delays[len(delays) // 2] / 1e3),
            "p99_us": round(delays[len(delays) * 99 // 100] / 1e3),
        }

    def close(self) -> None:
        for stream in self._streams.values():
            stream.socket.close()

    def _begin(self) -> None:
        try:
            connection = socket.create_connection(self._address, timeout=SILENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_hostname=self._name)
            connection.sendall(self._request)
        except OSError as error:
            raise Lost(f"a stream cannot be opened: {error}") from None
        connection.setblocking(False)
        self._streams[connection.fileno()] = Stream(connection)
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._take(0)

    def _take(self, timeout: float) -> None:
        for descriptor, _ in self._epoll.poll(timeout):
            stream = self._streams[descriptor]
            try:
                data = stream.socket.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except OSError as error:
                raise Lost(f"a stream broke: {error}") from None
            self._count(stream, data, time.monotonic_ns())

    def _count(self, stream: Stream, data: bytes, now: int) -> None:
        if not data:
            raise Lost(f"a stream ended: {stream.rest[:60]!r}")
        stream.rest += data
        done = 0
        for match in EVENT.finditer(stream.rest):
            number = int(match[1])
            if number != stream.number + 1:
                raise Lost(f"event {number} came after {stream.number}")
            stream.number = number
            self.delays_ns.append(now - int(match[2]))
            done = match.end()
        if done:
            stream.rest = stream.rest[done:]
        elif not stream.number and not b"HTTP/1.1 200".startswith(stream.rest[:12]):
            raise Lost(f"a stream was refused: {stream.rest[:60]!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--direct", metavar="CA_FILE", help="no proxy: TLS to the origin, verified with this authority")
    parser.add_argument("--field", action="append", default=[], help="a line of the request's head")
    options = parser.parse_args()
    lines = ["GET /events HTTP/1.1", f"Host: {options.host}", "Accept: text/event-stream", *options.field, "", ""]
    context = ssl.create_default_context(cafile=options.direct) if options.direct else None
    reader = Reader(options.port, "\r\n".join(lines).encode(), context, options.host)
    try:
        reader.open(options.streams)
        print(json.dumps({"open": options.streams}), flush=True)
        print(json.dumps(reader.listen(float(sys.stdin.readline() or 0))), flush=True)
        sys.stdin.readline()
    except Lost as error:
        print(error, file=sys.stderr)
        return 1
    reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
