from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from egressproxy.spec.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    ConnectionsSpec,
    Family,
    Mode,
    PolicySpec,
    SniCheck,
)
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    ROUTE,
    compiled,
    listener,
    of_policy,
    policy,
    rule,
)
from tests.support.pki import Pki

OLDER = 'creationTimestamp: "2024-01-01T00:00:00Z"'
YOUNGER = 'creationTimestamp: "2025-01-01T00:00:00Z"'


def on_gateway(*policies: str) -> PolicySpec:
    return listener(compiled(FORWARD, *policies)).policy


def allowed(spec: PolicySpec) -> list[list[str]]:
    return [[name for entry in group for name in entry.hostnames] for group in spec.destinations.allow]


# --- settings --------------------------------------------------------------------------------------------------------


def test_without_policy_nothing_is_allowed_and_the_defaults_hold():
    spec = on_gateway()
    assert spec == PolicySpec()
    assert spec.destinations.allow == ()


def test_every_setting_arrives():
    spec = on_gateway(
        policy("""
mode: Report
dns: {servers: ["10.0.0.1:53"], transport: tcp, timeout: 2s, hosts: {a.example: [10.0.0.9]}, minTTL: 2s, maxTTL: 1m,
  staleTTL: 0s, family: IPv4}
traffic: {timeouts: {connect: 1s, tlsHandshake: 2s, requestHeaders: 3s, request: 4s, backendRequest: 3s, idle: 6s,
  tunnelIdle: 7s}, connections: {maxAge: 8s, maxRequests: 9}}
limits: {maxHeadBytes: 2048, maxFields: 7, connections: 8, connectionsPerClient: 9, tunnels: 10}
""")
    )
    assert spec.mode is Mode.REPORT
    assert spec.dns.servers == ("10.0.0.1:53",)
    assert (spec.dns.transport, spec.dns.timeout_s, spec.dns.family) == ("tcp", 2.0, Family.IPV4)
    assert spec.dns.hosts == (("a.example", (ip_address("10.0.0.9"),)),)
    assert (spec.dns.min_ttl_s, spec.dns.max_ttl_s, spec.dns.stale_ttl_s) == (2.0, 60.0, 0.0)
    times = spec.timeouts
    assert (times.connect_s, times.tls_handshake_s, times.request_headers_s, times.request_s) == (1.0, 2.0, 3.0, 4.0)
    assert (times.backend_request_s, times.idle_s, times.tunnel_idle_s) == (3.0, 6.0, 7.0)
    assert spec.kept == ConnectionsSpec(8.0, 9)
    limits = spec.limits
    assert (limits.max_head_bytes, limits.max_fields) == (2048, 7)
    assert (limits.connections, limits.connections_per_client, limits.tunnels) == (8, 9, 10)
    assert limits.tunnels_per_client == 9
    assert spec.sources == ("default/policy",)


def test_a_policy_without_timestamp_comes_after_those_with_one():
    made = compiled(
        FORWARD, policy("mode: Report", policy_name="a"), policy("mode: Open", policy_name="b", meta=YOUNGER)
    )
    assert listener(made).policy.mode is Mode.OPEN


def test_without_timestamps_the_name_decides():
    made = compiled(FORWARD, policy("mode: Report", policy_name="b"), policy("mode: Open", policy_name="a"))
    assert listener(made).policy.mode is Mode.OPEN


def test_equal_values_are_no_conflict():
    made = compiled(FORWARD, policy("mode: Report", policy_name="a"), policy("mode: Report", policy_name="b"))
    assert of_policy(made, "Conflicted", "default/b") == ("", "", "")


def test_a_listeners_policy_goes_before_the_gateways():
    section = policy("mode: Open", policy_name="b").replace("name: gw}", "name: gw, sectionName: forward}")
    made = compiled(FORWARD, policy("mode: Report", policy_name="a", meta=OLDER), section)
    assert listener(made).policy.mode is Mode.OPEN
    assert of_policy(made, "Overridden", "default/a")[:2] == ("True", "Overridden")
    assert "EgressPolicy default/b" in of_policy(made, "Overridden", "default/a")[2]


def test_route_goes_before_backend_goes_before_gateway():
    timeout = "traffic: {{timeouts: {{connect: {}s}}}}"
    gateway, backend, route = (
        policy(timeout.format(1), policy_name="g"),
        policy(timeout.format(2), "Backend", "plain", policy_name="b"),
        policy(timeout.format(3), "HTTPRoute", "route", policy_name="r"),
    )

    def connect(*policies: str) -> float:
        return rule(compiled(FORWARD, PLAIN, ROUTE, *policies)).backends[0].policy.timeouts.connect_s

    assert connect(gateway) == 1.0
    assert connect(gateway, backend) == 2.0
    assert connect(gateway, backend, route) == 3.0


