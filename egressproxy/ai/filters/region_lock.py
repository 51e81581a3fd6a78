"""RegionLock: only backends whose `region` is allowed, as `regions` of an EgressPolicy says it.

It is decided where the configuration is compiled, and not for each request: a backend of another region has no way in
the gateway, so that no fail-over, retry, hedge, mirror or parent leads there. What runs here is nothing. It is a
restriction: those of all levels add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType
from egressproxy.filters.settings import FilterConfig, Within

#: The kinds whose `extensions` the compiler looks through for it.
_KINDS: Final = ("EgressPolicy", "Backend")


@dataclass(frozen=True, slots=True)
class RegionLockConfig(FilterConfig):
    """The regions."""

    allowed: tuple[Annotated[str, Within(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A Backend without one is not used."""


class RegionLock(Filter):
    """Runs in no phase. Raises ValueError where it stands in an object that the compiler does not look into."""

    runs_in = frozenset()

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
