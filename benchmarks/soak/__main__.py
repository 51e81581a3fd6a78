"""`python -m benchmarks.soak`: a gateway under a mixed load with faults, and whether anything grows."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

from benchmarks.processes import StartError, cores, pin
from benchmarks.soak.clients import Load
from benchmarks.soak.origins import NameServer, Origins
from benchmarks.soak.plot import plot
from benchmarks.soak.subject import Sample, Subject, raise_descriptor_limit
from benchmarks.soak.verdict import Finding, judge

RESULTS = Path(__file__).parents[1] / "results"
SAMPLE_S = 1.0
#: Longer than every timeout of the gateway under measurement: then nothing is left of what was.
SETTLE_S = 20.0


@dataclass
class Run:
    """What a soak found."""

    samples: list[Sample]
    before: Sample
    after: Sample
    load: Load
    findings: list[Finding]
    seconds: float
    complaints: list[str]
    failures: dict[str, float]
    reloads: int
    lag: dict[str, float]

    @property
    def is_flat(self) -> bool:
        return all(finding.is_good for finding in self.findings)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--minutes", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="How long the load lasts, at most; what is left of it then has a minute to end.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=None, help="End after so many. [default: minutes alone]")
@click.option("--rate", type=click.IntRange(1), default=2500, show_default=True, help="Requests a second, at most.")
@click.option("--lanes", type=click.IntRange(1, 2000), default=96, show_default=True, help="Clients at a time.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Of `egressproxy run`.")
@click.option("--reload-every", type=click.FloatRange(1), default=5.0, show_default=True, metavar="SECONDS",
              help="A change of the configuration, every third one bad.")  # fmt: skip
@click.option("--seed", type=int, default=None, help="Of the order of the load. [default: random]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=RESULTS,
              help="Where soak-DATE.json, .txt and .svg go. [default: benchmarks/results]")  # fmt: skip
def main(
    minutes: float,
    requests: int | None,
    rate: int,
    lanes: int,
    workers: int,
    reload_every: float,
    seed: int | None,
    out: Path,
) -> None:
    """Run a real gateway under a mixed load, with every fault that can be made, and say whether anything grows.

    The load: kept-alive requests, HTTP/2 of clients, bodies with lengths and in chunks, event streams, tunnels, TLS on
    either side, denials, bad requests, clients that vanish, upstreams that reset, stall, truncate and talk nonsense,
    names that do not resolve, and reloads, good and bad. Each client knows what has to come of it.

    Exit status: 0 if memory, descriptors, connections and tasks stay flat, the event loop's lag is below 20 ms in 99 %
    of the time, and nothing unexpected came; 1 otherwise. docs/soak.md says how it is judged.

    \b
    python -m benchmarks.soak --minutes 1       a first look
    python -m benchmarks.soak --minutes 10      1,500,000 requests
    """
    console = Console(width=None if sys.stdout.isatty() else 132)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the gateway is stopped
    seed = random.randrange(1_000_000) if seed is None else seed
    gateway_core, load_core = cores()
    pin(load_core)
    raise_descriptor_limit()
    settings = {"minutes": minutes, "rate": rate, "lanes": lanes, "workers": workers, "seed": seed}
    with tempfile.TemporaryDirectory(prefix="egressproxy-soak-") as name:
        subject = Subject(Path(name), None if workers > 1 else gateway_core, workers=workers)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                run = runner.run(_soak(console, subject, minutes, requests, rate, lanes, reload_every, seed))
        except StartError as error:
            console.print(str(error), style="red", markup=False, soft_wrap=True)
            sys.exit(1)
        except KeyboardInterrupt:
            console.print("stopped; there is no verdict")
            sys.exit(1)
        finally:
            subject.close()
    _report(console, run, settings, out)
    sys.exit(0 if run.is_flat else 1)


async def _soak(
    console: Console,
    subject: Subject,
    minutes: float,
    requests: int | None,
    rate: int,
    lanes: int,
    reload_every: float,
    seed: int,
) -> Run:
    if not console.is_terminal:  # where nothing is shown meanwhile
        console.print(f"load for {minutes * 60:,.0f} s at most, then up to a minute for what is left of it to end")
    names, origins = NameServer(), Origins(subject.server_context())
    await names.start()
    await origins.start()
    await subject.start(plain=origins.plain, tls=origins.tls, dns=names.port)
    before = await subject.sample()
    garbage = await subject.collect_garbage()
    load = Load(subject, origins, rate, lanes, random.Random(seed))
    samples: list[Sample] = []
    changes = 0
    begun = time.monotonic()
    end, next_change = begun + minutes * 60, begun + reload_every
    running = asyncio.create_task(load.run())
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (now := time.monotonic()) < end and (requests is None or load.requests < requests):
            await asyncio.sleep(SAMPLE_S)
            if not subject.is_running:
                raise StartError("the gateway has ended")
            samples.append(await subject.sample())
            if now >= next_change:
                changes += 1
                next_change = now + reload_every
                if changes % 3 == 2:
                    subject.break_configuration()
                else:
                    subject.configure(changes)
            live.update(_progress(samples, load, now - begun, end - begun), refresh=True)
        seconds = time.monotonic() - begun
        load.is_ending = True
        live.update("the load is over; what was begun ends", refresh=True)
        await running
        lag = subject.lag
        subject.configure(changes + 1)
        after = await _settle(subject, before, live)
        garbage = await subject.collect_garbage() - garbage
    _, failures = await subject.metrics()
    if failures.get("internal"):
        load.unexpected["internal"] += int(failures["internal"])
    complaints = subject.complaints()
    findings = judge(
        samples,
        before,
        after,
        lag_p99_ms=lag.busy.percentile(0.99),
        garbage=garbage / max(load.requests, 1) * 1000,
        unexpected=sum(load.unexpected.values()),
        complaints=len(complaints),
    )
    origins.close()
    names.close()
    return Run(
        samples, before, after, load, findings, seconds, complaints, failures, changes,
        lag.as_dict(),
    )  # fmt: skip


async def _settle(subject: Subject, before: Sample, live: Live) -> Sample:
    """The gateway once everything that was asked of it is over, or its timeouts are."""
    live.update(f"up to {SETTLE_S:.0f} s for what the gateway still holds to end", refresh=True)
    deadline = time.monotonic() + SETTLE_S
    while True:
        sample = await subject.sample()
        left = sample.downstream + sample.tunnels + sample.upstream
        if (not left and sample.tasks <= before.tasks) or time.monotonic() > deadline:
            return sample
        await asyncio.sleep(0.5)


def _progress(samples: list[Sample], load: Load, done_s: float, all_s: float) -> Table:
    last = samples[-1]
    table = Table(title=f"load for {done_s:,.0f} of {all_s:,.0f} s", title_justify="left")
    for heading in (
        "requests",
        "RSS MiB",
        "descriptors",
        "clients",
        "tunnels",
        "upstream",
        "tasks",
        "lag p99 ms",
        "worst",
    ):
        table.add_column(heading, justify="right")
    table.add_column("unexpected", justify="right")
    table.add_row(
        f"{load.requests:,}", f"{last.resident_kib / 1024:.1f}", str(last.descriptors), str(last.downstream),
        str(last.tunnels), str(last.upstream), str(last.tasks), f"{last.lag_p99_ms:.1f}", f"{last.lag_worst_ms:.1f}",
        str(sum(load.unexpected.values())),
    )  # fmt: skip
    return table


def _report(console: Console, run: Run, settings: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now().astimezone()
    path = out / now.strftime("soak-%Y-%m-%d-%H%M%S.txt")
    load = run.load
    document = {
        "time": now.isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()},
        "settings": settings,
        "flat": run.is_flat,
        "requests": load.requests,
        "seconds": round(run.seconds, 1),
        "reloads": run.reloads,
        "findings": [finding.as_dict() for finding in run.findings],
        "lag_ms": run.lag,
        "scenarios": dict(load.scenarios.most_common()),
        "faults": dict(sorted(load.faults.items())),
        "unexpected": {name: [count, load.examples.get(name, "")] for name, count in load.unexpected.items()},
        "complaints": run.complaints[:50],
        "failures": run.failures,
        "before": run.before.as_dict(),
        "after": run.after.as_dict(),
        "samples": [sample.as_dict() for sample in run.samples],
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    path.with_suffix(".svg").write_text(plot(run.samples), "utf-8")
    title = f"{load.requests:,} requests in {run.seconds:,.0f} s, {run.reloads} changes of the configuration"
    table = Table(title=title, title_justify="left")
    for heading, justify in (("", "left"), ("found", "right"), ("at most", "right"), ("", "left"), ("how", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for found in run.findings:
        table.add_row(
            found.name, f"{found.value:,.1f} {found.unit}", f"{found.limit:,.1f} {found.unit}",
            "ok" if found.is_good else "NOT", found.how, style=None if found.is_good else "red",
        )  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        for target in (console, Console(file=file, width=132)):
            target.print(table)
            target.print("lag in ms: " + ", ".join(f"{name} {value:.1f}" for name, value in run.lag.items()))
            faults = ", ".join(f"{kind} × {count:,}" for kind, count in sorted(load.faults.items()))
            target.print(f"faults sent: {faults}", markup=False, highlight=False, soft_wrap=True)
            for name, count in load.unexpected.most_common():
                target.print(
                    f"unexpected: {name} × {count}: {load.examples.get(name, '')}", markup=False, soft_wrap=True
                )
            for line in run.complaints[:20]:
                target.print(f"complaint: {line}", markup=False, soft_wrap=True)
            target.print("flat" if run.is_flat else "NOT flat")
    console.print(f"written to {path}, .json and .svg", soft_wrap=True)


if __name__ == "__main__":
    main()
