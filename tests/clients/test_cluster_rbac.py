"""What `egressproxy rbac` prints, on a real API server: it permits what is listed, and nothing beyond."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.kubernetes.access import Needs, needed
from egressproxy.model.published_object import Key
from tests.support.real_api_server import RealApiServer, real_api_server

ACCOUNT = "system:serviceaccount:egressproxy-system:egressproxy"
CONFIG = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: team}
spec:
  gatewayClassName: egressproxy
  listeners:
  - name: https
    port: 8443
    protocol: HTTPS
    tls: {certificateRefs: [{name: cert}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: team}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: models, namespace: team}
spec: {type: EndpointSelector, port: {number: 80}, endpointSelector: {matchLabels: {app: models}}}
"""
WANTED: set[Key] = {
    ("", "Secret", "team", "cert"), ("", "Service", "team", "web"), ("", "Pod", "team", "app=models"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    folder = tmp_path_factory.mktemp("apiserver")
    with real_api_server(folder) as made:
        for namespace in ("egressproxy-system", "team", "other"):
            made.kubectl("create", "namespace", namespace)
        made.kubectl("create", "serviceaccount", "egressproxy", "-n", "egressproxy-system")
        (folder / "config.yaml").write_text(CONFIG)
        printed = CliRunner().invoke(main, ["rbac", "--config", str(folder / "config.yaml")])
        assert printed.exit_code == 0, printed.output
        told = made.kubectl("create", "-f", "-", text=printed.output)
        assert "error" not in told.lower(), told
        yield made


def can(server: RealApiServer, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
    """As `kubectl auth can-i --as`."""
    plural, _, part = resource.partition("/")
    asked = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": part,
        "namespace": namespace,
        "name": name,
    }
    spec = {"user": ACCOUNT, "groups": ["system:serviceaccounts", "system:authenticated"], "resourceAttributes": asked}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    status, review = server.request(
        "POST", path, {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    )
    assert status == 201, review
    return bool(review["status"]["allowed"])


def test_all_that_is_listed_is_permitted(server: RealApiServer):
    asked = 0
    for namespace, rules in needed(Needs(referenced=WANTED)).items():
        for rule in rules:
            for resource in rule.resources:
                for verb in rule.verbs:
                    for name in rule.names or ("",):
                        assert can(server, verb, rule.group, resource, namespace or "any", name), (verb, resource)
                        asked += 1
    assert asked > 80
    account = f"--as={ACCOUNT}"
    assert server.kubectl("auth", "can-i", "get", "secret/cert", "-n", "team", account).strip() == "yes"
    assert server.kubectl("auth", "can-i", "list", "secrets", "-A", account).strip() == "no"


@pytest.mark.parametrize(
    ("verb", "group", "resource", "namespace", "name"),
    [
        ("list", "", "secrets", "", ""),
        ("list", "", "secrets", "team", ""),
        ("get", "", "secrets", "team", "other"),
        ("get", "", "secrets", "other", "cert"),
        ("list", "", "configmaps", "team", ""),
        ("create", "", "configmaps", "egressproxy-system", ""),
        ("patch", "", "configmaps", "egressproxy-system", "other"),
        ("list", "", "pods", "", ""),
        ("list", "", "pods", "other", ""),
        ("get", "", "pods/log", "team", "x"),
        ("list", "", "serviceaccounts", "", ""),
        ("list", "", "namespaces", "", ""),
        ("get", "coordination.k8s.io", "leases", "other", "x"),
        ("delete", "coordination.k8s.io", "leases", "default", "egressproxy-egressproxy"),
        ("update", "coordination.k8s.io", "leases", "kube-system", "kube-scheduler"),
        ("update", "gateway.networking.k8s.io", "gateways", "team", "gw"),
        ("update", "gateway.networking.k8s.io", "gateways/status", "team", "gw"),
        ("patch", "egressproxy.io", "egresspolicies", "team", "x"),
        ("list", "apiextensions.k8s.io", "customresourcedefinitions", "", ""),
        ("create", "authentication.k8s.io", "tokenreviews", "", ""),
        ("list", "events.k8s.io", "events", "", ""),
    ],
)
def test_nothing_beyond_is_permitted(
    server: RealApiServer, verb: str, group: str, resource: str, namespace: str, name: str
):
    assert not can(server, verb, group, resource, namespace, name)


def test_the_service_account_itself_reads_and_writes_so(server: RealApiServer):
    """With a token of its own: lists by name, the catalogue by server-side apply, a Lease."""
    token = server.token_of("egressproxy-system", "egressproxy")
    secrets = "/api/v1/namespaces/team/secrets"
    assert server.request("GET", f"{secrets}?fieldSelector=metadata.name=cert", token=token)[0] == 200
    status, refused = server.request("GET", secrets, token=token)
    assert status == 403
    assert "cannot list resource" in refused["message"]
    catalogue = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "egressproxy-filter-catalog"},
        "data": {"a": "b"},
    }
    place = "/api/v1/namespaces/egressproxy-system/configmaps"
    apply = "application/apply-patch+yaml"
    query = "egressproxy-filter-catalog?fieldManager=egressproxy&force=true"
    assert server.request("PATCH", f"{place}/{query}", catalogue, apply, token)[0] == 201
    assert server.request("PATCH", f"{place}/{query}", catalogue, apply, token)[0] == 200
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "egressproxy-egressproxy"},
        "spec": {"holderIdentity": "a"},
    }
    path = f"{leases}/egressproxy-egressproxy"
    status, made = server.request("PATCH", f"{path}?fieldManager=a", lease, apply, token=token)
    assert status == 201
    second = {**lease, "spec": {"holderIdentity": "b"}}
    assert server.request("PATCH", f"{path}?fieldManager=b", second, apply, token=token)[0] == 409
    assert server.request("PUT", path, made, token=token)[0] == 200
    everywhere = "/apis/coordination.k8s.io/v1/leases"
    named = f"{everywhere}?fieldSelector=metadata.name%3Degressproxy-egressproxy"
    assert len(server.request("GET", named, token=token)[1]["items"]) == 1
    assert server.request("GET", everywhere, token=token)[0] == 403
    event = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "x.1", "namespace": "team"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "egressproxy.io/gateway-controller",
        "reportingInstance": "x", "action": "Load", "reason": "Accepted", "type": "Normal",
        "regarding": {"kind": "HTTPRoute", "namespace": "team", "name": "route"},
    }  # fmt: skip
    assert server.request("POST", "/apis/events.k8s.io/v1/namespaces/team/events", event, token=token)[0] == 201
