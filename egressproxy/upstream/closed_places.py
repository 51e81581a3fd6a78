"""ClosedRanges and ClosedNames: the addresses that policies close (denied ranges, and everything outside
`addresses.only`), and the names that no allowed name may lead to by CNAME records. Pure.

A range means a place, not a spelling: a denied range holds for an IPv6 address that carries an IPv4 address of it, and
a range that is written as IPv4-mapped holds for plain IPv4. So does a denied name: whoever owns the DNS of an allowed
name could point it at a denied one.

Sources: EgressPolicy `destinations.deny`, `addresses.deny` and `addresses.only`; RFC 4291 section 2.5.5.2; RFC 1034
section 3.6.2 (CNAME).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from egressproxy.ir.policy import AddressBound, AddressDenial, AddressesIR, NameDenial, Network, entry_text
from egressproxy.model.addresses import aliases
from egressproxy.model.authority import IPAddress

T = TypeVar("T")

_MAPPED = IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True, slots=True)
class Closing:
    """Why an address is closed. `kind` names none, and may be shown to a client; `detail` is for the log. Denials are
    counted by `entry`, the denied range or name; "-": outside `only`. `message` is the operator's text for clients.
    """

    policy: str
    kind: str
    remedy: str
    detail: str
    entry: str = "-"
    message: str = ""


class ClosedRanges:
    """The compiled lists. A look-up costs one probe for each prefix length, not for each entry."""

    __slots__ = ("_denied", "_only")

    def __init__(self, deny: Iterable[AddressDenial], only: Iterable[AddressBound] = ()) -> None:
        self._denied = _Table((network, denial) for denial in deny for network in denial.cidrs)
        self._only = [(_Table((network, bound) for network in bound.cidrs), bound) for bound in only]

    def closing(self, address: IPAddress, port: int) -> Closing | None:
        """Why this address, from a name or a client, is closed; None if it is not."""
        return self.explicit_deny(address, port) or self._outside(address)

    def explicit_deny(self, address: IPAddress, port: int) -> Closing | None:
        """The deny entry that matches this address in any spelling, or None. It holds for operators, too."""
        for each in aliases(address):
            for network, denial in self._denied.find(each):
                if not denial.ports or port in denial.ports:
                    entry = entry_text(cidrs=(network,), ports=denial.ports)
                    return Closing(
                        denial.policy,
                        f"denied by policy {denial.policy}",
                        f"remove or narrow its range in {denial.field} of that policy",
                        f"denied by {entry} in {denial.field} of EgressPolicy {denial.policy}",
                        str(network),
                        denial.message,
                    )
        return None

    def _outside(self, address: IPAddress) -> Closing | None:
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        spellings = (mapped,) if mapped is not None else aliases(address)
        for table, bound in self._only:
            if not all(any(True for _ in table.find(each)) for each in spellings):
                where = f"not in addresses.only of policy {bound.policy}"
                remedy = "add its range to addresses.only of that policy"
                detail = f"not in addresses.only of EgressPolicy {bound.policy}"
                return Closing(bound.policy, where, remedy, detail, message=bound.message)
        return None


class _Table(Generic[T]):
    """Values of networks, by prefix length and leading bits."""

    __slots__ = ("_lengths",)

    def __init__(self, values: Iterable[tuple[Network, T]]) -> None:
        self._lengths: dict[tuple[int, int], dict[int, list[tuple[Network, T]]]] = {}
        for network, value in values:
            self._put(network, network, value)
            if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
                number = int(network.network_address) & 0xFFFFFFFF
                self._put(IPv4Network((number, network.prefixlen - _MAPPED.prefixlen)), network, value)

    def find(self, address: IPAddress) -> Iterator[tuple[Network, T]]:
        """Return the networks that contain this address, in the operator's spelling, with their values."""
        number = int(address)
        for (version, length), known in self._lengths.items():
            if version == address.version:
                yield from known.get(number >> (address.max_prefixlen - length), ())

    def _put(self, network: Network, written: Network, value: T) -> None:
        key = (network.version, network.prefixlen)
        leading = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
        self._lengths.setdefault(key, {}).setdefault(leading, []).append((written, value))


class ClosedNames:
    """The compiled entries. A look-up costs one probe for each label."""

    __slots__ = ("_exact", "_suffixes")

    def __init__(self, denials: Iterable[NameDenial]) -> None:
        self._exact: dict[str, list[tuple[str, NameDenial]]] = {}
        self._suffixes: dict[str, list[tuple[str, NameDenial]]] = {}  # by what follows `*.`; "" is every name
        for denial in denials:
            for pattern in denial.hostnames:
                is_exact = not pattern.startswith("*")
                table, key = (self._exact, pattern) if is_exact else (self._suffixes, pattern[2:])
                table.setdefault(key, []).append((pattern, denial))

    def closing(self, names: Iterable[str], port: int) -> Closing | None:
        """Why one of these names (lower case, without trailing dot) is closed on this port; None if none is."""
        for name in names:
            for pattern, denial in self._matching(name):
                if not denial.ports or port in denial.ports:
                    policy = denial.policy
                    return Closing(
                        policy,
                        f"it leads through a name that is denied by policy {policy}",
                        "remove or narrow the entry of that name in destinations.deny of that policy",
                        f"leads through {name}, denied by {entry_text((pattern,), (), denial.ports)} in "
                        f"destinations.deny of EgressPolicy {policy}",
                        pattern,
                        denial.message,
                    )
        return None

    def _matching(self, name: str) -> Iterator[tuple[str, NameDenial]]:
        """The entries whose pattern matches, the most specific first."""
        yield from self._exact.get(name, ())
        suffix = name
        while suffix:
            suffix = suffix.partition(".")[2]
            yield from self._suffixes.get(suffix, ())


#: Many backends have the same rules, and the lists may be long.
_KNOWN: WeakKeyDictionary[AddressesIR, tuple[ClosedRanges, ClosedRanges, ClosedNames, ClosedNames]] = (
    WeakKeyDictionary()
)


def closed_by(spec: AddressesIR) -> tuple[ClosedRanges, ClosedRanges, ClosedNames, ClosedNames]:
    """The ranges that these rules close and only report, and the names of both kinds. Equal rules share them."""
    found = _KNOWN.get(spec)
    if found is None:
        found = _KNOWN[spec] = (
            ClosedRanges((denial for denial in spec.deny if not denial.reports), spec.only),
            ClosedRanges(denial for denial in spec.deny if denial.reports),
            ClosedNames(denial for denial in spec.denied_names if not denial.reports),
            ClosedNames(denial for denial in spec.denied_names if denial.reports),
        )
    return found
