"""Tokens that clients show, exchanged on the way to a backend; and credentials by who the client is."""

from __future__ import annotations

import json
import time
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import parse_qsl

import pytest

from egressproxy.filters.credentials import oauth2
from egressproxy.gateway.identity.authenticator import Authenticator
from egressproxy.gateway.identity.checked_credentials import CheckedCredentials, Checks
from egressproxy.ir.identity import IdentityIR
from egressproxy.model.caller_identity import CallerIdentity, CallerToken
from egressproxy.model.exchange import Exchange
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.http2.head_fields import websocket_accept
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_message_relay import COMPLETED, CREATE, KEY, SWITCHING, TOOLS, Side, upgrade
from tests.gateway.kit import ESTABLISHED, OK, SHARED, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.manifests import Manifest
from tests.support.tokens import TokenIssuer

CLUSTER = TokenIssuer()
ROBOT, OTHER = CLUSTER.token(), CLUSTER.token("system:serviceaccount:team:other")
IDP = {"group": m.OURS, "kind": "Backend", "name": "idp"}
EXCHANGE = {
    "tokenEndpoint": {"backendRef": IDP}, "clientId": "gw",
    "clientSecretRef": {"name": "idp"}, "audience": ["api"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch):
    """What is said in memory is not over TLS; tests/e2e/test_token_exchange.py has that."""
    monkeypatch.setattr(oauth2, "checked_call", lambda call, allow_plaintext: call)


def injecting(**config: Any) -> Manifest:
    extension = {
        "name": "inject", "type": "egressproxy.io/CredentialInjector:v1", "config": {"allowPlaintext": True, **config},
    }  # fmt: skip
    return m.backend("api", "api.example", 80, extensions=[extension])


def objects(backend: Manifest, *more: Manifest, at: tuple[str, ...] = ("idp",), **rule: Any) -> list[Manifest]:
    identity = {"token": {"issuers": [CLUSTER.written], "exchangeAt": list(at)}}
    return [
        *reverse(m.prefix_rule("/", "api", **rule), identity=identity, traffic=SHARED), CLUSTER.config_map, backend,
        m.backend("idp", "idp.example", 80), m.secret("idp", {"token": "CLIENT-SECRET"}), *more,
    ]  # fmt: skip


def get(token: str, path: bytes = b"/") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % (path, token.encode())


def exchanged(talk: Conversation, token: str, value: str, *, is_new: bool = True, life_s: float = 600) -> None:
    """The token endpoint is asked with this token, and issues that value."""
    idp = talk.dialled("idp.example", 80) if is_new else talk.origins[1]
    head, body = idp.take(rb"(POST /token .*?)\r\n\r\n(.+)").groups()
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert dict(parse_qsl(body.decode())) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": "api", "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    }  # fmt: skip
    answer = {
        "access_token": value, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer", "expires_in": life_s,
    }  # fmt: skip
    said = json.dumps(answer).encode()
    idp >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)


def served(talk: Conversation, api: Peer, value: str) -> None:
    head = api.take(rb"\AGET .*?\r\n\r\n")[0]
    assert head.count(b"uthorization: ") == 1
    assert f"Authorization: Bearer {value}\r\n".encode() in head
    for token in (ROBOT, OTHER):
        assert token.rpartition(".")[2].encode() not in head
    api >> OK
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\nhi")


def refused(talk: Conversation, status: int, reason: str) -> dict[str, Any]:
    got, *_ = talk.client.answer()
    record = talk.record()
    assert (got, record["reason"]) == (status, reason)
    for secret in (ROBOT, OTHER, "CLIENT-SECRET", "issued"):
        assert secret not in str(talk.log.lines)
    return record


def test_each_caller_gets_what_is_issued_for_its_own_token(converse: Start):
    talk = converse(objects(injecting(tokenExchange=EXCHANGE)))
    talk.client >> get(ROBOT)
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued-robot")
    served(talk, api, "issued-robot")
    talk.client >> get(OTHER)  # on the same connections, of the client and to the backend
    exchanged(talk, OTHER, "issued-other", is_new=False)
    served(talk, api, "issued-other")
    for token, value in ((ROBOT, "issued-robot"), (OTHER, "issued-other")):
        talk.client >> get(token)
        served(talk, api, value)
    assert len(talk.origins) == 2


def test_the_check_of_the_caller_comes_before_what_is_kept(converse: Start):
    written = objects(injecting(tokenExchange=EXCHANGE))
    talk = converse(written)
    talk.client >> get(ROBOT)
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued")
    served(talk, api, "issued")
    talk.reload([TokenIssuer().config_map if each == CLUSTER.config_map else each for each in written])
    talk.client >> get(ROBOT)  # its key was withdrawn
    refused(talk, 401, "credentials_refused")


