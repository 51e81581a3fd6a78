"""SocksConnection: a client that asks in SOCKS5 for what others ask for with CONNECT, and is served as these are.

Its request becomes the head of a CONNECT: policy, routes, the name in the ClientHello, HTTP in a tunnel to port 80, the
log and metrics are those of a tunnel of HTTP. Names are resolved by us, and addresses judged as those of a CONNECT.
Username and password go where Proxy-Authorization goes.
Sources: RFC 1928 (SOCKS5), RFC 1929 (username and password).
"""

from __future__ import annotations

from typing import Final

from egressproxy.errors import BadRequest, Denied, GatewayError, Reason
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.exchange.error_responses import is_denial
from egressproxy.gateway.identity.challenges import Unauthenticated
from egressproxy.gateway.listeners.counted_client import CountedClient
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import Hop, RequestHead
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import (
    CommandNotServed,
    NoAcceptableMethod,
    SocksServer,
    SocksServerError,
    reply,
)
from egressproxy.telemetry.metrics import Metrics

#: What a client is told of these; of other errors whether policy has refused or something has failed.
_CODES: Final = {
    Reason.DNS_NXDOMAIN: ReplyCode.HOST_UNREACHABLE,
    Reason.DNS_NO_ADDRESS: ReplyCode.HOST_UNREACHABLE,
    Reason.DNS_SERVFAIL: ReplyCode.HOST_UNREACHABLE,
    Reason.DNS_TIMEOUT: ReplyCode.HOST_UNREACHABLE,
    Reason.DNS_ERROR: ReplyCode.HOST_UNREACHABLE,
    Reason.CONNECT_FAILED: ReplyCode.NETWORK_UNREACHABLE,
    Reason.CONNECT_REFUSED: ReplyCode.CONNECTION_REFUSED,
    Reason.CONNECT_TIMEOUT: ReplyCode.TTL_EXPIRED,
}


class SocksConnection(CountedClient):
    """One exchange: a tunnel. Where HTTP is read in it, one request after the other."""

    __slots__ = ("_code", "_is_http", "_last_word", "_negotiation")

    def __init__(self, connection_manager: HttpConnectionManager, metrics: Metrics, state: OpenConnections) -> None:
        super().__init__(connection_manager, metrics, state)
        rules = state.port.first.spec.policy.identity
        asks = rules is not None and bool(
            rules.users or (rules.issuers and not rules.token_field) or rules.api_keys is not None
        )
        self._negotiation: SocksServer | None = SocksServer(
            asks_login=asks, may_be_nobody=rules is None or not asks or not rules.is_required or bool(rules.addresses)
        )
        self._is_http = False
        self._code: ReplyCode | None = None  # of the error that ends the exchange
        self._last_word: bytes | None = None  # where what the client has said is refused

    def data_received(self, data: bytes) -> None:
        negotiation = self._negotiation
        if negotiation is None:
            super().data_received(data)
            return
        self.bytes_in += len(data)
        try:
            answer = negotiation.feed(data)
        except SocksServerError as error:
            self._negotiation = None
            self._refuse(error, negotiation.first_byte)
            return
        if answer:
            self.send(answer)
        if negotiation.target:
            self._negotiation = None
            hop = Hop(host=negotiation.target, via=negotiation.via, proxy_authorization=negotiation.credentials)
            head = RequestHead(b"CONNECT", negotiation.target, Fields(), hop)
            self.serve_head(head, negotiation.take_rest())

    def _refuse(self, error: SocksServerError, first_byte: bytes) -> None:
        """What the client says is not served: it is answered in its own words, and counted like a malformed request."""
        self._last_word = error.answer
        if isinstance(error, CommandNotServed):
            self.refuse(Denied(Reason.METHOD_NOT_ALLOWED, str(error), status=405))
        elif isinstance(error, NoAcceptableMethod) and error.is_for_want_of_login:
            self.refuse(Unauthenticated(Reason.CREDENTIALS_REQUIRED, str(error), 407, ()))
        else:
            self._is_http = not error.answer and first_byte.isalpha()
            remedy = ": write socks5h:// in place of http:// in the proxy settings" if self._is_http else ""
            self.refuse(BadRequest(Reason.NOT_SOCKS, f"this listener speaks SOCKS5: {error}{remedy}"))

    def _deadline_passed(self) -> None:
        if self._negotiation is not None and self.bytes_in:
            self._negotiation, self._last_word = None, b""
            self.refuse(BadRequest(Reason.CLIENT_TIMEOUT, "the SOCKS5 request took too long", status=408))
        else:
            super()._deadline_passed()

    def accept_tunnel(self) -> None:
        """Say that it is connected (RFC 1928 section 6)."""
        self.send(reply(None))

    def error_answer(self, error: GatewayError, exchange: Exchange) -> LocalResponse:
        self._code = reply_code(error)
        return super().error_answer(error, exchange)

    def send_answer(self, answer: LocalResponse, *, close: bool, with_body: bool = True) -> None:
        """In place of a response the reply that says why there is no tunnel; inside a tunnel a response."""
        if self.tunnel is not None or self._is_http:
            super().send_answer(answer, close=close, with_body=with_body)
        elif self._last_word is not None:
            self.send(self._last_word)
        else:
            of_filters = ReplyCode.NOT_ALLOWED if answer.status < 500 else ReplyCode.GENERAL_FAILURE
            self.send(reply(self._code or of_filters))

    def finish(self, *, close: bool) -> None:
        """Where no tunnel came about, the connection is over with the reply (RFC 1928 section 6)."""
        super().finish(close=close or self.tunnel is None)

    def refuse_connection(self, answer: LocalResponse) -> None:
        self.transport.abort()  # there is no reply before a request


def reply_code(error: GatewayError) -> ReplyCode:
    """What an error is in the words of RFC 1928 section 6."""
    usual = ReplyCode.NOT_ALLOWED if is_denial(error) else ReplyCode.GENERAL_FAILURE
    return _CODES.get(error.reason, usual)
