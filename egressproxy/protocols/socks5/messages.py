"""The numbers of SOCKS5. Sources: RFC 1928 (SOCKS5), RFC 1929 (username and password)."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "BIND",
    "CONNECT",
    "DOMAIN",
    "IPV4",
    "IPV6",
    "LOGIN_VERSION",
    "NO_ACCEPTABLE_METHOD",
    "NO_AUTHENTICATION",
    "UDP_ASSOCIATE",
    "USERNAME_PASSWORD",
    "VERSION",
    "ReplyCode",
]

VERSION = 5
LOGIN_VERSION = 1
NO_AUTHENTICATION, USERNAME_PASSWORD, NO_ACCEPTABLE_METHOD = 0x00, 0x02, 0xFF
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