def test_settings_are_merged_field_by_field():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy(
            "traffic: {timeouts: {connect: 1s, idle: 2s}}\ndns: {servers: [10.0.0.1], family: IPv4}", policy_name="g"
        ),
        policy("traffic: {timeouts: {idle: 3s}}\ndns: {family: IPv6}", "HTTPRoute", "route", policy_name="r"),
    )
    spec = rule(made).backends[0].policy
    assert (spec.timeouts.connect_s, spec.timeouts.idle_s) == (1.0, 3.0)
    assert (spec.dns.servers, spec.dns.family) == (("10.0.0.1",), Family.IPV6)


def test_what_ends_connections_is_merged_field_by_field_and_0_is_no_limit():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy("traffic: {connections: {maxAge: 5m, maxRequests: 100}}", policy_name="g"),
        policy("traffic: {connections: {maxRequests: 0}}", "Backend", "plain", policy_name="b"),
        policy("traffic: {connections: {maxAge: 1m}}", "HTTPRoute", "route", policy_name="r"),
    )
    assert rule(made).backends[0].policy.kept == ConnectionsSpec(60.0, 0)
    assert listener(made).policy.kept == ConnectionsSpec(300.0, 100)
    assert "traffic.connections.maxAge" in of_policy(made, "Overridden", "default/g")[2]


def test_the_transport_belongs_to_the_servers():
    made = compiled(
        FORWARD,
        PLAIN,
        ROUTE,
        policy("dns: {servers: ['tls://10.0.0.1'], transport: tls}", policy_name="g"),
        policy("dns: {servers: [10.0.0.2]}", "HTTPRoute", "route", policy_name="r"),
    )
    dns = rule(made).backends[0].policy.dns
    assert (dns.servers, dns.transport) == (("10.0.0.2",), "udp")


def test_the_resolver_of_a_backend_goes_before_its_policies():
    backend = PLAIN.replace("spec:", "spec:\n  resolver: {servers: [10.0.0.7]}")
    made = compiled(FORWARD, backend, ROUTE, policy("dns: {servers: [10.0.0.1]}", "Backend", "plain"))
    assert rule(made).backends[0].policy.dns.servers == ("10.0.0.7",)
    assert "Backend default/plain" in of_policy(made, "Conflicted")[2]


def test_a_ceiling_below_the_default_floor_lowers_it():
    spec = on_gateway(policy("dns: {maxTTL: 500ms}"))
    assert (spec.dns.min_ttl_s, spec.dns.max_ttl_s) == (0.5, 0.5)


# --- restrictions ----------------------------------------------------------------------------------------------------


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


def config_map(name: str, key: str, text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  {key}: |\n{lines}\n"


def tls_backend(more: str = "") -> str:
    return PLAIN.replace("number: 80, tls: {mode: None}", f"number: 443, tls: {{mode: Simple{more}}}")


def test_the_tls_floor_raises_what_the_backend_says():
    floor = policy("tls: {minVersion: '1.3'}")
    found = rule(compiled(FORWARD, tls_backend(), ROUTE, floor)).backends[0].backend
    assert found is not None
    assert found.tls is not None
    assert found.tls.min_version == "1.3"
    default = listener(compiled(FORWARD, floor)).default_backend
    assert default is not None
    assert default.backend is not None
    assert default.backend.tls is not None
    assert default.backend.tls.min_version == "1.3"


def test_the_floor_does_not_lower_the_version():
    found = rule(compiled(FORWARD, tls_backend(", minVersion: '1.3'"), ROUTE, policy("tls: {minVersion: '1.2'}")))
    assert found.backends[0].backend is not None
    assert found.backends[0].backend.tls is not None
    assert found.backends[0].backend.tls.min_version == "1.3"


def test_only_cas_that_policy_and_backend_share_are_trusted():
    one, two = Pki(), Pki()
    floor = policy("tls: {caBundleRefs: [{kind: ConfigMap, name: floor}]}")
    floor_ca = config_map("floor", "ca.crt", one.ca_pem)

    def trusted(*manifests: str) -> str:
        found = rule(compiled(FORWARD, ROUTE, floor, floor_ca, *manifests)).backends[0]
        return found.backend.tls.ca_pem.strip() if found.backend is not None and found.backend.tls else found.error

    mine = tls_backend(", caBundleRef: [{kind: ConfigMap, name: mine}]")
    assert trusted(tls_backend()) == one.ca_pem.strip()
    assert trusted(mine, config_map("mine", "ca.crt", one.ca_pem + two.ca_pem)) == one.ca_pem.strip()
    assert "no CA in common" in trusted(mine, config_map("mine", "ca.crt", two.ca_pem))
    assert "insecureSkipVerify" in trusted(tls_backend(", insecureSkipVerify: true"))


def test_a_floor_whose_ca_is_missing_closes_the_place():
    made = compiled(FORWARD, tls_backend(), ROUTE, policy("tls: {caBundleRefs: [{kind: ConfigMap, name: gone}]}"))
    assert rule(made).backends[0].backend is None


def test_pins_of_policy_and_backend_have_to_agree():
    pins = [f"sha256/{letter * 43}=" for letter in "AB"]
    floor = policy(f"tls: {{pins: ['{pins[0]}']}}")

    def pinned(more: str) -> tuple[str, ...]:
        found = rule(compiled(FORWARD, tls_backend(more), ROUTE, floor)).backends[0].backend
        return found.tls.pins if found is not None and found.tls is not None else ()

    assert pinned("") == (pins[0],)
    assert pinned(f", pins: ['{pins[0]}', '{pins[1]}']") == (pins[0],)
    assert pinned(f", pins: ['{pins[1]}']") == ()


def test_revocation_lists_add_up():
    one, two = Pki(), Pki()
    made = compiled(
        FORWARD,
        ROUTE,
        tls_backend(", crlRefs: [{kind: ConfigMap, name: one}]"),
        policy("tls: {crlRefs: [{kind: ConfigMap, name: two}]}"),
        config_map("one", "crl.pem", one.crl()),
        config_map("two", "crl.pem", two.crl()),
    )
    found = rule(made).backends[0].backend
    assert found is not None
    assert found.tls is not None
    assert found.tls.crl_pem.count("BEGIN X509 CRL") == 2


# --- what cannot be enforced -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections",
    [
        "dns: {reverseCheck: Enforce}",
        "dns: {transport: https}",
        "dns: {servers: ['https://dns.example/q']}",
        "identity: {token: {issuer: a, jwksRef: {kind: ConfigMap, name: keys}}}",
        "identity: {basic: {secretRef: {name: users}}}",
        "subjects: [{namespace: a}]\n"
        "extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers}]",
    ],
)
def test_what_would_let_more_pass_closes_the_place(sections: str):
    made = compiled(FORWARD, PLAIN, ROUTE, policy(sections))
    assert rule(made).backends[0].backend is None
    default = listener(made).default_backend
    assert default is not None
    assert default.backend is None
    assert of_policy(made, "Accepted")[:2] == ("False", "NotEnforceable")


