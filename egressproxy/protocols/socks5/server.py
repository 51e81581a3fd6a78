"""What a SOCKS5 proxy that serves CONNECT alone reads and says until it knows the destination, for which all is that
comes behind the request. Pure. Sources: RFC 1928 (SOCKS5), RFC 1929 (username and password).
"""

from __future__ import annotations

import re
from base64 import b64encode
from enum import Enum
from ipaddress import IPv6Address

from egressproxy.protocols.socks5.messages import (
    BIND,
    CONNECT,
    DOMAIN,
    IPV4,
    IPV6,
    LOGIN_VERSION,
    MAX_VIA,
    NO_ACCEPTABLE_METHOD,
    NO_AUTHENTICATION,
    UDP_ASSOCIATE,
    USERNAME_PASSWORD,
    VERSION,
    VIA,
    VIA_VERSION,
    ReplyCode,
)

_VIA_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_COMMANDS = {BIND: "BIND", UDP_ASSOCIATE: "UDP ASSOCIATE"}
#: The address that we have connected from is told to nobody (RFC 1928 section 6, BND.ADDR): 0.0.0.0, port 0.
_NOWHERE = b"\0" + bytes((IPV4,)) + bytes(6)


class SocksServerError(Exception):
    """Base: nothing is connected. `answer` is what the client is told, b"" where it would not understand it."""

    def __init__(self, message: str, answer: bytes = b"") -> None:
        super().__init__(message)
        self.answer = answer


class NotSocksClient(SocksServerError):
    """The client does not keep to RFC 1928; the text says how."""


class NoAcceptableMethod(SocksServerError):
    """The client offers no method of authentication that is taken here. `is_for_want_of_login`: it would be let on with
    username and password, and not without.
    """

    def __init__(self, *, is_for_want_of_login: bool) -> None:
        message = (
            "this listener asks for username and password (RFC 1929)"
            if is_for_want_of_login
            else "the client offers neither username and password (RFC 1929) nor to go without"
        )
        super().__init__(message, bytes((VERSION, NO_ACCEPTABLE_METHOD)))
        self.is_for_want_of_login = is_for_want_of_login


class LoginMalformed(SocksServerError):
    """Username and password do not keep to RFC 1929, or cannot be told apart in Basic (RFC 7617 section 2)."""


class ViaMalformed(SocksServerError):
    """What stands where a value of Via has to (see `messages`) is none."""


class RequestRefused(SocksServerError):
    """The request has an address type that there is not."""


class CommandNotServed(SocksServerError):
    """The client asks for BIND or UDP ASSOCIATE, or for what there is not."""


class _Awaited(Enum):
    METHODS = "methods"
    VIA = "via"
    LOGIN = "login"
    REQUEST = "request"
    NOTHING = "nothing"


