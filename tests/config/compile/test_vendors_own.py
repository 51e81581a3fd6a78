"""What a vendor means and nobody here knows, in each kind: it closes the place that asks for it, and no neighbour."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Severity
from tests.config.compile.kit import REVERSE, ROUTE, compiled, listener

GOOD = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec: {destination: {type: Fqdn, fqdn: {hostname: g.example}, ports: [{number: 443, tls: {mode: Simple}}]}}
"""
OTHER_GATEWAY = REVERSE.replace("name: gw}", "name: gw2}").replace("name: web, port: 8080", "name: odd, port: 8081")
PUBLISHED = "gateway.networking.k8s.io/v1alpha1"
X_BACKEND = "gateway.networking.x-k8s.io/v1alpha1"
PORT = "ports: [{number: 443, tls: {mode: SIMPLE}}]"
FQDN = f"destination: {{type: FQDN, fqdn: {{hostname: a.example}}, {PORT}}}"
EXTERNAL = "type: ExternalHostname, externalHostname: {hostname: a.example}, port: {number: 443}"
VENDORS_CA = "{hostname: a.example, wellKnownCACertificates: vendor.example/Roots}"
INJECTOR = "gateway.networking.k8s.io/CredentialInjector:v1"
QOS = "gateway.networking.k8s.io/QoSController:v1"


def odd(spec: str, api_version: str = PUBLISHED, kind: str = "Backend") -> str:
    """A Backend to which the route of `of_odd` leads."""
    return f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: odd}}\nspec: {{{spec}}}\n"


def extended(extension: str, kind: str = PUBLISHED) -> str:
    return odd(f"{FQDN}, extensions: [{{name: x, {extension}}}]", kind)


def of_odd(api_version: str = PUBLISHED, kind: str = "Backend", more: str = "") -> str:
    ref = f"group: {api_version.rpartition('/')[0]}, kind: {kind}, name: odd"
    text = ROUTE.replace("group: egressproxy.io, kind: Backend, name: plain", ref)
    text = text.replace("{name: route}", "{name: odd}").replace("  rules:", "  hostnames: [odd.example]\n  rules:")
    return text.replace("  - backendRefs", f"  - {more}\n    backendRefs") if more else text


def tls_policy(validation: str = VENDORS_CA) -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: odd}}
spec:
  targetRefs: [{{group: egressproxy.io, kind: Backend, name: odd}}]
  validation: {validation}
