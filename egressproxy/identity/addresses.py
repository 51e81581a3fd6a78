"""Which client has which source address: a table of networks, of which the longest that fits decides."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from egressproxy.ir.identity import AddressClientIR
from egressproxy.model.exchange import CallerIdentity, service_account_name


class AddressTable:
    """Looks up who has an address; made once, asked once for each connection."""

    __slots__ = ("_by_length",)

    def __init__(self, clients: Iterable[AddressClientIR]) -> None:
        by_length: dict[tuple[int, int], dict[int, CallerIdentity]] = {}
        for client in clients:
            name = service_account_name(client.namespace, client.service_account)
            identity = CallerIdentity(client.namespace, client.service_account, name=name, source="address")
            for network in client.networks:
                by_length.setdefault((network.version, network.prefixlen), {}).setdefault(
                    int(network.network_address), identity
                )
        #: Longest first: at most 33 and 129 dictionaries.
        self._by_length = sorted(by_length.items(), key=lambda each: each[0][1], reverse=True)

    def find(self, peer: str) -> CallerIdentity | None:
        """Who has this address, of `address:port`; None: nobody that is known."""
        try:
            address: IPv4Address | IPv6Address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return None  # a Unix socket, for one
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        number, bits = int(address), address.max_prefixlen
        for (version, length), known in self._by_length:
            if version == address.version:
                found = known.get(number >> (bits - length) << (bits - length))
                if found is not None:
                    return found
        return None
