"""Which addresses each Gateway binds, and which ports the Gateways take from each other.

A Gateway binds what its `spec.addresses` name. One that names none binds the single addresses of the process (all of
them), unless an older Gateway has one of its ports there and the process has networks to choose from: then it gets an
address of its own from them. Which one depends on its name and on older Gateways alone, so that it is the same after
every reload, restart and `check`.
Source: Gateway API v1 Gateway.spec.addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from egressproxy.model.unix_socket import is_unix, parse_unix_socket

#: How many addresses of a network are tried for one Gateway.
PROBES = 4096


class AddressBook:
    """Which Gateway has which address and port. Ask for the oldest Gateway first."""

    __slots__ = ("_asked", "_bind", "_given", "_paths", "_taken")

    def __init__(self, bind: Iterable[str], asked: Collection[str]) -> None:
        """`bind`: addresses and networks of the process; `asked`: addresses that Gateways name, which stay theirs."""
        self._bind = tuple(bind)
        self._asked = frozenset(asked)
        self._given: set[str] = set()
        self._paths: dict[str, str] = {}  # who took the path of a Unix socket first
        #: By port: who took an address first; "any 4" is the first at any address of IPv4, "all 4" at 0.0.0.0.
        self._taken: dict[int, dict[str, str]] = defaultdict(dict)

    def holder(self, port: int, address: str) -> str | None:
        """Who has this port at this address, or at one that overlaps with it."""
        if is_unix(address):
            return self._paths.get(parse_unix_socket(address).path)
        taken = self._taken[port]
        if not taken:
            return None
        parsed = ip_address(address)
        every = f"any {parsed.version}" if parsed.is_unspecified else f"all {parsed.version}"
        return taken.get(str(parsed)) or taken.get(every)

    def take(self, port: int, address: str, name: str) -> None:
        """Give this port of an IP address (or of every address: `0.0.0.0`, `::`) to a Gateway, unless one has it."""
        if is_unix(address):
            self._paths.setdefault(parse_unix_socket(address).path, name)
            return
        taken, parsed = self._taken[port], ip_address(address)
        taken.setdefault(str(parsed), name)
        taken.setdefault(f"any {parsed.version}", name)
        if parsed.is_unspecified:
            taken.setdefault(f"all {parsed.version}", name)

    def choose(self, name: str, ports: Collection[int], bind: Collection[str] = ()) -> tuple[str, ...]:
        """What a Gateway (`namespace/name`) binds by default, of networks one for each IP version; () for none free.

        `bind` stands in place of the addresses and networks of the process.
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
        """An address that no Gateway has; else one whose ports are free; else ""."""
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
    """The hosts of the networks, each from a place on that the name decides: a younger Gateway moves no older one."""
    start = int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
    for network in networks:
        first, last = int(network.network_address), int(network.broadcast_address)
        if last - first > 1:  # neither the network's own address nor that of all its hosts
            first, last = first + 1, last - 1
        count = last - first + 1
        for step in range(min(count, PROBES)):
            yield str(network.network_address + (first - int(network.network_address) + (start + step) % count))
