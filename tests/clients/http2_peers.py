"""An origin of HTTP/2 that sends back what it gets, trailers too, and a client that sends and takes them."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

from tests.support.http2 import GrpcCall, Http2Server
from tests.support.http2_client import Http2Client, head
from tests.support.waiting import WAIT_S

Lines = list[tuple[bytes, bytes]]


class EchoOrigin:
    """Answers with the body that it got, and with its trailers as `got-…` before `x-end: 1` and `x-drop: 1`."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.calls: list[GrpcCall] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        server = Http2Server()
        answered: set[int] = set()
        with sock:
            while True:
                sock.sendall(server.outgoing())
                try:
                    data = sock.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                server.take(data)
                for stream, call in list(server.calls.items()):
                    if call.is_whole and stream not in answered:
                        answered.add(stream)
                        self.calls.append(call)
                        self._answer(server, call)

    def _answer(self, server: Http2Server, call: GrpcCall) -> None:
        kind = call.headers.get(b"content-type", b"text/plain")
        trailers = [(b"got-" + name, value) for name, value in sorted(call.trailers.items())]
        trailers += [(b"x-end", b"1"), (b"x-drop", b"1")]
        if kind == b"application/grpc":
            trailers += [(b"grpc-status", b"5"), (b"grpc-message", b"not found")]
        server.respond(call.stream, [(b":status", b"200"), (b"content-type", kind)], bytes(call.data), trailers)


@dataclass
class Received:
    """What the client got. `trailers` None: none came. `reset`: the error code that ended the stream."""

    status: int = 0
    fields: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[bytes, bytes] | None = None
    reset: int | None = None


def exchange(port: int, path: str, body: bytes, trailers: Lines | None, *fields: tuple[bytes, bytes]) -> Received:
    """One POST over HTTP/2 without TLS."""
    client = Http2Client()
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
        lines = [*head(b"POST", path.encode(), b"origin.test"), (b"te", b"trailers"), *fields]
        stream = client.request(lines, body, ends=trailers is None)
        if trailers is not None:
            client.h2.send_headers(stream, trailers, end_stream=True)
        answer = client.of(stream)
        while not answer.is_whole and answer.reset is None:
            sock.sendall(client.outgoing())
            data = sock.recv(65536)
            if not data:
                break
            client.take(data)
    status = answer.status
    return Received(
        status, dict(answer.fields), bytes(answer.data),
        dict(answer.trailers) if answer.trailers is not None else None, None if answer.is_whole else answer.reset,
    )  # fmt: skip
