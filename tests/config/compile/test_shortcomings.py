"""What `check` and the log say of status: each thing once, at its field."""

from __future__ import annotations

import pytest

from egressproxy.config.compile import Compiled, Defaults, compile_config
from egressproxy.config.compile.shortcomings import all_findings, shortcomings
from egressproxy.config.load import load_text
from egressproxy.config.problems import Problem, Severity
from egressproxy.filters.catalog import Catalog
from egressproxy.routing.patterns import compile_pattern
from egressproxy.spec.gateway import ConfigSpec
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, policy


def found(*manifests: str) -> list[Problem]:
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    return list(shortcomings(resources, compile_config(resources, Catalog(), Defaults())))


def test_what_is_well_is_not_mentioned():
    assert found(FORWARD, policy("mode: Open")) == []


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
    made = compile_config(resources, Catalog(), Defaults(check_pattern=compile_pattern))
    (warning,) = [each for each in shortcomings(resources, made) if "(?=a)b" in each.message]
    assert warning.field_path == "spec.rules[0].matches[0].path.value"
    assert "(?=a)b" in text.splitlines()[warning.line - 1]
    assert "RE2 has no lookaround; make what is to be excepted a rule of its own" in warning.message


def judged(kind: str, status: str, message: str = "") -> list[tuple[Severity, str]]:
    """What is found of a Backend with this one condition."""
    resources = load_text(PLAIN, "config.yaml")
    (key,) = resources.by_key
    condition = {"type": kind, "status": status, "reason": "Why", "message": message}
    compiled = Compiled(ConfigSpec(()), {key: {"conditions": [condition]}})
    return [(each.severity, each.code) for each in all_findings(resources, compiled)]


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


@pytest.mark.parametrize("kind", ["Insecure", "InsecureFrontendValidationMode", "egressproxy.io/InvalidCertificate"])
def test_what_is_served_and_should_be_looked_at_is_a_warning(kind: str):
    assert judged(kind, "True") == [(Severity.WARNING, "Why")]


def test_a_setting_for_all_and_another_for_some_is_how_policies_are_written():
    assert judged("Overridden", "True") == [(Severity.NOTE, "Why")]


def test_what_the_compiler_warns_of_is_not_served_unless_it_says_otherwise():
    said = [Problem("a.yaml", 1, 1, "", "", "a"), Problem("a.yaml", 1, 1, "", "", "b", "", Severity.WARNING, "Told")]
    found = all_findings(load_text(PLAIN), Compiled(ConfigSpec(()), warnings=(*said, said[0])))
    assert [(each.message, each.severity, each.code) for each in found] == [
        ("a", Severity.UNSERVED, "NotServed"),
        ("b", Severity.WARNING, "Told"),
    ]


def test_a_reason_that_names_the_matter_is_its_code():
    two = FORWARD + "  - {name: a, port: 80, protocol: HTTP}\n  - {name: b, port: 80, protocol: TCP}\n"
    assert {each.code for each in found(two)} == {"ProtocolConflict"}
