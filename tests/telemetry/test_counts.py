"""The figures of a process."""

from __future__ import annotations

import os
import time

import pytest

from egressproxy.telemetry.counts import process_figures


def test_the_figures_of_this_process_are_those_that_python_knows():
    before = process_figures(1, os.getpid())
    assert 2**20 < before.resident_bytes < 2**34
    assert before.cpu_s == pytest.approx(sum(os.times()[:2]), abs=0.1)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert process_figures(1, os.getpid()).cpu_s > before.cpu_s


def test_of_a_process_that_is_not_there_nothing_is_known():
    with pytest.raises(OSError, match="No such file"):
        process_figures(1, 2**22 + 1)
