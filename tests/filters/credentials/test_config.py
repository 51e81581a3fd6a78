"""Configs go to the process that serves as they are."""

import json
from dataclasses import fields

import pytest

from egressproxy.filters.credentials.config import CredentialInjectorConfig, machine_field
from egressproxy.filters.settings import backend_refs, secret_refs
from egressproxy.filters.validation import validated
from tests.filters.credentials.kit import ENDPOINT
from tests.filters.credentials.test_aws_injector import REFS, SESSION
from tests.filters.credentials.test_github_app import APP
from tests.filters.credentials.test_google import with_account
from tests.filters.credentials.test_jwt import CALLER, SIGNED
from tests.filters.credentials.test_oauth2 import BASIC, JWT
from tests.filters.credentials.test_request_signer import OF_ALL, RFC_9421

REF = {"secretRef": {"name": "s", "key": "k"}}
IAM = ENDPOINT["backendRef"]
VAULT = {"backendRef": IAM, "path": "app", "key": "token"}
STS = {"roleArn": "arn:aws:iam::123456789012:role/a", "tokenFile": "/t", "sts": ENDPOINT}
TOKEN_FILE = {"tokenEndpoint": ENDPOINT, "authentication": "TokenFile", "clientId": "a", "tokenFile": "/t"}
CONFIGS = [
    REF,
    {**REF, "header": "X-Key"},
    {**REF, "query": "key", "template": "a{}"},
    {**REF, "basic": {"usernameRef": {"name": "u"}}},
    {**REF, "basic": {"username": "u"}, "placeholder": "sk-egress-0123456789", "require": "placeholder"},
    {**REF, "bind": {"hosts": ["a.example"], "ports": [443], "pathPrefix": "/v1"}},
    {"env": "KEY"},
    {"file": "key"},
    {"command": {"argv": ["/bin/true"]}},
    {"oauth2": BASIC},
    {"oauth2": {**JWT, "grant": "JwtBearer"}},
    {"oauth2": TOKEN_FILE},
    {"jwt": CALLER},
    {"jwt": {"sharedSecretRef": SIGNED["privateKeyRef"]}, "header": "X-Token"},
    {"githubApp": {**APP, "permissions": {"contents": "read"}}, "basic": {"username": "x-access-token"}},
    {"vault": {**VAULT, "tokenRef": {"name": "v", "key": "token"}, "engine": "KvV1"}},
    {"vault": {**VAULT, "kubernetes": {"role": "gw"}, "namespace": "team/"}},
    {"hmac": OF_ALL},
    {"httpSignature": RFC_9421},
    with_account(),
    {"gcp": {"metadata": {"backendRef": IAM}}},
    {"aws": {"service": "s3", "region": "x", "accessKey": SESSION}},
    {"aws": {"service": "s3", "region": "x", "webIdentity": STS}},
    {"aws": {"service": "s3", "region": "x", "container": {"backendRef": IAM, "path": "/"}}},
]


@pytest.mark.parametrize("config", CONFIGS, ids=json.dumps)
def test_a_config_can_be_made_again_of_its_values(config):
    """A process that is sent a config makes it of the values that it has, and checks them."""
    made = validated(CredentialInjectorConfig, json.dumps(config))
    assert CredentialInjectorConfig(*(getattr(made, each.name) for each in fields(made))) == made


@pytest.mark.parametrize(
    ("config", "secrets", "backends", "machine"),
    [
        ({**REF, "basic": {"usernameRef": {"name": "u"}}}, ["s/k", "u/"], [], ""),
        ({"env": "KEY"}, [], [], "env"),
        ({"oauth2": BASIC}, ["idp/secret"], ["oauth2.tokenEndpoint.backendRef"], ""),
        ({"oauth2": TOKEN_FILE}, [], ["oauth2.tokenEndpoint.backendRef"], "oauth2.tokenFile"),
        ({"gcp": {"metadata": {"backendRef": IAM}}}, [], ["gcp.metadata.backendRef"], "gcp.metadata"),
        (
            {"aws": {"service": "s3", "region": "x", "container": {"backendRef": IAM, "path": "/"}}},
            [], ["aws.container.backendRef"], "aws.container",
        ),
        ({"jwt": CALLER}, ["jwt/pem"], [], ""),
        ({"githubApp": APP}, ["app/pem"], ["githubApp.backendRef"], ""),
        (
            {"vault": {**VAULT, "kubernetes": {"role": "gw"}}},
            [], ["vault.backendRef"], "vault.kubernetes.tokenFile",
        ),
        (
            {"vault": {**VAULT, "appRole": {"roleId": "r", "secretIdRef": {"name": "v", "key": "id"}}}},
            ["v/id"], ["vault.backendRef"], "",
        ),
        ({"vault": {**VAULT, "tokenFile": "/t"}}, [], ["vault.backendRef"], "vault.tokenFile"),
        ({"hmac": OF_ALL}, ["s/k"], [], ""),
        ({"httpSignature": RFC_9421}, ["s/k"], [], ""),
        (with_account(), ["sa/json"], ["gcp.serviceAccount.tokenEndpoint.backendRef"], ""),
        ({"aws": {"service": "s3", "region": "x", "accessKey": REFS}}, ["aws/id", "aws/secret"], [], ""),
        (
            {"aws": {"service": "s3", "region": "x", "webIdentity": STS}},
            [], ["aws.webIdentity.sts.backendRef"], "aws.webIdentity.tokenFile",
        ),
    ],
)  # fmt: skip
def test_what_a_config_refers_to_is_found_wherever_it_is(config, secrets, backends, machine):
    made = validated(CredentialInjectorConfig, json.dumps(config))
    assert [ref.label for ref in secret_refs(made)] == secrets
    assert [path for path, _ in backend_refs(made)] == backends
    assert machine_field(made) == machine
