"""A recorded day in its small form: what `learn` makes of it, and the next day replayed."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from benchmarks.learning.__main__ import MAX_RATIO, judged
from benchmarks.learning.day import SHAPES, Company
from egressproxy.cli.main import main


def test_the_next_day_is_served_and_no_exfiltration_is_learnt(tmp_path: Path):
    company = Company(SHAPES["small"], 1)
    first, following = company.day(0, 1001), company.day(1, 2001)
    log, policy = tmp_path / "day.jsonl", tmp_path / "learned.yaml"
    log.write_text("".join(first.lines))
    assert CliRunner().invoke(main, ["learn", str(log), "--output", str(policy)]).exit_code == 0
    found = judged(policy, company, first, following, 0)
    assert (len(first.lines), found.denied) == (2000, {})
    assert (found.not_learnt, len(found.planted)) == (20, 20)
    assert found.ratio <= MAX_RATIO
