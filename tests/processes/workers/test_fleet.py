"""What each process that serves may have."""

from __future__ import annotations

import pytest

from egressproxy.model.process_limits import ProcessLimits
from egressproxy.processes.workers import fleet
from egressproxy.processes.workers.fleet import process_limits
from egressproxy.run_options import RunOptions


def test_memory_is_that_of_the_cgroup_unless_an_option_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fleet, "memory_for_each", lambda workers: 800 // workers)
    assert process_limits(RunOptions(workers=4)) == ProcessLimits(None, 0, 200)
    assert process_limits(RunOptions(workers=4, max_memory=0)) == ProcessLimits(None, 0, 0)
    written = RunOptions(workers=4, max_memory=500, max_requests=10, max_connections=20)
    assert process_limits(written) == ProcessLimits(20, 10, 500)
