"""What gateways write into an API server's objects, beside what other controllers have written there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.config.compile.status.supported_features import ROUTE_FEATURES
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, X = "gateway.networking.k8s.io", "gateway.networking.x-k8s.io"
PROTOTYPE = "ainetworking.prototype.x-k8s.io"
OURS, OTHER = "egressproxy.io/gateway-controller", "example.com/other"
APPLY = "application/apply-patch+yaml"
#: A writer has looked again by then at what is written, and at the Leases of others.
LOOKED_S = 7.0
WHEN = "2026-01-01T00:00:00Z"

ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT = {"type": "string"}
CONDITIONS = {
    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object", "required": ["type"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), TEXT),
            "observedGeneration": {"type": "integer"},
        },
    },
}  # fmt: skip


def a_list(kind: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "array", **kind, "items": {"type": "object", "properties": {"conditions": CONDITIONS, **fields}}}


ATOMIC = {"x-kubernetes-list-type": "atomic"}
BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
REFERENCE = {"type": "object", "properties": dict.fromkeys(("group", "kind", "namespace", "name", "sectionName"), TEXT)}


def of_references(name: str) -> dict[str, Any]:
    return a_list(ATOMIC, controllerName=TEXT, **{name: REFERENCE})


CONTROLLERS = a_list(BY_NAME, name=TEXT)
CONTROLLERS["items"]["required"] = ["name"]
LISTENERS = a_list(
    BY_NAME, name=TEXT, attachedRoutes={"type": "integer"}, supportedKinds={"type": "array", "items": ANY}
)
LISTENERS["items"]["required"] = ["name"]
FEATURES = {
    "type": "array", "maxItems": 64, **BY_NAME,
    "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
}  # fmt: skip
#: Of the kinds of others, as far as a gateway writes into them: version and fields of the status.
KINDS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    (GATEWAY, "GatewayClass"): ("v1", {"conditions": CONDITIONS, "supportedFeatures": FEATURES}),
    (GATEWAY, "Gateway"): (
        "v1",
        {
            "conditions": CONDITIONS, "listeners": LISTENERS, "attachedListenerSets": {"type": "integer"},
            "addresses": {"type": "array", **ATOMIC, "items": ANY},
        },
    ),
    (GATEWAY, "HTTPRoute"): ("v1", {"parents": of_references("parentRef")}),
    (X, "XBackend"): ("v1alpha1", {"ancestors": of_references("ancestorRef")}),
    (GATEWAY, "Backend"): ("v1alpha1", {"parents": of_references("parentRef")}),  # as XBackend had it before
    (PROTOTYPE, "Backend"): ("v0alpha0", {"controllers": CONTROLLERS}),
}  # fmt: skip


def plural(kind: str) -> str:
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def definition(group: str, kind: str, version: str, fields: dict[str, Any]) -> dict[str, Any]:
    served = {
        "name": version, "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {
                "type": "object", "properties": {"spec": ANY, "status": {"type": "object", "properties": fields}},
            }
        },
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group, "names": {"kind": kind, "plural": plural(kind)}, "versions": [served],
            "scope": "Cluster" if kind == "GatewayClass" else "Namespaced",
        },
    }  # fmt: skip


def path_of(group: str, kind: str, namespace: str = "team") -> str:
    place = "" if kind == "GatewayClass" else f"/namespaces/{namespace}"
    return f"/apis/{group}/{KINDS[group, kind][0]}{place}/{plural(kind)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_api_server(tmp_path_factory.mktemp("apiserver")) as made:
        for namespace in ("team", "other"):
            made.kubectl("create", "namespace", namespace)
        definitions = yaml.safe_dump_all([definition(*name, *what) for name, what in KINDS.items()])
        told = made.kubectl("create", "--validate=false", "-f", "-", text=definitions)
        told += made.kubectl("create", "--validate=false", "-f", str(ROOT / "deploy/crds"))
        assert "error" not in told.lower(), told
        paths = [path_of(*name) for name in KINDS]
        wait_until(lambda: all(made.request("GET", path)[0] == 200 for path in paths), "a kind is not served")
        yield made


def put(server: RealApiServer, value: dict[str, Any], namespace: str = "team") -> str:
    """Apply an object as its owner; returns its path."""
    metadata = {name: text for name, text in value["metadata"].items() if name != "namespace"}
    value = {**value, "metadata": metadata}
    group = value["apiVersion"].rpartition("/")[0]
    path = f"{path_of(group, value['kind'], namespace)}/{value['metadata']['name']}"
    status, told = server.request("PATCH", f"{path}?fieldManager=owner&force=true", value, APPLY)
    assert status in (200, 201), told
    return path


def conditions_of(entry: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in entry.get("conditions", ())}


class Sourced(GatewayProcess):
    """A gateway whose configuration is the API server's."""

    def __init__(self, folder: Path, server: RealApiServer, *arguments: str, namespace: str = "team") -> None:
        folder.mkdir(exist_ok=True)
        options = ("--source", "kubernetes", "--kubeconfig", str(server.kubeconfig), *arguments)
        super().__init__(folder, None, arguments=options, environment={"POD_NAMESPACE": namespace})