def test_a_closed_place_leaves_other_places_open():
    made = compiled(FORWARD, PLAIN, ROUTE, policy("dns: {reverseCheck: Enforce}", "HTTPRoute", "route"))
    assert rule(made).backends[0].backend is None
    default = listener(made).default_backend
    assert default is not None
    assert default.backend is not None


def test_dns_servers_over_https_are_left_out_where_others_are_there():
    made = compiled(FORWARD, policy("dns: {servers: ['https://dns.example/q', 'udp://10.0.0.1']}"))
    assert listener(made).policy.dns.servers == ("10.0.0.1",)
    assert "over HTTPS" in of_policy(made, "Accepted")[2]


def test_names_to_intercept_are_denied():
    intercept = "intercept: {hostnames: ['*.a.example'], caCertificateRef: {name: ca}}"
    made = compiled(FORWARD, policy(f"{intercept}\ndestinations: {{allow: [{{hostnames: ['*.example']}}]}}"))
    assert [entry.hostnames for entry in listener(made).policy.destinations.deny] == [("*.a.example",)]
    assert "intercept" in of_policy(made, "Accepted")[2]


def test_what_a_policy_allows_some_clients_is_allowed_to_nobody():
    made = compiled(
        FORWARD,
        policy("""
subjects: [{namespace: agents}]
mode: Open
destinations: {allow: [{hostnames: [a.example]}], deny: [{hostnames: [b.example]}]}
addresses: {allow: [{cidrs: [10.0.0.0/8]}]}
dns: {servers: [10.0.0.1]}
traffic: {timeouts: {connect: 1s}}
"""),
    )
    spec = listener(made).policy
    assert spec.mode is Mode.ENFORCE
    assert allowed(spec) == [[]]
    assert [entry.hostnames for entry in spec.destinations.deny] == [("b.example",)]
    assert spec.addresses.allow == ((),)
    assert spec.dns.servers == ()
    assert spec.timeouts == PolicySpec().timeouts
    assert of_policy(made, "Accepted")[0] == "True"
    assert "subjects" in of_policy(made, "Accepted")[2]


def test_enforcing_for_some_clients_enforces_for_all():
    section = policy("subjects: [{namespace: agents}]\nmode: Enforce", policy_name="b")
    section = section.replace("name: gw}", "name: gw, sectionName: forward}")
    made = compiled(FORWARD, policy("mode: Open", policy_name="a"), section)
    assert listener(made).policy.mode is Mode.ENFORCE


def test_a_dynamic_backends_policy_is_that_of_its_route():
    route = ROUTE.replace("name: plain}", "name: dynamic}")
    made = compiled(FORWARD, DYNAMIC, route, policy("addresses: {allow: [{cidrs: [10.0.0.0/8]}]}"))
    assert rule(made).backends[0].policy.addresses.allow


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


def test_what_a_policy_for_some_clients_closes_is_closed_for_all():
    spec = on_gateway(
        policy("subjects: [{namespace: a}]\naddresses: {deny: [{cidrs: [11.0.0.0/8]}], only: [{cidrs: [12.0.0.0/8]}]}")
    )
    assert spec.addresses.deny
    assert spec.addresses.only