class SocksServer:
    """One negotiation: what each `feed` returns is sent, until there is a `target`: `host:port`, an IPv6 address in
    brackets, not checked. `credentials`: what the client has shown, as a value of Proxy-Authorization (RFC 7617);
    `via`: the value of Via that another gateway has said; b"" for none.
    """

    __slots__ = ("_asks_login", "_may_be_nobody", "_methods", "_received", "_wait", "credentials", "target", "via")

    def __init__(self, *, asks_login: bool, may_be_nobody: bool) -> None:
        """`asks_login`: of a client that can show username and password these are asked for, else only of one that
        offers nothing else. `may_be_nobody`: a client that cannot show any is let on.
        """
        self._asks_login = asks_login
        self._may_be_nobody = may_be_nobody
        self._received = bytearray()
        self._wait = _Awaited.METHODS
        self._methods = b""
        self.credentials = b""
        self.target = b""
        self.via = b""

    def take_rest(self) -> bytes:
        """What came behind the request: the client's first bytes for its destination."""
        rest = bytes(self._received)
        self._received.clear()
        return rest

    @property
    def first_byte(self) -> bytes:
        """The first byte of what is not understood yet."""
        return bytes(self._received[:1])

    def feed(self, data: bytes) -> bytes:
        """Read what the client has said; returns what to say now, b"" for nothing. Raises SocksServerError."""
        self._received += data
        reply = b""
        while self._received:
            if self._wait is _Awaited.METHODS:
                answer = self._offered()
            elif self._wait is _Awaited.VIA:
                answer = self._said_via()
            elif self._wait is _Awaited.LOGIN:
                answer = self._logged_in()
            elif self._wait is _Awaited.REQUEST:
                self._request()
                break
            else:
                break
            if not answer:
                break
            reply += answer
        return reply

    def _offered(self) -> bytes:
        """Source: RFC 1928 section 3."""
        received = self._received
        if received[0] != VERSION:
            raise NotSocksClient(f"the first byte of the client is {received[0]:#04x}, and that of SOCKS5 is 0x05")
        if len(received) < 2 or len(received) < 2 + received[1]:
            return b""
        methods = bytes(received[2 : 2 + received[1]])
        del received[: 2 + len(methods)]
        if VIA in methods:
            self._methods = methods
            self._wait = _Awaited.VIA
            return bytes((VERSION, VIA))
        return self._method(methods)

    def _said_via(self) -> bytes:
        """Source: `messages`."""
        received = self._received
        if received[0] != VIA_VERSION:
            raise ViaMalformed(f"its Via has version {received[0]}, and there is only {VIA_VERSION}")
        if len(received) < 3:
            return b""
        end = 3 + int.from_bytes(received[1:3], "big")
        if end > 3 + MAX_VIA:
            raise ViaMalformed(f"its Via is longer than {MAX_VIA} bytes")
        if len(received) < end:
            return b""
        via = bytes(received[3:end])
        del received[:end]
        if not _VIA_VALUE.fullmatch(via):
            raise ViaMalformed("its Via is empty, or not ASCII")
        self.via = via
        return self._method(self._methods)

    def _method(self, methods: bytes) -> bytes:
        """Choose one. Source: RFC 1928 section 3."""
        takes_none = NO_AUTHENTICATION in methods and self._may_be_nobody
        if USERNAME_PASSWORD in methods and (self._asks_login or not takes_none):
            self._wait = _Awaited.LOGIN
            return bytes((VERSION, USERNAME_PASSWORD))
        if takes_none:
            self._wait = _Awaited.REQUEST
            return bytes((VERSION, NO_AUTHENTICATION))
        raise NoAcceptableMethod(is_for_want_of_login=NO_AUTHENTICATION in methods)

    def _logged_in(self) -> bytes:
        """Whether they are right is for others to say. Source: RFC 1929 section 2."""
        received = self._received
        refused = bytes((LOGIN_VERSION, 1))
        if received[0] != LOGIN_VERSION:
            raise LoginMalformed(f"username and password have version {received[0]}, and there is only 1", refused)
        if len(received) < 2 or len(received) < 3 + received[1]:
            return b""
        user_end = 2 + received[1]
        end = user_end + 1 + received[user_end]
        if len(received) < end:
            return b""
        user, password = bytes(received[2:user_end]), bytes(received[user_end + 1 : end])
        del received[:end]
        if b":" in user:
            raise LoginMalformed("a username with a colon in it", refused)
        self.credentials = b"Basic " + b64encode(user + b":" + password)
        self._wait = _Awaited.REQUEST
        return bytes((LOGIN_VERSION, 0))

    def _request(self) -> None:
        """Source: RFC 1928 sections 4 and 5."""
        received = self._received
        if received[0] != VERSION:
            raise NotSocksClient(f"the request has version {received[0]}", reply(ReplyCode.GENERAL_FAILURE))
        if len(received) >= 2 and received[1] != CONNECT:
            what = _COMMANDS.get(received[1], f"command {received[1]:#04x}")
            raise CommandNotServed(f"{what} is not served, only CONNECT", reply(ReplyCode.COMMAND_NOT_SUPPORTED))
        if len(received) >= 3 and received[2]:
            raise NotSocksClient("the reserved byte of the request is not zero", reply(ReplyCode.GENERAL_FAILURE))
        if len(received) >= 4 and received[3] not in (IPV4, DOMAIN, IPV6):
            message = f"address type {received[3]:#04x} is not known"
            raise RequestRefused(message, reply(ReplyCode.ADDRESS_TYPE_NOT_SUPPORTED))
        if len(received) < 5:
            return
        kind = received[3]
        start = 5 if kind == DOMAIN else 4
        end = start + {IPV4: 4, IPV6: 16, DOMAIN: received[4]}[kind]
        if len(received) < end + 2:
            return
        packed, port = bytes(received[start:end]), int.from_bytes(received[end : end + 2], "big")
        del received[: end + 2]
        if kind == IPV4:
            packed = b"%d.%d.%d.%d" % tuple(packed)
        elif kind == IPV6:
            packed = b"[%b]" % str(IPv6Address(packed)).encode()
        self.target = b"%b:%d" % (packed, port)
        self._wait = _Awaited.NOTHING


def reply(code: ReplyCode | None) -> bytes:
    """The reply to a request; None: it is connected. Source: RFC 1928 section 6."""
    return bytes((VERSION, code or 0)) + _NOWHERE
