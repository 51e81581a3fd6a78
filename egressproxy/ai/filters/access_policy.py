"""AccessPolicy: refuses what no rule of an XAccessPolicy allows, by client, HTTP request and MCP message.

On Gateways and routes the client's request is judged before anything changes it, with its body where messages decide.
On a backend each attempt is judged as it goes out, so that retries, failover and mirrors find the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.ai.apis.errors import rpc_error
from egressproxy.ai.apis.member_names import finding_rpc_fault
from egressproxy.ai.apis.message import SCANNED_AT_ONCE, JsonMessage
from egressproxy.ai.filters.access_rules import MAX_BATCH, AccessRule, AccessRules, Rule, asked_request, refusals
from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.base import (
    BodyMode,
    BodyResult,
    Filter,
    FilterContext,
    FilterType,
    Phase,
    Rejected,
    UnusableReference,
)
from egressproxy.filters.settings import FilterConfig
from egressproxy.ir.policy import MAX_BUFFERED_BYTES
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.strict_json import OtherSpelling, Unreadable
from egressproxy.model.work import Work
from egressproxy.net.cooperative import run

#: What the conformance tests of kube-agentic-networking ask of an error of JSON-RPC.
FORBIDDEN: Final = 403
_FORBIDDEN_MESSAGE: Final = "Access to this tool is forbidden."
_JSON: Final = ((b"Content-Type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class AccessPolicyConfig(FilterConfig):
    """What is allowed.

    Attributes:
        rules: one of them has to match; None: every request is allowed.
        closed: why the policy cannot be enforced, so that everything is refused; "": it can.
        listener_port: the port of the listener, where clients do not name the port; 0 on a forward proxy.
        delegates: the rules say which requests an authorization server is asked about. The filter refuses only
            tunnels, of which no server can be asked.
    """

    rules: tuple[AccessRule, ...] | None = None
    closed: str = ""
    listener_port: int = 0
    delegates: bool = False


class AccessPolicy(Filter):
    """On a backend (BACKEND_REQUEST) it judges the body that is sent there, else the client's (REQUEST_BODY)."""

    decodes = True
    only_reads = True
    ignores_trailers = True

    def __init__(self, context: FilterContext) -> None:
        config: AccessPolicyConfig = context.config
        self._source = context.source
        self._closed = config.closed
        self._delegates = config.delegates
        try:
            self._rules = AccessRules(config.rules, config.listener_port)
        except ValueError as error:
            raise UnusableReference(str(error)) from None
        self._left: StateSlot[list[Rule]] = StateSlot("rules of messages")
        self._decisions = context.meter.counter(
            "egress_access_decisions", "Requests and messages that AccessPolicy has judged.", ("rule", "decision")
        )
        self.max_buffer_bytes = MAX_BUFFERED_BYTES
        self._has_cel = any(rule.cel for rule in config.rules or ())
        looks = self._rules.looks_at_messages and not self._delegates
        if context.phase is Phase.BACKEND_REQUEST:
            self.needs_body = looks
            self.runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.CONNECT))
        else:
            self.runs_in = frozenset((Phase.REQUEST_HEADERS, *((Phase.REQUEST_BODY,) if looks else ())))

    # --- Gateways and routes -------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> None:
        """Raises Rejected for a head that no rule allows."""
        if self._delegates:
            if exchange.is_tunnel and self._rules.concern(exchange):
                raise self._refusal("a tunnel cannot be put to the authorization server")
            return
        left = self._judge_head(exchange)
        if left:
            exchange.keep(self._left, left)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        return BodyMode.BUFFER if exchange.state.get(self._left) else None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        """Returns an error of JSON-RPC for messages that no rule allows. Raises Rejected for another body."""
        left = exchange.take(self._left) or []
        return run(self._judged_body(exchange, data, left), is_long=self._is_long(data))

    # --- backends ------------------------------------------------------------------------------------------------
    def connect(self, exchange: Exchange) -> None:
        """Raises Rejected for a tunnel, or a head, that no rule allows, before anything is dialled."""
        self._judge_head(exchange, counts=exchange.is_tunnel)

    def backend_request(self, exchange: Exchange) -> Any:
        """As `request_headers` and `request_body`."""
        left = self._judge_head(exchange)
        if not left:
            return None
        data = exchange.body
        if data is None or b"content-encoding" in exchange.request.fields:
            raise self._refusal("the body cannot be looked at")
        return run(self._judged_attempt(exchange, data, left), is_long=self._is_long(data))

    def _is_long(self, data: bytes) -> bool:
        """Expressions may take milliseconds for each message."""
        return len(data) > SCANNED_AT_ONCE or (self._has_cel and data.lstrip()[:1] == b"[")

    # --- explain -------------------------------------------------------------------------------------------------
    def forecast(self, exchange: Exchange) -> None:
        """Raises Rejected for a head that no rule allows."""
        if self._closed:
            raise self._refusal(self._closed)
        if self._delegates:
            return
        allowed, left = self._rules.of_head(exchange, is_question=True)
        if allowed is None and not left:
            raise self._refusal("no rule allows it")

    def decision(self, exchange: Exchange) -> str:
        if self._closed:
            return f"denied: {self._closed}"
        try:
            allowed, left = self._rules.of_head(exchange, is_question=True, may_match=self._delegates)
        except GatewayError as error:
            return f"denied: {error.message}"
        names = ", ".join(rule.name for rule in left)
        if self._delegates:
            asked = f"rule {allowed or names}" if allowed or names else "every request" if allowed == "" else ""
            return f"the authorization server is asked: {asked}" if asked else "the authorization server is not asked"
        if allowed is not None:
            return f"allowed by rule {allowed}" if allowed else "allowed: the policy has no rules"
        return f"messages of MCP that match rule {names} are allowed" if names else "denied: no rule allows it"

    # --- decisions -----------------------------------------------------------------------------------------------
    def _judge_head(self, exchange: Exchange, *, counts: bool = True) -> list[Rule]:
        """The rules of which messages have to match one; none where the head is allowed. Raises Rejected."""
        if self._closed:
            raise self._refusal(self._closed)
        allowed, left = self._rules.of_head(exchange)
        if allowed is not None:
            if counts:
                self._decisions.add(1, allowed or "-", "allowed")
        elif not left:
            raise self._refusal("no rule allows it")
        return left

    def _judged_attempt(self, exchange: Exchange, data: bytes, left: Sequence[Rule]) -> Work[LocalResponse | None]:
        answer = yield from self._judged_body(exchange, data, left)
        return answer if isinstance(answer, LocalResponse) else None

    def _judged_body(self, exchange: Exchange, data: bytes, left: Sequence[Rule]) -> Work[bytes | LocalResponse]:
        try:
            value = yield from JsonMessage.parsing(data)
            fault = yield from finding_rpc_fault(value)
            if fault:
                raise OtherSpelling(fault)
        except Unreadable as error:
            raise self._refusal(f"the body is no message of MCP: {error}") from None
        is_batch = type(value) is list
        messages = value if is_batch else [value]
        if not messages or len(messages) > MAX_BATCH:
            raise self._refusal(f"a batch has from one to {MAX_BATCH} messages")
        asked, found = asked_request(exchange), list[tuple[str, str]]()
        for each in refusals(left, messages, asked):
            found.append(each)
            yield
        for rule, why in found:
            self._decisions.add(1, rule or "-", "denied" if why else "allowed")
        denied = next((why for _, why in found if why), "")
        if not denied:
            return data
        answers = [
            _error(message, self._source, why or "the batch has another message that is not allowed")
            for message, (_, why) in zip(messages, found, strict=True)
            if type(message) is dict and "id" in message
        ]
        if not answers:  # notifications are not answered
            raise self._refusal(denied, counts=False)
        exchange.reason, exchange.rule, exchange.denied = Reason.ACCESS_DENIED, self._source, True
        exchange.detail = denied
        return LocalResponse(200, _JSON, json.dumps(answers if is_batch else answers[0]).encode())

    def _refusal(self, why: str, *, counts: bool = True) -> Rejected:
        if counts:
            self._decisions.add(1, "-", "denied")
        return Rejected(f"{self._source} does not allow this request: {why}", reason=Reason.ACCESS_DENIED)


def forbidden(data: bytes, source: str) -> LocalResponse | None:
    """The error of JSON-RPC for a call that the authorization server of a policy denies; None for any other body."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if type(message) is not dict or "jsonrpc" not in message or "id" not in message:
        return None
    error = _error(message, source, "denied by the authorization server", Reason.EXT_AUTH_DENIED)
    return LocalResponse(200, _JSON, json.dumps(error).encode())


def _error(message: dict[str, Any], source: str, why: str, reason: Reason = Reason.ACCESS_DENIED) -> dict[str, Any]:
    about = {"reason": reason.value, "rule": source, "detail": why}
    return rpc_error(message, FORBIDDEN, _FORBIDDEN_MESSAGE, about)


ACCESS_POLICY = FilterType(
    name="egressproxy.io/AccessPolicy:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=AccessPolicyConfig,
    build=AccessPolicy,
    also=frozenset((Phase.REQUEST_BODY, Phase.CONNECT)),
    summary="Says who may ask for what, by client, HTTP request and MCP message: the rules of an XAccessPolicy.",
)
