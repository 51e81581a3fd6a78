"""Which decisions another configuration makes the other way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.gateway.exchange.recent_decisions import MAX_PATH, RecentDecision
from egressproxy.model.work import at_once
from egressproxy.operators.explain import decision_diff as module
from egressproxy.operators.explain.decision_diff import DecisionChange, flips
from tests.e2e.world import tls_secret
from tests.gateway.backends.test_retries import pods
from tests.gateway.exchange.test_interception import CA_KEY, CA_PEM
from tests.gateway.kit import reverse
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.manifests import Manifest

HOSTS = {"hosts": {"a.example": ["93.184.216.34"], "in.example": ["10.0.0.1"]}}


def decision(method: str, authority: str, reason: str = "-", path: str = "/", listener: str = "forward", **more: str):
    scheme = "https" if authority.endswith(":443") else "http"
    return RecentDecision(method, scheme, authority, path, "agents/gw", listener, "-", "-", reason, **more)


def opened(*allow: str, **sections: Any) -> list[Manifest]:
    policy = m.policy(allow, **sections)
    policy["spec"].setdefault("dns", HOSTS)
    return [m.gateway(m.forward_listener(3128)), policy]


def ask(old: list[Manifest] | None, new: list[Manifest], *recent: RecentDecision) -> list[DecisionChange]:
    async def made() -> list[DecisionChange]:
        before = offline(compiled_spec(old)) if old is not None else None
        return at_once(flips(before, offline(compiled_spec(new)), recent))

    return asyncio.run(made())


def test_what_was_denied_and_would_be_allowed_opens():
    denied = decision("CONNECT", "a.example:443", "destination_not_allowed")
    for old in (opened("b.example"), None):
        (flip,) = ask(old, opened("a.example"), denied, denied)
        assert flip.opens
        assert str(flip) == "CONNECT a.example:443 on agents/gw/forward: deny (destination_not_allowed) -> allow"


def test_what_was_allowed_and_would_be_denied_flips_but_does_not_open():
    (flip,) = ask(opened("a.example"), opened("b.example"), decision("GET", "a.example:80"))
    assert (flip.before.is_allowed, flip.after.reason, flip.opens) == (True, "destination_not_allowed", False)


def passing(*allow: str, opens: str = "*.example") -> list[Manifest]:
    """A TLS listener that passes a.example by a TLSRoute, unless it opens it."""
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}
    intercept = {"hostnames": [opens], "caCertificateRef": {"name": "ca"}}
    policy = m.policy(allow, intercept=intercept)
    policy["spec"]["dns"] = HOSTS
    return [
        m.gateway(listener),
        policy,
        tls_secret("ca", CA_PEM, CA_KEY.reveal()),
        m.backend("o", "a.example", 443, protocol="TCP"),
        m.tls_route("t", "o", hostnames=["a.example"]),
    ]


def test_a_request_that_was_denied_in_a_stream_that_is_opened_is_decided_again():
    denied = decision("GET", "a.example:443", "destination_not_allowed", "/v1/models", "tls")
    assert ask(passing("b.example"), passing("b.example", "c.example"), denied) == []
    for old in (passing("b.example"), None):
        (flip,) = ask(old, passing("a.example"), denied)
        assert flip.opens
        says = "GET a.example:443/v1/models on agents/gw/tls: deny (destination_not_allowed) -> allow"
        assert str(flip) == says
    (flip,) = ask(passing("a.example"), passing("b.example"), decision("GET", "a.example:443", "-", "/v1", "tls"))
    assert (flip.after.reason, flip.opens) == ("destination_not_allowed", False)


def test_a_stream_that_is_opened_no_more_lets_out_what_was_denied_inside():
    denied = decision("GET", "a.example:443", "destination_not_allowed", "/v1/models", "tls")
    (flip,) = ask(passing("b.example"), passing("b.example", opens="*.other"), denied)
    assert flip.opens


@pytest.mark.parametrize("reason", ["not_tls", "client_timeout"])
def test_a_client_that_was_refused_before_it_asked_for_anything_is_not_decided_about(reason: str):
    """Of a redirected one the log has the address that it dialled."""
    unasked = decision("-", "93.184.216.34:443", reason)
    assert ask(None, opened("b.example"), unasked) == []


def test_tls_that_was_refused_in_a_tunnel_to_port_80_opens_with_a_tls_route():
    """HTTP could go there all the time, so that the CONNECT itself was never refused."""
    rule = m.prefix_rule("/", "a")
    http = [*opened("b.example"), m.backend("a", "a.example", 80), m.http_route("h", rule, hostnames=["a.example"])]
    both = [*http, m.tls_route("t", "a", hostnames=["a.example"])]
    refused = decision("CONNECT", "a.example:80", "destination_not_allowed")
    assert ask(http, http, refused) == []
    assert ask(both, both, refused) == []
    (flip,) = ask(http, both, refused)
    assert flip.opens
    assert ask(http, both, decision("CONNECT", "a.example:80")) == []
    (flip,) = ask(None, http, refused)
    assert str(flip).endswith("allow (maybe)")


def test_the_same_configuration_flips_nothing():
    every = [
        decision("CONNECT", "a.example:443"), decision("GET", "b.example:80", "destination_not_allowed"),
        decision("GET", "in.example:80", "resolved_denied"), decision("GET", "nobody.example:80", "resolved_denied"),
        decision("POST", "a.example:80", "filter_rejected"), decision("-", "-", "bad_request_line"),
    ]  # fmt: skip
    same = opened("a.example", "in.example", "nobody.example")
    assert ask(same, same, *every) == []
    assert ask(None, same, *every) == []


def test_decisions_of_listeners_that_neither_has_flip_only_where_the_two_differ():
    """As an access log of another gateway has them."""
    asked = [decision("CONNECT", "a.example:443", reason, listener="other") for reason in ("-", "destination_denied")]
    assert ask(opened("a.example"), opened("a.example"), *asked) == []
    (flip,) = ask(opened("a.example"), opened("b.example"), *asked)
    assert (flip.before.is_allowed, flip.after.is_allowed, flip.is_sure) == (True, False, False)


def test_address_rules_count_for_addresses_that_are_known():
    denied = decision("GET", "in.example:80", "resolved_denied")
    (flip,) = ask(opened("in.example"), opened("in.example", addresses={"allow": [{"cidrs": ["10.0.0.0/8"]}]}), denied)
    assert flip.opens
    assert flip.is_sure


def test_address_rules_count_for_what_a_parent_would_be_asked_for():
    def through_parent(**sections: Any) -> list[Manifest]:
        dynamic = m.backend("any", "-", 80, parent={"name": "parent"})
        dynamic["spec"]["destination"] = {"type": "Dynamic"}
        route = m.http_route("r", m.prefix_rule("/", "any"))
        return [*opened(mode="Open", **sections), m.backend("parent", "parent.example", 3128), dynamic, route]

    denied = decision("GET", "10.0.0.1:80", "resolved_denied")
    assert ask(through_parent(), through_parent(), denied) == []
    (flip,) = ask(through_parent(), through_parent(addresses={"allow": [{"cidrs": ["10.0.0.0/8"]}]}), denied)
    assert flip.opens


def test_addresses_that_nobody_knows_may_have_been_opened_where_their_rules_changed():
    denied = decision("GET", "far.example:80", "resolved_denied")
    wide = opened("far.example", addresses={"allow": [{"cidrs": ["10.0.0.0/8"]}]})
    (flip,) = ask(opened("far.example"), wide, denied)
    assert flip.opens
    assert not flip.is_sure
    assert str(flip).endswith("(maybe)")


def test_a_listener_that_goes_denies():
    other = [m.gateway(m.forward_listener(3128, "second")), *opened("a.example")[1:]]
    (flip,) = ask(opened("a.example"), other, decision("GET", "a.example:80"))
    assert flip.after.reason == "no_listener"


def test_rules_that_look_at_headers_make_a_decision_uncertain():
    rule = m.prefix_rule("/v1", "a")
    rule["matches"][0]["headers"] = [{"name": "x-team", "value": "red"}]
    (flip,) = ask(reverse(m.prefix_rule("/", "a")), reverse(rule), decision("GET", "a.example:80", "-", "/v1", "http"))
    assert not flip.after.is_sure


def test_a_path_that_was_cut_makes_it_uncertain():
    long = decision("GET", "a.example:80", path="/" * MAX_PATH)
    (flip,) = ask(opened("a.example"), opened("b.example"), long)
    assert not flip.after.is_sure


def test_a_listener_by_another_name_is_looked_for_where_something_was_denied():
    other = [m.gateway(m.forward_listener(3128, "renamed")), *opened("a.example")[1:]]
    (flip,) = ask(opened("b.example"), other, decision("GET", "a.example:80", "destination_not_allowed"))
    assert flip.opens
    assert not flip.is_sure


def test_a_filter_that_is_gone_may_let_through_what_it_refused():
    limit = {
        "name": "own", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers",
        "config": {"request": {"set": [{"name": "a", "value": "b"}]}},
    }  # fmt: skip
    refused = decision("GET", "a.example:80", "filter_rejected")
    guarded = opened("a.example", extensions=[limit])
    (flip,) = ask(guarded, opened("a.example"), refused)
    assert str(flip) == "GET a.example:80/ on agents/gw/forward: deny (filter_rejected) -> allow (maybe)"
    assert flip.opens
    assert ask(guarded, opened("a.example", "b.example", extensions=[limit]), refused) == []


def test_a_tunnel_may_hold_what_it_must_not_where_the_sni_need_not_agree_any_more():
    fronted = decision("CONNECT", "a.example:443", "sni_mismatch")
    lax = opened("b.example", destinations={"allow": [{"hostnames": ["a.example"], "sni": "Any"}]})
    (flip,) = ask(opened("a.example"), lax, fronted)
    assert flip.opens


def test_a_limit_that_is_raised_opens_nothing():
    limited = opened("a.example", limits={"requests": [{"per": "Gateway", "limit": 1, "window": "1s"}]})
    assert ask(limited, opened("a.example"), decision("GET", "a.example:80", "request_rate")) == []


def test_where_the_listener_is_gone_each_port_is_asked_once_for_all_of_its_listeners(monkeypatch: pytest.MonkeyPatch):
    hosts = [m.http_listener(8080, hostname=f"h{number}.example") for number in range(3)]
    for number, listener in enumerate(hosts):
        listener["name"] = f"web-{number}"
    asked = []
    check_destination_policy = module.outcome

    def counted(*args: Any) -> Any:
        asked.append(args)
        return check_destination_policy(*args)

    monkeypatch.setattr(module, "outcome", counted)
    ask(None, [m.gateway(*hosts)], decision("GET", "h1.example", "destination_not_allowed"))
    assert len(asked) == 2  # for its own listener, and for the port


def test_a_deny_of_the_place_that_a_route_leads_to_flips():
    routed = decision("GET", "front.test:80", listener="http")
    (flip,) = ask(reverse(), reverse(destinations={"deny": [{"hostnames": ["a.example"]}]}), routed)
    assert (flip.before.is_allowed, flip.after.reason) == (True, "destination_denied")


def test_a_deny_of_ranges_flips_names_that_lead_there_and_endpoints():
    asked = decision("GET", "a.example:80")
    deny = {"addresses": {"deny": [{"cidrs": ["93.184.0.0/16"]}]}}
    (flip,) = ask(opened("a.example"), opened("a.example", **deny), asked)
    assert flip.after.reason == "resolved_denied"
    rule = {"backendRefs": [{"name": "pods", "port": 80}]}
    old, new = (
        reverse(rule, objects=tuple(pods("10.0.0.7")), addresses=addresses)
        for addresses in ({}, {"deny": [{"cidrs": ["10.0.0.0/8"]}]})
    )
    (flip,) = ask(old, new, decision("GET", "front.test:80", listener="http"))
    assert flip.after.reason == "resolved_denied"


def test_for_whom_a_policy_is_decides_again():
    theirs = m.policy(["a.example"], name="team", subjects=[{"namespace": "team"}])
    of_team = decision("GET", "a.example:80")._replace(namespace="team", service_account="robot")
    others = of_team._replace(namespace="other")
    (flip,) = ask(opened("a.example"), [*opened("b.example"), theirs], of_team, others)
    assert (flip.decision.namespace, flip.after.is_allowed, flip.is_sure) == ("other", False, True)


def test_which_groups_a_client_had_is_not_known():
    theirs = m.policy(["a.example"], name="team", subjects=[{"group": "dev"}])
    (flip,) = ask(opened("a.example"), [*opened("b.example"), theirs], decision("GET", "a.example:80"))
    assert (flip.after.is_allowed, flip.is_sure) == (False, False)
