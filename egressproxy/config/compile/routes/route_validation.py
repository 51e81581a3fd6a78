"""Findings: what is wrong with a route, gathered rule by rule, for its status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from egressproxy.ir.route import WeightedBackend

__all__ = ["Findings"]


@dataclass(slots=True)
class Findings:
    """What is wrong with a route wherever it is attached.

    `unresolved` are (reason, message) of references; `closed` the rules that answer 500 by their index, `places` the
    fields that are to blame; `dropped` the rules that are left out, `unasked` those whose authorization server does not
    resolve; `notes` name fields that do nothing;
    `errors` are what clients may be told of the references.
    `patterns` are its regular expressions.
    """

    rules: int = 0
    unresolved: list[tuple[str, str]] = field(default_factory=list)
    closed: dict[int, str] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    unasked: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)

    @property
    def bad_rules(self) -> list[str]:
        """What status says about the rules that are not served as written."""
        return [
            *(f"Dropped Rule {index}: {text}." for index, text in self.dropped.items()),
            *(
                f"Rule {index} answers 500: {self.places.get(index, '')}{text}."
                for index, text in (self.unasked | self.closed).items()
            ),
        ]

    def unsaid(self, backends: Iterable[WeightedBackend]) -> list[str]:
        """Why backends cannot be used at a listener, as far as nothing here says it: policies close them."""
        known = {*self.errors, *self.closed.values()}
        errors = dict.fromkeys(b.error for b in backends if b.backend is None)
        return [error for error in errors if error not in known]

    @property
    def is_served(self) -> bool:
        """Whether any rule is served as written."""
        return len(self.closed) + len(self.dropped) < self.rules

    @property
    def is_partial(self) -> bool:
        """Whether some rules are not served as written, and others are."""
        return 0 < len({*self.closed, *self.dropped, *self.unasked}) < self.rules