@pytest.mark.parametrize("at", [(), ("other", "team/idp")])
def test_a_backend_that_the_policy_does_not_name_gets_no_token(converse: Start, at: tuple[str, ...]):
    """Who may write a Backend could else have the tokens of all clients sent to a server of his own."""
    talk = converse(objects(injecting(tokenExchange=EXCHANGE), at=at))
    talk.client >> get(ROBOT)
    talk.dialled("api.example", 80)
    refused(talk, 403, "credential_not_for_caller")
    assert [each.received for each in talk.origins] == [b""]


def test_without_a_token_nothing_goes_upstream(converse: Start):
    talk = converse(objects(injecting(tokenExchange=EXCHANGE)))
    talk.client >> get(ROBOT)
    api, idp = talk.dialled("api.example", 80), talk.dialled("idp.example", 80)
    idp.take(rb"POST .*")
    idp >> b"HTTP/1.1 302 Found\r\nLocation: http://api.example/\r\nContent-Length: 0\r\n\r\n"
    record = refused(talk, 502, "credential_missing")
    assert "answered with 302 for a token" in record["detail"]
    assert api.received == b""


def test_an_endpoint_on_an_internal_address_is_not_asked(converse: Start):
    talk = converse(objects(injecting(tokenExchange=EXCHANGE)))
    talk.names.zone["idp.example"] = (IPv4Address("10.0.0.1"),)
    talk.client >> get(ROBOT)
    talk.dialled("api.example", 80)
    record = refused(talk, 502, "credential_missing")
    assert "idp" in record["detail"]
    assert talk.pending_dial() is None


def test_a_retry_and_a_mirror_have_what_is_the_callers(converse: Start):
    retry = {"codes": [503], "attempts": 1, "backoff": "0s"}
    copy = m.backend("copy", "copy.example", 80)
    ref = {"group": m.OURS, "kind": "Backend", "name": "copy"}
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": ref}}
    talk = converse(objects(injecting(tokenExchange=EXCHANGE), copy, retry=retry, filters=[mirror]))
    talk.client >> get(ROBOT)
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued")
    mirrored = talk.dialled("copy.example", 80)
    assert b"uthorization" not in mirrored.take(rb"GET .*?\r\n\r\n")[0]
    assert b"Bearer issued\r\n" in api.take(rb"\AGET .*?\r\n\r\n")[0]
    api >> b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n"
    served(talk, api, "issued")


def test_credentials_by_caller_and_the_answers_that_are_kept(converse: Start):
    """With `shareTenants` of Cache, too, an answer to one caller's credential is not another's."""
    callers = [
        {"subjects": [{"namespace": "team", "serviceAccount": "robot"}], "secretRef": {"name": "key-robot"}},
        {"subjects": [{"namespace": "team"}], "secretRef": {"name": "key-team"}},
    ]
    secrets = [m.secret(f"key-{name}", {"token": f"KEY-{name}"}) for name in ("robot", "team")]
    cache = {
        "name": "cache", "type": "egressproxy.io/Cache:v1", "phase": "request-headers", "priority": 1000,
        "config": {"shareTenants": True},
    }  # fmt: skip
    kept = m.policy(name="kept", extensions=[cache])
    talk = converse(objects(injecting(callers=callers), *secrets, kept))
    api = None
    for token, value in ((ROBOT, "KEY-robot"), (OTHER, "KEY-team"), (ROBOT, "KEY-robot")):
        talk.client >> get(token)
        api = api or talk.dialled("api.example", 80)
        served(talk, api, value)
    talk.client >> get(CLUSTER.token("system:serviceaccount:elsewhere:robot"))
    refused(talk, 403, "credential_not_for_caller")


@pytest.mark.parametrize("more", [{}, {"shareTenants": True}])
def test_answers_to_an_exchanged_token_are_not_those_of_another_token_of_its_subject(
    converse: Start, more: dict[str, Any]
):
    """An agent may have a token of its user that is good for less: what the user's own has got is not for it."""
    cache = {
        "name": "cache", "type": "egressproxy.io/Cache:v1", "phase": "request-headers", "priority": 1000,
        "config": more,
    }  # fmt: skip
    talk = converse(objects(injecting(tokenExchange=EXCHANGE), m.policy(name="kept", extensions=[cache])))
    talk.client >> get(ROBOT)
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued")
    served(talk, api, "issued")
    lesser = CLUSTER.token(scope="less")
    talk.client >> get(lesser)
    exchanged(talk, lesser, "issued-less", is_new=False)
    served(talk, api, "issued-less")


