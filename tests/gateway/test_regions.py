"""Regions: nothing leads to a backend of a region that is not allowed, and the denial names both."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LOCK = {"name": "lock", "type": "RegionLock", "phase": "request-headers", "config": {"allowed": ["eu", "ch"]}}
EACH_WAY = pytest.mark.parametrize(
    "sections",
    [
        {"regions": {"allowed": ["eu", "ch"]}},
        {"extensions": [LOCK]},
        {"extensions": [{**LOCK, "type": f"{m.OURS}/RegionLock:v1"}]},
    ],
    ids=["regions", "RegionLock", "its full name"],
)  # fmt: skip


def start(converse: Start, rule: m.Manifest, *backends: m.Manifest, **sections: Any) -> Conversation:
    made = [m.gateway(m.http_listener(8080)), m.policy(**sections), *backends, m.http_route("route", rule)]
    return converse(made)


def place(name: str, region: str = "", **more: Any) -> m.Manifest:
    return m.backend(name, f"{name}.example", 80, **({"region": region} if region else {}), **more)


def refused(talk: Conversation) -> dict[str, Any]:
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert status == 403
    assert error["reason"] == "region_denied"
    talk.no_dial()
    return error


def served(talk: Conversation, host: str) -> None:
    talk.client >> GET
    talk.dialled(host, 80)
    talk.origin.take(rb"(?s)GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.client.take(rb"(?s)HTTP/1.1 204 .*?\r\n\r\n")


@EACH_WAY
@pytest.mark.parametrize(("region", "stands"), [("us", "stands in region us"), ("", "says no region")])
def test_a_denial_names_both_regions(converse: Start, sections: dict[str, Any], region: str, stands: str):
    talk = start(converse, m.prefix_rule("/", "a"), place("a", region), **sections)
    assert refused(talk)["message"] == f"backend agents/a {stands}; allowed by policy: ch, eu"


@EACH_WAY
def test_a_backend_of_an_allowed_region_is_used(converse: Start, sections: dict[str, Any]):
    served(start(converse, m.prefix_rule("/", "a"), place("a", "eu"), **sections), "a.example")


@EACH_WAY
def test_a_failover_leads_to_no_other_region(converse: Start, sections: dict[str, Any]):
    backends = (place("a", "us"), place("b", "eu"), m.failover("any", "a", "b"))
    served(start(converse, m.prefix_rule("/", "any"), *backends, **sections), "b.example")


@EACH_WAY
def test_a_mirror_gets_nothing_in_another_region(converse: Start, sections: dict[str, Any]):
    mirror = {
        "type": "RequestMirror",
        "requestMirror": {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}},
    }
    rule = m.prefix_rule("/", "a", filters=[mirror])
    talk = start(converse, rule, place("a", "eu"), place("b", "us"), **sections)
    served(talk, "a.example")
    talk.no_dial()


@EACH_WAY
def test_a_parent_of_another_region_closes_what_is_behind_it(converse: Start, sections: dict[str, Any]):
    parent = m.backend("parent", "parent.example", 3128, region="us")
    talk = start(converse, m.prefix_rule("/", "a"), place("a", "eu", parent={"name": "parent"}), parent, **sections)
    assert refused(talk)["message"] == "backend agents/parent stands in region us; allowed by policy: ch, eu"


def test_locks_add_up_with_regions_and_on_a_backend(converse: Start):
    locked = place("a", "ch", extensions=[{**LOCK, "phase": "backend-request", "config": {"allowed": ["eu"]}}])
    talk = start(converse, m.prefix_rule("/", "a"), locked, regions={"allowed": ["ch"]})
    assert refused(talk)["message"] == "backend agents/a stands in region ch; allowed by policy: eu"
    both = start(converse, m.prefix_rule("/", "a"), place("a", "ch"), regions={"allowed": ["us"]}, extensions=[LOCK])
    assert refused(both)["message"] == "backend agents/a stands in region ch; allowed by policy: none"


@EACH_WAY
def test_a_policy_that_a_rule_names_locks_this_rule(converse: Start, sections: dict[str, Any]):
    ref = {"type": "ExtensionRef", "extensionRef": {"group": m.OURS, "kind": "EgressPolicy", "name": "locked"}}
    locked = m.policy(name="locked", targetRefs=[], **sections)
    talk = start(converse, m.prefix_rule("/", "a", filters=[ref]), place("a", "us"), locked)
    assert refused(talk)["message"] == "backend agents/a stands in region us; allowed by policy: ch, eu"


LOCKED = {"extensions": [{**LOCK, "phase": "backend-request"}]}


@pytest.mark.parametrize("parents", ["name", "fallback"])
def test_a_lock_of_a_backend_holds_for_the_parents_on_its_way(converse: Start, parents: str):
    near, far = (m.backend(region, f"{region}.example", 3128, region=region) for region in ("eu", "us"))
    named = {"name": "us"} if parents == "name" else {"name": "eu", "fallbacks": [{"name": "us"}]}
    talk = start(converse, m.prefix_rule("/", "a"), place("a", "eu", parent=named, **LOCKED), near, far)
    assert refused(talk)["message"] == "backend agents/us stands in region us; allowed by policy: ch, eu"


@EACH_WAY
def test_an_authorization_server_of_another_region_is_not_asked(converse: Start, sections: dict[str, Any]):
    ref = {"group": m.OURS, "kind": "Backend", "name": "auth"}
    auth = {"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": ref, "http": {}}}
    talk = start(converse, m.prefix_rule("/", "a", filters=[auth]), place("a", "eu"), place("auth", "us"), **sections)
    talk.client >> GET
    assert talk.client.answer()[0] in (403, 500)
    talk.no_dial()


@EACH_WAY
def test_a_filter_calls_nobody_in_another_region(converse: Start, sections: dict[str, Any]):
    ref = {"group": m.OURS, "kind": "Backend", "name": "hook"}
    config = {"backendRefs": [ref], "send": ["request-headers"]}
    hook = {"name": "hook", "type": f"{m.OURS}/Webhook:v1", "phase": "request-headers", "config": config}
    extensions = {**sections, "extensions": [*sections.get("extensions", ()), hook]}
    talk = start(converse, m.prefix_rule("/", "a"), place("a", "eu"), place("hook", "us"), **extensions)
    talk.client >> GET
    assert talk.client.answer()[0] == 502
    talk.no_dial()


@EACH_WAY
@pytest.mark.parametrize("traffic", [{}, {"hedging": {"hedgingDelay": "10ms"}}])
def test_no_retry_and_no_hedge_goes_to_another_region(
    converse: Start, sections: dict[str, Any], traffic: dict[str, Any]
):
    backends = (place("a", "eu"), place("b", "us"), m.failover("any", "a", "b"))
    rule = m.prefix_rule("/", "any", retry={"attempts": 3, "codes": [503], "backoff": "0s"})
    talk = start(converse, rule, *backends, traffic=traffic, **sections)
    talk.client >> GET
    attempts = 0
    while talk.until(lambda: bool(talk.dialer.dials or talk.client.got)) and talk.dialer.dials:
        talk.dialled("a.example", 80)
        talk.origin.take(rb"(?s)GET / .*?\r\n\r\n")
        talk.origin >> b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        attempts += 1
    talk.client.take(rb"(?s)HTTP/1.1 503 .*?\r\n\r\n")
    talk.no_dial()
    assert attempts >= 4  # the first and three more; on a busy machine hedged ones, too


@EACH_WAY
def test_a_redirect_is_for_the_client_and_is_decided_as_any_request(converse: Start, sections: dict[str, Any]):
    talk = start(converse, m.prefix_rule("/", "a"), place("a", "eu"), place("b", "us"), **sections)
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://b.example/\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"(?s)HTTP/1.1 307 .*?\r\n\r\n")
    talk.no_dial()


@EACH_WAY
def test_a_request_that_would_be_translated_goes_to_no_provider_in_another_region(
    converse: Start, sections: dict[str, Any]
):
    provider = place("a", "us")
    provider["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": ["AnthropicMessages"]}}
    talk = start(converse, m.prefix_rule("/", "a"), provider, **sections)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    talk.client >> head % len(body) + body
    assert talk.client.answer()[0] == 403
    talk.no_dial()
