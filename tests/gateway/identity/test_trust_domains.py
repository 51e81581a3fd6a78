"""Workloads of the same name in two clusters are two clients, by whatever they show who they are."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.identity.peers import workload
from egressproxy.model.caller_identity import CallerIdentity, tenant_of
from egressproxy.model.exchange import Exchange
from egressproxy.model.forwarded_identity import ForwardedIdentity, sign
from egressproxy.model.per_client_quota import identity_of
from egressproxy.model.secret import SecretBytes
from tests.config.compile.kit import compiled
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, bearer, is_refused, is_served
from tests.gateway.kit import GET
from tests.support import manifests as m
from tests.support.tokens import TokenIssuer

PARTNER = TokenIssuer("https://partner.test")
KEY = "0123456789abcdef" * 2
KEYS = [
    m.config_map("keys", {"jwks.json": CLUSTER.jwks()}),
    m.config_map("partner", {"jwks.json": PARTNER.jwks()}),
    m.secret("key", {"key": KEY}),
]
ISSUERS = [
    {**CLUSTER.written, "trustDomain": "cluster.local"},
    {**PARTNER.written, "trustDomain": "partner.test", "jwksRef": {"kind": "ConfigMap", "name": "partner"}},
]
TOKENS = {"token": {"issuers": ISSUERS}}


def both(*policies: m.Manifest, allow: tuple[str, ...] = ("a.example",), identity: Any = TOKENS) -> list[m.Manifest]:
    return [m.gateway(m.forward_listener(3128)), m.policy(allow, identity=identity), *KEYS, *policies]


def test_a_tenant_a_share_and_a_name_are_those_of_one_trust_domain(converse: Start):
    talk = converse(both())
    ours = is_served(talk, bearer(CLUSTER.token()))
    theirs = is_served(talk, bearer(PARTNER.token()))  # over a connection of its own
    assert (ours["namespace"], ours["identity"]) == ("team", "system:serviceaccount:team:robot")
    assert (theirs["namespace"], theirs["identity"]) == (
        "team@partner.test", "spiffe://partner.test/ns/team/sa/robot",
    )  # fmt: skip


def test_a_certificate_and_a_token_of_one_trust_domain_are_one_client():
    domains = ("cluster.local", "partner.test")
    ours = workload(["spiffe://cluster.local/ns/team/sa/robot"], domains)
    theirs = workload(["spiffe://partner.test/ns/team/sa/robot"], domains)
    assert (ours.namespace, theirs.namespace) == ("team", "team@partner.test")
    assert tenant_of(ours) != tenant_of(theirs)
    assert theirs.name == "spiffe://partner.test/ns/team/sa/robot"


@pytest.mark.parametrize(
    ("subject", "ours", "theirs"),
    [
        ({"namespace": "team"}, True, False),
        ({"namespace": "team", "trustDomain": "cluster.local"}, True, False),
        ({"namespace": "team", "trustDomain": "partner.test"}, False, True),
        ({"namespace": "team", "trustDomain": "partner.test", "serviceAccount": "robot"}, False, True),
        ({"namespace": "team", "trustDomain": "partner.test", "serviceAccount": "other"}, False, False),
    ],
)
def test_subjects_name_the_trust_domain(converse: Start, subject: Any, ours: bool, theirs: bool):
    talk = converse(both(m.policy(["a.example"], name="more", subjects=[subject]), allow=()))
    for issuer, is_allowed in ((CLUSTER, ours), (PARTNER, theirs)):
        talk.client = talk.connect()
        if is_allowed:
            is_served(talk, bearer(issuer.token()))
        else:
            assert is_refused(talk, bearer(issuer.token()), 403)


def test_two_policies_for_one_namespace_in_two_spellings_hold_together(converse: Start):
    policies = [
        m.policy(["a.example"], name="one", subjects=[{"namespace": "team"}]),
        m.policy([], name="two", subjects=[{"namespace": "team", "trustDomain": "cluster.local"}]),
    ]
    policies[1]["spec"]["destinations"] = {"deny": [{"hostnames": ["a.example"]}]}
    is_refused(converse(both(*policies, allow=())), bearer(CLUSTER.token()), 403)


def test_what_another_gateway_tells_is_of_its_trust_domain(converse: Start):
    gateways = {"keyRefs": [{"name": "key"}], "trustDomain": "partner.test"}
    talk = converse(both(identity={"gateways": gateways, "certificate": {"trustDomains": ["cluster.local"]}}))

    def told(namespace: str) -> bytes:
        said = ForwardedIdentity("edge/gw", "192.0.2.7", namespace, "robot", "system:serviceaccount:team:robot")
        value = sign(SecretBytes(KEY.encode()), said, b"GET", "a.example:80", time.time())
        return GET[:-2] + b"Via: 1.1 edge\r\nX-Egress-Identity: %b\r\n\r\n" % value

    for namespace, known in (
        ("team", "team@partner.test"),
        ("team@partner.test", "team@partner.test"),
        ("team@cluster.local", "team"),
        ("team@third.test", "team@third.test"),
    ):
        talk.client = talk.connect()
        talk.client >> told(namespace)
        talk.dialled("a.example", 80)
        talk.origin.take(rb"GET / .*?\r\n\r\n")
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
        assert talk.record()["namespace"] == known


def test_several_issuers_of_namespaces_say_of_which_trust_domain_they_are():
    untold = [ISSUERS[0], {**ISSUERS[1], "trustDomain": None}]
    del untold[1]["trustDomain"]
    with pytest.raises(ConfigError, match=r"2 issuers say namespaces.*write trustDomain at https://partner\.test"):
        compiled(*(json.dumps(each) for each in both(identity={"token": {"issuers": untold}})))


def test_what_is_counted_for_a_service_account_is_counted_in_its_trust_domain():
    ours, theirs = (
        CallerIdentity(namespace, "robot", name="-", source="token") for namespace in ("team", "team@partner.test")
    )

    assert identity_of(Exchange("10.0.0.1:5", "a/gw", "l", 0.0, ours)) == "team/robot"
    assert identity_of(Exchange("10.0.0.1:5", "a/gw", "l", 0.0, theirs)) == "team@partner.test/robot"
