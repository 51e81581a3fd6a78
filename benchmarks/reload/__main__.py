"""`python -m benchmarks.reload`: how soon a change is in force, idle and beside programs that keep the cores busy."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.processes import StartError
from benchmarks.reload.files import changes
from benchmarks.reload.subject import busy
from benchmarks.reload.writes import by_clients, by_kubectl

MEASURES = ("files", "kubectl", "clients")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("names", nargs=-1, type=click.Choice(MEASURES), metavar="[NAME]…")
@click.option("--count", type=click.IntRange(1, 1000), default=50, show_default=True, help="Changes, and objects.")
@click.option("--busy", "programs", type=click.IntRange(0, 64), multiple=True, default=(0, 2), show_default=True,
              help="How many programs spin meanwhile, at the same priority; each is a run of its own.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Of `egressproxy run`.")
def main(names: tuple[str, ...], count: int, programs: tuple[int, ...], workers: int) -> None:
    """Measure reloads and writes of a small configuration. Without a NAME: everything, about two minutes.

    \b
    files     a file gets one deny more: from its rename to the first 403
    kubectl   `kubectl apply -f` of one file with all objects, client-side and with --server-side
    clients   as many writers as objects, all at once, each with one object
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the gateway is stopped
    for number in programs:
        beside = f"{number} busy programs" if number else "idle"
        with busy(number):
            for name in names or MEASURES:
                with tempfile.TemporaryDirectory(prefix="egressproxy-reload-") as folder:
                    try:
                        _measure(name, Path(folder), count, workers, beside)
                    except StartError as error:
                        click.echo(f"{name}: {error}", err=True)
                        sys.exit(1)


def _measure(name: str, folder: Path, count: int, workers: int, beside: str) -> None:
    if name == "files":
        click.echo(f"files, {beside}: {summary(changes(folder, count, workers))}")
    elif name == "kubectl":
        for kind, arguments in (("client-side", ()), ("server-side", ("--server-side",))):
            taken = by_kubectl(folder / kind, count, workers, arguments)
            click.echo(f"kubectl apply {kind} of {count} objects, {beside}: {taken:.2f} s")
    else:
        click.echo(f"{count} clients at once, {beside}: {summary(by_clients(folder, count, workers))}")


def summary(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    middle, late = ordered[len(ordered) // 2], ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    return f"median {middle:.3f} s, p95 {late:.3f} s, worst {ordered[-1]:.3f} s, of {len(ordered)}"


if __name__ == "__main__":
    main()
