"""BrokenObjects: the objects of a configuration that cannot be read. The rest is compiled without them, so that every
problem is told at once, except those that the rest has only because these are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from egressproxy.config.reading.problems import Problem

#: Words of a problem that a missing object of this kind may cause, although the problem does not name it.
_UNNAMED: Final = {
    "ReferenceGrant": "ReferenceGrant",
    "EndpointSlice": "EndpointSlice",
    "EgressPolicy": "destinations.allow",
    "Namespace": "is Selector",
}


@dataclass(slots=True)
class BrokenObjects:
    """`has_unknown`: there may be others, as in a file that cannot be read."""

    has_unknown: bool = False
    _names: set[str] = field(default_factory=set)
    _words: set[str] = field(default_factory=set)

    def add(self, value: Any, full_name: str, *, is_namespaced: bool) -> None:
        """Note an object that was read as `value`; `full_name` is "Kind namespace/name", as far as it is known."""
        kind, _, name = full_name.partition(" ")
        if not name:
            self.has_unknown = True
            return
        self._names.add(name if is_namespaced else full_name)
        if kind in _UNNAMED:
            self._words.add(_UNNAMED[kind])
        spec = value.get("spec") if isinstance(value, dict) else None
        if kind == "FilterType" and isinstance(spec, dict) and isinstance(spec.get("type"), str):
            self._names.add(spec["type"])

    def others(self, problems: Iterable[Problem]) -> list[Problem]:
        """These problems, without those that name a broken object, or an object that lacks one."""
        left, names = list(problems), set(self._names)
        if not names:
            return left
        while names:
            pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w/-]|\.\w)")
            follow = [each for each in left if self._lacks(each, pattern)]
            lacking = {each.object for each in follow} - {""}
            # A problem of such an object as a whole sums up the others.
            left = [each for each in left if each not in follow and (each.field_path or each.object not in lacking)]
            names = {each.partition(" ")[2] for each in lacking}
        return left

    def _lacks(self, problem: Problem, names: re.Pattern[str]) -> bool:
        """Whether the problem follows from objects of these names. One without a place is about the configuration."""
        sentence = problem.sentence
        is_of_whole = not (problem.object or problem.file)
        return is_of_whole or names.search(sentence) is not None or any(word in sentence for word in self._words)
