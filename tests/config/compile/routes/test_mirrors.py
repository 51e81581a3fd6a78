from __future__ import annotations

import pytest

from egressproxy.ir.route import MirrorIR
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, of_route, policy, rule

REF = "{group: egressproxy.io, kind: Backend, name: plain}"
COPY = PLAIN.replace("name: plain", "name: copy")
EVERYWHERE = """
extensions:
- {name: judge, type: egressproxy.io/HeaderPolicy:v1, phase: backend-request, config: {request: {remove: [x]}}}
- name: key
  type: egressproxy.io/CredentialInjector:v1
  phase: backend-request
  config: {secretRef: {name: s, key: k}, header: authorization}
"""


def mirror(share: str = "", name: str = "copy") -> str:
    ref = REF.replace("plain", name)
    return f"{{type: RequestMirror, requestMirror: {{backendRef: {ref}{share}}}}}"


def with_filters(*filters: str) -> str:
    return ROUTE.replace("- backendRefs", f"- filters: [{', '.join(filters)}]\n    backendRefs")


def mirrors(*manifests: str) -> tuple[MirrorIR, ...]:
    return rule(compiled(REVERSE, PLAIN, COPY, *manifests)).mirrors


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("", (100, 100)),
        (", percent: 20", (20, 100)),
        (", fraction: {numerator: 3}", (3, 100)),
        (", fraction: {numerator: 1, denominator: 3}", (1, 3)),
    ],
)
def test_a_mirror_has_its_share(written: str, share: tuple[int, int]):
    (found,) = mirrors(with_filters(mirror(written)))
    assert (found.numerator, found.denominator) == share
    assert found.backend.backend is not None
    assert found.backend.backend.name == "default/copy"


@pytest.mark.parametrize("share", [", percent: 0", ", fraction: {numerator: 0, denominator: 7}"])
def test_a_share_of_nothing_is_left_out(share: str):
    assert mirrors(with_filters(mirror(share))) == ()


def test_several_mirrors_stand_in_their_order():
    first, second = mirrors(with_filters(mirror(), mirror(name="plain")))
    assert [one.backend.backend.name for one in (first, second) if one.backend.backend] == [
        "default/copy", "default/plain",
    ]  # fmt: skip


def test_a_rule_whose_mirror_leads_nowhere_is_served():
    made = compiled(REVERSE, PLAIN, with_filters(mirror()))
    assert rule(made).backends[0].backend is not None
    assert [one.backend.backend for one in rule(made).mirrors] == [None]
    assert of_route(made, "Accepted")[0] == "True"
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    assert "copy does not exist" in of_route(made, "ResolvedRefs")[2]


def test_a_mirror_that_policy_closes_is_told_and_its_rule_is_served():
    regions = policy("regions: {allowed: [eu]}", "Backend", "copy")
    made = compiled(REVERSE, PLAIN, COPY, with_filters(mirror()), regions)
    assert rule(made).backends[0].backend is not None
    status, _, message = of_route(made, "Accepted")
    assert status == "True"
    assert "mirrors less than is written: backend default/copy says no region" in message
    assert "500" not in message


def test_filters_of_policies_hold_for_copies_and_credentials_do_not():
    (found,) = mirrors(with_filters(mirror()), policy(EVERYWHERE))
    assert [one.name for one in found.extensions] == ["judge"]
    assert found.backend.extensions == ()


def test_a_mirror_has_the_extensions_and_limits_of_its_own_backend():
    limits = policy(f"limits: {{maxBodyBytes: 4}}\n{EVERYWHERE}", "Backend", "copy")
    (found,) = mirrors(with_filters(mirror()), limits)
    assert found.extensions == ()
    assert {one.name for one in found.backend.extensions} == {"limits.maxBodyBytes", "judge", "key"}


def test_a_mirror_of_a_backend_ref_stands_with_that_ref():
    header = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-a]}}"
    text = ROUTE.replace(f"[{REF}]", f"[{REF[:-1]}, filters: [{header}, {mirror()}]}}, {REF[:-1]}, weight: 2}}]")
    found = rule(compiled(REVERSE, PLAIN, COPY, text))
    assert found.mirrors == ()
    assert [len(one.mirrors) for one in found.backends] == [1, 0]
    assert [one.name for one in found.backends[0].mirrors[0].extensions] == ["RequestHeaderModifier"]
