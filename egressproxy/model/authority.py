"""Authority: host and port, read once by one strict ASCII grammar, for matching, logs, resolving, SNI and the dial.
Anything else is refused, never repaired: no IDNA, no percent-decoding, no octal or short IPv4 forms, no zone ids.
Sources: RFC 3986 section 3.2.2, RFC 1123 section 2.1, RFC 6761, RFC 9110 section 4.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

IPAddress = IPv4Address | IPv6Address

#: One label: letters, digits, hyphen and underscore inside (SRV-like names occur in practice), 63 bytes.
_LABEL: Final = rb"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rb"(?:%s\.)*%s\.?" % (_LABEL, _LABEL))
_BYTE: Final = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = re.compile(rb"(?:%s\.){3}%s" % (_BYTE, _BYTE))
#: A last label that is a number in any spelling is an address for some resolver (WHATWG URL, "ends in a number").
_NUMERIC_LAST_LABEL: Final = re.compile(rb"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")
_IPV6: Final = re.compile(rb"[0-9A-Fa-f:.]{2,45}")
_PORT: Final = re.compile(rb"[1-9][0-9]{0,4}")

MAX_NAME: Final = 253
#: The most texts of IPv4 addresses in the cache.
MAX_TEXTS: Final = 4096
_texts: Final[dict[int, str]] = {}


class AuthorityError(ValueError):
    """The text is not an authority; the message says why, and never repeats the text."""


@dataclass(frozen=True, slots=True)
class Authority:
    """`host`: lower-case ASCII, no trailing dot, or an address's canonical text (no brackets); `text`: `host:port`."""

    host: str
    port: int
    address: IPAddress | None = None
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        object.__setattr__(self, "text", text)

    def __str__(self) -> str:
        return self.text

    def host_field(self, default_port: int) -> bytes:
        """The value of a Host field: the port is left out where it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host.encode() if self.port == default_port else b"%s:%d" % (host.encode(), self.port)


def text_of(address: IPAddress) -> str:
    """`str(address)`, cached: ipaddress builds the text anew each time, and the same addresses are dialled often."""
    if not isinstance(address, IPv4Address):
        return str(address)
    number = int(address)
    text = _texts.get(number)
    if text is None:
        if len(_texts) >= MAX_TEXTS:
            _texts.clear()
        text = _texts[number] = str(address)
    return text


def parse_host(raw: bytes) -> tuple[str, IPAddress | None]:
    """Read a host without port: a name, a dotted quad, or an IPv6 address in brackets. Raises AuthorityError."""
    if raw.startswith(b"["):
        if not raw.endswith(b"]") or not _IPV6.fullmatch(raw, 1, len(raw) - 1):
            raise AuthorityError("malformed IPv6 address")
        try:
            address6 = IPv6Address(raw[1:-1].decode())
        except AddressValueError:
            raise AuthorityError("malformed IPv6 address") from None
        return str(address6), address6
    if _IPV4.fullmatch(raw):
        text = raw.decode()
        return text, IPv4Address(text)
    if not _NAME.fullmatch(raw):
        raise AuthorityError("malformed host name")
    if _NUMERIC_LAST_LABEL.fullmatch(raw):
        raise AuthorityError("a numeric host has to be a dotted quad")
    name = raw.decode().lower().removesuffix(".")
    if len(name) > MAX_NAME:
        raise AuthorityError("host name is longer than 253 bytes")
    return name, None


@lru_cache(maxsize=4096)
def parse_authority(raw: bytes, default_port: int | None = None) -> Authority:
    """Read `host[:port]`; without a default the port is required (CONNECT, RFC 9110 section 9.3.6). Raises
    AuthorityError for userinfo, an empty host, a bad port, and what is not in the grammar.
    """
    if raw.startswith(b"["):
        end = raw.find(b"]") + 1
        host, rest = raw[:end], raw[end:]
        if rest and not rest.startswith(b":"):
            raise AuthorityError("malformed IPv6 address")
        has_port, port_text = bool(rest), rest[1:]
    else:
        host, colon, port_text = raw.partition(b":")
        has_port = bool(colon)
    if not host:
        raise AuthorityError("empty host")
    name, address = parse_host(host)
    if not has_port:
        if default_port is None:
            raise AuthorityError("the port is missing")
        return Authority(name, default_port, address)
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535:
        raise AuthorityError("the port has to be a number from 1 to 65535")
    return Authority(name, int(port_text), address)


def host_name(field: bytes) -> str:
    """The name in the value of Host, in lower case, without its port and the dot of its root."""
    name, colon, port = field.rpartition(b":")
    return (name if colon and port.isdigit() else field).decode("latin-1").lower().removesuffix(".")


_URI: Final = re.compile(r"https://([^/?#@\s]+)(/[!-\"$-~]*)")


def read_key_uri(text: str) -> tuple[tuple[str, int], str]:
    """Host and port, and path with query. Raises ValueError: another scheme, no path, an address instead of a name."""
    found = _URI.fullmatch(text)
    if found is None:
        raise ValueError("no URL with https, a host and a path")
    try:
        authority = parse_authority(found[1].encode(), 443)
    except (AuthorityError, UnicodeError) as error:
        raise ValueError(f"its host is not valid: {error}") from None
    if authority.address is not None:
        raise ValueError("the host is an address, and has to be a name")
    return (authority.host, authority.port), found[2]
