"""Policies on targets of another namespace: what a team may say on a shared Gateway, and what it cannot get around."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

import pytest

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.compile.policies import subjects
from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.errors import Denied
from egressproxy.ir.gateway import ListenerIR
from egressproxy.ir.policy import AddressDenial, Mode, PolicyIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.authority import parse_authority
from egressproxy.routing.destinations import DestinationPolicy
from egressproxy.upstream.address_policy import AddressPolicy
from tests.config.compile.kit import compiled, listener, of_policy, status

GROUP = {"Backend": "egressproxy.io", "EgressPolicy": "egressproxy.io"}


def gateway(*names: str, listeners_of_others: bool = False) -> str:
    listed = "\n".join(
        f"  - {{name: {name}, port: {3128 + at}, protocol: egressproxy.io/forward-proxy, "
        "allowedRoutes: {namespaces: {from: All}}}"
        for at, name in enumerate(names or ("forward",))
    )
    allowed = "{namespaces: {from: All}}" if listeners_of_others else "{}"
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: shared, namespace: infra}}
spec:
  gatewayClassName: egressproxy
  allowedListeners: {allowed}
  listeners:
{listed}
"""


def grant(namespace: str = "infra", kind: str = "Gateway", name: str = "", of: str = "a") -> str:
    group = GROUP.get(kind, "gateway.networking.k8s.io")
    named = f", name: {name}" if name else ""
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {{name: for-{of}-{kind.lower()}, namespace: {namespace}}}
spec:
  from: [{{group: egressproxy.io, kind: EgressPolicy, namespace: {of}}}]
  to: [{{group: {group}, kind: {kind}{named}}}]
"""


def policy(
    sections: str, *, of: str = "a", name: str = "own", target: str = "Gateway infra/shared", section: str = ""
) -> str:
    kind, _, place = target.partition(" ")
    namespace, _, named = place.partition("/")
    group = GROUP.get(kind, "gateway.networking.k8s.io")
    lines = "\n".join(f"  {line}" for line in sections.strip("\n").splitlines())
    where = f", sectionName: {section}" if section else ""
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: {name}, namespace: {of}}}
spec:
  targetRefs: [{{group: {group}, kind: {kind}, namespace: {namespace}, name: {named}{where}}}]
{lines}
"""


def owner(sections: str, name: str = "owner") -> str:
    return policy(sections, of="infra", name=name)


def allow(*hosts: str, deny: Iterable[str] = ()) -> str:
    return f"destinations: {{allow: [{{hostnames: [{', '.join(hosts)}]}}], deny: [{', '.join(deny)}]}}"


SHARED = f"{gateway()}---{grant()}---{grant(of='b')}"
IDENTITY = "identity: {certificate: {trustDomains: [cluster.local]}}"


def of_team(made: Compiled | ListenerIR, *policies: str) -> ListenerIR:
    """The listener for the clients for whom just these policies hold."""
    found = made if isinstance(made, ListenerIR) else listener(made)
    (variant,) = [each.listener for each in found.variants if each.policies == set(policies)]
    return variant


def reached(policy: PolicyIR, *hosts: str) -> list[str]:
    """Those of these hosts that clients reach without a route."""
    decide = DestinationPolicy(policy.destinations, policy.sources).decide
    return [host for host in hosts if decide(parse_authority(f"{host}:443".encode(), None)) is None]


def default(found: ListenerIR) -> WeightedBackend:
    assert found.default_backend is not None
    return found.default_backend


HOSTS = ("a.example", "b.example", "c.example", "bad.example")
QUOTED = "'*.example'"


# --- the grant -------------------------------------------------------------------------------------------------------
def test_without_a_grant_it_does_nothing_and_status_says_what_to_add():
    bare = compiled(gateway())
    made = compiled(gateway(), policy(f"{allow('a.example', deny=['{hostnames: [b.example]}'])}\nmode: Open"))
    assert made.spec.listeners == bare.spec.listeners
    stated, reason, message = of_policy(made, "Accepted", "a/own")
    assert (stated, reason) == ("False", "RefNotPermitted")
    assert "add a ReferenceGrant in namespace infra from EgressPolicy (egressproxy.io) of namespace a" in message
    assert message.endswith("nothing that this policy allows, denies or limits holds there")


