"""Compiling a configuration that has to be valid."""

from __future__ import annotations

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Compiled, Defaults, FilterCatalog
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import ConfigError


def compile_valid(
    resources: ResourceSet, catalog: FilterCatalog, defaults: Defaults, previous: Compiled | None = None
) -> Compiled:
    """As `compile_config`. Raises ConfigError with the `problems` of the result."""
    made = compile_config(resources, catalog, defaults, previous)
    if made.problems:
        raise ConfigError(made.problems)
    return made
