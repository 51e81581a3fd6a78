"""Precedence in words: the matches of a request, and why one comes before another. For explanations only.

The order itself is the rank by which `routing/table` sorts, and the order of its hostname look-ups.
Source: Gateway API, HTTPRouteSpec.hostnames and HTTPRouteRule.matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

#: Path type, length of the path (negative), whether a method is missing, number of headers and of query parameters
#: (negative), whether it is derived for CORS, creationTimestamp, namespace/name, place of the rule. Less comes first.
Rank = tuple[int, int, int, int, int, bool, str, str, int]

_UNDATED = "~"
_PATHS = ("an exact path", "a regular expression", "a path prefix", "a gRPC method", "every path")


@dataclass(frozen=True, slots=True)
class RuleOrigin:
    """`position` is its place among those of its route that are served, `rule` that among all, as written, from 0."""

    kind: str
    route: str
    created: str
    position: int
    rule: int
    rule_name: str


class Match(NamedTuple, Generic[T]):
    """A match that holds for a request. `hostname`: the pattern ("": every host); `text` says what is matched."""

    payload: T
    origin: RuleOrigin
    hostname: str
    text: str
    rank: Rank


def criterion(winner: Match[T], other: Match[T]) -> str:
    """The reason why `winner` precedes `other`, in words: the first criterion in which they differ."""
    if winner.hostname != other.hostname:
        return f"hostname {winner.hostname} is more specific than {other.hostname or 'every host'}"
    for index, (first, second) in enumerate(zip(winner.rank, other.rank, strict=True)):
        if first != second:
            return _words(index, winner.rank, other.rank)
    return "the match comes first in its rule"


def _words(index: int, winner: Rank, other: Rank) -> str:
    return (
        f"{_PATHS[winner[0]]} comes before {_PATHS[other[0]]}",
        f"its path is longer ({-winner[1]} bytes, not {-other[1]})",
        "it names the method",
        f"it matches more headers ({-winner[3]}, not {-other[3]})",
        f"it matches more query parameters ({-winner[4]}, not {-other[4]})",
        "it is written, the other derived for CORS preflight requests",
        f"its route is older ({_age(winner[6])}; the other: {_age(other[6])})",
        f"its route comes first by name ({winner[7]} before {other[7]})",
        "its rule stands first in the route",
    )[index]


def _age(created: str) -> str:
    return "no creationTimestamp" if created == _UNDATED else created
