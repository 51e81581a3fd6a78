"""Run the attack cases of an outside catalogue against this gateway, and judge the result.

    python tests/run_cases.py --catalogue ../shared/cases --python .cache/cases-venv/bin/python --lanes 2

A failing case is an error, unless it stands in `cases-disputed.yaml` (it asks for something that we hold to be wrong or
not ours to do, and why), or in `cases-later.yaml` (it needs a feature of a later version). The latter holds for the
groups in LATER_GROUPS only. A case that passes although it is listed is reported, so that the lists shrink.

Exit status: 0 all well, 1 an unexpected failure, 2 the cases could not be run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
FIRM_GROUPS = ("smuggling", "framing", "ssrf", "dns", "limits", "websocket", "faults", "reload", "drain", "h2")
LATER_GROUPS = ("tls", "creds")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run means: `unexpected` failures are errors; the rest is for people to read."""

    unexpected: tuple[str, ...]
    excused: tuple[str, ...]
    passed_though_listed: tuple[str, ...]
    passed: int
    skipped: int


def judge(results: list[dict[str, Any]], disputed: dict[str, str], later: dict[str, str]) -> Verdict:
    """Compare results of the runner (`id`, `group`, `title`, `verdict`, `reason`) with the two lists (id to why)."""
    unexpected, excused, surprising = [], [], []
    for result in results:
        name = result["id"]
        why = disputed.get(name) or (later.get(name) if result["group"] in LATER_GROUPS else None)
        if result["verdict"] == "FAIL":
            if why is None:
                unexpected.append(f"{name} {result['title']} ({result['reason']})")
            else:
                excused.append(f"{name} {result['title']} (listed: {why})")
        elif result["verdict"] == "PASS" and why is not None:
            surprising.append(f"{name} {result['title']}")
    count = {word: sum(result["verdict"] == word for result in results) for word in ("PASS", "SKIP")}
    return Verdict(tuple(unexpected), tuple(excused), tuple(surprising), count["PASS"], count["SKIP"])


def read_list(path: Path) -> dict[str, str]:
    """A file of `{id, why}` entries as a dictionary (a missing file: none). Raises ValueError for any other shape."""
    if not path.exists():
        return {}
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == {"id", "why"} for e in entries):
        raise ValueError(f"{path}: every entry has to be {{id: …, why: …}}")
    return {entry["id"]: entry["why"] for entry in entries}


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Play every group in a process of its own (what one leaves listening must not answer for another).

    What fails is played once more, alone: a verdict that depends on company or load is said, and does not count.
    Raises RuntimeError where the runner gives no results.
    """
    results = []
    for group in options.group:
        results += play(options, folder / f"{group}.json", options.lanes, "--group", group)
    if not any(result["verdict"] == "PASS" for result in results):
        raise RuntimeError("not one case was played and passed: the gateway or the runner does not work")
    failed = [result["id"] for result in results if result["verdict"] == "FAIL"]
    again = {}
    if failed:
        print(f"\nonce more, alone: {', '.join(failed)}", flush=True)
        alone = play(options, folder / "again.json", 1, "--only", ",".join(failed))
        again = {result["id"]: result for result in alone if result["verdict"] == "PASS"}
    if again:
        print(f"passed alone: {', '.join(again)}", flush=True)
    return [again.get(result["id"], result) for result in results]


def play(options: argparse.Namespace, output: Path, lanes: int, *selection: str) -> list[dict[str, Any]]:
    """Start the catalogue's runner on some cases; raises RuntimeError where it made no results."""
    gateway = Path(sys.executable).with_name("egressproxy")
    command = [
        str(options.python), str(options.catalogue / "run_cases.py"), "--target", "egressproxy", "--failed-only",
        "--command", f"{shlex.quote(str(gateway))} run --config {{config}} --admin 127.0.0.1:{{admin}}",
        "-j", str(lanes), "--json", str(output), *selection,
    ]  # fmt: skip
    status = subprocess.run(command, check=False).returncode
    if status not in (0, 1) or not output.exists():
        raise RuntimeError(f"the runner ended with status {status} and no results")
    results: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))["results"]
    return results


def show(title: str, lines: tuple[str, ...]) -> None:
    if lines:
        print(f"\n{title}:")
        for line in lines:
            print(f"  {line}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the attack cases and judge the result.")
    parser.add_argument("--catalogue", type=Path, required=True, help="folder with run_cases.py and cases.yaml")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="interpreter with the runner's packages"
    )
    parser.add_argument("--lanes", type=int, default=2, help="how many gateways are attacked side by side")
    parser.add_argument("--group", nargs="+", default=[*FIRM_GROUPS, *LATER_GROUPS], help="groups of cases")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    disputed, later = read_list(HERE / "cases-disputed.yaml"), read_list(HERE / "cases-later.yaml")
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = run(options, Path(folder))
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    verdict = judge(results, disputed, later)
    show("Failed, as listed", verdict.excused)
    show("Passed although listed (take them off the list)", verdict.passed_though_listed)
    show("FAILED", verdict.unexpected)
    print(
        f"\nattack cases: {verdict.passed} passed, {len(verdict.unexpected)} failed, "
        f"{len(verdict.excused)} failed as listed, {verdict.skipped} skipped"
    )
    return 1 if verdict.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
