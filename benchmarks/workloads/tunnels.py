"""W3, W4 and W6: what is done with CONNECT. Load generators are those of benchmarks/load."""

from __future__ import annotations

import socket
import time

from benchmarks.generators import Generator, LoadError, python_generator, run_generator
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import CpuTime, Round, Workload, child_of, fresh_copy, read_answer
from benchmarks.world import BODY, World

GIB = 1024**3
#: Open before the first look, so that what is made once for all tunnels is not counted.
FIRST_TUNNELS = 100
TUNNELS = 2000
#: Until a proxy's memory is at rest.
REST_S = 0.6


class _Tunnels(Workload):
    """What the three have in common: how a tunnel is asked for, and one that is looked at closely."""

    def check(self, proxy: Proxy, world: World) -> None:
        what = f"{proxy.name} in {self.name}"
        authority = _authority(proxy, world)
        try:
            with socket.create_connection(("127.0.0.1", proxy.tunnel_port()), timeout=20) as connection:
                if not proxy.forwards_raw_tcp:
                    connection.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
                    answer = connection.recv(65536)
                    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                        raise LoadError(f"{what}: CONNECT is answered with {answer.partition(b'%c' % 13)[0]!r}")
                connection.sendall(f"GET /tunnel HTTP/1.1\r\nHost: {proxy.host}\r\nConnection: close\r\n\r\n".encode())
                _, body = read_answer(connection, what)
        except OSError as error:
            raise LoadError(f"{what}: {error}") from None
        if body != BODY.encode():
            raise LoadError(f"{what}: the body is another: {body[:200]!r}")


class Connects(_Tunnels):
    """A tunnel for every request."""

    name = "W3"
    title = "CONNECT, one GET of 1 KiB inside, close"
    figure = "CPU µs/connection"
    per_second = "connections/s"

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        cpu = CpuTime(proxy)
        command = python_generator("tunnels", *_address(proxy, world), "--seconds", str(seconds))
        outcome = run_generator(command, seconds, f"{self.name} through {proxy.name}")
        return Round(cpu.settled_seconds() / outcome.units * 1e6, outcome, cpu.resident_mib())


class Transfers(_Tunnels):
    """Bytes in bulk."""

    name = "W4"
    title = "8 tunnels, 10 MiB through each, again and again"
    figure = "CPU s/GiB"
    per_second = "MiB/s"
    digits = 3

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        cpu = CpuTime(proxy)
        command = python_generator("transfers", *_address(proxy, world), "--seconds", str(seconds))
        outcome = run_generator(command, seconds, f"{self.name} through {proxy.name}")
        return Round(cpu.settled_seconds() / outcome.units * GIB, outcome, cpu.resident_mib())


class IdleTunnels(_Tunnels):
    """Tunnels that nothing goes through. Each round has a proxy of its own, which has served nothing before."""

    name = "W6"
    title = f"memory of an idle CONNECT tunnel, {TUNNELS:,} open, without the kernel's buffers"
    figure = "KiB/tunnel"
    digits = 2

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        with fresh_copy(proxy, world) as fresh:
            command = python_generator("holding", *_address(fresh, world), str(FIRST_TUNNELS), str(TUNNELS))
            with Generator(command, f"{self.name} through {proxy.name}") as holding:
                holding.answer()
                before = _proportional_kib(fresh)
                holding.go_on()
                holding.answer(60)
                after = _proportional_kib(fresh)
                resident_mib = sum(each.resident for each in child_of(fresh).memory().values()) / 1024
        return Round((after - before) / TUNNELS, None, resident_mib, {"before_mib": before / 1024})

    def warm_up(self, proxy: Proxy, world: World, seconds: float) -> None:
        """Nothing stays warm in a process that is new each time."""


def _authority(proxy: Proxy, world: World) -> str:
    return f"{proxy.host}:{world.plain_port}"


def _address(proxy: Proxy, world: World) -> list[str]:
    raw = ["--raw"] if proxy.forwards_raw_tcp else []
    return ["--port", str(proxy.tunnel_port()), "--authority", _authority(proxy, world), *raw]


def _proportional_kib(proxy: Proxy) -> int:
    time.sleep(REST_S)
    return sum(each.proportional for each in child_of(proxy).memory().values())
