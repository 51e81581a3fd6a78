"""Requests to the admin address that workers carry out: cache purges, and decisions about held requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes


def read_parameters(pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> dict[str, str]:
    """The values by name: each name is known, and there once. Raises ValueError, a sentence."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            raise ValueError(f"parameter {name} is not known; there are {', '.join(names)}")
        if name in found:
            raise ValueError(f"parameter {name} is there twice")
        found[name] = value
    return found


def read_number(found: Mapping[str, str], name: str, default: int, most: int) -> int:
    """The number from 1 to `most` by this name. Raises ValueError, a sentence."""
    text = found.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= most):
        raise ValueError(f"{name} has to be a number from 1 to {most}")
    return int(text)


_OF_PURGE: Final = ("route", "path", "identity", "all")


@dataclass(frozen=True, slots=True)
class CachePurge:
    """The cached responses that match all of these; "" matches any. `route` is `namespace/name`, `path` a prefix (no
    query, any percent-encoding), `identity` is `namespace/service account`, `-/-` for clients without one.
    """

    route: str = ""
    path: str = ""
    identity: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> CachePurge:
        """The parameters of a request: one of the fields at least, or `all=1` alone. Raises ValueError, a sentence."""
        found = read_parameters(pairs, _OF_PURGE)
        everything = found.pop("all", "")
        if everything not in ("", "1"):
            raise ValueError(f"all={everything}: write all=1")
        chosen = {name: value for name, value in found.items() if value}
        if bool(everything) == bool(chosen):
            raise ValueError("say which answers: route, path, identity or several of these; or all=1 alone")
        for name in ("route", "identity"):
            if name in chosen and chosen[name].count("/") != 1:
                raise ValueError(f"{name}={chosen[name]}: write it as namespace/name")
        if "path" in chosen and not chosen["path"].startswith("/"):
            raise ValueError(f"path={chosen['path']}: a path begins with /")
        return cls(**chosen)

    def holds(self, route: str, target: bytes, identity: str) -> bool:
        """Whether the purge covers the response to this request; `target` is the client's path and query."""
        if (self.route and route != self.route) or (self.identity and identity != self.identity):
            return False
        path = unquote_to_bytes(target.partition(b"?")[0])
        return path.startswith(unquote_to_bytes(self.path))


_OF_DECISION: Final = ("approve", "deny", "by", "why")
#: Parameters with free text, in which unprintable characters become blanks.
_WORDS: Final = ("by", "why")
_MOST: Final = 256
#: The most held requests in one response; each may take several kilobytes.
MAX_PAGE: Final = 500

#: The expiry of a held request, in monotonic seconds (the same in all workers), and its id.
HoldPlace = tuple[float, str]


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """A decision about the hold `id`. `by` and `why` go to the log and Events; `why` also to a denied client."""

    id: str
    approves: bool
    by: str = ""
    why: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> HoldDecision:
        """The parameters of a request: `approve=ID` or `deny=ID`, with `by` and `why`. Raises ValueError."""
        found = read_parameters(pairs, _OF_DECISION)
        for name, value in found.items():
            if name in _WORDS:
                value = " ".join("".join(c if c.isprintable() else " " for c in value).split())
            if len(value) > _MOST or not value.isprintable():
                raise ValueError(f"{name} has to be printable, and of at most {_MOST} characters")
            found[name] = value
        if ("approve" in found) == ("deny" in found):
            raise ValueError("say which request: approve=ID or deny=ID, one of both")
        key = found.get("approve") or found.get("deny") or ""
        if not key:
            raise ValueError("the id is empty; GET /holds lists those that wait")
        return cls(key, "approve" in found, found.get("by", ""), found.get("why", ""))


@dataclass(frozen=True, slots=True)
class HoldPage:
    """`limit` held requests after this place, soonest expiry first; of all clients, or of one (`identity_of`)."""

    limit: int = 100
    after: HoldPlace = (0.0, "")
    identity: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> HoldPage:
        """The parameters of a request: `limit`, and `continue` as the page before gives it. Raises ValueError."""
        found = read_parameters(pairs, ("limit", "continue"))
        limit = read_number(found, "limit", cls().limit, MAX_PAGE)
        at, _, key = found.get("continue", "0-").partition("-")
        try:
            return cls(limit, (float(at), key))
        except ValueError:
            raise ValueError("continue has to be what the answer before has said") from None

    def following(self, last: HoldPlace) -> str:
        """The `continue` parameter of the next page, if this page ends with `last`."""
        return f"{last[0]!r}-{last[1]}"
