"""W8: calls of gRPC on connections that stay, driven by h2load."""

from __future__ import annotations

import socket

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from benchmarks.generators import LoadError, Outcome, run_h2load
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.requests import Requests
from benchmarks.world import GRPC_HOST, GRPC_MESSAGE, World

PATH = "/bench.Echo/Say"
REQUEST_FIELDS = (
    "te: trailers",
    "content-type: application/grpc",
    "user-agent: grpc-c++/1.66.0 grpc-c/43.0.0 (linux; chttp2)",
    "grpc-accept-encoding: identity, deflate, gzip",
    "grpc-timeout: 20S",
    "x-client-version: 5.12.0",
    "x-debug: removed-by-the-proxy",
    "authorization: Bearer the-clients-own",
)
TIMEOUT_S = 20


class Calls(Requests):
    """A unary call of one small message each way, HTTP/2 on both sides, TLS to the upstream."""

    figure = "CPU µs/call"
    per_second = "calls/s"

    def check(self, proxy: Proxy, world: World) -> None:
        what = f"{proxy.name} in {self.name}"
        try:
            head, message, trailers = _call(proxy.reverse_port(GRPC_HOST))
        except (OSError, ProtocolError) as error:
            raise LoadError(f"{what}: {error}") from None
        if head.get(b":status") != b"200" or trailers.get(b"grpc-status") != b"0":
            raise LoadError(f"{what}: answered with {head | trailers}: {message[:200]!r}")
        if message != GRPC_MESSAGE:
            raise LoadError(f"{what}: the message is another: {message[:200]!r}")
        if proxy.edits and (head.get(b"x-served-by") != b"bench" or b"x-internal-note" in head):
            raise LoadError(f"{what}: it does not edit the response as its configuration says")

    def load(self, proxy: Proxy, world: World, seconds: float) -> Outcome:
        path = world.folder / f"{self.name}.request"
        path.write_bytes(GRPC_MESSAGE)
        url = f"http://127.0.0.1:{proxy.reverse_port(GRPC_HOST)}{PATH}"
        fields = (f":authority: {GRPC_HOST}", *REQUEST_FIELDS)
        return run_h2load(url, seconds, fields, f"{self.name} through {proxy.name}", path)


def _call(port: int) -> tuple[dict[bytes, bytes], bytes, dict[bytes, bytes]]:
    """One call: head, body and trailers of what comes back. Raises OSError or ProtocolError."""
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding=False))
    fields = [tuple(field.split(": ", 1)) for field in REQUEST_FIELDS]
    head: dict[bytes, bytes] = {}
    body = b""
    trailers: dict[bytes, bytes] = {}
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        h2.initiate_connection()
        request = [(":method", "POST"), (":scheme", "http"), (":authority", GRPC_HOST), (":path", PATH)]
        h2.send_headers(1, [*request, *fields])
        h2.send_data(1, GRPC_MESSAGE, end_stream=True)
        while True:
            connection.sendall(h2.data_to_send())
            data = connection.recv(65536)
            if not data:
                raise OSError("the connection ended before the answer")
            for event in h2.receive_data(data):
                if isinstance(event, ResponseReceived):
                    head = dict(event.headers)
                elif isinstance(event, DataReceived):
                    body += event.data
                elif isinstance(event, TrailersReceived):
                    trailers = dict(event.headers)
                elif isinstance(event, StreamEnded):
                    return head, body, trailers
                elif isinstance(event, StreamReset | ConnectionTerminated):
                    raise OSError(f"the call was ended with error code {event.error_code}")
