"""Who a rule of an XAccessPolicy is for. tests/gateway/test_access_policies.py has what it allows."""

from __future__ import annotations

import pytest

from egressproxy.ai.filters.access_rules import AccessRule, Rule
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity

ID = "spiffe://cluster.local/ns/team/sa/robot"
TOKEN = CallerIdentity("team", "robot", name="system:serviceaccount:team:robot", source="token")
CERTIFICATE = CallerIdentity("team", "robot", name=ID, source="certificate")
PARTNER = CallerIdentity("team@partner.example", "robot", name="spiffe://partner.example/ns/team/sa/robot")
OTHER = CallerIdentity("team", "other", name="system:serviceaccount:team:other")
EVERYBODY = (TOKEN, CERTIFICATE, PARTNER, OTHER, ANONYMOUS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, EVERYBODY),
        ({"namespace": "team", "service_account": "robot"}, (TOKEN, CERTIFICATE)),
        ({"spiffe": ID}, (CERTIFICATE,)),
        ({"spiffe": ID, "namespace": "team", "service_account": "robot"}, (TOKEN, CERTIFICATE)),
        ({"spiffe": PARTNER.name}, (PARTNER,)),
        ({"spiffe": "spiffe://cluster.local/agent"}, ()),
    ],
)
def test_a_rule_is_for_these_clients(source: dict[str, str], expected: tuple[CallerIdentity, ...]):
    rule = Rule(AccessRule("r", **source))
    assert tuple(each for each in EVERYBODY if rule.is_from(each)) == expected
