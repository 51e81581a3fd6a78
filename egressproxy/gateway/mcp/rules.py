"""Which rules lead to MCP backends, and the gateway's own filters for them. Decided when a snapshot is built."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from egressproxy.filters.base import Phase
from egressproxy.gateway.backends.mcp_sessions import McpSessions
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.mcp.filters import McpPath, McpRequests
from egressproxy.ir.backend import Protocol
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import HttpRuleIR, PathMatchType, WeightedBackend
from egressproxy.telemetry.mcp_calls import McpCalls

#: Before all others, so that what they refuse is told in JSON-RPC. It waits for the client, who has a clock of its own.
REQUESTS: Final = ExtensionIR(
    "mcp", "egressproxy.io/Mcp:v1", Phase.REQUEST_HEADERS.value, -(10**9), pre_auth=True, timeout_s=0
)
PATH: Final = ExtensionIR("mcp-path", "egressproxy.io/McpPath:v1", Phase.BACKEND_REQUEST.value, -(10**9), pre_auth=True)
_URL_REWRITE: Final = "egressproxy.io/UrlRewrite:v1"


def speaks_mcp(rule: HttpRuleIR) -> bool:
    return any(each.backend is not None and each.backend.protocol is Protocol.MCP for each in rule.backends)


def requests_filter(
    route: str, sessions: McpSessions, backends: Sequence[RouteBackend], calls: McpCalls
) -> McpRequests:
    """The filter that looks at the requests of a rule with these backends."""
    usable = [(each, each.connector.spec.backend) for each in backends if each.connector is not None]
    versions = {each: ir.mcp.version for each, ir in usable if ir.mcp is not None and ir.mcp.version}
    return McpRequests(route, sessions, versions, calls, speaks_others=len(versions) < len(usable))


def path_filter(rule: HttpRuleIR, weighted: WeightedBackend) -> McpPath | None:
    """The filter that sends requests to the path of this backend's endpoint; None where they keep their own.

    They do where the rule rewrites it (URLRewrite).
    """
    backend = weighted.backend
    if backend is None or backend.mcp is None or not backend.mcp.path:
        return None
    if any(rewrites_path(spec) for spec in (*rule.extensions, *weighted.extensions)):
        return None
    endpoints = set[bytes]()
    for match in rule.matches:
        path = match.path.encode()
        if match.path_type is PathMatchType.EXACT:
            endpoints.add(path)
        elif match.path_type is PathMatchType.PREFIX:
            endpoints |= {path, path.rstrip(b"/") + b"/"}
    return McpPath(backend.mcp.path, frozenset(endpoints or {b"/"}))


def rewrites_path(spec: ExtensionIR) -> bool:
    """Whether this is a URLRewrite that replaces the path, or its prefix."""
    return spec.type == _URL_REWRITE and json.loads(spec.config).get("path") is not None