def test_a_request_in_a_tunnel_has_the_token_that_has_opened_it(converse: Start):
    identity = {"token": {"issuers": [CLUSTER.written], "exchangeAt": ["idp"]}}
    talk = converse(
        [
            *forward(CLUSTER.config_map, allow=("api.example",), identity=identity),
            m.backend("idp", "idp.example", 80),
            injecting(tokenExchange=EXCHANGE), m.secret("idp", {"token": "CLIENT-SECRET"}),
            m.http_route("r", m.prefix_rule("/", "api"), hostnames=["api.example"]),
        ]
    )  # fmt: skip
    shown = b"\r\nProxy-Authorization: Bearer %b\r\n\r\n" % ROBOT.encode()
    talk.client >> connect("api.example:80").replace(b"\r\n\r\n", shown)
    talk.client << ESTABLISHED
    talk.client >> b"GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer theirs\r\n\r\n"
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued")
    served(talk, api, "issued")


def test_a_mirrored_request_has_the_credential_of_its_caller_or_does_not_go(converse: Start):
    callers = [{"subjects": [{"namespace": "team", "serviceAccount": "robot"}], "secretRef": {"name": "key-robot"}}]
    copy = injecting(callers=callers)
    copy["metadata"]["name"], copy["spec"]["destination"]["fqdn"]["hostname"] = "copy", "copy.example"
    ref = {"group": m.OURS, "kind": "Backend", "name": "copy"}
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": ref}}
    api = m.backend("api", "api.example", 80)
    talk = converse(objects(api, copy, m.secret("key-robot", {"token": "KEY-robot"}), filters=[mirror]))
    talk.client >> get(ROBOT)
    origin = talk.dialled("api.example", 80)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> OK
    assert b"Authorization: Bearer KEY-robot\r\n" in talk.dialled("copy.example", 80).take(rb"GET .*?\r\n\r\n")[0]
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\nhi")
    talk.origins[1] >> OK
    talk.settle()
    seen = len(talk.origins[1].received)
    talk.client >> get(OTHER)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\nhi")
    talk.settle()
    assert (len(talk.origins[1].received), talk.pending_dial()) == (seen, None)


def test_the_messages_of_a_websocket_need_the_token_that_has_opened_it(converse: Start):
    """Each is a request of its caller: without a token for the backend it does not go there."""
    policy = m.policy(name="kept", extensions=TOOLS)
    talk = converse(objects(injecting(tokenExchange=EXCHANGE), policy))
    talk.client >> upgrade(b"/v1/responses", b"Authorization: Bearer " + ROBOT.encode())
    api = talk.dialled("api.example", 80)
    exchanged(talk, ROBOT, "issued", life_s=0.2)
    head = api.take(rb"\AGET /v1/responses .*?\r\n\r\n")[0]
    assert b"Authorization: Bearer issued\r\n" in head
    assert ROBOT.encode() not in head
    api >> SWITCHING % (websocket_accept(KEY), b"")
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    client, server = Side(talk.client, is_client=True), Side(api, is_client=False)
    time.sleep(0.2)
    client.says(CREATE)
    exchanged(talk, ROBOT, "issued-again", is_new=False, life_s=0.1)
    assert server.hears() == CREATE  # its head has gone before
    server.says(COMPLETED)
    assert client.hears()["type"] == "response.completed"
    time.sleep(0.1)
    client.says(CREATE)
    idp = talk.origins[1]
    idp.take(rb"POST /token .*?\r\n\r\n.+")
    idp >> b'HTTP/1.1 400 Bad\r\nContent-Length: 25\r\n\r\n{"error":"invalid_grant"}'
    told = client.hears()
    assert (told["status"], told["error"]["code"]) == (403, "credential_not_for_caller")
    server.hears_nothing()


def test_another_gateways_token_is_not_that_of_its_clients():
    """A client that the other gateway does not know counts as that gateway, and has no token of its own."""
    known = CallerIdentity(name="x", source="token", token=CallerToken(SecretBytes(b"t"), frozenset(("agents/idp",))))
    signed = CallerIdentity(source="gateway", origin_client="10.0.0.1", origin_gateway="a/gw")
    exchange = Exchange("1.2.3.4:5", "g", "l", 0.0, signed)
    checked = CheckedCredentials(Checks(), None)
    Authenticator(IdentityIR(), checked, is_forward=True)._tell(exchange, known)
    assert exchange.identity.name == "x"
    assert exchange.identity.token is None
