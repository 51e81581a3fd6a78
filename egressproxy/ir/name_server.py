"""NameServerIR: what listeners of protocol egressproxy.io/dns answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from egressproxy.model.authority import IPAddress


class NameAddresses(str, Enum):
    """EgressPolicy `nameServer.addresses`: the addresses in answers, those of the name or the gateway's own."""

    RESOLVED = "Resolved"
    GATEWAY = "Gateway"


class NameDenials(str, Enum):
    """EgressPolicy `nameServer.denials`: the response code for names that policy denies."""

    REFUSED = "Refused"
    NXDOMAIN = "NXDomain"


@dataclass(frozen=True, slots=True)
class NameServerIR:
    """The answers of listeners of DNS. `queries` of one client in each window; `new_names` as in DnsIR."""

    addresses: NameAddresses = NameAddresses.RESOLVED
    gateway_addresses: tuple[IPAddress, ...] = ()
    denials: NameDenials = NameDenials.REFUSED
    max_ttl_s: float = 60.0
    queries: int = 200
    queries_window_s: float = 1.0
    new_names: int = 100
    new_names_window_s: float = 60.0


DEFAULT_ANSWERS: Final = NameServerIR()
