"""`python -m benchmarks.learning`: a recorded day, what `egressproxy learn` makes of it, and the next day replayed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import yaml

from benchmarks.learning.day import GATEWAY, SHAPES, Company, Day, Destination
from egressproxy.config.reading.load import read_all
from egressproxy.doors.products import offline
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.operators.explain.decision_diff import outcome
from egressproxy.processes.loader.compilation import Machine, compiled

#: The goals, for the whole day of the company. Seconds are of CPU, since other programs may keep the cores busy.
MAX_RATIO: Final = 1.3
MAX_SECONDS: Final = 2.0
MAX_MEGABYTES: Final = 100
_MEASURED: Final = """\
import resource, subprocess, sys, time
began = time.monotonic()
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""

_GATEWAY_MANIFEST: Final = """\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: egress}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}]
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: clients, namespace: egress}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  identity:
    address: {pods: false, clients: [{cidrs: [10.1.0.0/16], namespace: nobody, serviceAccount: nobody}]}
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a learnt list is worth: the requests of the next day that it would deny by mistake, its entries and those of
    a careful person, and the kinds of planted requests with how many were learnt.
    """

    denied: dict[str, int]
    ordinary: int
    weekly_denied: int
    entries: int
    careful: int
    planted: dict[str, bool]

    @property
    def ratio(self) -> float:
        return self.entries / self.careful

    @property
    def not_learnt(self) -> int:
        return sum(not learnt for learnt in self.planted.values())


def judged(policy: Path, company: Company, first: Day, following: Day, number: int) -> Verdict:
    """Compile the learnt policies and ask the gateway's own decision about the next day's destinations."""
    folder = policy.parent / "configuration"
    folder.mkdir(exist_ok=True)
    (folder / "gateway.yaml").write_text(_GATEWAY_MANIFEST)
    (folder / "learned.yaml").write_text(policy.read_text())
    config = compiled(read_all([folder]), ("127.0.0.1",), machine=Machine()).spec

    async def allowed(wanted: Iterable[Destination]) -> set[Destination]:
        snapshot = offline(config)
        return {each for each in wanted if outcome(snapshot, _decision(each)).is_allowed}

    planted = {each for kind in first.planted.values() for each in kind}
    passing = asyncio.run(allowed({*following.recurring, *following.weekly, *planted}))
    written: list[dict[str, Any]] = [each for each in yaml.safe_load_all(policy.read_text()) if each]
    allow = [entry for each in written for entry in each["spec"]["destinations"]["allow"]]
    return Verdict(
        {f"{a.namespace}/{a.name} {host}:{port}": count for (a, host, port), count in following.recurring.items()
         if (a, host, port) not in passing},
        following.recurring.total(),
        sum(count for each, count in following.weekly.items() if each not in passing),
        sum(len(each["hostnames"]) for each in allow),
        len(company.careful_list(number)),
        {kind: bool(found & passing) for kind, found in first.planted.items()},
    )  # fmt: skip


def _decision(wanted: Destination) -> RecentDecision:
    account, host, port = wanted
    authority = f"{host}:{port}"
    return RecentDecision("CONNECT", "https", authority, "-", GATEWAY, "forward", account.namespace, account.name, "-")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(SHAPES)), metavar="[SHAPE]...")
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2, 3), show_default=True)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep logs and policies here.")
def main(names: tuple[str, ...], seeds: tuple[int, ...], keep: Path | None) -> None:
    """Learn from a recorded day and replay the next one. Exit status 1 if a goal is missed."""
    is_good = True
    for name in names or ("company", "startup", "campus"):
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="egressproxy-learning-") as folder:
                is_good &= _measure(name, seed, (keep / f"{name}-{seed}") if keep is not None else Path(folder))
    sys.exit(0 if is_good else 1)


def _measure(name: str, seed: int, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    company = Company(SHAPES[name], seed)
    first, following = company.day(0, 1000 + seed), company.day(1, 2000 + seed)
    log, policy = folder / "day.jsonl", folder / "learned.yaml"
    log.write_text("".join(first.lines))
    command = [sys.executable, "-m", "egressproxy", "learn", str(log), "--output", str(policy), "--force"]
    # A child begins with the memory of its parent, so a small process starts it.
    measured = subprocess.run([sys.executable, "-c", _MEASURED, *command], check=True, capture_output=True, text=True)
    took, cpu, megabytes = map(float, measured.stdout.split())
    found = judged(policy, company, first, following, 0)
    learnt = [kind for kind, is_learnt in found.planted.items() if is_learnt]
    click.echo(
        f"{name}, seed {seed}: {len(first.lines)} decisions of {len(company.accounts)} accounts in {took:.2f} s"
        f" ({cpu:.2f} s of CPU) and {megabytes:.0f} MB; {found.entries} entries,"
        f" {found.ratio:.2f} x the careful list of {found.careful}; next day"
        f" {sum(found.denied.values())} of {found.ordinary} ordinary requests denied"
        f" (and {found.weekly_denied} of weekly jobs that were not seen); {found.not_learnt} of"
        f" {len(found.planted)} exfiltrations not learnt"
    )
    for each, count in found.denied.items():
        click.echo(f"  denied: {each}, {count} requests")
    for kind in learnt:
        click.echo(f"  learnt: {kind}")
    is_quick = cpu <= MAX_SECONDS and megabytes <= MAX_MEGABYTES
    return is_quick and not found.denied and not learnt and found.ratio <= MAX_RATIO


if __name__ == "__main__":
    main()
