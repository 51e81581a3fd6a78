"""Pods as backends, selected by their labels. Sources: Gateway API XBackend, EndpointSelector (GEP-4894); Pod v1.

A Pod is an endpoint under the rules of Kubernetes' EndpointSlice controller: it has an address, is Ready, has not
ended and is not being deleted. In files a Pod without the condition Ready counts as ready, and EndpointSlices with the
labels may stand for Pods: no kubelet writes the status there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import EndpointSlice, Pod
from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.authority import IPAddress

_ENDED = frozenset({"Succeeded", "Failed"})


class Pods:
    """The addresses of Pods, by namespace and labels."""

    __slots__ = ("_by_namespace", "_resources")

    def __init__(self, resources: ResourceSet) -> None:
        self._resources = resources
        self._by_namespace: dict[str, list[tuple[Mapping[str, str], tuple[IPAddress, ...]]]] | None = None

    def endpoints(self, namespace: str, labels: Mapping[str, str], port: int) -> tuple[EndpointAddress, ...]:
        """The ready Pods of this namespace with all these labels, each at its primary address and this port."""
        self._resources.wanted.add(("", Pod.KIND, namespace, selector_text(labels)))
        if self._by_namespace is None:
            self._by_namespace = self._read()
        found = {
            address
            for theirs, addresses in self._by_namespace.get(namespace, ())
            if labels.items() <= theirs.items()
            for address in addresses
        }
        ordered = sorted(found, key=lambda each: (each.version, int(each)))
        return tuple(EndpointAddress(address, port) for address in ordered)

    def _read(self) -> dict[str, list[tuple[Mapping[str, str], tuple[IPAddress, ...]]]]:
        found: dict[str, list[tuple[Mapping[str, str], tuple[IPAddress, ...]]]] = defaultdict(list)
        for pod in self._resources.of(Pod):
            found[pod.namespace].append((pod.metadata.labels, tuple(_address_of(pod))))
        for piece in self._resources.of(EndpointSlice):
            if not piece.origin.is_from_cluster:
                found[piece.namespace].append((piece.metadata.labels, tuple(_ready_addresses(piece))))
        return found


def selector_text(labels: Mapping[str, str]) -> str:
    """A label selector as requests to an API server have it."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _address_of(pod: Pod) -> Iterator[IPAddress]:
    """The primary address of a ready Pod; none of another."""
    status = pod.status
    if status is None or status.phase in _ENDED or pod.metadata.deletion_timestamp is not None:
        return
    ready = next((each.status for each in status.conditions if each.type == "Ready"), None)
    if ready == "True" or (ready is None and not pod.origin.is_from_cluster):
        yield from _addresses(status.pod_ip or next((each.ip for each in status.pod_ips), ""))


def _ready_addresses(piece: EndpointSlice) -> Iterator[IPAddress]:
    for endpoint in piece.endpoints if piece.address_type != "FQDN" else ():
        if endpoint.conditions.ready is not False:
            yield from _addresses(endpoint.addresses[0])  # further ones are unused (discovery.k8s.io/v1)


def _addresses(text: str) -> Iterator[IPAddress]:
    try:
        yield ip_address(text)
    except ValueError:
        return
