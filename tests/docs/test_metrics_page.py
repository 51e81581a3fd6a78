"""docs/metrics.md names each metric that the code gives a help text."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where the name of a metric stands, its help text follows.
_DECLARED = re.compile(r"\"(egress_[a-z0-9_]+)\",\s+f?\"[A-Z]")


def test_every_metric_is_on_the_page():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "egressproxy").rglob("*.py"))
    declared = {name for path in files for name in _DECLARED.findall(path.read_text(encoding="utf-8"))}
    assert len(declared) > 50
    assert [name for name in sorted(declared) if not re.search(rf"`{name}(?:_total|_duration_seconds)?`", page)] == []
