"""Pods as backends, selected by their labels. Sources: Gateway API XBackend, EndpointSelector (GEP-4894); Pod v1.

In files EndpointSlices with the labels may stand for Pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address

from egressproxy.config.reading.endpoint_slices import ready_addresses, service_of_pods
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import EndpointSlice, Pod
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.authority import IPAddress


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
            found[pod.namespace].append((pod.metadata.labels, _addresses_of(pod)))
        for piece in self._resources.of(EndpointSlice):
            if not piece.origin.is_from_cluster:
                found[piece.namespace].append((piece.metadata.labels, tuple(_of_slice(piece))))
        return found


def selector_text(labels: Mapping[str, str]) -> str:
    """A label selector as requests to an API server have it."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def selected_by(backend: XBackend) -> str:
    """`BackendIR.service` of an XBackend; "" where it selects no Pods."""
    selector = backend.spec.endpoint_selector
    if selector is None or selector.match_labels is None:
        return ""
    return service_of_pods(backend.namespace, selector_text(selector.match_labels))


def _addresses_of(pod: Pod) -> tuple[IPAddress, ...]:
    status = pod.status.model_dump(by_alias=True) if pod.status is not None else {}
    manifest = {"metadata": {"deletionTimestamp": pod.metadata.deletion_timestamp}, "status": status}
    return ready_addresses([manifest], has_kubelet=pod.origin.is_from_cluster)


def _of_slice(piece: EndpointSlice) -> Iterator[IPAddress]:
    for endpoint in piece.endpoints if piece.address_type != "FQDN" else ():
        if endpoint.conditions.ready is not False:
            with suppress(ValueError):
                yield ip_address(endpoint.addresses[0])  # further ones are unused (discovery.k8s.io/v1)
