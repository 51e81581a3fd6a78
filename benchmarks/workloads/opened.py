"""W9: requests in tunnels that the proxy opens, driven by benchmarks/load/opened."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators import LoadError, python_generator, run_generator
from benchmarks.processes import StartError
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import CpuTime, Round, Workload, read_answer
from benchmarks.workloads.requests import REQUEST_FIELDS
from benchmarks.world import BODY, TLS_NAME, World

#: In each tunnel: clients of HTTP keep their connections, as in W1 and W2.
REQUESTS = 1000


class OpenedTunnels(Workload):
    """The proxy ends the client's TLS with a certificate of its own CA, edits the request, and speaks TLS with the
    upstream.
    """

    name = "W9"
    title = f"interception: CONNECT, TLS that the proxy ends, {REQUESTS:,} GETs of 1 KiB inside, credential, TLS on"
    figure = "CPU µs/request"
    per_second = "requests/s"

    def __init__(self) -> None:
        self._opening: dict[str, Proxy] = {}  # by the name of the proxy that is compared
        self._started: list[Proxy] = []

    def choose(self, proxies: Sequence[Proxy]) -> list[Proxy]:
        """Few can."""
        return [proxy for proxy in proxies if proxy.opens_tunnels]

    def check(self, proxy: Proxy, world: World) -> None:
        """One request inside, whose edits the upstream and we look at."""
        opening = self._opening[proxy.name] = proxy.opening()
        if opening is not proxy:
            self._started.append(opening)
            try:
                opening.start(world, proxy.core)
            except StartError as error:
                raise LoadError(str(error)) from None
        what = f"{proxy.name} in {self.name}"
        authority = self._authority(world)
        try:
            with socket.create_connection(("127.0.0.1", opening.tunnel_port()), timeout=20) as plain:
                plain.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
                answer = plain.recv(65536)
                if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                    raise LoadError(f"{what}: CONNECT is answered with {answer[:80]!r}")
                context = ssl.create_default_context(cafile=str(opening.opened_ca))
                with context.wrap_socket(plain, server_hostname=TLS_NAME) as tls:
                    tls.sendall(self._request(world).read_bytes())
                    response, body = read_answer(tls, what)
        except OSError as error:
            raise LoadError(f"{what}: {error}") from None
        if body != BODY.encode():
            raise LoadError(f"{what}: the body is another: {body[:200]!r}")
        if response.getheader("X-Served-By") != "bench" or response.getheader("X-Internal-Note") is not None:
            raise LoadError(f"{what}: it does not edit the response as its configuration says")

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        """One round."""
        opening = self._opening[proxy.name]
        cpu = CpuTime(opening)
        command = python_generator(
            "opened", "--port", str(opening.tunnel_port()), "--authority", self._authority(world),
            "--ca", str(opening.opened_ca), "--request", str(self._request(world)), "--requests", str(REQUESTS),
            "--seconds", str(seconds),
        )  # fmt: skip
        outcome = run_generator(command, seconds, f"{self.name} through {proxy.name}")
        return Round(cpu.settled_seconds() / outcome.units * 1e6, outcome, cpu.resident_mib())

    def close(self) -> None:
        """End what was started for this workload alone."""
        for proxy in self._started:
            proxy.stop()
        self._started.clear()
        self._opening.clear()

    def _authority(self, world: World) -> str:
        return f"{TLS_NAME}:{world.tls_port}"

    def _request(self, world: World) -> Path:
        path = world.folder / f"{self.name}.request"
        if not path.exists():
            lines = (f"GET /full HTTP/1.1\r\nHost: {self._authority(world)}", *REQUEST_FIELDS)
            path.write_text("\r\n".join(lines) + "\r\n\r\n", "ascii", newline="")
        return path
