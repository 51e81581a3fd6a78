"""Trial: builds every filter that a configuration would run, for those who serve nothing. Opens no socket."""

from __future__ import annotations

from collections.abc import Iterator

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.extensions import extensions
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.policy import ExtensionIR

__all__ = ["failures"]


def failures(config: ConfigIR, catalog: Catalog) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    """The specs that cannot be built, with the reason.

    A Python filter's file is run for it, as at a start, once nothing else is wrong: neither with the other filters, nor
    with the text of any file.
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
