"""The socket on which Envoys ask for filters: of an address, or a Unix socket with its permissions."""

from __future__ import annotations

import socket

from egressproxy.model.unix_socket import UnixSocket
from egressproxy.net.listening import bind, bind_unix
from egressproxy.run_options import FilterListener


def bind_filters(at: FilterListener) -> socket.socket:
    """A socket that listens there. A Unix socket that nobody serves any more is replaced; to close it removes its path.

    Raises OSError.
    """
    return bind_unix(UnixSocket(at.path, at.mode)) if at.path else bind(at.host, at.port)
