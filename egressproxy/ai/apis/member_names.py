"""The JSON member names that policy reads, level by level, and the check that refuses their other spellings.

Servers written in Go, and others by configuration, ignore the case of member names, and the last member wins: with
`Name` after `name` they see another tool. So a policy that reads a member refuses its other spellings. Only structural
levels are listed here: arguments of calls, and schemas, may have any names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from egressproxy.model.work import Work, at_once

#: The most characters of a name in an error.
_SHOWN: Final = 80
#: A misspelled member, its proper name, and the path to its object.
_Found = tuple[str, str, tuple[str | int, ...]]


class Members:
    """The names that policy reads in an object, and other `usual` names, which are not misspellings and let the check
    finish early. `inner` has the names of the nested object, or of each object in the nested array.
    """

    __slots__ = ("_known", "_spelled", "inner")

    def __init__(self, *names: str, inner: Mapping[str, Members] | None = None, usual: Iterable[str] = ()) -> None:
        self.inner = dict(inner or {})
        self._spelled = {name.casefold(): name for name in (*names, *self.inner)}
        self._known = frozenset((*self._spelled.values(), *usual))

    def name_of(self, key: str) -> str | None:
        """The proper name of which `key` is a spelling; None if policy does not read it."""
        return self._spelled.get(key.casefold())

    def fault(self, value: Any, *outer: str | int) -> str:
        """What is wrong with the names of this object, or of the objects of this array: a clause for "it". "" for
        nothing. `outer` leads to the value.
        """
        found = self._in_array(value) if type(value) is list else self._in_object(value)
        if found is None:
            return ""
        key, name, path = found
        return spelling_fault(key, name, (*outer, *path))

    def _in_array(self, value: list[Any]) -> _Found | None:
        for index, each in enumerate(value):
            found = self._in_object(each)
            if found is not None:
                return found[0], found[1], (index, *found[2])
        return None

    def _in_object(self, value: Any) -> _Found | None:
        if type(value) is not dict:
            return None
        names = value.keys()
        if not names <= self._known:
            spelled = self._spelled
            for key in value:
                name = spelled.get(key.casefold())
                if name is not None and name != key:
                    return key, name, ()
        inner = self.inner
        if inner and not names.isdisjoint(inner):
            for key, each in value.items():
                if key in inner:
                    found = inner[key]._in_array(each) if type(each) is list else inner[key]._in_object(each)
                    if found is not None:
                        return found[0], found[1], (key, *found[2])
        return None


def spelling_fault(key: str, name: str, path: Iterable[str | int]) -> str:
    """What is wrong with a member `key` of the object to which this path leads: a clause for "it"."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    location = f" in {steps[:_SHOWN]!a}" if steps else ""
    return f"it has {key[:_SHOWN]!a}{location}, which some servers take for `{name}`: write `{name}`"


# --- JSON-RPC, as MCP has it --------------------------------------------------------------------------------------
#: A client's message of any method.
RPC_MESSAGE: Final = Members("jsonrpc", "method", usual=("id", "params"))
#: A message of which only the first bytes are known.
RPC_HEAD: Final = Members("jsonrpc", "id", "method", "params")
_URI: Final = Members(inner={"params": Members("uri")})
#: The names that policy reads, by method.
RPC_CALLS: Final = {
    "tools/list": Members(inner={"params": Members("cursor", usual=("_meta",))}),
    "tools/call": Members(inner={"params": Members("name", "arguments", usual=("_meta",))}),
    "resources/read": _URI,
    "resources/subscribe": _URI,
    "resources/unsubscribe": _URI,
    "prompts/get": Members(inner={"params": Members("name")}),
    "completion/complete": Members(inner={"params": Members(inner={"ref": Members("name", "uri")})}),
}
#: Any response, to detect JSON-RPC; and a response of JSON-RPC.
ANSWER: Final = Members("jsonrpc")
RPC_ANSWER: Final = Members(
    "jsonrpc",
    inner={
        "result": Members(
            inner={
                "tools": Members("name", usual=("title", "description", "inputSchema", "outputSchema", "annotations")),
                "resources": Members("uri"),
                "resourceTemplates": Members("uriTemplate"),
                "prompts": Members("name"),
            }
        )
    },
    usual=("id", "method", "params", "error"),
)


def rpc_fault(value: Any) -> str:
    """`Members.fault` of this message, or of the messages of this batch."""
    return at_once(finding_rpc_fault(value))


def finding_rpc_fault(value: Any) -> Work[str]:
    """`rpc_fault` as cooperative work."""
    if type(value) is not list:
        return RPC_MESSAGE.fault(value) or _fault_of_call(value)
    for index, each in enumerate(value):
        fault = RPC_MESSAGE.fault(each, index) or _fault_of_call(each, index)
        if fault:
            return fault
        yield
    return ""


def _fault_of_call(message: Any, *outer: int) -> str:
    method = message.get("method") if type(message) is dict else None
    members = RPC_CALLS.get(method) if type(method) is str else None
    return members.fault(message, *outer) if members is not None else ""


