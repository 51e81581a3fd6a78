"""Tokens: what an attacker may write into one, and that no key verifies what it must not."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from egressproxy.identity.credentials import CredentialRefused
from egressproxy.identity.key_sets import UnusableKeySet, read_key_set
from egressproxy.identity.tokens import TokenVerifier
from egressproxy.ir.identity import TokenIssuerIR
from egressproxy.model.caller_identity import CallerIdentity
from tests.support.tokens import AUDIENCE, ISSUER, TokenIssuer, b64

CLUSTER = TokenIssuer()
LOGIN = TokenIssuer("https://login.test", "RS256", "rsa")


def verified(token: str, *issuers: TokenIssuer, claims: tuple[str, ...] = (), **more: Any) -> CallerIdentity:
    """Who the token is of; issuers of other names than the cluster's are no Kubernetes."""
    rules = [
        TokenIssuerIR(each.issuer, (AUDIENCE,), each.jwks(), service_accounts=each.issuer == ISSUER, **more)
        for each in issuers or (CLUSTER, LOGIN)
    ]
    keys = {each.issuer: read_key_set(each.key_set) for each in rules}
    return TokenVerifier(rules, claims).verify(token.encode(), keys, time.time())[0]


def refused(token: str, *issuers: TokenIssuer) -> str:
    with pytest.raises(CredentialRefused) as caught:
        verified(token, *issuers)
    return caught.value.message


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_every_algorithm_of_public_keys(algorithm: str):
    issuer = TokenIssuer(ISSUER, algorithm)
    assert verified(issuer.token(), issuer).name == "system:serviceaccount:team:robot"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "", "ES256K", "dir"])
def test_no_other_algorithm(algorithm: str):
    refused(CLUSTER.unsigned(algorithm) + "c2ln")
    refused(CLUSTER.unsigned(algorithm))


@pytest.mark.parametrize("form", ["pem", "jwk", "jwks"])
def test_a_public_key_is_no_shared_secret(form: str):
    """CVE-2016-10555: HS256 with the public key, which everybody has, as the secret."""
    public = LOGIN.keys["rsa"][1].public_key()
    secret = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(LOGIN.jwk("rsa")).encode(),
        "jwks": LOGIN.jwks().encode(),
    }[form]
    now = int(time.time())
    said = {"iss": LOGIN.issuer, "sub": "root", "aud": AUDIENCE, "exp": now + 60}
    signed = f"{b64({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{b64(said)}"
    token = f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"
    assert refused(token) == "the token is signed with a key that its issuer does not have"


def test_the_keys_of_one_issuer_say_nothing_of_another():
    forged = TokenIssuer(ISSUER, kid="one")  # another key of the same name
    assert refused(forged.token()) == "the signature of the token is wrong"
    other = TokenIssuer("https://login.test", kid="one")
    other.issuer = ISSUER  # signed by an issuer that is trusted, in the name of another one
    assert refused(other.token(), CLUSTER, LOGIN) == "the signature of the token is wrong"


def test_another_issuer_cannot_make_a_service_account():
    told = verified(LOGIN.token("system:serviceaccount:kube-system:admin"))
    assert told.name == "https://login.test#system:serviceaccount:kube-system:admin"
    assert (told.namespace, told.service_account) == ("-", "-")


def test_what_a_token_may_not_bring_along():
    """A key in the token itself, or an address of one, is never looked at (RFC 8725 section 3.10)."""
    own = TokenIssuer(ISSUER, kid="mine")
    for head in ({"jwk": own.jwk("mine")}, {"jku": "https://attacker.test/keys"}, {"x5u": "http://169.254.169.254/"}):
        assert "key that its issuer does not have" in refused(own.token(head=head))
        assert "signature" in refused(own.token(head={**head, "kid": "one"}))


@pytest.mark.parametrize(
    "kid", ["../../etc/passwd", "/dev/null", "one\0", "' OR 1=1", "http://a/", "ONE", "", "a" * 5000], ids=range(8)
)
def test_a_kid_is_a_name_and_no_path(kid: str):
    assert "key that its issuer does not have" in refused(CLUSTER.token(head={"kid": kid}))