def backend(group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{group}/{KINDS[group, kind][0]}", "kind": kind, "metadata": {"name": "b"}, "spec": spec}


def test_backends_have_our_entry_beside_those_of_others(server: RealApiServer, tmp_path: Path):
    destination = {"type": "Fqdn", "fqdn": {"hostname": "a.example"}, "ports": [{"number": 443, "protocol": "HTTP"}]}
    external = {
        "type": "ExternalHostname", "externalHostname": {"hostname": "a.example"}, "port": {"number": 443},
        "tls": {
            "mode": "ServerOnly", "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"},
        },
    }  # fmt: skip
    forms = [
        (backend(X, "XBackend", external), "ancestors", "controllerName"),
        (backend(PROTOTYPE, "Backend", {"destination": destination}), "controllers", "name"),
        (backend(GATEWAY, "Backend", external), "parents", "controllerName"),
    ]
    put(server, m.gateway(m.forward_listener(free_port())))
    said = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "yes", "lastTransitionTime": WHEN}
    paths = []
    for value, section, owner in forms:
        path = put(server, value)
        paths.append((path, section, owner))
        reference = {"ancestors": "ancestorRef", "parents": "parentRef"}.get(section)
        entry = {owner: OTHER, "conditions": [said], **({reference: {"name": "gw"}} if reference else {})}
        written = {**{name: value[name] for name in ("apiVersion", "kind", "metadata")}, "status": {section: [entry]}}
        status, told = server.request("PATCH", f"{path}/status?fieldManager=other", written, APPLY)
        assert status == 200, str(told)
        group, kind = value["apiVersion"].rpartition("/")[0], value["kind"]
        ref = {"group": group, "kind": kind, "name": "b"}
        put(server, m.http_route(section, {"backendRefs": [ref]}, hostnames=[f"{section}.test"]))

    def entries(path: str, section: str, owner: str) -> dict[str, dict[str, Any]]:
        found = server.request("GET", path)[1].get("status", {}).get(section, ())
        return {each[owner]: each for each in found}

    with Sourced(tmp_path / "one", server):
        for path, section, owner in paths:
            wait_until(lambda: OURS in entries(path, section, owner), f"no entry of ours in {path}")  # noqa: B023
            found = entries(path, section, owner)
            assert conditions_of(found[OURS]) == {
                "Accepted": ("True", "Accepted"),
                "ResolvedRefs": ("True", "ResolvedRefs"),
            }
            assert conditions_of(found[OTHER]) == {"Accepted": ("True", "Accepted")}
            assert found[OTHER]["conditions"][0]["lastTransitionTime"] == WHEN
        # What another controller takes away of its own goes, and ours stays.
        path, section, owner = paths[1]
        gone = {**{name: forms[1][0][name] for name in ("apiVersion", "kind", "metadata")}, "status": {section: []}}
        assert server.request("PATCH", f"{path}/status?fieldManager=other", gone, APPLY)[0] == 200
        assert entries(path, section, owner).keys() == {OURS}
        # Without a route the Gateway is no ancestor any more.
        server.request("DELETE", f"{path_of(GATEWAY, 'HTTPRoute')}/ancestors")
        path, section, owner = paths[0]
        wait_until(lambda: entries(path, section, owner).keys() == {OTHER}, "our entry is still there")


