"""Installation tokens of GitHub Apps: what is asked for, for how long they serve, and in what form they go out."""

import json
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta

import pytest

from egressproxy.errors import GatewayFault
from egressproxy.filters.base import UnusableReference
from tests.filters.credentials.kit import EC_KEY, RSA_KEY, Endpoint, claims, exchange, injector, pem, sent

REF = {"group": "egressproxy.io", "kind": "Backend", "name": "github"}
LABEL = "Backend github"
APP = {"backendRef": REF, "privateKeyRef": {"name": "app", "key": "pem"}, "clientId": "Iv23li", "installationId": 42}
BY_OWNER = {name: value for name, value in APP.items() if name != "installationId"} | {"owner": "my-org"}
SECRETS = {"app/pem": pem(RSA_KEY)}
FOUND = 200, {"id": 7, "app_id": 3}
MISSING = 404, {"message": "Not Found"}


def given(token="ghs_16C7e42F", minutes=60):
    expiry = datetime.now(UTC) + timedelta(minutes=minutes)
    return 201, {"token": token, "expires_at": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"), "repository_selection": "all"}


def made(app, github, **config):
    return injector({"githubApp": app, **config}, SECRETS, {LABEL: github})


async def test_a_token_of_the_installation():
    github = Endpoint(given())
    app = {**APP, "repositories": ["infra"], "permissions": {"contents": "read"}}
    filter_ = made(app, github)
    x = await sent(filter_, exchange((b"authorization", b"Bearer of-the-client")))
    assert x.request.fields.get_all(b"authorization") == [b"Bearer ghs_16C7e42F"]
    method, path, fields, body = github.asked[0]
    assert (method, path) == (b"POST", b"/app/installations/42/access_tokens")
    assert json.loads(body) == {"repositories": ["infra"], "permissions": {"contents": "read"}}
    assert fields.get(b"accept") == b"application/vnd.github+json"
    assert fields.get(b"user-agent")
    scheme, _, assertion = fields.get(b"authorization").decode().partition(" ")
    head, said = claims(assertion, RSA_KEY)
    assert (scheme, head["alg"], said["iss"]) == ("Bearer", "RS256", "Iv23li")
    assert -70 < said["iat"] - time.time() < -50
    assert said["exp"] - said["iat"] == 600  # the longest that GitHub takes
    await sent(filter_)
    assert len(github.asked) == 1
    filter_.close()


async def test_git_takes_it_as_a_password():
    filter_ = made({**APP, "clientId": "", "appId": 12}, Endpoint(given()), basic={"username": "x-access-token"})
    x = await sent(filter_)
    scheme, _, pair = x.request.fields.get(b"authorization").partition(b" ")
    assert (scheme, b64decode(pair)) == (b"Basic", b"x-access-token:ghs_16C7e42F")
    filter_.close()


@pytest.mark.parametrize(
    ("app", "answers", "paths"),
    [
        (BY_OWNER, [FOUND], [b"/orgs/my-org/installation"]),
        (BY_OWNER, [MISSING, FOUND], [b"/orgs/my-org/installation", b"/users/my-org/installation"]),
        ({**BY_OWNER, "repository": ".github"}, [FOUND], [b"/repos/my-org/.github/installation"]),
        ({**BY_OWNER, "apiPath": "/api/v3"}, [FOUND], [b"/api/v3/orgs/my-org/installation"]),
    ],
)
async def test_the_installation_is_looked_up(app, answers, paths):
    github = Endpoint(*answers, given())
    filter_ = made(app, github)
    await sent(filter_)
    assert [path for _, path, _, _ in github.asked[:-1]] == paths
    assert github.asked[-1][1].removeprefix(b"/api/v3") == b"/app/installations/7/access_tokens"
    assert all(method == b"GET" for method, _, _, _ in github.asked[:-1])
    filter_.close()


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([MISSING, MISSING], "the app is not installed for my-org"),
        (
            [(401, {"message": "A JSON web token could not be decoded", "error": "x y"})],
            "answered with 401 for a token",
        ),
        ([(200, {"id": "../../x"})], "named no installation"),
        ([(200, {"id": True})], "named no installation"),
        ([FOUND, (302, {})], "answered with 302"),
        ([FOUND, (201, {"token": "a\r\nb", "expires_at": "2100-01-01T00:00:00Z"})], "no usable token"),
        ([FOUND, given(minutes=-5)], "no expires_at in the future"),
    ],
)
async def test_what_is_no_token(answers, why):
    filter_ = made(BY_OWNER, Endpoint(*answers))
    with pytest.raises(GatewayFault) as failed:
        await sent(filter_)
    assert why in failed.value.detail
    assert "eyJ" not in failed.value.detail
    filter_.close()


async def test_a_clock_that_is_behind_makes_no_token_last_longer():
    filter_ = made(APP, Endpoint(given(minutes=600)))
    await sent(filter_)
    assert filter_._refresher.expires_at - time.monotonic() < 3601
    filter_.close()


async def test_nothing_is_sent_without_verified_tls():
    github = Endpoint(given(), is_verified=False)
    filter_ = made(APP, github)
    with pytest.raises(GatewayFault):
        await sent(filter_)
    assert github.asked == []
    filter_.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"appId": 1}, "one of `clientId` and `appId`"),
        ({"owner": "a"}, "the installation is `installationId`, or"),
        ({"installationId": None}, "the installation is `installationId`, or"),
        ({"repository": "a"}, "add `owner`"),
        ({"installationId": None, "owner": ".."}, "owner"),
        ({"installationId": None, "owner": "a/b"}, "owner"),
        ({"apiPath": "/a/../b?x"}, "apiPath"),
        ({"permissions": {"contents": "all"}}, "permissions"),
    ],
)
def test_a_config_that_cannot_hold(change, why):
    with pytest.raises(ValueError, match=why):
        made(APP | change, Endpoint(given()))


def test_an_app_has_a_key_of_rsa():
    with pytest.raises(UnusableReference, match="cannot be used for RS256"):
        injector({"githubApp": APP}, {"app/pem": pem(EC_KEY)})