@pytest.mark.parametrize(
    "other",
    [
        grant(of="b"),
        grant(namespace="a"),
        grant(kind="ListenerSet"),
        grant(name="another"),
        grant().replace("kind: EgressPolicy", "kind: Backend"),
        grant().replace("group: egressproxy.io", "group: gateway.networking.k8s.io"),
    ],
)
def test_a_grant_for_something_else_is_none(other: str):
    made = compiled(gateway(), other, policy(allow("a.example")))
    assert of_policy(made, "Accepted", "a/own")[:2] == ("False", "RefNotPermitted")
    assert listener(made).variants == ()


def test_whether_a_target_exists_is_told_to_those_who_may_refer_to_it():
    nothing = policy("mode: Open", target="Gateway infra/gone")
    assert of_policy(compiled(gateway(), nothing), "Accepted", "a/own")[1] == "RefNotPermitted"
    assert of_policy(compiled(SHARED, nothing), "Accepted", "a/own")[1] == "TargetNotFound"


def test_the_ancestor_is_the_target_in_its_namespace():
    (ancestor,) = status(compiled(SHARED, policy(allow("a.example"))), "EgressPolicy", "a/own")["ancestors"]
    assert ancestor["ancestorRef"] == {
        "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "shared", "namespace": "infra",
    }  # fmt: skip


def test_the_namespace_written_out_is_the_same_as_none():
    written = owner("mode: Report")
    left_out = written.replace("namespace: infra, name: shared}", "name: shared}")
    assert compiled(gateway(), written).spec == compiled(gateway(), left_out).spec


def test_of_two_targets_with_one_name_the_one_that_is_refused_is_told():
    two = policy("mode: Report").replace(
        "targetRefs: [", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: shared}, "
    )
    text = "\n---\n".join(
        (gateway(), gateway().replace("namespace: infra", "namespace: a").replace("3128", "4128"), two)
    )
    (warning,) = status_warnings(load_text(text, "config.yaml"), compiled(text))
    assert (warning.field_path, warning.code) == ("spec.targetRefs[1]", "RefNotPermitted")


# --- whom it is for --------------------------------------------------------------------------------------------------
def test_two_teams_on_one_gateway_each_get_what_their_own_policy_allows():
    made = compiled(SHARED, owner(IDENTITY), policy(allow("a.example")), policy(allow("b.example"), of="b"))
    found = listener(made)
    assert reached(found.policy, *HOSTS) == []
    assert reached(of_team(found, "a/own").policy, *HOSTS) == ["a.example"]
    assert reached(of_team(found, "b/own").policy, *HOSTS) == ["b.example"]
    assert len(found.variants) == 2
    assert [(name, [entry.namespace for entry in entries]) for name, entries in found.subjects] == [
        ("a/own", ["a"]), ("b/own", ["b"]),
    ]  # fmt: skip
    stated, reason, message = of_policy(made, "Accepted", "a/own")
    assert (stated, reason) == ("True", "Accepted")
    assert message == (
        "the policy is in force. It is for the clients of namespace a, within what Gateway infra/shared and the "
        "policies of its namespace leave open."
    )


def test_for_other_clients_the_listener_is_as_without_it():
    sections = f"""
{allow("a.example", deny=["{hostnames: [b.example]}", "{cidrs: [93.184.216.0/24]}"])}
addresses: {{allow: [{{cidrs: [10.0.0.0/8]}}], deny: [{{cidrs: [8.8.8.0/24]}}], only: [{{cidrs: [1.0.0.0/8]}}]}}
tls: {{minVersion: "1.3"}}
regions: {{allowed: [eu]}}
limits: {{maxBodyBytes: 10, requests: [{{per: Identity, limit: 5}}], connections: 1, maxHeadBytes: 1024}}
mode: Open
"""
    common = owner(f"{IDENTITY}\n{allow('c.example')}")
    without, made = listener(compiled(SHARED, common)), listener(compiled(SHARED, common, policy(sections)))
    assert made.variants
    assert made.policy.limits == without.policy.limits
    assert made.policy.addresses == without.policy.addresses
    assert made.policy.destinations.deny == without.policy.destinations.deny
    assert made.extensions == without.extensions == ()
    assert default(made).backend == default(without).backend
    assert reached(made.policy, *HOSTS) == ["c.example"]


