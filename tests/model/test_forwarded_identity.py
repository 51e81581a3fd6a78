"""X-Egress-Identity: what one gateway signs, the other one believes; and nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from egressproxy.model import forwarded_identity
from egressproxy.model.forwarded_identity import MAX_AGE_S, MAX_SKEW_S, ForwardedIdentity, NotVerified, sign, verify
from egressproxy.model.secret import SecretBytes

KEY, OLD = SecretBytes(b"k" * 32), SecretBytes(b"o" * 32)
NOW = 1_800_000_000.5
WHO = ForwardedIdentity("agents/gw", "192.0.2.7", "team", "robot")
VALUE = sign(KEY, WHO, b"CONNECT", "a.example:443", NOW)


def checked(
    value: bytes = VALUE, method: bytes = b"CONNECT", authority: str = "a.example:443", now: float = NOW
) -> Any:
    return verify((OLD, KEY), value, method, authority, now)


def test_the_other_gateway_reads_what_was_signed():
    assert checked() == WHO
    assert checked(now=NOW + MAX_AGE_S - 1) == WHO
    assert checked(now=NOW - MAX_SKEW_S) == WHO
    assert checked(sign(OLD, WHO, b"CONNECT", "a.example:443", NOW)) == WHO, "while keys are exchanged"


def test_it_fits_into_a_field_and_does_not_show_the_key():
    assert VALUE.isascii()
    assert VALUE.decode().isprintable()
    assert b" " not in VALUE
    assert b"kkkk" not in VALUE
    assert len(VALUE) < 300


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"method": b"GET"}, "no key"),
        ({"authority": "b.example:443"}, "no key"),
        ({"authority": "a.example:444"}, "no key"),
        ({"now": NOW + MAX_AGE_S + 1}, r"31 s old|32 s old"),
        ({"now": NOW - MAX_SKEW_S - 2}, "ahead"),
        ({"value": VALUE[:-1] + (b"A" if VALUE[-1:] != b"A" else b"B")}, "no key"),
        ({"value": VALUE.replace(b".", b".x", 1)}, "no key"),
        ({"value": sign(SecretBytes(b"x" * 32), WHO, b"CONNECT", "a.example:443", NOW)}, "no key"),
        ({"value": VALUE + b"." + b"x"}, "malformed"),
        ({"value": VALUE + b", " + VALUE}, "malformed"),
        ({"value": VALUE.replace(b"v1", b"v2")}, "malformed"),
        ({"value": b""}, "malformed"),
        ({"value": b"v1." + b"x" * 4096 + b".x"}, "malformed"),
        ({"value": b"v1..\xff"}, "no key"),
    ],
)
def test_nothing_else_is_believed(other: dict[str, Any], why: str):
    with pytest.raises(NotVerified, match=why):
        checked(**other)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"time": 1},
        {"time": True, "gateway": "g", "client": "c", "namespace": "n", "service_account": "s"},
        {"time": int(NOW), "gateway": "", "client": "c", "namespace": "n", "service_account": "s"},
        {"time": int(NOW), "gateway": "g", "client": "c\n", "namespace": "n", "service_account": "s"},
        {"time": int(NOW), "gateway": "g", "client": "c", "namespace": 1, "service_account": "s"},
        {"time": int(NOW), "gateway": "g" * 400, "client": "c", "namespace": "n", "service_account": "s"},
        {"time": int(NOW), "gateway": "g", "client": "c", "namespace": "n", "service_account": "s", "more": "x"},
    ],
)
def test_also_of_a_gateway_that_has_the_key_only_what_is_well_formed(said: Any):
    payload = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=")
    mac = forwarded_identity._mac(KEY, payload, b"CONNECT", "a.example:443")
    with pytest.raises(NotVerified):
        checked(b"v1.%b.%b" % (payload, mac))


def test_a_payload_that_is_no_json_is_malformed():
    for payload in (b"x", b"_", b"W1tb" * 100):
        mac = forwarded_identity._mac(KEY, payload, b"CONNECT", "a.example:443")
        with pytest.raises(NotVerified, match=r"malformed|entries"):
            checked(b"v1.%b.%b" % (payload, mac))
