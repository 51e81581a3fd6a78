"""Which backend serves the same client again. Source: Gateway API v1 SessionPersistence (GEP-1619)."""

from __future__ import annotations

import re
from hashlib import blake2b

from egressproxy.config.resources.route_matches import HttpMatch
from egressproxy.config.resources.routes import HttpRule, SessionPersistence
from egressproxy.ir.route import PathMatchType, SessionIR

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 section 5.6.2; a cookie's name too (RFC 6265)
#: Fields that mean something else: framing, the hop, the content (RFC 9110). Nor `proxy-…`.
_TAKEN = frozenset((
    "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "date", "expect",
    "host", "keep-alive", "location", "max-forwards", "server", "set-cookie", "te", "trailer", "transfer-encoding",
    "upgrade", "via",
))  # fmt: skip
#: What stands for itself in a regular expression, from its start: not what may be left out or come again.
_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()](?![*?{]))*")


def session_ir(route: str, index: int, rule: HttpRule) -> SessionIR | None:
    """The session persistence of a rule; `route` is "namespace/name"."""
    persistence = rule.session_persistence
    if persistence is None:
        return None
    scope = f"{route}/{rule.name or index}"
    name = persistence.session_name or ""
    if not name or session_problem(persistence):
        name = f"egress-session-{blake2b(scope.encode(), digest_size=5).hexdigest()}"
    absolute, idle, cookie = persistence.absolute_timeout, persistence.idle_timeout, persistence.cookie_config
    return SessionIR(
        name=name,
        scope=scope,
        is_header=persistence.type == "Header",
        absolute_s=absolute.seconds if absolute is not None else 0.0,
        idle_s=idle.seconds if idle is not None else 0.0,
        is_permanent=cookie is not None and cookie.lifetime_type == "Permanent",
        path=_path_of_patterns(rule.matches),
    )


def session_problem(persistence: SessionPersistence) -> str:
    """Why `sessionName` cannot be used as it is written; "" if it can."""
    name = persistence.session_name
    if not name:
        return ""
    if not _TOKEN.fullmatch(name):
        return f"sessionName {name!r} is no token (RFC 9110), a name is made up in its place"
    lower = name.lower()
    if persistence.type == "Header" and (lower in _TAKEN or lower.startswith("proxy-")):
        return f"sessionName {name} is a field with another meaning, a name is made up in its place"
    return ""


def _path_of_patterns(matches: tuple[HttpMatch, ...]) -> str:
    """What every path that a regular expression of the rule matches begins with, by whole elements; "" without one."""
    starts = [
        "/" if "|" in match.path.value else _LITERAL.match(match.path.value)[0]  # type: ignore[index]  # always
        for match in matches
        if match.path.type is PathMatchType.REGEX
    ]
    if not starts:
        return ""
    common = starts[0] if len(set(starts)) == 1 else "/"
    return common[: common.rfind("/") + 1] or "/"
