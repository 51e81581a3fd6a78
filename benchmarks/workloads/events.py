"""W5: event streams through the reverse proxy."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Sequence

from benchmarks.generators import Generator, LoadError, Outcome, python_generator
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import CpuTime, Round, Workload
from benchmarks.world import EVENTS_HOST, TLS_NAME, World

STREAMS = 200
PER_SECOND = 50
#: Below this share of the events that were due, it was not the proxy alone that was measured.
LEAST_SHARE = 0.9
FIELDS = ("X-Debug: removed-by-the-proxy", "Authorization: Bearer the-clients-own")


class Events(Workload):
    """CPU time while the streams flow, without their beginnings; latency beside that of a run without a proxy."""

    name = "W5"
    title = f"{STREAMS} event streams of {PER_SECOND} events/s each, plain client, TLS to the upstream"
    figure = "CPU µs/event"
    per_second = "events/s"

    def __init__(self) -> None:
        self._direct_p50_us = 0.0

    def check(self, proxy: Proxy, world: World) -> None:
        what = f"{proxy.name} in {self.name}"
        lines = ["GET /events HTTP/1.1", f"Host: {EVENTS_HOST}", *FIELDS, "", ""]
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", proxy.reverse_port(EVENTS_HOST)), timeout=20) as connection:
                connection.sendall("\r\n".join(lines).encode())
                while b"\n\n" not in answer and (data := connection.recv(65536)):
                    answer += data
        except OSError as error:
            raise LoadError(f"{what}: {error}") from None
        head = answer.partition(b"\r\n\r\n")[0].lower()
        if not head.startswith(b"http/1.1 200"):
            raise LoadError(f"{what}: answered with {head[:100]!r}")
        if proxy.edits and (b"\r\nx-served-by: bench" not in head or b"\r\nx-internal-note" in head):
            raise LoadError(f"{what}: it does not edit the response as its configuration says")

    def before_round(self, world: World, seconds: float) -> None:
        """Latency between client and origin without a proxy, with TLS and the same generator."""
        fields = ("X-Gateway: bench", f"Authorization: Bearer {world.token}")
        command = _command(world.events_port, TLS_NAME, fields, "--direct", str(world.folder / "ca.crt"))
        with Generator(command, "W5 without a proxy") as reader:
            reader.answer()
            reader.go_on(seconds)
            self._direct_p50_us = _outcome(reader, seconds).p50_us

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        command = _command(proxy.reverse_port(EVENTS_HOST), EVENTS_HOST, FIELDS)
        with Generator(command, f"{self.name} through {proxy.name}") as reader:
            reader.answer()
            cpu = CpuTime(proxy)
            reader.go_on(seconds)
            outcome = _outcome(reader, seconds)
            spent = cpu.seconds()
        extra = {"added_p50_us": outcome.p50_us - self._direct_p50_us, "direct_p50_us": self._direct_p50_us}
        return Round(spent / outcome.units * 1e6, outcome, cpu.resident_mib(), extra)

    def describe(self, rounds: Sequence[Round]) -> str:
        added = [each.extra["added_p50_us"] for each in rounds]
        return f"adds {statistics.median(added):.0f} µs to the p50 ({min(added):.0f} to {max(added):.0f})"


def _command(port: int, host: str, fields: Sequence[str], *more: str) -> list[str]:
    named = [word for field in fields for word in ("--field", field)]
    return python_generator("events", "--port", str(port), "--host", host, "--streams", str(STREAMS), *named, *more)


def _outcome(reader: Generator, seconds: float) -> Outcome:
    outcome = Outcome(**reader.answer(seconds))
    outcome.refuse_errors()
    share = outcome.units / (STREAMS * PER_SECOND * outcome.seconds)
    if share < LEAST_SHARE:
        raise LoadError(f"only {share:.0%} of the events that were due have come: the machine is too slow or too busy")
    return outcome
