"""Whether a recorded answer of an AI provider is whole and no error, which its status does not say.

A stream that fails says so in an event, behind a head with 200.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai_apis.answer import AiAnswer
from egressproxy.ai_apis.apis import Operation
from egressproxy.ai_apis.streams import StreamReader, framing_of
from egressproxy.ai_apis.strict_json import Unreadable
from egressproxy.ai_apis.usage import TokenUsage, merged, usage_of

#: What the last events of streams are called: OpenAI's responses, Anthropic's messages.
_LAST: Final = frozenset(("response.completed", "message_stop"))
#: OpenAI chat and completions end with this, which is no JSON (an event has a line for it).
_DONE: Final = b"data: [DONE]"
#: Of an answer, or an event: it did not come to its end. Source: OpenAI, responses object, `status`.
_UNFINISHED: Final = frozenset(("failed", "incomplete", "in_progress", "queued", "cancelled"))


def whole_answer(body: bytes, media_type: bytes, operation: Operation) -> tuple[bool, TokenUsage | None]:
    """Whether this is a whole answer without an error, and the tokens that it tells of. What is unreadable is none."""
    try:
        framing = framing_of(media_type, operation)
        if framing is None:
            value = AiAnswer.read(body).value
            return not _has_failed(value), usage_of(value)
        usage: TokenUsage | None = None
        has_ended = _DONE in body
        for event in StreamReader(framing).feed(body):
            value = event.value
            if _has_failed(value):
                return False, None
            usage = merged(usage, found) if (found := usage_of(value)) is not None else usage
            has_ended = has_ended or _ends(value)
        return has_ended, usage
    except Unreadable:
        return False, None


def _has_failed(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_failed, value))
    if not isinstance(value, dict):
        return False
    inner = value.get("response")
    holders = (value, inner) if isinstance(inner, dict) else (value,)
    kind = value.get("type")
    return (
        any(each.get("error") for each in holders)
        or (isinstance(kind, str) and (kind == "error" or kind.rpartition(".")[2] in _UNFINISHED))
        or (kind is None and value.get("status") in _UNFINISHED)
        or (value.get("object") == "response" and value.get("status") in _UNFINISHED)
    )


def _ends(value: Any) -> bool:
    """Whether this event is the last one, or tells why the answer ends (Gemini, Bedrock)."""
    if not isinstance(value, dict):
        return False
    if value.get("type") in _LAST or "messageStop" in value or "stopReason" in value:
        return True
    candidates = value.get("candidates")
    return isinstance(candidates, list) and any(isinstance(c, dict) and c.get("finishReason") for c in candidates)
