"""Compiles resources to the IR (what is served) and to the status of every object.

Pure: no files, no sockets; the clock is read for condition times alone.
"""

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import (
    CONTROLLER,
    Compiled,
    Defaults,
    FilterCatalog,
    FilterTypeInfo,
    Key,
    Status,
)

__all__ = ["CONTROLLER", "Compiled", "Defaults", "FilterCatalog", "FilterTypeInfo", "Key", "Status", "compile_config"]
