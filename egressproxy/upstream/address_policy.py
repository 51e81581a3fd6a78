"""Which addresses may be dialled: public unicast, and what an operator has allowed. Pure.

Every address that comes from a name or from a client passes through `AddressPolicy.check` directly before the dial, and
the same address object is dialled. The table is our own, made from the IANA special-purpose registries (RFC 6890 and
its successors). `ipaddress.is_global` is not used, since it calls NAT64, 6to4, IPv4-compatible and multicast addresses
global. For IPv6 everything outside 2000::/3 is special, and so is every prefix that carries an IPv4 address.

THE RULE OF OWN SOCKETS: the admin and metrics addresses are never dialled for traffic, no matter what is allowed and
who wrote the address; our listeners only where an allowance names exactly that address. `check` (for addresses from
names and clients) and `check_operator` (for addresses from the configuration) are the only two ways; every dial, and
every authority that goes to a parent, passes one of them in `gateway.backends.opener`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from ipaddress import ip_network
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.ir.backend import EndpointAddress
from egressproxy.ir.policy import AddressAllowance, AddressesIR
from egressproxy.model.addresses import METADATA, Resolved, aliases
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.upstream.closed_places import Closing, closed_by
from egressproxy.upstream.own_sockets import NO_SOCKETS, OwnSockets


class _Scope(Enum):
    """Which machines the addresses of a special range belong to."""

    NETWORK = "network"  # other machines: an allowance with hostnames only covers it
    HOST = "host"  # this machine, its link, or an IPv4 address in disguise: the allowance must name a range


_OURSELVES: Final = "this gateway itself"
_WITHIN: Final = " within "
_METADATA: Final = ("cloud metadata", _Scope.HOST)
_OUTSIDE: Final = ("outside the global unicast range", _Scope.HOST)
_ISATAP: Final = ("ISATAP", _Scope.HOST)

#: The first row that contains an address gives its name.
_SPECIAL_V4: Final[tuple[tuple[str, str, _Scope], ...]] = (
    ("0.0.0.0/8", "this network", _Scope.HOST),
    ("10.0.0.0/8", "private", _Scope.NETWORK),
    ("100.64.0.0/10", "carrier-grade NAT", _Scope.NETWORK),
    ("127.0.0.0/8", "loopback", _Scope.HOST),
    ("169.254.0.0/16", "link-local", _Scope.HOST),
    ("172.16.0.0/12", "private", _Scope.NETWORK),
    ("192.0.0.0/24", "protocol assignments", _Scope.HOST),
    ("192.0.2.0/24", "documentation", _Scope.NETWORK),
    ("192.88.99.0/24", "6to4 relay", _Scope.HOST),
    ("192.168.0.0/16", "private", _Scope.NETWORK),
    ("198.18.0.0/15", "benchmarking", _Scope.NETWORK),
    ("198.51.100.0/24", "documentation", _Scope.NETWORK),
    ("203.0.113.0/24", "documentation", _Scope.NETWORK),
    ("224.0.0.0/4", "multicast", _Scope.HOST),
    ("255.255.255.255/32", "broadcast", _Scope.HOST),
    ("240.0.0.0/4", "reserved", _Scope.NETWORK),
)
_SPECIAL_V6: Final[tuple[tuple[str, str, _Scope], ...]] = (
    ("::/128", "unspecified", _Scope.HOST),
    ("::1/128", "loopback", _Scope.HOST),
    ("::ffff:0:0/96", "IPv4-mapped", _Scope.HOST),
    ("::ffff:0:0:0/96", "IPv4-translated", _Scope.HOST),
    ("::/96", "IPv4-compatible", _Scope.HOST),
    ("64:ff9b::/96", "NAT64", _Scope.HOST),
    ("64:ff9b:1::/48", "NAT64", _Scope.HOST),
    ("100::/64", "discard-only", _Scope.HOST),
    ("2001::/32", "Teredo", _Scope.HOST),
    ("2001::/23", "protocol assignments", _Scope.HOST),
    ("2001:db8::/32", "documentation", _Scope.NETWORK),
    ("2002::/16", "6to4", _Scope.HOST),
    ("3fff::/20", "documentation", _Scope.NETWORK),
    ("5f00::/16", "segment routing", _Scope.HOST),
    ("fc00::/7", "unique-local", _Scope.NETWORK),
    ("fe80::/10", "link-local", _Scope.HOST),
    ("fec0::/10", "site-local", _Scope.NETWORK),
    ("ff00::/8", "multicast", _Scope.HOST),
)


def _compile(rows: tuple[tuple[str, str, _Scope], ...]) -> tuple[tuple[int, int, tuple[str, _Scope]], ...]:
    networks = [(ip_network(text), name, scope) for text, name, scope in rows]
    return tuple((int(n.network_address), int(n.netmask), (name, scope)) for n, name, scope in networks)


_TABLE_V4: Final = _compile(_SPECIAL_V4)
_TABLE_V6: Final = _compile(_SPECIAL_V6)
_GLOBAL_UNICAST_V6: Final = 0b001  # 2000::/3, the top three bits
_ISATAP_IDS: Final = (0x00005EFE, 0x02005EFE)  # RFC 5214 section 6.1: upper half of the interface identifier


def classify(address: IPAddress) -> str | None:
    """The name of the special range that holds this address, or None for public unicast."""
    found = _METADATA if is_metadata(address) else _special(address)
    return found[0] if found else None


def is_metadata(address: IPAddress) -> bool:
    """Whether this is a cloud metadata address, or carries one."""
    return not METADATA.isdisjoint(aliases(address))


@lru_cache(maxsize=4096)
def _special(address: IPAddress) -> tuple[str, _Scope] | None:
    """The row of an address itself, not of an IPv4 address that it carries."""
    if address in METADATA:
        return _METADATA
    number = int(address)
    for network, mask, found in _TABLE_V4 if address.version == 4 else _TABLE_V6:
        if number & mask == network:
            return found
    if address.version == 6:
        if number >> 125 != _GLOBAL_UNICAST_V6:
            return _OUTSIDE
        if number >> 32 & 0xFFFFFFFF in _ISATAP_IDS:
            return _ISATAP
    return None


#: How many decisions a policy remembers: its rules never change, and most dials repeat an earlier one.
MAX_KNOWN: Final = 8192


class AddressPolicy:
    """One place's address rules, with the sockets on which this gateway itself listens.

    Each rule holds for all `aliases` of an address: an IPv6 address that carries an IPv4 address needs an allowance for
    both. A cloud metadata address or an own listener is dialled only where an allowance names exactly that address (a
    /32 or /128), since a wide range is written for other reasons. Nothing opens the admin address, nor a range that a
    policy closes (`ClosedRanges`). Of several addresses, those that are not allowed are left out. Where
    a name leads through a denied one (`ClosedNames`), none of its addresses is allowed.
    """

    __slots__ = (
        "_allow", "_closed", "_closed_names", "_known", "_known_addresses", "_latest", "_message", "_own",
        "_own_remedy", "_owner", "_reported", "_reported_names", "_rule", "reports",
    )  # fmt: skip

    def __init__(self, spec: AddressesIR, own: OwnSockets = NO_SOCKETS) -> None:
        self._allow = spec.allow
        self._closed, self._reported, self._closed_names, self._reported_names = closed_by(spec)
        #: Whether mode Report lets denied ranges or names pass; otherwise `would_deny` need not be called.
        self.reports = any(each.reports for each in spec.deny) or any(each.reports for each in spec.denied_names)
        self._rule = "-" if spec.policy == "-" else f"EgressPolicy {spec.policy}"
        self._message = spec.message
        self._own = own
        self._own_remedy = spec.remedy
        self._owner = spec.owner
        self._known: dict[tuple[str, tuple[IPAddress, ...], int], tuple[IPAddress, ...]] = {}
        self._known_addresses = 0
        #: The latest of these of each host, with the very addresses: the resolver gives the same ones for as long as
        #: they hold, and to compare them by value is to ask each for its hash. Not those that further names led to:
        #: a server of DNS chooses how long these are, and the resolver's cache is where that is bounded.
        self._latest: dict[str, tuple[tuple[IPAddress, ...], int, tuple[IPAddress, ...]]] = {}

    def check(self, host: str, addresses: Sequence[IPAddress], port: int) -> tuple[IPAddress, ...]:
        """The addresses that may be dialled for this host (a name in lower case, or an address as text) and port, in
        their order. Raises Denied(Reason.ADDRESS_DENIED) if none is left, or if they are `Resolved` through a denied
        name; its message has no address or name that DNS gave.
        """
        latest = self._latest.get(host)
        if latest is not None and latest[0] is addresses and latest[1] == port:
            return latest[2]
        closing = self._closing_on_the_way(addresses, port)
        if closing is not None:
            raise self._denied_on_the_way(host, port, closing)
        key = (host, tuple(addresses), port)
        known = self._known.get(key)
        if known is not None:
            if isinstance(addresses, tuple) and not (isinstance(addresses, Resolved) and addresses.through):
                self._latest[host] = addresses, port, known
            return known
        left = tuple([a for a in addresses if self._is_open(host, a, port)])
        if not left:
            raise self._denied(host, addresses, port)
        if port not in self._own.everywhere:  # otherwise the decision depends on the machine's addresses, which change
            self._known_addresses += len(key[1])
            if self._known_addresses > MAX_KNOWN:
                self._known.clear()
                self._latest.clear()
                self._known_addresses = len(key[1])
            self._known[key] = left
        return left

    def check_operator(self, address: IPAddress, port: int) -> None:
        """Check an address that an operator wrote (Ip and Service endpoints, parents); special ranges are allowed.

        Raises Denied(Reason.ADDRESS_DENIED) for our listeners and cloud metadata unless an allowance names the address,
        and always for the admin address and for denied ranges.
        """
        host = str(address)
        is_denied = self._closed.explicit_deny(address, port) is not None
        if is_denied or self._is_closed_metadata(address) or self._is_loop(host, address, port):
            raise self._denied(host, (address,), port)

    def check_local_parent(self, host: str, port: int) -> None:
        """Check a name that a parent on this machine would resolve. Raises Denied(Reason.ADDRESS_DENIED) if the port is
        that of the admin address, for any name.
        """
        if self._own.has_admin_port(port):
            raise Denied(
                Reason.ADDRESS_DENIED,
                f"{Authority(host, port)} may be {_OURSELVES}: a parent on this machine resolves the name",
                rule=self._rule,
                remedy="give --admin and --metrics ports that nobody has to reach by name through this parent",
            )

    def open_endpoints(self, endpoints: tuple[EndpointAddress, ...]) -> tuple[EndpointAddress, ...]:
        """The endpoints that no deny entry closes."""
        return tuple(each for each in endpoints if self._closed.explicit_deny(each.address, each.port) is None)

    def explicit_deny_of(self, endpoints: tuple[EndpointAddress, ...]) -> Denied | None:
        """The error if deny entries close all of these endpoints, or None."""
        return None if self.open_endpoints(endpoints) else self._denied_endpoint(endpoints)

    def metadata_deny_of(self, endpoints: tuple[EndpointAddress, ...]) -> Denied | None:
        """The error if all of these endpoints are cloud metadata that no allowance names, or None."""
        is_closed = all(self._is_closed_metadata(each.address) for each in endpoints)
        return self._denied_endpoint(endpoints) if is_closed else None

    def _denied_endpoint(self, endpoints: tuple[EndpointAddress, ...]) -> Denied | None:
        """The error for the first of these endpoints, if there are any."""
        return next((self._denied(str(each.address), (each.address,), each.port) for each in endpoints), None)

    def _is_closed_metadata(self, address: IPAddress) -> bool:
        """Whether an address that an operator wrote is cloud metadata that no allowance names."""
        host = str(address)
        return any(each in METADATA and not self._is_named(host, each) for each in aliases(address))

    def would_deny(self, addresses: Sequence[IPAddress], port: int, resolved: Sequence[IPAddress] = ()) -> bool:
        """Whether mode Enforce would deny all of these addresses, or the names on the way to what was `resolved`."""
        if isinstance(resolved, Resolved) and self._reported_names.closing(resolved.through, port) is not None:
            return True
        return all(self._reported.explicit_deny(address, port) is not None for address in addresses)

    def verdict(self, host: str, address: IPAddress, port: int, through: tuple[str, ...] = ()) -> tuple[bool, str]:
        """Whether `check` allows this address, to which these names led, and a sentence why; for explanations."""
        kind = classify(address) or "public"
        on_the_way = self._closed_names.closing(through, port)
        if on_the_way is not None:
            return False, f"{kind}: {on_the_way.detail}"
        closing = self._closed.closing(address, port)
        if closing is not None:
            return False, f"{kind}: {closing.detail}"
        obstacle = self._obstacle(host, address)
        if obstacle is not None:
            return False, f"{obstacle}: not allowed"
        if self._is_loop(host, address, port):
            what = "the admin address" if self._own.has_admin(address, port) else "a listener"
            return False, f"{kind}: {what} of this gateway"
        by = self._rule if self._rule != "-" else "the operator, who named this parent"
        return True, kind if kind == "public" else f"{kind}: allowed by {by}"

    def _is_open(self, host: str, address: IPAddress, port: int) -> bool:
        return (
            self._obstacle(host, address) is None
            and not self._is_loop(host, address, port)
            and self._closed.closing(address, port) is None
        )

    def _obstacle(self, host: str, address: IPAddress) -> str | None:
        """The special range that closes this address, or an address embedded in it, to the host. None: no range."""
        around = ""
        for each in aliases(address):
            found = _special(each)
            if found is None:
                continue
            name, scope = found
            is_open = self._is_named(host, each) if found == _METADATA else self._in_every_group(host, each, scope)
            if not is_open:
                return name + around
            around = around or f"{_WITHIN}{name}"
        return None

    def _in_every_group(self, host: str, address: IPAddress, scope: _Scope) -> bool:
        return bool(self._allow) and all(any(_covers(a, host, address, scope) for a in group) for group in self._allow)

    def _is_named(self, host: str, address: IPAddress) -> bool:
        return bool(self._allow) and all(any(_names(a, host, address) for a in group) for group in self._allow)

    def _is_loop(self, host: str, address: IPAddress, port: int) -> bool:
        """Whether the rule of own sockets closes this address."""
        if self._own.has_admin(address, port):
            return True
        return self._own.has_listener(address, port) and not all(self._is_named(host, a) for a in aliases(address))

    def _closing_on_the_way(self, addresses: Sequence[IPAddress], port: int) -> Closing | None:
        """Why a name that led to these addresses is closed, or None."""
        through = addresses.through if isinstance(addresses, Resolved) else ()
        return self._closed_names.closing(through, port) if through else None

    def _denied_on_the_way(self, host: str, port: int, closing: Closing) -> Denied:
        denied = Denied(
            Reason.ADDRESS_DENIED,
            f"{Authority(host, port)} resolves to what policy does not allow ({closing.kind})",
            rule=f"EgressPolicy {closing.policy}",
            remedy=closing.remedy,
            detail=closing.detail,
        )
        denied.tell(closing.message)
        denied.policy, denied.entry = closing.policy, closing.entry
        return denied

    def _denied(self, host: str, addresses: Sequence[IPAddress], port: int) -> Denied:
        closings = [self._closed.closing(a, port) for a in addresses]
        kinds = [self._kind(host, a, port, closing) for a, closing in zip(addresses, closings, strict=True)]
        detail = ", ".join(
            f"{a} ({closing.detail if closing is not None else kind})"
            for a, closing, kind in zip(addresses, closings, kinds, strict=True)
        )
        names = ", ".join(sorted(set(kinds))) or "unknown"
        first = next(filter(None, closings), None)
        verb = "is" if any(str(address) == host for address in addresses) else "resolves to"
        denied = Denied(
            Reason.ADDRESS_DENIED,
            f"{Authority(host, port)} {verb} an address that policy does not allow ({names})",
            rule=self._rule if first is None else f"EgressPolicy {first.policy}",
            remedy=self._remedy(host, addresses, kinds, first),
            detail=detail,
        )
        denied.tell(first.message if first is not None else self._message)
        denied.policy = first.policy if first is not None else self._rule.removeprefix("EgressPolicy ")
        denied.entry = first.entry if first is not None else "-"
        return denied

    def _kind(self, host: str, address: IPAddress, port: int, closing: Closing | None) -> str:
        """The kind of a denied address, for the client. It does not tell the admin address from a listener."""
        if is_metadata(address):
            return _METADATA[0]
        if self._own.has_admin(address, port) or self._own.has_listener(address, port):
            return _OURSELVES
        if closing is not None:
            return closing.kind
        return self._obstacle(host, address) or classify(address) or "public"

    def _remedy(self, host: str, addresses: Sequence[IPAddress], kinds: Sequence[str], closing: Closing | None) -> str:
        """The remedy. It names no address except one that the client named itself; an entry's hostnames are names."""
        if _METADATA[0] in kinds:
            remedy = "leave it closed: this address hands out the machine's own credentials"
            exactly = "exactly this address (/32 or /128) under cidrs in addresses.allow of an EgressPolicy"
            return remedy if self._own_remedy else f"{remedy}; where a workload has to reach it, write {exactly}"
        if _OURSELVES in kinds:
            return "point the client at the destination itself, not at this gateway"
        if closing is not None:
            return closing.remedy
        if self._own_remedy:
            return self._own_remedy
        place = "allow it in addresses.allow of an EgressPolicy"
        if self._owner:
            place = (
                f"policies of other namespaces lead to public addresses alone; allow the destination in "
                f"destinations.allow and the address in addresses.allow of an EgressPolicy of namespace {self._owner}"
            )
        if any(_WITHIN in kind for kind in kinds):
            return f"{place}: put the range of the IPv4 address that it carries under cidrs, beside the IPv6 range"
        if any(str(address) == host for address in addresses):
            return f"{place}: put {host} or its range under cidrs, without hostnames"
        return f"{place}: put the range under cidrs and {host} under hostnames"


def _covers(allowance: AddressAllowance, host: str, address: IPAddress, scope: _Scope) -> bool:
    """Whether one entry opens this special address; an entry without ranges opens only addresses of other machines."""
    if allowance.hostnames and not _matches_host(allowance.hostnames, host):
        return False
    if not allowance.cidrs:
        return bool(allowance.hostnames) and scope is _Scope.NETWORK
    return any(address in network for network in allowance.cidrs)


def _names(allowance: AddressAllowance, host: str, address: IPAddress) -> bool:
    """Whether one entry names exactly this address, for this host."""
    if allowance.hostnames and not _matches_host(allowance.hostnames, host):
        return False
    return any(n.prefixlen == n.max_prefixlen and n.network_address == address for n in allowance.cidrs)


def _matches_host(patterns: tuple[str, ...], host: str) -> bool:
    return any(host == p or (p.startswith("*.") and host.endswith(p[1:]) and len(host) >= len(p)) for p in patterns)