@pytest.mark.parametrize(
    "written",
    [
        "{namespace: b}",
        "{namespace: a}, {namespace: b}",
        "{group: developers}",
        "{namespace: a, group: developers}",
        "{namespace: a, claim: {name: tier, value: gold}}",
        "{namespace: a, serviceAccount: robot}",
        "{namespace: a, trustDomain: partner.example}",
    ],
)
def test_other_subjects_than_its_own_namespace_are_refused(written: str):
    made = compiled(SHARED, policy(f"subjects: [{written}]\n{allow('a.example')}"))
    stated, reason, message = of_policy(made, "Accepted", "a/own")
    assert (stated, reason) == ("False", "NotPermitted")
    assert "remove subjects, or write [{namespace: a}]" in message
    assert listener(made).variants == ()
    assert listener(made) == listener(compiled(SHARED))


def test_its_own_namespace_may_be_written():
    made = compiled(SHARED, policy(f"subjects: [{{namespace: a}}]\n{allow('a.example')}"))
    assert reached(of_team(made, "a/own").policy, *HOSTS) == ["a.example"]
    assert of_policy(made, "Accepted", "a/own")[0] == "True"


def test_teams_take_no_room_from_subjects_of_the_owner_or_of_each_other(monkeypatch: pytest.MonkeyPatch):
    """Groups and claims combine, and a listener has room for so many combinations."""
    monkeypatch.setattr(subjects, "MAX_COMBINED", 3)
    groups = [owner(f"subjects: [{{group: {name}}}]", name) for name in ("g", "h")]
    own = [{"infra/g"}, {"infra/h"}, {"infra/g", "infra/h"}]
    alone = [set(each.policies) for each in listener(compiled(SHARED, *groups)).variants]
    assert len(alone) == 3
    assert all(each in alone for each in own)
    found = listener(compiled(SHARED, *groups, policy(allow("a.example")), policy(allow("b.example"), of="b")))
    held = [set(each.policies) for each in found.variants]
    assert all(each in held for team in ({"a/own"}, {"b/own"}, set()) for each in (team | more for more in own))
    assert len(held) == 3 * 4 - 1


# --- what it allows --------------------------------------------------------------------------------------------------
def test_the_owners_list_is_the_bound():
    common = owner(allow("a.example", "b.example"))
    found = of_team(compiled(SHARED, common, policy(allow("b.example", "c.example"))), "a/own")
    assert reached(found.policy, *HOSTS) == ["b.example"]
    nothing = owner("destinations: {allow: []}")
    assert reached(of_team(compiled(SHARED, nothing, policy(allow("a.example"))), "a/own").policy, *HOSTS) == []


def test_an_owners_list_for_this_team_is_the_bound_too():
    bound = owner(f"subjects: [{{namespace: a}}]\n{allow('a.example', 'b.example')}")
    found = listener(compiled(SHARED, bound, policy(allow("b.example", "c.example"))))
    assert reached(of_team(found, "infra/owner", "a/own").policy, *HOSTS) == ["b.example"]


def test_policies_of_one_team_unite():
    both = policy(allow("a.example")), policy(allow("b.example"), name="other")
    found = of_team(compiled(SHARED, *both), "a/own", "a/other")
    assert reached(found.policy, *HOSTS) == ["a.example", "b.example"]


