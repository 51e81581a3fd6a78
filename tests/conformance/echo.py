"""Pods that answer with what they saw, in HTTP/1.1, HTTP/2 and gRPC: each at a loopback address of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import socketserver
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.conformance.authorization import CHECK, check
from tests.support.http2 import GrpcCall, Http2Server

HTTP_PORT, H2C_PORT, TLS_PORT = 3000, 3001, 8443
WAIT_S = 20
#: For SO_LINGER: a socket that is closed sends RST.
AT_ONCE = b"\1\0\0\0\0\0\0\0"


@dataclass
class Pod:
    """A pod of a Service. What it answers is JSON (of gRPC: as the message): who it is, and the request as it came.

    With `tls` it listens on TLS_PORT, too. With `h2c` it listens on H2C_PORT, too, where it speaks HTTP/2 alone.
    Every pod is an authorization server for those who ask in gRPC.

    The query of a request may ask for more: `delay` (seconds), `status`, `fail` (`500x2`: that status for the first two
    requests of the path; `0x2`: it resets their connections), `set` (`name:value`, a field of the answer).
    """

    address: str
    service: str
    namespace: str
    number: int = 1
    tls: ssl.SSLContext | None = None
    h2c: bool = False
    broken: bool = False  # resets each connection
    log: list[dict[str, Any]] = field(default_factory=list)  # of all pods
    seen: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    _servers: list[socketserver.ThreadingTCPServer] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.service}-{self.number}"

    @property
    def port(self) -> int:
        return TLS_PORT if self.tls else HTTP_PORT

    def start(self) -> Pod:
        for port in (HTTP_PORT, *([TLS_PORT] if self.tls else []), *([H2C_PORT] if self.h2c else [])):
            server = _Server(self, port)
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name=self.name).start()
            self._servers.append(server)
        return self

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def saw(self, sock: socket.socket, method: str, path: str, fields: dict[str, list[str]], body: bytes) -> bytes:
        """Keep a request, and make of it what is answered."""
        seen = {
            "pod": self.name, "service": self.service, "namespace": self.namespace, "method": method, "path": path,
            "host": fields.get("host", [""])[0], "headers": fields, "body": body.decode("latin-1"), "is_http2": False,
        }  # fmt: skip
        if ":authority" in fields:
            seen |= {"host": fields[":authority"][0], "is_http2": True}
        if isinstance(sock, ssl.SSLSocket):
            peer = sock.getpeercert(binary_form=True)
            shown = ssl.DER_cert_to_PEM_cert(peer) if peer else ""
            seen["tls"] = {"sni": getattr(sock, "asked_name", ""), "client": shown}
        self.seen.append(seen)
        self.log.append(seen)
        return json.dumps(seen).encode()

    def asked_for(self, path: str) -> tuple[int, list[tuple[str, str]]]:
        """The status and the fields that the query of a path asks for, after the delay that it asks for."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}
        time.sleep(float(query.get("delay", "0")))
        status = int(query.get("status", "200"))
        if "fail" in query:
            code, _, times = query["fail"].partition("x")
            self.failed[path] = self.failed.get(path, 0) + 1
            if self.failed[path] <= int(times):
                status = int(code)
        pairs = [pair.partition(":") for pair in query["set"].split(",")] if "set" in query else []
        return status, [(name, value) for name, _, value in pairs]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def __init__(self, pod: Pod, port: int) -> None:
        self.pod, self.port = pod, port
        super().__init__((pod.address, port), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        request.settimeout(WAIT_S)
        try:
            if self.pod.broken:
                request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                request.recv(1)
                request.close()
                return
            if self.port != TLS_PORT or self.pod.tls is None:
                is_http2 = request.recv(3, socket.MSG_PEEK) == b"PRI"
            else:
                # A context of one server has one callback: the name is taken per connection.
                self.pod.tls.sni_callback = lambda sock, name, _: setattr(sock, "asked_name", name or "")
                request = self.pod.tls.wrap_socket(request, server_side=True)
                is_http2 = request.selected_alpn_protocol() == "h2"
            if is_http2:
                _speak_http2(self.pod, request)
            elif self.port == H2C_PORT:
                request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                _Handler(request, client_address, self)
        except OSError:
            pass


def _speak_http2(pod: Pod, sock: socket.socket) -> None:
    """One connection, until its client leaves. Requests are answered one after the other."""
    server, answered = Http2Server(), set[int]()
    sock.sendall(server.outgoing())
    while piece := sock.recv(65536):
        server.take(piece)
        for stream, call in server.calls.items():
            if call.is_whole and stream not in answered:
                answered.add(stream)
                _answer_call(pod, sock, server, call)
        sock.sendall(server.outgoing())


def _answer_call(pod: Pod, sock: socket.socket, server: Http2Server, call: GrpcCall) -> None:
    fields: dict[str, list[str]] = {}
    for name, value in call.lines:
        fields.setdefault(name.decode(), []).append(value.decode())
    path = fields[":path"][0]
    content = pod.saw(sock, fields[":method"][0], path, fields, bytes(call.data))
    if call.headers.get(b"content-type", b"").startswith(b"application/grpc"):
        server.answer(call.stream, check(call.message) if path == CHECK else content)
        return
    status, more = pod.asked_for(path)
    head = [(b":status", b"%d" % status), *((key.lower().encode(), asked.encode()) for key, asked in more)]
    server.respond(call.stream, [*head, (b"content-type", b"application/json")], content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Nothing is written."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        fields: dict[str, list[str]] = {}
        for name, value in self.headers.items():
            fields.setdefault(name.lower(), []).append(value)
        content = self.server.pod.saw(self.connection, self.command, self.path, fields, self._body())
        if "upgrade" in fields:
            self._upgrade()
            return
        status, more = self.server.pod.asked_for(self.path)
        if not status:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            socket.close(self.connection.detach())  # a plain close would wait for the files of this handler
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in more:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _upgrade(self) -> None:
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["upgrade"])
        key = self.headers.get("sec-websocket-key", "").encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        digest = hashlib.sha1(key, usedforsecurity=False).digest()
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        while piece := self.connection.recv(1024):
            self.connection.sendall(piece)
