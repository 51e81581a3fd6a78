"""The ConformanceReport: what is skipped is never counted as passed, and every case that it is made from is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from egressproxy.config.compile.status.supported_features import ROUTE_FEATURES
from tests.conformance.report import Outcomes, report, result_of
from tests.conformance.upstream import GATEWAY_FEATURES, HTTP_FEATURES, TESTS, Test

MAKER = {"organization": "o", "url": "https://o.example", "contact": ["@o"]}
#: A case for each pattern.
EVERY = {case.replace("*", "x"): "passed" for test in TESTS for case in test.cases}


def of(
    outcomes: dict[str, str], *, supported: frozenset[str] = frozenset(ROUTE_FEATURES)
) -> dict[str, dict[str, dict]]:
    return {each["name"]: each for each in report(outcomes, supported, MAKER)["profiles"]}


def functions(path: Path) -> set[str]:
    """`name` and `Class::name` of each test in a file."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def test_every_case_is_there():
    known: dict[str, set[str]] = {}
    for test in TESTS:
        for case in test.cases:
            file, _, name = case.partition("::")
            there = known.setdefault(file, functions(Path(__file__).with_name(file)))
            wanted = name.partition("[")[0]
            assert wanted in there or (wanted.endswith("*") and any(n.startswith(wanted[:-1]) for n in there)), case


def test_names_are_there_once_and_what_has_no_case_says_why():
    assert len({test.name for test in TESTS}) == len(TESTS)
    assert [test.name for test in TESTS if bool(test.cases) is bool(test.why)] == []


def test_the_profiles_have_as_many_tests_as_those_of_the_suite():
    """The counts of reports that others have published of v1.6."""
    features = frozenset({
        "Gateway", "ReferenceGrant", "GRPCRoute", "HTTPRoute", "TCPRoute", "TLSRoute", *GATEWAY_FEATURES,
        *HTTP_FEATURES,
    }) - {"GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayInfrastructurePropagation"}  # fmt: skip
    made = of({}, supported=features)
    assert {name: each["core"]["statistics"]["Skipped"] for name, each in made.items()} == {
        "GATEWAY-GRPC": 15, "GATEWAY-HTTP": 37, "GATEWAY-TCP": 19, "GATEWAY-TLS": 20,
    }  # fmt: skip
    assert made["GATEWAY-HTTP"]["extended"]["statistics"]["Skipped"] == 55
    assert made["GATEWAY-GRPC"]["extended"]["statistics"]["Skipped"] == 9


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ({"test_a.py::one[x]": "passed", "test_a.py::one[y]": "passed", "test_a.py::two": "passed"}, "passed"),
        ({"test_a.py::one[x]": "passed", "test_a.py::one[y]": "failed", "test_a.py::two": "skipped"}, "failed"),
        ({"test_a.py::one[x]": "passed", "test_a.py::one[y]": "skipped", "test_a.py::two": "passed"}, "skipped"),
        ({"test_a.py::one[x]": "passed"}, "skipped"),
        ({"test_a.py::two": "passed", "test_b.py::one[x]": "passed"}, "skipped"),
        ({}, "skipped"),
    ],
)
def test_a_test_has_passed_if_all_of_its_cases_have(outcomes: dict[str, str], result: str):
    assert result_of(Test("T", (), ("test_a.py::one[*]", "test_a.py::two")), outcomes) == result
    assert result_of(Test("T", (), (), why="no case"), outcomes) == "skipped"


def test_what_has_failed_or_was_skipped_is_named():
    good = of(EVERY)
    assert good["GATEWAY-HTTP"]["core"] == {
        "result": "success", "statistics": {"Failed": 0, "Passed": 37, "Skipped": 0},
    }  # fmt: skip
    assert good["GATEWAY-TLS"]["core"]["result"] == "partial"
    assert good["GATEWAY-TLS"]["core"]["skippedTests"] == ["TLSRouteListenerTerminateNotSupported"]
    case = "test_traffic.py::TestRequests::test_weights"
    assert case in EVERY
    bad = of({**EVERY, case: "failed"})["GATEWAY-HTTP"]
    assert (bad["core"]["result"], bad["core"]["failedTests"]) == ("failure", ["HTTPRouteWeight"])
    assert bad["core"]["statistics"] == {"Failed": 1, "Passed": 36, "Skipped": 0}
    assert bad["summary"] == "Core tests failed, extended tests passed."
    assert of({})["GATEWAY-HTTP"]["core"]["statistics"] == {"Failed": 0, "Passed": 0, "Skipped": 37}


def test_features_that_are_not_supported_are_listed_and_not_tested():
    made = of(EVERY)["GATEWAY-HTTP"]["extended"]
    assert made["unsupportedFeatures"] == ["GatewayInfrastructurePropagation"]
    assert {*made["supportedFeatures"]} == (GATEWAY_FEATURES | HTTP_FEATURES) - {"GatewayInfrastructurePropagation"}
    fewer = of(EVERY, supported=frozenset(ROUTE_FEATURES) - {"HTTPRouteCORS"})["GATEWAY-HTTP"]["extended"]
    assert "HTTPRouteCORS" in fewer["unsupportedFeatures"]
    assert fewer["statistics"]["Passed"] == made["statistics"]["Passed"] - 1


def test_the_report_has_the_form_of_the_api():
    made = yaml.safe_load(yaml.safe_dump(report(EVERY, ROUTE_FEATURES, MAKER)))
    assert (made["apiVersion"], made["kind"]) == ("gateway.networking.k8s.io/v1", "ConformanceReport")
    assert made["implementation"].keys() == {"organization", "project", "url", "version", "contact"}
    assert made["gatewayAPIVersion"].startswith("v1.")
    assert (made["gatewayAPIChannel"], made["mode"]) == ("experimental", "default")
    assert "TCPRouteReferenceGrant" in made["succeededProvisionalTests"]
    assert "HTTPRouteWeight" not in made["succeededProvisionalTests"]


def test_a_case_that_fails_when_it_is_set_up_has_failed():
    outcomes = Outcomes()
    for when, outcome in (("setup", "passed"), ("call", "failed"), ("teardown", "passed")):
        outcomes.pytest_runtest_logreport(_made(when, outcome))
    assert outcomes.by_case == {"test_a.py::one": "failed"}
    outcomes = Outcomes()
    for when, outcome in (("setup", "skipped"), ("teardown", "passed")):
        outcomes.pytest_runtest_logreport(_made(when, outcome))
    assert outcomes.by_case == {"test_a.py::one": "skipped"}


def _made(when: str, outcome: str) -> pytest.TestReport:
    case = ("tests/conformance/test_a.py::one", ("test_a.py", 1, "one"), {})
    return pytest.TestReport(*case, outcome, None, when)  # type: ignore[arg-type]