def test_what_the_owner_denies_stays_denied():
    common = owner("destinations: {deny: [{hostnames: [bad.example]}, {cidrs: [192.0.2.0/24]}]}")
    found = of_team(compiled(SHARED, common, policy(allow("bad.example", QUOTED, "a.example"))), "a/own")
    assert reached(found.policy, *HOSTS) == ["a.example", "b.example", "c.example"]
    assert found.policy.addresses.deny[0].policy == "infra/owner"


def test_what_it_denies_is_denied_to_its_own_clients():
    common = owner(allow("a.example", "b.example"))
    denying = policy("destinations: {deny: [{hostnames: [b.example]}]}")
    found = listener(compiled(SHARED, common, denying))
    assert reached(found.policy, *HOSTS) == ["a.example", "b.example"]
    assert reached(of_team(found, "a/own").policy, *HOSTS) == ["a.example"]


@pytest.mark.parametrize(
    ("field", "section"),
    [
        ("mode", "mode: Open"),
        ("mode", "mode: Report"),
        ("dns", "dns: {servers: [10.0.0.1]}"),
        ("parent", "parent: {name: proxy}"),
        ("intercept", "intercept: {hostnames: [a.example], caCertificateRef: {name: ca}}"),
        ("identity", "identity: {address: {clients: [{cidrs: [10.0.0.0/8], namespace: a, serviceAccount: x}]}}"),
        ("traffic", "traffic: {priority: High, timeouts: {connect: 1s}}"),
        ("extensions", "extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers}]"),
        (
            "limits.store",
            "limits: {requests: [{per: Identity, limit: 1}], store: {type: Redis, backendRef: {name: r, port: 6379}}}",
        ),
    ],
)
def test_what_is_the_owners_to_say_does_nothing_and_closes_what_the_policy_allows(field: str, section: str):
    """It may be what the team allows it under."""
    denying = allow("a.example", "c.example", deny=["{hostnames: [c.example]}"])
    common = owner(f"{allow('a.example', 'b.example', 'c.example')}\n{IDENTITY}")
    made = compiled(SHARED, common, policy(f"{denying}\n{section}"))
    found = of_team(made, "a/own")
    assert reached(found.policy, *HOSTS) == []
    assert [entry.policy for entry in found.policy.destinations.deny] == ["a/own"]
    without = of_team(compiled(SHARED, common, policy("destinations: {deny: [{hostnames: [c.example]}]}")), "a/own")
    for name in ("mode", "dns", "timeouts", "intercepts", "identity", "priority", "resilience"):
        assert getattr(found.policy, name) == getattr(without.policy, name), name
    assert default(found).backend == default(without).backend
    assert not [each for each in found.extensions if not each.name.startswith("limits")]
    stated, reason, message = of_policy(made, "Accepted", "a/own")
    assert (stated, reason) == ("False", "NotPermitted")
    assert message.startswith(f"{field} is for policies of namespace infra, which owns Gateway shared: ")
    assert of_policy(made, "Accepted", "infra/owner")[0] == "True"


def test_another_name_in_a_tunnel_is_the_owners_to_allow():
    """A tunnel to a name that is allowed, with the server name of one that is denied."""
    free = "destinations: {allow: [{hostnames: [a.example], sni: Any}]}"
    made = compiled(SHARED, owner("destinations: {deny: [{hostnames: [bad.example]}]}"), policy(free))
    assert reached(of_team(made, "a/own").policy, *HOSTS) == []
    assert "destinations.allow.sni is for policies" in of_policy(made, "Accepted", "a/own")[2]


def test_a_mode_of_the_owner_is_that_of_its_gateway():
    found = of_team(compiled(SHARED, owner("mode: Report"), policy(allow("a.example"))), "a/own")
    assert found.policy.mode is Mode.REPORT
    assert found.policy.destinations.firm_allow == 0
    narrow = policy(allow("a.example"), section="forward")
    assert of_team(compiled(SHARED, owner("mode: Open"), narrow), "a/own").policy.mode is Mode.OPEN


