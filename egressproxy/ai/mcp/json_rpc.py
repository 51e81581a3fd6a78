"""JSON-RPC 2.0 in the first bytes of a body (the rest is unknown): methods, tool names, and the id for a response.
Sources: JSON-RPC 2.0; Model Context Protocol, tools/call; RFC 8259.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.ai.apis.member_names import RPC_HEAD, Members
from egressproxy.ai.apis.splice import skip_blanks

#: The placeholder for an invalid or ambiguous name: its member occurs twice, or in another case.
OTHER: Final = "_other"
#: The placeholder for a missing name: a response has no method, and only tools/call has a tool.
UNNAMED: Final = "-"
#: The most messages of a batch that are read.
MAX_BATCH: Final = 50
#: The most object members that are read in a body: a message has some ten. Each takes 1.5 µs.
MAX_MEMBERS: Final = 400
#: The most characters of an id that is repeated.
MAX_ID: Final = 256

_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_./$-]{0,63}")
_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,127}")
_PARAMS: Final = Members("name", "arguments", "_meta")
#: Where a client says what it can do, in revisions without sessions.
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_value_at = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """One message. `id` is the JSON text of its id; "null" if there is none, or none was seen. `opens_urls`: the client
    can ask its user to open a URL (URL mode elicitation).
    """

    method: str = UNNAMED
    tool: str = UNNAMED
    id: str = "null"
    opens_urls: bool = False


@dataclass(frozen=True, slots=True)
class RpcBody:
    """The messages that were seen, at least one."""

    messages: tuple[RpcMessage, ...]
    is_batch: bool = False

    def error(self, code: int, message: str, data: Mapping[str, object]) -> bytes:
        """An error object for the request; for a batch its id is null: no single request of it is meant."""
        answered = "null" if self.is_batch else self.messages[0].id
        error = json.dumps({"code": code, "message": message, "data": data})
        return f'{{"jsonrpc": "2.0", "id": {answered}, "error": {error}}}\n'.encode()

    def result(self, value: Mapping[str, object]) -> bytes:
        """The result of the request, which is no batch."""
        return f'{{"jsonrpc": "2.0", "id": {self.messages[0].id}, "result": {json.dumps(value)}}}\n'.encode()


def read_rpc(head: bytes) -> RpcBody | None:
    """The messages in the first bytes of a body; None if they are not JSON-RPC: no object or array of objects."""
    text = head.decode("utf-8", "replace")
    at = skip_blanks(text, 0)
    is_batch = text.startswith("[", at)
    walk = _Walk(text)
    found = list(_batch(walk, at) if is_batch else _single(walk, at))
    return RpcBody(tuple(found), is_batch) if found else None


def _single(walk: _Walk, at: int) -> Iterator[RpcMessage]:
    message, _ = _message(walk, at)
    if message is not None:
        yield message


def _batch(walk: _Walk, at: int) -> Iterator[RpcMessage]:
    text = walk.text
    for _ in range(MAX_BATCH):
        message, end = _message(walk, skip_blanks(text, at + 1))
        if message is None:
            return
        yield message
        at = skip_blanks(text, end)
        if end < 0 or not text.startswith(",", at):
            return


def _message(walk: _Walk, at: int) -> tuple[RpcMessage | None, int]:
    """The message that begins here, and where it ends: -1 where it is cut off. None: no object of JSON-RPC."""
    if not walk.text.startswith("{", at):
        return None, -1
    found: dict[str, Any] = {}
    params: dict[str, Any] = {}
    try:
        end = walk.over(at, RPC_HEAD, found, params)
    except (ValueError, RecursionError):
        end = -1
    if "jsonrpc" not in found and "method" not in found:
        return None, -1
    method = _named(found["method"], _METHOD) if "method" in found else UNNAMED
    tool = _named(params["name"], _TOOL) if method == "tools/call" and "name" in params else UNNAMED
    return RpcMessage(method, tool, _id(found.get("id")), _opens_urls(params.get("_meta"))), end


class _Walk:
    """A walk over objects of a text, of at most so many members."""

    __slots__ = ("_left", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._left = MAX_MEMBERS

    def over(self, at: int, members: Members, found: dict[str, Any], params: dict[str, Any] | None) -> int:
        """Walk over the object at `at`: keep these members, and those of `params`; None for one that servers read
        differently. Returns its end. Raises ValueError (cut off, no JSON, too long), RecursionError.
        """
        text = self.text
        at = skip_blanks(text, at + 1)
        if text.startswith("}", at):
            return at + 1
        while self._left > 0:
            self._left -= 1
            key, at = _value_at(text, at)
            at = skip_blanks(text, at)
            if not isinstance(key, str) or not text.startswith(":", at):
                break
            at = skip_blanks(text, at + 1)
            value: object = None
            name = members.name_of(key)
            is_sure = key == name and name not in found
            if name == "params" and params is not None and not is_sure:
                params["name"] = None
            if name == "params" and params is not None and text.startswith("{", at):
                at = self.over(at, _PARAMS, params, None)
            else:
                value, at = _value_at(text, at)
            at = skip_blanks(text, at)
            is_last = text.startswith("}", at)
            if not is_last and not text.startswith(",", at):
                break  # a number may go on behind what is here
            if name is not None:
                found[name] = value if is_sure else None
            if is_last:
                return at + 1
            at = skip_blanks(text, at + 1)
        raise ValueError("no object, or not all of it")


def _named(name: object, grammar: re.Pattern[str]) -> str:
    return name if isinstance(name, str) and grammar.fullmatch(name) else OTHER


def _opens_urls(value: Any) -> bool:
    for name in (_CAPABILITIES, "elicitation"):
        value = value.get(name) if isinstance(value, dict) else None
    return isinstance(value, dict) and "url" in value


def _id(value: object) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return "null"
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return "null"
    return text if len(text) <= MAX_ID else "null"