"""


#: What is unknown in a Backend: the rule that leads there is closed.
OF_BACKENDS = {
    "a mode of tls": odd(FQDN.replace("SIMPLE", "vendor.example/Strict")),
    "a protocol": odd(FQDN.replace("number: 443", "number: 443, protocol: vendor.example/quic")),
    "a type of destination": odd("destination: {type: vendor.example/Bucket, bucket: {name: a}}"),
    "a type of destination of ours": odd("destination: {type: vendor.example/Bucket}", "egressproxy.io/v1alpha1"),
    "a type of XBackend": odd("type: vendor.example/Bucket, port: {number: 443}", X_BACKEND, "XBackend"),
    "a protocol of XBackend": odd(
        f"{EXTERNAL}, protocol: vendor.example/quic, tls: {{mode: ServerOnly}}", X_BACKEND, "XBackend"
    ),
    "a mode of XBackend": odd(f"{EXTERNAL}, tls: {{mode: vendor.example/Strict}}", X_BACKEND, "XBackend"),
    "a mode of XBackend by its new name": odd(f"{EXTERNAL}, tls: {{mode: vendor.example/Strict}}"),
    "CAs of XBackend": odd(f"{EXTERNAL}, tls: {{mode: ServerOnly, validation: {VENDORS_CA}}}", X_BACKEND, "XBackend"),
    "CAs of a port": odd(FQDN.replace("SIMPLE", f"SIMPLE, validation: {VENDORS_CA}")),
    "CAs of a policy": odd(FQDN.replace(", tls: {mode: SIMPLE}", ""), "egressproxy.io/v1alpha1")
    + "---"
    + tls_policy(),
    "a type of extension": extended("type: 'vendor.example/Screen:v1', phase: request-body"),
    "a phase of an unknown type": extended("type: 'vendor.example/Screen:v1', phase: vendor.example/log"),
    "a phase of a published type": extended(f"type: '{QOS}', phase: request-body, config: {{requestsPerMinute: 1}}"),
    "a phase of a published type by its short name": extended("type: QoSController, phase: response-body"),
    "a vendor's phase of a published type": extended(f"type: '{INJECTOR}', phase: vendor.example/log"),
    "a field in the config of a published type": extended(
        f"type: '{QOS}', config: {{requestsPerMinute: 1, vendorsField: 1}}"
    ),
    "a published type in a Backend of ours": extended(f"type: '{QOS}', phase: request-body", "egressproxy.io/v1alpha1"),
}  # fmt: skip


def closed_rules(made: Compiled) -> list[str]:
    """The routes that lead nowhere, or that an unknown extension closes."""
    return [
        route.name
        for each in made.spec.listeners
        for route in each.http_routes
        for rule in route.rules
        for backend in rule.backends
        if backend.backend is None or backend.unknown_extension
    ]


def served_routes(made: Compiled) -> list[str]:
    return [route.name for route in listener(made, "web").http_routes if route.name not in closed_rules(made)]


@pytest.mark.parametrize("what", OF_BACKENDS)
def test_in_a_backend_it_closes_the_rules_that_lead_there(what: str):
    text = OF_BACKENDS[what]
    group = next(each for each in (X_BACKEND, "egressproxy.io/v1alpha1", PUBLISHED) if each in text)
    manifests = (REVERSE, ROUTE, GOOD, text, of_odd(group, "XBackend" if "kind: XBackend" in text else "Backend"))
    made = compiled(*manifests)
    assert closed_rules(made) == ["default/odd"]
    assert served_routes(made) == ["default/route"]
    warned = all_warnings(load_text("\n---\n".join(manifests)), made)
    assert any(each.severity is Severity.UNSERVED and each.object.endswith("default/odd") for each in warned)


#: The same elsewhere: what asks for it, and nothing beside it.
ELSEWHERE = {
    "a kind": "apiVersion: vendor.example/v1\nkind: Thing\nmetadata: {name: odd}\nspec: {}\n",
    "a kind of a group that is known": f"apiVersion: {X_BACKEND}\nkind: XFrobnicator\nmetadata: {{name: odd}}\n",
    "a kind of the agentic group": (
        "apiVersion: agentic.networking.x-k8s.io/v1alpha1\nkind: XBackend\nmetadata: {name: odd}\n"
    ),
    "a known name in a vendor's group": "apiVersion: vendor.example/v1\nkind: Backend\nmetadata: {name: odd}\n",
    "a protocol of a listener": OTHER_GATEWAY.replace("protocol: HTTP", "protocol: vendor.example/quic"),
    "a kind of routes of a listener": OTHER_GATEWAY.replace(
        "protocol: HTTP", "protocol: HTTP, allowedRoutes: {kinds: [{group: vendor.example, kind: Thing}]}"
    ),
    "a type of address": f"{OTHER_GATEWAY}  addresses: [{{type: vendor.example/Name, value: a}}]\n",
    "a class": OTHER_GATEWAY.replace("gatewayClassName: egressproxy", "gatewayClassName: vendor"),
    "a filter": of_odd(
        more="filters: [{type: ExtensionRef, extensionRef: {group: vendor.example, kind: Thing, name: a}}]"
    ),
    "a kind of backend": of_odd("vendor.example/v1", "Thing"),
    "a target of a policy of TLS": tls_policy().replace("egressproxy.io, kind: Backend", "vendor.example, kind: Thing"),
    "a target of a policy": """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: odd}
spec: {targetRefs: [{group: vendor.example, kind: Thing, name: a}], mode: Report}
""",
    "a type in a pipeline": """
apiVersion: egressproxy.io/v1alpha1
kind: PayloadProcessingPipeline
metadata: {name: odd}
spec: {processors: [{name: x, type: 'gateway.networking.k8s.io/QoSController:v1', phase: vendor.example/log}]}
""",
}  # fmt: skip


@pytest.mark.parametrize("what", ELSEWHERE)
def test_elsewhere_it_takes_no_neighbour_with_it(what: str):
    made = compiled(REVERSE, ROUTE, GOOD, ELSEWHERE[what])
    assert served_routes(made) == ["default/route"]
