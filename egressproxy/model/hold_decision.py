"""HoldDecision: what a person says of a request that waits. A value: the admin API reads it, workers carry it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.model.parameters import read_parameters

__all__ = ["HoldDecision"]

_NAMES: Final = ("approve", "deny", "by", "why")
#: Free text, in which what cannot be printed becomes a blank.
_WORDS: Final = ("by", "why")
_MOST: Final = 256


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
