"""The rules of an AccessPolicy: who may ask for what. Pure.

The head of a request decides where it can. Where rules are left that ask for a message of MCP, the body decides: each
of its messages has to match one of them. What cannot be seen matches no rule that asks for it.
Source: kube-agentic-networking 0.2.0, AccessRule, AuthorizationRule, MCPAttributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Final

from egressproxy.ai.apis.member_names import rpc_fault
from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.filters.access_expressions import AskedRequest, CelExpression, ExpressionError
from egressproxy.filters.settings import FieldName, FilterConfig, HostnamePattern, Within
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, MatchIR, MatchType, PathMatchType, ValueMatch
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.message import has_dot_segment
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import at_once
from egressproxy.routing.table import HttpTable, unreserved

#: The most messages of a batch, and for how many of them expressions are asked without a pause.
MAX_BATCH: Final = 50
MAX_AT_ONCE: Final = 2
_TOOL_CALL: Final = "tools/call"
#: Source: MCPBaseProtocolMethodsOption.
_BASE_METHODS: Final = frozenset(("initialize", "ping", "tools/list"))
_BASE_PREFIXES: Final = ("completion/", "logging/", "notifications/")
_CATEGORIES: Final = frozenset(("tools", "prompts", "resources"))
_SESSION: Final = b"mcp-session-id"
_NO_FIELDS: Final = Fields()
#: Fields by which a server may take another method than the one of the request.
_METHOD_FIELDS: Final = every_spelling(("x-http-method-override", "x-http-method", "x-method-override"))


@dataclass(frozen=True, slots=True)
class McpMethod(FilterConfig):
    """A method of MCP, or the first part of several; and what it may be about (none: everything)."""

    name: Annotated[str, Within(min_length=1, max_length=64)]
    params: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class McpMessages(FilterConfig):
    """Messages of MCP. `methods` None: all, unless `base` is set, which adds those that every session needs."""

    methods: tuple[McpMethod, ...] | None = None
    base: bool = False


@dataclass(frozen=True, slots=True)
class PathRule(FilterConfig):
    value: str = "/"
    type: PathMatchType = PathMatchType.PREFIX


@dataclass(frozen=True, slots=True)
class HeaderRule(FilterConfig):
    name: FieldName
    value: str
    type: MatchType = MatchType.EXACT


@dataclass(frozen=True, slots=True)
class AccessRule(FilterConfig):
    """One rule; all set fields must match.

    Attributes:
        name: of the rule, for logs and explanations.
        namespace: of the client, as of CallerIdentity; "": any client.
        service_account: of the client.
        spiffe: the client's SPIFFE id, which it may have in place of namespace and service account.
        methods: of HTTP.
        hosts: names, or `*.suffix`.
        ports: those that the client names, or that of the listener.
        paths: one of them must match.
        headers: all of them must match.
        mcp: the messages.
        cel: a condition. Without `mcp` it is asked of calls of tools alone.
    """

    name: str
    namespace: str = ""
    service_account: str = ""
    spiffe: str = ""
    methods: tuple[str, ...] = ()
    hosts: tuple[HostnamePattern, ...] = ()
    ports: tuple[Annotated[int, Within(ge=1, le=65535)], ...] = ()
    paths: tuple[PathRule, ...] = ()
    headers: tuple[HeaderRule, ...] = ()
    mcp: McpMessages | None = None
    cel: str = ""


class Rule:
    """An AccessRule, compiled. `looks_at_messages`: the head alone does not decide. Raises ValueError."""

    __slots__ = (
        "_cel", "_field_names", "_mcp", "_methods", "_needs_http", "_ports", "_source", "_spellings", "_table",
        "looks_at_messages", "name",
    )  # fmt: skip

    def __init__(self, rule: AccessRule) -> None:
        self.name = rule.name
        self._source = rule.spiffe, rule.namespace, rule.service_account
        self._ports = frozenset(rule.ports)
        self._cel = CelExpression(rule.cel) if rule.cel else None
        mcp = rule.mcp
        if mcp is not None and mcp.methods is None and not mcp.base:
            mcp = None  # no message is excluded, and no other body
        if mcp is None and self._cel is not None:
            mcp = McpMessages((McpMethod(_TOOL_CALL),))
        self._mcp = mcp
        self.looks_at_messages = mcp is not None
        self._needs_http = bool(rule.paths or rule.headers) or self.looks_at_messages
        self._table = _table(rule)
        self._methods = frozenset(method.upper().encode() for method in rule.methods)
        self._field_names = frozenset(each.name.lower().encode() for each in rule.headers)
        self._spellings = every_spelling(tuple(sorted({each.name for each in rule.headers})))

    @property
    def has_cel(self) -> bool:
        """Whether an expression is asked, which may take milliseconds."""
        return self._cel is not None

    def is_from(self, identity: CallerIdentity) -> bool:
        """Whether the client is one of the rule's. An unknown client is one where the rule is for any."""
        spiffe, namespace, account = self._source
        if spiffe and identity.name == spiffe:
            return True
        if namespace:
            return identity.namespace == namespace and identity.service_account == account
        return not spiffe

    def admits(self, exchange: Exchange, listener_port: int, *, may_match: bool = False) -> bool:
        """Whether source, host, port and what else the head says match. `may_match`: also a head that some servers read
        otherwise. Raises BadRequest as `HttpTable.match`.
        """
        if not self.is_from(exchange.identity):
            return False
        authority = exchange.authority
        if self._ports and (listener_port or (authority.port if authority is not None else 0)) not in self._ports:
            return False
        if exchange.is_tunnel and self._needs_http:
            return False
        if self._table is None:
            return True
        host = authority.host if authority is not None else ""
        if exchange.is_tunnel:
            return self._table.match(host, b"CONNECT", b"/", _NO_FIELDS) is not None
        found = self._table.match(host, exchange.method, exchange.path, exchange.request.fields)
        methods = frozenset((exchange.method,)) if may_match else self._methods
        return may_match if self._is_read_otherwise(exchange.request.fields.block, methods) else found is not None

    def _is_read_otherwise(self, block: bytes, methods: frozenset[bytes]) -> bool:
        """Whether some servers see another method than these here, or a field of the rule in another spelling."""
        names = self._field_names
        return bool(
            self._methods and any(value.upper() not in methods for _, value in _lines(_METHOD_FIELDS.findall(block)))
        ) or bool(names and any(name.lower() not in names for name, _ in _lines(self._spellings.findall(block))))

    def matches_head(self, exchange: Exchange) -> bool:
        """Whether a request without a body is what an MCP session needs: its stream of events, or its end."""
        if self._mcp is None or not self._mcp.base or exchange.request.body != 0 or exchange.request.upgrade:
            return False
        return exchange.method == b"GET" or (exchange.method == b"DELETE" and _SESSION in exchange.request.fields)

    def matches(self, message: Any, asked: AskedRequest) -> bool:
        """Whether this message of JSON-RPC matches. Raises ExpressionError as `CelExpression.holds`."""
        method = message.get("method") if type(message) is dict else None
        if type(method) is not str or self._mcp is None or not self._names(method, message.get("params")):
            return False
        return self._cel is None or self._cel.holds(asked, _tool(message) if method == _TOOL_CALL else None)

    def _names(self, method: str, params: Any) -> bool:
        mcp = self._mcp
        assert mcp is not None
        if mcp.base and (method in _BASE_METHODS or method.startswith(_BASE_PREFIXES)):
            return True
        for each in mcp.methods or ():
            if each.name != method and not (each.name in _CATEGORIES and method.startswith(f"{each.name}/")):
                continue
            # MCP, Resources: they are named by their URI, and what a `name` beside it says is nothing to a server.
            subject = params.get("uri" if method.startswith("resources/") else "name") if type(params) is dict else None
            if not each.params or (type(subject) is str and subject in each.params):
                return True
        return False


