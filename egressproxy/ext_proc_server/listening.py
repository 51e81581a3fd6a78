"""The socket on which Envoys ask for filters: of an address, or a Unix socket with its permissions."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from egressproxy.net.listening import BACKLOG, bind
from egressproxy.net.unix_listening import remove_stale
from egressproxy.run_options import FilterListener

__all__ = ["bind_filters", "remove_path"]


def bind_filters(at: FilterListener) -> socket.socket:
    """A socket that listens there. A Unix socket that nobody serves any more is replaced. Raises OSError."""
    if not at.path:
        return bind(at.host, at.port)
    remove_stale(at.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o777 & ~at.mode)  # from its first moment it has no other permissions
        try:
            sock.bind(at.path)
        finally:
            os.umask(before)
        sock.setblocking(False)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def remove_path(at: FilterListener) -> None:
    """Nobody finds the Unix socket any more. For the one who has bound it, when it is closed."""
    if at.path:
        with suppress(OSError):
            os.unlink(at.path)
