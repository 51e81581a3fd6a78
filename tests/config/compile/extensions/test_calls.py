"""References of extensions to backends: resolved for each place, permitted by grants, told in status."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.route import WeightedBackend
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE
from tests.support.compiling import compile_valid
from tests.support.conversation import scripted_type

OTHER = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: judge, namespace: judges}
spec:
  destination: {type: Fqdn, fqdn: {hostname: judge.example}, ports: [{number: 443, tls: {mode: Simple}}]}
"""
GRANT = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: judged, namespace: judges}
spec:
  from: [{group: egressproxy.io, kind: EgressPolicy, namespace: default}]
  to: [{group: egressproxy.io, kind: Backend}]
"""


def policy(ref: str, target: str = "{group: gateway.networking.k8s.io, kind: Gateway, name: gw}") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: judged}}
spec:
  targetRefs: [{target}]
  extensions:
  - {{name: asks, type: "test.example/Scripted:v1", phase: request-headers, config: {{use: x, calls: [{ref}]}}}}
"""


def compiled(*texts: str) -> tuple[WeightedBackend | None, dict[str, object]]:
    """The backend that the filter of the route's rule calls, and the conditions of the policy by type."""
    catalog = Catalog((scripted_type({}),))
    made = compile_valid(load_text("---".join(texts), "test.yaml"), catalog, Defaults())
    (rule,) = made.spec.listeners[0].http_routes[0].rules
    (spec,) = rule.extensions
    callee = spec.calls[0][1]
    assert isinstance(callee, WeightedBackend)
    status = next(status for key, status in made.statuses.items() if key[1] == "EgressPolicy")
    conditions = {each["type"]: each for each in status["ancestors"][0]["conditions"]}
    return callee, conditions


JUDGE = "{group: egressproxy.io, kind: Backend, name: judge, namespace: judges}"


def test_a_filter_of_a_policy_calls_a_backend_of_another_namespace_with_a_grant():
    callee, conditions = compiled(REVERSE, PLAIN, ROUTE, OTHER, policy(JUDGE), GRANT)
    assert callee is not None
    assert callee.backend is not None
    assert callee.backend.label == "judges/judge"
    assert conditions["Accepted"]["status"] == "True"


@pytest.mark.parametrize(
    ("ref", "reason", "said"),
    [
        (JUDGE, "RefNotPermitted", "add a ReferenceGrant in namespace judges"),
        ("{group: egressproxy.io, kind: Backend, name: nobody}", "BackendNotFound", "does not exist"),
    ],
)
def test_status_says_what_a_filter_cannot_call(ref: str, reason: str, said: str):
    callee, conditions = compiled(REVERSE, PLAIN, ROUTE, OTHER, policy(ref))
    assert callee is not None
    assert callee.backend is None
    assert said in callee.error
    resolved = conditions["ResolvedRefs"]
    assert (resolved["status"], resolved["reason"]) == ("False", reason)
    assert "spec.extensions[0].config.calls[0]" in resolved["message"]


def test_the_policies_of_the_place_hold_for_the_call():
    said = policy(JUDGE).replace("spec:\n", "spec:\n  addresses: {allow: [{cidrs: [10.0.0.0/8]}]}\n", 1)
    callee, _ = compiled(REVERSE, PLAIN, ROUTE, OTHER, said, GRANT)
    assert callee is not None
    assert len(callee.policy.addresses.allow) == 1


def test_status_names_a_backend_that_a_filter_chooses_and_that_is_not_there():
    said = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: models}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  extensions:
  - name: models
    type: egressproxy.io/ModelPolicy:v1
    config: {routes: [{models: ["gpt-*"], backend: plain, exclude: [plian]}]}
"""
    made = compile_valid(load_text("---".join((REVERSE, PLAIN, ROUTE, said)), "test.yaml"), Catalog(), Defaults())
    status = next(status for key, status in made.statuses.items() if key[1] == "EgressPolicy")
    (resolved,) = (each for each in status["ancestors"][0]["conditions"] if each["type"] == "ResolvedRefs")
    assert (resolved["status"], resolved["reason"]) == ("False", "BackendNotFound")
    assert "spec.extensions[0].config.routes[0].exclude[0]: no backend default/plian exists" in resolved["message"]
    assert "routes[0].backend:" not in resolved["message"]


def test_status_says_that_a_credential_cannot_be_fetched_from_the_backend_that_needs_it():
    endpoint = "{backendRef: {group: egressproxy.io, kind: Backend, name: plain}}"
    config = f"{{oauth2: {{tokenEndpoint: {endpoint}, authentication: TokenFile, tokenFile: /t, clientId: c}}}}"
    own = PLAIN + f"  extensions: [{{name: key, type: 'egressproxy.io/CredentialInjector:v1', config: {config}}}]\n"
    made = compile_valid(load_text("---".join((REVERSE, own, ROUTE)), "test.yaml"), Catalog(), Defaults())
    status = next(status for key, status in made.statuses.items() if key[1] == "Backend")
    (resolved,) = (each for each in status["conditions"] if each["type"] == "ResolvedRefs")
    assert (resolved["status"], resolved["reason"]) == ("False", "UnsupportedValue")
    assert "config.oauth2.tokenEndpoint.backendRef: the filter cannot ask its own Backend" in resolved["message"]
