"""TokenUsage: how many tokens a request took, as each API tells it, in one form. Sources: OpenAI CompletionUsage and
ResponseUsage, Anthropic Usage, Gemini UsageMetadata, Bedrock TokenUsage.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: More than this no provider counts: what is told beyond is no number to add up.
_MOST: Final = 10**12


class TokenUsage(NamedTuple):
    """`input_tokens` are all of the request: `cached_tokens` (read from a cache) and `cache_write_tokens` are among
    them. `output_tokens` are all of the answer, with `reasoning_tokens`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def usage_of(value: Any) -> TokenUsage | None:
    """The usage that an answer, or an event of a stream, tells; None where it tells none. Reads any of the APIs."""
    if type(value) is not dict:
        return None
    if "amazon-bedrock-invocationMetrics" in value:  # in the last event of a stream, whatever the model's own form
        metrics = value["amazon-bedrock-invocationMetrics"]
        if type(metrics) is dict:
            return TokenUsage(_count(metrics, "inputTokenCount"), _count(metrics, "outputTokenCount"))
    told = value.get("usage")
    if type(told) is dict:
        return _told(told)
    for holder in (value, value.get("response"), value.get("message")):
        if type(holder) is dict:
            told = holder.get("usage")
            if type(told) is dict:
                return _told(told)
            told = holder.get("usageMetadata")
            if type(told) is dict:
                return _gemini(told)
    return None


def merged(before: TokenUsage | None, after: TokenUsage | None) -> TokenUsage | None:
    """The larger numbers of two events of a stream: the first of Anthropic tells the input, its last one the output."""
    if before is None or after is None:
        return after or before
    return TokenUsage(
        max(before.input_tokens, after.input_tokens),
        max(before.output_tokens, after.output_tokens),
        max(before.cached_tokens, after.cached_tokens),
        max(before.cache_write_tokens, after.cache_write_tokens),
        max(before.reasoning_tokens, after.reasoning_tokens),
    )


def _told(told: dict[str, Any]) -> TokenUsage:
    if "inputTokens" in told or "outputTokens" in told:  # Bedrock: what is cached is told beside the input
        cached, written = _count(told, "cacheReadInputTokens"), _count(told, "cacheWriteInputTokens")
        return TokenUsage(_count(told, "inputTokens") + cached + written, _count(told, "outputTokens"), cached, written)
    if "prompt_tokens" in told:
        if "prompt_tokens_details" not in told and "completion_tokens_details" not in told:
            asked, answered = told["prompt_tokens"], told.get("completion_tokens")
            if type(asked) is int is type(answered) and 0 < asked < _MOST and 0 < answered < _MOST:  # nearly all
                return TokenUsage(asked, answered)
            return TokenUsage(_count(told, "prompt_tokens"), _count(told, "completion_tokens"))
        details, more = _object(told, "prompt_tokens_details"), _object(told, "completion_tokens_details")
        return TokenUsage(
            _count(told, "prompt_tokens"),
            _count(told, "completion_tokens"),
            _count(details, "cached_tokens"),
            _count(details, "cache_write_tokens"),
            _count(more, "reasoning_tokens"),
        )
    details, more = _object(told, "input_tokens_details"), _object(told, "output_tokens_details")
    if "cache_read_input_tokens" in told or "cache_creation_input_tokens" in told:  # Anthropic: as Bedrock
        cached, written = _count(told, "cache_read_input_tokens"), _count(told, "cache_creation_input_tokens")
        whole = _count(told, "input_tokens") + cached + written
        return TokenUsage(whole, _count(told, "output_tokens"), cached, written, _count(more, "thinking_tokens"))
    if "total_tokens" in told and "input_tokens" not in told:  # all that some servers tell of embeddings
        output = _count(told, "completion_tokens")
        return TokenUsage(max(_count(told, "total_tokens") - output, 0), output)
    return TokenUsage(
        _count(told, "input_tokens"),
        _count(told, "output_tokens"),
        _count(details, "cached_tokens"),
        _count(details, "cache_write_tokens"),
        _count(more, "reasoning_tokens") or _count(more, "thinking_tokens"),
    )


def _gemini(told: dict[str, Any]) -> TokenUsage:
    thoughts = _count(told, "thoughtsTokenCount")
    return TokenUsage(
        _count(told, "promptTokenCount") + _count(told, "toolUsePromptTokenCount"),
        _count(told, "candidatesTokenCount") + thoughts,
        _count(told, "cachedContentTokenCount"),
        0,
        thoughts,
    )


def _count(told: dict[str, Any], name: str) -> int:
    found = told.get(name)
    if type(found) is not int or found <= 0:
        return 0
    return found if found < _MOST else _MOST


def _object(told: dict[str, Any], name: str) -> dict[str, Any]:
    found = told.get(name)
    return found if type(found) is dict else {}
