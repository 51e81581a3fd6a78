"""`parent.credentialsRef`: a Secret with username and password, for a parent that is to be told them."""

from __future__ import annotations

import base64
import json

import pytest
import yaml

from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.backend import BackendIR
from tests.config.compile.kit import (
    FORWARD,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_listener,
    of_object,
    of_policy,
    policy,
    rule,
)
from tests.config.compile.kit import PLAIN as PLAIN_BACKEND

TLS = "tls: {mode: Simple}"
PLAIN = "tls: {mode: None}"


def corp(tls: str = PLAIN) -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: corp}}
spec:
  destination: {{type: Fqdn, fqdn: {{hostname: corp.example}}, ports: [{{number: 3128, {tls}}}]}}
"""


def secret(username: bytes | None = b"robot", password: bytes | None = b"word", namespace: str = "default") -> str:
    data = {"username": username, "password": password}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items() if value is not None}
    manifest = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": namespace},
        "type": "kubernetes.io/basic-auth", "data": encoded,
    }  # fmt: skip
    return yaml.safe_dump(manifest)


def parent(more: str = ", allowPlaintext: true", credentials: str = "{name: login}") -> str:
    return f"parent: {{name: corp, credentialsRef: {credentials}{more}}}"


ALLOW = "destinations: {allow: [{hostnames: [a.example]}]}"


def with_policy(*objects: str, said: str = "") -> tuple[BackendIR | None, tuple[str, str, str]]:
    """The default backend of a forward proxy whose policy names the parent; and ResolvedRefs of the policy."""
    made = compiled(FORWARD, policy(f"{ALLOW}\n{said or parent()}"), *objects)
    default = listener(made).default_backend
    assert default is not None
    if default.backend is None:
        assert "answered with 500" in of_listener(made, "Accepted")[2]
    return default.backend, of_policy(made, "ResolvedRefs")


def shown(backend: BackendIR | None) -> bytes:
    assert backend is not None
    assert backend.parent is not None
    assert backend.parent.name == "default/corp"
    assert backend.parent_credentials is not None
    value = backend.parent_credentials.authorization.reveal()
    assert value.startswith(b"Basic ")
    return base64.b64decode(value.removeprefix(b"Basic "))


def test_username_and_password_of_a_secret_are_made_into_basic():
    backend, condition = with_policy(corp(), secret())
    assert shown(backend) == b"robot:word"
    assert backend is not None
    assert backend.parent_credentials is not None
    assert backend.parent_credentials.source == "Secret default/login"
    assert condition == ("", "", "")


@pytest.mark.parametrize(
    ("username", "password", "expected"),
    [
        (b"robot\n", b"word\r\n", b"robot:word"),
        (b"", b"token", b":token"),
        ("jürgen".encode(), b" a:b ", "jürgen: a:b ".encode()),
    ],
)
def test_what_an_editor_leaves_at_the_end_is_no_part_of_it(username: bytes, password: bytes, expected: bytes):
    assert shown(with_policy(corp(), secret(username, password))[0]) == expected


@pytest.mark.parametrize(
    ("username", "password", "named"),
    [
        (b"robot\r\nX-Evil: 1", b"sesame", "username holds a control character"),
        (b"robot", b"ses\name", "password holds a control character"),
        (b"robot", b"ses\x00ame", "password holds a control character"),
        (b"robot\n\n", b"sesame", "username holds a control character"),
        (b"ro:bot", b"sesame", "colon"),
        (None, b"sesame", "username"),
        (b"robot", None, "password"),
    ],
)
def test_a_secret_that_cannot_be_shown_closes_what_is_behind_the_parent(
    username: bytes | None, password: bytes | None, named: str
):
    backend, (status, _, message) = with_policy(corp(), secret(username, password))
    assert backend is None
    assert status == "False"
    assert named in message
    for value in (username, password):
        assert (
            value is None or value.strip() not in (b"sesame", b"ro:bot", b"ses\name") or value.decode() not in message
        )


def test_a_socks_proxy_is_sent_both_with_their_lengths():
    backend, condition = with_policy(corp(f"protocol: SOCKS5, {PLAIN}"), secret(b"ro:bot", b"word"))
    assert backend is not None
    assert backend.parent_credentials is not None
    assert backend.parent_credentials.authorization.reveal() == b"\x01\x06ro:bot\x04word"
    assert condition == ("", "", "")


@pytest.mark.parametrize(
    ("username", "password", "named"),
    [
        (b"", b"word", "username has 0 bytes"),
        (b"robot", b"", "password has 0 bytes"),
        (b"r" * 256, b"word", "username has 256 bytes"),
        (b"robot", b"w" * 256, "password has 256 bytes"),
    ],
)
def test_what_a_socks_proxy_cannot_be_sent_closes_it(username: bytes, password: bytes, named: str):
    backend, (status, _, message) = with_policy(corp(f"protocol: SOCKS5, {PLAIN}"), secret(username, password))
    assert backend is None
    assert status == "False"
    assert named in message


def test_a_secret_that_is_not_there_closes_it():
    backend, (status, _, message) = with_policy(corp())
    assert (backend, status) == (None, "False")
    assert "Secret default/login does not exist" in message


def test_in_plain_text_they_go_only_where_somebody_has_allowed_it():
    backend, (status, reason, message) = with_policy(corp(), secret(), said=parent(""))
    assert (backend, status, reason) == (None, "False", "PlaintextCredentials")
    assert "allowPlaintext: true" in message


def test_over_tls_nobody_has_to_allow_it():
    assert shown(with_policy(corp(TLS), secret(), said=parent(""))[0]) == b"robot:word"


def test_another_namespace_has_to_grant_it():
    there = parent(credentials="{name: login, namespace: vault}")
    backend, (_, reason, message) = with_policy(corp(), secret(namespace="vault"), said=there)
    assert (backend, reason) == (None, "RefNotPermitted")
    assert "ReferenceGrant in namespace vault" in message
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: g, namespace: vault}
spec:
  from: [{group: egressproxy.io, kind: EgressPolicy, namespace: default}]
  to: [{group: "", kind: Secret, name: login}]
"""
    assert shown(with_policy(corp(), secret(namespace="vault"), grant, said=there)[0]) == b"robot:word"