# --- addresses -------------------------------------------------------------------------------------------------------
def test_what_it_alone_allows_leads_to_public_addresses_alone():
    """The owner opens a network for its own backends, and not as a place for tenants to go to."""
    opened = "addresses: {allow: [{cidrs: [10.0.0.0/8]}]}"
    alone = of_team(compiled(SHARED, owner(opened), policy(allow("a.example"))), "a/own")
    assert alone.policy.addresses.allow[-1] == ()
    with pytest.raises(Denied) as denied:
        AddressPolicy(alone.policy.addresses).check("a.example", (ip_address("10.0.0.1"),), 443)
    assert "in addresses.allow of an EgressPolicy of namespace infra" in denied.value.remedy
    within = of_team(compiled(SHARED, owner(f"{opened}\n{allow('a.example')}"), policy(allow("a.example"))), "a/own")
    assert () not in within.policy.addresses.allow


def test_its_address_rules_narrow_and_open_nothing():
    sections = (
        "addresses: {allow: [{cidrs: [10.1.0.0/16]}], deny: [{cidrs: [8.8.8.0/24]}], only: [{cidrs: [10.0.0.0/8]}]}"
    )
    opened = owner(f"{allow('a.example')}\naddresses: {{allow: [{{cidrs: [10.0.0.0/8]}}]}}")
    made = of_team(compiled(SHARED, opened, policy(sections)), "a/own").policy.addresses
    assert [[str(entry.cidrs[0]) for entry in group] for group in made.allow] == [["10.0.0.0/8"], ["10.1.0.0/16"]]
    assert [type(each) for each in made.deny] == [AddressDenial]
    assert [each.policy for each in made.only] == ["a/own"]
    by_itself = of_team(compiled(SHARED, owner(allow("a.example")), policy(sections)), "a/own").policy.addresses
    assert by_itself.allow[-1] == ()


# --- ways around -----------------------------------------------------------------------------------------------------
def test_a_policy_of_one_listener_says_nothing_on_another():
    made = compiled(gateway("one", "two"), grant(), policy(allow("a.example"), section="one"))
    assert reached(of_team(listener(made, "one"), "a/own").policy, "a.example") == ["a.example"]
    assert listener(made, "two").variants == ()


def listener_set(namespace: str) -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: set, namespace: {namespace}}}
spec:
  parentRef: {{name: shared, namespace: infra}}
  listeners: [{{name: theirs, port: 4000, protocol: egressproxy.io/forward-proxy}}]
"""


@pytest.mark.parametrize(
    ("namespace", "theirs", "reaches"),
    [
        ("b", "", []),
        ("b", allow("a.example"), ["a.example"]),
        ("infra", "", ["a.example", "b.example"]),
    ],
)
def test_on_a_listener_that_another_team_adds_it_narrows_alone(namespace: str, theirs: str, reaches: list[str]):
    """Filters of that team run there, with its credentials."""
    sets = [policy(theirs, of=namespace, name="theirs", target=f"ListenerSet {namespace}/set")] if theirs else []
    own = policy(allow("a.example", "b.example"))
    made = compiled(gateway(listeners_of_others=True), grant(), listener_set(namespace), own, *sets)
    found = listener(made, f"{namespace}/set/theirs")
    assert reached(of_team(found, "a/own").policy, *HOSTS) == reaches


def test_a_listener_set_of_another_namespace_is_a_target_with_a_grant_of_its_own():
    base = gateway(listeners_of_others=True), listener_set("b")
    own = policy(allow("a.example"), target="ListenerSet b/set")
    assert of_policy(compiled(*base, grant(), own), "Accepted", "a/own")[1] == "RefNotPermitted"
    made = compiled(*base, grant("b", "ListenerSet"), own)
    assert reached(of_team(listener(made, "b/set/theirs"), "a/own").policy, *HOSTS) == ["a.example"]
    assert listener(made, "forward").variants == ()


KEY = """
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: infra}
stringData: {token: sesame}
"""
INJECTOR = (
    "extensions: [{name: key, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, "
    "config: {secretRef: {name: key}, header: Authorization}}]"
)


def test_a_credential_of_the_owner_does_not_go_where_a_team_alone_allows():
    made = compiled(SHARED, KEY, owner(INJECTOR), policy(allow("a.example")))
    assert (
        "sends its credential (key), and only policies of another namespace allow"
        in default(of_team(made, "a/own")).error
    )
    assert not default(listener(made)).error
    assert "For its subjects listener forward answers destinations" in of_policy(made, "Accepted", "a/own")[2]
    within = compiled(SHARED, KEY, owner(f"{INJECTOR}\n{allow('a.example')}"), policy(allow("a.example")))
    assert not default(of_team(within, "a/own")).error


def test_a_policy_that_a_rule_of_its_own_namespace_names_holds_there_as_a_whole():
    """On the shared Gateway it holds in another form, which is no reason to leave it out where it is the owner's."""
    filters = "{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: own}}"
    objects = f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: plain, namespace: a}}
