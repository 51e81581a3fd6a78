from __future__ import annotations

import json
from ipaddress import ip_address
from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.name_server import NameAddresses, NameDenials, NameServerIR
from egressproxy.ir.policy import (
    ConnectionsIR,
    DnsIR,
    Dnssec,
    Family,
    Mode,
    PolicyIR,
    ReverseCheck,
    SubjectIR,
)
from egressproxy.upstream.dns_server import parse_server
from tests.config.compile.kit import (
    DYNAMIC,
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
from tests.support.pki import Pki, chain

OLDER = 'creationTimestamp: "2024-01-01T00:00:00Z"'
YOUNGER = 'creationTimestamp: "2025-01-01T00:00:00Z"'


# --- settings --------------------------------------------------------------------------------------------------------


def test_without_policy_nothing_is_allowed_and_the_defaults_hold():
    spec = on_gateway()
    assert spec == PolicyIR()
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
    assert spec.kept == ConnectionsIR(8.0, 9)
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


def test_a_policy_for_one_port_of_a_backend_goes_before_one_for_all_of_it():
    timeout = "traffic: {{timeouts: {{connect: {}s}}}}"
    whole = policy(timeout.format(1), "Backend", "plain", policy_name="a", meta=OLDER)
    port = policy(timeout.format(2), "Backend", "plain", policy_name="b").replace(
        "name: plain}", "name: plain, sectionName: '80'}"
    )
    assert rule(compiled(FORWARD, PLAIN, ROUTE, whole, port)).backends[0].policy.timeouts.connect_s == 2.0


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
    assert rule(made).backends[0].policy.kept == ConnectionsIR(60.0, 0)
    assert listener(made).policy.kept == ConnectionsIR(300.0, 100)
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


def test_what_dns_says_of_answers_is_read():
    made = on_gateway(
        policy("""
dns:
  maxNegativeTTL: 5s
  prefetch: false
  dnssec: Require
  family: IPv6Preferred
  reverseCheck: Enforce
  newNames: {limit: 30, window: 10s}
""")
    ).dns
    assert made == DnsIR(
        max_negative_ttl_s=5.0, prefetch=False, dnssec=Dnssec.REQUIRE, family=Family.IPV6_PREFERRED,
        reverse_check=ReverseCheck.ENFORCE, new_names=30, new_names_window_s=10.0,
    )  # fmt: skip


def test_each_field_of_a_name_server_is_the_most_specific_one():
    section = "nameServer: {addresses: Gateway, gatewayAddresses: [192.0.2.7], queries: {limit: 5}, maxTTL: 10s}"
    of_listener = "nameServer: {denials: NXDomain, newNames: {limit: 7, window: 2s}, maxTTL: 5s}"
    narrow = (
        policy(of_listener)
        .replace("name: gw}]", "name: gw, sectionName: forward}]")
        .replace("name: policy", "name: narrow")
    )
    made = listener(compiled(FORWARD, policy(section), narrow)).policy
    assert made.name_server == NameServerIR(
        NameAddresses.GATEWAY, (ip_address("192.0.2.7"),), NameDenials.NXDOMAIN, 5.0, 5, 1.0, 7, 2.0
    )


def test_the_resolver_of_a_backend_goes_before_its_policies():
    backend = PLAIN.replace("spec:", "spec:\n  resolver: {servers: [10.0.0.7]}")
    made = compiled(FORWARD, backend, ROUTE, policy("dns: {servers: [10.0.0.1]}", "Backend", "plain"))
    assert rule(made).backends[0].policy.dns.servers == ("10.0.0.7",)
    assert "Backend default/plain" in of_policy(made, "Conflicted")[2]


def test_a_ceiling_below_the_default_floor_lowers_it():
    spec = on_gateway(policy("dns: {maxTTL: 500ms}"))
    assert (spec.dns.min_ttl_s, spec.dns.max_ttl_s) == (0.5, 0.5)


# --- the TLS floor ---------------------------------------------------------------------------------------------------


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


def test_cas_of_dns_servers_belong_to_the_servers():
    one, two = Pki(), Pki()
    cas = [config_map("one", "ca.crt", one.ca_pem), config_map("two", "ca.crt", two.ca_pem)]
    own = "{servers: ['tls://10.0.0.7'], caCertificateRefs: [{kind: ConfigMap, name: %s}]}"
    backend = PLAIN.replace("spec:", f"spec:\n  resolver: {own % 'two'}")
    made = compiled(FORWARD, *cas, backend, ROUTE, policy(f"dns: {own % 'one'}"))
    dns = listener(made).policy.dns
    assert (dns.ca_pem.strip(), dns.ca_source) == (one.ca_pem.strip(), "ConfigMap default/one")
    of_backend = rule(made).backends[0].policy.dns
    assert (of_backend.ca_pem.strip(), of_backend.ca_source) == (two.ca_pem.strip(), "ConfigMap default/two")
    plain = PLAIN.replace("spec:", "spec:\n  resolver: {servers: ['tls://10.0.0.7']}")
    made = compiled(FORWARD, *cas, plain, ROUTE, policy(f"dns: {own % 'one'}"))
    assert rule(made).backends[0].policy.dns.ca_pem == ""


def test_a_ca_of_dns_servers_that_is_not_there_closes_the_place():
    section = "{servers: ['tls://10.0.0.7'], caCertificateRefs: [{kind: ConfigMap, name: gone}]}"
    made = compiled(FORWARD, PLAIN, ROUTE, policy(f"dns: {section}"))
    status, reason, message = of_policy(made, "Accepted")
    assert (status, reason) == ("False", "NotEnforceable")
    assert "requests here are refused: dns.caCertificateRefs: ConfigMap default/gone does not exist" in message
    default = listener(made).default_backend
    assert default is not None
    assert default.backend is rule(made).backends[0].backend is None
    made = compiled(FORWARD, PLAIN.replace("spec:", f"spec:\n  resolver: {section}"), ROUTE)
    assert rule(made).backends[0].backend is None
    of_backend = made.statuses["egressproxy.io", "Backend", "default", "plain"]["conditions"]
    found = next(each for each in of_backend if each["type"] == "ResolvedRefs")
    assert found["status"] == "False"
    assert found["message"].startswith("spec.resolver.caCertificateRefs: ConfigMap default/gone")


def test_cas_without_a_dns_server_over_tls_are_told_of():
    section = "dns: {servers: [10.0.0.7], caCertificateRefs: [{kind: ConfigMap, name: one}]}"
    made = compiled(FORWARD, PLAIN, ROUTE, policy(section), config_map("one", "ca.crt", Pki().ca_pem))
    assert "dns.caCertificateRefs does nothing" in of_policy(made, "Accepted")[2]


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
        "dns: {servers: ['https://dns.example/q']}",
        "identity: {token: {issuers: [{issuer: a, audiences: [b], jwksRef: {kind: ConfigMap, name: keys}}]}}",
        "identity: {basic: {secretRef: {name: users}}}",
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
    made = compiled(FORWARD, PLAIN, ROUTE, policy("dns: {servers: ['https://dns.example/q']}", "HTTPRoute", "route"))
    assert rule(made).backends[0].backend is None
    default = listener(made).default_backend
    assert default is not None
    assert default.backend is not None


def test_dns_servers_over_https_are_left_out_where_others_are_there():
    made = compiled(FORWARD, policy("dns: {servers: ['https://dns.example/q', 'udp://10.0.0.1']}"))
    assert listener(made).policy.dns.servers == ("10.0.0.1",)
    assert "https://dns.example/q does nothing" in of_policy(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("server", "hosts", "expected"),
    [
        ("https://192.0.2.1/q#dns.example", "", "https://192.0.2.1/q#dns.example"),
        ("https://[2001:db8::1]", "", "https://[2001:db8::1]"),
        ("https://dns.example/q", "hosts: {dns.example: [192.0.2.1]}", "https://192.0.2.1/q#dns.example"),
        ("https://Dns.example:8443", "hosts: {dns.example: ['2001:db8::1']}", "https://[2001:db8::1]:8443#dns.example"),
        ("https://dns.example/#a.example", "hosts: {dns.example: [192.0.2.1]}", "https://192.0.2.1/#a.example"),
    ],
)
def test_a_dns_server_over_https_is_asked_at_an_address(server: str, hosts: str, expected: str):
    made = compiled(FORWARD, policy(f"dns:\n  servers: ['{server}']\n  {hosts}"))
    assert listener(made).policy.dns.servers == (expected,)
    assert parse_server(expected).transport == "https"
    assert of_policy(made, "Accepted")[0] == "True"


CA_PEM, CA_KEY = new_ca("tests", time(), 30)
INTERCEPT = "intercept: {hostnames: ['*.a.example'], caCertificateRef: {name: ca}}"


def ca_secret(chain: str = CA_PEM, key: bytes = CA_KEY.reveal()) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "ca"},
            "stringData": {"tls.crt": chain, "tls.key": key.decode()},
        }
    )


