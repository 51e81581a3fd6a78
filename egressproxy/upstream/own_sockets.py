"""OwnSockets: where this gateway listens, so that no client reaches the gateway through itself: `AddressPolicy`
compares every address that is dialled for traffic (over TCP alone) with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from egressproxy.model.addresses import aliases
from egressproxy.model.authority import IPAddress
from egressproxy.net.local_addresses import is_local

Socket = tuple[IPAddress, int]


class OwnSockets:
    """`listeners` serve traffic; `admin` are the admin and metrics addresses. All as (address, port), compared as
    values with their `aliases`; 0.0.0.0 or :: is every address of the machine, for which `is_local` is asked each time.
    """

    __slots__ = ("_admin", "_is_local", "_listeners", "everywhere")

    def __init__(
        self,
        listeners: Iterable[Socket] = (),
        admin: Iterable[Socket] = (),
        is_local: Callable[[IPAddress], bool] = is_local,
    ) -> None:
        self._listeners = _spelled_out(listeners)
        self._admin = _spelled_out(admin)
        self._is_local = is_local
        #: The ports of sockets on every address; a decision about these must not be remembered.
        self.everywhere = frozenset(p for a, p in self._listeners | self._admin if a.is_unspecified)

    def has_listener(self, address: IPAddress, port: int) -> bool:
        """Whether a connection to this address arrives at one of our listeners."""
        return self._has(self._listeners, address, port)

    def has_admin(self, address: IPAddress, port: int) -> bool:
        """Whether a connection to this address arrives at the admin or metrics address."""
        return self._has(self._admin, address, port)

    def has_admin_port(self, port: int) -> bool:
        """Whether this is the port of the admin or metrics address, to which a name may resolve."""
        return any(each == port for _, each in self._admin)

    def are_on_this_machine(self, addresses: Iterable[IPAddress]) -> bool:
        """Whether a connection to one of them would come back to this machine."""
        return any(
            each.is_loopback or each.is_unspecified or self._is_local(each)
            for address in addresses for each in aliases(address)
        )  # fmt: skip

    def _has(self, sockets: frozenset[Socket], address: IPAddress, port: int) -> bool:
        known = aliases(address)
        if any((each, port) in sockets for each in known):
            return True
        return (
            port in self.everywhere
            and any(p == port and a.is_unspecified for a, p in sockets)
            and self.are_on_this_machine(known)
        )


def _plain(address: IPAddress) -> IPAddress:
    """The address without a zone id; the IPv4 address of an IPv4-mapped one."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else aliases(address)[0]


def _spelled_out(sockets: Iterable[Socket]) -> frozenset[Socket]:
    return frozenset((_plain(address), port) for address, port in sockets)


NO_SOCKETS: Final = OwnSockets()
