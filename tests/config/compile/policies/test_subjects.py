"""Policies with subjects: which of them may hold together, and what a listener is for their clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egressproxy.config.compile.policies.subjects import MAX_COMBINED, client_sets
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.ir.gateway import ListenerIR
from egressproxy.ir.policy import Mode, PolicyIR, SubjectIR
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, listener, of_policy, policy

OLDER = 'creationTimestamp: "2024-01-01T00:00:00Z"'
YOUNGER = 'creationTimestamp: "2025-01-01T00:00:00Z"'


def sets(*subjects: str) -> tuple[set[frozenset[str]], int | None]:
    """What may hold together of policies p0, p1 … with these subjects, and the bound."""
    text = "\n---\n".join(policy(f"subjects: [{each}]", policy_name=f"p{n}") for n, each in enumerate(subjects))
    found = client_sets(load_text(text, "config.yaml").of(EgressPolicy), "")
    return {frozenset(key[3] for key in each) for each in found.sets}, found.at_most


def held(*names: str) -> frozenset[str]:
    return frozenset(names)


def variants(*manifests: str) -> dict[frozenset[str], ListenerIR]:
    found = listener(compiled(*manifests)).variants
    return {each.policies: each.listener for each in found}


def of_team(sections: str, name: str = "team", namespace: str = "a", meta: str = "") -> str:
    return policy(f"subjects: [{{namespace: {namespace}}}]\n{sections}", policy_name=name, meta=meta)


# --- which hold together ---------------------------------------------------------------------------------------------
def test_namespaces_and_accounts_exclude_each_other():
    found, at_most = sets(
        "{namespace: a}", "{namespace: b}", "{namespace: a, serviceAccount: x}", "{namespace: b}, {namespace: a}"
    )
    assert found == {held("p0", "p3"), held("p1", "p3"), held("p0", "p2", "p3")}
    assert at_most is None


def test_there_are_as_many_as_there_are_tenants():
    found, at_most = sets(*(f"{{namespace: n{number}}}" for number in range(2 * MAX_COMBINED)))
    assert len(found) == 2 * MAX_COMBINED
    assert at_most is None


def test_groups_and_claims_combine():
    found, at_most = sets("{group: a}", "{claim: {name: c, value: v}}", "{group: a, claim: {name: c, value: v}}")
    assert found == {held("p0"), held("p1"), held("p0", "p1", "p2")}
    assert at_most is None


def test_so_they_do_in_each_namespace():
    found, _ = sets("{namespace: a}", "{group: g}", "{namespace: b, group: g}", "{namespace: b, group: h}")
    assert found == {
        held("p0"), held("p1"), held("p0", "p1"), held("p1", "p2"), held("p3"), held("p1", "p2", "p3"),
    }  # fmt: skip


def test_as_many_at_once_as_have_room():
    everything, at_most = sets(*(f"{{group: g{number}}}" for number in range(8)))
    assert (len(everything), at_most) == (2**8 - 1, None)
    found, at_most = sets(*(f"{{group: g{number}}}" for number in range(20)))
    assert (len(found), at_most) == (20 + 20 * 19 // 2, 2)
    found, at_most = sets(*(f"{{group: g{number}}}" for number in range(MAX_COMBINED + 1)), "{namespace: a}")
    assert (found, at_most) == ({held(f"p{MAX_COMBINED + 1}")}, 0)


@pytest.mark.parametrize("count", [12, MAX_COMBINED + 1])
def test_status_says_which_clients_are_refused(count: int):
    groups = (policy(f"subjects: [{{group: g{n}}}]", policy_name=f"p{n}") for n in range(count))
    made = compiled(FORWARD, *groups, of_team("mode: Open"))
    said = of_policy(made, "Accepted", "default/p3")[2]
    assert "more than 256 variants of listener forward" in said
    assert ("a client that more than 2 entries" in said) == (count == 12)
    assert "variants" not in of_policy(made, "Accepted", "default/team")[2]


@pytest.mark.parametrize(
    ("written", "said"),
    [("{}", "names no client"), ("{serviceAccount: x}", "serviceAccount needs its namespace"),
     ("{serviceAccount: x, group: g}", "serviceAccount needs its namespace")],
)  # fmt: skip
def test_a_subject_says_somebody(written: str, said: str):
    with pytest.raises(ConfigError, match=said):
        sets(written)


# --- what a listener is for them -------------------------------------------------------------------------------------
def test_it_says_nothing_about_others():
    sections = """
