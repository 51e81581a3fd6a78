"""SourceAddress: where connections of one backend go out from, and which address of a pool a client has.

A connection never goes out from another source. An address of a family for which there is no source is not dialled.
Sources: ip(7), IP_BIND_ADDRESS_NO_PORT; socket(7), SO_BINDTODEVICE.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from egressproxy.ir.policy import SourceAddressIR
from egressproxy.model.authority import IPAddress

_SOCKET: Final[int] = int(socket.SOL_SOCKET)
_IP: Final[int] = int(socket.IPPROTO_IP)
_TO_DEVICE: Final[int] = int(socket.SO_BINDTODEVICE)
#: linux/in.h. The kernel then chooses the port with the destination, so that each destination has all of them.
_NO_PORT: Final = 24


class SourceUnusable(OSError):
    """A connection cannot go out from its source: the address dialled has not been tried."""


class SourceAddress:
    """The source of one connection: `ipv4` and `ipv6` "" is none of that family; both "": any, of the interface."""

    __slots__ = ("_interface", "_ipv4", "_ipv6")

    def __init__(self, ipv4: str, ipv6: str, interface: str) -> None:
        self._ipv4 = ipv4
        self._ipv6 = ipv6
        self._interface = interface

    def bind(self, sock: socket.SocketType, *, is_ipv6: bool) -> None:
        """Have the socket, which is not connected, go out from here. Raises SourceUnusable."""
        address = self._ipv6 if is_ipv6 else self._ipv4
        family = "IPv6" if is_ipv6 else "IPv4"
        if not address and (self._ipv4 or self._ipv6):
            raise SourceUnusable(errno.EADDRNOTAVAIL, f"not tried, since sourceAddress has no {family} address")
        what = self._interface
        try:
            if self._interface:
                sock.setsockopt(_SOCKET, _TO_DEVICE, self._interface.encode() + b"\0")
            if address:
                what = address
                sock.setsockopt(_IP, _NO_PORT, 1)
                sock.bind((address, 0))
        except OSError as error:
            why = (error.strerror or type(error).__name__).lower()
            message = f"not tried, since the connection cannot go out from {what} of sourceAddress ({why})"
            raise SourceUnusable(errno.EADDRNOTAVAIL, message) from None

    def told(self) -> dict[str, str]:
        """What is set, for people."""
        made = {"ipv4": self._ipv4, "ipv6": self._ipv6, "interface": self._interface}
        return {name: value for name, value in made.items() if value}


class SourceChooser:
    """Gives each client its source, by rendezvous hashing: a pool that changes moves only the clients that have to."""

    __slots__ = ("_fixed", "_ipv4", "_ipv6", "_spec")

    def __init__(self, spec: SourceAddressIR) -> None:
        self._spec = spec
        listed = spec.pool or spec.addresses
        self._ipv4 = [address for address in listed if address.version == 4]
        self._ipv6 = [address for address in listed if address.version == 6]
        self._fixed = None if spec.pool else self.of("")

    def of(self, identity: str) -> SourceAddress:
        """The source for this client (`identity_of`)."""
        return SourceAddress(_chosen(self._ipv4, identity), _chosen(self._ipv6, identity), self._spec.interface)

    def choose(self, identity: str) -> SourceAddress:
        """As `of`; the one source where there is no pool."""
        return self._fixed if self._fixed is not None else self.of(identity)


def _chosen(addresses: Sequence[IPAddress], identity: str) -> str:
    if len(addresses) < 2:
        return str(addresses[0]) if addresses else ""
    key = identity.encode("utf-8", "replace")
    return str(max(addresses, key=lambda address: blake2b(address.packed + key, digest_size=8).digest()))
