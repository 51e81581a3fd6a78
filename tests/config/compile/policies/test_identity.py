"""`identity` of EgressPolicies: what is read, and what closes the place since it cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.identity.api_keys import new_key, new_record
from egressproxy.ir.identity import IdentityIR
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, listener, of_policy, policy, rule
from tests.support.pki import Pki
from tests.support.tokens import TokenIssuer

ISSUER = TokenIssuer()
HASH = "$2b$10$aeFnnJt3giMqNQhm62Z30OdmAuGk1wSqtDhg8wp2WnFNT0sevALLK"


def keys(text: str) -> str:
    return f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: keys}}
data: {{jwks.json: {json.dumps(text)}}}
"""


def users(**entries: str) -> str:
    return f"""
apiVersion: v1
kind: Secret
metadata: {{name: users}}
stringData: {json.dumps(entries)}
"""


def tokens(more: str = "") -> str:
    issuer = f"{{issuer: a, audiences: [b], jwksRef: {{kind: ConfigMap, name: keys}}{more}}}"
    return policy(f"identity: {{token: {{issuers: [{issuer}]}}}}")


def identity(*objects: str) -> IdentityIR:
    made = compiled(FORWARD, *objects)
    assert of_policy(made, "Accepted")[0] == "True", of_policy(made, "Accepted")
    found = listener(made).policy.identity
    assert found is not None
    return found


def is_closed(*objects: str) -> str:
    made = compiled(FORWARD, PLAIN, ROUTE, *objects)
    assert rule(made).backends[0].backend is None
    default = listener(made).default_backend
    assert default is not None
    assert default.backend is None
    status, reason, message = of_policy(made, "Accepted")
    assert (status, reason) == ("False", "NotEnforceable")
    return message


def test_an_issuer_with_its_keys():
    found = identity(tokens(", claimMappings: {namespace: tenant}"), keys(ISSUER.jwks()))
    (issuer,) = found.issuers
    assert (issuer.issuer, issuer.audiences, issuer.namespace_claim, issuer.groups_claim) == (
        "a",
        ("b",),
        "tenant",
        "groups",
    )
    assert found.is_required


def test_the_cas_of_an_issuer_are_known_by_the_object_that_has_them():
    pem = Pki().ca_pem
    bundle = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca}}\ndata: {{ca.crt: {json.dumps(pem)}}}\n"
    uri = "jwksURI: 'https://login.example/keys', caCertificateRefs: [{kind: ConfigMap, name: ca}]"
    written = policy(f"identity: {{token: {{issuers: [{{issuer: a, audiences: [b], {uri}}}]}}}}")
    (source,) = listener(compiled(FORWARD, bundle, written)).key_urls
    backend = source.callee.backend
    assert backend is not None
    assert backend.tls is not None
    assert (backend.tls.ca_pem, backend.tls.ca_source) == (pem, "ConfigMap default/ca")


def test_a_service_account_is_one_of_a_namespace():
    with pytest.raises(ConfigError, match=r"claimMappings: serviceAccount without namespace.*add namespace"):
        identity(tokens(", claimMappings: {serviceAccount: job}"), keys(ISSUER.jwks()))
    (issuer,) = identity(
        tokens(", claimMappings: {serviceAccount: job, namespace: tenant}"), keys(ISSUER.jwks())
    ).issuers
    assert (issuer.namespace_claim, issuer.service_account_claim) == ("tenant", "job")


def test_a_weak_key_is_left_out_and_told():
    weak = {"kty": "RSA", "kid": "old", "n": "gAEB", "e": "AQAB"}
    made = compiled(FORWARD, tokens(), keys(json.dumps({"keys": [ISSUER.jwk("one"), weak]})))
    status, _, message = of_policy(made, "Accepted")
    assert status == "True"
    assert (
        "spec.identity.token.issuers[0].jwksRef: keys of ConfigMap default/keys cannot be used, and tokens by them are "
        "refused: keys[1] (kid old): it has 24 bits, and an RSA key has to have 2048 to 8192." in message
    ), message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "no list"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "shared secret"),
        ('{"keys": []}', "no key for signatures"),
    ],
)
def test_keys_that_cannot_be_used_close_the_place(text: str, why: str):
    assert why in is_closed(tokens(), keys(text))


def api_keys(**records: dict[str, Any]) -> tuple[str, str]:
    secret = users(**{name: json.dumps(each) for name, each in records.items()})
    return policy("identity: {apiKeys: {secretRefs: [{name: users}]}}"), secret


def test_api_keys_are_read_and_make_a_client_necessary():
    found = identity(*api_keys(one=new_record(new_key(), groups=["a"]), two=new_record(new_key())))
    assert found.is_required
    assert found.api_keys is not None
    assert [(key.name, key.groups) for key in found.api_keys] == [
        ("default/users#one", ("a",)),
        ("default/users#two", ()),
    ]
    nobody = identity(policy("identity: {apiKeys: {secretRefs: [{name: users}]}}"), users())
    assert (nobody.api_keys, nobody.is_required) == ((), True)


