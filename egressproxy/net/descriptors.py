"""How many file descriptors this process may have: what bounds it where no limit does."""

from __future__ import annotations

import resource
import sys
from typing import Final

#: Descriptors for other use than that of clients and backends: the admin address, the log, the loader.
RESERVED: Final = 64


def descriptors() -> int:
    """The present limit of open file descriptors; sys.maxsize where there is none. Source: getrlimit(2)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def descriptors_for_traffic() -> int:
    """Those that clients and backends may have together; the kernel gives the lowest number that is free."""
    most = descriptors()
    return most if most == sys.maxsize else max(most - RESERVED, most // 2)
