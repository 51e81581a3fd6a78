"""Asks inside of tunnels that the proxy opens: CONNECT, TLS with what the proxy shows, some GETs, close. Prints a line
of JSON.

    python -m benchmarks.load.opened --port 3129 --authority upstream.bench.example:8443 --ca ca.crt --seconds 3

A process of its own, a thread for each tunnel: their TLS is OpenSSL's, which lets others run meanwhile. The request is
read from a file, so that it is the one that was checked before.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

BODY = 1024
#: No answer for so long means that the proxy has stopped serving.
SILENCE_S = 10.0


class Tunnels:
    """What all threads share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._port = options.port
        self._authority = options.authority.encode()
        self._requests = options.requests
        self._request = options.request.read_bytes()
        self._context = ssl.create_default_context(cafile=options.ca)
        self._context.set_alpn_protocols(["http/1.1"])
        self._ends_at = time.perf_counter() + options.seconds
        self.times: list[float] = []
        self.errors = 0

    def serve(self) -> None:
        """One tunnel after the other, until the time is over."""
        while time.perf_counter() < self._ends_at:
            try:
                self._one()
            except OSError:
                self.errors += 1

    def _one(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=SILENCE_S) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (self._authority, self._authority))
            if not plain.recv(65536).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                raise ConnectionRefusedError("no tunnel")
            host = self._authority.partition(b":")[0].decode()
            with self._context.wrap_socket(plain, server_hostname=host) as tls:
                for _ in range(self._requests):
                    begun = time.perf_counter()
                    if begun >= self._ends_at:
                        return
                    tls.sendall(self._request)
                    received = b""
                    while not _is_whole(received):
                        piece = tls.recv(65536)
                        if not piece:
                            raise ConnectionResetError("the proxy closed early")
                        received += piece
                    self.times.append(time.perf_counter() - begun)


def _is_whole(received: bytes) -> bool:
    head, separator, body = received.partition(b"\r\n\r\n")
    if separator and not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionRefusedError(head[:80])
    return bool(separator) and len(body) >= BODY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--ca", required=True, help="what the proxy's certificates are signed with, PEM")
    parser.add_argument("--request", type=Path, required=True, help="the request, as it is sent")
    parser.add_argument("--requests", type=int, default=1000, help="in each tunnel (default: 1,000)")
    parser.add_argument("--width", type=int, default=8, help="tunnels at a time (default: 8)")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    tunnels = Tunnels(options)
    begun = time.perf_counter()
    threads = [threading.Thread(target=tunnels.serve) for _ in range(options.width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    times = sorted(tunnels.times) or [0.0]
    print(
        json.dumps(
            {
                "units": len(tunnels.times),
                "seconds": seconds,
                "errors": tunnels.errors,
                "p50_us": round(times[len(times) // 2] * 1e6),
                "p99_us": round(times[len(times) * 99 // 100] * 1e6),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
