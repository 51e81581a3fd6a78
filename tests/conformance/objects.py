"""Manifests of the conformance cases, one short function for each kind."""

from __future__ import annotations

from typing import Any

from tests.support.manifests import GATEWAY_API, Manifest, manifest

INFRA, APP, WEB = (f"gateway-conformance-{part}" for part in ("infra", "app-backend", "web-backend"))
CLASS = "egressproxy"


def namespace(name: str, **labels: str) -> Manifest:
    made = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": made}


# --- Gateways and listeners -------------------------------------------------------------------------------------------


def gateway(name: str, *listeners: Manifest, ns: str = INFRA, **spec: Any) -> Manifest:
    body = {"gatewayClassName": CLASS, "listeners": list(listeners), **spec}
    return manifest(f"{GATEWAY_API}/v1", "Gateway", name, ns, spec=body)


def listener_set(name: str, parent: str, *listeners: Manifest, ns: str = INFRA) -> Manifest:
    target = {"name": parent, "namespace": INFRA}
    return manifest(
        f"{GATEWAY_API}/v1", "ListenerSet", name, ns, spec={"parentRef": target, "listeners": list(listeners)}
    )


def http(name: str = "http", port: int = 80, hostname: str = "", routes: str = "Same", **more: Any) -> Manifest:
    return _listener(name, port, "HTTP", hostname, routes, more)


def https(
    name: str = "https", port: int = 443, hostname: str = "", *, cert: Any = "site", routes: str = "Same", **more: Any
) -> Manifest:
    refs = cert if isinstance(cert, list) else [secret_ref(cert)]
    return _listener(name, port, "HTTPS", hostname, routes, {"tls": {"certificateRefs": refs}, **more})


def tls(
    name: str, port: int = 443, hostname: str = "", *, cert: str = "", routes: str = "Same", **more: Any
) -> Manifest:
    """A TLS listener: Terminate with a certificate, else Passthrough."""
    how = {"mode": "Terminate", "certificateRefs": [secret_ref(cert)]} if cert else {"mode": "Passthrough"}
    return _listener(name, port, "TLS", hostname, routes, {"tls": how, **more})


def _listener(name: str, port: int, protocol: str, hostname: str, routes: str, more: Manifest) -> Manifest:
    made = {"name": name, "port": port, "protocol": protocol, **({"hostname": hostname} if hostname else {})}
    allowed = {"namespaces": {"from": routes}}
    if "=" in routes:
        label, _, value = routes.partition("=")
        allowed = {"namespaces": {"from": "Selector", "selector": {"matchLabels": {label: value}}}}  # type: ignore[dict-item]
    kinds = more.pop("kinds", None)
    if kinds is not None:
        allowed["kinds"] = [{"kind": kind} for kind in kinds]  # type: ignore[assignment]
    return {**made, "allowedRoutes": allowed, **more}


def secret_ref(name: str, **more: Any) -> Manifest:
    return {"group": "", "kind": "Secret", "name": name, **more}


# --- routes -----------------------------------------------------------------------------------------------------------


def route(
    name: str, parent: Any, *rules: Manifest, kind: str = "HTTPRoute", ns: str = INFRA, hosts: Any = (), **meta: Any
) -> Manifest:
    """`parent` is `gateway`, `gateway/section`, a parentRef as it is, or a list of these."""
    parents = [_parent(each) for each in (parent if isinstance(parent, list) else [parent])]
    spec: Manifest = {"parentRefs": parents, "rules": list(rules)}
    if hosts:
        spec["hostnames"] = [hosts] if isinstance(hosts, str) else list(hosts)
    made = manifest(f"{GATEWAY_API}/v1", kind, name, ns, spec=spec)
    made["metadata"].update(meta)
    return made


def _parent(parent: Any) -> Manifest:
    if not isinstance(parent, str):
        return dict(parent)
    name, _, section = parent.partition("/")
    return {"name": name, "namespace": INFRA, **({"sectionName": section} if section else {})}


def rule(
    path: str = "", to: Any = "infra-backend-v1", *, exact: bool = False, match: Any = None, **more: Any
) -> Manifest:
    """A rule: a path prefix (or a match, or a list of them), and the backendRefs, by name or as they are."""
    made: Manifest = {}
    if match is not None:
        made["matches"] = match if isinstance(match, list) else [match]
    elif path:
        made["matches"] = [{"path": {"type": "Exact" if exact else "PathPrefix", "value": path}}]
    if to:
        made["backendRefs"] = [ref(each) for each in (to if isinstance(to, list) else [to])]
    return {**made, **more}


def ref(to: Any, port: int = 8080, **more: Any) -> Manifest:
    """`service`, `service:port` or `service:port@weight`."""
    if not isinstance(to, str):
        return dict(to)
    to, _, weight = to.partition("@")
    name, _, number = to.partition(":")
    return {"name": name, "port": int(number or port), **({"weight": int(weight)} if weight else {}), **more}


def filters(**named: Any) -> list[Manifest]:
    """`filters(requestRedirect={…})`: the filters of a rule, their type from the name of the field."""
    types = {"cors": "CORS", "urlRewrite": "URLRewrite"}
    return [{"type": types.get(key, key[0].upper() + key[1:]), key: value} for key, value in named.items()]


def mirror(to: str, **share: Any) -> Manifest:
    return {"type": "RequestMirror", "requestMirror": {"backendRef": ref(to), **share}}


# --- references and backends ------------------------------------------------------------------------------------------


def grant(name: str, ns: str, source: str, source_ns: str, target: str, only: str = "") -> Manifest:
    """From a kind in a namespace to a kind (`Secret`, `Service`) in this one."""
    spec = {
        "from": [{"group": GATEWAY_API, "kind": source, "namespace": source_ns}],
        "to": [{"group": "", "kind": target, **({"name": only} if only else {})}],
    }
    return manifest(f"{GATEWAY_API}/v1beta1", "ReferenceGrant", name, ns, spec=spec)


def service(name: str, ns: str, *ports: Manifest) -> Manifest:
    return manifest("v1", "Service", name, ns, spec={"selector": {"app": name}, "ports": list(ports)})


def slices(name: str, ns: str, ports: list[Manifest], addresses: list[str]) -> Manifest:
    made = manifest("discovery.k8s.io/v1", "EndpointSlice", f"{name}-1", ns, addressType="IPv4", ports=ports)
    made["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    made["endpoints"] = [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]
    return made


def backend_tls(
    name: str, *targets: Manifest, ca: Any = "backend-ca", hostname: str = "abc.example.com", **more: Any
) -> Manifest:
    refs = ca if isinstance(ca, list) else [{"group": "", "kind": "ConfigMap", "name": ca}]
    spec = {"targetRefs": list(targets), "validation": {"caCertificateRefs": refs, "hostname": hostname, **more}}
    return manifest(f"{GATEWAY_API}/v1", "BackendTLSPolicy", name, INFRA, spec=spec)


def policy_target(name: str, section: str = "") -> Manifest:
    return {"group": "", "kind": "Service", "name": name, **({"sectionName": section} if section else {})}
