"""What `check` and the log say of status: each thing once, at its field."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.compile.status.status_warnings import all_warnings, status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.gateway import ConfigIR
from egressproxy.routing.patterns import compile_pattern
from tests.config.compile.kit import FORWARD, PLAIN, REVERSE, ROUTE, compiled, policy, rule
from tests.support.compiling import compile_valid


def found(*manifests: str) -> list[Problem]:
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    return list(status_warnings(resources, compile_valid(resources, Catalog(), Defaults())))


def test_what_is_well_is_not_mentioned():
    assert found(FORWARD, policy("mode: Open")) == []


def test_a_gateway_class_of_ours_that_is_served_is_not_mentioned():
    spec = "spec: {controllerName: egressproxy.io/gateway-controller}"
    ours = f"apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: egressproxy}}\n{spec}"
    assert found(ours, FORWARD, policy("mode: Open")) == []


def test_a_filter_of_a_backend_that_closes_a_rule_is_placed_once():
    lost = "filters: [{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: lost}}]"
    route = ROUTE.replace("name: plain", f"name: plain, {lost}")
    where = "spec.rules[0].backendRefs[0].filters[0]"
    told = [each for each in found(REVERSE, PLAIN, route) if each.field_path == where]
    assert [each.code for each in told] == ["UnsupportedValue", "ExtensionRefNotFound"]
    assert all("backendRefs[0]" not in each.message for each in told)


def test_an_unknown_protocol_is_said_once_at_its_listener():
    (warning,) = found(FORWARD.replace("egressproxy.io/forward-proxy", "forwardproxy"))
    assert (warning.line, warning.column, warning.field_path) == (8, 5, "spec.listeners[0]")
    assert warning.message.startswith("listener forward: Accepted is False (UnsupportedProtocol): protocol forwardprox")


def test_a_taken_port_is_said_once():
    (warning,) = found(FORWARD, FORWARD.replace("{name: gw}", "{name: younger}"))
    assert warning.object == "Gateway default/younger"
    assert "port 3128 of 127.0.0.1 belongs to Gateway default/gw: give this Gateway" in warning.message


def test_a_problem_of_the_whole_gateway_is_not_repeated_by_its_listeners():
    text = FORWARD.replace("spec:", "spec:\n  addresses: [{type: Hostname, value: a.example}]")
    (warning,) = found(text)
    assert warning.field_path == ""
    assert "addresses of type Hostname" in warning.message


def test_two_listeners_that_fail_alike_are_both_named():
    second = "  - {name: second, port: 3129, protocol: forwardproxy}\n"
    text = FORWARD.replace("egressproxy.io/forward-proxy", "forwardproxy") + second
    assert [warning.field_path for warning in found(text)] == ["spec.listeners[0]", "spec.listeners[1]"]


def test_a_target_and_a_parent_are_placed_at_their_reference():
    lost = policy("mode: Open").replace("name: gw}]", "name: gw}, {group: egressproxy.io, kind: Backend, name: x}]")
    (target,) = found(FORWARD, lost)
    assert target.field_path == "spec.targetRefs[1]"
    rejected = ROUTE.replace("[{name: gw}]", "[{name: gw, sectionName: forward}, {name: gw, sectionName: none}]")
    _, parent = found(FORWARD, PLAIN, rejected)  # the first: the backend is reached in plain text
    assert parent.field_path == "spec.parentRefs[1]"


def test_an_endpoint_of_a_failover_is_placed_at_its_reference():
    refs = "".join(
        f"      - backendRef: {{group: egressproxy.io, kind: Backend, name: {name}}}\n" for name in ("plain", "none")
    )
    failover = (
        "apiVersion: egressproxy.io/v1alpha1\nkind: Backend\nmetadata: {name: both}\nspec:\n  destination:\n"
        f"    type: Failover\n    failover:\n      endpoints:\n{refs}"
    )
    first = found(failover, PLAIN)[0]
    assert (first.line, first.field_path) == (10, "spec.destination.failover.endpoints[1].backendRef")
    assert "Backend default/none does not exist" in first.message


def test_the_listeners_of_a_set_do_not_repeat_that_its_gateway_is_not_accepted():
    text = FORWARD.replace("spec:", "spec:\n  addresses: [{type: Hostname, value: a.example}]")
    text = text.replace("  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:")
    more = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""
    assert [warning.object for warning in found(text, more)] == ["Gateway default/gw", "ListenerSet default/more"]


def test_tls_that_overlaps_is_no_shortcoming_since_nobody_has_to_mend_it():
    tls = "tls: {mode: Passthrough}"
    text = FORWARD.replace("port: 3128, protocol: egressproxy.io/forward-proxy", f"port: 443, protocol: TLS, {tls}")
    assert not found(text + f"  - {{name: b, port: 443, protocol: TLS, hostname: b.example, {tls}}}\n")


def test_an_expression_that_is_refused_is_placed_where_it_stands():
    added = "  rules:\n  - matches:\n    - path: {type: RegularExpression, value: '(?=a)b'}\n"
    text = "\n---\n".join([FORWARD, ROUTE.replace("  rules:\n", added)])
    resources = load_text(text, "config.yaml")
    made = compile_valid(resources, Catalog(), Defaults(check_pattern=compile_pattern))
    (warning,) = [each for each in status_warnings(resources, made) if "(?=a)b" in each.message]
    assert warning.field_path == "spec.rules[0].matches[0].path.value"
    assert "(?=a)b" in text.splitlines()[warning.line - 1]
    assert "RE2 has no lookaround; write a rule of its own for the exception" in warning.message


def judged(kind: str, status: str, message: str = "") -> list[tuple[Severity, str]]:
    """What is found of a Backend with this one condition."""
    resources = load_text(PLAIN, "config.yaml")
    (key,) = resources.by_key
    condition = {"type": kind, "status": status, "reason": "Why", "message": message}
    compiled = Compiled(ConfigIR(()), {key: {"conditions": [condition]}})
    return [(each.severity, each.code) for each in all_warnings(resources, compiled)]


@pytest.mark.parametrize(
    "kind", ["Degraded", "Conflicted", "PartiallyInvalid", "egressproxy.io/Denied", "NeverHeardOf"]
)
def test_a_condition_that_something_is_wrong_is_not_served_as_written_unless_it_is_known_to_be(kind: str):
    assert judged(kind, "True") == [(Severity.UNSERVED, "Why")]
    assert judged(kind, "False") == []


@pytest.mark.parametrize("kind", ["Accepted", "Programmed", "ResolvedRefs"])
def test_a_condition_that_does_not_hold_is_not_served_as_written(kind: str):
    assert judged(kind, "False") == [(Severity.UNSERVED, "Why")]
    assert judged(kind, "True", "it is accepted. x is not supported yet and does nothing.") == [
        (Severity.UNSERVED, "PartlyServed")
    ]
    assert judged(kind, "True") == []


def test_a_part_that_is_not_served_is_told_without_what_is_well():
    resources = load_text(PLAIN, "config.yaml")
    (key,) = resources.by_key
    message = "the backend is valid. x is not supported yet and does nothing."
    condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": message}
    (found,) = all_warnings(resources, Compiled(ConfigIR(()), {key: {"conditions": [condition]}}))
    assert found.message == "some settings are not served: x is not supported yet and does nothing."


@pytest.mark.parametrize("kind", ["Insecure", "InsecureFrontendValidationMode", "egressproxy.io/InvalidCertificate"])
def test_what_is_served_and_should_be_looked_at_is_a_warning(kind: str):
    assert judged(kind, "True") == [(Severity.WARNING, "Why")]


def test_a_setting_for_all_and_another_for_some_is_how_policies_are_written():
    assert judged("Overridden", "True") == [(Severity.NOTE, "Why")]


def test_what_the_compiler_warns_of_is_not_served_unless_it_says_otherwise():
    said = [Problem("a.yaml", 1, 1, "", "", "a"), Problem("a.yaml", 1, 1, "", "", "b", "", Severity.WARNING, "Told")]
    found = all_warnings(load_text(PLAIN), Compiled(ConfigIR(()), warnings=(*said, said[0])))
    assert [(each.message, each.severity, each.code) for each in found] == [
        ("a", Severity.UNSERVED, "NotServed"),
        ("b", Severity.WARNING, "Told"),
    ]


def test_a_reason_that_names_the_matter_is_its_code():
    two = FORWARD + "  - {name: a, port: 80, protocol: HTTP}\n  - {name: b, port: 80, protocol: TCP}\n"
    assert {each.code for each in found(two)} == {"ProtocolConflict"}


def test_each_reference_that_leads_nowhere_is_said_at_its_place_with_what_is_near():
    refs = [
        "{group: egressproxy.io, kind: Backend, name: plian}",
        "{name: plain, port: 80}",
        "{group: gateway.networking.k8s.io, kind: Backend, name: plain}",
        "{group: egressproxy.io, kind: Backend, name: elsewhere}",
    ]
    rules = "".join(f"\n  - backendRefs:\n    - {ref}" for ref in refs)
    route = ROUTE.partition("  rules:")[0] + "  rules:" + rules
    other = PLAIN.replace("{name: plain}", "{name: elsewhere, namespace: other}")
    warnings = [each for each in found(FORWARD, PLAIN, other, route) if each.object.startswith("HTTPRoute")]
    assert [each.field_path for each in warnings] == [f"spec.rules[{index}].backendRefs[0]" for index in range(4)]
    assert [each.line - warnings[0].line for each in warnings] == [0, 2, 4, 6]
    near, kind, group, namespace = (each.message for each in warnings)
    assert near.endswith("Backend default/plian does not exist (did you mean plain?)")
    assert "Backend default/plain of group egressproxy.io is there: write kind: Backend, group: egressproxy.io" in kind
    assert "of group egressproxy.io is there: write group: egressproxy.io)" in group
    assert "(other/elsewhere is in another namespace: add namespace to the reference, and a ReferenceGrant" in namespace


def test_a_missing_secret_or_key_is_said_with_those_that_are_there():
    web = "name: forward, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: front}]}"
    gateway = FORWARD.replace("name: forward, port: 3128, protocol: egressproxy.io/forward-proxy", web)
    homes = [f"apiVersion: v1\nkind: Secret\nmetadata: {{name: front, namespace: {name}}}" for name in ("b", "a")]
    (said, *_) = found(gateway, *homes)
    assert "Secret default/front does not exist (a/front, b/front are in another namespace" in said.message
    here = "apiVersion: v1\nkind: Secret\nmetadata: {name: front}\nstringData: {cert: hush, key.pem: hush}"
    (said, *_) = found(gateway, here)
    assert "Secret default/front has no entry tls.crt (it has cert, key.pem)" in said.message
    assert "hush" not in said.message


def test_a_section_that_a_gateway_does_not_have_is_said_with_those_that_it_has():
    _, said = found(FORWARD, PLAIN, ROUTE.replace("{name: gw}", "{name: gw, sectionName: forwrad}"))
    assert "has no listener named forwrad (did you mean forward?)" in said.message
    _, said = found(FORWARD, PLAIN, ROUTE.replace("{name: gw}", "{name: gw, port: 80}"))
    assert "has no listener on port 80 (it has forward on port 3128)" in said.message


def test_what_clients_are_told_holds_no_names_of_other_objects():
    made = compiled(FORWARD, PLAIN, ROUTE.replace("name: plain}", "name: plian}"))
    (backend,) = rule(made).backends
    assert backend.error == "Backend default/plian does not exist"


STREAMS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]
"""


