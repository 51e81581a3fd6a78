"""Keys that are fetched from their issuer where a policy names a parent: they come by way of it, as all else does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, bearer
from tests.gateway.kit import forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

FETCHED = {**CLUSTER.written, "jwksURI": "https://login.example.com/keys"}
del FETCHED["jwksRef"]
IDENTITY = {"token": {"issuers": [FETCHED]}}


def asks(converse: Start, *more: Any, **policy: Any) -> Conversation:
    """A client has shown a token, whose keys are fetched."""
    talk = converse(forward(m.backend("next", "next.example", 3128), *more, identity=IDENTITY, **policy))
    talk.counts_octets = False
    talk.client >> bearer(CLUSTER.token())
    return talk


def test_they_are_asked_for_through_the_parent(converse: Start):
    talk = asks(converse, parent={"name": "next"})
    talk.dialled("next.example", 3128)
    talk.origin.take(rb"CONNECT login.example.com:443 HTTP/1.1\r\nHost: login.example.com:443\r\n.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"
    assert talk.client.answer()[0] == 407
    talk.no_dial()


def test_what_is_shown_to_the_parent_is_the_gateways_own(converse: Start):
    secret = m.secret("mine", {"username": "gw", "password": "open"})
    key = m.secret("key", {"key": "k" * 32})
    shown = {"credentialsRef": {"name": "mine"}, "allowPlaintext": True, "identityKeyRef": {"name": "key"}}
    parent = {"name": "next", **shown}
    talk = asks(converse, secret, key, parent=parent)
    talk.dialled("next.example", 3128)
    head = talk.origin.take(rb"CONNECT login.example.com:443 .*?\r\n\r\n")[0]
    assert b"\r\nProxy-Authorization: Basic Z3c6b3Blbg==\r\n" in head
    assert b"\r\nX-Egress-Identity: v1." in head
    assert CLUSTER.token().split(".")[0].encode() not in head


def test_not_where_the_parent_is_not_for_that_name(converse: Start):
    talk = asks(converse, parent={"name": "next", "noProxy": [{"hostnames": ["login.example.com"]}]})
    talk.dialled("login.example.com", 443)


def test_nor_without_one(converse: Start):
    talk = asks(converse)
    talk.dialled("login.example.com", 443)


@pytest.mark.parametrize(
    "parent", [{"name": "nobody"}, {"name": "next", "credentialsRef": {"name": "nobody"}}], ids=["parent", "secret"]
)
def test_where_the_parent_cannot_be_used_they_are_not_fetched_without_it(converse: Start, parent: dict[str, Any]):
    talk = asks(converse, parent=parent)
    assert talk.client.answer()[0] in (407, 500)
    talk.no_dial()


def test_the_parents_own_machine_is_not_reached_through_it(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FETCHED, "jwksURI", "https://localhost/keys")
    talk = asks(converse, parent={"name": "next"})
    assert talk.client.answer()[0] == 407
    talk.no_dial()
