"""What is said to an upstream gateway: `ParentHandshake` asks it for a tunnel and waits for its 2xx (RFC 9110 section
9.3.6), `absolute_form` is the target of a plain request.
"""

from __future__ import annotations

import asyncio
from typing import cast

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.model.authority import Authority
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.http1.codec import HeadLimits, ResponseReader
from egressproxy.transport.parked import Parked

__all__ = ["ParentHandshake", "absolute_form"]


def absolute_form(authority: bytes, path: bytes) -> bytes:
    """The request target of plain http to a parent, which connects to whatever stands there.

    `authority` is that of the backend (`Target.host_field`), never what a client, a route or a filter says in Host; the
    request's Host has to be the same, for a proxy ignores it (RFC 9112 section 3.2.2). A path cannot add to it, and is
    left out of a question about the whole server (section 3.2.4).
    """
    if path == b"*":
        return b"http://" + authority
    return b"http://%b%b" % (authority, path) if path.startswith(b"/") else b"http://%b/%b" % (authority, path)


class ParentHandshake(asyncio.Protocol):
    """Sends CONNECT when the transport is there. `established` gives the transport, parked behind the 2xx head: what
    comes, or ends, before anybody has looked is kept.

    Content-Length and Transfer-Encoding of that head mean nothing. A 407 is our configuration's fault, and never
    reaches a client.
    """

    def __init__(self, authority: Authority, pseudonym: bytes) -> None:
        self._authority = authority
        self._pseudonym = pseudonym
        self._reader = ResponseReader(HeadLimits())
        self._reader.expect(b"CONNECT")
        self.established: asyncio.Future[Parked] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        target = str(self._authority).encode()
        head = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nVia: 1.1 %b\r\n\r\n" % (target, target, self._pseudonym)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(head)

    def data_received(self, data: bytes) -> None:
        if self.established.done():
            return
        try:
            self._reader.feed(data)
            event = self._reader.next()
            while isinstance(event, ResponseHead) and event.is_interim:
                event = self._reader.next()
            if isinstance(event, ResponseHead):
                self._answered(event)
        except GatewayError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        self._fail(UpstreamFault(Reason.PARENT_REFUSED, "the parent gateway closed its connection"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(UpstreamFault(Reason.PARENT_REFUSED, "the parent gateway closed its connection"))

    def timed_out(self) -> None:
        self._fail(UpstreamFault(Reason.CONNECT_TIMEOUT, "the parent gateway did not answer in time", status=504))

    def _answered(self, head: ResponseHead) -> None:
        if 200 <= head.status < 300:
            parked = Parked()
            parked.connection_made(self._transport)
            self._transport.set_protocol(parked)
            rest = self._reader.take_rest()
            if rest:
                parked.data_received(rest)
            self.established.set_result(parked)
        elif head.status == 407:
            self._fail(UpstreamFault(Reason.PARENT_AUTH, "the parent gateway asks for credentials"))
        else:
            self._fail(UpstreamFault(Reason.PARENT_REFUSED, f"the parent gateway answered {head.status}"))

    def _fail(self, error: GatewayError) -> None:
        if not self.established.done():
            self.established.set_exception(error)
            self.established.exception()  # whoever waits sees it; nobody may be there any more
