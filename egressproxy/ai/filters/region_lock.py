"""RegionLock: only backends whose `region` is allowed, as `regions` of an EgressPolicy says it.

The compiler enforces it, not a request phase: the gateway has no path to a backend of another region, so no failover,
retry, hedge, mirror or parent leads there. Restrictions of all levels add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, OfMessages
from egressproxy.filters.settings import FilterConfig, Within

#: The kinds in whose `extensions` the compiler looks for this filter.
_KINDS: Final = ("EgressPolicy", "Backend")


@dataclass(frozen=True, slots=True)
class RegionLockConfig(FilterConfig):
    allowed: tuple[Annotated[str, Within(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A Backend without one is not used."""


class RegionLock(Filter):
    """Runs in no phase. Raises ValueError in an object of another kind than _KINDS."""

    runs_in = frozenset()
    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        kind = context.source.partition(" ")[0]
        if kind not in _KINDS:
            raise ValueError(f"a RegionLock stands in `extensions` of an EgressPolicy or a Backend, not of a {kind}")


REGION_LOCK = FilterType(
    name="egressproxy.io/RegionLock:v1",
    phases=REQUEST_HEADS,
    config_model=RegionLockConfig,
    build=RegionLock,
    summary="Lets only backends of these regions be used.",
)
