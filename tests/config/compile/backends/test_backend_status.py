"""Backends of one name in two groups: which one a reference means, and where that is said."""

from __future__ import annotations

from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Problem, Severity
from tests.config.compile.kit import REVERSE, compiled, rule

BACKEND = """
apiVersion: {group}
kind: {kind}
metadata: {{name: b}}
spec: {{destination: {{type: Fqdn, fqdn: {{hostname: {host}}}, ports: [{{number: 443, tls: {{mode: Simple}}}}]}}}}
"""
OURS = BACKEND.format(group="egressproxy.io/v1alpha1", kind="Backend", host="ours.example")
THEIRS = BACKEND.format(group="gateway.networking.k8s.io/v1alpha1", kind="Backend", host="theirs.example")


def route(group: str, kind: str = "Backend") -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route}}
spec:
  parentRefs: [{{name: gw}}]
  rules: [{{backendRefs: [{{group: {group}, kind: {kind}, name: b}}]}}]
"""


def found_problems(*manifests: str) -> list[Problem]:
    return all_warnings(load_text("\n---\n".join(manifests), "config.yaml"), compiled(*manifests))


def test_a_reference_means_the_backend_of_its_group_and_it_is_noted_which():
    for group, host in (("egressproxy.io", "ours.example"), ("gateway.networking.k8s.io", "theirs.example")):
        manifests = (REVERSE, route(group), OURS, THEIRS)
        (found,) = rule(compiled(*manifests)).backends
        assert found.backend is not None
        assert (found.backend.hostname, found.backend.kind) == (host, f"Backend.{group}")
        (note,) = found_problems(*manifests)
        assert (note.severity, note.field_path) == (Severity.NOTE, "spec.rules[0].backendRefs[0]")
        assert f"this is Backend.{group} default/b" in note.message


def test_the_status_of_each_says_what_means_it():
    made = compiled(REVERSE, route("egressproxy.io"), OURS, THEIRS)
    for group in ("egressproxy.io", "gateway.networking.k8s.io"):
        status = made.statuses[group, "Backend", "default", "b"]
        (accepted,) = (each for each in status["conditions"] if each["type"] == "Accepted")
        assert accepted["status"] == "True"
        assert f"references mean this one by group {group}, kind Backend" in accepted["message"]


def test_one_backend_of_a_name_is_nothing_to_speak_of():
    assert not found_problems(REVERSE, route("egressproxy.io"), OURS)
    status = compiled(REVERSE, route("egressproxy.io"), OURS).statuses["egressproxy.io", "Backend", "default", "b"]
    assert "references mean" not in str(status)


def test_a_reference_to_neither_is_not_said_to_be_one_of_them():
    found = found_problems(REVERSE, route("gateway.networking.x-k8s.io", "XBackend"), OURS, THEIRS)
    assert not [each for each in found if each.code == "SameName"]


def test_metrics_and_log_call_the_one_of_the_other_group_by_its_kind_too():
    labels = []
    for group in ("egressproxy.io", "gateway.networking.k8s.io"):
        (found,) = rule(compiled(REVERSE, route(group), OURS, THEIRS)).backends
        assert found.backend is not None
        assert found.backend.name == "default/b"
        labels.append(found.backend.label)
    assert labels == ["default/b", "default/b (Backend.gateway.networking.k8s.io)"]
    (alone,) = rule(compiled(REVERSE, route("gateway.networking.k8s.io"), THEIRS)).backends
    assert alone.backend is not None
    assert alone.backend.label == "default/b"


FILTERED = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - filters:
    - type: RequestMirror
      requestMirror: {backendRef: {group: gateway.networking.k8s.io, kind: Backend, name: b}}
    backendRefs:
    - {group: egressproxy.io, kind: Backend, name: other}
"""
OTHER = OURS.replace("name: b", "name: other").replace("spec: {dest", "spec: {parent: {name: b}, dest")
POLICY = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: p}
spec:
  targetRefs:
  - {group: gateway.networking.k8s.io, kind: Gateway, name: gw}
  - {group: gateway.networking.k8s.io, kind: Backend, name: b}
  mode: Enforce
"""


def test_references_of_filters_parents_and_policies_are_noted_too():
    noted = [each for each in found_problems(REVERSE, FILTERED, OTHER, OURS, THEIRS, POLICY) if each.code == "SameName"]
    assert {(each.object, each.field_path, each.message.partition(";")[0]) for each in noted} == {
        ("HTTPRoute default/route", "spec.rules[0].filters[0].requestMirror.backendRef",
         "this is Backend.gateway.networking.k8s.io default/b"),
        ("Backend default/other", "spec.parent", "this is Backend.egressproxy.io default/b"),
        ("EgressPolicy default/p", "spec.targetRefs[1]", "this is Backend.gateway.networking.k8s.io default/b"),
    }  # fmt: skip