mode: Open
destinations: {allow: [{hostnames: [a.example]}], deny: [{hostnames: [b.example]}]}
addresses: {allow: [{cidrs: [10.0.0.0/8]}], deny: [{cidrs: [11.0.0.0/8]}], only: [{cidrs: [10.0.0.0/8]}]}
dns: {servers: [10.0.0.1]}
tls: {minVersion: '1.3'}
traffic: {timeouts: {connect: 1s}}
regions: {allowed: [eu]}
intercept: {hostnames: ['*.a.example'], caCertificateRef: {name: ca}}
extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers}]
limits: {requests: [{per: Identity, limit: 1}]}
"""
    made = listener(compiled(FORWARD, PLAIN, ROUTE, of_team(sections)))
    others = listener(compiled(FORWARD, PLAIN, ROUTE))
    withheld = made.policy.destinations.withheld
    assert [entry.hostnames for entry in withheld] == [("a.example",)]
    nobodys = replace(made.policy, destinations=replace(made.policy.destinations, withheld=()))
    assert nobodys == others.policy
    assert made.extensions == others.extensions
    assert made.default_backend is not None
    assert others.default_backend is not None
    assert made.default_backend.backend == others.default_backend.backend
    assert [rule.extensions for rule in made.http_routes[0].rules] == [()]
    assert made.subjects == (("default/team", (SubjectIR("a"),)),)


def test_it_says_everything_about_its_own():
    sections = """
