"""SourceAddress: the address or interface from which connections to backends go out."""

from typing import Annotated, Any

from pydantic import Field

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.values import Address, RefusedValue
from egressproxy.model.authority import IPAddress


class SourceAddress(Model):
    """The source of connections: one address of each family, or one of a pool for each client; an interface."""

    addresses: Annotated[tuple[Address, ...], Field(max_length=2)] = ()
    """Addresses of this machine: one of IPv4, one of IPv6 or both. A family without one is not dialled."""
    pool: Annotated[tuple[Address, ...], Field(max_length=64)] = ()
    """Addresses of this machine, of which each client identity has one of each family, always the same."""
    interface: Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^\s/:%]+$")] | None = None
    """The network interface of the connections (SO_BINDTODEVICE), alone or with addresses."""

    def model_post_init(self, context: Any) -> None:
        if not self.addresses and not self.pool and self.interface is None:
            raise RefusedValue("no source is written", "write addresses, pool or interface")
        if self.addresses and self.pool:
            raise RefusedValue("addresses and pool exclude each other", "keep one of them")
        for address in (*self.addresses, *self.pool):
            _check(address)
        if len({address.version for address in self.addresses}) < len(self.addresses):
            raise RefusedValue("addresses has two of one family", "write one of each family, or a pool")
        if len(set(self.pool)) < len(self.pool):
            raise RefusedValue("an address stands more than once in pool", "write each address once")


def _check(address: IPAddress) -> None:
    """Raises RefusedValue for what is no source of connections."""
    if address.is_unspecified or address.is_multicast:
        raise RefusedValue(f"{address} is no address of a machine", "write one of this machine's addresses")
    if address.version == 6 and address.is_link_local:
        raise RefusedValue(f"{address} is link-local: it holds on one link", "write interface, or a global address")
    if address.version == 6 and address.ipv4_mapped is not None:
        raise RefusedValue(f"{address} is an IPv4 address", f"write {address.ipv4_mapped}")
