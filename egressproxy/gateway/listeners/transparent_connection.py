"""TransparentConnection: a client that was redirected to us on its way to another address, and does not know it.

Its first bytes decide. TLS becomes a tunnel to the name in its ClientHello, HTTP is read and each request goes to its
Host, at the port that the client has dialled; names are resolved by us, so that what a client says and where it was
going cannot differ. Everything else, and TLS or HTTP without a name, becomes a tunnel to the address that was dialled,
judged as `CONNECT address:port` is. A client that waits for its server to speak first is taken for that after a while,
where policy allows the address.
"""

from __future__ import annotations

import asyncio
from typing import Final

from egressproxy.errors import BadRequest, Denied, GatewayError, Reason
from egressproxy.gateway.exchange.admission import route_tunnel
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.exchange.opened_tunnel import Redirection
from egressproxy.gateway.listeners.counted_client import CountedClient
from egressproxy.gateway.listeners.redirection import Spoken, destination_of, spoken
from egressproxy.gateway.listeners.stream_connection import alert_for
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import Hop, RequestHead
from egressproxy.net.original_destination import NotRedirected
from egressproxy.protocols.tls.client_hello import ACCESS_DENIED, BadClientHello, ClientHello, ClientHelloReader, NotTls
from egressproxy.telemetry.metrics import Metrics

#: After this time, in seconds, a client that has said nothing is taken for one that waits for its server.
SILENCE_S: Final = 1.0
#: Clients are told nothing: this is for the log.
_HOW_TO_REDIRECT: Final = "redirect with nftables in the network namespace of the gateway (docs/ways-in.md)"


class TransparentConnection(CountedClient):
    """One tunnel, or requests of HTTP/1 one after the other. Until its first bytes say which, they are held here."""

    __slots__ = ("_early", "_error", "_hello", "_is_decided", "_reader", "_waits_for_server", "destination")

    def __init__(self, connection_manager: HttpConnectionManager, metrics: Metrics, state: OpenConnections) -> None:
        super().__init__(connection_manager, metrics, state)
        self.destination: Authority | None = None  # that the client has dialled
        self._early = bytearray()
        self._is_decided = False
        self._waits_for_server = True  # as far as we know
        self._reader: ClientHelloReader | None = None
        self._hello: ClientHello | None = None
        self._error: GatewayError | None = None  # that ends the exchange

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the kernel where the client was going. One that was going nowhere else is refused."""
        super().connection_made(transport)
        if self.transport.is_closing():
            return
        try:
            self.destination = destination_of(self.transport)
        except NotRedirected as error:
            detail = f"{error.strerror}: {_HOW_TO_REDIRECT}"
            self._refuse(BadRequest(Reason.NOT_REDIRECTED, "nothing was redirected here", detail=detail))
        except Denied as denied:
            self._refuse(denied)
        else:
            self.deadline.after(min(SILENCE_S, self.request_headers_s or SILENCE_S))

    def data_received(self, data: bytes) -> None:
        if self._is_decided:
            super().data_received(data)
            return
        self.bytes_in += len(data)
        self._early += data
        if self._reader is not None:
            self._read_hello(data)
            return
        found = spoken(bytes(self._early))
        if found is Spoken.TLS:
            self._reader = ClientHelloReader()
            self.deadline.after(self.request_headers_s)
            self._read_hello(bytes(self._early))
        elif found is Spoken.HTTP:
            self._speak_http()
        elif found is Spoken.OPAQUE:
            self._open_tunnel(None)

    def eof_received(self) -> bool:
        if self._is_decided or not self._early:
            return super().eof_received()
        self.has_ended = True
        if self._reader is not None:
            self._refuse(BadRequest(Reason.NOT_TLS, "the client ended in its ClientHello"))
        else:
            self._open_tunnel(None)
        return True

    def _read_hello(self, data: bytes) -> None:
        assert self._reader is not None
        try:
            hello = self._reader.feed(data)
        except NotTls:
            self._open_tunnel(None)
        except BadClientHello as error:
            self._refuse(Denied(Reason.NOT_TLS, "malformed ClientHello", detail=str(error)))
        else:
            if hello is not None:
                self._open_tunnel(hello)

    def _speak_http(self) -> None:
        assert self.destination is not None
        self.tunnel = Redirection(self.destination)
        self.deadline.after(self.request_headers_s)
        early = self._take_early()
        self.bytes_in -= len(early)
        super().data_received(early)

    def _open_tunnel(self, hello: ClientHello | None) -> None:
        """Ask for it as a CONNECT does, to the name in the ClientHello or to the address."""
        destination = self.destination
        assert destination is not None
        self._hello = hello
        target = destination.text
        if hello is not None and hello.sni is not None:
            target = f"{hello.sni}:{destination.port}"
        raw = target.encode()
        head = RequestHead(b"CONNECT", raw, Fields(), Hop(host=raw))
        self.serve_head(head, self._take_early())

    def _take_early(self) -> bytes:
        self._is_decided = True
        early, self._early, self._reader = bytes(self._early), bytearray(), None
        return early

    def _refuse(self, error: GatewayError) -> None:
        """What cannot become a tunnel, nor be read as HTTP: the client is told nothing."""
        self._take_early()
        self.refuse(error)

    def _deadline_passed(self) -> None:
        if self._is_decided or self.destination is None:
            super()._deadline_passed()
        elif self._reader is not None:
            self._refuse(BadRequest(Reason.CLIENT_TIMEOUT, "the ClientHello took too long", status=408))
        elif self._may_be_opaque(self.destination):
            self._open_tunnel(None)
        elif self._waits_for_server and not 0 < self.request_headers_s <= SILENCE_S:
            self._waits_for_server = False
            self.deadline.after(max(0.0, self.request_headers_s - SILENCE_S))  # 0: there is no limit
        elif self._early:
            self._open_tunnel(None)  # it is refused, and the log says so
        else:
            self.close()

    def _may_be_opaque(self, destination: Authority) -> bool:
        """Whether a tunnel to the address could be allowed to anybody: else the client is waited for."""
        listener = self.listener
        if listener.variants is not None:
            return True
        try:
            route_tunnel(listener, destination)
        except Denied:
            return False
        return True

    # --- the client does not know of us ------------------------------------------------------------------------------
    def accept_tunnel(self) -> None:
        """It has never asked."""

    def error_answer(self, error: GatewayError, exchange: Exchange) -> LocalResponse:
        """The answer for a client of HTTP; one of TLS gets an alert. The log tells where others were going."""
        self._error = error
        if self.tunnel is None:
            exchange.authority = exchange.authority or self.destination
        return super().error_answer(error, exchange)

    def send_answer(self, answer: LocalResponse, *, close: bool, with_body: bool = True) -> None:
        """To a client of HTTP a response, to one of TLS an alert, to others nothing."""
        if self.tunnel is not None:
            super().send_answer(answer, close=close, with_body=with_body)
        elif self._hello is not None:
            alert = alert_for(self._error, self._hello) if self._error is not None else ACCESS_DENIED
            if alert:
                self.send(alert)

    def finish(self, *, close: bool) -> None:
        super().finish(close=close or self.tunnel is None)  # a tunnel that did not come about

    def refuse_connection(self, answer: LocalResponse) -> None:
        self.transport.abort()  # nobody knows yet what the client speaks
