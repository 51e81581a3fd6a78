"""Manifests as text, compiled through the real loader, and what tests ask of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.gateway import ListenerIR
from egressproxy.ir.policy import PolicyIR
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR
from egressproxy.processes.loader.denials import denials
from tests.support.compiling import compile_valid

FORWARD = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}
"""

REVERSE = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: web, port: 8080, protocol: HTTP}
"""

PLAIN = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 80, tls: {mode: None}}]}
"""

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]
"""

DYNAMIC = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: dynamic}
spec: {destination: {type: Dynamic}}
"""


def compiled(
    *manifests: str,
    previous: Compiled | None = None,
    bind: tuple[str, ...] = ("127.0.0.1",),
    why_unusable: Callable[[str], str] = lambda _address: "",
    can_take_any_certificate: bool = True,
    experimental: bool = False,
) -> Compiled:
    """Compile some YAML documents as one file, with the built-in filter types."""
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    defaults = Defaults(
        bind,
        why_unusable=why_unusable,
        can_take_any_certificate=lambda: can_take_any_certificate,
        denials=denials,
        experimental=experimental,
    )
    return compile_valid(resources, Catalog(), defaults, previous)


def policy(
    sections: str, target: str = "Gateway", name: str = "gw", policy_name: str = "policy", meta: str = ""
) -> str:
    """An EgressPolicy; `sections` are the lines of its spec."""
    group = "egressproxy.io" if target == "Backend" else "gateway.networking.k8s.io"
    lines = "\n".join(f"  {line}" for line in sections.strip("\n").splitlines())
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: {policy_name}{", " if meta else ""}{meta}}}
spec:
  targetRefs: [{{group: {group}, kind: {target}, name: {name}}}]
{lines}
"""


def listener(made: Compiled, name: str = "") -> ListenerIR:
    """The listener of this name, or the only one."""
    found = [one for one in made.spec.listeners if name in ("", one.name)]
    assert len(found) == 1, made.spec.listeners
    return found[0]


def route(made: Compiled) -> HttpRouteIR:
    """The only HTTPRoute of the only listener."""
    (found,) = listener(made).http_routes
    return found


def rule(made: Compiled, index: int = 0) -> HttpRuleIR:
    return route(made).rules[index]


def status(made: Compiled, kind: str, name: str) -> dict[str, Any]:
    """The status of "Kind namespace/name"."""
    found = [
        value for key, value in made.statuses.items() if key[1] == kind and "/".join(filter(None, key[2:])) == name
    ]
    assert len(found) == 1, sorted(made.statuses)
    return found[0]


def said(conditions: list[dict[str, Any]], kind: str) -> tuple[str, str, str]:
    """status, reason and message of a condition; all empty where it is not there."""
    for condition in conditions:
        if condition["type"] == kind:
            return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def of_object(made: Compiled, kind: str, name: str, condition: str) -> tuple[str, str, str]:
    return said(status(made, kind, name)["conditions"], condition)


def of_listener(made: Compiled, condition: str, name: str = "", gateway: str = "default/gw") -> tuple[str, str, str]:
    listeners = status(made, "Gateway", gateway)["listeners"]
    found = [one for one in listeners if name in ("", one["name"])]
    return said(found[0]["conditions"], condition)


def of_route(
    made: Compiled, condition: str, name: str = "default/route", kind: str = "HTTPRoute"
) -> tuple[str, str, str]:
    return said(status(made, kind, name)["parents"][0]["conditions"], condition)


def of_policy(made: Compiled, condition: str, name: str = "default/policy") -> tuple[str, str, str]:
    return said(status(made, "EgressPolicy", name)["ancestors"][0]["conditions"], condition)


def on_gateway(*policies: str) -> PolicyIR:
    """What these policies say together on the listener of a forward proxy."""
    return listener(compiled(FORWARD, *policies)).policy
