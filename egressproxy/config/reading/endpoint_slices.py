"""Which addresses of EndpointSlices a Service leads to, and which of Pods an XBackend. Sources: discovery.k8s.io/v1
EndpointSlice; Pod v1.

It reads manifests and no models: whoever watches an API server has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, Final

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


#: Phases of Pods without a running container.
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def ready_addresses(pods: Iterable[Mapping[str, Any]], *, has_kubelet: bool) -> tuple[IPAddress, ...]:
    """The primary address of each Pod that is Ready, has not ended and is not being deleted.

    So are the endpoints that Kubernetes' EndpointSlice controller finds. A kubelet writes the status; without one, a
    Pod without the condition Ready counts as ready.
    """
    found: set[IPAddress] = set()
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") in _ENDED or pod["metadata"].get("deletionTimestamp"):
            continue
        unsaid = "False" if has_kubelet else "True"
        conditions = status.get("conditions") or ()
        if next((each.get("status") for each in conditions if each.get("type") == "Ready"), unsaid) != "True":
            continue
        first = next((each.get("ip") for each in status.get("podIPs") or ()), "")
        try:
            found.add(ip_address(status.get("podIP") or first))
        except ValueError:
            continue
    return tuple(sorted(found, key=lambda each: (each.version, int(each))))


def service_of_pods(namespace: str, selector: str) -> str:
    """What stands for the name of a Service where endpoints are the Pods of a namespace with a label selector."""
    return f"{namespace} {selector}"


def _port(piece: Mapping[str, Any], name: str) -> int | None:
    """The number of a TCP port with this name."""
    for each in piece.get("ports") or ():
        if (each.get("name") or "") == name and (each.get("protocol") or "TCP") == "TCP":
            number: int | None = each.get("port")
            return number
    return None
