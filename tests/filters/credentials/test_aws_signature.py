"""Signatures, compared with botocore (byte for byte) and with the C library of AWS (awscrt)."""

import datetime
import hashlib
import hmac
import importlib.util
from unittest import mock
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.filters.credentials.aws_signature import (
    EMPTY_SHA256,
    AwsKeys,
    Scope,
    SigV4,
    SigV4A,
    canonical_request,
    derive_v4a_key,
)
from egressproxy.model.secret import SecretBytes
from tests.support.properties import examples

KEYS = AwsKeys("AKIDEXAMPLE", SecretBytes(b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"))
SESSION = AwsKeys("ASIAEXAMPLE", KEYS.secret, SecretBytes(b"FwoGZXIvYXdzE//token=="))
NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
TIME = b"20260304T050607Z"
HOST = "service.eu-central-1.amazonaws.com"

needs_botocore = pytest.mark.skipif(importlib.util.find_spec("botocore") is None, reason="botocore is not installed")
needs_awscrt = pytest.mark.skipif(importlib.util.find_spec("awscrt") is None, reason="awscrt is not installed")

#: What is percent-encoded already.
ENCODED = ("a%2Fb", "anthropic.claude-3%3A0")

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
segments = st.lists(
    st.one_of(st.sampled_from(["", ".", "..", "a:b", "anthropic.claude-3-5:0", *ENCODED, "ü", "a b", "~x*"]), text),
    max_size=5,
)
pairs = st.lists(st.tuples(text.filter(bool), text), max_size=4)
names = st.from_regex(r"x-amz-[a-z]{1,8}|content-type|range|x-other", fullmatch=True).filter(
    lambda name: name not in ("x-amz-date", "x-amz-security")
)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=10)
spaced = st.lists(values, min_size=1, max_size=3).map("  ".join)
fields = st.dictionaries(names, spaced, max_size=4)
bodies = st.binary(max_size=64)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"])
keys = st.sampled_from([KEYS, SESSION])


def target_of(parts, query):
    """Once percent-encoded, as clients send it."""
    path = "/" + "/".join(part if part in ENCODED else quote(part, safe="~") for part in parts)
    return path, "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in query)


def signed_fields(given_fields, one, payload, is_s3, more=()):
    found = [(name.encode(), value.encode()) for name, value in given_fields.items()]
    found += [(b"host", HOST.encode()), (b"x-amz-date", TIME), *more]
    if one.token is not None:
        found.append((b"x-amz-security-token", one.token.reveal()))
    if is_s3:
        found.append((b"x-amz-content-sha256", payload))
    return found


def by_botocore(method, path, query, given_fields, body, one, service, *, is_s3, payload=None):
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    url = f"https://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, headers=given_fields, data=body)
    secret = one.secret.reveal().decode()
    credentials = Credentials(one.access_key_id, secret, one.token.reveal().decode() if one.token else None)
    if payload is not None:
        request.headers["X-Amz-Content-SHA256"] = payload
    request.context["payload_signing_enabled"] = True
    made = (S3SigV4Auth if is_s3 else SigV4Auth)(credentials, service, "eu-central-1")
    with (
        mock.patch("botocore.auth.get_current_datetime", return_value=NOW.replace(tzinfo=None), create=True),
        mock.patch("botocore.auth.datetime", create=True) as clock,
    ):
        clock.datetime.utcnow.return_value = NOW.replace(tzinfo=None)
        made.add_auth(request)
    assert request.context["timestamp"] == TIME.decode()
    return request.headers["Authorization"].encode()


@needs_botocore
@pytest.mark.parametrize(("service", "is_s3"), [("bedrock", False), ("s3", True), ("execute-api", False)])
@given(methods, segments, pairs, fields, bodies, keys)
@example("GET", ["", "..", "a", "", "b", "."], [("a", ""), ("b", "1"), ("a", "2")], {}, b"", KEYS)
@example("POST", ["model", "anthropic.claude-3%3A0", "invoke"], [], {"content-type": "a  b"}, b"{}", SESSION)
@settings(max_examples=examples(100), deadline=None)
def test_a_signature_is_that_of_botocore(service, is_s3, method, parts, query, given_fields, body, one):
    path, query = target_of(parts, query)
    payload = hashlib.sha256(body).hexdigest().encode()
    expected = by_botocore(method, path, query, given_fields, body, one, service, is_s3=is_s3)
    target = (path + ("?" + query if query else "")).encode()
    signer = SigV4(one, Scope(service, "eu-central-1", is_s3=is_s3))
    made, _ = signer.authorization(
        method.encode(), target, signed_fields(given_fields, one, payload, is_s3), payload, TIME
    )
    assert made == expected


@needs_botocore
@pytest.mark.parametrize(
    "payload",
    ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"],
)
def test_words_that_stand_for_a_body_are_signed_as_botocore_does(payload):
    with mock.patch("botocore.auth.S3SigV4Auth.payload", return_value=payload):
        expected = by_botocore("PUT", "/b/k", "", {}, b"x", KEYS, "s3", is_s3=True)
    signer = SigV4(KEYS, Scope("s3", "eu-central-1", is_s3=True))
    made = signer.authorization(
        b"PUT", b"/b/k", signed_fields({}, KEYS, payload.encode(), True), payload.encode(), TIME
    )
    assert made[0] == expected


def by_awscrt(algorithm, method, target, given_fields, payload, one, service, region, *, is_s3):
    from awscrt import auth, http

    provider = auth.AwsCredentialsProvider.new_static(
        one.access_key_id, one.secret.reveal().decode(), one.token.reveal().decode() if one.token else None
    )
    request = http.HttpRequest(method, target, http.HttpHeaders([("host", HOST), *given_fields.items()]))
    config = auth.AwsSigningConfig(
        algorithm=algorithm,
        signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
        credentials_provider=provider,
        region=region,
        service=service,
        date=NOW,
        use_double_uri_encode=not is_s3,
        should_normalize_uri_path=not is_s3,
        signed_body_value=payload.decode(),
        signed_body_header_type=(
            auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256 if is_s3 else auth.AwsSignedBodyHeaderType.NONE
        ),
    )
    return dict(auth.aws_sign_request(request, config).result(10).headers)


@needs_awscrt
@pytest.mark.parametrize(("service", "is_s3"), [("bedrock", False), ("s3", True)])
@given(methods, segments, pairs, fields, bodies, keys)
@settings(max_examples=examples(100), deadline=None)
def test_a_signature_is_that_of_the_library_of_aws(service, is_s3, method, parts, query, given_fields, body, one):
    from awscrt.auth import AwsSigningAlgorithm

    path, query = target_of(parts, query)
    target = path + ("?" + query if query else "")
    payload = hashlib.sha256(body).hexdigest().encode()
    headers = by_awscrt(
        AwsSigningAlgorithm.V4, method, target, given_fields, payload, one, service, "eu-central-1", is_s3=is_s3
    )
    signer = SigV4(one, Scope(service, "eu-central-1", is_s3=is_s3))
    made, _ = signer.authorization(
        method.encode(), target.encode(), signed_fields(given_fields, one, payload, is_s3), payload, TIME
    )
    assert made.decode() == headers["Authorization"]


@needs_awscrt
@pytest.mark.parametrize(("service", "is_s3"), [("bedrock", False), ("s3", True)])
@given(methods, segments, pairs, fields, bodies, keys)
@settings(max_examples=examples(50), deadline=None)
def test_a_signature_for_several_regions_is_accepted_where_that_of_aws_is(
    service, is_s3, method, parts, query, given_fields, body, one
):
    """An ECDSA signature is another one each time: the key that is derived has to verify theirs over our text."""
    from awscrt.auth import AwsSigningAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    path, query = target_of(parts, query)
    target = path + ("?" + query if query else "")
    payload = hashlib.sha256(body).hexdigest().encode()
    headers = by_awscrt(
        AwsSigningAlgorithm.V4_ASYMMETRIC, method, target, given_fields, payload, one, service, "eu-*", is_s3=is_s3
    )
    wanted = signed_fields(given_fields, one, payload, is_s3, [(b"x-amz-region-set", b"eu-*")])
    signer = SigV4A(one, Scope(service, "eu-*", is_s3=is_s3))
    made, signature = signer.authorization(method.encode(), target.encode(), wanted, payload, TIME)
    theirs = headers["Authorization"]
    assert made.rpartition(b"=")[0].decode() == theirs.rpartition("=")[0]
    canonical, _ = canonical_request(method.encode(), target.encode(), wanted, payload, is_s3=is_s3)
    text_to_sign = b"\n".join(
        (b"AWS4-ECDSA-P256-SHA256", TIME, signer.scope(TIME), hashlib.sha256(canonical).hexdigest().encode())
    )
    public = ec.derive_private_key(derive_v4a_key(one), ec.SECP256R1()).public_key()
    for each in (signature.decode(), theirs.rpartition("=")[2]):
        public.verify(bytes.fromhex(each), text_to_sign, ec.ECDSA(hashes.SHA256()))


def test_the_key_of_a_day_is_not_that_of_the_next():
    signer = SigV4(KEYS, Scope("s3", "eu-central-1"))
    first = signer.sign(b"x", TIME)
    assert signer.sign(b"x", b"20260305T000000Z") != first
    assert signer.sign(b"x", TIME) == first


def test_the_published_example_of_s3():
    """AWS, "Signature Calculations for the Authorization Header (AWS Signature Version 4)", the first example."""
    one = AwsKeys("AKIAIOSFODNN7EXAMPLE", SecretBytes(b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"))
    made = SigV4(one, Scope("s3", "us-east-1", is_s3=True)).authorization(
        b"GET",
        b"/test.txt",
        [
            (b"host", b"examplebucket.s3.amazonaws.com"),
            (b"range", b"bytes=0-9"),
            (b"x-amz-content-sha256", EMPTY_SHA256),
            (b"x-amz-date", b"20130524T000000Z"),
        ],
        EMPTY_SHA256,
        b"20130524T000000Z",
    )
    assert made[1] == b"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def test_nothing_shows_the_secret():
    for thing in (SESSION, SigV4(SESSION, Scope("s3", "x")), SigV4A(SESSION, Scope("s3", "x"))):
        assert "wJalr" not in repr(thing)
        assert "token" not in repr(thing)
    assert hmac.compare_digest(SESSION.secret.reveal(), KEYS.secret.reveal())