@pytest.mark.parametrize(
    ("manifests", "words"),
    [
        ([STREAMS, PLAIN], "only the first rule is served"),
        ([FORWARD, PLAIN, ROUTE + "    retry: {attempts: 1000}\n"], "counts as"),
        ([FORWARD, PLAIN, ROUTE + "    sessionPersistence: {sessionName: 'a b'}\n"], "is made up in its place"),
        ([FORWARD, PLAIN, ROUTE + "    sessionPersistence: {cookie: {path: 'a b'}}\n"], "/ stands in its place"),
        ([FORWARD.replace("3128, protocol: egressproxy.io/forward-proxy", "443, protocol: HTTPS"), PLAIN, ROUTE],
         "these listeners are not served: forward"),
    ],
)  # fmt: skip
def test_what_is_accepted_and_not_done_as_it_is_written_is_not_served(manifests: list[str], words: str):
    said = [each for each in found(*manifests) if words in each.message]
    assert [each.severity for each in said] == [Severity.UNSERVED]


def test_what_has_nothing_to_be_applied_to_is_served_as_it_is_written():
    (note,) = found(FORWARD.replace("spec:", "spec:\n  infrastructure: {labels: {a: b}}"))
    assert (note.severity, note.code) == (Severity.NOTE, "NothingToApply")
    assert note.message == "infrastructure has nothing to be applied to: no objects are created for a Gateway."


