"""Signatures of requests: over what is sent, with what the operator says, whatever the client writes."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from base64 import b64decode, b64encode

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import UnusableReference
from egressproxy.filters.credentials.request_signer import SIGNED_AT_ONCE
from egressproxy.filters.credentials.signature_template import Template
from egressproxy.filters.credentials.signed_request import SignedRequest
from egressproxy.model.exchange import SENT_BODY
from egressproxy.model.fields import Fields
from tests.filters.credentials.kit import EC_KEY, exchange, injector, pem
from tests.filters.credentials.test_http_signature import ED25519

REF = {"name": "s", "key": "k"}
SECRET = "wh-sec-0123456789"
SECRETS = {"s/k": SECRET + "\n"}
KEYS = {"s/k": ED25519.decode()}
SIGNATURE = {"name": "X-Signature", "value": "sha256={signature}"}
GITHUB = {"secretRef": REF, "message": "{body}", "fields": [SIGNATURE | {"name": "X-Hub-Signature-256"}]}
STRIPE = {
    "secretRef": REF, "message": "{timestamp}.{body}",
    "fields": [{"name": "Stripe-Signature", "value": "t={timestamp},v1={signature}"}],
}  # fmt: skip
OF_ALL = {
    "secretRef": REF, "message": "{method}\n{path}\n{query}\n{header.X-Time}\n{header.x-tenant}",
    "fields": [{"name": "X-Time", "value": "{timestamp.ms}"}, SIGNATURE | {"value": "{signature.base64}"}],
}  # fmt: skip
RFC_9421 = {"privateKeyRef": REF, "keyId": "gw", "components": ["@method", "@authority", "@path", "content-digest"]}


def signed(config, *lines, body=b"", secrets=SECRETS, target=b"/v1/x?a=1", method=b"POST", **more):
    """The request as it goes to the backend."""
    made = injector({**config, **more}, secrets)
    x = exchange(*lines, target=target, method=method)
    if made.needs_body:
        x.keep(SENT_BODY, body)
    assert made.backend_request(x) is None
    return x.request


def mac(text, algorithm="sha256"):
    return hmac.digest(SECRET.encode(), text, algorithm)


def test_a_signature_as_github_has_it():
    fields = signed({"hmac": GITHUB}, body=b'{"a": 1}').fields
    assert fields.get(b"x-hub-signature-256") == b"sha256=" + mac(b'{"a": 1}').hex().encode()


def test_a_signature_as_stripe_has_it():
    value = signed({"hmac": STRIPE}, body=b"payload").fields.get(b"stripe-signature")
    found = re.fullmatch(rb"t=([0-9]+),v1=([0-9a-f]{64})", value)
    assert abs(int(found[1]) - time.time()) < 60
    assert found[2] == mac(found[1] + b".payload").hex().encode()


def test_fields_that_are_added_can_be_signed():
    fields = signed({"hmac": OF_ALL}, (b"x-tenant", b"a"), (b"X-Tenant", b"b")).fields
    at = fields.get(b"x-time")
    assert abs(int(at) / 1000 - time.time()) < 60
    assert b64decode(fields.get(b"x-signature")) == mac(b"POST\n/v1/x\na=1\n" + at + b"\na, b")


def test_the_fields_of_the_client_go_in_every_spelling():
    theirs = [
        (b"x-signature", b"sha256=forged"), (b"X_Signature", b"forged"), (b"X-SIGNATURE", b"forged"),
        (b"authorization", b"Bearer forged"), (b"x-time", b"forged"), (b"x-api-key", b"forged"),
    ]  # fmt: skip
    request = signed({"hmac": OF_ALL}, *theirs, target=b"/v1/x?api_key=forged&a=1")
    assert b"forged" not in request.fields.block
    assert request.path == b"/v1/x?a=1"
    assert len(request.fields.get_all(b"x-signature")) == 1
    kept = signed({"hmac": OF_ALL}, *theirs, keepClientCredentials=True).fields
    assert (kept.get(b"authorization"), kept.get(b"x-signature") != b"sha256=forged") == (b"Bearer forged", True)


def test_what_is_signed_is_what_goes_out():
    """The path behind what the filter itself takes away, and the Host of the backend."""
    config = {**OF_ALL, "message": "{scheme}://{host}{target}"}
    request = signed({"hmac": config}, (b"host", b"of.the.client"), target=b"/v1/x?access_token=t&b=2")
    assert b64decode(request.fields.get(b"x-signature")) == mac(b"https://api.example" + request.path)
    assert request.path == b"/v1/x?b=2"


def test_what_a_client_writes_is_no_template():
    text = b"{signature} {body} {header.authorization} {{ }"
    fields = signed({"hmac": OF_ALL}, (b"x-tenant", text)).fields
    assert b64decode(fields.get(b"x-signature")) == mac(b"POST\n/v1/x\na=1\n" + fields.get(b"x-time") + b"\n" + text)


def test_a_value_that_no_field_can_have_ends_the_request():
    config = {**OF_ALL, "fields": [{"name": "X-Copy", "value": "{body.sha256.hex}{query}"}, SIGNATURE]}
    made = injector({"hmac": config}, SECRETS)
    x = exchange(target=b"/?a=\x01")
    x.keep(SENT_BODY, b"")
    with pytest.raises(Denied) as refused:
        made.backend_request(x)
    assert refused.value.reason is Reason.FILTER_REJECTED
    assert b"x-signature" not in x.request.fields


async def test_a_long_body_is_hashed_beside_the_loop():
    body = b"x" * (SIGNED_AT_ONCE + 1)
    x = exchange(method=b"POST")
    x.keep(SENT_BODY, body)
    waiting = injector({"hmac": GITHUB}, SECRETS).backend_request(x)
    assert b"x-hub-signature-256" not in x.request.fields
    assert await waiting is None
    assert x.request.fields.get(b"x-hub-signature-256") == b"sha256=" + mac(body).hex().encode()


def test_each_attempt_is_signed_anew():
    made = injector({"hmac": {**OF_ALL, "message": "{nonce}"}}, SECRETS)
    values = set()
    for _ in range(2):
        x = exchange()
        made.backend_request(x)
        values.add(x.request.fields.get(b"x-signature"))
    assert len(values) == 2


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (OF_ALL, False), (GITHUB, True), ({**OF_ALL, "message": "{body.sha512.base64}"}, True),
        ({**OF_ALL, "fields": [SIGNATURE, {"name": "Digest", "value": "SHA-256={body.sha256.base64}"}]}, True),
    ],
)  # fmt: skip
def test_a_body_is_collected_only_where_it_is_signed(config, needed):
    made = injector({"hmac": {**config, "maxBodyBytes": 7}}, SECRETS)
    assert (made.needs_body, made.max_buffer_bytes) == (needed, 7)


@pytest.mark.parametrize(
    ("encoding", "written"), [("Text", SECRET), ("Hex", SECRET.encode().hex()), ("Base64", b64encode(SECRET.encode()))]
)
@pytest.mark.parametrize("algorithm", ["SHA1", "SHA256", "SHA384", "SHA512"])
def test_secrets_and_hashes(encoding, written, algorithm):
    text = written if isinstance(written, str) else written.decode()
    config = {**GITHUB, "secretEncoding": encoding, "algorithm": algorithm}
    value = signed({"hmac": config}, body=b"x", secrets={"s/k": text}).fields.get(b"x-hub-signature-256")
    assert value == b"sha256=" + mac(b"x", algorithm.lower()).hex().encode()


def test_every_variable():
    request = SignedRequest(b"PUT", b"h:8443", b"/p/%20?q=1&r", Fields(b"\r\nDate: now"), b"body", now=1618884473.25)
    request.nonce = b"n"
    expected = {
        "method": b"PUT", "scheme": b"https", "host": b"h:8443", "target": b"/p/%20?q=1&r", "path": b"/p/%20",
        "query": b"q=1&r", "nonce": b"n", "body": b"body", "timestamp": b"1618884473", "timestamp.ms": b"1618884473250",
        "timestamp.rfc3339": b"2021-04-20T02:07:53Z", "timestamp.http": b"Tue, 20 Apr 2021 02:07:53 GMT",
        "header.DATE": b"now", "header.none": b"", "body.md5.base64": b64encode(hashlib.md5(b"body").digest()),
        "body.sha1.hex": hashlib.sha1(b"body").hexdigest().encode(), "signature": b"fbff",
        "signature.base64": b"+/8=", "signature.base64url": b"-_8",
    }  # fmt: skip
    for name, value in expected.items():
        assert Template(f"a{{{name}}}{{{{b}}}}").render(request, b"\xfb\xff") == b"a" + value + b"{b}", name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"message": "{methd}"}, "{methd} is unknown; known are method"),
        ({"message": "a}"}, "a single } stands for nothing"),
        ({"message": "{header.content-length}"}, "no field of the client that can be signed"),
        ({"message": "{header.a b}"}, "no field of the client"),
        ({"message": "{body.crc.hex}"}, "unknown"),
        ({"message": "{signature}"}, "its own signature"),
        ({"fields": [{"name": "X", "value": "{timestamp}"}]}, "no field has the {signature}"),
        ({"fields": [{"name": "X", "value": "{signature}{body}"}]}, "a field cannot have the {body}"),
        ({"fields": [{"name": "X", "value": "{signature}\r\nY: z"}]}, "no control characters"),
        ({"fields": [{"name": "Host", "value": "{signature}"}]}, "written by the gateway itself"),
        ({"fields": [SIGNATURE, SIGNATURE | {"name": "x_signature"}]}, "stands there twice"),
    ],
)
def test_a_config_that_cannot_hold(change, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        injector({"hmac": OF_ALL | change}, SECRETS)


def test_a_signature_has_no_place_of_a_value():
    with pytest.raises(ValueError, match="`hmac` signs requests and sends no value: remove `header`"):
        injector({"hmac": OF_ALL, "header": "X-Key"}, SECRETS)


@pytest.mark.parametrize(
    ("config", "secret", "why"),
    [
        ({"hmac": {**GITHUB, "secretEncoding": "Hex"}}, "no-hex-canary", "not written in hex"),
        ({"hmac": {**GITHUB, "secretEncoding": "Base64"}}, "no-base64-canary", "not written in base64"),
        ({"httpSignature": RFC_9421}, "canary", "not a private key in PEM"),
        (
            {"httpSignature": {**RFC_9421, "algorithm": "ed25519"}},
            pem(EC_KEY),
            "for ed25519; .* ecdsa-p256-sha256",
        ),
        ({"httpSignature": {"sharedSecretRef": REF}}, pem(EC_KEY), "HMAC needs a shared secret"),
        ({"httpSignature": {"sharedSecretRef": REF}}, "canary", "less than 32 bytes"),
    ],
)
def test_a_secret_that_cannot_sign(config, secret, why):
    with pytest.raises(UnusableReference, match=why) as refused:
        injector(config, {"s/k": secret})
    assert secret not in str(refused.value)


def test_without_its_secret_or_without_tls_nothing_is_sent():
    with pytest.raises(GatewayFault) as failed:
        injector({"hmac": GITHUB}, {}).backend_request(exchange())
    assert failed.value.reason is Reason.CREDENTIAL_MISSING
    x = exchange()
    x.backend_origin, x.backend_is_secure = None, False
    with pytest.raises(Denied) as refused:
        injector({"hmac": GITHUB}, SECRETS).backend_request(x)
    assert refused.value.reason is Reason.PLAINTEXT_CREDENTIAL
    assert b"x-hub-signature-256" not in x.request.fields


def test_a_signature_of_rfc_9421():
    forged = [(b"signature", b"sig1=:AAAA:"), (b"Signature_Input", b"forged"), (b"content-digest", b"forged")]
    fields = signed({"httpSignature": RFC_9421}, *forged, body=b"x", secrets=KEYS).fields
    assert b"forged" not in fields.block
    assert b"AAAA" not in fields.block
    told = fields.get(b"signature-input")
    digest = b"sha-256=:" + b64encode(hashlib.sha256(b"x").digest()) + b":"
    assert fields.get(b"content-digest") == digest
    found = re.fullmatch(rb'sig1=\("@method" "@authority" "@path" "content-digest"\);created=([0-9]+);keyid="gw"', told)
    assert abs(int(found[1]) - time.time()) < 60
    base = b'"@method": POST\n"@authority": api.example\n"@path": /v1/x\n"content-digest": ' + digest
    signature = re.fullmatch(rb"sig1=:([A-Za-z0-9+/=]+):", fields.get(b"signature"))
    key = load_pem_private_key(ED25519, None).public_key()
    key.verify(b64decode(signature[1]), base + b'\n"@signature-params": ' + told.removeprefix(b"sig1="))


def test_the_parameters_of_a_signature():
    more = {"label": "proxy", "tag": "web", "expiresSeconds": 60, "nonce": True, "components": ["@method"]}
    config = {"sharedSecretRef": REF, "secretEncoding": "Hex", "keyId": "k", **more}
    made = injector({"httpSignature": config}, {"s/k": "ab" * 32})
    assert not made.needs_body
    x = exchange()
    made.backend_request(x)
    told = x.request.fields.get(b"signature-input")
    found = re.fullmatch(
        rb'proxy=\("@method"\);created=([0-9]+);expires=([0-9]+);keyid="k";nonce="([0-9a-f]{32})";tag="web"', told
    )
    assert int(found[2]) - int(found[1]) == 60


def test_a_parameter_that_is_there_twice_ends_the_request():
    config = {**RFC_9421, "components": ['@query-param;name="a"']}
    made = injector({"httpSignature": config}, KEYS)
    with pytest.raises(Denied, match="stands there 2 times"):
        made.backend_request(exchange(target=b"/?a=1&a=2"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"components": ["Date"]}, "components.0: 'Date' cannot be signed"),
        ({"components": ["@status"]}, "cannot be signed"),
        ({"components": ["date", "date"]}, "components.1: date stands there twice"),
        ({"components": ["content-length"]}, "written by the gateway after it has signed"),
        ({"components": ["signature"]}, "written by the gateway after it has signed"),
        ({"sharedSecretRef": REF}, "one of `privateKeyRef` and `sharedSecretRef`"),
        ({"algorithm": "hmac-sha256"}, "hmac-sha256 needs `sharedSecretRef`"),
        ({"label": 'a=:x:, b'}, "label"),
        ({"keyId": "a\r\nb"}, "keyId"),
    ],
)  # fmt: skip
def test_a_config_of_rfc_9421_that_cannot_hold(change, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        injector({"httpSignature": RFC_9421 | change}, KEYS)
