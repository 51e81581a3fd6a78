"""What gets through where one kind of a cluster cannot be read: nothing that would not otherwise, but for the kinds
that hold up the start of a gateway (tests/kubernetes/test_cluster_source.py).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from egressproxy.config.reading.load import read_all
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes.object_store import read_kinds
from egressproxy.processes.loader.compilation import compiled
from tests.gateway.conftest import Start
from tests.gateway.test_access_policies import access, rule
from tests.kubernetes.test_cluster_source import HOLDS_UP_ALWAYS, HOLDS_UP_START
from tests.support import manifests as m
from tests.support.conversation import MemoryPeer, MemoryTransport
from tests.support.manifests import GATEWAY_API, OURS, Manifest

HOST = "x.open.example"
NOWHERE = [{"group": OURS, "kind": "Backend", "name": "nowhere"}]


@dataclass(frozen=True)
class Case:
    """`of` is of the kind. `is_through`: whether a request gets through with all, and without the kind."""

    kind: str
    of: Manifest
    rest: list[Manifest]
    is_through: tuple[bool, bool]
    asks: str = "POST"  # or CONNECT, or a host to be asked for


def proxy(*more: Manifest, **listener: Any) -> list[Manifest]:
    return [m.gateway(m.forward_listener(3128, **listener)), m.policy(["*.open.example"]), *more]


def to(group: str, kind: str, port: int | None = None, **more: Any) -> Manifest:
    """A route for HOST to an object."""
    ref = {"group": group, "kind": kind, "name": "of", **({"port": port} if port else {}), **more}
    return m.http_route("r", {"backendRefs": [ref]}, hostnames=[HOST])


def route(kind: str, **spec: Any) -> Manifest:
    spec = {"parentRefs": [{"name": "gw"}], "hostnames": [HOST], "rules": [{"backendRefs": NOWHERE}], **spec}
    return m.manifest(f"{GATEWAY_API}/v1", kind, "of", "agents", spec=spec)


def labelled(kind: str, labels: dict[str, str], **body: Any) -> Manifest:
    made = m.manifest("v1" if not body.pop("group", "") else "discovery.k8s.io/v1", kind, "of", "agents", **body)
    made["metadata"]["labels"] = labels
    return made


def of_namespace() -> Case:
    """Its route permits a host that no policy does; its namespace is one that may not attach."""
    selector = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["untrusted"]}]}
    listener = {"allowedRoutes": {"namespaces": {"from": "Selector", "selector": selector}}}
    attached = m.http_route("r", m.prefix_rule("/", "b"), hostnames=["closed.example"], namespace="team")
    attached["spec"]["parentRefs"][0]["namespace"] = "agents"
    backend = m.backend("b", "closed.example", 80, namespace="team")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"tier": "untrusted"}}}
    return Case("Namespace", namespace, proxy(attached, backend, **listener), (False, False), asks="closed.example")


def of_pod() -> Case:
    """It is a client whom a policy denies what all others may have."""
    address = m.policy(identity={"required": False, "address": {"pods": True}}, name="who")
    denied = m.policy(name="bad", subjects=[{"namespace": "agents", "serviceAccount": "bad"}])
    denied["spec"]["destinations"] = {"deny": [{"hostnames": [HOST]}]}
    pod = m.manifest("v1", "Pod", "of", "agents", spec={"serviceAccountName": "bad"})
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.9"}
    return Case("Pod", pod, proxy(address, denied), (False, False))


def of_listener_set() -> Case:
    """Its listener has a hostname, and no route; that of the Gateway leads everywhere."""
    gateway = m.gateway(m.http_listener(8080, allowedRoutes={"namespaces": {"from": "All"}}))
    gateway["spec"]["allowedListeners"] = {"namespaces": {"from": "All"}}
    spec = {"parentRef": {"name": "gw", "kind": "Gateway", "group": GATEWAY_API},
            "listeners": [{"name": "own", "port": 8080, "protocol": "HTTP", "hostname": HOST}]}  # fmt: skip
    made = m.manifest(f"{GATEWAY_API}/v1", "ListenerSet", "of", "agents", spec=spec)
    whole = m.http_route("r", m.prefix_rule("/", "b"), section="http")
    return Case("ListenerSet", made, [gateway, whole, m.backend("b", "b.example", 80)], (False, True))


def of_backend_tls() -> Case:
    """It asks for a certificate by an authority that is not there."""
    target = {"group": "", "kind": "Service", "name": "of"}
    trust = {"hostname": "a.example", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "none"}]}
    spec = {"targetRefs": [target], "validation": trust}
    made = m.manifest(f"{GATEWAY_API}/v1", "BackendTLSPolicy", "of", "agents", spec=spec)
    return Case("BackendTLSPolicy", made, proxy(to("", "Service", 80), SERVICE, SLICE, OPEN_ADDRESSES), (False, True))


GATEWAY_CLASS = {
    "apiVersion": f"{GATEWAY_API}/v1", "kind": "GatewayClass", "metadata": {"name": "egressproxy"},
    "spec": {"controllerName": "somebody.example/else"},
}  # fmt: skip
DENY = m.policy(name="of", destinations={"deny": [{"hostnames": [HOST]}]})
SERVICE = m.manifest("v1", "Service", "of", "agents", spec={"ports": [{"port": 80}]})
SLICE = labelled(
    "EndpointSlice", {"kubernetes.io/service-name": "of"}, group="discovery.k8s.io", addressType="IPv4",
    endpoints=[{"addresses": ["10.1.0.1"], "conditions": {"ready": True}}], ports=[{"port": 80}],
)  # fmt: skip
OPEN_ADDRESSES = m.policy(name="addresses", cidrs=["10.1.0.0/16"])
INJECTING = m.backend("of", HOST, 80)
INJECTING["spec"]["extensions"] = [
    {"name": "key", "type": f"{OURS}/CredentialInjector:v1", "phase": "backend-request",
     "config": {"secretRef": {"name": "of"}, "allowPlaintext": True}},
]  # fmt: skip
PIPELINE = m.manifest(
    f"{OURS}/v1alpha1", "PayloadProcessingPipeline", "of", "agents",
    spec={"processors": [{
        "name": "mark", "type": f"{OURS}/HeaderPolicy:v1", "phase": "request-headers",
        "config": {"request": {"set": [{"name": "X", "value": "y"}]}},
    }]},
)  # fmt: skip
PROCESSED = m.http_route(
    "r",
    m.prefix_rule("/", "b", filters=[
        {"type": "ExtensionRef", "extensionRef": {"group": OURS, "kind": "PayloadProcessingPipeline", "name": "of"}},
    ]),
    hostnames=[HOST],
)  # fmt: skip
FILTER_TYPE = {
    "apiVersion": f"{OURS}/v1alpha1", "kind": "FilterType", "metadata": {"name": "of"},
    "spec": {
        "type": "acme.example.com/Check:v1", "phases": ["request-headers"],
        "processor": {
            "protocol": "Webhook",
            "backendRefs": [{"group": OURS, "kind": "Backend", "name": "b", "namespace": "agents"}],
        },
    },
}  # fmt: skip
CHECKED = m.policy(name="checked", extensions=[{"name": "c", "type": "acme.example.com/Check:v1"}])
GRANT = m.manifest(
    f"{GATEWAY_API}/v1", "ReferenceGrant", "of", "team",
    spec={
        "from": [{"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "agents"}],
        "to": [{"group": OURS, "kind": "Backend"}],
    },
)  # fmt: skip
FAR = m.backend("of", HOST, 80, namespace="team")
TRACES = m.manifest(
    "gateway.networking.x-k8s.io/v1alpha1", "XTelemetryPolicy", "of", "agents",
    spec={
        "targetRefs": [{"group": GATEWAY_API, "kind": "Gateway", "name": "gw"}],
        "tracing": {"provider": {"backendRef": NOWHERE[0]}},
    },
)  # fmt: skip
CASES = [
    Case("GatewayClass", GATEWAY_CLASS, proxy(), (False, True)),
    Case("Gateway", m.gateway(m.forward_listener(3128)), proxy()[1:], (True, False)),
    of_listener_set(),
    Case("HTTPRoute", route("HTTPRoute"), proxy(), (False, True)),
    Case(
        "GRPCRoute", route("GRPCRoute"),
        [m.gateway(m.http_listener(8080)), m.http_route("r", m.prefix_rule("/", "b")), m.backend("b", HOST, 80)],
        (False, True),
    ),
    Case("XTelemetryPolicy", TRACES, proxy(), (True, True)),
    Case("TLSRoute", route("TLSRoute"), proxy(), (False, True), asks="CONNECT"),
    Case(
        "TCPRoute", route("TCPRoute", hostnames=None, rules=[{"backendRefs": [{**NOWHERE[0], "name": "b"}]}]),
        [m.gateway({"name": "tcp", "port": 9000, "protocol": "TCP"}), m.backend("b", HOST, 80)], (True, False),
    ),
    of_backend_tls(),
    Case("ReferenceGrant", GRANT, proxy(FAR, to(OURS, "Backend", namespace="team")), (True, False)),
    Case("Backend", m.backend("of", HOST, 80), proxy(to(OURS, "Backend")), (True, False)),
    Case("EgressPolicy", DENY, proxy(), (False, True)),
    Case("XAccessPolicy", access(rule(source=None, methods=["DELETE"])), proxy(), (False, True)),
    Case("PayloadProcessingPipeline", PIPELINE, proxy(PROCESSED, m.backend("b", HOST, 80)), (True, False)),
    Case("FilterType", FILTER_TYPE, proxy(CHECKED, m.backend("b", "b.example", 80)), (True, False)),
    of_namespace(),
    Case(
        "Secret", m.secret("of", {"credential": "hush"}), proxy(INJECTING, to(OURS, "Backend")), (True, False),
    ),
    Case("Service", SERVICE, proxy(to("", "Service", 80), SLICE, OPEN_ADDRESSES), (True, False)),
    Case("EndpointSlice", SLICE, proxy(to("", "Service", 80), SERVICE, OPEN_ADDRESSES), (True, False)),
    of_pod(),
]  # fmt: skip


def is_through(converse: Start, objects: list[Manifest], asks: str, *, reads_pods: bool) -> bool:
    """Whether a request reaches somebody."""
    marker = read_kinds([("", "Pod")] if reads_pods else [])[1].manifest
    packed = zlib.compress(b"\n".join((marker, *(json.dumps(each).encode() for each in objects))))
    made = compiled(read_all((), None, packed), ("127.0.0.1",))
    if not made.spec.listeners:
        return False
    talk = converse(made.spec)
    talk.counts_octets, talk.expects_failures = False, True
    host = asks if "." in asks else HOST
    head = f"CONNECT {host}:443" if asks == "CONNECT" else f"POST http://{host}/a.Service/Method"
    if "3128" not in str(objects):  # a reverse proxy
        head = "POST /a.Service/Method"
    talk.client >> f"{head} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode()
    talk.settle()
    if not talk.dialer.dials:
        return False
    dial, origin = talk.dialer.dials.pop(), MemoryPeer(talk)

    def accept() -> None:
        protocol = dial.factory()
        address, port = dial.endpoints[0]
        transport = MemoryTransport(origin, protocol, (str(address), port))
        protocol.connection_made(transport)
        dial.future.set_result((transport, protocol, dial.endpoints[0]))

    talk.act(accept)
    talk.settle()
    return bool(origin.received) or asks == "CONNECT"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_a_kind_that_is_not_read_opens_nothing_or_holds_up_the_start(converse: Start, case: Case):
    found = [is_through(converse, [case.of, *case.rest], case.asks, reads_pods=True)]
    found.append(is_through(converse, case.rest, case.asks, reads_pods=case.kind != "Pod"))
    assert tuple(found) == case.is_through
    opens = found == [False, True]
    assert not opens or case.kind in HOLDS_UP_START + HOLDS_UP_ALWAYS


def test_every_kind_has_a_row():
    same = {"XBackend", "XBackendDestination", "ConfigMap", "ClusterTrustBundle"}  # as Backend, and as Secret
    assert {case.kind for case in CASES} | same == {each.kind for each in CONFIGURED} - {"ServiceAccount"}