def test_what_a_gateway_does_not_do_is_said_beside_a_listener_that_is_not_served():
    """The condition that is about its listeners is about itself, too."""
    odd = "  - {name: odd, port: 3129, protocol: forwardproxy}\n"
    whole = FORWARD.replace("spec:", "spec:\n  defaultScope: All\n  infrastructure: {labels: {a: b}}") + odd
    gateway, listener = found(whole)
    assert (gateway.severity, gateway.field_path, listener.field_path) == (Severity.UNSERVED, "", "spec.listeners[1]")
    assert gateway.message.startswith("some settings are not served: infrastructure has nothing to be applied to")
    assert "defaultScope is not supported" in gateway.message
    assert "odd" not in gateway.message

    listener, note = found(FORWARD.replace("spec:", "spec:\n  infrastructure: {labels: {a: b}}") + odd)
    assert (note.severity, listener.field_path) == (Severity.NOTE, "spec.listeners[1]")
    assert note.message.startswith("infrastructure has nothing to be applied to")


def test_a_filter_that_is_not_supported_is_said_at_its_place():
    text = (
        ROUTE
        + """    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}
    - {type: ExtensionRef, extensionRef: {group: example.com, kind: Other, name: x}}
"""
    )
    (closed,) = found(FORWARD, PLAIN.replace("mode: None", "mode: Simple"), text)
    assert closed.field_path == "spec.rules[0].filters[1]"
    assert closed.line > text.count("\n")
    assert "filter ExtensionRef (Other x) is not supported" in closed.message