@pytest.mark.parametrize("kid", [7, None, ["one"], {"a": 1}, True])
def test_a_kid_is_text(kid: object):
    head = b64({"alg": "ES256", "kid": kid})
    said = CLUSTER.token().split(".")
    refused(f"{head}.{said[1]}.{said[2]}")


@pytest.mark.parametrize(
    "head",
    [
        {"crit": ["exp"]},
        {"crit": []},
        {"b64": False, "crit": ["b64"]},
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
    ],
)
def test_kinds_and_extensions_that_are_no_credential(head: dict[str, Any]):
    refused(CLUSTER.token(head=head))


@pytest.mark.parametrize("exp", ["1e999", "-1e999", "NaN", '"soon"', "true", "null", "[]", "{}", "1e400"])
def test_an_end_that_is_no_time(exp: str):
    """Signed as it stands: whatever an issuer writes."""
    private = CLUSTER.keys["one"][1]
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    body = f'{{"iss":"{ISSUER}","sub":"system:serviceaccount:a:b","aud":"{AUDIENCE}","exp":{exp}}}'
    signed = f"{b64({'alg': 'ES256', 'kid': 'one'})}.{b64(body.encode())}"
    r, s = utils.decode_dss_signature(private.sign(signed.encode(), ec.ECDSA(SHA256())))
    refused(f"{signed}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}")


@pytest.mark.parametrize("subject", ["", "a\nb", "a\x00", "a" * 513, 7, None, ["a"]], ids=range(7))
def test_a_subject_that_is_no_name(subject: Any):
    refused(LOGIN.token(sub=subject))


def test_groups_and_the_claims_that_policies_ask_for():
    token = LOGIN.token("alice", groups=["dev", "ops"], mail="a@b.test", level=3, secret="s")
    told = verified(token, claims=("mail", "level"))
    assert told.groups == ("dev", "ops")
    assert told.claims == (("mail", "a@b.test"), ("level", "3"))
    assert verified(LOGIN.token("alice", roles="admin"), groups_claim="roles").groups == ("admin",)


def test_claims_may_say_namespace_and_service_account():
    more = {"namespace_claim": "tenant", "service_account_claim": "job"}
    told = verified(LOGIN.token("alice", tenant="team", job="robot"), LOGIN, **more)
    assert (told.namespace, told.service_account) == ("team", "robot")
    assert told.name == "https://login.test#alice", "not that of a service account of Kubernetes"
    for tenant in ("Team", "a/b", "", None, ["team"], "-"):
        with pytest.raises(CredentialRefused):
            verified(LOGIN.token("alice", tenant=tenant, job="robot"), LOGIN, **more)


def test_a_key_without_a_name_and_a_token_without_one():
    issuer = TokenIssuer()
    issuer.add("two")
    keys = json.loads(issuer.jwks())
    for key in keys["keys"]:
        del key["kid"]
    rules = [TokenIssuerIR(ISSUER, (AUDIENCE,), service_accounts=True)]
    verifier, known = TokenVerifier(rules), {ISSUER: read_key_set(json.dumps(keys))}
    for kid in ("one", "two"):
        assert verifier.verify(issuer.token(kid=kid).encode(), known, time.time())[0].namespace == "team"