def test_tunnels_to_names_are_opened_with_the_ca_of_their_policy():
    allow = "destinations: {allow: [{hostnames: ['*.example']}]}"
    made = compiled(FORWARD, policy(f"{INTERCEPT}\n{allow}"), ca_secret())
    spec = listener(made).policy
    assert spec.destinations.deny == ()
    assert [(each.hostnames, each.policy) for each in spec.intercepts] == [(("*.a.example",), "default/policy")]
    assert spec.intercepts[0].chain_pem.strip() == CA_PEM.strip()
    assert of_policy(made, "Accepted")[0] == "True"


@pytest.mark.parametrize("wrong", ["gone", "a leaf"])
def test_names_to_intercept_are_denied_where_that_cannot_be_done(wrong: str):
    leaf = Pki().issue("a.example")
    secrets = {"gone": [], "a leaf": [ca_secret(chain(leaf), leaf.private_key_pem.bytes())]}
    made = compiled(FORWARD, policy(f"{INTERCEPT}\ndestinations: {{allow: []}}"), *secrets[wrong])
    assert [entry.hostnames for entry in listener(made).policy.destinations.deny] == [("*.a.example",)]
    assert listener(made).policy.intercepts == ()
    told = of_policy(made, "ResolvedRefs")
    assert told[0] == "False"
    assert "the names that it lists are denied" in told[2]


