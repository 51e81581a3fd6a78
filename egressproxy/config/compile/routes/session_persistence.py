"""Which backend serves the same client again. Source: Gateway API v1 SessionPersistence (GEP-1619)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

from egressproxy.config.resources.route_matches import HttpMatch
from egressproxy.config.resources.routes import HttpRule, SessionPersistence
from egressproxy.ir.route import PathMatchType, SessionIR

#: What may stand in the Path of a cookie (RFC 6265 section 4.1.1).
_COOKIE_PATH = re.compile(r"/[!-:<-~]*")
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
    _, name = persistence.name
    if not name or _name_problem(persistence):
        name = f"egress-session-{blake2b(scope.encode(), digest_size=5).hexdigest()}"
    absolute, idle = persistence.absolute_timeout, persistence.idle_timeout
    cookie = persistence.cookie or persistence.cookie_config
    return SessionIR(
        name=name,
        scope=scope,
        is_header=persistence.type == "Header",
        absolute_s=absolute.seconds if absolute is not None else 0.0,
        idle_s=idle.seconds if idle is not None else 0.0,
        is_permanent=cookie is not None and cookie.lifetime_type == "Permanent",
        path=_path_of_patterns(rule.matches),
        cookie_path=_cookie_path(persistence),
    )


def session_problems(persistence: SessionPersistence) -> Iterator[str]:
    """Why the name, or the path of the cookie, cannot be used as it is written."""
    name = _name_problem(persistence)
    if name:
        yield name
    path = _cookie_path(persistence)
    written = persistence.cookie.path if persistence.cookie is not None else ""
    if written != path:
        yield f"cookie.path {written!r} cannot be the Path of a cookie (RFC 6265), / stands in its place"


def _cookie_path(persistence: SessionPersistence) -> str:
    """The Path of the cookie as `cookie.path` says it; "" in the earlier form, where the rule's match says it."""
    if persistence.cookie is None:
        return ""
    return persistence.cookie.path if _COOKIE_PATH.fullmatch(persistence.cookie.path) else "/"


def _name_problem(persistence: SessionPersistence) -> str:
    """Why the name cannot be used as it is written; "" if it can."""
    field, name = persistence.name
    if not name:
        return ""
    if not _TOKEN.fullmatch(name):
        return f"{field} {name!r} is no token (RFC 9110), a name is made up in its place"
    lower = name.lower()
    if persistence.type == "Header" and (lower in _TAKEN or lower.startswith("proxy-")):
        return f"{field} {name} is a field with another meaning, a name is made up in its place"
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
