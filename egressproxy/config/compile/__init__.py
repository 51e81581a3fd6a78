"""From resources to a spec: what was written becomes what is served, and every object learns what became of it.

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
