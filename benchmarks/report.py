"""What a comparison found: tables for the terminal; JSON, Markdown and a picture for later."""

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

from benchmarks.comparison import Ratio, Row
from benchmarks.goals import US, Verdict, judge_all
from benchmarks.picture import draw
from benchmarks.workloads import WORKLOADS

HEADINGS = ("spread", "ours/its", "per second", "p50 µs", "p99 µs", "RSS MiB", "note")
GOAL_HEADINGS = ("workload", "goal", "reached (least to greatest)", "")
STYLES = {"met": "green", "missed": "red", "no figure": "dim"}


def table(workload: str, rows: Sequence[Row]) -> Table:
    described = WORKLOADS[workload]
    made = Table(title=f"{workload}: {described.title}", title_justify="left")
    made.add_column("proxy", no_wrap=True)
    for heading in (described.figure, *HEADINGS[:-1]):
        made.add_column(heading, justify="right")
    made.add_column(HEADINGS[-1])
    for row in rows:
        made.add_row(row.proxy, *_cells(row, _ours(rows)), style="bold" if row.proxy == US else None)
    return made


def goals_table(verdicts: Sequence[Verdict]) -> Table:
    made = Table(title="Goals", title_justify="left")
    for heading in GOAL_HEADINGS:
        made.add_column(heading)
    for verdict in verdicts:
        made.add_row(*_goal_cells(verdict), style="dim" if verdict.goal.is_beyond else STYLES[verdict.word])
    return made


def write(
    folder: Path, results: Mapping[str, Sequence[Row]], versions: Mapping[str, str], settings: dict[str, Any]
) -> Path:
    """`DATE.json`, `DATE.svg` and `DATE.md` in the folder; returns the path of the last."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now().astimezone()
    machine = {
        "cpu": _cpu(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }
    verdicts = judge_all(results)
    document = {
        "time": now.isoformat(timespec="seconds"),
        "machine": machine,
        "settings": settings,
        "versions": dict(versions),
        "goals": [verdict.record() for verdict in verdicts],
        "workloads": {name: [_record(row, _ours(rows)) for row in rows] for name, rows in results.items()},
    }
    path = folder / now.strftime("%Y-%m-%d-%H%M%S.md")
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    path.with_suffix(".svg").write_text(draw(results, WORKLOADS, now.strftime("%Y-%m-%d")), "utf-8")
    about = "; ".join(f"{name} {value}" for name, value in {**versions, **machine, **settings}.items())
    lines = [
        f"# Comparison of {document['time']}",
        "",
        f"{about}.",
        "Each figure is the median of the rounds; a ratio is ours divided by its, round by round (least to greatest).",
        "",
        f"![what a unit of work costs, by workload]({path.with_suffix('.svg').name})",
        *_markdown(results, verdicts),
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _cpu() -> str:
    """The model, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _markdown(results: Mapping[str, Sequence[Row]], verdicts: Sequence[Verdict]) -> list[str]:
    lines = ["", "## Goals", "", *_ruled(GOAL_HEADINGS, right=0)]
    lines += ["| " + " | ".join(_goal_cells(verdict)) + " |" for verdict in verdicts]
    for name, rows in results.items():
        described = WORKLOADS[name]
        lines += ["", f"## {name}: {described.title}", ""]
        lines += _ruled(("proxy", described.figure, *HEADINGS), right=len(HEADINGS))
        lines += [f"| {row.proxy} | " + " | ".join(_cells(row, _ours(rows))) + " |" for row in rows]
    return lines


def _ruled(headings: Sequence[str], right: int) -> list[str]:
    """The heads of a Markdown table; after the first column, `right` are aligned to the right."""
    return ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * right + "---|" * (len(headings) - 1 - right)]


def _goal_cells(verdict: Verdict) -> list[str]:
    goal = verdict.goal
    return [goal.workload, f"{goal} (beyond)" if goal.is_beyond else str(goal), verdict.figures, verdict.word]


def _ours(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.proxy == US and row.rounds), None)


def _ratio(row: Row, ours: Row | None) -> Ratio | None:
    if ours is None or ours is row or WORKLOADS[row.workload].is_relative:
        return None
    return ours.as_ratio_to(row)


def _cells(row: Row, ours: Row | None) -> list[str]:
    """All but the first."""
    if not row.rounds:
        return ["n/a", *[""] * (len(HEADINGS) - 1), row.missing.replace("\n", " ").replace("|", "/")]
    digits = WORKLOADS[row.workload].digits
    ratio = _ratio(row, ours)
    return [
        f"{row.figure:.{digits}f}",
        f"{min(row.figures):.{digits}f}-{max(row.figures):.{digits}f}",
        "" if ratio is None else f"{_short(ratio.median)} ({_short(ratio.least)}-{_short(ratio.greatest)})",
        _units(row),
        _whole(row.p50_us),
        _whole(row.p99_us),
        f"{row.resident_mib:.0f}",
        "; ".join(text for text in (row.caveat, row.remark) if text),
    ]


def _units(row: Row) -> str:
    if row.units_per_s is None:
        return ""
    unit = WORKLOADS[row.workload].per_second
    if unit == "MiB/s":
        return f"{row.units_per_s / 1024**2:,.0f} {unit}"
    return f"{row.units_per_s:,.0f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.02 else f"{ratio:.4f}"


def _record(row: Row, ours: Row | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "proxy": row.proxy,
        "figure": WORKLOADS[row.workload].figure,
        "caveat": row.caveat,
        "missing": row.missing,
        "remark": row.remark,
    }
    if row.rounds:
        record |= {
            "value": row.figure,
            "our_ratio": asdict(ratio) if (ratio := _ratio(row, ours)) else None,
            "units_per_s": row.units_per_s,
            "p50_us": row.p50_us,
            "p99_us": row.p99_us,
            "resident_mib": row.resident_mib,
            "rounds": [asdict(each) for each in row.rounds],
        }
    return record
