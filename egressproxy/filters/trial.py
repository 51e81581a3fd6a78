"""Builds every filter of a configuration without serving it, for `egressproxy check`. Opens no socket."""

from __future__ import annotations

from collections.abc import Iterator

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.extensions import extensions
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.policy import ExtensionIR

__all__ = ["failures"]


def failures(config: ConfigIR, catalog: Catalog) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    """The specs that cannot be built, each with its error.

    Files of Python filters are run, as at a start, but only if the other filters and the syntax of every file are good.
    """
    instances = FilterInstances(catalog)
    instances.hold_code()
    is_good = True
    for spec in dict.fromkeys(extensions(config)):
        if not spec.is_known:
            continue  # requests go on without it
        try:
            instances.place(spec)
        except FilterBuildError as error:
            is_good = False
            yield spec, error
    for spec in instances.release_code() if is_good else ():
        try:
            instances.place(spec)
        except FilterBuildError as error:
            yield spec, error
