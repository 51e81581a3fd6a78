"""When something is to be said of a certificate."""

from __future__ import annotations

import pytest

from egressproxy.model.certificate import CertificateState, CertificateUse, Validity

DAY = 86_400.0


def validity(begin: float, end: float, use: CertificateUse = CertificateUse.LISTENER) -> Validity:
    return Validity(use, "Secret", "ns", "cert", begin * DAY, end * DAY, end * DAY)


@pytest.mark.parametrize(
    ("begin", "end", "now", "expected"),
    [
        (0, 90, 10, CertificateState.VALID),
        (0, 90, 71, CertificateState.VALID),  # an ACME client renews at two thirds
        (0, 90, 73, CertificateState.LATE),
        (0, 7, 5, CertificateState.VALID),
        (0, 7, 6, CertificateState.LATE),
        (0, 3650, 3600, CertificateState.VALID),
        (0, 3650, 3621, CertificateState.LATE),
        (0, 90, 90, CertificateState.EXPIRED),
        (5, 90, 4, CertificateState.NOT_YET_VALID),
    ],
)
def test_what_is_late_depends_on_how_long_it_holds(begin: float, end: float, now: float, expected: CertificateState):
    one = validity(begin, end)
    assert one.state(now * DAY) is expected
    assert bool(one.sentence(now * DAY)) is (expected is not CertificateState.VALID)


def test_an_authority_is_expired_when_all_of_its_certificates_are():
    bundle = Validity(CertificateUse.CA, "ConfigMap", "ns", "ca", 0.0, 10 * DAY, 1000 * DAY)
    assert bundle.state(20 * DAY) is CertificateState.VALID
    assert bundle.state(1000 * DAY) is CertificateState.EXPIRED
    assert bundle.sentence(1000 * DAY) == (
        "the CA certificate of ConfigMap ns/ca has expired on 1972-09-27T00:00:00Z: renew it in that object"
    )


def test_a_revocation_list_past_its_next_update_says_what_comes_of_it():
    one = validity(0, 90, CertificateUse.CRL)
    assert one.sentence(91 * DAY) == (
        "the revocation list of Secret ns/cert should have been replaced on 1970-04-01T00:00:00Z: until then every "
        "certificate of its issuer is refused; renew it in that object"
    )
    assert one.sentence(80 * DAY).startswith("the revocation list of Secret ns/cert expires in 10.0 days")


def test_little_time_is_told_in_small_units():
    one = validity(0, 90)
    assert "expires in 5.0 hours, on" in one.sentence(90 * DAY - 5 * 3600)
    assert "expires in 3.0 minutes, on" in one.sentence(90 * DAY - 180)


def test_the_next_change_is_its_begin_then_its_end():
    one = validity(5, 90)
    assert one.next_change_s(0.0) == 5 * DAY
    assert one.next_change_s(5 * DAY) == 90 * DAY
    assert one.next_change_s(90 * DAY) == float("inf")
