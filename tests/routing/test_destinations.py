"""Who may be reached: deny beats allow, every level has to agree, nothing said allows nothing."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination
from egressproxy.ir.policy import DestinationRule, DestinationsIR, Mode, SniCheck
from egressproxy.model.authority import parse_authority
from egressproxy.routing.destinations import MAX_KNOWN, DestinationPolicy


def rule(*hostnames: str, **more: object) -> DestinationRule:
    return DestinationRule(hostnames, policy="ns/p", **more)  # type: ignore[arg-type]


def reason(spec: DestinationsIR, authority: bytes, *sources: str) -> Reason | None:
    refused = DestinationPolicy(spec, sources).decide(parse_authority(authority, None))
    return refused.reason if refused is not None else None


NO = Reason.DESTINATION_NOT_ALLOWED


@pytest.mark.parametrize(
    ("entry", "authority", "expected"),
    [
        (rule("a.test"), b"a.test:443", None),
        (rule("a.test"), b"A.TEST:443", None),
        (rule("a.test"), b"a.test.:443", None),
        (rule("a.test"), b"b.a.test:443", NO),
        (rule("a.test"), b"xa.test:443", NO),
        (rule("*.a.test"), b"b.a.test:443", None),
        (rule("*.a.test"), b"c.b.a.test:443", None),
        (rule("*.a.test"), b"a.test:443", NO),
        (rule("*.a.test"), b"xa.test:443", NO),
        (rule("a.test", ports=(443,)), b"a.test:80", NO),
        (rule(ports=(443,)), b"any.test:443", None),
        (rule(ports=(443,)), b"any.test:80", NO),
        (rule(cidrs=(ip_network("10.0.0.0/8"),)), b"10.1.2.3:443", None),
        (rule(cidrs=(ip_network("10.0.0.0/8"),)), b"11.1.2.3:443", NO),
        (rule(cidrs=(ip_network("10.0.0.0/8"),)), b"ten.test:443", NO),
        (rule(cidrs=(ip_network("::/0"),)), b"10.1.2.3:443", NO),
        (rule(cidrs=(ip_network("2001:db8::/32"),), ports=(443,)), b"[2001:db8::1]:443", None),
        (rule(cidrs=(ip_network("2001:db8::/32"),), ports=(443,)), b"[2001:db8::1]:80", NO),
    ],
)
def test_one_entry(entry: DestinationRule, authority: bytes, expected: Reason | None):
    assert reason(DestinationsIR(allow=((entry,),)), authority) is expected


def test_nothing_said_allows_nothing():
    assert reason(DestinationsIR(), b"a.test:443") is Reason.NO_POLICY
    assert reason(DestinationsIR(), b"a.test:443", "ns/p") is NO
    assert reason(DestinationsIR(allow=((),)), b"a.test:443", "ns/p") is NO


def test_deny_beats_allow_also_where_allow_is_more_specific():
    spec = DestinationsIR(allow=((rule("a.b.test"),),), deny=(rule("*.test"),))
    assert reason(spec, b"a.b.test:443") is Reason.DESTINATION_DENIED


def test_a_deny_of_one_port_leaves_the_others():
    spec = DestinationsIR(allow=((rule("a.test"),),), deny=(rule("a.test", ports=(80,)),))
    assert reason(spec, b"a.test:80") is Reason.DESTINATION_DENIED
    assert reason(spec, b"a.test:443") is None


def test_a_wildcard_counts_where_the_exact_entry_has_another_port():
    spec = DestinationsIR(allow=((rule("a.b.test", ports=(80,)), rule("*.b.test", ports=(443,))),))
    assert reason(spec, b"a.b.test:443") is None


def test_policies_of_one_level_unite_and_levels_intersect():
    spec = DestinationsIR(allow=((rule("a.test"), rule("b.test")), (rule("b.test"), rule("c.test"))))
    assert [reason(spec, host + b".test:443") for host in (b"a", b"b", b"c")] == [NO, None, NO]


def test_a_refusal_says_what_to_add():
    refused = DestinationPolicy(DestinationsIR(allow=((rule("a.test"),),))).decide(
        parse_authority(b"b.test:8443", None)
    )
    assert refused is not None
    assert refused.remedy == 'add {hostnames: ["b.test"], ports: [8443]} to destinations.allow'
    assert refused.rule == "EgressPolicy ns/p"


def test_a_refusal_of_an_address_says_under_which_key_and_what_else_it_takes():
    policy = DestinationPolicy(DestinationsIR(allow=((rule("a.test"),),)))
    for address, more in (("1.1.1.1", ""), ("10.0.0.7", "; add it to addresses.allow, too, since it is not public")):
        refused = policy.decide(parse_authority(f"{address}:80".encode(), None))
        assert refused is not None
        assert refused.remedy == f'add {{cidrs: ["{address}"], ports: [80]}} to destinations.allow{more}'


def test_a_refusal_for_the_port_alone_says_so():
    allowed = rule("a.test", "*.b.test", cidrs=(ip_network("192.0.2.0/24"),), ports=(443,))
    policy = DestinationPolicy(DestinationsIR(allow=((allowed,),)))
    for authority, found in (
        (b"a.test:81", "a.test is not allowed on port 81 by policy ns/p"),
        (b"c.b.test:81", "c.b.test is not allowed on port 81 by policy ns/p"),
        (b"192.0.2.9:81", "192.0.2.9 is not allowed on port 81 by policy ns/p"),
        (b"b.test:81", "b.test is not allowed by policy ns/p"),
        (b"192.0.3.9:443", "192.0.3.9 is not allowed by policy ns/p"),
    ):
        refused = policy.decide(parse_authority(authority, None))
        assert refused is not None
        assert str(refused) == found


def test_a_refusal_of_cloud_metadata_does_not_say_how_to_open_it():
    policy = DestinationPolicy(DestinationsIR(allow=((rule("a.test"),),)))
    for address in (b"169.254.169.254:80", b"[fd00:ec2::254]:80", b"[::ffff:169.254.169.254]:80"):
        refused = policy.decide(parse_authority(address, None))
        assert refused is not None
        assert refused.remedy.startswith("leave it closed")


def test_sni_is_checked_unless_every_level_says_otherwise():
    free, strict = rule("a.test", sni=SniCheck.ANY), rule("a.test")
    authority = parse_authority(b"a.test:443", None)

    def check(*groups: tuple[DestinationRule, ...]) -> SniCheck:
        return DestinationPolicy(DestinationsIR(allow=groups)).sni_check(authority)

    assert check((free,)) is SniCheck.ANY
    assert check((free,), (free,)) is SniCheck.ANY
    assert check((free,), (strict,)) is SniCheck.MATCH
    assert check() is SniCheck.MATCH


def test_what_was_allowed_is_known_again_by_host_and_port_and_what_was_refused_is_not():
    entry = rule("*.a.test", ports=(443,), sni=SniCheck.ANY)
    policy = DestinationPolicy(DestinationsIR(allow=((entry,),)))
    for _ in range(3):
        for host in range(MAX_KNOWN + 10):
            allowed = parse_authority(b"h%d.a.test:443" % host, None)
            assert policy.decide(allowed) is None
            assert policy.sni_check(allowed) is SniCheck.ANY
        assert policy.decide(parse_authority(b"h1.a.test:80", None)) is not None
        assert policy.decide(parse_authority(b"a.test:443", None)) is not None
        assert len(policy._allowed) <= MAX_KNOWN


@pytest.mark.parametrize(
    "authority",
    [
        b"10.1.2.3:443",
        b"[::ffff:10.1.2.3]:443",
        b"[64:ff9b::a01:203]:443",
        b"[2002:a01:203::]:443",
        b"[2a00::5efe:a01:203]:443",
    ],
)
def test_no_spelling_of_a_denied_address_passes(authority: bytes):
    spec = DestinationsIR(
        allow=((rule(cidrs=(ip_network("0.0.0.0/0"), ip_network("::/0"))),),),
        deny=(rule(cidrs=(ip_network("10.0.0.0/8"),), ports=(443,)),),
    )
    assert reason(spec, authority) is Reason.DESTINATION_DENIED
    assert reason(spec, authority.replace(b":443", b":80")) is None


def test_an_allowed_range_does_not_allow_another_spelling_of_it():
    spec = DestinationsIR(allow=((rule(cidrs=(ip_network("10.0.0.0/8"),)),),))
    assert reason(spec, b"[::ffff:10.1.2.3]:443") is NO


# --- backends: the place, not the spelling ---------------------------------------------------------------------------
def fqdn(hostname: str, port: int = 443, parent: BackendIR | None = None) -> BackendIR:
    return BackendIR("ns/b", Destination.FQDN, hostname, port, tls=BackendTlsIR(), parent=parent)


@pytest.mark.parametrize(
    ("entry", "backend", "is_denied"),
    [
        (rule("b.test"), fqdn("b.test"), True),
        (rule("*.test"), fqdn("b.test"), True),
        (rule("*.b.test"), fqdn("b.test"), False),
        (rule("b.test", ports=(443,)), fqdn("b.test"), True),
        (rule("b.test", ports=(80,)), fqdn("b.test"), False),
        (rule("b.test"), BackendIR("ns/b", Destination.DYNAMIC), False),
        (rule("p.test"), fqdn("b.test", parent=fqdn("p.test", 3128)), True),
        (rule("p.test", ports=(3128,)), BackendIR("ns/b", Destination.DYNAMIC, parent=fqdn("p.test", 3128)), True),
        (rule("b.test", intercepts=True), fqdn("b.test"), False),
    ],
)
def test_a_deny_holds_for_a_backend_of_that_name_and_for_its_parents(
    entry: DestinationRule, backend: BackendIR, is_denied: bool
):
    denial = DestinationPolicy(DestinationsIR(deny=(entry,))).explicit_deny_of(backend)
    assert (denial is not None) is is_denied


def test_what_is_to_be_intercepted_hides_no_deny_of_the_same_name():
    policy = DestinationPolicy(DestinationsIR(deny=(rule("b.test", intercepts=True), rule("b.test"))))
    assert policy.explicit_deny_of(fqdn("b.test")) is not None


def test_a_name_that_cannot_be_intercepted_is_told_where_the_cause_stands():
    denied = DestinationPolicy(DestinationsIR(deny=(rule("b.test", intercepts=True),))).explicit_deny(
        parse_authority(b"b.test:443", None)
    )
    assert denied is not None
    assert "status of that policy" in denied.remedy
    assert "intercept.hostnames" in denied.remedy


def test_of_several_denies_that_match_one_that_report_mode_does_not_lift_decides():
    deny = (rule("b.test"), rule("*.test", is_firm=True), rule("p.test", is_firm=True), rule("b.other"))
    policy = DestinationPolicy(DestinationsIR(deny=deny))
    for host, is_firm in ((b"b.test:443", True), (b"c.test:443", True), (b"b.other:443", False)):
        denied = policy.explicit_deny(parse_authority(host, None))
        assert denied is not None
        assert denied.is_firm is is_firm
    denial = policy.explicit_deny_of(fqdn("b.other", parent=fqdn("p.test", 3128)))
    assert denial is not None
    assert denial.holds(Mode.REPORT)
    assert denial.authority.host == "p.test"


def test_an_allow_list_that_no_mode_lifts_decides_before_a_deny_that_mode_report_lifts():
    spec = DestinationsIR(((rule("a.test"),), (rule("b.test"),)), (rule("a.test"), rule("b.test")), firm_allow=1)
    policy = DestinationPolicy(spec)
    for host, why, is_firm in (("a.test", Reason.DESTINATION_DENIED, False), ("b.test", NO, True)):
        for ask in (policy.decide, policy.decide_firm):
            denied = ask(parse_authority(f"{host}:443".encode(), None))
            assert denied is not None
            assert (denied.reason, denied.is_firm) == (why, is_firm)


def test_a_denial_says_the_same_of_a_name_and_of_a_backend_and_names_the_entry():
    policy = DestinationPolicy(DestinationsIR(deny=(rule("a.test", "*.test", ports=(443, 8443)),)))
    named = policy.explicit_deny(parse_authority(b"b.test:443", None))
    denial = policy.explicit_deny_of(fqdn("b.test"))
    assert named is not None
    assert denial is not None
    behind = denial.error()
    assert named.message == behind.message == "b.test is denied on port 443 by policy ns/p"
    assert named.rule == behind.rule == "EgressPolicy ns/p"
    assert named.remedy == behind.remedy == "remove or narrow its entry in destinations.deny of that policy"
    entry = 'denied by {hostnames: ["*.test"], ports: [443, 8443]} in destinations.deny'
    assert named.detail == entry
    assert behind.detail == f"backend ns/b leads to b.test:443; {entry}"


def test_of_an_entry_for_subjects_the_operator_hears_and_the_client_does_not():
    spec = DestinationsIR(allow=((),), withheld=(replace(rule("a.test", ports=(443,)), policy="ns/theirs"),))
    policy = DestinationPolicy(spec, ("ns/p",))
    refused = policy.decide(parse_authority(b"a.test:443", None))
    assert refused is not None
    assert refused.reason is NO
    told = f"{refused} {refused.remedy} {refused.rule}"
    assert "theirs" not in told
    assert "subjects" not in told
    assert refused.detail == (
        '{hostnames: ["a.test"], ports: [443]} in destinations.allow of policy ns/theirs is for its subjects alone'
    )
    other = policy.decide(parse_authority(b"a.test:80", None))
    assert other is not None
    assert not other.detail
    nothing = DestinationPolicy(replace(spec, allow=()), ()).decide(parse_authority(b"a.test:443", None))
    assert nothing is not None
    assert (nothing.reason, nothing.detail) == (Reason.NO_POLICY, refused.detail)


def test_a_refusal_names_a_policy_that_has_a_list():
    """And not the first of those that are in force, which may say nothing of destinations."""
    sources = ("ns/identity", "ns/wide", "ns/empty", "ns/more", "ns/narrow")
    groups = ((rule("*.test"),), (), (rule("a.test"),))
    spec = DestinationsIR(groups, listed=(("ns/wide",), ("ns/empty", "ns/more"), ("ns/narrow",)))
    policy = DestinationPolicy(spec, sources)
    for host, named in ((b"a.other:443", "ns/wide"), (b"a.test:443", "ns/empty")):
        refused = policy.decide(parse_authority(host, None))
        assert refused is not None
        assert refused.message.endswith(f"is not allowed by policy {named}")
        assert (refused.policy, refused.rule) == (named, f"EgressPolicy {named}")
        everyone = "ns/wide, ns/empty, ns/more, ns/narrow"
        assert refused.detail == f"the policies with destinations.allow for this client are {everyone}"
    alone = DestinationPolicy(DestinationsIR(((),), listed=(("ns/empty",),)), sources)
    refused = alone.decide(parse_authority(b"a.test:443", None))
    assert refused is not None
    assert (refused.policy, refused.detail) == ("ns/empty", "")


def test_where_no_policy_with_a_list_is_for_this_client_the_refusal_says_so():
    spec = DestinationsIR(withheld=(replace(rule("a.test"), policy="ns/theirs"),))
    refused = DestinationPolicy(spec, ("ns/identity",)).decide(parse_authority(b"a.test:443", None))
    assert refused is not None
    assert refused.message == "a.test is not allowed: no policy with destinations.allow is for this client"
    assert (refused.reason, refused.rule, refused.policy) == (NO, "-", "-")
    assert refused.remedy == 'add {hostnames: ["a.test"], ports: [443]} to destinations.allow'
    theirs = '{hostnames: ["a.test"]} in destinations.allow of policy ns/theirs'
    assert refused.detail == f"{theirs} is for its subjects alone"


# --- what allows -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("named", "entry"),
    [
        ("a.test:443", "a.test"),
        ("a.test:80", "*"),
        ("x.a.test:443", "*.a.test"),
        ("y.x.a.test:443", "*.x.a.test"),
        ("y.x.a.test:22", "*.a.test"),
        ("192.0.2.1:443", "192.0.2.0/24"),
        ("198.51.100.1:443", "*"),
    ],
)
def test_the_entry_that_allows_is_the_one_that_is_found(named: str, entry: str):
    rules = (
        rule("a.test", ports=(443,)), rule("*.a.test"), rule("*.x.a.test", ports=(443,)),
        DestinationRule(cidrs=(ip_network("192.0.2.0/24"),), policy="ns/p"), DestinationRule(policy="ns/p"),
    )  # fmt: skip
    policy = DestinationPolicy(DestinationsIR((rules,)))
    found = policy.entry(parse_authority(named.encode(), None))
    assert found is not None
    assert found[1] == entry


def test_where_a_level_has_no_entry_nothing_is_named():
    policy = DestinationPolicy(DestinationsIR(((rule("a.test"),), ())))
    assert policy.entry(parse_authority(b"a.test:443", None)) is None
    assert DestinationPolicy(DestinationsIR()).entry(parse_authority(b"a.test:443", None)) is None
