from __future__ import annotations

from ipaddress import ip_network

import pytest

from egressproxy.ir.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    DestinationRule,
    Mode,
    NameDenial,
    PolicyIR,
    SniCheck,
)
from tests.config.compile.kit import (
    FORWARD,
    PLAIN,
    ROUTE,
    compiled,
    listener,
    of_policy,
    on_gateway,
    policy,
    rule,
)


def allowed(spec: PolicyIR) -> list[list[str]]:
    return [[name for entry in group for name in entry.hostnames] for group in spec.destinations.allow]


def test_destinations_carry_names_ports_networks_and_who_wrote_them():
    spec = on_gateway(
        policy("""
destinations:
  allow: [{hostnames: ["*.a.example"], ports: [443], sni: Any}, {cidrs: [10.0.0.0/8]}]
  deny: [{hostnames: [b.a.example]}]
""")
    )
    ((names, networks),) = spec.destinations.allow
    assert (names.hostnames, names.ports, names.sni, names.policy) == (
        ("*.a.example",),
        (443,),
        SniCheck.ANY,
        "default/policy",
    )
    assert networks.cidrs == (ip_network("10.0.0.0/8"),)
    assert spec.destinations.deny[0].hostnames == ("b.a.example",)


def test_policies_of_one_level_unite_what_they_allow():
    first = policy("destinations: {allow: [{hostnames: [a.example]}]}", policy_name="a")
    second = policy("destinations: {allow: [{hostnames: [b.example]}]}", policy_name="b")
    assert allowed(on_gateway(first, second)) == [["a.example", "b.example"]]


def test_gateway_and_listener_are_two_groups_that_both_have_to_allow():
    first = policy("destinations: {allow: [{hostnames: [a.example]}]}", policy_name="a")
    second = policy("destinations: {allow: []}", policy_name="b").replace(
        "name: gw}", "name: gw, sectionName: forward}"
    )
    assert allowed(on_gateway(first, second)) == [["a.example"], []]


def test_a_policy_that_says_nothing_of_allow_is_no_group():
    assert on_gateway(policy("destinations: {deny: [{hostnames: [a.example]}]}")).destinations.allow == ()


def test_a_route_is_a_permission_and_no_deny_is_lifted_by_it():
    gateway = policy("destinations: {allow: [], deny: [{hostnames: [b.example]}]}")
    spec = rule(compiled(FORWARD, PLAIN, ROUTE, gateway)).policy
    assert spec.destinations.allow == ()
    assert [entry.hostnames for entry in spec.destinations.deny] == [("b.example",)]


def test_denials_of_every_level_add_up():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy("destinations: {deny: [{hostnames: [g.example]}]}", policy_name="g"),
        policy("destinations: {deny: [{hostnames: [r.example]}]}", "HTTPRoute", "route", policy_name="r"),
        policy("destinations: {deny: [{hostnames: [b.example]}]}", "Backend", "plain", policy_name="b"),
    )
    denied = {name for entry in rule(made).policy.destinations.deny for name in entry.hostnames}
    assert denied == {"g.example", "r.example", "b.example"}
    assert [entry.hostnames for entry in listener(made).policy.destinations.deny] == [("g.example",)]


def test_an_allow_list_on_a_route_closes_the_rule_until_it_is_enforced():
    made = compiled(
        FORWARD, PLAIN, ROUTE, policy("destinations: {allow: [{hostnames: [a.example]}]}", "HTTPRoute", "route")
    )
    assert rule(made).backends[0].backend is None
    assert of_policy(made, "Accepted")[:2] == ("False", "NotEnforceable")


def test_addresses_are_one_group_per_level():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy("addresses: {allow: [{cidrs: [10.0.0.0/8]}]}", policy_name="g"),
        policy("addresses: {allow: [{hostnames: [a.example]}]}", "Backend", "plain", policy_name="b"),
    )
    assert listener(made).policy.addresses.allow == ((AddressAllowance(cidrs=(ip_network("10.0.0.0/8"),)),),)
    assert rule(made).backends[0].policy.addresses.allow == (
        (AddressAllowance(cidrs=(ip_network("10.0.0.0/8"),)),),
        (AddressAllowance(hostnames=("a.example",)),),
    )


