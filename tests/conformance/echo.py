"""Pods that answer with what they saw: one HTTP/1.1 server for each, at a loopback address of its own."""

from __future__ import annotations

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

__all__ = ["HTTP_PORT", "TLS_PORT", "Pod"]

HTTP_PORT, TLS_PORT = 3000, 8443
WAIT_S = 20


@dataclass
class Pod:
    """A pod of a Service. What it answers is JSON: who it is, and the request as it came.

    The query of a request may ask for more: `delay` (seconds), `status`, `fail` (`500x2`: that status for the first two
    requests of the path), `set` (`name:value`, a field of the answer).
    """

    address: str
    service: str
    namespace: str
    number: int = 1
    tls: ssl.SSLContext | None = None
    broken: bool = False  # resets each connection
    log: list[dict[str, Any]] = field(default_factory=list)  # of all pods
    seen: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    _server: socketserver.ThreadingTCPServer | None = None

    @property
    def name(self) -> str:
        return f"{self.service}-{self.number}"

    @property
    def port(self) -> int:
        return TLS_PORT if self.tls else HTTP_PORT

    def start(self) -> Pod:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True, name=self.name).start()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        super().__init__((pod.address, pod.port), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        request.settimeout(WAIT_S)
        try:
            if self.pod.broken:
                request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                request.recv(1)
                request.close()
                return
            if self.pod.tls is not None:
                # A context of one server has one callback: the name is taken per connection.
                self.pod.tls.sni_callback = lambda sock, name, _: setattr(sock, "asked_name", name or "")
                request = self.pod.tls.wrap_socket(request, server_side=True)
            _Handler(request, client_address, self)
        except OSError:
            pass


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
        pod, url = self.server.pod, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        fields: dict[str, list[str]] = {}
        for name, value in self.headers.items():
            fields.setdefault(name.lower(), []).append(value)
        body = self._body()
        seen = {
            "pod": pod.name, "service": pod.service, "namespace": pod.namespace, "method": self.command,
            "path": self.path, "host": self.headers.get("host", ""), "headers": fields, "body": body.decode("latin-1"),
        }  # fmt: skip
        if isinstance(self.connection, ssl.SSLSocket):
            peer = self.connection.getpeercert(binary_form=True)
            shown = ssl.DER_cert_to_PEM_cert(peer) if peer else ""
            seen["tls"] = {"sni": getattr(self.connection, "asked_name", ""), "client": shown}
        pod.seen.append(seen)
        pod.log.append(seen)
        if "upgrade" in fields:
            self._upgrade()
            return
        time.sleep(float(query.get("delay", "0")))
        status = int(query.get("status", "200"))
        if "fail" in query:
            code, _, times = query["fail"].partition("x")
            pod.failed[self.path] = pod.failed.get(self.path, 0) + 1
            if pod.failed[self.path] <= int(times):
                status = int(code)
        content = json.dumps(seen).encode()
        self.send_response(status)
        if "set" in query:
            for pair in query["set"].split(","):
                name, _, value = pair.partition(":")
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
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        while piece := self.connection.recv(1024):
            self.connection.sendall(piece)
