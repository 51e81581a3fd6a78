"""Which addresses of EndpointSlices a Service leads to. Source: discovery.k8s.io/v1 EndpointSlice.

It reads manifests and no models: whoever watches an API server has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.authority import IPAddress


def ready_endpoints(slices: Iterable[Mapping[str, Any]], port_name: str) -> tuple[EndpointAddress, ...]:
    """The ready addresses, with the port that each slice has under the Service port's name; "" for no name."""
    found: dict[tuple[IPAddress, int], EndpointAddress] = {}
    for piece in slices:
        port = _port(piece, port_name)
        if port is None or piece["addressType"] == "FQDN":
            continue
        for endpoint in piece.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint["addresses"][:1]:  # further ones are unused (discovery.k8s.io/v1)
                try:
                    known = ip_address(address)
                except ValueError:
                    continue
                hints = (endpoint.get("hints") or {}).get("forZones") or ()
                zones = tuple(sorted(hint["name"] for hint in hints))
                found.setdefault((known, port), EndpointAddress(known, port, endpoint.get("zone") or "", zones))
    return tuple(sorted(found.values(), key=lambda each: (each.address.version, int(each.address), each.port)))


def _port(piece: Mapping[str, Any], name: str) -> int | None:
    """The number of a TCP port with this name."""
    for each in piece.get("ports") or ():
        if (each.get("name") or "") == name and (each.get("protocol") or "TCP") == "TCP":
            number: int | None = each.get("port")
            return number
    return None
