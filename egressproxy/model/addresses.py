"""The addresses at which a connection to one address may arrive, and those of clouds' metadata. Pure.

An IPv6 address may carry an IPv4 address, to which a translator, a tunnel or the kernel takes it; a connection to the
unspecified address arrives at loopback. A rule about addresses has to hold for each of them, or another spelling is a
way round it.

Sources: RFC 4291 section 2.5.5 (IPv4-compatible, IPv4-mapped), RFC 2765 section 2.1 (IPv4-translated), RFC 3056 (6to4),
RFC 4380 section 4 (Teredo), RFC 5214 section 6.1 (ISATAP), RFC 6052 section 2.2 and RFC 8215 (NAT64).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from egressproxy.model.authority import Authority, IPAddress

_LOW = 0xFFFFFFFF
_LOOPBACK_V4 = IPv4Address("127.0.0.1")
_LOOPBACK_V6 = IPv6Address("::1")
#: The upper 96 bits under which the lower 32 are an IPv4 address.
_IPV4_LAST = frozenset(int(IPv6Address(prefix)) >> 32 for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::"))
_LOCAL_NAT64 = int(IPv6Address("64:ff9b:1::")) >> 80
_SIX_TO_FOUR = 0x2002
_TEREDO = 0x20010000
_ISATAP_IDS = (0x00005EFE, 0x02005EFE)


@lru_cache(maxsize=4096)
def aliases(address: IPAddress) -> tuple[IPAddress, ...]:
    """The address itself first, without a zone id; then every other address that reaches the same host."""
    number = int(address)
    if isinstance(address, IPv4Address):
        return (address,) if number else (address, _LOOPBACK_V4)
    found: list[IPAddress] = [IPv6Address(number)]
    if number < 2:  # :: and ::1 are no IPv4-compatible addresses
        return tuple(found) if number else (*found, _LOOPBACK_V6)
    inner: list[int] = []
    if number >> 32 in _IPV4_LAST:
        inner.append(number & _LOW)
    elif number >> 80 == _LOCAL_NAT64:
        inner += _local_nat64(number)
    elif number >> 112 == _SIX_TO_FOUR:
        inner.append(number >> 80 & _LOW)
    elif number >> 96 == _TEREDO:
        inner += (number >> 64 & _LOW, ~number & _LOW)  # Teredo server, Teredo client
    if number >> 32 & _LOW in _ISATAP_IDS:
        inner.append(number & _LOW)
    for each in dict.fromkeys(inner):
        found += aliases(IPv4Address(each))
    return tuple(found)


def _local_nat64(number: int) -> list[int]:
    """The IPv4 addresses in the four forms of RFC 6052 section 2.2 that fit into 64:ff9b:1::/48. Only the network knows
    its form, and its translator may ignore the suffix, so every form that yields a possible address counts.
    """
    forms = (
        number & _LOW,  # /96
        number >> 24 & _LOW,  # /64
        (number >> 64 & 0xFF) << 24 | number >> 32 & 0xFFFFFF,  # /56
        (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF,  # /48
    )
    return [form for form in forms if form >> 24] or [0]


#: Where clouds hand out credentials or control the machine. One of them is dialled only if a rule names it.
METADATA: Final[frozenset[IPAddress]] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, GCP, OpenStack, Hetzner, DigitalOcean …
        "169.254.170.2",  # AWS ECS task credentials
        "169.254.170.23",  # AWS EKS pod identity
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "168.63.129.16",  # Azure wire server: looks like any public address
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS pod identity
        "fd20:ce::254",  # GCP
        "fe80::a9fe:a9fe",  # OpenStack
    )
)


def allow_remedy(authority: Authority) -> str:
    """What to add to have this destination allowed."""
    host, port, address = authority.host, authority.port, authority.address
    if address is None:
        return f'add {{hostnames: ["{host}"], ports: [{port}]}} to destinations.allow'
    if not METADATA.isdisjoint(aliases(address)):
        return "leave it closed: this is a cloud metadata address, which hands out the machine's own credentials"
    more = "" if address.is_global else "; add it to addresses.allow, too, since it is not public"
    return f'add {{cidrs: ["{host}"], ports: [{port}]}} to destinations.allow{more}'


class Resolved(tuple[IPAddress, ...]):
    """Addresses in the order of attempts. `through`: the names that led to them, in lower case: the name as completed
    by the search list, and the targets of CNAME records.
    """

    through: tuple[str, ...]

    def __new__(cls, addresses: Iterable[IPAddress] = (), through: tuple[str, ...] = ()) -> Resolved:
        made = super().__new__(cls, addresses)
        made.through = through
        return made
