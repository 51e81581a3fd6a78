"""The workloads: what is asked of a proxy, by which generator, and how the answer is checked beforehand."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxies import Proxy
from benchmarks.world import HOST, World, find_program

__all__ = ["WORKLOADS", "LoadError", "Outcome", "Workload"]

CONNECTIONS = 64
BODY_BYTES = 1024
#: A generator that does not end this long after its time is killed.
GRACE_S = 15.0
#: With Host, a request has 12 fields.
REQUEST_FIELDS = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36",
    "Accept: application/json, text/plain;q=0.9, */*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br",
    "Cache-Control: no-cache",
    "Referer: http://h137.bench.example/index.html",
    "Cookie: session=4f0c2c9d1b7e4b06a7a2d2b7d7f7a1c3; theme=dark",
    "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Client-Version: 5.12.0",
    "X-Debug: removed-by-the-proxy",
    "Authorization: Bearer the-clients-own",
)


class LoadError(Exception):
    """The proxy does not do what is measured, or an error occurred under load: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a generator counted in one round. Times in microseconds."""

    units: int
    seconds: float
    errors: int
    p50_us: int
    p99_us: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`unit` is what CPU time is divided by."""

    name: str
    title: str
    unit: str

    def check(self, proxy: Proxy, world: World) -> None:
        """One unit, looked at closely. Raises LoadError."""
        port = proxy.tunnel_port() if self.name == "W3" else self._port(proxy)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                if self.name == "W3":
                    if not proxy.forwards_raw_tcp:
                        authority = f"{HOST}:{world.plain_port}"
                        connection.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
                        answer = connection.recv(65536)
                        if not answer.startswith(b"HTTP/1.1 200"):
                            raise LoadError(f"{proxy.name} answers CONNECT with {_first(answer)}")
                    connection.sendall(f"GET /tunnel HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                else:
                    connection.sendall(self.request(world))
                answer = b""
                while len(answer.partition(b"\r\n\r\n")[2]) < BODY_BYTES and (data := connection.recv(65536)):
                    answer += data
        except OSError as error:
            raise LoadError(f"{proxy.name} does not answer {self.name}: {error}") from None
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or len(body) != BODY_BYTES:
            raise LoadError(f"{proxy.name} answers {self.name} with {_first(answer)} {body[:200].decode('latin-1')}")
        if self.name != "W3" and (b"x-served-by: bench" not in head.lower() or b"x-internal-note" in head.lower()):
            raise LoadError(f"{proxy.name} does not edit the response of {self.name} as its configuration says")

    def run(self, proxy: Proxy, world: World, seconds: float) -> Outcome:
        """One round of load. Raises LoadError where the generator fails."""
        command = self._tunnels(proxy, world, seconds) if self.name == "W3" else self._wrk(proxy, world, seconds)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            raise LoadError(f"{self.name} through {proxy.name} did not end in time") from None
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise LoadError(f"{self.name} through {proxy.name}: {(done.stderr or done.stdout)[-300:]}")
        return Outcome(**json.loads(lines[-1]))

    def request(self, world: World) -> bytes:
        if self.name == "W2":
            target, host = "/full", HOST
        else:
            host = f"{HOST}:{world.plain_port}"
            target = f"http://{host}/{'small' if self.name == 'W1s' else 'full'}"
        fields = REQUEST_FIELDS[:1] if self.name == "W1s" else REQUEST_FIELDS
        return "\r\n".join([f"GET {target} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode()

    def _port(self, proxy: Proxy) -> int:
        return proxy.ports["REVERSE" if self.name == "W2" else "FORWARD"]

    def _wrk(self, proxy: Proxy, world: World, seconds: float) -> list[str]:
        wrk = find_program("wrk")
        if wrk is None:
            raise LoadError("the generator of W1 and W2 is wrk, and there is none; on Debian: apt-get install wrk")
        path = world.folder / f"{self.name}.request"
        path.write_bytes(self.request(world))
        script = Path(__file__).parent / "load" / "requests.lua"
        return [
            wrk, "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "5s", "-s", str(script),
            f"http://127.0.0.1:{self._port(proxy)}/", "--", str(path),
        ]  # fmt: skip

    def _tunnels(self, proxy: Proxy, world: World, seconds: float) -> list[str]:
        raw = ["--raw"] if proxy.forwards_raw_tcp else []
        return [
            sys.executable, "-m", "benchmarks.load.tunnels", "--port", str(proxy.tunnel_port()),
            "--authority", f"{HOST}:{world.plain_port}", "--seconds", str(seconds), *raw,
        ]  # fmt: skip


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("W1", "forward, absolute-form GET, 1 KiB, keep-alive, 12 and 15 fields", "request"),
        Workload("W1s", "the same with 2 request fields and 5 response fields", "request"),
        Workload("W2", "reverse, plain client, TLS to the upstream, pooled, credential", "request"),
        Workload("W3", "CONNECT, one GET inside, close", "connection"),
    )
}


def _first(answer: bytes) -> str:
    return answer.partition(b"\r\n")[0].decode("latin-1") or "nothing"
