"""Manifests made in code, for gateways of tests and runs with tapes. A place is "namespace/name"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Manifest = dict[str, Any]


def manifest(kind: str, place: str, api: str = "egressproxy.io/v1alpha1", **members: Any) -> Manifest:
    """An object at this place."""
    namespace, _, name = place.partition("/")
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **members}


def forward_gateway(place: str, port: int = 3128) -> Manifest:
    """A Gateway with the listener `forward` for a forward proxy."""
    listener = {"name": "forward", "port": port, "protocol": "egressproxy.io/forward-proxy"}
    spec = {"gatewayClassName": "egressproxy", "listeners": [listener]}
    return manifest("Gateway", place, "gateway.networking.k8s.io/v1", spec=spec)


def policy(place: str, gateways: Sequence[str], **spec: Any) -> Manifest:
    """An EgressPolicy for the Gateways of these names in its namespace."""
    targets = [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": each} for each in gateways]
    return manifest("EgressPolicy", place, spec={"targetRefs": targets, **spec})


def origin(place: str, gateways: Sequence[str], address: str, port: int, *hosts: str) -> tuple[Manifest, Manifest]:
    """A Backend in plain HTTP at an address, and a route to it for these hosts; none: for all."""
    ports = [{"number": port, "protocol": "HTTP11", "tls": {"mode": "None"}}]
    backend = {"destination": {"type": "Ip", "ip": {"address": address}, "ports": ports}}
    rules = [{"backendRefs": [{"group": "egressproxy.io", "kind": "Backend", "name": place.partition("/")[2]}]}]
    route = {"parentRefs": [{"name": each} for each in gateways], "hostnames": [*hosts], "rules": rules}
    api = "gateway.networking.k8s.io/v1"
    return manifest("Backend", place, spec=backend), manifest("HTTPRoute", place, api, spec=route)