spec:
  destination: {{type: Fqdn, fqdn: {{hostname: a.example}}, ports: [{{number: 80, tls: {{mode: None}}}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route, namespace: a}}
spec:
  parentRefs: [{{name: shared, namespace: infra}}]
  rules:
  - filters: [{filters}]
    backendRefs: [{{group: egressproxy.io, kind: Backend, name: plain}}]
"""
    own = policy("extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers}]")
    found = listener(compiled(SHARED, objects, own))
    for each in (found, of_team(found, "a/own")):
        assert [one.name for one in each.http_routes[0].rules[0].extensions] == ["h"]
        assert each.extensions == ()


def test_beside_a_policy_that_a_rule_names_it_opens_nothing_either():
    entry = "{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: named}}"
    route = f"""
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: named, namespace: infra}}
spec: {{targetRefs: [], mode: Report}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route, namespace: infra}}
spec:
  parentRefs: [{{name: shared}}]
  rules:
  - {{name: one, filters: [{entry}], backendRefs: [{{group: egressproxy.io, kind: Backend, name: gone}}]}}
"""
    opening = policy("addresses: {allow: [{cidrs: [10.0.0.0/8]}]}", target="HTTPRoute infra/route", section="one")
    found = of_team(compiled(gateway(), grant(kind="HTTPRoute"), route, opening), "a/own")
    made = found.http_routes[0].rules[0].policy
    assert (made.mode, made.addresses.allow[-1]) == (Mode.REPORT, ())


def test_a_backend_of_another_namespace_is_restricted_for_the_clients_of_the_policy():
    backend = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain, namespace: infra}
spec:
  destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: infra}
spec:
  parentRefs: [{name: shared}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]}]
"""
    floor = policy('tls: {minVersion: "1.3"}\nregions: {allowed: [eu]}', target="Backend infra/plain")
    assert listener(compiled(gateway(), backend, floor)).variants == ()
    found = listener(compiled(gateway(), backend, grant(kind="Backend"), floor))
    (theirs,) = of_team(found, "a/own").http_routes[0].rules[0].backends
    (others,) = found.http_routes[0].rules[0].backends
    assert "allowed by policy: eu" in theirs.error
    assert others.backend is not None
    bad = policy(allow("a.example"), target="HTTPRoute infra/route")
    made = compiled(gateway(), backend, grant(kind="HTTPRoute"), bad)
    assert of_policy(made, "Accepted", "a/own")[1] == "NotEnforceable"
    assert not listener(made).http_routes[0].rules[0].backends[0].error


def test_a_broken_restriction_closes_the_place_for_its_own_clients_alone():
    made = compiled(SHARED, owner(allow("a.example")), policy("tls: {caBundleRefs: [{kind: ConfigMap, name: gone}]}"))
    assert default(of_team(made, "a/own")).backend is None
    assert default(listener(made)).backend is not None
    assert of_policy(made, "Accepted", "infra/owner")[0] == "True"


def test_made_up_keys_of_a_limit_take_no_more_memory_than_by_default():
    many = "limits: {requests: [{per: Header, header: X-Key, limit: 1}], maxKeys: 4000000}"
    (placed,) = of_team(compiled(SHARED, policy(many)), "a/own").extensions
    assert '"maxKeys":16384' in placed.config
