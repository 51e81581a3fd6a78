"""The fields that translation may drop with `untranslatable: Drop` of a Backend: fields that only tune the response, or
that are useful to one provider only. This is the only list of such fields.

Never here: messages, client-side tools, the choice of a tool, the response format, the number of completions, data
residency. Dropping one of these would change the meaning of the request or bypass a restriction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from egressproxy.ai.apis.apis import Api

#: Ids and notes of clients; other models that one provider may ask instead; settings of samplers: of servers and
#: gateways beside OpenAI's.
_OF_CLIENTS: Final = (
    "chat_id", "client_metadata", "conversation_id", "litellm_metadata", "litellm_session_id", "litellm_trace_id",
    "message_id", "request_id", "session_id", "tags", "trace", "trace_id", "user_id",
)  # fmt: skip
_OTHER_MODELS: Final = ("fallbacks", "models", "route")
_OF_SAMPLERS: Final = (
    "chat_template_kwargs", "dynatemp_exponent", "dynatemp_range", "enable_thinking", "include_reasoning",
    "keep_alive", "min_p", "mirostat", "mirostat_eta", "mirostat_tau", "num_ctx", "reasoning_budget",
    "reasoning_format", "reasoning_split", "repeat_last_n", "repeat_penalty", "repetition_penalty", "tfs_z", "think",
    "thinking", "thinking_budget", "top_a", "top_k", "transforms", "typical_p", "usage",
)  # fmt: skip
_OF_CHAT: Final = (
    "frequency_penalty", "max_completion_tokens", "max_tokens", "metadata", "parallel_tool_calls", "prediction",
    "presence_penalty", "reasoning", "reasoning_effort", "safety_identifier", "seed", "service_tier", "store",
    "temperature", "user", "verbosity",
)  # fmt: skip
#: Of messages: who of several users speaks, and how the model has thought, as servers tell it and clients echo it.
_OF_CHAT_MESSAGES: Final = (
    "name", "provider_specific_fields", "reasoning", "reasoning_content", "reasoning_details", "thinking_blocks",
)  # fmt: skip
_OF_RESPONSES: Final = (
    "context_management", "include", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
    "reasoning.context", "reasoning.effort", "reasoning.generate_summary", "reasoning.mode", "reasoning.summary",
    "safety_identifier", "seed", "service_tier", "store", "temperature", "text.verbosity", "truncation", "user",
)  # fmt: skip
#: Where tools stand, and those of a namespace.
_TOOLS_OF_RESPONSES: Final = ("tools[]", "tools[].tools[]", "input[].tools[]", "input[].tools[].tools[]")
_OF_TOOLS_OF_RESPONSES: Final = (
    "allowed_callers", "defer_loading", "format", "image_generation", "output_schema", "tool_search", "web_search",
    "web_search_preview",
)  # fmt: skip
_OF_ANTHROPIC: Final = (
    "anthropic_beta", "anthropic_version", "betas", "context_management", "diagnostics", "metadata",
    "metadata.user_id", "output_config.effort", "output_config.task_budget", "service_tier", "speed",
    "thinking.budget_tokens", "thinking.display", "thinking.type", "tool_choice.disable_parallel_tool_use", "top_k",
    "user_profile_id",
)  # fmt: skip

#: By the client's API: paths of fields in its JSON, `[]` for any element of an array. Behind an array whose elements
#: have types, the type of an element that is left out as a whole stands where its field would.
TUNING: Final[Mapping[Api, frozenset[str]]] = {
    Api.OPENAI_CHAT: frozenset(
        (
            *_OF_CLIENTS, *_OTHER_MODELS, *_OF_SAMPLERS, *_OF_CHAT,
            *(f"messages[].{name}" for name in _OF_CHAT_MESSAGES), "messages[].annotations",
            "messages[].content[].image_url.detail", "messages[].content[].reasoning",
            "messages[].content[].thinking", "tools[].custom.format",
        )
    ),
    Api.OPENAI_RESPONSES: frozenset(
        (
            *_OF_CLIENTS, *_OTHER_MODELS, *_OF_SAMPLERS, *_OF_RESPONSES, "input[].content[].annotations",
            "input[].content[].detail", "input[].content[].logprobs", "input[].end_turn",
            "input[].internal_chat_message_metadata_passthrough", "input[].metadata", "input[].output[].detail",
            "input[].reasoning", "input[].web_search_call",
            *(f"{tool}.{name}" for tool in _TOOLS_OF_RESPONSES for name in _OF_TOOLS_OF_RESPONSES),
        )
    ),
    Api.ANTHROPIC: frozenset(
        (
            *_OF_CLIENTS, *_OTHER_MODELS, *_OF_ANTHROPIC, "messages[].content[].citations",
            "messages[].content[].redacted_thinking", "messages[].content[].server_tool_use",
            "messages[].content[].thinking", "messages[].content[].tool_search_tool_result",
            "messages[].content[].web_search_tool_result", "tools[].allowed_callers", "tools[].defer_loading",
            "tools[].input_examples", "tools[].tool_search_tool_bm25", "tools[].tool_search_tool_regex",
            "tools[].web_fetch", "tools[].web_search",
        )
    ),
}  # fmt: skip

_INDEX = re.compile(r"\[[0-9]+\]")
#: Types of Anthropic's and OpenAI's own tools end with the day of their version.
_VERSION = re.compile(r"_(?:20[0-9]{6}|20[0-9]{2}_[0-9]{2}_[0-9]{2})\Z")


class Losses:
    """The dropped fields of one request. Reports have names from the table, never the client's text."""

    __slots__ = ("_dropped", "_table")

    def __init__(self, table: frozenset[str]) -> None:
        self._table = table
        self._dropped: set[str] = set()

    @classmethod
    def of(cls, api: Api) -> Losses:
        """The losses of a request in this API."""
        return cls(TUNING[api])

    @classmethod
    def none(cls) -> Losses:
        """Losses that allow no drops."""
        return cls(frozenset())

    def drop(self, path: str) -> bool:
        """Whether the field at this path of the client's JSON may be dropped; if so, it is recorded."""
        if not self._table:
            return False
        field = _VERSION.sub("", _INDEX.sub("[]", path))
        if field not in self._table:
            return False
        self._dropped.add(field)
        return True

    @property
    def fields(self) -> tuple[str, ...]:
        """The dropped fields in alphabetical order."""
        return tuple(sorted(self._dropped))
