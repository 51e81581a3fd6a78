"""A request that a person has approved is decided by the configuration in force, as if it had just come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.filters.base import Filter
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.exchange.test_interception import INSIDE, inside, opening, start
from tests.gateway.exchange.test_subjects import SECRET, TRUSTED, get
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, TlsClient, connect, forward, reverse
from tests.gateway.listeners.test_socks_connection import asks, greet, socks
from tests.gateway.listeners.test_stream_connection import by_name, plain_stream, terminating
from tests.gateway.test_held_requests import CLIENTS, POST, decide, hold, refused, the_one, waiting
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.pki import Pki

ASKED = b"GET /v1/pay HTTP/1.1\r\nHost: x\r\n\r\n"
ASKED_WITH_BODY = b"POST /v1/pay HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\naaaa"
DENIES_A = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}}
ONE_HOLD: dict[str, Any] = {"extensions": [hold()]}
HOLDS: dict[str, Any] = {"identity": CLIENTS, **ONE_HOLD}


def addresses_of_a(talk: Conversation) -> dict[str, Any]:
    """A policy section that denies what a.example resolves to here."""
    ranges = [f"{address}/32" for address in talk.names.addresses("a.example")]
    return {"addresses": {"deny": [{"cidrs": ranges}]}}


def held_then(talk: Conversation, request: bytes, objects: list[m.Manifest]) -> None:
    """The request waits; the configuration becomes another one; the request is approved."""
    talk.client >> request
    key = the_one(talk)
    talk.reload(objects)
    assert decide(talk, key) == 1


def answered(talk: Conversation) -> None:
    talk.origin >> OK
    talk.client << OK_PASSED


# --- a deny that came meanwhile --------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [ASKED, ASKED_WITH_BODY], ids=["GET", "POST"])
@pytest.mark.parametrize("retry", [{}, {"retry": {"attempts": 2}}], ids=["once", "retries"])
def test_destinations_that_are_denied_meanwhile_are_denied_on_a_reverse_listener(
    converse: Start, request_: bytes, retry: dict[str, Any]
):
    rule = m.prefix_rule("/", "a", **retry)
    talk = converse(reverse(rule, **HOLDS))
    held_then(talk, request_, reverse(rule, **HOLDS, **DENIES_A))
    assert refused(talk.client)[:2] == (403, "destination_denied")
    talk.no_dial()


@pytest.mark.parametrize("request_", [GET, POST + b"aaaa", connect("a.example:443")], ids=["GET", "POST", "CONNECT"])
def test_addresses_that_are_denied_meanwhile_are_denied_on_a_forward_listener(converse: Start, request_: bytes):
    talk = converse(forward(**HOLDS))
    held_then(talk, request_, forward(**HOLDS, **addresses_of_a(talk)))
    assert refused(talk.client)[:2] == (403, "resolved_denied")
    talk.no_dial()


def test_addresses_that_are_denied_meanwhile_are_denied_on_a_reverse_listener(converse: Start):
    talk = converse(reverse(**HOLDS))
    held_then(talk, ASKED, reverse(**HOLDS, **addresses_of_a(talk)))
    assert refused(talk.client)[:2] == (403, "resolved_denied")
    talk.no_dial()


def test_an_idle_connection_to_what_is_denied_meanwhile_is_not_used(converse: Start):
    talk = converse(forward(identity=CLIENTS, extensions=[hold(methods=["POST"])]))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    answered(talk)
    talk.client >> POST + b"aaaa"
    (found,) = waiting(talk)
    talk.reload(forward(identity=CLIENTS, extensions=[hold(methods=["POST"])], **addresses_of_a(talk)))
    assert decide(talk, found["id"]) == 1
    assert refused(talk.client)[:2] == (403, "resolved_denied")
    talk.no_dial()


def test_a_tunnel_of_socks_to_an_address_that_is_denied_meanwhile_is_refused(converse: Start):
    talk = converse(socks(extensions=[hold()]))
    greet(talk)
    talk.client >> asks("a.example", 443)
    key = the_one(talk)
    talk.reload(socks(extensions=[hold()], **addresses_of_a(talk)))
    assert decide(talk, key) == 1
    assert talk.client.take(rb"(?s).+").group()[1] == 2  # not allowed
    talk.client.is_closed()
    talk.no_dial()


def test_a_stream_of_http2_is_decided_again(converse: Start):
    talk = converse(forward(**HOLDS))
    client = speak_http2(talk)
    stream = client.ask()
    key = the_one(talk)
    talk.reload(forward(**HOLDS, **addresses_of_a(talk)))
    assert decide(talk, key) == 1
    assert dict(client.answer(stream).fields)[b":status"] == b"403"
    talk.no_dial()


def test_a_request_in_an_opened_tunnel_is_decided_again(converse: Start):
    talk = start(converse, opening(extensions=[hold()]))
    tls = inside(talk)
    tls >> INSIDE
    (found,) = waiting(talk)
    talk.reload(opening(extensions=[hold()], **addresses_of_a(talk)))
    assert decide(talk, found["id"]) == 1
    assert tls.reads().startswith(b"HTTP/1.1 403 ")


def test_a_tunnel_whose_tls_is_to_be_opened_by_now_is_refused(converse: Start):
    objects = opening(extensions=[hold()])
    closed = [
        {**each, "spec": {name: value for name, value in each["spec"].items() if name != "intercept"}}
        if each["kind"] == "EgressPolicy"
        else each
        for each in objects
    ]
    talk = converse(closed)
    talk.client >> connect("a.example:443")
    key = the_one(talk)
    talk.reload(objects)
    assert decide(talk, key) == 1
    assert refused(talk.client)[:2] == (403, "approval_denied")
    talk.no_dial()


def test_a_limit_of_tunnels_that_came_meanwhile_holds(converse: Start):
    talk = converse(forward(**HOLDS))
    first, second = talk.client, talk.connect()
    first >> connect("a.example:443")
    decide(talk, the_one(talk))
    talk.dialled("a.example", 443)
    first << ESTABLISHED
    second >> connect("a.example:443")
    (found,) = waiting(talk)
    talk.reload(forward(**HOLDS, limits={"tunnels": 1}))
    assert decide(talk, found["id"]) == 1
    assert refused(second)[:2] == (503, "tunnel_limit")


HELLO = client_hello("a.example")


@pytest.mark.parametrize(
    ("objects", "said", "port"), [(by_name, HELLO, 443), (plain_stream, b"select 1", 5432)], ids=["TLS", "TCP"]
)
def test_a_stream_is_decided_again(converse: Start, objects: Callable[..., list[m.Manifest]], said: bytes, port: int):
    talk = converse(objects(extensions=[hold()]))
    talk.client >> said
    assert decide(talk, the_one(talk)) == 1
    talk.dialled("a.example", port)
    talk.origin << said
    late = talk.connect()
    late >> said
    key = the_one(talk)
    talk.reload(objects(extensions=[hold()], **addresses_of_a(talk)))
    assert decide(talk, key) == 1
    late.take(rb"(?s).*")
    late.is_closed()
    assert talk.record()["reason"] == "resolved_denied"
    lost = talk.connect()
    lost >> said
    key = the_one(talk)
    talk.reload([each for each in objects(extensions=[hold()]) if not each["kind"].endswith("Route")])
    assert decide(talk, key) == 0  # its filter is gone
    lost.take(rb"(?s).*")
    lost.is_closed()


def test_a_stream_whose_tls_ends_here_is_decided_again(converse: Start):
    pki = Pki()
    talk = converse(terminating(pki, extensions=[hold()]))
    tls = TlsClient(talk.client, pki, "a.example").shakes_hands()
    tls >> b"hello"
    key = the_one(talk)
    talk.reload(terminating(pki, extensions=[hold()], traffic={"timeouts": {"connect": "7s"}}))
    assert decide(talk, key) == 1
    talk.dialled("a.example", 443)
    talk.origin << b"hello"
    talk.counts_octets = False


def test_what_a_gateway_has_signed_holds_no_more_when_its_key_is_taken_away(converse: Start):
    def objects(identity: dict[str, Any]) -> list[m.Manifest]:
        listener, policy = m.gateway(m.forward_listener(3128)), m.policy(("a.example",), identity=identity, **ONE_HOLD)
        return [listener, policy, SECRET]

    talk = converse(objects(TRUSTED))
    held_then(talk, get("team/robot"), objects({"certificate": TRUSTED["certificate"]}))
    assert refused(talk.client)[:2] == (403, "credentials_refused")
    talk.no_dial()


# --- the request as the client has sent it ---------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [ASKED, ASKED_WITH_BODY], ids=["GET", "POST"])
@pytest.mark.parametrize("is_changed", [False, True], ids=["as before", "another limit"])
def test_a_request_whose_path_is_rewritten_is_decided_by_the_path_that_came(
    converse: Start, request_: bytes, is_changed: bool
):
    rule = m.prefix_rule("/v1", "a", rewrite="/other")
    talk = converse(reverse(rule, **HOLDS))
    more = {"traffic": {"timeouts": {"connect": "7s"}}} if is_changed else {}
    held_then(talk, request_, reverse(rule, **HOLDS, **more))
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(GET|POST) /other/pay HTTP/1.1\r\n.*?\r\n\r\n(aaaa)?")
    answered(talk)


def test_a_request_is_decided_by_fields_that_a_filter_has_removed(converse: Start):
    rule = m.prefix_rule("/", "a")
    rule["matches"][0]["headers"] = [{"name": "X-Tenant", "value": "blue"}]
    rule["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["X-Tenant"]}}]
    talk = converse(reverse(rule, **HOLDS))
    talk.client >> ASKED.replace(b"\r\n\r\n", b"\r\nX-Tenant: blue\r\n\r\n")
    assert decide(talk, the_one(talk)) == 1
    talk.dialled("a.example", 80)
    assert b"Tenant" not in talk.origin.take(rb"(?s)GET .*?\r\n\r\n").group()
    answered(talk)


# --- a request that is no more the one that was approved -------------------------------------------------------------
RULE = m.prefix_rule("/v1", "a", rewrite="/other")


def backend_at(host: str) -> list[m.Manifest]:
    return [m.backend("a", host, 80) if each["kind"] == "Backend" else each for each in reverse(RULE, **HOLDS)]


@pytest.mark.parametrize(
    "objects",
    [
        reverse(m.prefix_rule("/v1", "a", rewrite="/another"), **HOLDS),
        reverse(m.prefix_rule("/v1", "b", rewrite="/other"), objects=(m.backend("b", "b.example", 80),), **HOLDS),
        reverse(
            {**RULE, "filters": [*RULE["filters"], {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [
                {"name": "X-Role", "value": "admin"}]}}]}, **HOLDS,
        ),
        reverse(
            {**RULE, "backendRefs": [{**RULE["backendRefs"][0], "filters": [
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [
                    {"name": "X-Role", "value": "admin"}]}}]}]}, **HOLDS,
        ),
        reverse(
            {**RULE, "filters": [*RULE["filters"], {"type": "RequestMirror", "requestMirror": {"backendRef": {
                "group": m.OURS, "kind": "Backend", "name": "b"}}}]},
            objects=(m.backend("b", "b.example", 80),), **HOLDS,
        ),
        backend_at("c.example"),
    ],
    ids=["rewriting", "backend", "filter", "filter of the backend", "mirror", "host of the backend"],
)  # fmt: skip
def test_what_would_be_sent_otherwise_by_now_is_refused(converse: Start, objects: list[m.Manifest]):
    talk = converse(reverse(RULE, **HOLDS))
    held_then(talk, ASKED, objects)
    status, reason, message = refused(talk.client)
    assert (status, reason) == (403, "approval_denied")
    assert "send it again" in message
    talk.no_dial()


def test_a_backend_that_is_gone_meanwhile_gets_nothing(converse: Start):
    talk = converse(reverse(RULE, **HOLDS))
    held_then(talk, ASKED, [each for each in reverse(RULE, **HOLDS) if each["kind"] != "Backend"])
    assert talk.client.answer()[0] in (403, 500)
    talk.no_dial()


def test_a_rule_that_is_gone_meanwhile_is_404(converse: Start):
    talk = converse(reverse(RULE, **HOLDS))
    held_then(talk, ASKED, reverse(m.prefix_rule("/v2", "a"), **HOLDS))
    assert refused(talk.client)[:2] == (404, "no_route")


def test_a_filter_that_prefers_a_backend_is_heeded_over_a_reload(converse: Start):
    class Chooses(Filter):
        def request_headers(self, x: Exchange) -> None:
            x.exclude_backend("agents/a")

    def objects(**more: Any) -> list[m.Manifest]:
        rule = m.prefix_rule("/", "a")
        rule["backendRefs"].append({"group": m.OURS, "kind": "Backend", "name": "b"})
        extensions = [scripted_filter("chooses"), hold()]
        backend = m.backend("b", "b.example", 80)
        return reverse(rule, objects=(backend,), identity=CLIENTS, extensions=extensions, **more)

    talk = converse(objects(), filters={"chooses": Chooses()})
    held_then(talk, ASKED_WITH_BODY, objects(traffic={"timeouts": {"connect": "7s"}}))
    talk.dialled("b.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\naaaa")
    answered(talk)


def test_a_credential_of_the_backend_that_was_renewed_meanwhile_is_the_one_that_is_sent(converse: Start):
    def objects(key: str) -> list[m.Manifest]:
        injector = {
            "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
            "config": {"secretRef": {"name": "key"}, "allowPlaintext": True},
        }  # fmt: skip
        made = reverse(RULE, objects=(m.secret("key", {"token": key}),), **HOLDS)
        return [
            m.backend("a", "a.example", 80, extensions=[injector]) if each["kind"] == "Backend" else each
            for each in made
        ]

    talk = converse(objects("sk-old-key-of-ours"))
    held_then(talk, ASKED, objects("sk-new-key-of-ours"))
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)GET /other/pay .*?Bearer sk-new.*?\r\n\r\n")
    answered(talk)