def of_class(server: RealApiServer, **spec: Any) -> str:
    """The GatewayClass, applied; returns its path."""
    value = {
        "apiVersion": f"{GATEWAY}/v1", "kind": "GatewayClass", "metadata": {"name": "egressproxy"},
        "spec": {"controllerName": OURS, **spec},
    }  # fmt: skip
    return put(server, value)


def said(server: RealApiServer, path: str, kind: str = "Accepted") -> tuple[str, str, str]:
    """Status, reason and message of a condition of an object, empty where it has none."""
    conditions = server.request("GET", path)[1].get("status", {}).get("conditions", ())
    found = next((each for each in conditions if each["type"] == kind), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def addresses(server: RealApiServer, path: str) -> list[str]:
    return [each["value"] for each in server.request("GET", path)[1].get("status", {}).get("addresses", ())]


def writes(server: RealApiServer, path: str) -> str:
    version: str = server.request("GET", path)[1]["metadata"]["resourceVersion"]
    return version


def gateway(port: int, name: str = "gw") -> dict[str, Any]:
    """One that binds what its class or its process says."""
    made = m.gateway(m.forward_listener(port), name=name)
    del made["spec"]["addresses"]
    return made


def test_a_class_has_its_features_and_its_parameters_say_what_its_gateways_bind(server: RealApiServer, tmp_path: Path):
    path = of_class(server)
    shared = put(server, gateway(free_port()))
    maps = "/api/v1/namespaces/team/configmaps"
    parameters = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "parameters"}}
    ref = {"group": "", "kind": "ConfigMap", "namespace": "team", "name": "parameters"}
    with Sourced(tmp_path / "one", server) as process:
        wait_until(lambda: said(server, path)[0] == "True", "the class is not accepted")
        features = [each["name"] for each in server.request("GET", path)[1]["status"]["supportedFeatures"]]
        assert features == sorted(ROUTE_FEATURES)
        assert addresses(server, shared) == ["127.0.0.1"]
        of_class(server, parametersRef=ref)
        wait_until(lambda: said(server, path)[:2] == ("False", "InvalidParameters"), "the class is accepted still")
        assert "ConfigMap team/parameters does not exist" in said(server, path)[2]
        wait_until(lambda: said(server, shared)[1] == "InvalidParameters", "the Gateway is accepted still")
        assert process.metric("egress_config_generation") > 1
        assert server.request("POST", maps, {**parameters, "data": {"addresses": "127.0.0.7"}})[0] == 201
        wait_until(lambda: addresses(server, shared) == ["127.0.0.7"], "the address of the class is not bound")
        assert said(server, path)[0] == "True"
        server.request("PUT", f"{maps}/parameters", {**parameters, "data": {"adresses": "127.0.0.7"}})
        wait_until(lambda: "unknown entry adresses" in said(server, path)[2], "the class is accepted still")
    server.request("DELETE", path)
    server.request("DELETE", shared)


def test_of_two_installations_in_several_namespaces_one_writes(server: RealApiServer, tmp_path: Path):
    """They say different things of one Gateway, and each would write its own again and again."""
    path = put(server, gateway(free_port()))
    bind = "--bind"
    with Sourced(tmp_path / "one", server, bind, "127.0.0.1", namespace="team"):
        wait_until(lambda: addresses(server, path) == ["127.0.0.1"], "no status is written")
        with Sourced(tmp_path / "two", server, bind, "127.0.0.2", namespace="other") as two:
            written = writes(server, path)
            time.sleep(LOOKED_S)
            assert writes(server, path) == written
            assert addresses(server, path) == ["127.0.0.1"]
            assert "status is written by this gateway" not in two.stderr
            # One that reads this namespace alone writes here, and the other one leaves it alone.
            server.request("DELETE", path)
            path = put(server, gateway(free_port()))
            some = ("--watch-namespace", "team", bind, "127.0.0.3")
            with Sourced(tmp_path / "three", server, *some, namespace="team") as three:
                wait_until(lambda: "(Lease team/egressproxy-egressproxy)" in three.stderr, "it has no Lease")
                wait_until(lambda: addresses(server, path) == ["127.0.0.3"], "it does not write")
                time.sleep(LOOKED_S)  # until the other one has seen the Lease
                written = writes(server, path)
                time.sleep(LOOKED_S)
                assert writes(server, path) == written
            wait_until(lambda: addresses(server, path) == ["127.0.0.1"], "nobody writes again")
    server.request("DELETE", path)


