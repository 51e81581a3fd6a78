"""LabelSets: counts by labels. Names of routes and backends come and go over the life of a process, so there is a bound
on them.
"""

from __future__ import annotations

from typing import Any, Final, TypeVarTuple, cast

#: The most label sets of one metric, over the life of the process.
MAX_SETS: Final = 10_000
OVERFLOW: Final = "_other"

_Labels = TypeVarTuple("_Labels")


class LabelSets(dict[tuple[*_Labels], int]):
    """Counts by tuples of words, the last of which is one of a few: a result, say."""

    def count(self, *labels: *_Labels) -> None:
        """Count one. Where there is no room for a new set, all but its last label is OVERFLOW."""
        if labels not in self and self.is_full:
            every: tuple[Any, ...] = labels
            labels = cast("tuple[*_Labels]", (*(OVERFLOW for _ in every[:-1]), every[-1]))
        self[labels] = self.get(labels, 0) + 1

    @property
    def is_full(self) -> bool:
        """Whether no further set has room."""
        return len(self) >= MAX_SETS