# --- key sets --------------------------------------------------------------------------------------------------------
SECRET = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("", "no JSON"),
        ("[]", "no list"),
        ('{"keys": {}}', "no list"),
        ('{"keys": [1]}', "no list"),
        ('{"keys": []}', "no key for signatures"),
        ("[" * 100_000, "no JSON"),
        (json.dumps({"keys": [SECRET]}), "shared secret"),
        (json.dumps({"keys": [CLUSTER.jwk("one"), SECRET]}), "shared secret"),
        (json.dumps({"keys": [{**CLUSTER.jwk("one"), "d": "AA"}]}), "private key"),
        (json.dumps({"keys": [{**CLUSTER.jwk("one"), "use": "enc"}]}), "no key for signatures"),
        (json.dumps({"keys": [{**CLUSTER.jwk("one"), "alg": "HS256"}]}), "no key for signatures"),
        (json.dumps({"keys": [{**CLUSTER.jwk("one"), "x": "!"}]}), "malformed"),
        (json.dumps({"keys": [{**LOGIN.jwk("rsa"), "n": b64(b"\x80" + b"\x01" * 127)}]}), "1024 bits"),
        (json.dumps({"keys": [{**LOGIN.jwk("rsa"), "e": b64(b"\x01" * 200)}]}), "exponent"),
        (json.dumps({"keys": [CLUSTER.jwk("one"), CLUSTER.jwk("one")]}), "same kid"),
        (json.dumps({"keys": [{**CLUSTER.jwk("one"), "kid": 1}]}), "kid is no text"),
        (json.dumps({"keys": [CLUSTER.jwk("one")] * 65}), "more than 64"),
    ],
    ids=range(17),
)
def test_key_sets_that_cannot_be_used(keys: str, why: str):
    with pytest.raises(UnusableKeySet, match=why):
        read_key_set(keys)


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "EC", "crv": "secp256k1", "x": b64(b"\x01" * 32), "y": b64(b"\x01" * 32)},
        {"kty": "EC", "crv": "P-192", "x": b64(b"\x01" * 24), "y": b64(b"\x01" * 24)},
        {"kty": "OKP", "crv": "X25519", "x": b64(b"\x01" * 32)},
        {"kty": "AKP", "alg": "ML-DSA-65", "pub": b64(b"\x01" * 1952)},
        {**CLUSTER.jwk("one"), "key_ops": ["encrypt", "wrapKey"]},
        {**CLUSTER.jwk("one"), "key_ops": ["sign"]},
        {**CLUSTER.jwk("one"), "key_ops": "verify"},
    ],
    ids=range(7),
)
def test_a_key_that_is_for_something_else_is_left_out(other: dict[str, Any]):
    """An issuer that adds one must not lose its others."""
    keys = read_key_set(json.dumps({"keys": [CLUSTER.jwk("one"), {**other, "kid": "other"}]}))
    assert len(keys) == 1
    assert not keys.candidates("other", "ES256")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({**LOGIN.jwk("rsa"), "n": b64(b"\x80" + b"\x01" * 127)}, "1024 bits"),
        ({**LOGIN.jwk("rsa"), "e": b64(b"\x01" * 200)}, "exponent"),
        ({**CLUSTER.jwk("one"), "x": "!"}, "malformed"),
        ({"kty": "EC", "use": "sig"}, "malformed"),
    ],
    ids=range(4),
)
def test_a_key_that_cannot_be_used_takes_no_other_with_it_and_is_told(other: dict[str, Any], why: str):
    keys = read_key_set(json.dumps({"keys": [CLUSTER.jwk("one"), {**other, "kid": "old"}]}))
    (told,) = keys.unusable
    assert told.startswith("keys[1] (kid old): ")
    assert why in told
    verifier = TokenVerifier([TokenIssuerIR(ISSUER, (AUDIENCE,), service_accounts=True)])
    assert verifier.verify(CLUSTER.token().encode(), {ISSUER: keys}, time.time())[0].namespace == "team"
    with pytest.raises(CredentialRefused, match="a key that is not safe to use, or malformed"):
        verifier.verify(CLUSTER.token(head={"kid": "old"}).encode(), {ISSUER: keys}, time.time())


def test_the_kid_of_a_key_that_cannot_be_used_is_told_as_text_alone():
    weak = {**LOGIN.jwk("rsa"), "n": b64(b"\x80" + b"\x01" * 127)}
    for kid in ("a\nb", 7, "k" * 1000):
        keys = read_key_set(json.dumps({"keys": [CLUSTER.jwk("one"), {**weak, "kid": kid}]}))
        assert keys.unusable == ("keys[1]: it has 1024 bits, and an RSA key has to have 2048 to 8192",)


def test_a_key_may_say_that_it_verifies():
    assert len(read_key_set(json.dumps({"keys": [{**CLUSTER.jwk("one"), "key_ops": ["verify"]}]}))) == 1


@pytest.mark.parametrize("claims", [{"groups": ["a", "\ud800"]}, {"tier": "\udfff"}])
def test_half_a_character_is_no_group_and_no_claim(claims: dict[str, Any]):
    with pytest.raises(CredentialRefused, match="is no text"):
        verified(CLUSTER.token(**claims), claims=("tier",))