def test_a_backend_names_them_with_its_own_parent():
    far = f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: far}}
spec:
  destination: {{type: Dynamic}}
  {parent("")}
"""
    made = compiled(FORWARD, far, corp(), secret())
    assert of_object(made, "Backend", "default/far", "ResolvedRefs")[:2] == ("False", "PlaintextCredentials")
    made = compiled(FORWARD, far, corp(TLS), secret())
    assert of_object(made, "Backend", "default/far", "ResolvedRefs")[0] == "True"


@pytest.mark.parametrize(
    "said",
    [
        "parent: {name: corp, allowPlaintext: true}",
        "parent: null",
        "parent: {}",
        'parent: {name: ""}',
        "parent: {name: corp, direct: true}",
        "parent: {direct: true, credentialsRef: {name: login}}",
    ],
)
def test_what_makes_no_sense_is_refused(said: str):
    with pytest.raises(ConfigError):
        compiled(FORWARD, policy(f"{ALLOW}\n{said}"), corp())


@pytest.mark.parametrize(
    "said",
    [
        "parent: http://robot:c0rrect-horse@corp.example:3128",
        "parent: {name: 'http://robot:c0rrect-horse@corp.example:3128'}",
        "parent: {name: 'robot:c0rrect-horse@corp.example'}",
        "parent: {name: corp, credentialsRef: 'http://c0rrect-horse@corp.example'}",
        "parent: {name: corp, namespace: 'robot:c0rrect-horse@corp'}",
        "parent: {name: corp, credentialsRef: 'robot:c0rrect-horse'}",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(said: str):
    """As it stands in HTTPS_PROXY."""
    with pytest.raises(ConfigError) as caught:
        compiled(FORWARD, policy(f"{ALLOW}\n{said}"), corp())
    assert "horse" not in str(caught.value)
    hostname = corp().replace("corp.example", "'robot:c0rrect-horse@corp.example'")
    with pytest.raises(ConfigError) as caught:
        compiled(FORWARD, hostname)
    assert "…@corp.example" in str(caught.value)
    assert "horse" not in str(caught.value)


def test_no_status_has_the_password():
    made = compiled(FORWARD, policy(f"{ALLOW}\n{parent('')}"), corp(), secret(b"robot", b"c0rrect-horse"))
    text = json.dumps([list(made.statuses.values()), repr(made.spec)])
    assert "c0rrect-horse" not in text
    assert base64.b64encode(b"robot:c0rrect-horse").decode() not in text


def second(tls: str = PLAIN) -> str:
    return corp(tls).replace("name: corp", "name: second").replace("corp.example", "second.example")


def test_each_parent_has_credentials_of_its_own():
    said = "parent: {name: corp, fallbacks: [{name: second, credentialsRef: {name: login}, allowPlaintext: true}]}"
    backend, condition = with_policy(corp(), second(), secret(), said=said)
    assert condition == ("", "", "")
    assert backend is not None
    assert backend.parent_credentials is None
    (other,) = backend.other_parents
    assert other.backend.name == "default/second"
    assert other.credentials is not None
    assert base64.b64decode(other.credentials.authorization.reveal().removeprefix(b"Basic ")) == b"robot:word"


@pytest.mark.parametrize(
    ("fallback", "named"),
    [
        ("{name: nowhere}", "nowhere"),
        ("{name: second, credentialsRef: {name: login}}", "default/second would go there in plain text"),
    ],
)
def test_a_fallback_that_cannot_be_used_closes_what_is_behind(fallback: str, named: str):
    said = f"parent: {{name: corp, fallbacks: [{fallback}]}}"
    backend, (status, _, message) = with_policy(corp(), second(), secret(), said=said)
    assert backend is None
    assert status == "False"
    assert named in message


def test_a_fallback_is_in_the_namespace_of_the_policy_and_needs_a_grant_in_another():
    said = "parent: {name: corp, fallbacks: [{name: second, namespace: other}]}"
    elsewhere = second().replace("{name: second}", "{name: second, namespace: other}")
    backend, (status, reason, _) = with_policy(corp(), elsewhere, said=said)
    assert backend is None
    assert (status, reason) == ("False", "InvalidParent")


def test_the_parent_of_a_parent_is_one():
    chained = corp().replace("spec:\n", "spec:\n  parent: {name: second, fallbacks: [{name: third}]}\n")
    third = second().replace("second", "third")
    backend, (status, _, message) = with_policy(chained, second(), third, said="parent: {name: corp}")
    assert backend is None
    assert status == "False"
    assert "default/corp, has a parent with fallbacks or noProxy" in message


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("{direct: true, noProxy: [{hostnames: [a.example]}]}", "noProxy does nothing beside"),
        ("{name: corp, fallbacks: [{}]}", "the parent has no name"),
        ("{name: corp, fallbacks: [{name: corp}]}", "more than once"),
        ("{name: corp, fallbacks: [{name: 'http://x:3128'}]}", "no URL"),
        ("{name: corp, noProxy: [{ports: [80]}]}", "the entry names no destination"),
        ("{name: corp, noProxy: [{hostnames: ['*']}]}", "noProxy"),
        ("{name: corp, noProxy: [{cidrs: [10.0.0.1/8]}]}", "noProxy"),
    ],
)
def test_fallbacks_and_no_proxy_are_checked_where_they_stand(said: str, named: str):
    with pytest.raises(ConfigError) as refused:
        compiled(FORWARD, policy(f"{ALLOW}\nparent: {said}"), corp())
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "is_direct"),
    [
        ("{hostnames: ['*.example']}", True),
        ("{hostnames: [a.example], ports: [80]}", True),
        ("{hostnames: [a.example], ports: [443]}", False),
        ("{hostnames: ['*.a.example']}", False),
        ("{cidrs: [0.0.0.0/0]}", False),
    ],
)
def test_a_backend_of_a_name_that_is_listed_has_no_parent(entry: str, is_direct: bool):
    made = compiled(
        REVERSE,
        ROUTE,
        corp(),
        PLAIN_BACKEND.replace("spec:\n", f"spec:\n  parent: {{name: corp, noProxy: [{entry}]}}\n"),
    )
    backend = rule(made).backends[0].backend
    assert backend is not None
    assert (backend.parent is None) is is_direct
    assert backend.no_proxy == ()
