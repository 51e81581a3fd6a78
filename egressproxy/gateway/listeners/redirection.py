"""Where a redirected client was going, whether it is one of our own connections, and what it speaks by its first bytes.

Sources: RFC 9112 section 3 (request line), RFC 8446 section 5.1 (records).
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from enum import Enum
from ipaddress import ip_address

from egressproxy.errors import Denied, Reason
from egressproxy.model.authority import Authority
from egressproxy.net.local_addresses import is_local
from egressproxy.net.original_destination import NotRedirected, original_destination, owner_of
from egressproxy.protocols.tls.client_hello import may_start_tls

#: The longest line that is waited for; of one that is longer the reader of HTTP says what is wrong with it.
MAX_LINE = 8192
_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}(?: |\Z)")
_REQUEST_LINE = re.compile(rb"[^\r\n]+ HTTP/1\.[0-9]\r?\Z")


class Spoken(Enum):
    """OPAQUE is everything else, HTTP/2 without TLS among it, which names no host before its settings."""

    TLS = "tls"
    HTTP = "http"
    OPAQUE = "opaque"


def spoken(first: bytes) -> Spoken | None:
    """What a client speaks that has begun with these bytes; None where it has to say more."""
    if not first:
        return None
    if may_start_tls(first):
        return Spoken.TLS
    if _METHOD.match(first) is None:
        return Spoken.OPAQUE
    line, newline, _ = first.partition(b"\n")
    if not newline:
        return Spoken.HTTP if len(first) > MAX_LINE else None
    return Spoken.HTTP if _REQUEST_LINE.match(line) else Spoken.OPAQUE


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