# --- requests to AI providers -------------------------------------------------------------------------------------
_NAMED: Final = Members("name", usual=("description", "parameters", "strict", "inputSchema"))
_NAMES_OF_TOOLS: Final = {"function": _NAMED, "custom": _NAMED, "toolSpec": _NAMED}
_OF_TOOLS: Final = ("description", "parameters", "strict", "input_schema", "cache_control")
_DECLARED: Final = Members("type", "name", inner=_NAMES_OF_TOOLS, usual=_OF_TOOLS)
_TOOL: Final = Members(
    "type",
    "name",
    "tools",
    inner={**_NAMES_OF_TOOLS, "functionDeclarations": _DECLARED, "function_declarations": _DECLARED},
    usual=_OF_TOOLS,
)
_TOOL.inner["tools"] = _TOOL  # of a namespace
#: An item of `input` in OpenAI's Responses API, which may contain tools.
_ITEM: Final = Members(
    inner={"tools": _TOOL},
    usual=("type", "role", "content", "id", "call_id", "output", "arguments", "input", "name", "status", "summary"),
)
_GEMINI: Final = Members(
    "maxOutputTokens", "max_output_tokens", "temperature", "candidateCount", "candidate_count",
    usual=("topP", "topK", "stopSequences", "responseMimeType", "thinkingConfig"),
)  # fmt: skip
_CHOSEN: Final = Members("type", "name", inner=_NAMES_OF_TOOLS)
_CHOICE: Final = Members(
    "type", "name",
    inner={
        "function": _NAMED, "custom": _NAMED, "tools": _CHOSEN, "allowed_tools": Members(inner={"tools": _CHOSEN}),
    },
)  # fmt: skip
_CALLING: Final = Members("allowedFunctionNames", "allowed_function_names", usual=("mode",))
_TOOL_CONFIG: Final = Members(
    inner={
        "tools": _TOOL,
        "toolChoice": Members(inner={"tool": _NAMED}),
        "functionCallingConfig": _CALLING,
        "function_calling_config": _CALLING,
    }
)
_OTHER_MODEL: Final = Members("model")
_BATCH: Final = Members(inner={"requests": Members(inner={"requests": Members("request")})})
AI_REQUEST: Final = Members(
    "model", "stream", "messages", "contents", "prompt", "system", "instructions", "mcp_servers",
    "temperature", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_gen_len", "max_tokens_to_sample",
    "n", "best_of", "background", "web_search_options",
    inner={
        "requests": Members("params"),
        "batch": Members(inner={"inputConfig": _BATCH, "input_config": _BATCH}),
        "input": _ITEM,
        "models": _OTHER_MODEL,
        "fallbacks": _OTHER_MODEL,
        "tools": _TOOL,
        "functions": _TOOL,
        "tool_choice": _CHOICE,
        "function_call": _NAMED,
        "toolConfig": _TOOL_CONFIG,
        "tool_config": _TOOL_CONFIG,
        "additionalModelRequestFields": Members(inner={"tools": _TOOL}),
        "stream_options": Members("include_usage"),
        "generationConfig": _GEMINI,
        "generation_config": _GEMINI,
        "inferenceConfig": Members("maxTokens", "max_new_tokens", "temperature", usual=("topP", "stopSequences")),
        "textGenerationConfig": Members("maxTokenCount", "temperature", usual=("topP", "stopSequences")),
    },
    usual=(
        "stop", "user", "top_p", "top_k", "seed", "metadata", "response_format", "stop_sequences",
        "anthropic_version", "thinking", "system_instruction", "systemInstruction", "store", "frequency_penalty",
        "presence_penalty", "reasoning_effort", "parallel_tool_calls", "service_tier", "jsonrpc", "id", "method",
        "params",
    ),
)  # fmt: skip

# --- calls of tools in answers ------------------------------------------------------------------------------------
#: The names in a tool call, and the member that holds a call if its type does not say so.
CALL: Final = Members("name", "arguments", "input", "args", "type")
CALL_KEYS: Final = Members("functionCall", "function_call", "toolUse", "custom")
_BEGUN: Final = Members("name", "arguments", "input")
#: An event of a stream in which a call begins, goes on or ends.
AI_EVENT: Final = Members(
    "jsonrpc", "type", "index", "output_index", "contentBlockIndex",
    inner={
        "choices": Members(
            "index",
            inner={
                "delta": Members(
                    inner={
                        "tool_calls": Members(
                            "index", inner={"function": _BEGUN, "custom": _BEGUN}, usual=("id", "type")
                        ),
                        "function_call": _BEGUN,
                    },
                    usual=("role", "content", "refusal", "reasoning", "reasoning_content"),
                )
            },
            usual=("finish_reason", "logprobs"),
        ),
        "delta": Members("type", "partial_json", inner={"toolUse": _BEGUN}, usual=("text", "thinking", "signature")),
        "content_block": Members("type", "name", "input", usual=("id", "text", "thinking", "signature")),
        "start": Members(inner={"toolUse": _BEGUN}),
        "item": Members("type", "name", "arguments", "input", usual=("id", "call_id", "status", "role", "content")),
    },
    usual=(
        "id", "object", "created", "model", "usage", "system_fingerprint", "service_tier", "obfuscation", "item_id",
        "content_index", "sequence_number", "logprobs", "message", "response", "part", "text", "p",
    ),
)  # fmt: skip
