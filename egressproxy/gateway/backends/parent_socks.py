"""SocksHandshake: asks a parent that is a SOCKS5 proxy for a tunnel, and says why where it gives none.

Sources: RFC 1928, RFC 1929; of Via, `protocols/socks5/messages`.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.gateway.backends.parent_connect import ParentHandshake, refused_credentials
from egressproxy.ir.backend import BackendIR
from egressproxy.model.authority import Authority
from egressproxy.protocols.socks5.client import (
    LoginRefused,
    NoCommonMethod,
    Refused,
    SocksClient,
    SocksError,
)
from egressproxy.protocols.socks5.messages import ReplyCode

#: What a reply says of the destination, with the status as if we had dialled it. The others are the parent's refusal.
_OF_DESTINATION: Final = {
    ReplyCode.NETWORK_UNREACHABLE: (Reason.CONNECT_FAILED, 503),
    ReplyCode.HOST_UNREACHABLE: (Reason.CONNECT_FAILED, 503),
    ReplyCode.CONNECTION_REFUSED: (Reason.CONNECT_REFUSED, 503),
    ReplyCode.TTL_EXPIRED: (Reason.CONNECT_TIMEOUT, 504),
}


class SocksHandshake(ParentHandshake):
    """Greets, shows username and password if the parent asks for them, and sends CONNECT."""

    def __init__(self, authority: Authority, via: bytes, backend: BackendIR) -> None:
        """`via` is a value of Via: a parent that is such a gateway sees that it was asked before. `backend` is reached
        through the parent, and has the credentials for it.
        """
        super().__init__(backend)
        credentials = backend.parent_credentials
        self._client = SocksClient(authority, credentials.authorization if credentials is not None else None, via)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._client.greeting())

    def data_received(self, data: bytes) -> None:
        if self.established.done():
            return
        try:
            following = self._client.feed(data)
        except SocksError as error:
            self._fail(self._fault(error))
            return
        if following:
            self._transport.write(following)
        if self._client.is_connected:
            self._succeed(self._client.take_rest())

    def _fault(self, error: SocksError) -> GatewayError:
        if isinstance(error, NoCommonMethod | LoginRefused):
            return refused_credentials(self._backend)
        if isinstance(error, Refused):
            reason, status = _OF_DESTINATION.get(error.code, (Reason.PARENT_REFUSED, 502))
            message = f"{self._named()} answered: {error} (SOCKS5 reply {error.code.value})"
            return UpstreamFault(reason, message, status=status)
        remedy = "check that a SOCKS5 proxy listens on that port, or correct the protocol of the parent's port"
        message = f"{self._named()} does not speak SOCKS5"
        return UpstreamFault(Reason.PARENT_REFUSED, message, remedy=remedy, detail=str(error))
