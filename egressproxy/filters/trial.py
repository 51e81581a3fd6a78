"""Trial: builds every filter that a configuration would run, for those who serve nothing. Opens no socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.spec.gateway import ConfigSpec
from egressproxy.spec.policy import ExtensionSpec
from egressproxy.spec.route import WeightedBackend

__all__ = ["failures"]


def failures(config: ConfigSpec, catalog: Catalog) -> Iterator[tuple[ExtensionSpec, FilterBuildError]]:
    """The specs that cannot be built, with the reason.

    A Python filter's file is run for it, as at a start, once nothing else is wrong: neither with the other filters, nor
    with the text of any file.
    """
    instances = FilterInstances(catalog)
    instances.hold_code()
    is_good = True
    for spec in dict.fromkeys(_specs(config)):
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


def _specs(config: ConfigSpec) -> Iterator[ExtensionSpec]:
    for listener in config.listeners:
        yield from listener.extensions
        if listener.default_backend is not None:
            yield from listener.default_backend.extensions
        for route in listener.http_routes:
            for rule in route.rules:
                yield from rule.extensions
                yield from _of_backends(rule.backends)
        for stream in (*listener.tls_routes, *listener.tcp_routes):
            yield from stream.extensions
            yield from _of_backends(stream.backends)


def _of_backends(backends: Iterable[WeightedBackend]) -> Iterator[ExtensionSpec]:
    for backend in backends:
        yield from backend.extensions
