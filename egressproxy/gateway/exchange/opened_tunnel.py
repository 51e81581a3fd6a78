"""OpenedTunnel: whose requests come in a tunnel that we read: one to port 80, or one whose TLS ends with us.

Redirection: whose requests come on a connection that was on its way to another address, and was redirected to us.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from egressproxy.errors import BadRequest, GatewayError, GatewayFault, Reason
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.message import RequestHead

_DEFAULT_PORTS = {b"http": 80, b"https": 443}


@dataclass(frozen=True, slots=True, eq=False)
class OpenedTunnel:
    """`authority` is that of the CONNECT, where every request goes. `fault`: why none is served (the server could not
    be verified); the client is told so, and may begin anew. `hosts`: how the authority is usually written.
    """

    #: The client is the one that has asked for it.
    has_client: ClassVar[bool] = True

    authority: Authority
    scheme: bytes = b"http"
    fault: GatewayError | None = None
    hosts: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        text = self.authority.text.encode()
        object.__setattr__(self, "hosts", (self.authority.host_field(_DEFAULT_PORTS[self.scheme]), text, b""))

    def check(self, head: RequestHead) -> Authority:
        """Where a request goes: where the tunnel does.

        Raises what ends it here: the fault of the tunnel; BadRequest (400) for another scheme or host; inside
        TLS GatewayFault (421) for another host, for which a client opens another connection (RFC 9110 section 15.5.20).
        """
        if self.fault is not None:
            raise self.fault
        if head.scheme and head.scheme != self.scheme:
            message = f"only {self.scheme.decode()} is spoken inside the tunnel to {self.authority}"
            raise BadRequest(Reason.BAD_TARGET, message)
        if head.host not in self.hosts:
            self._check_host(head.host)
        return self.authority

    def _check_host(self, host: bytes) -> None:
        """It may be written otherwise. Raises as `check`."""
        try:
            named = parse_authority(host, _DEFAULT_PORTS[self.scheme])
        except AuthorityError as error:
            raise BadRequest(Reason.BAD_HOST, f"the host of the request is not valid: {error}") from None
        if named == self.authority:
            return
        message = "the Host inside the tunnel is not the one that the tunnel was opened to"
        if self.scheme == b"https":
            raise GatewayFault(Reason.MISDIRECTED, message, status=421)
        raise BadRequest(Reason.BAD_HOST, message)


@dataclass(frozen=True, slots=True, eq=False)
class Redirection:
    """`authority` is the address and port that the client has dialled. A request names its host, for that port."""

    #: Nobody has asked for it: each request says who its client is, as on a connection to a listener.
    has_client: ClassVar[bool] = False
    scheme: ClassVar[bytes] = b"http"

    authority: Authority

    def check(self, head: RequestHead) -> Authority:
        """Where it goes: to its Host, else to the address. Raises BadRequest (400), GatewayFault (421) for another port
        than was dialled.
        """
        if head.scheme and head.scheme != self.scheme:
            raise BadRequest(Reason.BAD_TARGET, "only http is spoken on a redirected connection without TLS")
        if not head.host:
            return self.authority
        try:
            named = parse_authority(head.host, self.authority.port)
        except AuthorityError as error:
            raise BadRequest(Reason.BAD_HOST, f"the host of the request is not valid: {error}") from None
        if named.port != self.authority.port:
            message = f"the Host names port {named.port}, and the client has dialled port {self.authority.port}"
            raise GatewayFault(Reason.MISDIRECTED, message, status=421)
        return named
