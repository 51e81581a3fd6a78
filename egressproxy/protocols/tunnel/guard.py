"""SniGuard: what the client says first inside a tunnel has to agree with the authority that policy was asked about.

Otherwise a tunnel to an allowed name would carry a TLS session for another one (domain fronting). Nothing of the
client's octets goes on until the guard is content. Sources: RFC 6066 section 3; resources.md, destinations.
"""

from __future__ import annotations

from egressproxy.errors import Denied, Reason
from egressproxy.model.authority import Authority
from egressproxy.protocols.tls.client_hello import BadClientHello, ClientHello, ClientHelloReader, NotTls, may_start_tls

__all__ = ["SniGuard"]


class SniGuard:
    """`must_be_tls`: a TLSRoute matched, so that anything else than a ClientHello is refused.

    With `only_reports` everything passes, and `would_deny` says what would have been refused (mode Report).
    """

    __slots__ = ("_held", "_reader", "authority", "must_be_tls", "only_reports", "would_deny")

    def __init__(self, authority: Authority, *, must_be_tls: bool, only_reports: bool = False) -> None:
        self.authority = authority
        self.only_reports = only_reports
        self.would_deny: Reason | None = None
        self.must_be_tls = must_be_tls
        self._reader: ClientHelloReader | None = None  # many tunnels wait for their first octets
        self._held = b""

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> bytes | None:
        """The octets that may go on now (everything held so far), or None while undecided. Raises Denied."""
        if self._reader is None and not self.must_be_tls and not may_start_tls(data):
            return data
        self._held = self._held + data if self._held else data
        try:
            return self._judge(data)
        except Denied as denied:
            if not self.only_reports:
                raise
            self.would_deny = denied.reason
            return self._held

    def give_up(self) -> bytes:
        """No whole ClientHello comes, and we only report: the octets that were held, which may go on now."""
        if self.must_be_tls:
            self.would_deny = Reason.NOT_TLS
        return self._held

    def _judge(self, data: bytes) -> bytes | None:
        if self._reader is None:
            self._reader = ClientHelloReader()
        try:
            hello = self._reader.feed(data)
        except NotTls:
            if self.must_be_tls:
                message = f"the tunnel to {self.authority} has to carry TLS"
                raise Denied(Reason.NOT_TLS, message) from None
            return self._held
        except BadClientHello as error:
            message = f"malformed ClientHello in the tunnel to {self.authority}"
            raise Denied(Reason.SNI_MISMATCH, message, detail=str(error)) from None
        if hello is None:
            return None
        self._check(hello)
        return self._held

    def _check(self, hello: ClientHello) -> None:
        expected = None if self.authority.address is not None else self.authority.host
        if hello.has_ech:
            why = "uses Encrypted Client Hello, which hides the name"
        elif hello.sni == expected:
            return
        elif hello.sni is None:
            why = "names no server (SNI)"
        else:
            why = "names another server (SNI)"
        remedy = "set `sni: Any` on the entry of destinations.allow that allows this destination"
        message = f"the ClientHello in the tunnel to {self.authority} {why}"
        detail = "" if hello.sni is None else f"SNI {hello.sni}"  # the reader has made sure that it is a host name
        raise Denied(Reason.SNI_MISMATCH, message, remedy=remedy, detail=detail)