mode: Open
destinations: {allow: [{hostnames: [a.example]}], deny: [{hostnames: [b.example]}]}
addresses: {allow: [{cidrs: [10.0.0.0/8]}], deny: [{cidrs: [11.0.0.0/8]}]}
dns: {servers: [10.0.0.1]}
traffic: {timeouts: {connect: 1s}}
extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers}]
limits: {requests: [{per: Identity, limit: 1}], maxKeys: 100}
"""
    ((names, made),) = variants(FORWARD, PLAIN, ROUTE, of_team(sections)).items()
    everybodys = listener(compiled(FORWARD, PLAIN, ROUTE, policy(sections, policy_name="team")))
    assert names == {"default/team"}
    assert made == everybodys


def test_what_is_denied_and_allowed_adds_up_with_what_holds_for_everybody():
    common = policy("destinations: {allow: [{hostnames: [a.example]}], deny: [{hostnames: [c.example]}]}")
    own = of_team("destinations: {allow: [{hostnames: [b.example]}], deny: [{hostnames: [d.example]}]}")
    spec = variants(FORWARD, common, own)[held("default/team")].policy.destinations
    assert [[entry.hostnames[0] for entry in group] for group in spec.allow] == [["a.example", "b.example"]]
    assert [entry.hostnames[0] for entry in spec.deny] == ["c.example", "d.example"]
    assert spec.withheld == ()


def test_settings_win_by_level_among_the_policies_that_hold():
    common = policy("mode: Report\ntraffic: {timeouts: {connect: 2s}}", policy_name="common", meta=OLDER)
    own = of_team("mode: Open\ntraffic: {timeouts: {connect: 1s, idle: 9s}}", meta=YOUNGER)
    spec = variants(FORWARD, common, own)[held("default/team")].policy
    assert (spec.mode, spec.timeouts.connect_s, spec.timeouts.idle_s) == (Mode.REPORT, 2.0, 9.0)
    section = own.replace("name: gw}", "name: gw, sectionName: forward}")
    spec = variants(FORWARD, common, section)[held("default/team")].policy
    assert (spec.mode, spec.timeouts.connect_s) == (Mode.OPEN, 1.0)
    assert listener(compiled(FORWARD, common, section)).policy.mode is Mode.REPORT


def test_policies_for_different_clients_are_in_no_conflict():
    one, other = of_team("mode: Open"), of_team("mode: Report", "other", "b")
    made = compiled(FORWARD, one, other)
    assert of_policy(made, "Conflicted", "default/team") == ("", "", "")
    assert of_policy(made, "Conflicted", "default/other") == ("", "", "")
    assert of_policy(made, "Accepted", "default/other")[:2] == ("True", "Accepted")
    both = of_team("mode: Report", "other")
    assert of_policy(compiled(FORWARD, one, both), "Conflicted", "default/team")[0] == "True"


def test_a_policy_of_a_route_and_of_a_backend_makes_variants_too():
    of_route = policy("subjects: [{namespace: a}]\nmode: Report", "HTTPRoute", "route", "of-route")
    of_backend = policy("subjects: [{namespace: b}]\nregions: {allowed: [eu]}", "Backend", "plain", "of-backend")
    found = variants(FORWARD, PLAIN, ROUTE, of_route, of_backend)
    assert found.keys() == {held("default/of-route"), held("default/of-backend")}
    assert found[held("default/of-route")].http_routes[0].rules[0].policy.mode is Mode.REPORT
    assert found[held("default/of-backend")].http_routes[0].rules[0].policy.mode is Mode.ENFORCE
    (closed,) = found[held("default/of-backend")].http_routes[0].rules[0].backends
    assert "allowed by policy: eu" in closed.error
    (open_,) = found[held("default/of-route")].http_routes[0].rules[0].backends
    assert not open_.error


def test_a_policy_that_a_rule_names_is_for_its_clients_alone():
    entry = "{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: team}}"
    route = ROUTE.replace("  - backendRefs", f"  - filters: [{entry}]\n    backendRefs")
    written = of_team("limits: {maxBodyBytes: 9}").splitlines()
    named = "\n".join("  targetRefs: []" if "targetRefs" in line else line for line in written)
    made = compiled(FORWARD, PLAIN, route, named)
    assert listener(made).http_routes[0].rules[0].extensions == ()
    ((names, theirs),) = ((each.policies, each.listener) for each in listener(made).variants)
    assert names == {"default/team"}
    assert [each.name for each in theirs.http_routes[0].rules[0].extensions] == ["limits.maxBodyBytes"]


def test_a_listener_that_a_policy_does_not_reach_has_no_variants():
    elsewhere = FORWARD.replace("name: gw}", "name: other}").replace("3128", "3129")
    made = compiled(FORWARD, elsewhere, of_team("mode: Open"))
    assert [bool(each.variants) for each in made.spec.listeners] == [True, False]
    assert made.spec.listeners[1].subjects == ()


def test_a_parent_that_is_for_some_clients_brings_its_own_policies():
    """Found only while the variant is compiled: the parent's policy has subjects, too."""
    corp = PLAIN.replace("name: plain}", "name: corp}").replace("a.example", "corp.example")
    behind = policy(
        "subjects: [{namespace: a, serviceAccount: x}]\ndestinations: {deny: [{hostnames: [z.example]}]}",
        "Backend",
        "corp",
        "behind",
    )
    found = variants(FORWARD, corp, behind, of_team("parent: {name: corp}"))
    assert found.keys() == {held("default/team"), held("default/team", "default/behind")}
    default = found[held("default/team", "default/behind")].default_backend
    assert default is not None
    assert [entry.hostnames for entry in default.policy.destinations.deny] == [("z.example",)]
    default = found[held("default/team")].default_backend
    assert default is not None
    assert default.policy.destinations.deny == ()


def test_where_identities_come_from_is_not_for_some_clients():
    """It would have to be known who the client is in order to learn who the client is."""
    made = compiled(FORWARD, of_team("identity: {certificate: {trustDomains: [cluster.local]}}\nmode: Open"))
    status, reason, message = of_policy(made, "Accepted", "default/team")
    assert (status, reason) == ("False", "NotEnforceable")
    assert "write it in a policy without subjects" in message
    theirs = listener(made).variants[0].listener.default_backend
    assert theirs is not None
    assert theirs.backend is None
    others = listener(made).default_backend
    assert others is not None
    assert others.backend is not None


def test_limits_of_connections_are_those_of_everybody():
    made = listener(compiled(FORWARD, of_team("limits: {connections: 1, tunnels: 1}")))
    assert made.variants[0].listener.policy.limits == PolicyIR().limits == made.policy.limits


