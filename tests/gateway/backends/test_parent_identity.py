"""Two gateways of ours in a row: the first one says who its client is, and the second believes what is signed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from egressproxy.model.forwarded_identity import ForwardedIdentity, SeenValues, sign, verify
from egressproxy.model.secret import SecretBytes
from tests.config.compile.kit import FORWARD, compiled, of_policy, policy
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward
from tests.support import manifests as m

KEY = "0123456789abcdef0123456789abcdef"
SECRET = m.secret("key", {"key": KEY})
WHO = ForwardedIdentity("edge/gw", "192.0.2.7", "team", "robot")


def first(**more: Any) -> list[m.Manifest]:
    parent = {"name": "next", "identityKeyRef": {"name": "key"}, **more}
    return forward(m.backend("next", "next.example", 3128), SECRET, parent=parent)


def second(**more: Any) -> list[m.Manifest]:
    return forward(SECRET, identity={"gateways": {"keyRefs": [{"name": "key"}]}}, **more)


def signed(method: bytes, authority: str, *, key: str = KEY, age_s: float = 0.0) -> bytes:
    value = sign(SecretBytes(key.encode()), WHO, method, authority, time.time() - age_s)
    return b"Via: 1.1 edge\r\nX-Egress-Identity: " + value + b"\r\n"


def shown_as_field(method: bytes, authority: str) -> tuple[bytes, bytes]:
    return b"x-egress-identity", signed(method, authority).split(b": ")[-1].rstrip()


def read(sent: bytes, method: bytes, authority: str) -> ForwardedIdentity:
    value = sent.split(b"\r\nX-Egress-Identity: ")[1].partition(b"\r\n")[0]
    return verify((SecretBytes(KEY.encode()),), value, method, authority, time.time(), SeenValues())


# --- the first ------------------------------------------------------------------------------------------------------
def test_a_tunnel_and_a_plain_request_say_who_the_client_is(converse: Start):
    talk = converse(first())
    talk.client >> connect("a.example:22")
    talk.dialled("next.example", 3128)
    who = read(talk.origin.take(rb"CONNECT .*?\r\n\r\n")[0], b"CONNECT", "a.example:22")
    assert who.gateway == "agents/gw"
    talk.client = talk.connect()
    talk.client >> GET
    talk.dialled("next.example", 3128)
    sent = talk.origin.take(rb"GET http://a.example/ .*?\r\n\r\n")[0]
    assert read(sent, b"GET", "a.example:80") == who
    assert KEY.encode() not in sent
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["client"].rpartition(":")[0] == who.client


def test_a_connection_that_others_use_too_names_the_gateway_alone(converse: Start):
    talk = converse(first())
    talk.client >> GET.replace(b"http://", b"https://")
    talk.dialled("next.example", 3128)
    who = read(talk.origin.take(rb"CONNECT .*?\r\n\r\n")[0], b"CONNECT", "a.example:443")
    assert who == ForwardedIdentity("agents/gw")


def test_what_the_client_says_is_not_passed_on(converse: Start):
    talk = converse(first())
    talk.client >> GET[:-2] + b"X-Egress-Identity: forged\r\nx_egress_identity: forged\r\n\r\n"
    talk.dialled("next.example", 3128)
    sent = talk.origin.take(rb"GET http://a.example/ .*?\r\n\r\n")[0]
    assert b"forged" not in sent
    assert sent.lower().count(b"identity") == 1


# --- the second -----------------------------------------------------------------------------------------------------
def test_a_request_is_logged_with_the_client_of_the_other_gateway(converse_on: Start):
    talk = converse_on(second())
    talk.client >> GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n"
    talk.dialled("a.example", 80)
    assert b"identity" not in talk.origin.take(rb"GET / .*?\r\n\r\n")[0].lower()
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["namespace"], record["service_account"]) == ("team", "robot")
    assert (record["origin_client"], record["origin_gateway"]) == ("192.0.2.7", "edge/gw")


def test_so_is_a_tunnel(converse: Start):
    talk = converse(second())
    talk.client >> connect("a.example:22")[:-2] + signed(b"CONNECT", "a.example:22") + b"\r\n"
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    talk.client.ends()
    talk.origin.ends()
    assert talk.record()["origin_client"] == "192.0.2.7"


@pytest.mark.parametrize(
    ("shown", "why", "result"),
    [
        (signed(b"GET", "b.example:80"), "no key of this gateway", "no_key"),
        (signed(b"PUT", "a.example:80"), "no key of this gateway", "no_key"),
        (signed(b"GET", "a.example:80", key="x" * 32), "no key of this gateway", "no_key"),
        (signed(b"GET", "a.example:80", age_s=90), " s old", "too_old"),
        (signed(b"GET", "a.example:80", age_s=-90000), " s ahead", "ahead"),
        (b"Via: 1.1 edge\r\nX-Egress-Identity: team/robot\r\n", "malformed", "malformed"),
        (signed(b"GET", "a.example:80") * 2, "malformed", "malformed"),
    ],
)
def test_what_is_not_verified_leaves_the_client_unknown(converse: Start, shown: bytes, why: str, result: str):
    talk = converse(second())
    talk.client >> GET[:-2] + shown + b"\r\n"
    talk.dialled("a.example", 80)
    assert b"identity" not in talk.origin.take(rb"GET / .*?\r\n\r\n")[0].lower()
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*")
    record = talk.record()
    assert why in record["detail"]
    assert talk.metrics.forwarded_identities == {result: 1}
    assert record["namespace"] == "-"
    assert "origin_client" not in record


def served(talk: Any, request: bytes, *, is_new: bool = True) -> dict[str, Any]:
    """A request that the origin answers; its line of the access log."""
    count = len(talk.records)
    talk.client >> request
    if is_new:
        talk.dialled("a.example", 80)
    assert b"identity" not in talk.origin.take(rb"[A-Z]+ / .*?\r\n\r\n")[0].lower()
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    return dict(talk.record(count))


def test_a_value_that_is_shown_again_says_nothing(converse: Start):
    talk = converse(second())
    request = GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n"
    assert served(talk, request)["namespace"] == "team"
    again = served(talk, request, is_new=False)
    assert talk.metrics.forwarded_identities == {"verified": 1, "repeated": 1}
    assert again["namespace"] == "-"
    assert "X-Egress-Identity: it was shown before" in again["detail"]
    assert "origin_client" not in again


def test_it_is_counted_for_the_client_that_was_named(converse: Start):
    talk = converse(second())
    served(talk, GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n")
    served(talk, GET, is_new=False)
    talk.client >> GET.replace(b"a.example", b"b.example")[:-2] + signed(b"GET", "b.example:80") + b"\r\n"
    assert talk.client.answer()[0] == 403
    counted = {
        (*series.labels[3:5], status): count
        for series in talk.metrics._series.values()
        for status, count in series.requests.items()
    }
    assert counted == {("team", "robot", 200): 1, ("-", "-", 200): 1, ("team", "robot", 403): 1}
    assert [series.labels[3:] for series in talk.metrics._series.values() if series.denied] == [
        ("team", "robot", "agents/default", "-")
    ]


def test_what_is_asked_in_a_tunnel_is_asked_by_the_client_of_the_tunnel(converse: Start):
    talk = converse(second())
    talk.client >> connect("a.example:80")[:-2] + signed(b"CONNECT", "a.example:80") + b"\r\n"
    talk.client << ESTABLISHED
    inside = b"GET / HTTP/1.1\r\nHost: a.example\r\n"
    assert served(talk, inside + b"\r\n")["namespace"] == "team"
    forged = served(talk, inside + signed(b"GET", "a.example:80", key="x" * 32) + b"\r\n", is_new=False)
    assert (forged["namespace"], forged["origin_client"]) == ("team", "192.0.2.7")
    assert "no key of this gateway" in forged["detail"]


def test_so_it_is_in_http2(converse: Start):
    talk = converse(second())
    client = speak_http2(talk)
    via, (name, value) = (b"via", b"1.1 edge"), shown_as_field(b"GET", "a.example:80")
    stream = client.ask(b"GET", b"/", b"a.example", via, (name, value))
    talk.dialled("a.example", 80)
    assert b"identity" not in talk.origin.take(rb"GET / .*?\r\n\r\n")[0].lower()
    talk.origin >> OK
    assert bytes(client.answer(stream).data) == b"hi"
    assert talk.record()["service_account"] == "robot"
    tunnel = client.connects(b"a.example:22", via, shown_as_field(b"CONNECT", "a.example:22"))
    talk.dialled("a.example", 22)
    client.resets(tunnel)
    assert talk.record(1)["origin_client"] == "192.0.2.7"


def test_a_chain_of_three_names_the_first_client(converse: Start):
    """The second one signs what it was told."""
    parent = {"name": "next", "identityKeyRef": {"name": "key"}}
    talk = converse([*second(parent=parent), m.backend("next", "next.example", 3128)])
    talk.client >> connect("a.example:22")[:-2] + signed(b"CONNECT", "a.example:22") + b"\r\n"
    talk.dialled("next.example", 3128)
    who = read(talk.origin.take(rb"CONNECT .*?\r\n\r\n")[0], b"CONNECT", "a.example:22")
    assert who == ForwardedIdentity("agents/gw", "192.0.2.7", "team", "robot", "system:serviceaccount:team:robot")


def test_without_keys_nothing_is_believed(converse: Start):
    talk = converse(forward())
    talk.client >> GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*")
    assert talk.record()["namespace"] == "-"


# --- the configuration ----------------------------------------------------------------------------------------------
SHORT = """
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {key: short}
"""
NEXT = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: next}
spec: {destination: {type: Fqdn, fqdn: {hostname: next.example}, ports: [{number: 3128, tls: {mode: None}}]}}
"""


def test_a_key_that_is_too_short_closes_what_is_behind_the_parent():
    said = policy(
        "destinations: {allow: [{hostnames: [a.example]}]}\nparent: {name: next, identityKeyRef: {name: key}}"
    )
    made = compiled(FORWARD, said, NEXT, SHORT)
    status, _, message = of_policy(made, "ResolvedRefs")
    assert status == "False"
    assert "key has 5 bytes, and needs 32 or more" in message


def test_a_socks_proxy_cannot_be_told():
    said = policy(
        "destinations: {allow: [{hostnames: [a.example]}]}\nparent: {name: next, identityKeyRef: {name: key}}"
    )
    made = compiled(FORWARD, said, NEXT.replace("3128,", "1080, protocol: SOCKS5,"), SHORT)
    assert "has no place for X-Egress-Identity" in of_policy(made, "ResolvedRefs")[2]


def test_a_gateway_whose_key_is_missing_serves_nobody(converse: Start):
    talk = converse(second()[:2])
    talk.client >> GET
    assert talk.client.answer()[0] == 500
