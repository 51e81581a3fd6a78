"""From manifests to what is served: load and compile with the filters and the expressions of this data plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from egressproxy.config.compile import Compiled, Defaults, compile_config
from egressproxy.config.load import ResourceSet, load
from egressproxy.filters.catalog import Catalog
from egressproxy.routing.patterns import compile_pattern

__all__ = ["compiled", "loaded"]


def loaded(
    paths: Sequence[Path], bind: tuple[str, ...], previous: Compiled | None = None
) -> tuple[ResourceSet, Compiled]:
    """The objects of these files and folders, compiled. Raises ConfigError."""
    resources = load(paths)
    return resources, compiled(resources, bind, previous)


def compiled(resources: ResourceSet, bind: tuple[str, ...], previous: Compiled | None = None) -> Compiled:
    """What `check` and `run` make of manifests. `bind`: for Gateways without addresses. Raises ConfigError."""
    return compile_config(resources, Catalog(), Defaults(bind_addresses=bind, check_pattern=compile_pattern), previous)
