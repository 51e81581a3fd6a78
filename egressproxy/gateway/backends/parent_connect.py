"""What is said to an upstream gateway: `ConnectHandshake` asks it for a tunnel and waits for its 2xx (RFC 9110 section
9.3.6), `absolute_form` is the target of a plain request, `proxy_authorization` what either shows to be let in.
`SocksHandshake` asks a SOCKS5 proxy (RFC 1928, RFC 1929; of Via, `protocols/socks5/messages`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, cast

from egressproxy.errors import Denied, GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.ir.backend import BackendIR, Protocol
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.forwarded_identity import FIELD, ForwardedIdentity, TooMuchToTell, sign
from egressproxy.model.message import ResponseHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.model.secret import SecretBytes
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.protocols.http1.codec import ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.socks5.client import LoginRefused, NoCommonMethod, Refused, SocksClient, SocksError
from egressproxy.protocols.socks5.messages import ReplyCode

_LIMITS: Final = HeadLimits()


def proxy_authorization(backend: BackendIR) -> SecretBytes | None:
    """Proxy-Authorization (RFC 9110 section 11.7.2) for the parent of this backend, with a CRLF in front, if any."""
    credentials = backend.parent_credentials
    if credentials is None:
        return None
    return SecretBytes(b"\r\nProxy-Authorization: " + credentials.authorization.reveal())


def identity_line(
    backend: BackendIR, exchange: Exchange, method: bytes, authority: str, *, is_of_client: bool
) -> bytes:
    """The line of X-Egress-Identity for the parent of this backend, with a CRLF in front; b"" without a key.

    `is_of_client`: what is sent is for the client of this exchange alone; else only the Gateway is named. A client that
    has come through a gateway before us is the one that was named there. Raises Denied where more is known of it than
    can be told.
    """
    key = backend.parent_identity_key
    if key is None:
        return b""
    who = ForwardedIdentity(exchange.gateway)
    if is_of_client:
        known = exchange.identity
        client = known.origin_client if known.origin_client != "-" else client_of(exchange)
        name = known.name
        if known.source in ("basic", "key") and known.namespace == "-":
            name = f"{exchange.gateway}#{name}"  # another gateway may have another user of this name
        who = ForwardedIdentity(
            exchange.gateway, client, known.namespace, known.service_account, name, known.groups, known.claims,
            known.claims_read,
        )  # fmt: skip
    try:
        value = sign(key, who, method, authority, time.time())
    except TooMuchToTell as problem:
        message = f"this client has more groups and claims than the next gateway can be told: {problem}"
        remedy = "have its issuer put fewer groups into the token"
        raise Denied(Reason.CREDENTIALS_REFUSED, message, remedy=remedy) from None
    return b"\r\n%b: %b" % (FIELD, value)


def is_socks(backend: BackendIR | None) -> bool:
    return backend is not None and backend.protocol is Protocol.SOCKS5


def parent_name(backend: BackendIR) -> str:
    """The namespace/name of the Backend that this one is reached through; "-": none."""
    return backend.parent.name if backend.parent is not None else "-"


class ParentUnreachable(UpstreamFault):
    """There is no connection to the parent. `is_down`: whatever it is asked for; else it closed a connection when it
    was asked for this destination.
    """

    is_down = True


def fault_at_parent(error: UpstreamFault, parent: str) -> ParentUnreachable:
    """The same error, with the name of the parent that could not be reached, unless one behind it is named already."""
    message, detail = error.message, error.detail
    if "parent proxy " not in message:
        message, detail = f"{message} (parent proxy {parent})", f"parent proxy {parent}: {detail or message}"
    return ParentUnreachable(
        error.reason, message, status=error.status, rule=error.rule, remedy=error.remedy, detail=detail,
        retry=error.retry, retry_after_s=error.retry_after_s, close=error.close,
    )  # fmt: skip


def refused_credentials(backend: BackendIR) -> UpstreamFault:
    """The error where the parent of this backend has answered 407 (for us, not for clients): what to configure."""
    parent = parent_name(backend)
    credentials = backend.parent_credentials
    if credentials is None:
        message = f"the parent proxy {parent} asks for credentials, and none are configured for it"
        remedy = "name a Secret with username and password in parent.credentialsRef, where this parent is named"
        detail = "it was shown no credentials"
    else:
        message = f"the parent proxy {parent} does not accept the credentials of parent.credentialsRef"
        scheme = "the method of RFC 1929" if is_socks(backend.parent) else "Basic"
        remedy = f"correct username and password in {credentials.source}, or have that proxy take {scheme}"
        detail = f"it was shown those of {credentials.source} ({scheme}, the only scheme there is here)"
    return UpstreamFault(Reason.PARENT_AUTH, message, remedy=remedy, detail=detail)


def absolute_form(authority: bytes, path: bytes) -> bytes:
    """The request target of plain http to a parent, which connects to whatever stands there.

    `authority` is `UpstreamHost.host_field`, never what a client, a route or a filter says in Host; the request's Host
    has to be the same, for a proxy ignores it (RFC 9112 section 3.2.2). A path cannot add to it, and is left out of a
    question about the whole server (section 3.2.4).
    """
    if path == b"*":
        return b"http://" + authority
    return b"http://%b%b" % (authority, path) if path.startswith(b"/") else b"http://%b/%b" % (authority, path)


class ParentHandshake(asyncio.Protocol):
    """Asks a parent for a tunnel when the transport is there. `established` gives the transport once the parent has
    connected us, parked: it keeps what comes, and its end, until it is handed over.
    """

    _transport: asyncio.Transport

    def __init__(self, backend: BackendIR) -> None:
        """`backend` is reached through the parent, and has the credentials for it."""
        self._backend = backend
        self.established: asyncio.Future[PendingProtocol] = asyncio.get_running_loop().create_future()

    def eof_received(self) -> bool:
        """asyncio.Protocol: the parent has closed before it answered. Returns False: close our side, too."""
        self._fail(self._closed())
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(self._closed())

    def timed_out(self) -> None:
        """The time for the answer is over: fail with CONNECT_TIMEOUT (504)."""
        self._fail(UpstreamFault(Reason.CONNECT_TIMEOUT, f"{self._named()} did not answer in time", status=504))

    def _succeed(self, rest: bytes) -> None:
        """The tunnel is there, and `rest` is what has come through it already."""
        parked = PendingProtocol()
        parked.connection_made(self._transport)
        self._transport.set_protocol(parked)
        if rest:
            parked.data_received(rest)
        self.established.set_result(parked)

    def _closed(self) -> ParentUnreachable:
        message = f"{self._named()} closed its connection"
        error = ParentUnreachable(Reason.PARENT_REFUSED, message, retry=RetrySafety.SAFE)
        error.is_down = False
        return error

    def _named(self) -> str:
        return f"the parent proxy {parent_name(self._backend)}"

    def _fail(self, error: GatewayError) -> None:
        if not self.established.done():
            self.established.set_exception(error)
            self.established.exception()  # seen by the waiter, where there still is one: asyncio need not tell of it


class ConnectHandshake(ParentHandshake):
    """Sends CONNECT. The framing of the 2xx head means nothing. A 407, or 401, is for us: it reaches no client."""

    def __init__(self, authority: Authority, lines: bytes, backend: BackendIR) -> None:
        """`lines` are fields of ours, each with a CRLF in front. Where the client has asked for the tunnel, Via
        (`protocols.http1.writer.via_line`) begins with the client's, so that a gateway on the way sees that it was
        asked before (RFC 9110 section 7.6.3).
        """
        super().__init__(backend)
        self._authority = authority
        self._lines = lines
        self._reader = ResponseReader(_LIMITS)
        self._reader.forget()  # it reads one head alone
        self._reader.expect(b"CONNECT")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        target = str(self._authority).encode()
        shown = proxy_authorization(self._backend)
        line = shown.reveal() if shown is not None else b""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(b"CONNECT %b HTTP/1.1\r\nHost: %b%b%b\r\n\r\n" % (target, target, self._lines, line))

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

    def _answered(self, head: ResponseHead) -> None:
        if 200 <= head.status < 300:
            self._succeed(self._reader.take_rest())
        elif head.status in (401, 407):  # tinyproxy says 401 of a password that is wrong
            self._fail(refused_credentials(self._backend))
        else:
            self._fail(UpstreamFault(Reason.PARENT_REFUSED, f"{self._named()} answered {head.status}"))


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
        """`via` is a value of Via: a parent that is such a gateway sees that it was asked before."""
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
