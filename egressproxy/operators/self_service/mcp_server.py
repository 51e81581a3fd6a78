"""The MCP server at egress.internal: two tools, and no state. A message comes in, and its answer goes out.

Sources: Model Context Protocol 2025-06-18, Streamable HTTP (a server without sessions answers with JSON) and Tools;
JSON-RPC 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Those of the Model Context Protocol that are spoken here; the latest last.
REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18")
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
ACCESS: Final = "egress_access"
CHECK: Final = "egress_check"
_READ_ONLY: Final = {"readOnlyHint": True, "openWorldHint": False}
TOOLS: Final = (
    {
        "name": ACCESS,
        "title": "What may I reach?",
        "description": "Which hosts this client may reach through the egress gateway, what is left of its limits, and"
        " which of its requests wait for a person's approval.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": _READ_ONLY,
    },
    {
        "name": CHECK,
        "title": "May I go there?",
        "description": "Whether this client may ask for a URL through the egress gateway, or why not. Nothing is sent.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "http:// or https:// URL"},
                "method": {"type": "string", "description": "Method of the request, such as POST", "default": "GET"},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        "annotations": _READ_ONLY,
    },
)
Values = dict[str, Any]


def answer_message(body: bytes, access: Callable[[], Values], check: Callable[[str, str], Values]) -> Values | None:
    """The answer to one message of JSON-RPC; None for a notification or a response, which have none.

    `access` gives what the caller may reach, `check` what would become of a URL and a method; it raises ValueError
    for what is none.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, "the body is no JSON")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return _error(None, INVALID_REQUEST, "the body is not one message of JSON-RPC 2.0")
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if "id" not in message or method is None:
        return None
    if not isinstance(method, str) or isinstance(number, bool) or not isinstance(number, int | str):
        return _error(None, INVALID_REQUEST, "id has to be a number or a string, and method a string")
    if not isinstance(params, dict):
        return _error(number, INVALID_PARAMS, "params has to be an object")
    if method == "initialize":
        return _result(number, _initialized(params))
    if method == "ping":
        return _result(number, {})
    if method == "tools/list":
        return _result(number, {"tools": list(TOOLS)})
    if method == "tools/call":
        return _called(number, params, access, check)
    return _error(number, METHOD_NOT_FOUND, f"there is no method {method[:80]!r} here")


def _initialized(params: Mapping[str, Any]) -> Values:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in REVISIONS else REVISIONS[-1],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "egressproxy", "title": "Egress gateway", "version": "1"},
        "instructions": f"Ask {CHECK} before a request to a host that you have not used, and {ACCESS} when one is"
        " denied or limited, or waits.",
    }


def _called(
    number: int | str, params: Mapping[str, Any], access: Callable[[], Values], check: Callable[[str, str], Values]
) -> Values:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if name == ACCESS:
        return _result(number, _tool_result(access()))
    if name != CHECK:
        return _error(number, INVALID_PARAMS, f"there is no tool {str(name)[:80]!r}; there are {ACCESS} and {CHECK}")
    url = arguments.get("url") if isinstance(arguments, dict) else None
    if not isinstance(url, str):
        return _error(number, INVALID_PARAMS, f"{CHECK} needs the argument url, a string")
    method = arguments.get("method", "GET")
    if not isinstance(method, str):
        return _error(number, INVALID_PARAMS, f"method of {CHECK} has to be a string")
    try:
        return _result(number, _tool_result(check(url, method)))
    except ValueError as error:
        return _result(number, {"content": [{"type": "text", "text": str(error)}], "isError": True})


def _tool_result(values: Values) -> Values:
    return {
        "content": [{"type": "text", "text": json.dumps(values)}], "structuredContent": values, "isError": False,
    }  # fmt: skip


def _result(number: int | str, result: Values) -> Values:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _error(number: int | str | None, code: int, message: str) -> Values:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
