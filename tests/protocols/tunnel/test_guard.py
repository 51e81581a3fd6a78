"""The guard of a tunnel's first bytes, as a value."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists

from egressproxy.errors import Denied, Reason
from egressproxy.model.authority import parse_authority
from egressproxy.protocols.tls.client_hello import MISSING_EXTENSION, UNRECOGNIZED_NAME
from egressproxy.protocols.tunnel.guard import SniGuard
from tests.support.properties import examples


def hello(name: str | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.maximum_version = newest
    context.check_hostname = name is not None
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


HELLO = hello("a.example")


def guard(authority: bytes = b"a.example:443", *, must_be_tls: bool = False, only_reports: bool = False) -> SniGuard:
    return SniGuard(parse_authority(authority, None), must_be_tls=must_be_tls, only_reports=only_reports)


@settings(max_examples=examples(100), deadline=None)
@given(lists(integers(1, len(HELLO) - 1), max_size=5))
def test_a_matching_hello_passes_whole_however_it_was_cut(cuts: list[int]):
    one, passed, at = guard(), b"", 0
    for cut in [*sorted(set(cuts)), len(HELLO)]:
        assert not passed, "nothing goes on before the end of the hello"
        passed = one.feed(HELLO[at:cut])
        at = cut
    assert passed == HELLO


@pytest.mark.parametrize("name", ["b.example", "a.example.b.example", "xa.example", None])
def test_another_name_is_refused(name: str | None):
    with pytest.raises(Denied) as caught:
        guard().feed(hello(name))
    assert caught.value.reason is Reason.SNI_MISMATCH
    assert "sni: Any" in caught.value.remedy


def refused_hello(data: bytes) -> Denied:
    with pytest.raises(Denied) as caught:
        guard().feed(data)
    return caught.value


def test_the_log_says_which_name_the_hello_gave():
    refused = refused_hello(hello("b.example"))
    assert refused.detail == "SNI b.example"
    assert "b.example" not in refused.message
    nameless = refused_hello(hello(None))
    assert nameless.detail.startswith("no SNI: ")
    assert nameless.remedy in nameless.detail
    assert "names no server (SNI)" in nameless.message


@pytest.mark.parametrize(
    ("name", "newest", "alert"),
    [
        (None, ssl.TLSVersion.TLSv1_3, MISSING_EXTENSION),
        (None, ssl.TLSVersion.TLSv1_2, UNRECOGNIZED_NAME),
        ("b.example", ssl.TLSVersion.TLSv1_3, UNRECOGNIZED_NAME),
    ],
)
def test_the_alert_says_whether_a_name_was_missing(name: str | None, newest: ssl.TLSVersion, alert: bytes):
    """Clients before TLS 1.3 do not know the alert of a missing extension."""
    one = guard()
    with pytest.raises(Denied):
        one.feed(hello(name, newest))
    assert one.alert == alert


def test_where_a_tlsroute_serves_the_tunnel_the_client_has_to_send_the_name():
    with pytest.raises(Denied) as caught:
        guard(must_be_tls=True).feed(hello(None))
    assert "sni: Any" not in caught.value.remedy
    assert "TLSRoute" in caught.value.remedy


@pytest.mark.parametrize("octets", [b'b\n{"}xa', b"b:1.exam", b"\xc3\xbc.examp", b"b@x.exam", b"b.examp%"])
def test_what_is_no_name_is_not_repeated_in_the_log(octets: bytes):
    refused = refused_hello(hello("b.exampl").replace(b"b.exampl", octets.ljust(8, b"x")[:8]))
    assert refused.reason is Reason.SNI_MISMATCH
    assert octets.decode("latin-1") not in refused.detail


def test_a_tunnel_to_an_address_wants_no_name():
    assert guard(b"93.184.216.34:443").feed(hello(None))
    with pytest.raises(Denied):
        guard(b"93.184.216.34:443").feed(HELLO)


def test_what_is_no_tls_passes_unless_it_has_to_be():
    assert guard().feed(b"SSH-2.0") == b"SSH-2.0"
    with pytest.raises(Denied) as caught:
        guard(must_be_tls=True).feed(b"SSH-2.0")
    assert caught.value.reason is Reason.NOT_TLS


def test_a_malformed_hello_never_passes():
    broken = bytearray(HELLO)
    broken[43] = 255  # the session id's length
    with pytest.raises(Denied):
        guard().feed(bytes(broken))


@pytest.mark.parametrize(
    "before", [b"\x16\x03\x01\x00\x00", b"\x15\x03\x01\x00\x02\x01\x70", b"\x14\x03\x03\x00\x01\x01"]
)
def test_a_record_before_the_hello_does_not_make_the_guard_look_away(before: bytes):
    with pytest.raises(Denied) as caught:
        guard().feed(before + hello("b.example"))
    assert caught.value.reason is Reason.SNI_MISMATCH


MALFORMED = HELLO[:43] + b"\xff" + HELLO[44:]


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (hello("b.example"), Reason.SNI_MISMATCH),
        (hello(None), Reason.SNI_MISMATCH),
        (MALFORMED, Reason.SNI_MISMATCH),
        (b"SSH-2.0", Reason.NOT_TLS),
        (HELLO, None),
    ],
)
def test_a_guard_that_only_reports_lets_everything_pass_and_says_what_it_would_have_refused(
    octets: bytes, reason: Reason | None
):
    one = guard(must_be_tls=True, only_reports=True)
    assert one.feed(octets) == octets
    assert one.would_deny is reason


@pytest.mark.parametrize("must_be_tls", [True, False])
def test_a_guard_that_only_reports_gives_half_a_hello_back(must_be_tls: bool):
    one = guard(must_be_tls=must_be_tls, only_reports=True)
    assert one.feed(HELLO[:20]) == b""
    assert one.give_up() == HELLO[:20]
    assert one.would_deny is (Reason.NOT_TLS if must_be_tls else None)


# --- the second hello ----------------------------------------------------------------------------------------------
CHANGE = b"\x14\x03\x03\x00\x01\x01"
RETRY = bytes.fromhex("CF21AD74E59A6111BE1D8C021E65B891C2A211167ABB8C5E079E09E2C8A8339C")


def server_hello(random: bytes) -> bytes:
    return b"\x16\x03\x03\x00\x2c\x02\x00\x00\x28\x03\x03" + random + b"\x00\x13\x01\x00"


@pytest.mark.parametrize("second", [hello("b.example"), hello(None)])
@pytest.mark.parametrize("cut", [1, 100, 10_000])
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_second_hello_for_another_name_is_refused(second: bytes, cut: int, is_answered: bool):
    """A server that asks for one (HelloRetryRequest) serves the name in it. The client need not wait to be asked."""
    one = guard()
    assert one.feed(HELLO) == HELLO
    if is_answered:
        one.hear(server_hello(RETRY))
    passed: list[bytes] = []
    said = CHANGE + second
    with pytest.raises(Denied) as caught:
        passed.extend(one.feed(said[at : at + cut]) for at in range(0, len(said), cut))
    assert caught.value.reason is Reason.SNI_MISMATCH
    assert caught.value.detail == ("SNI b.example" if b"b.example" in second else "no SNI")
    assert b"".join(passed) in (b"", CHANGE)


def test_a_second_hello_in_the_segment_of_the_first_is_read():
    with pytest.raises(Denied):
        guard().feed(HELLO + CHANGE + hello("b.example"))


def test_a_second_hello_for_the_same_name_passes_and_is_the_last():
    one = guard()
    one.feed(HELLO)
    one.hear(server_hello(RETRY))
    assert not one.is_over
    assert one.feed(CHANGE + HELLO) == CHANGE + HELLO
    assert one.is_over


def test_the_guard_is_over_with_the_answer_of_the_server():
    one = guard()
    one.feed(HELLO)
    assert not one.is_over
    one.hear(server_hello(bytes(32)))
    assert one.is_over
    assert not one.has_held


def test_what_was_held_when_the_server_answered_goes_on():
    one = guard()
    one.feed(HELLO)
    assert one.feed(CHANGE[:3]) == b""
    one.hear(server_hello(bytes(32)))
    assert one.give_up() == CHANGE[:3]


def test_a_hello_of_sslv2_names_nothing_and_is_refused():
    """OpenSSL and others serve it as TLS 1.2, by their default certificate (RFC 5246 appendix E.2)."""
    sslv2 = b"\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10" + bytes(37)
    for octets in (sslv2, sslv2[:4]):
        assert refused_hello(octets).reason is Reason.SNI_MISMATCH
    one = guard()
    assert one.feed(sslv2[:1]) == one.feed(sslv2[1:3]) == b""
    with pytest.raises(Denied):
        one.feed(sslv2[3:])


@pytest.mark.parametrize("octets", [b"\x80\x00\x01\x03", b"\xff\xfb\x01\xff", b"\x80\x2e\x02", b"\x80\x2e\x01\x00"])
def test_what_only_begins_like_sslv2_passes(octets: bytes):
    assert guard().feed(octets) == octets


def test_without_a_name_to_check_any_hello_will_do_and_nothing_else():
    def one() -> SniGuard:
        return SniGuard(parse_authority(b"a.example:80", None), must_be_tls=True, checks_name=False)

    other = hello("b.example")
    assert one().feed(other) == other
    with pytest.raises(Denied):
        one().feed(b"\x16\x03\x01GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("second", [hello("b.example"), b"\x16\x03\x03\x00\x01\x10"])
def test_a_guard_that_only_reports_lets_a_second_hello_pass(second: bytes):
    one = guard(only_reports=True)
    one.feed(HELLO)
    assert one.feed(second[:5]) == b""
    assert one.feed(second[5:]) == second
    assert one.would_deny is Reason.SNI_MISMATCH
    assert one.is_over


@pytest.mark.parametrize("checks_name", [True, False])
def test_no_other_tunnel_carries_tls_for_a_host_whose_tunnels_are_opened(checks_name: bool):
    def opened() -> SniGuard:
        authority = parse_authority(b"a.example:443", None)
        return SniGuard(authority, must_be_tls=False, checks_name=checks_name, is_opened={"b.example"}.__contains__)

    assert opened().feed(HELLO) == HELLO
    assert opened().feed(b"SSH-2.0-x\r\n") == b"SSH-2.0-x\r\n"
    with pytest.raises(Denied) as caught:
        opened().feed(hello("b.example"))
    assert caught.value.reason is Reason.SNI_MISMATCH
    assert "intercept" in caught.value.remedy
    if not checks_name:
        other = hello("c.example")
        assert opened().feed(other) == other


@pytest.mark.parametrize("first", [b"", HELLO, hello("c.example")])
def test_mode_report_does_not_lift_it_in_the_second_hello_either(first: bytes):
    authority = parse_authority(b"a.example:443", None)
    one = SniGuard(authority, must_be_tls=False, only_reports=True, is_opened={"b.example"}.__contains__)
    if first:
        assert one.feed(first) == first
        assert one.would_deny is (None if first is HELLO else Reason.SNI_MISMATCH)
    with pytest.raises(Denied) as caught:
        one.feed(hello("b.example"))
    assert "intercept" in caught.value.remedy
