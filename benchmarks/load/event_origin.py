"""The origin of event streams (text/event-stream) over TLS: to every client so many events a second, without an end.

    python -m benchmarks.load.event_origin --port 8443 --certificate upstream.crt --key upstream.key --token …

One process, one epoll, one write for each event: asyncio would be the bottleneck. Events of the streams are spread
evenly over time, so that nobody waits because all speak at once. Each carries its number in its stream and the time at
which it was written, in ns of the machine's monotonic clock. A request that was not edited, or that carries no
credential, is answered with 412. Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import ctypes
import heapq
import select
import socket
import ssl
import time
from pathlib import Path

PER_SECOND = 50
#: Streams that begin one after the other get phases that are far apart: the golden ratio.
PHASE = 0.6180339887
#: New connections and ends of streams are looked for so often while events flow.
LOOK_S = 0.002
IDLE_S = 0.5
PR_SET_TIMERSLACK = 29
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Internal-Note: removed\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
REFUSAL = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-9f2c4d7e","object":"chat.completion.chunk","n":%010d,"t":%020d,'
    b'"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT % (0, 0)), EVENT)


class Stream:
    """One connection: first a handshake and a request, then events."""

    __slots__ = ("is_flowing", "number", "received", "socket")

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.socket = connection
        self.received = b""
        self.is_flowing = False
        self.number = 0


class Origin:
    """`run` serves until the process is told to end."""

    def __init__(self, port: int, context: ssl.SSLContext, token: str) -> None:
        self._context = context
        self._credential = b"\r\nauthorization: bearer " + token.lower().encode() + b"\r\n"
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        #: (when its next event is due, its descriptor, itself)
        self._due: list[tuple[float, int, Stream]] = []
        self._begun = 0
        self._listening = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listening.setblocking(False)
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)

    def run(self) -> None:
        look = 0.0
        while True:
            now = time.perf_counter()
            while self._due and self._due[0][0] <= now:
                self._tell(self._due[0])
            now = time.perf_counter()
            pause = self._due[0][0] - now if self._due else IDLE_S
            if not self._due or now >= look:
                self._look(0 if self._due else IDLE_S)
                look = now + LOOK_S
            elif pause > 0:
                time.sleep(min(pause, look - now))

    def _tell(self, entry: tuple[float, int, Stream]) -> None:
        due, descriptor, stream = entry
        if not stream.is_flowing:
            heapq.heappop(self._due)
            return
        stream.number += 1
        try:
            stream.socket.send(CHUNK % (stream.number, time.monotonic_ns()))
        except OSError:  # it has left, or does not read any more: no event may be lost in silence
            heapq.heappop(self._due)
            self._end(stream)
            return
        heapq.heapreplace(self._due, (due + 1 / PER_SECOND, descriptor, stream))

    def _look(self, timeout: float) -> None:
        for descriptor, _ in self._epoll.poll(timeout):
            if descriptor == self._listening.fileno():
                self._accept()
                continue
            stream = self._streams[descriptor]
            try:
                self._read(stream)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError:
                self._end(stream)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wrapped = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            self._streams[wrapped.fileno()] = Stream(wrapped)
            self._epoll.register(wrapped.fileno(), select.EPOLLIN)

    def _read(self, stream: Stream) -> None:
        """Raises OSError where the stream is over."""
        stream.socket.do_handshake()
        data = stream.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the client left")
        stream.received += data
        if stream.is_flowing or b"\r\n\r\n" not in stream.received:
            return
        fields = stream.received.lower()
        if b"\r\nx-gateway: bench\r\n" not in fields or b"\r\nx-debug:" in fields or self._credential not in fields:
            stream.socket.send(REFUSAL)
            raise ConnectionRefusedError("the request was not edited")
        stream.socket.send(HEAD)
        stream.is_flowing = True
        self._begun += 1
        phase = self._begun * PHASE % 1 / PER_SECOND
        first = time.perf_counter() // (1 / PER_SECOND) * (1 / PER_SECOND) + 1 / PER_SECOND + phase
        heapq.heappush(self._due, (first, stream.socket.fileno(), stream))

    def _end(self, stream: Stream) -> None:
        stream.is_flowing = False
        self._streams.pop(stream.socket.fileno(), None)
        stream.socket.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--token", required=True, help="the credential that a proxy puts in")
    options = parser.parse_args()
    # Short sleeps are rounded up by 50 us otherwise.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    Origin(options.port, context, options.token).run()


if __name__ == "__main__":
    main()
