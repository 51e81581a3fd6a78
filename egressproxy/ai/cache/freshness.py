"""Freshness of cached responses: completeness, storability and lifetime, by RFC 9111 for a shared cache.

RFC 9111 (section 2) allows caching of POST responses only by explicit configuration, which the extension is. The
providers' no-store and private are respected; the lifetime is the config's. A stream reports a failure in an event,
after a head with 200.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any, Final

from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Operation
from egressproxy.ai.apis.streams import StreamReader, framing_of, sliced
from egressproxy.ai.apis.usage import TokenUsage, merged, usage_of
from egressproxy.model.fields import Fields
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work

#: RFC 9111 section 3.5: directives with which a shared cache may store the response to a request with Authorization.
_PERMITS_AUTHORIZED = ("public", "must-revalidate", "s-maxage")

#: The types of the last event of a stream: OpenAI's responses, Anthropic's messages.
_LAST: Final = ("response.completed", "message_stop")
#: The last line of OpenAI chat and completions, which is not JSON.
_DONE: Final = b"data: [DONE]"
#: Values of `status` for an incomplete response. Source: OpenAI, responses object.
_UNFINISHED: Final = ("failed", "incomplete", "in_progress", "queued", "cancelled")


def cache_control(fields: Fields) -> dict[str, str]:
    """The directives of Cache-Control by name, in lower case; of duplicates the first (section 4.2.1)."""
    found: dict[str, str] = {}
    for each in b",".join(fields.get_all(b"cache-control")).decode("latin-1").split(","):
        name, _, value = each.strip().partition("=")
        if name:
            found.setdefault(name.lower(), value.strip('"'))
    if b"cache-control" not in fields and b"no-cache" in b",".join(fields.get_all(b"pragma")).lower():
        found["no-cache"] = ""
    return found


def may_store(fields: Fields, *, is_authorized: bool, is_get: bool) -> bool:
    """Whether the response with this head may be stored. `is_authorized`: the request has Authorization."""
    directives = cache_control(fields)
    if "no-store" in directives or "private" in directives or b"set-cookie" in fields:
        return False
    if b"*" in b",".join(fields.get_all(b"vary")):
        return False
    if "no-transform" in directives and b"content-encoding" in fields:
        return False  # the store has decoded content: RFC 9111 section 5.2.2.6
    if not is_get:
        return True
    return "no-cache" not in directives and (
        not is_authorized or any(name in directives for name in _PERMITS_AUTHORIZED)
    )


def lifetime_s(fields: Fields, ttl_s: float, *, is_get: bool) -> float:
    """The lifetime of a response in seconds: the response's own, at most `ttl_s`. Source: section 4.2.1."""
    if not is_get:
        return ttl_s
    directives = cache_control(fields)
    for name in ("s-maxage", "max-age"):
        if name in directives:
            seconds = directives[name]  # invalid: stale (section 4.2.1)
            return min(ttl_s, float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0)
    if b"expires" in fields:
        return min(ttl_s, _until(fields.get(b"expires"), fields.get(b"date")))
    return ttl_s


def _until(expires: bytes | None, date: bytes | None) -> float:
    try:
        end = parsedate_to_datetime((expires or b"").decode("latin-1"))
        begin = parsedate_to_datetime((date or b"").decode("latin-1"))
        return max((end - begin).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return 0.0


def whole_answer(body: bytes, media_type: bytes, operation: Operation) -> Work[tuple[bool, TokenUsage | None]]:
    """Whether this is a complete response without an error, and its token usage, as cooperative work. An unreadable
    body is incomplete.
    """
    try:
        framing = framing_of(media_type, operation)
        if framing is None:
            value = AiAnswer.of(body, (yield from AiAnswer.parsing(body))).value
            return not _has_failed(value), usage_of(value)
        usage: TokenUsage | None = None
        has_ended = _DONE in body
        reader = StreamReader(framing)
        for piece in sliced(body):
            for event in reader.feed(piece):
                value = event.value
                if _has_failed(value):
                    return False, None
                usage = merged(usage, found) if (found := usage_of(value)) is not None else usage
                has_ended = has_ended or _ends(value)
            yield
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
    """Whether this event is the last, or has the reason for the end (Gemini, Bedrock)."""
    if not isinstance(value, dict):
        return False
    if value.get("type") in _LAST or "messageStop" in value or "stopReason" in value:
        return True
    candidates = value.get("candidates")
    return isinstance(candidates, list) and any(isinstance(c, dict) and c.get("finishReason") for c in candidates)
