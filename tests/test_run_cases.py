"""The judgement of attack cases: what counts as an error, and what is excused."""

from __future__ import annotations

import pytest

from tests.run_cases import judge, read_list


def result(name: str, group: str, verdict: str) -> dict[str, str]:
    return {"id": name, "group": group, "title": f"title of {name}", "verdict": verdict, "reason": "status 200"}


def test_a_failure_that_is_not_listed_is_an_error():
    verdict = judge([result("SMG-1", "smuggling", "FAIL"), result("SMG-2", "smuggling", "PASS")], {}, {})
    assert [line.split()[0] for line in verdict.unexpected] == ["SMG-1"]
    assert verdict.passed == 1


def test_a_disputed_case_may_fail_in_every_group():
    verdict = judge([result("SMG-1", "smuggling", "FAIL")], {"SMG-1": "RFC 9112 says otherwise"}, {})
    assert verdict.unexpected == ()
    assert "RFC 9112 says otherwise" in verdict.excused[0]


def test_a_case_for_later_may_fail_in_tls_but_not_in_smuggling():
    results = [result("TLS-1", "tls", "FAIL"), result("SMG-1", "smuggling", "FAIL")]
    verdict = judge(results, {}, {"TLS-1": "CRLs come later", "SMG-1": "no excuse"})
    assert [line.split()[0] for line in verdict.unexpected] == ["SMG-1"]


def test_a_listed_case_that_passes_is_reported_and_no_error():
    verdict = judge([result("TLS-1", "tls", "PASS")], {}, {"TLS-1": "later"})
    assert verdict.unexpected == ()
    assert [line.split()[0] for line in verdict.passed_though_listed] == ["TLS-1"]


def test_a_list_without_reasons_is_refused(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- id: SMG-1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="why"):
        read_list(path)
