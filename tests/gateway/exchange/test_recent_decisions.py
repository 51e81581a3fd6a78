"""What is told of recent decisions: enough to make them again, and nothing else of what tokens say."""

from __future__ import annotations

from typing import Any

from egressproxy.gateway.exchange.recent_decisions import RecentDecision, decisions, subjects_of
from egressproxy.operators.explain.decision_diff import outcome
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, bearer
from tests.gateway.kit import forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

NAMED = {**CLUSTER.written, "claimMappings": {"groups": "roles"}, "serviceAccounts": False}


def clients(*policies: Any) -> list[Any]:
    return forward(CLUSTER.config_map, *policies, allow=(), identity={"token": {"issuers": [NAMED]}})


def denied(**condition: Any) -> m.Manifest:
    deny = {"deny": [{"hostnames": ["a.example"]}]}
    return m.policy(None, name="team", subjects=[condition], destinations=deny)


def latest(talk: Conversation) -> RecentDecision:
    return next(decisions(talk.connection_manager.accounting.recent, subjects_of(talk.snapshot)))


def test_a_denial_by_group_is_told_with_the_group_and_without_the_rest_of_the_token(converse_on: Start):
    talk = converse_on(clients(denied(group="dev"), m.policy(("a.example",), name="all")))
    token = CLUSTER.token("somebody", roles=["dev", "salary-9"], tier="s3cret")
    talk.client >> bearer(token)
    assert talk.client.answer()[0] == 403
    found = latest(talk)
    assert (found.policies, found.groups, found.claims) == (("agents/team",), ("dev",), ())
    assert found.name.endswith("#somebody")
    assert found.reason == "destination_denied"
    assert "salary" not in str(found)
    assert "s3cret" not in str(found)


def test_it_is_made_again_with_the_groups_and_claims_that_policies_ask_for(converse_on: Start):
    some = denied(claim={"name": "tier", "value": "tin"})
    talk = converse_on(clients(some, m.policy(("a.example",), name="all")))
    talk.client >> bearer(CLUSTER.token("somebody", tier="tin"))
    assert talk.client.answer()[0] == 403
    found = latest(talk)
    assert found.claims == (("tier", "tin"),)
    assert not outcome(talk.snapshot, found).is_allowed
    assert outcome(talk.snapshot, found._replace(claims=())).is_allowed


def test_what_the_admin_address_tells_is_read_again():
    told = RecentDecision(
        "GET", "http", "a:80", "/", "g", "l", "-", "-", "-", 1.0, "n", ("p",), ("dev",), (("a", "b"),)
    )
    values = {**told._asdict(), "policies": ["p"], "groups": ["dev"], "claims": [["a", "b"]]}
    assert RecentDecision.of_admin(values) == told
    older = {key: value for key, value in values.items() if key not in ("name", "policies", "groups", "claims")}
    assert RecentDecision.of_admin(older).groups == ()
