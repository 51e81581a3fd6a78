"""What was denied lately, in groups, with what the client was told."""

from __future__ import annotations

from typing import Any

from egressproxy.model.work import at_once
from egressproxy.operators.explain.denials import decision_about, denials
from tests.gateway.conftest import Start
from tests.gateway.kit import exchange, forward
from tests.operators.explain.test_decision import octets, sent
from tests.support.conversation import Conversation


def found(talk: Conversation, since_s: float = 0.0, namespace: str = "") -> dict[str, Any]:
    return at_once(denials(talk.snapshot, talk.connection_manager.accounting, since_s, namespace))


def test_denials_are_groups_by_destination_and_caller_with_what_the_client_was_told(converse: Start):
    talk = converse(forward())
    exchange(talk)
    for url in ("http://b.example/one?key=hush", "http://b.example/two", "http://c.example/", "http://b.example/"):
        record = sent(talk, octets("GET", url, ()))
    assert found(talk)["since"] == 0.0
    most, other = found(talk)["denials"]
    assert (most["destination"], most["count"], other["destination"], other["count"]) == (
        "b.example:80", 3, "c.example:80", 1,
    )  # fmt: skip
    assert most["request_id"] == record["request_id"]
    assert (most["reason"], most["rule"], most["policy"]) == (
        "destination_not_allowed", "EgressPolicy agents/default", "agents/default",
    )  # fmt: skip
    assert most["why"] == "b.example is not allowed by policy agents/default"
    assert most["remedy"] == 'add {hostnames: ["b.example"], ports: [80]} to destinations.allow'
    about = at_once(decision_about(talk.snapshot, talk.connection_manager.accounting, most["request_id"]))
    assert about is not None
    assert (about["decisions"], about["denial"]["why"]) == ([most["decision"]], most["why"])
    assert at_once(decision_about(talk.snapshot, talk.connection_manager.accounting, "gone")) is None
    assert most["first"] <= most["last"]
    assert most["allowed_now"] is False
    assert most["client"].count(":") == 0
    assert "hush" not in str(found(talk))
    assert found(talk, namespace="other")["denials"] == found(talk, since_s=most["last"] + 1)["denials"] == []


def test_what_is_allowed_meanwhile_is_said(converse: Start):
    talk = converse(forward())
    sent(talk, octets("CONNECT", "b.example:443", ()))
    sent(talk, octets("TRACE", "http://a.example/", ()))
    accounting = talk.connection_manager.accounting
    talk = converse(forward(allow=("a.example", "b.example")))
    found = at_once(denials(talk.snapshot, accounting, 0.0))["denials"]
    now = {each["destination"]: each["allowed_now"] for each in found}
    assert now == {"b.example:443": True, "a.example:80": False}


def test_a_full_ring_says_since_when_it_has_them_all(converse: Start):
    talk = converse(forward())
    sent(talk, octets("GET", "http://b.example/", ()))
    kept = talk.connection_manager.accounting.denials
    first = kept[0]
    kept.extend([first] * 2000)
    assert len(kept) == kept.maxlen == 1024
    assert found(talk)["since"] == first[0][0]
    assert [each["count"] for each in found(talk)["denials"]] == [1024]