def test_gateways_of_namespaces_that_may_have_none_are_told_why(server: RealApiServer, tmp_path: Path):
    ports = free_port(), free_port()
    taken, other = put(server, gateway(ports[0])), put(server, gateway(ports[1]), "other")
    with Sourced(tmp_path / "one", server, "--gateway-namespace", "team"):
        wait_until(lambda: said(server, taken)[0] == "True", "the Gateway is not accepted")
        wait_until(lambda: said(server, other)[:2] == ("False", "NotAllowed"), "its status says nothing")
        assert "--gateway-namespace permits team" in said(server, other)[2]
        with socket.create_connection(("127.0.0.1", ports[0]), WAIT_S):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[1]), WAIT_S)
    server.request("DELETE", taken)
    server.request("DELETE", other)


def test_an_x_backend_leads_to_the_pods_with_its_labels_as_they_become_ready(server: RealApiServer, tmp_path: Path):
    """Their containers do not exist: what is asked is which address a request is for, or that there is none."""
    port = free_port()
    pods = "/api/v1/namespaces/team/pods"
    spec = {"type": "EndpointSelector", "port": {"number": 9}, "endpointSelector": {"matchLabels": {"app": "selected"}}}
    selecting = backend(X, "XBackend", spec)
    selecting["metadata"]["name"] = "selecting"
    route = m.http_route("selecting", {"backendRefs": [{"group": X, "kind": "XBackend", "name": "selecting"}]})
    route["spec"]["parentRefs"] = [{"name": "pods"}]

    def put_pod(name: str, app: str, last: int, ready: str = "True") -> None:
        made = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        }  # fmt: skip
        status, told = server.request("POST", pods, made)
        assert status == 201, told
        address = f"127.0.0.{last}"
        conditions = [{"type": "Ready", "status": ready}]
        value = {
            "status": {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": conditions}
        }
        status, told = server.request("PATCH", f"{pods}/{name}/status", value, "application/merge-patch+json")
        assert status == 200, told

    def set_ready(name: str, ready: str) -> None:
        value = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
        status, told = server.request("PATCH", f"{pods}/{name}/status", value, "application/strategic-merge-patch+json")
        assert status == 200, told

    def answer() -> str:
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
            return str(json.loads(b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")[2])["error"])

    put_pod("one", "selected", 31)
    put_pod("two", "selected", 32, ready="False")
    put_pod("other", "other", 33)
    put(server, m.gateway(m.http_listener(port), name="pods"))
    put(server, route)
    path = put(server, selecting)
    with Sourced(tmp_path / "one", server) as process:
        wait_until(lambda: "127.0.0.31" in answer() or "upstream_refused" in answer(), "the Pod is not asked")
        generation = process.metric("egress_config_generation")
        set_ready("one", "False")
        wait_until(lambda: "no_endpoint" in answer(), "a Pod that is not ready is asked")
        set_ready("two", "True")
        wait_until(lambda: "upstream_refused" in answer(), "the other Pod is not asked")
        assert process.metric("egress_config_generation") == generation, "it needs no reload"
        wait_until(lambda: "status" in server.request("GET", path)[1], "the XBackend has no status")
        found = server.request("GET", path)[1]["status"]["ancestors"]
        assert [each["ancestorRef"]["name"] for each in found] == ["pods"]
        assert conditions_of(found[0])["Accepted"] == ("True", "Accepted")
        shown = json.loads(process.admin(path)[1])["status"]["ancestors"]
        assert [each["ancestorRef"]["name"] for each in shown] == ["pods"]
        server.request("DELETE", f"{pods}/two?gracePeriodSeconds=0")
        wait_until(lambda: "no_endpoint" in answer(), "a Pod that is gone is asked")


def test_a_policy_of_a_kind_that_nobody_reads_closes_its_target_until_it_is_gone(server: RealApiServer, tmp_path: Path):
    port, group = free_port(), "limits.test.x-k8s.io"
    made = definition(group, "XLimitPolicy", "v1alpha1", {})
    made["metadata"]["name"] = f"xlimitpolicies.{group}"
    made["spec"]["names"]["plural"] = "xlimitpolicies"
    told = server.kubectl("create", "--validate=false", "-f", "-", text=yaml.safe_dump(made))
    assert "error" not in told.lower(), told
    policies = f"/apis/{group}/v1alpha1/namespaces/team/xlimitpolicies"
    wait_until(lambda: server.request("GET", policies)[0] == 200, "the kind is not served")
    ref = {"group": GATEWAY, "kind": "HTTPRoute", "name": "limited"}
    policy = {
        "apiVersion": f"{group}/v1alpha1", "kind": "XLimitPolicy", "metadata": {"name": "limit"},
        "spec": {"targetRefs": [ref]},
    }  # fmt: skip
    assert server.request("POST", policies, policy)[0] == 201
    put(server, m.gateway(m.http_listener(port), name="limited"))
    route = m.http_route("limited", {"backendRefs": [{"name": "missing", "port": 80}]})
    route["spec"] |= {"parentRefs": [{"name": "limited"}]}
    put(server, route)

    def reason() -> str:
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")[2]
        return str(json.loads(answer)["error"]["reason"])

    with Sourced(tmp_path / "one", server):
        assert reason() == "unknown_extension"
        server.request("DELETE", f"{policies}/limit")
        wait_until(lambda: reason() == "backend_invalid", "the target is closed still")


def test_a_policy_on_trial_hears_of_the_requests_of_every_gateway_until_it_is_promoted(
    server: RealApiServer, tmp_path: Path
):
    """The second gateway writes no status, and the flip is among its requests alone."""
    port, policies = free_port(), "/apis/egressproxy.io/v1alpha1/namespaces/team/egresspolicies"
    shared = put(server, gateway(port, "tried"))

    def policy(name: str, *hosts: str, **spec: Any) -> dict[str, Any]:
        target = {"group": GATEWAY, "kind": "Gateway", "name": "tried"}
        spec |= {"targetRefs": [target], "destinations": {"allow": [{"hostnames": [*hosts]}]}}
        made = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": name}}
        return {**made, "spec": spec}

    def reason(address: str) -> str:
        with socket.create_connection((address, port), WAIT_S) as sock:
            sock.sendall(b"GET http://a.invalid/ HTTP/1.1\r\nHost: a.invalid\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")[2]
        return str(json.loads(answer)["error"]["reason"])

    def trial() -> dict[str, Any]:
        found: dict[str, Any] = server.request("GET", f"{policies}/next")[1].get("status", {}).get("trial", {})
        return found

    tried = policy("next", "b.invalid", mode="Report", replaces={"name": "before", "quietFor": "1s"})
    for each in (policy("before", "a.invalid", "b.invalid"), tried):
        assert server.request("POST", policies, each)[0] == 201
    with Sourced(tmp_path / "one", server, "--bind", "127.0.0.1"):
        wait_until(lambda: addresses(server, shared) == ["127.0.0.1"], "no status is written")
        wait_until(lambda: trial().get("replaces") == "team/before", "there is no trial")
        with Sourced(tmp_path / "two", server, "--bind", "127.0.0.2") as two:
            assert reason("127.0.0.2").startswith("dns_")  # it is allowed, and does not exist
            wait_until(lambda: trial().get("lastRequest") == "GET a.invalid:80 by -/-: deny", "no flip is told")
            assert (trial()["decisions"], trial()["replaces"]) == (0, "team/before")  # of the first one
            assert "status is written by this gateway" not in two.stderr
            promoted = {"spec": {"mode": None, "replaces": None}}
            merge = "application/merge-patch+json"
            assert server.request("PATCH", f"{policies}/next", promoted, merge)[0] == 200
            assert server.request("DELETE", f"{policies}/before")[0] == 200
            for address in ("127.0.0.1", "127.0.0.2"):
                wait_until(lambda: reason(address) == "destination_not_allowed", "it is not in force")  # noqa: B023
            wait_until(lambda: not trial(), "the trial is in status still")
            connection = HTTPConnection("127.0.0.1", two.admin_port, timeout=WAIT_S)
            connection.request("DELETE", f"{policies}/next", headers={"Connection": "close"})
            with connection.getresponse() as answer:
                assert (answer.status, b"write to that API server" in answer.read()) == (405, True)
    server.request("DELETE", f"{policies}/next")
    server.request("DELETE", shared)
