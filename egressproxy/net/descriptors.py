"""How many file descriptors this process may have: what bounds it where no limit does."""

from __future__ import annotations

import resource
import sys

__all__ = ["descriptors"]


def descriptors() -> int:
    """The present limit of open file descriptors; sys.maxsize where there is none. Source: getrlimit(2)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most
