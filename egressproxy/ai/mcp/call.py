"""McpCall: what one request to an MCP backend says in JSON-RPC, for its error, its line in the log and its count."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from egressproxy.ai.mcp.json_rpc import UNNAMED, RpcBody
from egressproxy.errors import FaultSource, GatewayError, Reason
from egressproxy.gateway.product_types import ErrorForm
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import EVENT_STREAM
from egressproxy.model.mcp import PROTOCOL_VERSION, STATELESS_REVISIONS

#: The requests whose result may be that the user has to do something first (revision 2026-07-28, Multi Round-Trip
#: Requests).
_INPUT_REQUIRED: Final = frozenset(("prompts/get", "resources/read", "tools/call"))
_CALL: Final[StateSlot[McpCall]] = StateSlot("mcp call")
#: JSON-RPC 2.0 section 5.1; -32022 is MCP's UnsupportedProtocolVersionError (revision 2026-07-28).
SERVER_ERROR: Final = -32000
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603
UNSUPPORTED_VERSION: Final = -32022
#: MCP's URLElicitationRequiredError (revision 2025-11-25), which later revisions do not use any more.
URL_ELICITATION_REQUIRED: Final = -32042


@dataclass(slots=True, eq=False, repr=False)
class McpCall(ErrorForm):
    """`body` is None until the request's body was looked at, and for requests without JSON-RPC. `supported` are the
    revisions that the backends of the rule speak, where they say it. `elicitation`: what the user is asked to open,
    where that is why the request is refused.
    """

    supported: tuple[str, ...]
    body: RpcBody | None = None
    elicitation: dict[str, str] | None = None

    @classmethod
    def begin(cls, exchange: Exchange, supported: tuple[str, ...]) -> McpCall:
        made = cls(supported)
        exchange.keep(_CALL, made)
        return made

    @classmethod
    def of(cls, exchange: Exchange) -> McpCall | None:
        """That of this exchange; None where its backend does not speak MCP."""
        return exchange.state.get(_CALL)

    def ask_to_open(self, exchange: Exchange, url: str, message: str) -> bytes | None:
        """The result that has the client ask its user to open this URL and then send the request again. None: the
        request, or the client, has no such result. The error does it then, as far as the revision has a way.
        """
        if exchange.request.fields.get(PROTOCOL_VERSION) not in STATELESS_REVISIONS:
            opened = {"mode": "url", "elicitationId": secrets.token_hex(16), "url": url, "message": message}
            self.elicitation = opened
            return None
        first = self.body.messages[0] if self.body is not None and not self.body.is_batch else None
        if first is None or not first.opens_urls or first.method not in _INPUT_REQUIRED or first.id == "null":
            return None
        asked = {"method": "elicitation/create", "params": {"mode": "url", "url": url, "message": message}}
        assert self.body is not None
        return self.body.result({"resultType": "input_required", "inputRequests": {"egressproxy": asked}})

    def error(self, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes | None:
        """The error object for the client, with `about` as its data; None where the request was no JSON-RPC."""
        if self.body is None:
            return None
        code = INTERNAL_ERROR
        if error.reason is Reason.MCP_VERSION:
            code, about = UNSUPPORTED_VERSION, {"supported": list(self.supported), **about}
        elif self.elicitation is not None and error.reason is Reason.AUTHORIZATION_REQUIRED:
            code, about = URL_ELICITATION_REQUIRED, {"elicitations": [self.elicitation], **about}
        elif denied:
            code = SERVER_ERROR
        elif error.source is FaultSource.DOWNSTREAM:
            code = INVALID_REQUEST
        return self.body.error(code, error.message, about)

    def error_in_stream(self, kind: bytes, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes:
        """The event with the error, if one request's answer is refused; else b"": clients resume by Last-Event-ID."""
        if not denied or kind != EVENT_STREAM or self.body is None or self.body.is_batch:
            return b""
        return b"event: message\ndata: %b\n" % self.body.error(SERVER_ERROR, error.message, about)

    def log_fields(self) -> dict[str, object]:
        """The fields for the access log: method and tool, or "batch" and how many messages were seen."""
        if self.body is None:
            return {}
        first = self.body.messages[0]
        if self.body.is_batch:
            return {"mcp_method": "batch", "mcp_messages": len(self.body.messages)}
        fields: dict[str, object] = {"mcp_method": first.method}
        if first.tool != UNNAMED:
            fields["mcp_tool"] = first.tool
        return fields
