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
    usage = value.get("usage")
    if type(usage) is dict:
        return _usage(usage)
    for holder in (value, value.get("response"), value.get("message")):
        if type(holder) is dict:
            usage = holder.get("usage")
            if type(usage) is dict:
                return _usage(usage)
            usage = holder.get("usageMetadata")
            if type(usage) is dict:
                return _gemini(usage)
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


def _usage(usage: dict[str, Any]) -> TokenUsage:
    if "inputTokens" in usage or "outputTokens" in usage:  # Bedrock: what is cached is told beside the input
        cached, written = _count(usage, "cacheReadInputTokens"), _count(usage, "cacheWriteInputTokens")
        return TokenUsage(
            _count(usage, "inputTokens") + cached + written, _count(usage, "outputTokens"), cached, written
        )
    if "prompt_tokens" in usage:
        if "prompt_tokens_details" not in usage and "completion_tokens_details" not in usage:
            asked, answered = usage["prompt_tokens"], usage.get("completion_tokens")
            if type(asked) is int is type(answered) and 0 < asked < _MOST and 0 < answered < _MOST:  # nearly all
                return TokenUsage(asked, answered)
            return TokenUsage(_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))
        details, more = _object(usage, "prompt_tokens_details"), _object(usage, "completion_tokens_details")
        return TokenUsage(
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
            _count(details, "cached_tokens"),
            _count(details, "cache_write_tokens"),
            _count(more, "reasoning_tokens"),
        )
    details, more = _object(usage, "input_tokens_details"), _object(usage, "output_tokens_details")
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:  # Anthropic: as Bedrock
        cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        whole = _count(usage, "input_tokens") + cached + written
        return TokenUsage(whole, _count(usage, "output_tokens"), cached, written, _count(more, "thinking_tokens"))
    if "total_tokens" in usage and "input_tokens" not in usage:  # all that some servers tell of embeddings
        output = _count(usage, "completion_tokens")
        return TokenUsage(max(_count(usage, "total_tokens") - output, 0), output)
    return TokenUsage(
        _count(usage, "input_tokens"),
        _count(usage, "output_tokens"),
        _count(details, "cached_tokens"),
        _count(details, "cache_write_tokens"),
        _count(more, "reasoning_tokens") or _count(more, "thinking_tokens"),
    )


def _gemini(usage: dict[str, Any]) -> TokenUsage:
    thoughts = _count(usage, "thoughtsTokenCount")
    return TokenUsage(
        _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
        _count(usage, "candidatesTokenCount") + thoughts,
        _count(usage, "cachedContentTokenCount"),
        0,
        thoughts,
    )


def _count(usage: dict[str, Any], name: str) -> int:
    found = usage.get(name)
    if type(found) is not int or found <= 0:
        return 0
    return found if found < _MOST else _MOST


def _object(usage: dict[str, Any], name: str) -> dict[str, Any]:
    found = usage.get(name)
    return found if type(found) is dict else {}
