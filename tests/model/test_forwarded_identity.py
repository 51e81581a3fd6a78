"""X-Egress-Identity: what one gateway signs, the other one believes; and nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from egressproxy.model import forwarded_identity
from egressproxy.model.forwarded_identity import (
    MAX_AGE_S,
    MAX_BYTES,
    MAX_SKEW_S,
    ForwardedIdentity,
    NotVerified,
    SeenValues,
    TooMuchToTell,
    sign,
    verify,
)
from egressproxy.model.secret import SecretBytes

KEY, OLD = SecretBytes(b"k" * 32), SecretBytes(b"o" * 32)
NOW = 1_800_000_000.5
WHO = ForwardedIdentity("agents/gw", "192.0.2.7", "team", "robot")
VALUE = sign(KEY, WHO, b"CONNECT", "a.example:443", NOW)


def checked(
    value: bytes = VALUE,
    method: bytes = b"CONNECT",
    authority: str = "a.example:443",
    now: float = NOW,
    seen: SeenValues | None = None,
) -> Any:
    return verify((OLD, KEY), value, method, authority, now, seen or SeenValues())


def test_the_other_gateway_reads_what_was_signed():
    assert checked() == WHO
    assert checked(now=NOW + MAX_AGE_S - 1) == WHO
    assert checked(now=NOW - MAX_SKEW_S) == WHO
    assert checked(sign(OLD, WHO, b"CONNECT", "a.example:443", NOW)) == WHO, "while keys are exchanged"


def test_it_says_groups_and_claims():
    who = ForwardedIdentity(
        "agents/gw", name="https://login.test#a", groups=("dev", "größe"), claims=(("tier", "gold"), ("tier", "tin")),
        claims_read=("team", "tier"),
    )  # fmt: skip
    assert checked(sign(KEY, who, b"CONNECT", "a.example:443", NOW)) == who
    many = ForwardedIdentity("agents/gw", groups=tuple("g" * 40 for _ in range(256)))
    assert checked(sign(KEY, many, b"CONNECT", "a.example:443", NOW)) == many
    with pytest.raises(TooMuchToTell):
        sign(KEY, ForwardedIdentity("agents/gw", groups=tuple("g" * 90 for _ in range(256))), b"GET", "a:80", NOW)


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
        ({"value": b"v1." + b"x" * MAX_BYTES + b".x"}, "malformed"),
        ({"value": b"v1..\xff"}, "no key"),
    ],
)
def test_nothing_else_is_believed(other: dict[str, Any], why: str):
    with pytest.raises(NotVerified, match=why):
        checked(**other)


WELL_FORMED = {
    "time": int(NOW), "nonce": "n", "gateway": "g", "client": "c", "namespace": "n", "service_account": "s",
    "name": "-", "groups": [], "claims": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"time": 1},
        {**WELL_FORMED, "time": True},
        {**WELL_FORMED, "nonce": 1},
        {**WELL_FORMED, "gateway": ""},
        {**WELL_FORMED, "client": "c\n"},
        {**WELL_FORMED, "namespace": 1},
        {**WELL_FORMED, "gateway": "g" * 400},
        {**WELL_FORMED, "more": "x"},
        {**WELL_FORMED, "name": ""},
        {**WELL_FORMED, "name": "a\nb"},
        {**WELL_FORMED, "name": "n" * 2000},
        {**WELL_FORMED, "groups": None},
        {**WELL_FORMED, "groups": [1]},
        {**WELL_FORMED, "groups": ["g"] * 300},
        {**WELL_FORMED, "claims": []},
        {**WELL_FORMED, "claims": {"tier": "gold"}},
        {**WELL_FORMED, "claims": {"tier": [1]}},
        {key: value for key, value in WELL_FORMED.items() if key != "nonce"},
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


# --- once ---------------------------------------------------------------------------------------------------------
def test_a_value_is_believed_once():
    seen = SeenValues()
    assert checked(seen=seen) == WHO
    with pytest.raises(NotVerified, match="it was shown before"):
        checked(seen=seen, now=NOW + MAX_AGE_S - 1)
    assert checked(sign(KEY, WHO, b"CONNECT", "a.example:443", NOW), seen=seen) == WHO, "two requests of one second"


def test_what_was_not_believed_is_not_remembered():
    seen = SeenValues()
    with pytest.raises(NotVerified, match="no key"):
        checked(method=b"GET", seen=seen)
    assert checked(seen=seen) == WHO


def test_what_is_remembered_ends_with_its_time():
    seen = SeenValues()
    for second in range(1, 300):
        for number in range(10):
            seen.take(second, b"%d" % number, second)
    assert repr(seen) == f"SeenValues({(MAX_AGE_S + 1) * 10} of {MAX_AGE_S + 1} seconds)"


def test_where_too_many_come_the_earliest_are_forgotten_and_never_believed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forwarded_identity, "MAX_SEEN", 100)
    seen = SeenValues()
    for number in range(101):
        seen.take(10 + number // 60, b"%d" % number, 12)
    assert repr(seen) == "SeenValues(41 of 1 seconds)"
    for fresh in (b"0", b"another"):
        with pytest.raises(NotVerified, match="older than the values that this gateway remembers"):
            seen.take(10, fresh, 12)
    with pytest.raises(NotVerified, match="it was shown before"):
        seen.take(11, b"100", 12)
    seen.take(11, b"another", 12)