def test_what_a_backend_refers_to_is_said_at_the_reference():
    secured = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  parent: {name: gone}
  destination:
    type: Fqdn
    fqdn: {hostname: a.example}
    ports:
    - number: 443
      tls:
        mode: Simple
        caBundleRef:
        - {kind: ConfigMap, name: gone}
  extensions:
  - {name: i, type: CredentialInjector, phase: backend-request, config: {secretRef: {name: key, key: k}}}
"""
    places = {(each.field_path, each.line) for each in found(secured)}
    assert places == {
        ("spec.destination.ports[0].tls.caBundleRef[0]", 15),
        ("spec.parent", 6),
        ("spec.extensions[0].config.secretRef", 17),
    }


def test_a_policy_that_closes_listeners_is_named_at_its_field_and_they_once():
    second = "  - {name: second, port: 3129, protocol: egressproxy.io/forward-proxy}\n"
    issuer = "{issuer: a, audiences: [b], jwksRef: {kind: ConfigMap, name: gone}}"
    of_listeners, of_policy = found(f"{FORWARD}{second}---\n{policy(f'identity: {{token: {{issuers: [{issuer}]}}}}')}")
    assert of_listeners.field_path == "spec.listeners[0]"
    assert "second: some settings are not served" in of_listeners.message
    assert of_policy.field_path == "spec.identity.token.issuers[0].jwksRef"
    assert of_policy.line > of_listeners.line
    assert of_policy.message.endswith("requests here are refused: ConfigMap default/gone does not exist.")