def test_a_key_that_is_malformed_repeated_or_expired_is_told_and_the_others_count():
    one = new_record(new_key())
    old = new_record(new_key(), notAfter="2001-01-01T00:00:00Z")
    made = compiled(FORWARD, *api_keys(a=one, b={"hash": "x"}, c={**one, "routes": ["all"]}, d=old))
    status, _, message = of_policy(made, "Accepted")
    assert status == "True"
    where = "spec.identity.apiKeys.secretRefs[0]: entry {} of Secret default/users"
    malformed = "hash is not sha256: with 64 hexadecimal digits in lower case"
    assert f"{where.format('b')} is malformed, and its key is refused: {malformed}." in message
    assert f"{where.format('c')} does nothing: default/users#a has the same hash; remove one of both." in message
    [expired] = [each for each in made.warnings if each.code == "ExpiredApiKey"]
    assert (expired.field_path, expired.message) == (
        "spec.identity.apiKeys.secretRefs[0]",
        "the key of entry d of Secret default/users expired at 2001-01-01T00:00:00Z: remove it",
    )
    found = listener(made).policy.identity
    assert found is not None
    assert [key.grant.entry for key in found.api_keys or ()] == ["default/users#a", "default/users#d"]
    assert one["hash"] not in message


def test_api_keys_without_their_secret_close_the_place():
    assert "spec.identity.apiKeys.secretRefs[0]: Secret default/users does not exist" in is_closed(api_keys()[0])


def test_users_as_entries_and_as_lines():
    basic = policy("identity: {basic: {secretRef: {name: users}}}")
    found = identity(basic, users(**{"team.robot": HASH + "\n", ".htpasswd": f"\nci:{HASH}\nalice:{HASH}\n"}))
    assert [user for user, _ in found.users] == ["alice", "ci", "team.robot"]
    assert HASH not in repr(found)


@pytest.mark.parametrize(
    "entries",
    [
        {"alice": "password"},
        {"alice": "$2b$20$aeFnnJt3giMqNQhm62Z30OdmAuGk1wSqtDhg8wp2WnFNT0sevALLK"},
        {"alice": "$argon2id$v=19$m=99999999,t=3,p=4$lbY$e5M"},
        {"alice": "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="},
        {"alice": HASH, ".htpasswd": f"alice:{HASH}"},
        {".htpasswd": ""},
    ],
)
def test_users_that_cannot_be_checked_close_the_place(entries: dict[str, str]):
    message = is_closed(policy("identity: {basic: {secretRef: {name: users}}}"), users(**entries))
    assert not any(value and value in message for value in entries.values())


def test_a_password_file_under_another_key_is_told_its_key():
    entries = users(htpasswd=f"ci:{HASH}\nalice:{HASH}\n")
    assert "give the file the key .htpasswd" in is_closed(
        policy("identity: {basic: {secretRef: {name: users}}}"), entries
    )


def pod(name: str, account: str, address: str, *, spec: str = "", phase: str = "Running") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: team}}
spec: {{serviceAccountName: {account}{spec}}}
status: {{phase: {phase}, podIP: {address}, podIPs: [{{ip: {address}}}, {{ip: "fd00::{name[-1]}"}}]}}
"""


def test_addresses_of_pods_and_of_a_table():
    found = identity(
        policy("identity: {address: {clients: [{cidrs: [10.9.0.0/16], namespace: a, serviceAccount: b}]}}"),
        pod("p1", "robot", "10.0.0.1"),
        pod("p2", "robot", "10.0.0.2", spec=", hostNetwork: true"),
        pod("p3", "robot", "10.0.0.3", phase="Succeeded"),
        pod("p4", "robot", "10.0.0.4"),
        pod("p5", "other", "10.0.0.4"),
    )
    assert not found.is_required
    told = {
        str(network): (each.namespace, each.service_account) for each in found.addresses for network in each.networks
    }
    assert told == {
        "10.9.0.0/16": ("a", "b"),
        "10.0.0.1/32": ("team", "robot"),
        "fd00::1/128": ("team", "robot"),
        "fd00::4/128": ("team", "robot"),
        "fd00::5/128": ("team", "other"),
    }


def test_pods_are_left_out_on_demand():
    without = policy("identity: {required: true, address: {pods: false}}")
    assert identity(without, pod("p1", "a", "10.0.0.1")) == IdentityIR(is_required=True)


TOKEN = "token: {issuers: [{issuer: a, audiences: [b], jwksRef: {kind: ConfigMap, name: keys}}]}"


@pytest.mark.parametrize("section", ["required: true", TOKEN], ids=["required", "token"])
def test_on_a_route_it_closes_the_route(section: str):
    written = policy(f"identity: {{{section}}}", "HTTPRoute", "route")
    made = compiled(FORWARD, PLAIN, ROUTE, keys(ISSUER.jwks()), written)
    assert rule(made).backends[0].backend is None
    assert listener(made).policy.identity is None


def test_the_claims_that_subjects_ask_for_are_read():
    subjects = "subjects: [{claim: {name: tier, value: gold}}, {claim: {name: tier, value: tin}, namespace: a}]"
    theirs = policy(f"{subjects}\nmode: Open", policy_name="theirs")
    found = identity(tokens(), keys(ISSUER.jwks()), theirs)
    assert found.claims == ("tier",)
    assert identity(tokens(), keys(ISSUER.jwks())).claims == ()


def test_tokens_are_exchanged_at_backends_of_the_policys_namespace_and_at_none_by_default():
    written = tokens().replace("token: {", "token: {exchangeAt: [idp, sso/idp, default/idp], ")
    assert identity(written, keys(ISSUER.jwks())).exchanged_at == ("default/idp", "sso/idp")
    assert identity(tokens(), keys(ISSUER.jwks())).exchanged_at == ()


def test_the_more_specific_policy_has_the_whole_section():
    one = tokens()
    other = policy("identity: {required: false}", policy_name="a-other")
    assert not identity(one, other, keys(ISSUER.jwks())).is_required
