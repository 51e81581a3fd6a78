"""What a configuration refers to: `ResourceSet.wanted`, of kinds of which a cluster has more than is needed."""

from __future__ import annotations

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.model.published_object import Key
from tests.config.compile.kit import FORWARD, REVERSE
from tests.support.compiling import compile_valid

BACKEND = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: api, namespace: team}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: a.example}
    ports: [{number: 443, tls: {mode: Simple, caBundleRef: [{kind: ConfigMap, name: roots}]}}]
  extensions:
  - name: key
    type: egressproxy.io/CredentialInjector:v1
    phase: backend-request
    config: {secretRef: {name: key}}
"""

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - backendRefs: [{name: web, port: 80}, {name: elsewhere, namespace: other, port: 80}]
"""

BY_ADDRESS = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: who}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  identity: {address: {pods: true}}
"""


def wanted(*manifests: str) -> set[Key]:
    resources = load_text("\n---\n".join(manifests))
    compile_valid(resources, Catalog(), Defaults(("127.0.0.1",)))
    return resources.wanted


def test_objects_are_wanted_whether_they_are_there_or_not():
    assert wanted(FORWARD, BACKEND) == {("", "Secret", "team", "key"), ("", "ConfigMap", "team", "roots")}


def test_what_no_grant_permits_is_not_wanted():
    assert wanted(REVERSE, ROUTE) == {("", "Service", "default", "web")}


def test_pods_are_wanted_where_addresses_say_who_asks():
    assert wanted(FORWARD) == set()
    assert wanted(FORWARD, BY_ADDRESS) == {("", "Pod", "", "")}


def test_secrets_that_are_named_as_parents_and_targets_are_not_wanted():
    secret = '{group: "", kind: Secret, namespace: infra, name: key}'
    by_route = ROUTE.replace("[{name: gw}]", f"[{secret}]")
    by_policy = BY_ADDRESS.replace("targetRefs: [", f"targetRefs: [{secret}, ").replace("pods: true", "pods: false")
    assert ("", "Secret", "infra", "key") not in wanted(REVERSE, by_route, by_policy)
