"""A client of HTTP/2 for the cases: requests and calls of gRPC, on one connection to a Gateway."""

from __future__ import annotations

import json
import socket
import ssl
from types import TracebackType
from typing import Any

from tests.conformance.suite import Answer, Suite
from tests.support.http2_client import Answer as Stream
from tests.support.http2_client import Http2Client
from tests.support.waiting import WAIT_S

#: Statuses of gRPC, as `Answer.status` of a call has them.
OK, UNKNOWN, UNIMPLEMENTED, UNAVAILABLE = 0, 2, 12, 14


class Http2Asking:
    """A connection: by prior knowledge, or over TLS with ALPN where `sni` is given."""

    def __init__(
        self, suite: Suite, gateway: str, *, sni: str = "", port: int = 0, context: ssl.SSLContext | None = None
    ) -> None:
        self._client = Http2Client()
        address = (suite.address(gateway), port or (443 if sni else 80))
        self._sock: socket.socket = socket.create_connection(address, WAIT_S)
        self._scheme = b"https" if sni else b"http"
        if sni:
            chosen = context or suite.client()
            chosen.set_alpn_protocols(["h2"])
            self._sock = chosen.wrap_socket(self._sock, server_hostname=sni)
            assert self._sock.selected_alpn_protocol() == "h2"

    def __enter__(self) -> Http2Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def ask(
        self,
        path: str = "/",
        host: str = "example.com",
        *,
        method: str = "GET",
        body: bytes | None = None,
        **fields: str,
    ) -> Answer:
        """A request, without Content-Length; raises ConnectionError where the connection ends before its answer."""
        got = self._exchange(method, path, host, fields, body)
        text = bytes(got.data).decode()
        pairs = tuple((name.decode(), value.decode()) for name, value in got.fields if not name.startswith(b":"))
        return Answer(got.status, pairs, text, json.loads(text) if text.startswith('{"pod"') else None)

    def call(self, path: str, host: str = "example.com", **metadata: str) -> Answer:
        """A unary call of gRPC (`path` is `/package.Service/Method`): its status is that of gRPC, its body the text."""
        fields = {"content-type": "application/grpc", "te": "trailers", **metadata}
        got = self._exchange("POST", path, host, fields, b"\0\0\0\0\0")
        assert got.status == 200, got
        ending = dict(got.trailers if got.trailers is not None else got.fields)
        echo: dict[str, Any] | None = json.loads(got.data[5:]) if got.data else None
        pairs = tuple((name.decode(), value.decode()) for name, value in got.fields if not name.startswith(b":"))
        return Answer(int(ending[b"grpc-status"]), pairs, ending.get(b"grpc-message", b"").decode(), echo)

    def _exchange(self, method: str, path: str, host: str, fields: dict[str, str], body: bytes | None) -> Stream:
        head = [(":method", method), (":scheme", self._scheme.decode()), (":authority", host), (":path", path)]
        head += [(name.lower().replace("_", "-"), value) for name, value in fields.items()]
        stream = self._client.request([(name.encode(), value.encode()) for name, value in head], body)
        self._sock.sendall(self._client.outgoing())
        got = self._client.of(stream)
        while not got.is_whole and got.reset is None:
            piece = self._sock.recv(65536)
            if not piece:
                raise ConnectionError(f"closed before {method} {path} was answered; {self._client.goaways}")
            self._client.take(piece)
            self._sock.sendall(self._client.outgoing())
        return got


def call(suite: Suite, gateway: str, path: str, host: str = "example.com", **metadata: str) -> Answer:
    """A call on a connection of its own."""
    with Http2Asking(suite, gateway) as asking:
        return asking.call(path, host, **metadata)
