"""Groups and claims on their way through two gateways: what the second denies to a group holds for clients of the
first, and what a request shows beside the signature of a gateway is that gateway's own.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from egressproxy.model import forwarded_identity
from egressproxy.model.forwarded_identity import ForwardedIdentity, SeenValues, sign, verify
from egressproxy.model.secret import SecretBytes
from tests.gateway.backends.test_parent_identity import KEY, SECRET, served
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import bearer
from tests.gateway.kit import ESTABLISHED, GET, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.tokens import TokenIssuer

LOGIN = TokenIssuer("https://login.example.com")
MAPPED = {**LOGIN.written, "serviceAccounts": False}
WHO = ForwardedIdentity("edge/gw", "192.0.2.7", name="https://login.example.com#ann", claims_read=())


def first(**token: Any) -> list[m.Manifest]:
    """Knows its clients by their tokens, and tells its parent who they are."""
    identity = {"token": {"issuers": [MAPPED], **token}}
    parent = {"name": "next", "identityKeyRef": {"name": "key"}}
    return forward(m.backend("next", "next.example", 3128), SECRET, LOGIN.config_map, identity=identity, parent=parent)


def told(talk: Conversation, request: bytes) -> ForwardedIdentity:
    """What the parent is told of the client of this request."""
    talk.client >> request
    talk.dialled("next.example", 3128)
    sent = talk.origin.take(rb"[A-Z]+ .*?\r\n\r\n")[0]
    value = sent.split(b"\r\nX-Egress-Identity: ")[1].partition(b"\r\n")[0]
    method = request.partition(b" ")[0]
    authority = "a.example:80" if method == b"GET" else "a.example:22"
    return verify((SecretBytes(KEY.encode()),), value, method, authority, time.time(), SeenValues())


def second(*subjects: dict[str, Any], **identity: Any) -> list[m.Manifest]:
    """Believes the first. What subjects say is denied a.example."""
    denies = m.policy(destinations={"deny": [{"hostnames": ["a.example"]}]}, subjects=list(subjects))
    denies["metadata"]["name"] = "denies"
    known = {"gateways": {"keyRefs": [{"name": "key"}]}, **identity}
    return forward(SECRET, LOGIN.config_map, *([denies] if subjects else []), identity=known)


def said(who: ForwardedIdentity = WHO, request: bytes = GET, authority: str = "a.example:80") -> bytes:
    value = sign(SecretBytes(KEY.encode()), who, request.partition(b" ")[0], authority, time.time())
    return request[:-2] + b"Via: 1.1 edge\r\nX-Egress-Identity: " + value + b"\r\n\r\n"


def of(**more: Any) -> ForwardedIdentity:
    return ForwardedIdentity("edge/gw", "192.0.2.7", **{"name": WHO.name, "claims_read": (), **more})


def refused(talk: Conversation, request: bytes, status: int = 403) -> str:
    talk.client >> request
    got, _, _, error = talk.client.answer()
    assert got == status, error
    return str(error["message"])


# --- the first ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_the_parent_is_told_name_groups_and_claims(converse: Start, request_: bytes):
    talk = converse(first(forwardClaims=["tier", "team"]))
    token = LOGIN.token("ann", groups=["dev", "größe"], tier="gold", other="x")
    who = told(talk, bearer(token, request_))
    assert who.name == "https://login.example.com#ann"
    assert who.groups == ("dev", "größe")
    assert who.claims == (("tier", "gold"),)
    assert who.claims_read == ("team", "tier")


def test_of_a_client_without_a_token_no_claims_are_missed(converse: Start):
    clients = [{"cidrs": ["0.0.0.0/0"], "namespace": "n", "serviceAccount": "s"}]
    parent = {"name": "next", "identityKeyRef": {"name": "key"}}
    objects = forward(m.backend("next", "next.example", 3128), SECRET, parent=parent)
    objects[1]["spec"]["identity"] = {"address": {"clients": clients}}
    who = told(converse(objects), GET)
    assert (who.name, who.groups, who.claims_read) == ("system:serviceaccount:n:s", (), None)


@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_who_is_in_more_groups_than_can_be_told_is_refused(
    converse: Start, monkeypatch: pytest.MonkeyPatch, request_: bytes
):
    monkeypatch.setattr(forwarded_identity, "MAX_BYTES", 1024)
    talk = converse(first())
    assert told(talk, bearer(LOGIN.token("ann", groups=["dev"]), request_)).groups == ("dev",)
    talk.client = talk.connect()
    talk.client >> bearer(LOGIN.token("ann", groups=["g" * 500, "h" * 500]), request_)
    if request_ == GET:
        talk.dialled("next.example", 3128)
    status, _, _, error = talk.client.answer()
    assert status == 403
    assert "more groups and claims than the next gateway can be told" in str(error["message"])


# --- the second -----------------------------------------------------------------------------------------------------
def test_what_is_denied_to_a_group_is_denied_to_clients_of_the_first(converse_on: Start):
    talk = converse_on(second({"group": "dev"}))
    served(talk, said(of(groups=("ops",))))
    refused(talk, said(of(groups=("ops", "dev"))))
    refused(talk, said(of(groups=("dev",)), connect("a.example:22"), "a.example:22"))


def test_also_in_a_tunnel_to_port_80(converse: Start):
    talk = converse(second({"group": "dev"}))
    talk.client >> said(of(groups=("ops",)), connect("a.example:80"))
    talk.client << ESTABLISHED
    served(talk, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    talk.client = talk.connect()
    refused(talk, said(of(groups=("dev",)), connect("a.example:80")))


def test_so_is_what_is_denied_to_a_claim(converse: Start):
    talk = converse(second({"claim": {"name": "tier", "value": "free"}}))
    served(talk, said(of(claims=(("tier", "gold"),), claims_read=("tier",))))
    refused(talk, said(of(claims=(("tier", "free"),), claims_read=("tier",))))


def test_a_claim_that_the_first_does_not_tell_is_not_taken_for_one_that_is_not_there(converse: Start):
    talk = converse(second({"claim": {"name": "tier", "value": "free"}}))
    message = refused(talk, said(of(claims_read=("team",))))
    assert "claim tier, which gateway edge/gw does not tell" in message
    served(talk, said(of(claims_read=("tier",))))
    served(talk, said(of(claims_read=None)), is_new=False)


def test_clients_that_the_first_knows_by_a_token_count_as_known(converse: Start):
    talk = converse(second(required=True))
    assert served(talk, said())["identity"] == WHO.name
    assert "does not know this client" in refused(talk, said(ForwardedIdentity("edge/gw", "192.0.2.7")))


# --- a signature and a credential -----------------------------------------------------------------------------------
TAKES_TOKENS = {"token": {"issuers": [MAPPED]}}


def test_the_credential_beside_a_signature_is_that_of_the_gateway(converse_on: Start):
    talk = converse_on(second({"group": "dev"}, **TAKES_TOKENS))
    gateway = LOGIN.token("edge", groups=["dev"])
    record = served(talk, bearer(gateway, said()))
    assert (record["identity"], record["identity_source"]) == (WHO.name, "gateway")
    refused(talk, bearer(LOGIN.token("edge"), said(of(groups=("dev",)))))


def test_where_it_is_wrong_the_request_is_refused(converse: Start):
    talk = converse(second(**TAKES_TOKENS))
    assert "expired" in refused(talk, bearer(LOGIN.token("edge", exp=int(time.time()) - 90), said()), 407)


def test_where_the_gateway_does_not_know_its_client_the_gateway_is_the_client(converse: Start):
    talk = converse(second(**TAKES_TOKENS))
    record = served(talk, bearer(LOGIN.token("edge"), said(ForwardedIdentity("edge/gw", "192.0.2.7"))))
    assert record["identity"] == "https://login.example.com#edge"
    assert (record["origin_client"], record["origin_gateway"]) == ("192.0.2.7", "edge/gw")


def test_a_signature_that_is_not_verified_leaves_the_credential(converse: Start):
    talk = converse(second({"group": "dev"}, **TAKES_TOKENS))
    forged = GET[:-2] + b"Via: 1.1 edge\r\nX-Egress-Identity: v1.x.y\r\n\r\n"
    assert served(talk, bearer(LOGIN.token("bob"), forged))["identity"] == "https://login.example.com#bob"
    refused(talk, bearer(LOGIN.token("bob", groups=["dev"]), forged))
