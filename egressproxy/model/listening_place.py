"""The address and port of a listening socket: an IP literal, `udp://` with such a literal for datagrams, or a Unix
socket.
"""

from __future__ import annotations

from typing import Final

from egressproxy.model.authority import Authority
from egressproxy.model.unix_socket import is_unix

#: In front of an IP literal to bind: a socket of datagrams.
DATAGRAMS: Final = "udp://"


def is_datagram(address: str) -> bool:
    """Whether this address to bind is one of datagrams."""
    return address.startswith(DATAGRAMS)


def is_connection(address: str) -> bool:
    """Whether this address to bind is one of IP that takes connections."""
    return not is_unix(address) and not is_datagram(address)


def place_text(address: str, port: int) -> str:
    """A place as people write it: `192.0.2.1:53`, `udp://[2001:db8::1]:53`, or the path of a Unix socket."""
    if is_unix(address):
        return address
    return f"{DATAGRAMS * is_datagram(address)}{Authority(address.removeprefix(DATAGRAMS), port)}"
