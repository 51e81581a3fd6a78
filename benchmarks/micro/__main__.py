"""`python -m benchmarks.micro`: a price list of the stages of a request."""

from __future__ import annotations

import datetime
import importlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.micro.stage import Price, Stage, measure

#: Modules of this package; each has `stages()`.
GROUPS = ("codec", "routing", "policy", "filters", "ai", "telemetry", "upstream", "transport", "exchange", "identities")
RESULTS = Path(__file__).parent.parent / "results"
#: A change within the spread of either run, or below this share, says nothing.
NOISE = 0.05


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--only", default="", metavar="WORD,…", help="Stages with one of these words in their name or group.")
@click.option("--samples", type=click.IntRange(1, 1000), default=15, show_default=True,
              help="Of each stage, 10 ms each; the price is their median.")  # fmt: skip
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="The JSON of an earlier run; prints what has changed.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Where the JSON goes. [default: benchmarks/results/micro-DATE.json]")  # fmt: skip
def main(only: str, samples: int, against: Path | None, out: Path | None) -> None:
    """What each stage of a request costs, in nanoseconds of CPU time a call: codec, routing, policy, filters,
    telemetry, pools, timers, the driver of coroutines, and a whole exchange in memory.

    No sockets, one process; half a minute. Prices of different machines or days are not comparable; with
    --against let both runs come soon after each other.

    \b
    python -m benchmarks.micro --out before.json
    python -m benchmarks.micro --against before.json
    python -m benchmarks.micro --only codec,filters --samples 50
    """
    console = Console(width=None if sys.stdout.isatty() else 120)
    stages, broken = collect()
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    stages = [stage for stage in stages if not words or any(word in stage.key.lower() for word in words)]
    if not stages and not broken:
        raise click.UsageError(f"--only {only!r} fits no stage; groups are {', '.join(GROUPS)}")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{len(stages)} stages", total=samples)
        prices = measure(stages, samples, lambda done: progress.update(task, completed=done))
    earlier = {} if against is None else read(against)
    console.print(table(stages, prices, earlier))
    path = write(prices, samples, out)
    console.print(f"written to {path}", soft_wrap=True)
    for text in broken:
        console.print(text, style="red", markup=False, soft_wrap=True)
    sys.exit(1 if broken else 0)


def collect() -> tuple[list[Stage], list[str]]:
    """Every stage, and what is wrong with those groups that cannot be made: the others are measured all the same."""
    found: list[Stage] = []
    broken: list[str] = []
    for group in GROUPS:
        try:
            found += importlib.import_module(f"benchmarks.micro.{group}").stages()
        except Exception as error:
            broken.append(f"the stages of {group} cannot be made: {type(error).__name__}: {error}")
    return found, broken


def table(stages: Sequence[Stage], prices: Sequence[Price], earlier: Mapping[str, Price]) -> Table:
    """One row for each stage; with `earlier` prices, what has changed."""
    made = Table()
    for heading in ("group", "stage"):
        made.add_column(heading, no_wrap=True)
    for heading in ("ns", "spread", *(["before", "change"] if earlier else [])):
        made.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for stage, price in zip(stages, prices, strict=True):
        if last and stage.group != last:
            made.add_section()
        cells = [f"{price.median:,.0f}", f"{price.least:,.0f}-{price.greatest:,.0f}"]
        if earlier:
            cells += change(price, earlier.get(price.key))
        made.add_row(stage.group if stage.group != last else "", stage.name, *cells)
        last = stage.group
    return made


def change(price: Price, before: Price | None) -> list[str]:
    """The earlier price and the change in per cent; none is named that lies within the spread of the samples."""
    if before is None:
        return ["new", ""]
    if not before.median:
        return [f"{before.median:,.0f}", ""]
    share = price.median / before.median - 1
    is_within = price.least <= before.median <= price.greatest and before.least <= price.median <= before.greatest
    said = "~" if abs(share) < NOISE or is_within else f"[{'red' if share > 0 else 'green'}]{share:+.0%}[/]"
    return [f"{before.median:,.0f}", said]


def read(path: Path) -> dict[str, Price]:
    """The prices of an earlier run, by stage."""
    try:
        entries = json.loads(path.read_text("utf-8"))["prices"]
        return {entry["key"]: Price(**entry) for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path} is not a result of python -m benchmarks.micro: {error}") from None


def write(prices: Sequence[Price], samples: int, path: Path | None) -> Path:
    """Returns the path of the JSON."""
    now = datetime.datetime.now().astimezone()
    path = path or RESULTS / now.strftime("micro-%Y-%m-%d-%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "time": now.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "samples": samples,
        "unit": "ns of CPU time a call",
        "prices": [asdict(price) for price in prices],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return path


if __name__ == "__main__":
    main()
