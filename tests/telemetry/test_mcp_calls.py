"""Calls of MCP are counted by names that clients make up: there is a bound on them."""

from __future__ import annotations

from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.mcp_calls import MAX_NAMES, McpCalls


def test_calls_are_counted_by_method_tool_and_result():
    calls = McpCalls()
    for tool, result in (("a", "ok"), ("a", "ok"), ("b", "error")):
        calls.count("r", "be", "tools/call", tool, result)
    assert calls.counted == {("r", "be", "tools/call", "a", "ok"): 2, ("r", "be", "tools/call", "b", "error"): 1}


def test_further_names_are_counted_as_other():
    calls = McpCalls()
    calls.count("r", "be", "ping", "-", "ok")
    for number in range(10 * MAX_NAMES):
        calls.count("r", "be", "tools/call", f"t{number}", "ok")
        calls.count("r", "be", f"m{number}", "-", "ok")
    assert len(calls.counted) <= 2 * MAX_NAMES
    assert calls.counted["r", "be", "tools/call", "_other", "ok"] > 9 * MAX_NAMES
    assert calls.counted["r", "be", "_other", "-", "ok"] > 9 * MAX_NAMES
    calls.count("r", "be", "ping", "-", "ok")
    assert calls.counted["r", "be", "ping", "-", "ok"] == 2  # known before
    calls.count("r", "another", "tools/call", "t5000", "ok")
    assert ("r", "another", "tools/call", "t5000", "ok") in calls.counted  # it has a bound of its own


def test_they_are_added_up_over_workers_and_shown():
    mine, other = Counts(), Counts()
    key = ("agents/r", "agents/tools", "tools/call", "search", "ok")
    mine.mcp_calls, other.mcp_calls = {key: 1}, {key: 2}
    mine.add(other)
    text, _ = Exposition("1").render(mine)
    line = (
        b'egress_mcp_messages_total{backend="agents/tools",method="tools/call",result="ok",route="agents/r",'
        b'tool="search"} 3.0'
    )
    assert line in text
