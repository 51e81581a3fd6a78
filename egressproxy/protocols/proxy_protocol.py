"""The PROXY protocol, by which a load balancer sends the client's address. Bytes in, values out. Source: HAProxy,
proxy-protocol.txt (The PROXY protocol, Versions 1 & 2), sections 2.1 and 2.2.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

#: The longest header of version 1 with its CRLF, and what is taken of one of version 2, behind its first 16 bytes.
MAX_LINE: Final = 107
MAX_BLOCK: Final = 2048
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_NUMBER: Final = rb"(0|[1-9][0-9]{0,4})"
_LINE: Final = re.compile(rb"PROXY (TCP4|TCP6) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) %b %b\r\n" % (_NUMBER, _NUMBER))
_UNKNOWN: Final = re.compile(rb"PROXY UNKNOWN(?: [ -~]*)?\r\n")
#: Address family and transport, and the length of their addresses and ports.
_TCP4, _TCP6 = 0x11, 0x21
_LENGTHS: Final = {_TCP4: 12, _TCP6: 36}


class BadProxyHeader(ValueError):
    """The connection does not begin with a valid header; the text gives the reason, without the peer's bytes."""


class ProxyHeaderReader:
    """Reads the header of one connection. `source` is the client's address and port; None if the connection is the
    sender's own (LOCAL, UNKNOWN, no TCP). `rest` has the bytes after the header.
    """

    __slots__ = ("_data", "rest", "source")

    def __init__(self) -> None:
        self._data = b""
        self.source: tuple[str, int] | None = None
        self.rest = b""

    def feed(self, data: bytes) -> bool:
        """Read more bytes. Returns true when the header is complete. Raises BadProxyHeader."""
        data = self._data = self._data + data
        if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)]:
            return self._read_block(data)
        if data[:6] == b"PROXY "[: len(data)]:
            return self._read_line(data)
        raise BadProxyHeader("it begins with no PROXY header")

    def _read_line(self, data: bytes) -> bool:
        end = data.find(b"\n") + 1
        if not end:
            if len(data) >= MAX_LINE:
                raise BadProxyHeader("its PROXY header is too long")
            return False
        line, self.rest = data[:end], data[end:]
        found = _LINE.fullmatch(line)
        if found is None:
            if len(line) > MAX_LINE or not _UNKNOWN.fullmatch(line):
                raise BadProxyHeader("its PROXY header is malformed")
            return True
        family = IPv4Address if found[1] == b"TCP4" else IPv6Address
        try:
            source, _ = family(found[2].decode()), family(found[3].decode())
        except ValueError:
            raise BadProxyHeader("the addresses of its PROXY header are malformed") from None
        self._tell(source, int(found[4]))
        return True

    def _read_block(self, data: bytes) -> bool:
        if len(data) < 16:
            return False
        version, family, length = data[12], data[13], int.from_bytes(data[14:16], "big")
        if version not in (0x20, 0x21):
            raise BadProxyHeader("its PROXY header is of no version or command that is known")
        if length > MAX_BLOCK:
            raise BadProxyHeader("its PROXY header is too long")
        if len(data) < 16 + length:
            return False
        block, self.rest = data[16 : 16 + length], data[16 + length :]
        if version == 0x20 or family not in _LENGTHS:  # LOCAL; or UDP, a Unix socket, nothing
            return True
        if length < _LENGTHS[family]:
            raise BadProxyHeader("its PROXY header is shorter than its addresses")
        if family == _TCP4:
            self._tell(IPv4Address(block[:4]), int.from_bytes(block[8:10], "big"))
        else:
            self._tell(IPv6Address(block[:16]), int.from_bytes(block[32:34], "big"))
        return True

    def _tell(self, source: IPv4Address | IPv6Address, port: int) -> None:
        if port > 65535:
            raise BadProxyHeader("a port of its PROXY header is above 65535")
        mapped = source.ipv4_mapped if isinstance(source, IPv6Address) else None
        self.source = str(mapped or source), port