@pytest.mark.parametrize(
    ("name", "permitted", "excluded", "is_outside"),
    [
        ("*.a.example", (), (), False),
        ("*.a.example", ("example",), (), False),
        ("*.a.example", ("b.example",), (), True),
        ("*.a.example", ("x.a.example",), (), True),
        ("*.a.example", (), ("a.example",), True),
        ("*.a.example", (), ("bank.a.example",), True),
        ("*.a.example", (), ("b.example",), False),
        ("*", (), (), False),
        ("*", ("example",), (), True),
        ("*", (), ("a.example",), True),
    ],
)
def test_names_for_which_no_client_believes_the_ca_are_told(
    name: str, permitted: tuple[str, ...], excluded: tuple[str, ...], is_outside: bool
):
    ca_pem, key = new_ca("tests", time(), 30, permitted, excluded)
    made = compiled(FORWARD, policy(INTERCEPT.replace("*.a.example", name)), ca_secret(ca_pem, key.reveal()))
    accepted = of_policy(made, "Accepted")
    assert accepted[0] == "True"
    assert (f"no client believes the CA for {name}, by its name constraints" in accepted[2]) is is_outside
    assert listener(made).policy.intercepts


def issued_secret(name: str, subject: object, *, key: bool = True, of: str = "policy") -> str:
    said = json.loads(ca_secret())
    said["metadata"]["name"] = name
    said["type"] = "egressproxy.io/interception-ca"
    said["stringData"] |= {"policy": of, "subject": json.dumps(subject)}
    if not key:
        del said["stringData"]["tls.key"]
    return json.dumps(said)


def test_cas_of_clients_come_in_order_and_those_that_cannot_be_read_are_closed():
    section = """intercept:
  hostnames: ['*.a.example']
  bySubject:
  - {subjects: [{namespace: a}, {identity: b/users#c}], caCertificateRef: {name: ca}}
  - {subjects: [{namespace: b}], caCertificateRef: {name: gone}}
  - {subjects: [{group: g, claim: {name: c, value: v}}], caCertificateRef: {name: ca}}
"""
    made = compiled(FORWARD, policy(section), ca_secret())
    (found,) = listener(made).policy.intercepts
    assert found.chain_pem == ""
    shown = [(each.subjects, each.secret, bool(each.chain_pem), each.why) for each in found.by_subject]
    assert shown == [
        ((SubjectIR("a"), SubjectIR(identity="b/users#c")), "default/ca", True, ""),
        ((SubjectIR("b"),), "default/gone", False, "it cannot be read"),
        ((SubjectIR(group="g", claim=("c", "v")),), "default/ca", True, ""),
    ]
    told = of_policy(made, "ResolvedRefs")[2]
    assert "spec.intercept.bySubject[1].caCertificateRef" in told
    assert "its clients are refused" in told


def test_cas_that_were_made_go_before_others_and_the_more_specific_client_first():
    section = (
        "intercept: {hostnames: ['*.a.example'],"
        " bySubject: [{subjects: [{namespace: a}], caCertificateRef: {name: ca}}]"
    )
    secrets = [
        issued_secret("a-account", {"namespace": "a", "serviceAccount": "x"}, key=False),
        issued_secret("b-account", {"namespace": "a", "serviceAccount": "x"}),
        issued_secret("namespace", {"namespace": "a"}),
        issued_secret("name", {"identity": "spiffe://t/ns/a/sa/x"}),
        issued_secret("broken", {"nobody": 1}),
        issued_secret("other", {"namespace": "a"}, of="other"),
    ]
    made = compiled(FORWARD, policy(section + ", issuing: {}}"), ca_secret(), *secrets)
    (found,) = listener(made).policy.intercepts
    assert [(each.secret, each.why) for each in found.by_subject] == [
        ("default/name", ""),
        ("default/b-account", ""),
        ("default/a-account", "it was withdrawn"),
        ("default/namespace", ""),
        ("default/ca", ""),
    ]
    assert "Secret broken: its entry subject is no subject" in of_policy(made, "ResolvedRefs")[2]
    made = compiled(FORWARD, policy(section + "}"), ca_secret(), *secrets)
    assert [each.secret for each in listener(made).policy.intercepts[0].by_subject] == ["default/ca"]


def test_interception_is_for_gateways():
    made = compiled(FORWARD, PLAIN, ROUTE, policy(INTERCEPT, "HTTPRoute", "route"), ca_secret())
    assert "intercept is for Gateways" in of_policy(made, "Accepted")[2]
    assert [entry.hostnames for entry in rule(made).policy.destinations.deny] == [("*.a.example",)]
    assert listener(made).policy.intercepts == ()


def test_a_dynamic_backends_policy_is_that_of_its_route():
    route = ROUTE.replace("name: plain}", "name: dynamic}")
    made = compiled(FORWARD, DYNAMIC, route, policy("addresses: {allow: [{cidrs: [10.0.0.0/8]}]}"))
    assert rule(made).backends[0].policy.addresses.allow