@pytest.mark.parametrize(("written", "of_one"), [("", (75, 38)), (", connectionsPerClient: 0", (100, 50))])
def test_one_client_gets_three_quarters_unless_somebody_lifts_that(written: str, of_one: tuple[int, int]):
    limits = on_gateway(policy(f"limits: {{connections: 100, tunnels: 50{written}}}")).limits
    assert (limits.connections_per_client, limits.tunnels_per_client) == of_one


def test_of_two_limits_the_lower_holds():
    spec = on_gateway(
        policy("limits: {connections: 5, tunnels: 0}", policy_name="a"),
        policy("limits: {connections: 3, tunnels: 7}", policy_name="b"),
    )
    assert (spec.limits.connections, spec.limits.tunnels) == (3, 7)
    assert (spec.limits.connections_per_client, spec.limits.tunnels_per_client) == (3, 6), "three quarters, rounded up"


def test_what_is_held_of_bodies_has_bounds_which_a_policy_narrows_or_lifts():
    default = on_gateway(policy("limits: {connections: 5}")).limits
    mib = 1024 * 1024
    assert default.max_buffered_bytes == 32 * mib
    assert (default.buffered_bytes_per_client, default.buffered_bytes_per_connection) == (64 * mib, 64 * mib)
    report_only_denial = policy("limits: {maxBufferedBytes: 0, bufferedBytesPerClient: 0}", policy_name="a")
    limits = on_gateway(report_only_denial, policy("limits: {bufferedBytesPerConnection: 7}", policy_name="b")).limits
    assert (limits.max_buffered_bytes, limits.buffered_bytes_per_client) == (0, 0)
    assert limits.buffered_bytes_per_connection == 7
    assert (
        on_gateway(
            report_only_denial, policy("limits: {maxBufferedBytes: 8}", policy_name="b")
        ).limits.max_buffered_bytes
        == 8
    )


def test_a_region_lock_refuses_backends_of_other_regions():
    lock = policy("regions: {allowed: [eu]}")
    for region, is_served in (("eu", True), ("us", False), ("", False)):
        backend = PLAIN.replace("spec:", f"spec:\n  region: {region}") if region else PLAIN
        made = compiled(FORWARD, backend, ROUTE, lock)
        assert (rule(made).backends[0].backend is not None) is is_served
    default = listener(compiled(FORWARD, lock)).default_backend
    assert default is not None
    assert default.backend is None
    assert "region" in default.error


def test_region_locks_of_two_levels_intersect():
    backend = PLAIN.replace("spec:", "spec:\n  region: eu")
    made = compiled(
        FORWARD,
        backend,
        ROUTE,
        policy("regions: {allowed: [eu, us]}", policy_name="g"),
        policy("regions: {allowed: [us]}", "HTTPRoute", "route", policy_name="r"),
    )
    assert rule(made).backends[0].backend is None


# --- ranges that are closed ------------------------------------------------------------------------------------------
def test_denied_ranges_of_every_level_add_up_and_only_lists_intersect():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy("destinations: {deny: [{cidrs: [10.0.0.0/8], ports: [443]}]}", policy_name="g"),
        policy("addresses: {deny: [{cidrs: [11.0.0.0/8]}], only: [{cidrs: [12.0.0.0/8]}]}", policy_name="h"),
        policy("addresses: {deny: [{cidrs: [13.0.0.0/8]}], only: []}", "Backend", "plain", policy_name="b"),
    )
    ten, eleven, thirteen = (
        AddressDenial((ip_network("10.0.0.0/8"),), (443,), "default/g", "destinations.deny"),
        AddressDenial((ip_network("11.0.0.0/8"),), (), "default/h"),
        AddressDenial((ip_network("13.0.0.0/8"),), (), "default/b"),
    )
    twelve, nothing = AddressBound((ip_network("12.0.0.0/8"),), "default/h"), AddressBound((), "default/b")
    addresses = listener(made).policy.addresses
    assert (addresses.deny, addresses.only) == ((ten, eleven), (twelve,))
    addresses = rule(made).backends[0].policy.addresses
    assert (addresses.deny, addresses.only) == ((ten, eleven, thirteen), (twelve, nothing))


