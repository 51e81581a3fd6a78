"""What is done to requests for MCP backends: the gateway's own filters, in the chains of such a rule and its backends.

Source: Model Context Protocol, Transports, Streamable HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from egressproxy.ai.filters.tool_pins import LISTED_TOOLS, ListedTools
from egressproxy.ai.mcp.call import McpCall
from egressproxy.ai.mcp.json_rpc import read_rpc
from egressproxy.ai.mcp.sessions import McpSessions
from egressproxy.errors import BadRequest, Reason
from egressproxy.filters.base import Filter, Phase
from egressproxy.gateway.backends.buffered_body import BUFFERED_REQUEST
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.product_types import BuiltRule, OwnFilter, RuleProduct
from egressproxy.ir.backend import Protocol
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import HttpRuleIR, PathMatchType, WeightedBackend
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import media_type
from egressproxy.model.mcp import PROTOCOL_VERSION
from egressproxy.telemetry.counters import McpCalls

#: Bytes of a body that are looked at: most messages are shorter.
LOOK: Final = 16 * 1024
#: Set where the filter ran, for its `complete`: that of every configuration.
MARK: Final[StateSlot[bool]] = StateSlot("mcp ran")
#: The filter runs first, so that refusals of later filters are told in JSON-RPC. It waits for the client, who has a
#: clock of its own.
REQUESTS: Final = ExtensionIR(
    "mcp", "egressproxy.io/Mcp:v1", Phase.REQUEST_HEADERS.value, -(10**9), pre_auth=True, timeout_s=0
)
PATH: Final = ExtensionIR("mcp-path", "egressproxy.io/McpPath:v1", Phase.BACKEND_REQUEST.value, -(10**9), pre_auth=True)
_URL_REWRITE: Final = "egressproxy.io/UrlRewrite:v1"
_TOOL_PINS: Final = "egressproxy.io/ToolPins:v1"


class McpRequests(Filter):
    """Looks at each request of one rule before everything else does: its JSON-RPC, its revision, its session.

    `versions` has the revision that each MCP backend of the rule speaks, where its Backend says one that we know.
    """

    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def __init__(
        self,
        route: str,
        sessions: McpSessions,
        versions: Mapping[RouteBackend, str],
        calls: McpCalls,
        *,
        speaks_others: bool,
        listed_tools: ListedTools | None = None,
    ) -> None:
        self._route = route
        self._sessions = sessions
        self._versions = versions
        #: The versions of all backends; none if a backend names no version, since that one decides for itself.
        self._supported = () if speaks_others else tuple(dict.fromkeys(versions.values()))
        self._calls = calls
        self._listed_tools = listed_tools

    def request_headers(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Raises BadRequest: 400 for another revision or more than one session id, 404 for an unknown session."""
        if exchange.is_tunnel:
            return None
        call = McpCall.begin(exchange, self._supported)
        if self._listed_tools is not None:
            exchange.keep(LISTED_TOOLS, self._listed_tools)
        if exchange.method == b"POST" and exchange.request.body != 0 and is_json(exchange):
            return self._look(exchange, call)
        self._check(exchange, call)
        return None

    async def _look(self, exchange: Exchange, call: McpCall) -> None:
        held = exchange.state.get(BUFFERED_REQUEST)
        assert held is not None  # the connection manager has left it
        call.body = read_rpc(await held.peek(LOOK))
        self._check(exchange, call)

    def _check(self, exchange: Exchange, call: McpCall) -> None:
        backend = self._sessions.admit(exchange)
        if backend is not None:
            call.supported = (self._versions[backend],) if backend in self._versions else ()
        shown = exchange.request.fields.get_all(PROTOCOL_VERSION)
        if not shown or not call.supported:  # without the field it is an older client, or one that initializes
            return
        for version in shown:
            if version.decode("latin-1") not in call.supported:
                spoken = ", ".join(call.supported)
                message = f"the MCP server does not speak the revision of MCP-Protocol-Version: it speaks {spoken}"
                raise BadRequest(Reason.MCP_VERSION, message, close=False)

    def complete(self, exchange: Exchange) -> None:
        call = McpCall.of(exchange)
        if call is None or call.body is None:
            return
        result = "denied" if exchange.denied else "ok" if 200 <= exchange.status < 400 else "error"
        for message in call.body.messages:
            self._calls.count(self._route, exchange.backend, message.method, message.tool, result)
        exchange.add_log_fields(call.log_fields())


class McpPath(Filter):
    """Sends requests for the path of a rule to the path of the backend's MCP endpoint; all others stay as they are."""

    runs_in = frozenset((Phase.BACKEND_REQUEST,))

    def __init__(self, path: str, endpoints: frozenset[bytes]) -> None:
        self._path = path.encode()
        self._endpoints = endpoints

    def backend_request(self, exchange: Exchange) -> None:
        path, mark, query = exchange.request.path.partition(b"?")
        if path in self._endpoints:
            exchange.request.path = self._path + mark + query

    def forecast(self, exchange: Exchange) -> None:
        self.backend_request(exchange)  # filters may be bound to the path


def is_json(exchange: Exchange) -> bool:
    """Whether the body is JSON text that can be read as it is."""
    fields = exchange.request.fields
    return media_type(fields) == b"application/json" and b"content-encoding" not in fields


class McpRules(RuleProduct):
    """Rules of which a backend speaks MCP."""

    looks_at_bodies = True

    def serves(self, rule: HttpRuleIR, backends: Sequence[RouteBackend]) -> bool:
        return any(each.backend is not None and each.backend.protocol is Protocol.MCP for each in rule.backends)

    def attach(self, rule: BuiltRule) -> tuple[OwnFilter, McpSessions]:
        sessions = McpSessions(rule.name, rule.session_key, rule.backends, rule.sessions)
        listed_tools = ListedTools() if sum(map(_pins_tools, rule.spec.backends)) > 1 else None
        own = requests_filter(rule.name, sessions, rule.backends, rule.metrics.mcp_calls, listed_tools)
        return OwnFilter(REQUESTS, own, MARK), sessions


def requests_filter(
    route: str,
    sessions: McpSessions,
    backends: Sequence[RouteBackend],
    calls: McpCalls,
    listed_tools: ListedTools | None = None,
) -> McpRequests:
    """The filter that looks at the requests of a rule with these backends."""
    usable = [(each, each.cluster.spec.backend) for each in backends if each.cluster is not None]
    versions = {each: ir.mcp.version for each, ir in usable if ir.mcp is not None and ir.mcp.version}
    speaks_others = len(versions) < len(usable)
    return McpRequests(route, sessions, versions, calls, speaks_others=speaks_others, listed_tools=listed_tools)


def _pins_tools(weighted: WeightedBackend) -> bool:
    """Whether a ToolPins of this backend looks at the tools that it lists."""
    return any((spec.implementation or spec.type) == _TOOL_PINS for spec in weighted.extensions)


def path_filter(rule: HttpRuleIR, weighted: WeightedBackend) -> OwnFilter | None:
    """What sends requests to the path of this backend's endpoint; None where they keep theirs, as with a URLRewrite."""
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
    return OwnFilter(PATH, McpPath(backend.mcp.path, frozenset(endpoints or {b"/"})))


def rewrites_path(spec: ExtensionIR) -> bool:
    return spec.type == _URL_REWRITE and json.loads(spec.config).get("path") is not None
