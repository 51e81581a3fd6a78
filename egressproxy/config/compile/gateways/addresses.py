"""The addresses of each Gateway, and port conflicts between Gateways.

A Gateway binds its `spec.addresses`. By default it binds all single addresses of the process. If an older Gateway has
one of its ports there, it gets an own address from the networks of the process, if any. The choice depends only on its
name and on older Gateways, so it is stable across reloads, restarts and `check`.
Source: Gateway API v1 Gateway.spec.addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from egressproxy.model.unix_socket import is_unix, parse_unix_socket

#: The most addresses of a network that are tried for one Gateway.
PROBES = 4096


class AddressBook:
    """The owners of addresses and ports. Callers take addresses for the oldest Gateway first."""

    __slots__ = ("_asked", "_bind", "_given", "_paths", "_taken")

    def __init__(self, bind: Iterable[str], asked: Collection[str]) -> None:
        """`bind`: addresses and networks of the process; `asked`: addresses that Gateways name, which are reserved."""
        self._bind = tuple(bind)
        self._asked = frozenset(asked)
        self._given: set[str] = set()
        self._paths: dict[str, str] = {}  # path of a Unix socket -> owner
        #: Port -> address -> owner; "any 4" has the first owner of any IPv4 address, "all 4" of 0.0.0.0.
        self._taken: dict[int, dict[str, str]] = defaultdict(dict)

    def holder(self, port: int, address: str) -> str | None:
        """The owner of this port at this or an overlapping address, or None."""
        if is_unix(address):
            return self._paths.get(parse_unix_socket(address).path)
        taken = self._taken[port]
        if not taken:
            return None
        parsed = ip_address(address)
        every = f"any {parsed.version}" if parsed.is_unspecified else f"all {parsed.version}"
        return taken.get(str(parsed)) or taken.get(every)

    def take(self, port: int, address: str, name: str) -> None:
        """Give this port of an address (or of all: `0.0.0.0`, `::`) to a Gateway, unless it has an owner."""
        if is_unix(address):
            self._paths.setdefault(parse_unix_socket(address).path, name)
            return
        taken, parsed = self._taken[port], ip_address(address)
        taken.setdefault(str(parsed), name)
        taken.setdefault(f"any {parsed.version}", name)
        if parsed.is_unspecified:
            taken.setdefault(f"all {parsed.version}", name)

    def choose(self, name: str, ports: Collection[int], bind: Collection[str] = ()) -> tuple[str, ...]:
        """The default addresses of a Gateway (`namespace/name`), of networks one per IP version; () if none is free.

        `bind` replaces the addresses and networks of the process.
        """
        entries = tuple(dict.fromkeys(bind or self._bind))
        single = tuple(entry for entry in entries if "/" not in entry)
        networks = tuple(ip_network(entry) for entry in entries if "/" in entry)
        if single and (not networks or self._is_free(single, ports)):
            return single
        found = []
        for version in dict.fromkeys(network.version for network in networks):
            address = self._own(name, ports, [network for network in networks if network.version == version])
            if address:
                self._given.add(address)
                found.append(address)
        return tuple(found) or single

    def _own(self, name: str, ports: Collection[int], networks: list[IPv4Network | IPv6Network]) -> str:
        """An address without an owner; else one with free ports; else ""."""
        shared = ""
        for address in _addresses(name, networks):
            if address in self._asked or not self._is_free((address,), ports):
                continue
            if address not in self._given:
                return address
            shared = shared or address
        return shared

    def _is_free(self, addresses: Iterable[str], ports: Collection[int]) -> bool:
        return not any(self.holder(port, address) for address in addresses for port in ports)


def _addresses(name: str, networks: Iterable[IPv4Network | IPv6Network]) -> Iterator[str]:
    """The hosts of the networks, each from an offset by the name, so a younger Gateway never moves an older one."""
    start = int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
    for network in networks:
        first, last = int(network.network_address), int(network.broadcast_address)
        if last - first > 1:  # without network and broadcast address
            first, last = first + 1, last - 1
        count = last - first + 1
        for step in range(min(count, PROBES)):
            yield str(network.network_address + (first - int(network.network_address) + (start + step) % count))
