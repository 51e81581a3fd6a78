"""The numbers of SOCKS5. Sources: RFC 1928 (SOCKS5), RFC 1929 (username and password).

VIA is ours, of the range for private methods: a gateway that offers it says, before the method is chosen, by which
gateways it was asked, as Via does in HTTP. Without that two that are each other's parents would ask each other until
neither has a connection left. Other proxies do not know it, and choose another.

    client                                    server
    05 methods, VIA among them
                                              05 VIA
    01, a length of 2 bytes, a value of Via
                                              05 one of the other methods
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 5
LOGIN_VERSION = 1
NO_AUTHENTICATION, USERNAME_PASSWORD, VIA, NO_ACCEPTABLE_METHOD = 0x00, 0x02, 0xE6, 0xFF
VIA_VERSION = 1
#: Bytes of a value of Via that are said, and read.
MAX_VIA = 4096
CONNECT, BIND, UDP_ASSOCIATE = 1, 2, 3
IPV4, DOMAIN, IPV6 = 1, 3, 4


class ReplyCode(IntEnum):
    """Why a proxy does not connect. Source: RFC 1928 section 6."""

    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    CONNECTION_REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_TYPE_NOT_SUPPORTED = 8
