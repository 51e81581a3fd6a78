"""What a comparison found: a table for the terminal, Markdown and JSON for later."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.comparison import Row
from benchmarks.workloads import WORKLOADS

__all__ = ["table", "write"]

US = "egressproxy"
HEADINGS = ("CPU µs", "spread", "ours/its", "units/s", "p50 µs", "p99 µs", "RSS MiB", "note")


def table(workload: str, rows: Sequence[Row]) -> Table:
    described = WORKLOADS[workload]
    made = Table(title=f"{workload}: {described.title} (unit: {described.unit})", title_justify="left")
    made.add_column("proxy", no_wrap=True)
    for heading in HEADINGS[:-1]:
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column(HEADINGS[-1])
    for row in rows:
        made.add_row(row.proxy, *_cells(row, _ours(rows)), style="bold" if row.proxy == US else None)
    return made


def write(
    folder: Path, results: Mapping[str, Sequence[Row]], versions: Mapping[str, str], settings: dict[str, Any]
) -> Path:
    """`DATE.json` and `DATE.md` in the folder; returns the path of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now().astimezone()
    machine = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}
    document = {
        "time": now.isoformat(timespec="seconds"),
        "machine": machine,
        "settings": settings,
        "versions": dict(versions),
        "workloads": {name: [_record(row, _ours(rows)) for row in rows] for name, rows in results.items()},
    }
    path = folder / now.strftime("%Y-%m-%d-%H%M%S.md")
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    path.write_text(_markdown(document["time"], machine, settings, versions, results), "utf-8")
    return path


def _markdown(
    time: Any,
    machine: Mapping[str, Any],
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    results: Mapping[str, Sequence[Row]],
) -> str:
    lines = [f"# Comparison of {time}", ""]
    lines.append("; ".join(f"{name} {value}" for name, value in {**versions, **machine, **settings}.items()) + ".")
    lines.append("CPU time of the proxy's process tree per unit; median, least and greatest of the rounds.")
    for name, rows in results.items():
        described = WORKLOADS[name]
        lines += ["", f"## {name}: {described.title}", "", "| proxy | " + " | ".join(HEADINGS) + " |"]
        lines.append("|---|" + "---:|" * (len(HEADINGS) - 1) + "---|")
        lines += [f"| {row.proxy} | " + " | ".join(_cells(row, _ours(rows))) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _ours(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.proxy == US and row.rounds), None)


def _ratio(row: Row, ours: Row | None) -> float | None:
    return ours.cpu_us / row.cpu_us if ours is not None and row.rounds and row is not ours else None


def _cells(row: Row, ours: Row | None) -> list[str]:
    if not row.rounds:
        return ["n/a", *[""] * (len(HEADINGS) - 2), row.missing.replace("\n", " ").replace("|", "/")]
    ratio, (least, greatest) = _ratio(row, ours), row.spread
    return [
        f"{row.cpu_us:.1f}",
        f"{least:.1f}-{greatest:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{row.units_per_s:,.0f}",
        f"{row.p50_us:,.0f}",
        f"{row.p99_us:,.0f}",
        f"{row.resident_mib:.0f}",
        row.caveat,
    ]


def _record(row: Row, ours: Row | None) -> dict[str, Any]:
    record: dict[str, Any] = {"proxy": row.proxy, "caveat": row.caveat, "missing": row.missing}
    if row.rounds:
        record |= {
            "cpu_us": row.cpu_us,
            "our_ratio": _ratio(row, ours),
            "units_per_s": row.units_per_s,
            "resident_mib": row.resident_mib,
            "rounds": [asdict(each) for each in row.rounds],
        }
    return record
