"""ConformanceReport: what the cases of this folder say of Gateway API, in the form of the API's own suite.

    python -m tests.conformance.report [FILE] [--organization NAME] [--url URL] [--contact NAME]

Runs the cases, and writes the report to FILE, or to the standard output. A test of the suite has passed if all cases
that play it have passed, and failed if one has failed; otherwise it is skipped. Exit status: 1 if a test has failed.

Source: Gateway API, conformance/apis/v1 (ConformanceReport), conformance/utils/suite (how results are counted).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from egressproxy import __version__
from egressproxy.config.compile.status.supported_features import ROUTE_FEATURES
from tests.conformance.upstream import PROFILES, TESTS, VERSION, Profile, Test

_FOLDER: Final = "tests/conformance"
_NOTE: Final = """\
# Made by `make conformance-report`. The cases of Gateway API's suite are played by the tests of this repository
# (tests/conformance, tests/conformance/upstream.py), from files, on real sockets: it is no run of the suite itself.
"""
_SAYS: Final = {"success": "passed", "partial": "passed in part", "failure": "failed"}


class Outcomes:
    """A plugin of pytest: "passed", "skipped" or "failed" by case (file, class, name and parameters)."""

    def __init__(self) -> None:
        self.by_case: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = report.nodeid.removeprefix(f"{_FOLDER}/")
        before = self.by_case.get(case)
        if report.outcome != "passed" or before is None:
            self.by_case[case] = report.outcome if before != "failed" else before


def result_of(test: Test, outcomes: Mapping[str, str]) -> str:
    """What has become of a test of the suite: "passed", "failed" or "skipped"."""
    found = set()
    for pattern in test.cases:
        played = {outcome for case, outcome in outcomes.items() if _is(case, pattern)}
        found |= played or {"skipped"}
    return next((each for each in ("failed", "skipped") if each in found), "passed" if found else "skipped")


def report(outcomes: Mapping[str, str], supported: Collection[str], maker: Mapping[str, Any]) -> dict[str, Any]:
    """The ConformanceReport of these outcomes of cases. `supported` are the features that the product claims; `maker`
    says who publishes it. As in the suite, a test with a feature that is not supported is left out.
    """
    results = {test: result_of(test, outcomes) for test in TESTS if {"Gateway", *test.features} <= {*supported}}
    profiles = [_profile(profile, results, supported) for profile in PROFILES]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ConformanceReport",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gatewayAPIChannel": "experimental",
        "gatewayAPIVersion": VERSION,
        "implementation": {"project": "egressproxy", "version": f"v{__version__}", **maker},
        "mode": "default",
        "profiles": profiles,
        "succeededProvisionalTests": sorted(
            test.name for test, result in results.items() if test.is_provisional and result == "passed"
        ),
    }


def _profile(profile: Profile, results: Mapping[Test, str], supported: Collection[str]) -> dict[str, Any]:
    parts: dict[bool, dict[str, list[str]]] = {is_core: defaultdict(list) for is_core in (True, False)}
    for test, result in results.items():
        features = {"Gateway", *test.features}
        if features <= profile.core | profile.extended:
            parts[features <= profile.core][result].append(test.name)
    core, extended = (_status(parts[is_core]) for is_core in (True, False))
    extended |= {
        "supportedFeatures": sorted(profile.extended.intersection(supported)),
        "unsupportedFeatures": sorted(profile.extended.difference(supported)),
    }
    summary = f"Core tests {_SAYS[core['result']]}, extended tests {_SAYS[extended['result']]}."
    return {"name": profile.name, "summary": summary, "core": core, "extended": extended}


def _status(names: Mapping[str, list[str]]) -> dict[str, Any]:
    counts = {key: len(names.get(key.lower(), ())) for key in ("Failed", "Passed", "Skipped")}
    result = "failure" if counts["Failed"] else "partial" if counts["Skipped"] else "success"
    made: dict[str, Any] = {"result": result, "statistics": counts}
    for key, field in (("failed", "failedTests"), ("skipped", "skippedTests")):
        if names.get(key):
            made[field] = sorted(names[key])
    return made


def _is(case: str, pattern: str) -> bool:
    """Whether a case is one of a pattern, in which `*` alone is special: brackets are those of the parameters."""
    return case == pattern or ("*" in pattern and fnmatchcase(case, pattern.replace("[", "[[]")))


def _reasons(outcomes: Mapping[str, str]) -> Iterable[str]:
    """Why each test that is skipped is: a line each."""
    for test in TESTS:
        if result_of(test, outcomes) == "skipped":
            missing = [pattern for pattern in test.cases if not any(_is(case, pattern) for case in outcomes)]
            yield f"{test.name}: {test.why or (f'no case {missing[0]}' if missing else 'its cases were skipped')}"


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and write the report. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.report")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--organization", default="egressproxy")
    parser.add_argument("--url", default="https://egressproxy.io")
    parser.add_argument("--contact", action="append", help="@NAME, or where to ask; may be given again")
    chosen = parser.parse_args(arguments)
    outcomes = Outcomes()
    files = sorted({f"{_FOLDER}/{case.partition('::')[0]}" for test in TESTS for case in test.cases})
    pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *files], plugins=[outcomes])
    maker = {"organization": chosen.organization, "url": chosen.url, "contact": chosen.contact or [chosen.url]}
    made = report(outcomes.by_case, ROUTE_FEATURES, maker)
    text = _NOTE + yaml.safe_dump(made, sort_keys=False)
    if chosen.file is not None:
        chosen.file.parent.mkdir(parents=True, exist_ok=True)
        chosen.file.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)
    for line in _reasons(outcomes.by_case):
        print(f"skipped {line}", file=sys.stderr)
    for profile in made["profiles"]:
        print(f"{profile['name']}: {profile['summary']}", file=sys.stderr)
    return any(profile[part]["result"] == "failure" for profile in made["profiles"] for part in ("core", "extended"))


if __name__ == "__main__":
    raise SystemExit(main())
