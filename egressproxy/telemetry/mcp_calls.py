"""Calls of MCP: messages by JSON-RPC method and tool. Their names come from clients, so there is a bound on them."""

from __future__ import annotations

from typing import Final

from egressproxy.telemetry.label_sets import OVERFLOW, LabelSets

#: The most names of methods and tools that are told apart for one route and backend, over the life of the process.
MAX_NAMES: Final = 200


class McpCalls:
    """`counted` counts messages by (route, backend, method, tool, result); the result is "ok" or "error"."""

    __slots__ = ("_names", "counted")

    def __init__(self) -> None:
        self.counted: LabelSets[str, str, str, str, str] = LabelSets()
        self._names: dict[tuple[str, str], set[tuple[str, str]]] = {}

    def count(self, route: str, backend: str, method: str, tool: str, result: str) -> None:
        """Count one message. A name for which there is no room is counted as OVERFLOW."""
        names = self._names.get((route, backend), set())
        if (method, tool) not in names:
            if len(names) < MAX_NAMES and not self.counted.is_full:
                self._names[route, backend] = names
                names |= {(method, tool), (method, OVERFLOW)}
            else:
                tool = OVERFLOW if tool != "-" else tool
                if (method, OVERFLOW) not in names:
                    method = OVERFLOW
        self.counted.count(route, backend, method, tool, result)
