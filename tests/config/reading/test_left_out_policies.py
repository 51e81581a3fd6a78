"""What stands for policies of kinds that are not read, and what is told of them."""

from __future__ import annotations

import pytest

from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import Severity

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a}
spec: {rules: [{backendRefs: [{name: a, port: 80}]}]}
"""
POLICY = """
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XLimitPolicy
metadata: {name: limit}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: a, sectionName: first}]
"""


def test_it_is_no_object_and_closes_its_targets():
    loaded = load_text(f"{ROUTE}---\n{POLICY}", "file.yaml")
    assert [each.kind for each in loaded.objects] == ["HTTPRoute"]
    (made,) = loaded.left_out
    assert (str(made), made.key) == (
        "XLimitPolicy default/limit", ("agentic.networking.x-k8s.io", "XLimitPolicy", "default", "limit"),
    )  # fmt: skip
    (ref,) = made.spec.target_refs
    assert (ref.kind, ref.name, ref.section_name) == ("HTTPRoute", "a", "first")
    (told,) = loaded.warnings
    assert (told.object, told.severity, told.code) == (
        "XLimitPolicy default/limit", Severity.UNSERVED, "KindLeftOut",
    )  # fmt: skip
    assert told.message == "it is left out, and its targets are closed"
    assert told.remedy == "this kind is not read; remove the object to open them"


def test_it_closes_in_its_own_words():
    (made,) = load_text(f"{ROUTE}---\n{POLICY}").left_out
    assert made.spec.destinations is None  # a 403 by its deny would name an EgressPolicy, which is not there
    assert {each.name for each in made.spec.extensions} == {"XLimitPolicy default/limit"}


REF = "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: b}"


@pytest.mark.parametrize(
    ("written", "targets"),
    [
        ("targetSelectors: [{kind: HTTPRoute, matchLabels: {a: b}}]", ["a"]),  # those of the namespace
        ('targetRefs: [{group: "", kind: Namespace, name: default}]', ["a"]),
        (f"targetRefs: null\n  targetRef: {REF}", ["b"]),
        (f"targetRefs: [{REF.replace('name: b', 'name: c')}]\n  targetRef: {REF}", ["c", "b"]),
        ("targetRefs: null\n  targetSelectors: []", None),
    ],
)
def test_every_way_to_name_targets_closes_them(written: str, targets: list[str] | None):
    head = POLICY.partition("  targetRefs")[0]
    loaded = load_text(f"{ROUTE}---\n{head}  {written}\n")
    found = [[ref.name for ref in each.spec.target_refs] for each in loaded.left_out]
    assert found == ([] if targets is None else [targets])


@pytest.mark.parametrize(
    ("metadata", "named"),
    [("{}", "default/unnamed"), ("[a]", "default/unnamed"), ("{name: A B, namespace: 3}", "default/A B")],
)
def test_metadata_that_make_no_sense_take_nothing_else_with_them(metadata: str, named: str):
    loaded = load_text(f"{ROUTE}---\n{POLICY.replace('{name: limit}', metadata)}")
    (made,) = loaded.left_out
    assert str(made) == f"XLimitPolicy {named}"


@pytest.mark.parametrize(
    ("api_version", "kind", "remedy"),
    [
        ("gateway.networking.x-k8s.io/v1alpha1", "XBackends", "did you mean XBackend?"),
        ("gateway.networking.x-k8s.io/v1beta7", "XBackend", "use gateway.networking.x-k8s.io/v1alpha1"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XBackendTrafficPolicies", "this kind is unknown here"),
        ("gateway.network.x-k8s.io/v1alpha1", "XBackend", "use gateway.networking.x-k8s.io/v1alpha1"),
        ("ainetworking.prototype.x-k8s.io/v0alpha0", "MultiStageRoute", "this kind is unknown here"),
        ("x-k8s.io/v1", "Anything", "this kind is unknown here"),
        ("agentic.networking.k8s.io/v1", "AccessPolicy", "did you mean XAccessPolicy?"),  # graduated
    ],
)
def test_an_experiment_that_is_not_known_never_refuses_the_set(api_version: str, kind: str, remedy: str):
    loaded = load_text(f"{ROUTE}---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")
    (told,) = loaded.warnings
    assert (told.severity, told.code, told.message) == (Severity.UNSERVED, "KindLeftOut", "it is left out")
    assert told.remedy.startswith(remedy)
