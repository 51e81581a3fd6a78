"""Manifests as tests write them: one function per kind, each returning the object as a dictionary."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

GATEWAY_API = "gateway.networking.k8s.io"
OURS = "egressproxy.io"
#: libyaml's, if PyYAML was built with it: the one in Python takes longer than to compile what it has written.
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def manifest(api_version: str, kind: str, name: str, namespace: str, **body: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **body}


def forward_listener(port: int, name: str = "forward", **more: Any) -> Manifest:
    return {"name": name, "port": port, "protocol": f"{OURS}/forward-proxy", **more}


def http_listener(port: int, name: str = "http", **more: Any) -> Manifest:
    return {"name": name, "port": port, "protocol": "HTTP", **more}


def gateway(
    *listeners: Manifest, name: str = "gw", namespace: str = "agents", address: str = "127.0.0.1", **more: Any
) -> Manifest:
    spec = {
        "gatewayClassName": "egressproxy",
        "addresses": [{"type": "IPAddress", "value": address}],
        "listeners": list(listeners),
        **more,
    }
    return manifest(f"{GATEWAY_API}/v1", "Gateway", name, namespace, spec=spec)


def policy(
    allow: Iterable[str] | None = None,
    *,
    name: str = "default",
    namespace: str = "agents",
    target: str = "gw",
    dns: str = "",
    cidrs: Iterable[str] = (),
    **sections: Any,
) -> Manifest:
    """An EgressPolicy on a Gateway: hostnames to allow, one DNS server, ranges that names may resolve to."""
    spec: Manifest = {"targetRefs": [{"group": GATEWAY_API, "kind": "Gateway", "name": target}]}
    if allow is not None:
        hostnames = list(allow)
        spec["destinations"] = {"allow": [{"hostnames": hostnames}] if hostnames else []}
    if dns:
        spec["dns"] = {"servers": [dns]}
    if ranges := list(cidrs):
        spec["addresses"] = {"allow": [{"cidrs": ranges}]}
    spec.update(sections)
    return manifest(f"{OURS}/v1alpha1", "EgressPolicy", name, namespace, spec=spec)


def backend(
    name: str,
    hostname: str,
    port: int,
    *,
    namespace: str = "agents",
    tls: bool = False,
    ca: str = "",
    protocol: str = "HTTP11",
    **more: Any,
) -> Manifest:
    """A Backend of type Fqdn; `ca` names the ConfigMap with the authority that signed its certificate."""
    origination: Manifest = {"mode": "Simple" if tls else "None"}
    if ca:
        origination["caBundleRef"] = [{"kind": "ConfigMap", "name": ca}]
    destination = {
        "type": "Fqdn",
        "fqdn": {"hostname": hostname},
        "ports": [{"number": port, "protocol": protocol, "tls": origination}],
    }
    return manifest(f"{OURS}/v1alpha1", "Backend", name, namespace, spec={"destination": destination, **more})


def ip_backend(name: str, port: int, address: str = "127.0.0.1", **more: Any) -> Manifest:
    """A Backend of type Ip. `more` is as of `backend`."""
    made = backend(name, "-", port, **more)
    destination = made["spec"]["destination"]
    made["spec"]["destination"] = {"type": "Ip", "ip": {"address": address}, "ports": destination["ports"]}
    return made


def failover(name: str, *endpoints: str | Manifest, namespace: str = "agents", **more: Any) -> Manifest:
    """A Backend of type Failover. An endpoint is the name of a Backend, whose priority is its place here, or all of it.
    `more` goes beside the endpoints.
    """
    refs = [
        {"backendRef": {"group": OURS, "kind": "Backend", "name": each}, "priority": number}
        if isinstance(each, str)
        else each
        for number, each in enumerate(endpoints)
    ]
    spec = {"destination": {"type": "Failover", "failover": {"endpoints": refs, **more}}}
    return manifest(f"{OURS}/v1alpha1", "Backend", name, namespace, spec=spec)


def dynamic(name: str = "any", namespace: str = "agents", **more: Any) -> Manifest:
    """A Backend of type Dynamic: where the request says. `more` goes into its spec."""
    spec = {"destination": {"type": "Dynamic"}, **more}
    return manifest(f"{OURS}/v1alpha1", "Backend", name, namespace, spec=spec)


def prefix_rule(prefix: str, backend_name: str, *, rewrite: str | None = None, **more: Any) -> Manifest:
    """A rule of an HTTPRoute: a path prefix to one Backend; with `rewrite` the prefix is replaced on the way."""
    rule: Manifest = {
        "matches": [{"path": {"type": "PathPrefix", "value": prefix}}],
        "backendRefs": [{"group": OURS, "kind": "Backend", "name": backend_name}],
    }
    if rewrite is not None:
        path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": rewrite}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": {"path": path}}]
    return {**rule, **more}


def http_route(
    name: str,
    *rules: Manifest,
    hostnames: Iterable[str] = (),
    namespace: str = "agents",
    parent: str = "gw",
    section: str = "",
) -> Manifest:
    spec: Manifest = {"parentRefs": [_parent(parent, section)], "rules": list(rules)}
    if names := list(hostnames):
        spec["hostnames"] = names
    return manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, namespace, spec=spec)


def tls_route(
    name: str,
    backend_name: str,
    *,
    hostnames: Iterable[str],
    namespace: str = "agents",
    parent: str = "gw",
    section: str = "",
) -> Manifest:
    rules = [{"backendRefs": [{"group": OURS, "kind": "Backend", "name": backend_name}]}]
    spec = {"parentRefs": [_parent(parent, section)], "hostnames": list(hostnames), "rules": rules}
    return manifest(f"{GATEWAY_API}/v1", "TLSRoute", name, namespace, spec=spec)


def secret(name: str, data: Mapping[str, str], *, namespace: str = "agents", kind: str = "Opaque") -> Manifest:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return manifest("v1", "Secret", name, namespace, type=kind, data=encoded)


def config_map(name: str, data: Mapping[str, str], *, namespace: str = "agents") -> Manifest:
    return manifest("v1", "ConfigMap", name, namespace, data=dict(data))


def write(path: Path, objects: Iterable[Manifest]) -> None:
    """Write all objects into one file, put in place by a rename: a reader sees the old or the new, never a half."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "w", encoding="utf-8") as file:
        yaml.dump_all(objects, file, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    fresh.replace(path)


def _parent(name: str, section: str) -> Manifest:
    return {"name": name, "sectionName": section} if section else {"name": name}


def conditions_of(status: Manifest) -> list[dict[str, Any]]:
    """The conditions in the status of an object, in the first entry where its type lists them by who uses it."""
    listed = [status, *status.get("ancestors", ()), *status.get("controllers", ())]
    return next(each["conditions"] for each in listed if "conditions" in each)
