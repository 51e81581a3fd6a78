"""What a client of a SOCKS5 proxy says and reads until it is connected. Pure. The proxy resolves names. A proxy that
says what the RFCs do not allow, or answers before it was asked, is none. Sources: RFC 1928 (SOCKS5), RFC 1929 (username
and password).
"""

from __future__ import annotations

from enum import Enum

from egressproxy.model.authority import Authority
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.socks5.messages import (
    CONNECT,
    DOMAIN,
    IPV4,
    IPV6,
    LOGIN_VERSION,
    MAX_VIA,
    NO_ACCEPTABLE_METHOD,
    NO_AUTHENTICATION,
    USERNAME_PASSWORD,
    VERSION,
    VIA,
    VIA_VERSION,
    ReplyCode,
)


class SocksError(Exception):
    """Base: the proxy does not connect us."""


class NotSocks(SocksError):
    """The peer does not keep to RFC 1928; the text says how."""


class NoCommonMethod(SocksError):
    """The proxy takes none of the methods that were offered: it asks for credentials, or for others."""


class LoginRefused(SocksError):
    """The proxy does not accept username and password."""


class Refused(SocksError):
    """The proxy has answered with this code."""

    def __init__(self, code: ReplyCode) -> None:
        super().__init__(code.name.lower().replace("_", " "))
        self.code = code


class _Wait(Enum):
    METHOD = "method"
    LOGIN = "login"
    REPLY = "reply"
    NOTHING = "nothing"


class SocksClient:
    """One negotiation. Send `greeting`, then what each `feed` returns, until `is_connected`."""

    __slots__ = ("_authority", "_login", "_received", "_via", "_wait")

    def __init__(self, authority: Authority, credentials: SecretBytes | None = None, via: bytes = b"") -> None:
        """`authority` is the destination; `credentials` the message of RFC 1929 section 2; `via` a value of Via (see
        `messages`), of which the latest gateways are said.
        """
        self._authority = authority
        self._login = credentials
        self._via = via if len(via) <= MAX_VIA else via[-MAX_VIA:].partition(b", ")[2]
        self._received = bytearray()
        self._wait = _Wait.METHOD

    def greeting(self) -> bytes:
        """The first message: the methods that we have. Source: RFC 1928 section 3."""
        methods = bytes((NO_AUTHENTICATION,) if self._login is None else (USERNAME_PASSWORD, NO_AUTHENTICATION))
        if self._via:
            methods += bytes((VIA,))
        return b"%c%c%b" % (VERSION, len(methods), methods)

    @property
    def is_connected(self) -> bool:
        """Whether the proxy has connected us: what comes now is the destination's."""
        return self._wait is _Wait.NOTHING

    def take_rest(self) -> bytes:
        """What came behind the proxy's reply: the first bytes of the destination."""
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def feed(self, data: bytes) -> bytes:
        """Read what the proxy has said; returns what to say next, b"" where it has to say more. Raises SocksError."""
        self._received += data
        if self._wait is _Wait.METHOD:
            return self._method()
        if self._wait is _Wait.LOGIN:
            return self._logged_in()
        if self._wait is _Wait.REPLY:
            self._reply()
        return b""

    def _method(self) -> bytes:
        """Source: RFC 1928 section 3."""
        received = self._received
        if received[0] != VERSION:
            raise NotSocks(f"its first byte is {received[0]:#04x}, and that of SOCKS5 is 0x05")
        if len(received) < 2:
            return b""
        method = self._only(2)[1]
        if method == NO_ACCEPTABLE_METHOD:
            raise NoCommonMethod
        if method == VIA and self._via:
            via, self._via = self._via, b""
            return b"%c%b%b" % (VIA_VERSION, len(via).to_bytes(2, "big"), via)
        if method == USERNAME_PASSWORD and self._login is not None:
            self._wait = _Wait.LOGIN
            return self._login.reveal()
        if method != NO_AUTHENTICATION:
            raise NotSocks(f"it chose method {method:#04x}, which was not offered")
        return self._request()

    def _logged_in(self) -> bytes:
        """Source: RFC 1929 section 2."""
        received = self._received
        if received[0] != LOGIN_VERSION:
            raise NotSocks(f"its answer to username and password has version {received[0]}")
        if len(received) < 2:
            return b""
        if self._only(2)[1]:
            raise LoginRefused
        return self._request()

    def _request(self) -> bytes:
        """CONNECT, by name where it is one. Source: RFC 1928 section 4."""
        self._wait = _Wait.REPLY
        host, port = self._authority.host, self._authority.port
        address = self._authority.address
        if address is not None:
            kind, packed = (IPV4, address.packed) if address.version == 4 else (IPV6, address.packed)
        else:
            name = host.encode("ascii")
            kind, packed = DOMAIN, b"%c%b" % (len(name), name)
        return b"%c%c\0%c%b%b" % (VERSION, CONNECT, kind, packed, port.to_bytes(2, "big"))

    def _reply(self) -> None:
        """Source: RFC 1928 section 6. The address that it names is of no use to us."""
        received = self._received
        if received[0] != VERSION:
            raise NotSocks(f"its reply has version {received[0]}")
        if len(received) >= 2 and received[1]:
            try:
                code = ReplyCode(received[1])
            except ValueError:
                raise NotSocks(f"its reply has the unassigned code {received[1]:#04x}") from None
            raise Refused(code)
        if len(received) >= 3 and received[2]:
            raise NotSocks("the reserved byte of its reply is not zero")
        if len(received) < 5:
            return
        sizes = {IPV4: 4, IPV6: 16, DOMAIN: 1 + received[4]}
        if received[3] not in sizes:
            raise NotSocks(f"its reply has the unknown address type {received[3]:#04x}")
        end = 4 + sizes[received[3]] + 2
        if len(received) >= end:
            del received[:end]
            self._wait = _Wait.NOTHING

    def _only(self, size: int) -> bytes:
        """The message of this size. Raises NotSocks where more stands behind it: nothing more was asked for."""
        message = bytes(self._received)
        self._received.clear()
        if len(message) > size:
            raise NotSocks("it said more than it was asked for")
        return message
