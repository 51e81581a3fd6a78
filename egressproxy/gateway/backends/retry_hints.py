"""How long a backend asks to be left alone: Retry-After, and the rate-limit fields of AI providers.

`Retry-After` is seconds or a date (RFC 9110 section 10.2.3), `retry-after-ms` milliseconds (Azure OpenAI, OpenAI). The
state of a limit follows only where neither is there: `x-ratelimit-reset-requests: 6m0s` (OpenAI; Go durations),
`anthropic-ratelimit-requests-reset: 2025-10-25T12:00:00Z` (RFC 3339), each beside a field with what remains. A reset
says when the whole limit is there again, so it counts only where nothing remains.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from egressproxy.model.fields import Fields

#: What may be limited, as fields of OpenAI and of Anthropic name it.
_OF_OPENAI: Final = (b"requests", b"tokens")
_OF_ANTHROPIC: Final = (b"requests", b"tokens", b"input-tokens", b"output-tokens")
#: Remaining and reset, of each limit.
_LIMITS: Final = (
    *((b"x-ratelimit-remaining-" + what, b"x-ratelimit-reset-" + what) for what in _OF_OPENAI),
    *((b"anthropic-ratelimit-%b-remaining" % what, b"anthropic-ratelimit-%b-reset" % what) for what in _OF_ANTHROPIC),
)
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|h|m|s)){1,4}")
_DURATION_PART: Final = re.compile(r"([0-9.]+)(ms|h|m|s)")
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
#: Longer values are none of these forms.
_MAX_TEXT: Final = 64


def asked_pause_s(fields: Fields, now: float) -> float:
    """Seconds for which the sender of this head wants no further request, not bounded; 0.0 where it does not say so in
    a way that can be read. `now` is seconds since 1970.
    """
    seconds = _number(_text(fields, b"retry-after-ms"))
    if seconds is not None:
        return seconds / 1000
    text = _text(fields, b"retry-after")
    seconds = _number(text)
    if seconds is not None:
        return seconds
    if text:
        return _until(_http_date(text), now)
    return max(
        (_reset_s(_text(fields, reset), now) for left, reset in _LIMITS if fields.get(left) == b"0"), default=0.0
    )


def _text(fields: Fields, name: bytes) -> str:
    value = fields.get(name)
    return value.decode("latin-1") if value is not None and len(value) <= _MAX_TEXT else ""


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _reset_s(text: str, now: float) -> float:
    """A reset in any of its forms: a duration, seconds, or a moment."""
    if _DURATION.fullmatch(text):
        try:
            return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
        except ValueError:
            return 0.0
    return _number(text) or _until(_moment(text), now)


def _http_date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):  # what the parser does not expect
        return None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _until(moment: datetime | None, now: float) -> float:
    """Seconds from now to then, 0.0 for the past. A moment without a zone is in UTC."""
    if moment is None:
        return 0.0
    try:
        return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
