"""Whether an answer may be kept and for how long, by the rules of RFC 9111 for a cache that serves many clients.

The answers of AI providers to POST are none that the RFC lets be kept without being told (section 2): the operator
tells, with the extension. Of what the providers say no-store and private hold for them, too; the time is the config's.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from egressproxy.model.fields import Fields

#: RFC 9111 section 3.5: with one of these a shared cache may keep the answer to a request with Authorization.
_PERMITS_AUTHORIZED = ("public", "must-revalidate", "s-maxage")


def cache_control(fields: Fields) -> dict[str, str]:
    """The directives of Cache-Control by name, in lower case; of one that stands twice the first (section 4.2.1)."""
    found: dict[str, str] = {}
    for each in b",".join(fields.get_all(b"cache-control")).decode("latin-1").split(","):
        name, _, value = each.strip().partition("=")
        if name:
            found.setdefault(name.lower(), value.strip('"'))
    if b"cache-control" not in fields and b"no-cache" in b",".join(fields.get_all(b"pragma")).lower():
        found["no-cache"] = ""
    return found


def may_store(fields: Fields, *, is_authorized: bool, is_get: bool) -> bool:
    """Whether the answer with this head may be kept. `is_authorized`: the request has Authorization."""
    told = cache_control(fields)
    if "no-store" in told or "private" in told or b"set-cookie" in fields:
        return False
    if b"*" in b",".join(fields.get_all(b"vary")):
        return False
    if "no-transform" in told and b"content-encoding" in fields:
        return False  # what is kept is the content without its coding: RFC 9111 section 5.2.2.6
    if not is_get:
        return True
    return "no-cache" not in told and (not is_authorized or any(name in told for name in _PERMITS_AUTHORIZED))


def lifetime_s(fields: Fields, ttl_s: float, *, is_get: bool) -> float:
    """Seconds that an answer is fresh: at most `ttl_s`, and what the answer says. Source: section 4.2.1."""
    if not is_get:
        return ttl_s
    told = cache_control(fields)
    for name in ("s-maxage", "max-age"):
        if name in told:
            return min(ttl_s, _seconds(told[name]))
    if b"expires" in fields:
        return min(ttl_s, _until(fields.get(b"expires"), fields.get(b"date")))
    return ttl_s


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0  # invalid: stale (section 4.2.1)


def _until(expires: bytes | None, date: bytes | None) -> float:
    try:
        end = parsedate_to_datetime((expires or b"").decode("latin-1"))
        begin = parsedate_to_datetime((date or b"").decode("latin-1"))
        return max((end - begin).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return 0.0
