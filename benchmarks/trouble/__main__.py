"""`python -m benchmarks.trouble`: memory and latency of a gateway under trouble, each figure with its goal."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
import signal
import sys
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.processes import StartError, cores, pin
from benchmarks.soak.subject import raise_descriptor_limit
from benchmarks.trouble.measures import MEASURES, Settings, measure
from benchmarks.trouble.result import Result

RESULTS = Path(__file__).parents[1] / "results"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("names", nargs=-1, type=click.Choice(tuple(MEASURES)), metavar="[NAME]…")
@click.option("--scale", type=click.FloatRange(0.01, 1.0), default=1.0, show_default=True,
              help="Shrinks counts and times, for a first look.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Of `egressproxy run`.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=RESULTS,
              help="Where trouble-DATE.json and .txt go. [default: benchmarks/results]")  # fmt: skip
def main(names: tuple[str, ...], scale: float, workers: int, out: Path) -> None:
    """Bring trouble to a real gateway and measure what it costs. Without a NAME: everything, about four minutes.

    \b
    clients      10,000 idle kept-alive connections          at most 20 KiB each
    tunnels      2,000 idle CONNECT tunnels                  at most 2 KiB each
    readers      100 slow readers of 1 GiB, by four ways     at most 64 MiB together
    origins      100 clients that send to deaf origins       at most 64 MiB together
    saturated    as many requests as it takes                event loop's lag p99 at most 20 ms
    reloads      10,000 rules put into service               event loop's lag at most 50 ms
    chunks       256 KiB and 3 MiB in chunks of 5 bytes      lag at most 20 ms, the median of five bodies
    descriptors  more clients than it may have descriptors   it does not spin, and recovers
    upstreams    3,000 names asked for once                  told only

    Exit status: 0 if every goal is met, 1 otherwise.
    """
    console = Console(width=None if sys.stdout.isatty() else 132)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the gateway is stopped
    gateway_core, load_core = cores()
    pin(load_core)
    raise_descriptor_limit()
    settings = Settings(scale, workers, gateway_core)
    results: list[Result] = []
    failures: list[str] = []
    for name in names or tuple(MEASURES):
        with console.status(name):
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    found = runner.run(measure(name, settings))
            except KeyboardInterrupt:
                failures.append("stopped")
                break
            except (StartError, OSError, EOFError, TimeoutError, ValueError) as error:
                failures.append(f"{name}: {type(error).__name__}: {error}")
                continue
        results += found
        for each in found:
            console.print(_line(each), style=None if each.is_good else "red", markup=False, soft_wrap=True)
    _report(console, results, failures, settings, out)
    sys.exit(0 if all(each.is_good for each in results) and not failures else 1)


def _line(result: Result) -> str:
    goal = "" if result.goal is None else f" (at most {result.goal:g}: {result.verdict})"
    notes = ", ".join(
        f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in result.notes.items()
    )
    return f"{result.name}: {result.value:,.1f} {result.unit}{goal}  {notes}"


def _report(console: Console, results: list[Result], failures: list[str], settings: Settings, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now().astimezone()
    path = out / now.strftime("trouble-%Y-%m-%d-%H%M%S.txt")
    document = {
        "time": now.isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()},
        "settings": {"scale": settings.scale, "workers": settings.workers},
        "results": [each.as_dict() for each in results],
        "failures": failures,
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    table = Table(title="under trouble", title_justify="left")
    for heading in ("", "found", "at most", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for each in results:
        goal = "" if each.goal is None else f"{each.goal:g} {each.unit}"
        table.add_row(each.name, f"{each.value:,.1f} {each.unit}", goal, each.verdict,
                      style=None if each.is_good else "red")  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        for target in (console, Console(file=file, width=132)):
            target.print(table)
            for failure in failures:
                target.print(f"failed: {failure}", style="red", markup=False, soft_wrap=True)
    console.print(f"written to {path} and .json", soft_wrap=True)


if __name__ == "__main__":
    main()
