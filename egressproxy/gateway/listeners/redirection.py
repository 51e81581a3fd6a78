"""Where a redirected client was going, and whether it is one of our own connections."""

from __future__ import annotations

import asyncio
import errno
import os
from ipaddress import ip_address

from egressproxy.errors import Denied, Reason
from egressproxy.model.authority import Authority
from egressproxy.net.local_addresses import is_local
from egressproxy.net.original_destination import NotRedirected, original_destination, owner_of


def destination_of(transport: asyncio.Transport) -> Authority:
    """Where the client of this connection was going. Raises NotRedirected, Denied for a connection of our own user.

    The gateway's own connections are the gateway's user's: were they redirected to it, each would make another one.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        raise NotRedirected(errno.ENOTCONN, "the client has left")
    found = original_destination(sock)
    peer = sock.getpeername()[:2]
    owner = owner_of(peer, (found.host, found.port))
    if owner is None and is_local(ip_address(peer[0].partition("%")[0])):
        raise NotRedirected(errno.ENOTCONN, "the kernel does not tell whose connection it is")
    if owner == os.geteuid():
        message = f"a connection of the gateway's own user (uid {owner}) to {found} was redirected to it"
        remedy = "run the gateway as a user of its own, and except that user from the redirection (`meta skuid`)"
        raise Denied(Reason.LOOP_DETECTED, message, status=508, remedy=remedy)
    return found