class AccessRules:
    """All rules of a policy. None: everything is allowed. Raises ValueError for an expression that cannot be used."""

    __slots__ = ("_listener_port", "_rules", "looks_at_messages")

    def __init__(self, rules: Sequence[AccessRule] | None, listener_port: int) -> None:
        self._rules = None if rules is None else [_compiled(rule) for rule in rules]
        self._listener_port = listener_port
        self.looks_at_messages = any(rule.looks_at_messages for rule in self._rules or ())

    def of_head(
        self, exchange: Exchange, *, is_question: bool = False, may_match: bool = False
    ) -> tuple[str | None, list[Rule]]:
        """The name of the rule that allows this exchange by its head ("" where no rule is needed); or None and the
        rules of which its messages may match one. Raises BadRequest. `is_question`: a POST may have any body.
        `may_match` as of `Rule.admits`.
        """
        if self._rules is None:
            return "", []
        left = []
        for rule in self._rules:
            if rule.admits(exchange, self._listener_port, may_match=may_match):
                if not rule.looks_at_messages or rule.matches_head(exchange):
                    return rule.name, []
                left.append(rule)
        if is_question and exchange.method == b"POST" and not (exchange.is_tunnel or exchange.request.upgrade):
            return None, left
        return None, left if has_messages(exchange) else []

    def concern(self, exchange: Exchange) -> bool:
        """Whether a rule is for this client, whatever a tunnel or an upgraded connection carries."""
        return self._rules is None or any(rule.is_from(exchange.identity) for rule in self._rules)

    def match(self, exchange: Exchange, body: bytes | None) -> bool:
        """Whether a request matches a rule, or may match one: its body cannot be read, or is too long (None)."""
        allowed, left = self.of_head(exchange, may_match=True)
        if allowed is not None or not has_messages(exchange):
            return allowed is not None or (bool(exchange.request.upgrade) and self.concern(exchange))
        if not left or body is None:
            return bool(left)
        try:
            value = JsonMessage.parse(body)
        except Unreadable:
            return True
        if rpc_fault(value):
            return True
        messages = value if type(value) is list else [value]
        if len(messages) > (MAX_AT_ONCE if any(rule.has_cel for rule in left) else MAX_BATCH):
            return True
        asked = asked_request(exchange)
        return any(_may_match(rule, message, asked) for message in messages for rule in left)


