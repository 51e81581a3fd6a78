"""HoldDecision: what a person says of a request that waits. HoldPage: which of those that wait are told.

Values: the admin API reads them, workers carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.model.parameters import read_parameters

_NAMES: Final = ("approve", "deny", "by", "why")
#: Free text, in which what cannot be printed becomes a blank.
_WORDS: Final = ("by", "why")
_MOST: Final = 256
#: Requests that one answer tells of: each may be shown with several kilobytes.
MAX_PAGE: Final = 500

#: When a request that waits is denied, in monotonic seconds, which are the same in all workers; and its id.
HoldPlace = tuple[float, str]


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """Of the hold with this `id`. `by` and `why` are for the log and Events; clients are told why they are denied."""

    id: str
    approves: bool
    by: str = ""
    why: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> HoldDecision:
        """The parameters of a request: `approve=ID` or `deny=ID`, with `by` and `why`. Raises ValueError."""
        found = read_parameters(pairs, _NAMES)
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
    """`limit` requests, those that are denied first, behind this place; of all clients, or of one (`identity_of`)."""

    limit: int = 100
    after: HoldPlace = (0.0, "")
    identity: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> HoldPage:
        """The parameters of a request: `limit`, and `continue` as the page before gives it. Raises ValueError."""
        found = read_parameters(pairs, ("limit", "continue"))
        limit = found.get("limit", str(cls().limit))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 0 < int(limit) <= MAX_PAGE):
            raise ValueError(f"limit has to be a number from 1 to {MAX_PAGE}")
        at, _, key = found.get("continue", "0-").partition("-")
        try:
            return cls(int(limit), (float(at), key))
        except ValueError:
            raise ValueError("continue has to be what the answer before has said") from None

    def following(self, last: HoldPlace) -> str:
        """`continue` of the next page, where this one ends with `last`."""
        return f"{last[0]!r}-{last[1]}"