def test_status_says_where_nobody_is_known():
    theirs = of_team("mode: Open")
    made = compiled(FORWARD, theirs)
    assert "subjects fit nobody: no policy of Gateway default/gw says" in of_policy(made, "Accepted", "default/team")[2]
    known = policy("identity: {certificate: {trustDomains: [cluster.local]}}")
    assert "nobody" not in of_policy(compiled(FORWARD, theirs, known), "Accepted", "default/team")[2]


def test_status_says_what_its_clients_are_answered_with_an_error():
    made = compiled(FORWARD, PLAIN, ROUTE, of_team("regions: {allowed: [eu]}"))
    said = of_policy(made, "Accepted", "default/team")[2]
    assert "For its subjects listener forward answers destinations that no route matches with an error: a desti" in said
    assert (
        "answers some requests of HTTPRoute default/route with an error: backend default/plain says no region" in said
    )
    made = compiled(FORWARD, PLAIN, ROUTE, policy("regions: {allowed: [eu]}"), of_team("mode: Open"))
    assert "for its subjects" not in of_policy(made, "Accepted", "default/team")[2], "it is so for everybody"


def test_status_of_a_route_says_what_is_so_for_some_clients_alone_and_for_whom():
    eu = of_team("regions: {allowed: [eu]}")
    made = compiled(FORWARD, PLAIN, ROUTE, eu)
    (parent,) = made.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    (said,) = [each["message"] for each in parent["conditions"] if each["type"] == "Accepted"]
    assert (
        "For the subjects of EgressPolicy default/team (namespace a): Listener forward answers 403 for some requests: "
        "backend default/plain says no region" in said
    )
    (of_listener,) = [
        each["message"]
        for each in made.statuses["gateway.networking.k8s.io", "Gateway", "default", "gw"]["listeners"][0]["conditions"]
        if each["type"] == "Accepted"
    ]
    assert "(namespace a): Destinations that no route matches are answered with 403" in of_listener
    everybody = compiled(FORWARD, PLAIN, ROUTE, policy("regions: {allowed: [eu]}"), eu)
    (parent,) = everybody.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    assert not [each for each in parent["conditions"] if "subjects" in each["message"]]


def test_a_destination_that_is_denied_to_some_clients_is_told_by_the_route_that_leads_there():
    deny = of_team("destinations: {deny: [{hostnames: [a.example]}]}")
    made = compiled(FORWARD, PLAIN, ROUTE, deny)
    (parent,) = made.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    found = [each for each in parent["conditions"] if each["type"] == "egressproxy.io/Denied"]
    assert [each["reason"] for each in found] == ["DestinationDenied"], parent
    assert found[0]["message"].startswith("For the subjects of EgressPolicy default/team (namespace a): ")


def test_of_many_clients_some_are_named():
    many = [of_team("regions: {allowed: [eu]}", f"t{n}", f"t{n}") for n in range(9)]
    made = compiled(FORWARD, PLAIN, ROUTE, *many)
    (parent,) = made.statuses["gateway.networking.k8s.io", "HTTPRoute", "default", "route"]["parents"]
    (said,) = [each["message"] for each in parent["conditions"] if each["type"] == "Accepted"]
    assert "EgressPolicy default/t0 (namespace t0); for the subjects of" in said
    assert "and for those of 6 other policies: Listener forward answers 403" in said


def test_a_limit_is_one_for_all_variants_where_it_is_written_for_everybody():
    common = policy("limits: {requests: [{per: Gateway, limit: 5}]}")
    made = listener(compiled(FORWARD, common, of_team("mode: Open")))
    assert made.variants[0].listener.extensions == made.extensions != ()


def test_variants_share_what_is_not_otherwise_for_them():
    """A thousand tenants with a route each, and a policy on it: each variant compiles one route."""
    other = ROUTE.replace("name: route}", "name: other}")
    of_route = policy("subjects: [{namespace: a}]\nmode: Report", "HTTPRoute", "route", "of-route")
    made = listener(compiled(FORWARD, PLAIN, ROUTE, other, of_route))
    theirs = made.variants[0].listener
    ours = {route.name: route for route in made.http_routes}
    same = {route.name: route is ours[route.name] for route in theirs.http_routes}
    assert same == {"default/other": True, "default/route": False}
    assert theirs.policy is made.policy
