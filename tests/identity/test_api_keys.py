"""API keys as values: their form, their records, and how a request is freed of them."""

from __future__ import annotations

import json
from hashlib import sha256
from math import inf
from typing import Any

import pytest

from egressproxy.identity.api_keys import (
    ApiKeys,
    MalformedRecord,
    drop_hidden_keys,
    new_key,
    new_record,
    read_record,
    shown_key,
    take_keys,
)
from egressproxy.identity.credentials import CredentialRefused
from egressproxy.model.fields import Fields
from egressproxy.model.message import Hop, RequestHead

KEY = "egk_A2g12WFeXrHS40rfJ5fsf9iuCKCD1eB7jR5FJhUwYhA"  # not random: parameters of tests have it
SHOWN = KEY.encode()


def record(**members: Any) -> Any:
    return read_record("ci", json.dumps(new_record(KEY, **members)), "agents/keys")


def head(path: bytes = b"/", **fields: bytes) -> RequestHead:
    return RequestHead(b"GET", path, Fields.of((name.encode(), value) for name, value in fields.items()))


def test_a_key_has_256_random_bits_and_is_stored_as_their_hash():
    assert len(KEY) == len("egk_") + 43
    assert new_key() != KEY
    assert new_key("sk-ant-").startswith("sk-ant-egk_")
    assert new_record(KEY) == {"hash": f"sha256:{sha256(SHOWN).hexdigest()}"}
    with pytest.raises(ValueError, match="letters, digits and -"):
        new_key("a b")


def test_a_record_says_who_and_for_what():
    key = record(name="build", groups=["ci"], routes=["openai", "other/x"], models=["gpt-*"])
    assert (key.name, key.namespace, key.groups, key.not_after) == ("agents/keys#build", "-", ("ci",), inf)
    assert key.grant.entry == "agents/keys#ci"
    assert key.grant.routes == {"agents/openai", "other/x"}
    assert key.grant.models == ("gpt-*",)
    assert record().name == "agents/keys#ci"
    account = record(namespace="team", serviceAccount="robot", notAfter="2030-01-01T00:00:00Z")
    assert account.name == "system:serviceaccount:team:robot"
    assert account.not_after == 1893456000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        (json.dumps(new_record(KEY, models=["a"]))[:-1] + ', "models": ["b"]}', "twice"),
        ("[]", "no JSON object"),
        ('{"hash": "sha256:00"}', "hash is not"),
        ("{}", "hash is not"),
        (json.dumps({**new_record(KEY), "notafter": "2030-01-01T00:00:00Z"}), "'notafter' is no member"),
        (json.dumps({**new_record(KEY), "notAfter": "2030-01-01T00:00:00"}), "notAfter is no time"),
        (json.dumps({**new_record(KEY), "notAfter": 5}), "notAfter is no time"),
        (json.dumps({**new_record(KEY), "routes": []}), "routes is no list"),
        (json.dumps({**new_record(KEY), "models": "gpt-5"}), "models is no list"),
        (json.dumps({**new_record(KEY), "groups": None}), "groups is no list"),
        (json.dumps({**new_record(KEY), "name": "a b"}), "name is no text"),
        (json.dumps({**new_record(KEY), "namespace": "A"}), "namespace is no name"),
        (json.dumps({**new_record(KEY), "serviceAccount": "a"}), "serviceAccount without namespace"),
        ("[" * 100_000, "longer than"),
    ],
)
def test_a_malformed_record_is_refused_and_its_hash_not_repeated(text: str, why: str):
    with pytest.raises(MalformedRecord, match=why) as raised:
        read_record("ci", text, "agents/keys")
    assert sha256(SHOWN).hexdigest() not in str(raised.value)


@pytest.mark.parametrize("value", [SHOWN, b"Bearer " + SHOWN, b"bearer  " + SHOWN, b"sk-" + SHOWN, b"egk_cut"])
def test_a_key_is_known_by_its_form(value: bytes):
    assert shown_key(value)


@pytest.mark.parametrize(
    "value", [b"", b"Bearer sk-proj-abc", b"sk-proj-abc", b"Basic !", b"Basic YTpi", b"Token " + SHOWN, SHOWN + b", x"]
)
def test_other_values_are_those_of_providers(value: bytes):
    assert not shown_key(value)


@pytest.mark.parametrize(
    "name", ["Authorization", "x-api-key", "X_Api_Key", "api-key", "x-goog-api-key", "xi-api-key", "private-token"]
)
def test_a_key_leaves_the_field_of_a_provider(name: str):
    request = head(accept=b"*/*", **{name: SHOWN})
    assert take_keys(request) == {SHOWN}
    assert request.fields.block == b"\r\naccept: */*"


def test_the_credential_of_a_provider_stays():
    request = head(b"/?key=AIza&key=%41", authorization=b"Bearer sk-proj-abc", cookie=SHOWN)
    before = request.fields.block
    assert take_keys(request) == set()
    assert (request.fields.block, request.path) == (before, b"/?key=AIza&key=%41")


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (b"/v1?key=%b", b"/v1"),
        (b"/v1?alt=sse&key=%b&x=1", b"/v1?alt=sse&x=1"),
        (b"/v1?key=%b&key=AIza", b"/v1?key=AIza"),
        (b"/v1?key=%%65%b", b"/v1"),
    ],
)
def test_a_key_leaves_the_query_in_each_spelling(path: bytes, left: bytes):
    request = head(path % (SHOWN[1:] if b"%%65" in path else SHOWN))
    assert take_keys(request) == {SHOWN}
    assert (request.path, request.target) == (left, left)


def test_a_key_in_the_authority_of_http2_is_one_that_nobody_reads():
    assert drop_hidden_keys(RequestHead(b"GET", b"/", Fields(), Hop(host=SHOWN + b".example")))
    assert not drop_hidden_keys(RequestHead(b"GET", b"/", Fields(), Hop(host=b"egk.example")))


def test_a_key_is_found_by_its_digest_and_until_its_end():
    key = record(notAfter="1970-01-01T00:01:00Z")
    keys = ApiKeys([key])
    found, identity = keys.find(SHOWN, 59.0)
    assert found is key
    assert (identity.name, identity.source, identity.grant) == ("agents/keys#ci", "key", key.grant)
    assert keys.find(SHOWN, 59.0)[1] is identity
    with pytest.raises(CredentialRefused, match="expired 2 min ago"):
        keys.find(SHOWN, 180.0)
    with pytest.raises(CredentialRefused, match="unknown, or revoked") as raised:
        keys.find(new_key().encode(), 0.0)
    assert "sha256:" in raised.value.detail
    assert KEY not in repr((key, identity, keys))
