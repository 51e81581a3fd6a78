"""CORS where clients have to be known: browsers ask without credentials whether they may send one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.identity.test_tokens import CLUSTER, identity
from tests.gateway.kit import OK, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation

CORS = {"type": "CORS", "cors": {"allowOrigins": ["https://b.example"], "allowMethods": ["PUT"]}}
ASKS = b"Origin: https://b.example\r\nAccess-Control-Request-Method: PUT\r\n"
PREFLIGHT = b"OPTIONS / HTTP/1.1\r\nHost: a.example\r\n" + ASKS + b"\r\n"
ALLOWED = rb"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://b.example\r\n.*?\r\n\r\n"


def known(*rules: Any, **section: Any) -> list[Any]:
    rules = rules or (m.prefix_rule("/", "a", filters=[CORS]),)
    return reverse(*rules, objects=(CLUSTER.config_map,), identity=identity(**section))


def refused(talk: Conversation, request: bytes, status: int = 401) -> str:
    talk.client >> request
    got, phrase, _, _ = talk.client.answer()
    assert got == status
    talk.no_dial()
    return bytes(phrase).decode()


def test_the_route_answers_and_no_backend_is_asked(converse: Start):
    talk = converse(known())
    talk.client >> PREFLIGHT
    talk.client.take(ALLOWED)
    talk.no_dial()
    record = talk.record()
    assert (record["status"], record["route"], record["namespace"]) == (200, "agents/route", "-")
    assert "reason" not in record or record["reason"] == "-"
    assert "Bearer" not in refused(talk, PREFLIGHT.replace(b"OPTIONS", b"PUT"))


def test_so_it_is_in_http2(converse: Start):
    talk = converse(known())
    client = speak_http2(talk)
    asked = ((b"origin", b"https://b.example"), (b"access-control-request-method", b"PUT"))
    stream = client.request([
        (b":method", b"OPTIONS"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/"), *asked,
    ])  # fmt: skip
    assert dict(client.answer(stream).fields)[b"access-control-allow-origin"] == b"https://b.example"
    talk.no_dial()


@pytest.mark.parametrize(
    "request_",
    [
        b"OPTIONS / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"OPTIONS / HTTP/1.1\r\nHost: a.example\r\nOrigin: https://b.example\r\n\r\n",
        PREFLIGHT.replace(b"OPTIONS", b"GET"),
        PREFLIGHT.replace(b"OPTIONS", b"options"),
        PREFLIGHT[:-2] + b"Authorization: Bearer x.y.z\r\n\r\n",
        PREFLIGHT[:-2] + b"Authorization: Basic eDp5\r\n\r\n",
    ],
)
def test_whatever_else_comes_without_a_right_credential_is_refused(converse: Start, request_: bytes):
    refused(converse(known()), request_)


def test_an_origin_that_is_not_allowed_is_told_nothing(converse: Start):
    talk = converse(known())
    talk.client >> PREFLIGHT.replace(b"b.example\r\nAcc", b"c.example\r\nAcc")
    head = talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\n")[0]
    assert b"Allow-Origin" not in head
    talk.no_dial()


def test_a_route_without_cors_says_no_more_than_before(converse: Start):
    talk = converse(known(m.prefix_rule("/", "a")))
    refused(talk, PREFLIGHT)
    refused(talk, PREFLIGHT.replace(b"OPTIONS / ", b"OPTIONS /nowhere "))
    talk = converse(known(m.prefix_rule("/here", "a", filters=[CORS])))
    refused(talk, PREFLIGHT)


def test_nothing_but_the_cors_filter_of_the_route_runs(converse: Start):
    """A filter in front of it, or behind it, would act for a client that nobody knows."""
    redirect = {"type": "RequestRedirect", "requestRedirect": {"hostname": "c.example"}}
    rule = m.prefix_rule("/", "a", filters=[redirect, CORS])
    del rule["backendRefs"]
    talk = converse(known(rule))
    talk.client >> PREFLIGHT
    talk.client.take(ALLOWED)


def test_what_follows_on_the_connection_is_asked_for_its_own_credential(converse: Start):
    talk = converse(known())
    talk.client >> PREFLIGHT
    talk.client.take(ALLOWED)
    token = CLUSTER.token().encode()
    talk.client >> b"PUT / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"PUT / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    refused(talk, PREFLIGHT.replace(b"OPTIONS", b"PUT"))


def test_a_body_of_a_preflight_goes_nowhere(converse: Start):
    talk = converse(known())
    talk.client >> PREFLIGHT[:-2] + b"Content-Length: 40\r\n\r\nGET / HTTP/1.1\r\n"
    talk.client.take(ALLOWED)
    talk.no_dial()


def test_a_forward_proxy_asks_for_the_credential_of_the_proxy(converse: Start):
    talk = converse(forward(CLUSTER.config_map, identity=identity()))
    refused(talk, PREFLIGHT.replace(b"OPTIONS / ", b"OPTIONS http://a.example/ "), 407)


@pytest.mark.parametrize("shown", [b"", b"Authorization: Bearer x.y.z\r\n"])
def test_a_page_may_read_why_its_request_is_refused(converse: Start, shown: bytes):
    cors = {"type": "CORS", "cors": {**CORS["cors"], "allowCredentials": True, "exposeHeaders": ["Proxy-Status"]}}
    talk = converse(known(m.prefix_rule("/", "a", filters=[cors])))
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\nOrigin: https://b.example\r\n" + shown + b"\r\n"
    status, _, fields, _ = talk.client.answer()
    assert status == 401
    assert fields["Access-Control-Allow-Origin"] == "https://b.example"
    assert fields["Access-Control-Allow-Credentials"] == "true"
    assert fields["Access-Control-Expose-Headers"] == "Proxy-Status"
    assert fields["Vary"] == "Origin"
    assert fields["WWW-Authenticate"]
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\nOrigin: https://c.example\r\n\r\n"
    status, _, fields, _ = talk.client.answer()
    assert (status, fields["Vary"]) == (401, "Origin")
    assert "Access-Control-Allow-Origin" not in fields
    talk.no_dial()
