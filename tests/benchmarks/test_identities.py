"""2,000 clients with limits cost hardly more than one: in instructions, which no other load of the machine changes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from benchmarks.micro.exchange import SHARE
from benchmarks.micro.identities import stages
from benchmarks.micro.stage import Stage
from tests.support.builds import of_sources

#: 1,000 exchanges: as many of clients with metrics of their own as of others.
CALLS = 20


def instructions(stage: Stage) -> float:
    """Of our bytecode, for one exchange."""
    counted = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal counted
        counted += event == "opcode"
        return count

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        if "/egressproxy/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(CALLS):
            stage.call()
    finally:
        sys.settrace(before)
    return counted / SHARE / CALLS


@of_sources  # bytecode is what it counts
@pytest.mark.timeout(180)
def test_two_thousand_clients_with_limits_cost_hardly_more_than_one():
    one, many, one_policy, policies = map(instructions, stages())
    # Whichever is dearer: what happens once in a while (a key for a second, say) may happen in either.
    assert one > 1000
    assert one_policy > 1000
    assert many == pytest.approx(one, rel=0.05)
    assert policies == pytest.approx(one_policy, rel=0.05)
