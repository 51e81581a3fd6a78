"""A WebSocket that a client of HTTP/2 asks for, toward an upstream of HTTP/1: its handshake has a key there.

Sources: RFC 8441 section 5, RFC 6455 sections 4.1 and 4.2.2.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from hashlib import sha1

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.model.message import RequestHead, ResponseHead

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY = b"sec-websocket-key"
_ACCEPT = b"sec-websocket-accept"


class Handshake:
    """Puts a key into the request, and looks for its answer."""

    __slots__ = ("_expected",)

    def __init__(self, head: RequestHead) -> None:
        key = b64encode(secrets.token_bytes(16))
        head.fields.set(_KEY, key)
        self._expected = b64encode(sha1(key + _GUID, usedforsecurity=False).digest())

    def check(self, head: ResponseHead) -> None:
        """Take the answer out of a 101. Raises UpstreamFault for one that answers something else."""
        if head.fields.get_all(_ACCEPT) != [self._expected]:
            raise UpstreamFault(Reason.BAD_RESPONSE, "the upstream's 101 does not answer the WebSocket's key")
        head.fields.remove(_ACCEPT)
