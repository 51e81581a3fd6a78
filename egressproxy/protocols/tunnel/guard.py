"""SniGuard: checks that the first bytes in a tunnel match the authority that policy allowed. Otherwise a tunnel to an
allowed name could carry TLS for another (domain fronting). The guard holds back the client's bytes until then, and also
a second ClientHello. Sources: RFC 6066 section 3; RFC 8446 section 4.1.2.
"""

from __future__ import annotations

from collections.abc import Callable

from egressproxy.errors import Denied, Reason
from egressproxy.model.authority import Authority
from egressproxy.protocols.tls.client_hello import (
    ACCESS_DENIED,
    UNRECOGNIZED_NAME,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
    NotTls,
    may_start_tls,
    name_alert,
)
from egressproxy.protocols.tls.hello_retry import HelloRetry


class SniGuard:
    """`must_be_tls`: a TLSRoute matched, so that anything else than a ClientHello is refused.

    With `only_reports` all bytes pass, and `would_deny` has the denial (mode Report). Without `checks_name` any
    ClientHello passes. `is_opened` returns whether a host's tunnels are intercepted: no other tunnel may carry TLS for
    such a host, in any mode. `is_over`: the check is finished. `alert`: the TLS alert for a refused client
    (ACCESS_DENIED and the like), b"" if it may not speak TLS.
    """

    __slots__ = (
        "_first", "_held", "_reader", "_retry", "alert", "authority", "checks_name", "ech_outer_name", "is_opened",
        "is_over", "must_be_tls", "only_reports", "would_deny",
    )  # fmt: skip

    def __init__(
        self,
        authority: Authority,
        *,
        must_be_tls: bool,
        only_reports: bool = False,
        checks_name: bool = True,
        is_opened: Callable[[str], object] | None = None,
    ) -> None:
        self.authority = authority
        self.only_reports = only_reports
        self.would_deny: Reason | None = None
        self.must_be_tls = must_be_tls
        self.checks_name = checks_name
        self.is_opened = is_opened
        self.is_over = False
        self.alert = b""
        self.ech_outer_name: str | None = None  # of a hello with ECH that mode Report lets pass
        self._reader: ClientHelloReader | None = None  # many tunnels wait for their first bytes
        self._held = b""
        self._first: ClientHello | None = None
        self._retry: HelloRetry | None = None  # from the first hello on

    def knows(self, first: ClientHello, size: int) -> None:
        """Skip a ClientHello that was checked already: the first `size` bytes of the input."""
        self._first = first
        self._retry = HelloRetry(size)
        self._reader = None
        self._held = b""

    @property
    def has_hello(self) -> bool:
        """Whether the first ClientHello was forwarded."""
        return self._first is not None

    @property
    def has_held(self) -> bool:
        """Whether incomplete bytes are held."""
        return not self.is_over and bool(self._held if self._retry is None else self._retry.held)

    def feed(self, data: bytes) -> bytes:
        """The client's bytes to forward now; b"" before the decision. Raises Denied."""
        retry = self._retry
        if retry is not None:
            return self._behind_first(retry, data)
        if self._reader is None and not self.must_be_tls and not may_start_tls(data):
            self.is_over = True
            return data
        self._held = self._held + data if self._held else data
        try:
            return self._judge(data)
        except Denied as denied:
            return self._denied(denied, self._held)

    def hear(self, data: bytes) -> None:
        """Read the server's bytes, which always pass: after its ServerHello there is no second ClientHello."""
        retry = self._retry
        if retry is not None:
            retry.from_server(data)
            self.is_over = retry.is_over

    def give_up(self) -> bytes:
        """Stop checking; returns the held bytes to forward."""
        self.is_over = True
        if self._retry is not None:
            return self._retry.held
        if self.must_be_tls:
            self.would_deny = Reason.NOT_TLS
        return self._held

    def _judge(self, data: bytes) -> bytes:
        reader = self._reader
        if reader is None:
            reader = self._reader = ClientHelloReader()
        try:
            hello = reader.feed(data)
        except NotTls:
            if self.must_be_tls:
                message = f"the tunnel to {self.authority} has to carry TLS"
                raise Denied(Reason.NOT_TLS, message) from None
            self.is_over = True
            return self._held
        except BadClientHello as error:
            raise self._malformed(error) from None
        if hello is None:
            return b""
        held = self._held
        if self.is_opened is not None:
            self._refuse_opened(hello, self.is_opened)
        elif not self.checks_name:
            self.is_over = True
            return held
        if self.checks_name:
            try:
                self._check(hello)
            except Denied as denied:
                if not self.only_reports or self.is_opened is None:
                    raise
                self._note(denied)  # and check the second hello
        self.knows(hello, reader.size)
        return self.feed(held)

    def _behind_first(self, retry: HelloRetry, data: bytes) -> bytes:
        try:
            passed = retry.from_client(data)
        except BadClientHello as error:
            return self._denied(self._malformed(error), retry.held + data)
        self.is_over = retry.is_over
        first, second = self._first, retry.second
        if second is not None and self.is_opened is not None:
            self._refuse_opened(second, self.is_opened)
        if second is not None and first is not None and (second.sni, second.has_ech) != (first.sni, first.has_ech):
            message = f"the second ClientHello in the tunnel to {self.authority} names another server than the first"
            detail = "no SNI" if second.sni is None else f"SNI {second.sni}"
            self.alert = name_alert(second)
            return self._denied(Denied(Reason.SNI_MISMATCH, message, detail=detail), passed)
        return passed

    def _denied(self, denied: Denied, data: bytes) -> bytes:
        """Note a denial in mode Report and return the bytes to forward, or raise it."""
        if self.only_reports:
            self._note(denied)
            self.is_over = True
            self._reader = None
            self._held = b""
            return data
        try:
            raise denied
        finally:
            del denied  # its traceback holds this frame: no cycle

    def _note(self, denied: Denied) -> None:
        """Record a denial of mode Report."""
        self.would_deny = denied.reason
        self.ech_outer_name = denied.ech_outer_name

    def _malformed(self, error: BadClientHello) -> Denied:
        message = f"malformed ClientHello in the tunnel to {self.authority}"
        return Denied(Reason.SNI_MISMATCH, message, detail=str(error))

    def _refuse_opened(self, hello: ClientHello, is_opened: Callable[[str], object]) -> None:
        if hello.sni is None or hello.sni == self.authority.host or not is_opened(hello.sni):
            return
        message = f"the ClientHello in the tunnel to {self.authority} names a host whose tunnels are to be opened"
        remedy = "ask for a tunnel to the host that is meant: `sni: Any` does not lift `intercept`"
        self.alert = UNRECOGNIZED_NAME
        self.only_reports = False  # no mode lifts `intercept`
        raise Denied(Reason.SNI_MISMATCH, message, remedy=remedy, detail=f"SNI {hello.sni}")

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
        if self.must_be_tls:
            remedy = "have the client send the tunnel's host as SNI, without ECH: a TLSRoute passes nothing else"
        message = f"the ClientHello in the tunnel to {self.authority} {why}"
        # The client sees an alert alone: the log has the remedy. The reader has validated the name.
        detail = f"no SNI: {remedy}" if hello.sni is None else f"SNI {hello.sni}"
        self.alert = ACCESS_DENIED if hello.has_ech else name_alert(hello)
        denied = Denied(Reason.SNI_MISMATCH, message, remedy=remedy, detail=detail)
        if hello.has_ech:
            denied.ech_outer_name = hello.sni or "-"
        try:
            raise denied
        finally:
            del denied  # its traceback holds this frame: no cycle