def test_only_lists_of_one_level_intersect_too():
    spec = on_gateway(
        policy("addresses: {only: [{cidrs: [10.0.0.0/8]}]}", policy_name="a"),
        policy("addresses: {only: [{cidrs: [11.0.0.0/8]}, {cidrs: [12.0.0.0/8]}]}", policy_name="b"),
    )
    assert [bound.policy for bound in spec.addresses.only] == ["default/a", "default/b"]


def test_what_narrows_says_nothing_of_what_is_allowed():
    wide = policy("addresses: {allow: [{cidrs: [10.0.0.0/8]}]}", policy_name="g")
    for section, groups in (
        ("{deny: [{cidrs: [10.9.0.0/16]}]}", 1), ("{only: []}", 1), ("{allow: [], deny: []}", 2), ("{}", 2),
    ):  # fmt: skip
        narrow = policy(f"addresses: {section}", "Backend", "plain", policy_name="b")
        made = compiled(FORWARD, PLAIN, ROUTE, wide, narrow)
        assert len(rule(made).backends[0].policy.addresses.allow) == groups


def test_report_mode_reports_what_destinations_deny_and_holds_what_addresses_deny():
    spec = on_gateway(
        policy(
            "mode: Report\ndestinations: {deny: [{cidrs: [10.0.0.0/8]}]}\naddresses: {deny: [{cidrs: [11.0.0.0/8]}]}"
        )
    )
    assert [denial.reports for denial in spec.addresses.deny] == [True, False]


@pytest.mark.parametrize(
    ("gateway", "section", "backend", "of_route", "reporting"),
    [
        ("", "", "", "", ""),
        ("Report", "", "", "", "gsbr"),
        ("", "Report", "", "", "sbr"),
        ("Report", "Enforce", "", "Report", "r"),
        ("", "", "Report", "", "b"),
        ("", "", "", "Report", "r"),
        ("", "", "Report", "Report", "br"),
        ("Report", "", "Enforce", "Report", "gsr"),
        ("Report", "Report", "Report", "Report", "gsbr"),
        ("Report", "", "Open", "", ""),
        ("Report", "", "", "Enforce", ""),
        ("Report", "", "", "Open", ""),
        ("Open", "", "", "Report", "r"),
    ],
)
def test_a_deny_reports_where_the_mode_of_its_layer_and_that_of_the_place_are_report(
    gateway: str, section: str, backend: str, of_route: str, reporting: str
):
    def saying(letter: str, mode: str, *target: str) -> str:
        deny = f"destinations: {{deny: [{{hostnames: [{letter}.example]}}, {{cidrs: [10.0.0.0/8]}}]}}"
        return policy(f"{deny}\n{f'mode: {mode}' if mode else ''}", *target, policy_name=letter)

    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        saying("g", gateway),
        saying("s", section).replace("name: gw}", "name: gw, sectionName: forward}"),
        saying("b", backend, "Backend", "plain"),
        saying("r", of_route, "HTTPRoute", "route"),
    )
    spec = rule(made).backends[0].policy

    def holds(each: DestinationRule) -> bool:
        return each.is_firm or spec.mode is not Mode.REPORT

    assert [each.policy[-1] for each in spec.destinations.deny if each.hostnames and not holds(each)] == list(reporting)
    assert [each.policy[-1] for each in spec.destinations.deny if each.cidrs and not holds(each)] == list(reporting)
    assert [each.policy[-1] for each in spec.addresses.deny if each.reports] == list(reporting)


def test_the_hostnames_of_a_deny_hold_for_names_on_the_way_as_well():
    deny = "destinations: {deny: [{hostnames: [a.example, b.example], ports: [443]}, {cidrs: [10.0.0.0/8]}]}"
    expected = NameDenial(("a.example", "b.example"), (443,), "default/policy")
    assert on_gateway(policy(deny)).addresses.denied_names == (expected,)
    (reported,) = on_gateway(policy(deny + "\nmode: Report")).addresses.denied_names
    assert reported.reports
