"""Builds every filter of a configuration without serving it, for `egressproxy check`. Opens no socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.filter_step import MisplacedFilter
from egressproxy.filters.instances import FilterBuildError, FilterInstances, UnusableFilter
from egressproxy.ir.extensions import chains, extensions
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.policy import ExtensionIR


def failures(config: ConfigIR, catalog: Catalog) -> list[tuple[ExtensionIR, FilterBuildError]]:
    """The specs that cannot be built, each with its error: UnusableFilter for a Python filter whose constructor fails
    with the Secrets that it has. Of other types the compiler has told that in status.

    Files of Python filters are run, as at a start, but only if the other filters and the syntax of every file are good.
    """
    instances = FilterInstances(catalog)
    instances.hold_code()
    known = (spec for spec in extensions(config) if spec.is_known)  # requests go on without the others
    faults = list(_faults(instances, dict.fromkeys(known)))
    faults = faults or list(_faults(instances, instances.release_code()))
    if all(isinstance(error, UnusableFilter) for _, error in faults):
        faults += _misplaced(instances, config)
    return faults


def machine_problems(config: ConfigIR, catalog: Catalog) -> list[tuple[ExtensionIR, str, str]]:
    """The specs that name what this machine has not (a folder, say): each with the field and why."""
    found = []
    for spec in dict.fromkeys(extensions(config)):
        kind = catalog.get(spec.implementation or spec.type) if spec.is_known else None
        if kind is not None and spec.settings is not None and (why := kind.machine_problem(spec.settings)):
            found.append((spec, kind.machine_field(spec.settings), why))
    return found


def _misplaced(instances: FilterInstances, config: ConfigIR) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    """Filters that cannot stand where they are among the others."""
    for specs in dict.fromkeys(chains(config)):
        try:
            compile_chain((spec for spec in specs if spec.is_known), instances.place_or_close)
        except MisplacedFilter as error:
            yield error.spec, FilterBuildError(str(error))


def _faults(instances: FilterInstances, specs: Iterable[ExtensionIR]) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    for spec in specs:
        try:
            instances.place(spec)
        except FilterBuildError as error:
            if not isinstance(error, UnusableFilter) or instances.blocks(spec):
                yield spec, error
