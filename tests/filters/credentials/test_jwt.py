"""Tokens that the gateway signs itself."""

import hmac
import json
import time

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import UnusableReference
from egressproxy.filters.credentials import refresher
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN
from tests.filters.credentials.kit import EC_KEY, RSA_KEY, claims, decoded, exchange, injector, pem, sent
from tests.support.waiting import until

P384_KEY = ec.generate_private_key(ec.SECP384R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
REF = {"name": "jwt", "key": "pem"}
SHARED = "0123456789abcdef0123456789abcdef"
SIGNED = {"privateKeyRef": REF}
OF_ALL = {**SIGNED, "keyId": "k1", "issuer": "gw", "subject": "svc", "audience": ["https://api.example"]}
CALLER = {**SIGNED, "issuer": "gw", "claims": [{"name": "sub", "caller": "Name"}, {"name": "tier", "value": 1}]}


def made(jwt, value=None, **config):
    return injector({"jwt": jwt, **config}, {"jwt/pem": value or pem(EC_KEY)})


def token(x) -> str:
    scheme, _, value = x.request.fields.get(b"authorization").decode().partition(" ")
    assert scheme == "Bearer"
    assert x.request.fields.block.lower().count(b"authorization") == 1
    return value


def asked_by(name="spiffe://a/ns/b/sa/c", **known):
    x = exchange((b"authorization", b"Bearer the-clients-own"))
    x.identity = CallerIdentity(name=name, **known)
    return x


async def test_a_token_says_who_signs_it_for_whom():
    more = [{"name": "scope", "value": "a b"}, {"name": "n", "value": 3}, {"name": "is", "value": True},
            {"name": "roles", "value": ["x", "y"]}]  # fmt: skip
    config = {**OF_ALL, "lifetimeSeconds": 120, "backdateSeconds": 30, "claims": more}
    filter_ = made(config)
    head, said = claims(token(await sent(filter_)), EC_KEY)
    assert head == {"alg": "ES256", "typ": "JWT", "kid": "k1"}
    assert abs(said["iat"] + 30 - time.time()) < 60
    assert said.pop("exp") - said.pop("iat") == 150
    assert len(said.pop("jti")) == 32
    assert said == {
        "iss": "gw", "sub": "svc", "aud": "https://api.example", "scope": "a b", "n": 3, "is": True, "roles": ["x", "y"]
    }  # fmt: skip
    filter_.close()


async def test_it_is_kept_and_renewed_before_its_end(monkeypatch):
    monkeypatch.setattr(refresher, "EARLY", 0.3)
    monkeypatch.setattr(refresher, "SHORTEST_S", 0.01)
    monkeypatch.setattr(refresher, "SPREAD", 0.299)
    filter_ = made({**OF_ALL, "lifetimeSeconds": 10})
    first = token(await sent(filter_))
    assert token(await sent(filter_)) == first
    monkeypatch.setattr(refresher.random, "random", lambda: 1.0)
    filter_._refresher._start()  # what the timer does
    found = []

    def is_new():
        x = exchange()
        filter_.backend_request(x)
        found[:] = [token(x)]
        return found[0] != first

    await until(is_new)
    assert claims(found[0], EC_KEY)[1]["jti"] != claims(first, EC_KEY)[1]["jti"]
    filter_.close()


@pytest.mark.parametrize(
    ("key", "algorithm", "chosen"),
    [
        (RSA_KEY, None, "RS256"), (RSA_KEY, "PS256", "PS256"), (EC_KEY, "ES256", "ES256"), (P384_KEY, None, "ES384"),
        (ED_KEY, "EdDSA", "EdDSA"),
    ],
    ids=("RS256", "PS256", "ES256", "ES384", "EdDSA"),
)  # fmt: skip
async def test_each_algorithm(key, algorithm, chosen):
    filter_ = made({**SIGNED, "algorithm": algorithm}, pem(key))
    text = token(await sent(filter_))
    head, body, signature = text.split(".")
    assert json.loads(decoded(head))["alg"] == chosen
    signed, raw, public = f"{head}.{body}".encode(), decoded(signature), key.public_key()
    if chosen == "PS256":
        public.verify(raw, signed, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
    elif chosen == "EdDSA":
        public.verify(raw, signed)
    elif chosen == "ES384":
        assert len(raw) == 96
    else:
        claims(text, key)
    filter_.close()


async def test_a_shared_secret():
    filter_ = made({"sharedSecretRef": REF}, SHARED + "\n")
    head, body, signature = token(await sent(filter_)).split(".")
    assert json.loads(decoded(head))["alg"] == "HS256"
    assert decoded(signature) == hmac.digest(SHARED.encode(), f"{head}.{body}".encode(), "sha256")
    filter_.close()


@pytest.mark.parametrize(
    ("jwt", "value", "why"),
    [
        ({**SIGNED, "algorithm": "RS256"}, pem(EC_KEY), "cannot be used for RS256; it is one for ES256"),
        ({"sharedSecretRef": REF}, pem(EC_KEY), "a key in PEM, and HMAC needs a shared secret"),
        ({"sharedSecretRef": REF}, "short-secret", "less than 32 bytes"),
        (SIGNED, SHARED, "not a private key in PEM"),
    ],
    ids=("another key", "PEM as shared secret", "short", "no PEM"),
)
@pytest.mark.parametrize("of_caller", [False, True], ids=("of all", "of each"))
def test_a_key_that_does_not_fit_its_algorithm(jwt, value, why, of_caller):
    """Confusion of algorithms (RFC 8725 section 2.1) ends where the configuration is checked."""
    more = {"claims": [{"name": "sub", "caller": "Name"}]} if of_caller else {}
    with pytest.raises(UnusableReference, match=why) as refused:
        made({**jwt, **more}, value)
    assert value not in str(refused.value)
    assert "0123456789" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"jwt": {}}, "one of `privateKeyRef` and `sharedSecretRef`"),
        ({"jwt": {**SIGNED, "algorithm": "HS256"}}, "HS256 needs `sharedSecretRef`"),
        ({"jwt": {"sharedSecretRef": REF, "algorithm": "RS256"}}, "HS256 needs `sharedSecretRef`"),
        ({"jwt": {**SIGNED, "algorithm": "none"}}, "algorithm"),
        ({"jwt": {**SIGNED, "claims": [{"name": "exp", "value": 1}]}}, "claims.0: the claim exp has a field"),
        ({"jwt": {**SIGNED, "claims": [{"name": "sub", "value": "x"}]}}, "has a field of its own"),
        ({"jwt": {**SIGNED, "subject": "x", "claims": [{"name": "sub", "caller": "Name"}]}}, "has a field of its own"),
        ({"jwt": {**SIGNED, "claims": [{"name": "a", "value": "x"}] * 2}}, "claims.1: .* or stands here twice"),
        ({"jwt": {**SIGNED, "claims": [{"name": "a"}]}}, "either `value` or `caller`"),
        ({"jwt": CALLER, "scrubResponses": True}, "neither `placeholder` nor `scrubResponses`"),
        ({"jwt": SIGNED, "env": "X"}, "one source of the credential"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_hold(config, why):
    with pytest.raises(ValueError, match=why):
        injector(config, {"jwt/pem": pem(EC_KEY)})


async def test_each_caller_has_a_token_of_its_own():
    filter_ = made(CALLER)
    first, other = [token(await sent(filter_, asked_by(name))) for name in ("issuer#a", 'b","admin":"yes\r\nX: y')]
    assert token(await sent(filter_, asked_by("issuer#a"))) == first
    assert (claims(first, EC_KEY)[1]["sub"], claims(first, EC_KEY)[1]["tier"]) == ("issuer#a", 1)
    said = claims(other, EC_KEY)[1]
    assert said["sub"] == 'b","admin":"yes\r\nX: y'
    assert set(said) == {"iss", "sub", "tier", "iat", "exp", "jti"}  # what a name says adds no claim


async def test_all_that_is_known_of_a_caller():
    parts = [{"name": part.lower(), "caller": part} for part in ("Name", "Namespace", "ServiceAccount", "Groups")]
    filter_ = made({**SIGNED, "claims": parts})
    x = asked_by("n", namespace="ns", service_account="sa", groups=("g1", "g2"))
    said = claims(token(await sent(filter_, x)), EC_KEY)[1]
    assert [said[name] for name in ("name", "namespace", "serviceaccount", "groups")] == ["n", "ns", "sa", ["g1", "g2"]]


async def test_an_unknown_caller_gets_no_token():
    filter_ = made(CALLER)
    await sent(filter_, asked_by())
    x = asked_by("-")
    with pytest.raises(Denied, match="not known of this client") as refused:
        filter_.backend_request(x)
    assert (refused.value.reason, refused.value.status) == (Reason.FILTER_REJECTED, 403)
    with pytest.raises(Denied):
        filter_.forecast(x)
    filter_.forecast(asked_by())


async def test_the_tokens_of_so_many_callers_are_kept(monkeypatch):
    monkeypatch.setattr("egressproxy.filters.credentials.caller_token.MAX_CALLERS", 2)
    filter_ = made(CALLER)
    a, _, again, _ = [token(await sent(filter_, asked_by(name))) for name in "abac"]
    assert again == a
    assert len(filter_._tokens) == 2
    assert token(await sent(filter_, asked_by("a"))) == a
    for name in "bc":
        await sent(filter_, asked_by(name))
    assert token(await sent(filter_, asked_by("a"))) != a
    assert a not in repr(filter_._tokens)


@pytest.mark.parametrize("jwt", [SIGNED, CALLER], ids=("of all", "of each"))
async def test_without_the_secret_requests_wait_for_nobody(jwt):
    filter_ = injector({"jwt": jwt}, {})
    with pytest.raises(GatewayFault) as failed:
        await sent(filter_, asked_by())
    assert failed.value.reason is Reason.CREDENTIAL_MISSING
    filter_.close()


async def test_a_token_says_the_groups_of_now_and_shows_nothing():
    filter_ = made({**SIGNED, "claims": [{"name": "groups", "caller": "Groups"}]})
    found = []
    for groups in (("staff", "admin"), ("staff",), ("staff, admin",), ("staff", "admin")):
        x = await sent(filter_, asked_by("n", groups=groups))
        assert CALLERS_OWN in x.state
        found.append(token(x))
        assert claims(found[-1], EC_KEY)[1]["groups"] == list(groups)
    assert found[0] == found[3]
    shown = f"{filter_!r} {vars(filter_)!r}"
    assert not any(each in shown or each.encode() in shown.encode() for each in found)
