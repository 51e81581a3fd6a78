"""Parents that are SOCKS5 proxies: what they are asked for, and what their refusals mean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, of_object, of_route
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

CORP = {"name": "socks"}
LOGIN = {**CORP, "credentialsRef": {"name": "login"}, "allowPlaintext": True}
ASKED = b"\x05\x01\x00\x03\x09a.example"
CONNECTED = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"


def objects(parent: dict[str, Any] = CORP, **more: Any) -> list[m.Manifest]:
    proxy = m.backend("socks", "socks.example", 1080, protocol="SOCKS5")
    login = m.secret("login", {"username": "robot", "password": "word"}, kind="kubernetes.io/basic-auth")
    return forward(proxy, login, parent=parent, **more)


def asked(talk: Conversation, port: int) -> None:
    talk.dialled("socks.example", 1080)
    talk.origin << b"\x05\x02\x00\xe6"
    talk.origin >> b"\x05\x00"
    talk.origin << ASKED + port.to_bytes(2, "big")


def test_a_tunnel(converse_on: Start):
    talk = converse_on(objects())
    talk.client >> connect("a.example:22")
    asked(talk, 22)
    talk.origin >> CONNECTED + b"banner"
    talk.client << ESTABLISHED + b"banner"


def test_a_gateway_of_ours_is_told_who_was_asked_before(converse: Start):
    talk = converse(objects())
    talk.client >> connect("a.example:22").replace(b"\r\n\r\n", b"\r\nVia: 1.1 other\r\n\r\n")
    talk.dialled("socks.example", 1080)
    talk.origin << b"\x05\x02\x00\xe6"
    talk.origin >> b"\x05\xe6"
    talk.origin << b"\x01\x00\x111.1 other, 1.1 gw"
    talk.origin >> b"\x05\x00"
    talk.origin << ASKED + b"\x00\x16"
    talk.origin >> CONNECTED
    talk.client << ESTABLISHED


def test_a_plain_request_goes_through_a_tunnel_which_is_used_again(converse_on: Start):
    talk = converse_on(objects())
    for is_new in (True, False):
        talk.client >> GET
        if is_new:
            asked(talk, 80)
            talk.origin >> CONNECTED
        talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
        talk.origin >> OK
        talk.client << OK_PASSED


def test_a_request_for_an_https_url_speaks_tls_within(converse: Start):
    talk = converse(objects())
    talk.client >> GET.replace(b"http://", b"https://")
    asked(talk, 443)
    talk.origin >> CONNECTED
    talk.until(lambda: bool(talk.origin.received))
    assert talk.origin.received.startswith(b"\x16\x03")


def test_username_and_password_are_shown_where_the_proxy_asks(converse: Start):
    talk = converse(objects(LOGIN))
    talk.client >> connect("a.example:22")
    talk.dialled("socks.example", 1080)
    talk.origin << b"\x05\x03\x02\x00\xe6"
    talk.origin >> b"\x05\x02"
    talk.origin << b"\x01\x05robot\x04word"
    talk.origin >> b"\x01\x00"
    talk.origin << ASKED + b"\x00\x16"
    talk.origin >> CONNECTED
    talk.client << ESTABLISHED


@pytest.mark.parametrize(
    ("answers", "status", "reason", "said"),
    [
        ([b"\x05\xff"], 502, "parent_auth", "none are configured"),
        ([b"\x05\x00", b"\x05\x01"], 502, "parent_refused", "general failure (SOCKS5 reply 1)"),
        ([b"\x05\x00", b"\x05\x02"], 502, "parent_refused", "not allowed (SOCKS5 reply 2)"),
        ([b"\x05\x00", b"\x05\x03"], 503, "upstream_connect_failed", "network unreachable"),
        ([b"\x05\x00", b"\x05\x04"], 503, "upstream_connect_failed", "host unreachable"),
        ([b"\x05\x00", b"\x05\x05"], 503, "upstream_refused", "connection refused"),
        ([b"\x05\x00", b"\x05\x06"], 504, "upstream_connect_timeout", "ttl expired"),
        ([b"\x05\x00", b"\x05\x07"], 502, "parent_refused", "command not supported"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], 502, "parent_refused", "does not speak SOCKS5"),
    ],
)
def test_a_refusal_says_why(converse: Start, answers: list[bytes], status: int, reason: str, said: str):
    talk = converse(objects())
    talk.client >> connect("a.example:22")
    talk.dialled("socks.example", 1080)
    for answer in answers:
        talk.origin.take(rb".+")
        talk.origin >> answer
    found, _, _, error = talk.client.answer()
    assert (found, error["reason"]) == (status, reason)
    assert "parent proxy agents/socks" in error["message"]
    assert said in error["message"]
    assert talk.open == 0


def test_a_password_that_is_not_accepted_is_named_by_its_secret(converse: Start):
    talk = converse(objects(LOGIN))
    talk.client >> connect("a.example:22")
    talk.dialled("socks.example", 1080)
    talk.origin >> b"\x05\x02"
    talk.origin >> b"\x01\x01"
    found, _, _, error = talk.client.answer()
    assert (found, error["reason"]) == (502, "parent_auth")
    assert "Secret agents/login" in talk.records[-1]["detail"]
    assert "RFC 1929" in talk.records[-1]["detail"]


def test_a_proxy_that_leaves_is_a_502(converse: Start):
    talk = converse(objects())
    talk.client >> connect("a.example:22")
    talk.dialled("socks.example", 1080)
    talk.origin.ends()
    assert talk.client.answer()[3]["reason"] == "parent_refused"


@pytest.mark.parametrize("request_", [connect("127.0.0.1:22"), connect("localhost:22")])
def test_an_address_that_is_not_allowed_is_not_asked_for(converse: Start, request_: bytes):
    talk = converse(objects(destinations={"allow": [{"hostnames": ["localhost"], "cidrs": ["127.0.0.0/8"]}]}))
    talk.client >> request_
    assert talk.client.answer()[0] == 403
    assert not talk.dialer.dials


def test_it_is_no_backend_of_a_route():
    socks = PLAIN.replace("number: 80", "number: 1080, protocol: SOCKS5")
    made = compiled(REVERSE, socks, ROUTE)
    found = of_route(made, "ResolvedRefs")
    assert found[0] == "False"
    assert "default/plain is a SOCKS5 proxy, and not a backend" in found[2]
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "True"