def _lines(found: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of lines of a head."""
    for line in found:
        name, _, value = line[2:].partition(b":")
        yield name, value.strip(b" \t")


def has_messages(exchange: Exchange) -> bool:
    """Whether a body follows that can be looked at."""
    return not (exchange.is_tunnel or exchange.request.upgrade or exchange.request.body == 0)


def _may_match(rule: Rule, message: Any, asked: AskedRequest) -> bool:
    try:
        return rule.matches(message, asked)
    except ExpressionError:
        return True


def _compiled(rule: AccessRule) -> Rule:
    try:
        return Rule(rule)
    except ValueError as error:
        raise ValueError(f"rule {rule.name}: {error}") from None


def refusals(rules: Sequence[Rule], messages: Iterable[Any], asked: AskedRequest) -> Iterator[tuple[str, str]]:
    """For each message the name of the rule that it matches, or "" and why it matches none."""
    for message in messages:
        found, why = "", ""
        for rule in rules:
            try:
                if rule.matches(message, asked):
                    found, why = rule.name, ""
                    break
            except ExpressionError as error:
                why = f"rule {rule.name}: {error}"
        yield found, why or "no rule allows it" if not found else ""


def asked_request(exchange: Exchange) -> AskedRequest:
    """The request as expressions see it: fields of one name are joined by a comma (RFC 9110 section 5.3), and the path
    has no encoded letters, as for matches of routes.
    """
    head = exchange.request
    path, mark, query = head.path.partition(b"?")
    headers: dict[str, str] = {}
    for name, value in head.fields:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    host = exchange.authority.host if exchange.authority is not None else ""
    return AskedRequest(
        exchange.method.decode("latin-1"),
        b"".join((unreserved(path), mark, query)).decode("latin-1"),
        host,
        headers,
        len(head.fields.block) + len(head.path),
        has_dots=has_dot_segment(path),
    )


def _tool(message: dict[str, Any]) -> str | None:
    params = message.get("params")
    name = params.get("name") if type(params) is dict else None
    return name if type(name) is str else None


def _table(rule: AccessRule) -> HttpTable[bool] | None:
    """What decides on method, host, path and header fields as matches of routes do; None for all of them."""
    if not (rule.methods or rule.hosts or rule.paths or rule.headers):
        return None
    headers = tuple(ValueMatch(each.name.lower(), each.value, each.type) for each in rule.headers)
    matches = tuple(
        MatchIR(path.value, path.type, method, headers)
        for method, path in product(rule.methods or ("",), rule.paths or (PathRule(),))
    )
    route = HttpRouteIR(rule.name, rule.hosts, (HttpRuleIR(matches=matches),))
    return at_once(HttpTable.building([(route, (True,))]))
