import asyncio
import json
import time
from base64 import b64decode

import pytest

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.credentials import refresher
from egressproxy.filters.credentials.signing_key import AssertionKey
from egressproxy.filters.credentials.token_endpoint import TokenRequests
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator
from egressproxy.telemetry.filter_meter import FilterMetrics
from tests.filters.credentials.kit import (
    EC_KEY,
    ENDPOINT,
    LABEL,
    RSA_KEY,
    Endpoint,
    claims,
    decoded,
    exchange,
    granted,
    injector,
    pem,
    sent,
)
from tests.support.waiting import until

SECRET_REF = {"name": "idp", "key": "secret"}
BASIC = {"tokenEndpoint": ENDPOINT, "clientId": "me", "clientSecretRef": SECRET_REF}
SECRETS = {"idp/secret": "S3CR3T-CLIENT\n"}
KEY_REF = {"name": "idp", "key": "pem"}
JWT = {"tokenEndpoint": ENDPOINT, "privateKeyRef": KEY_REF, "assertionAudience": "https://idp.example/token"}


def authorization(x):
    return x.request.fields.get(b"authorization")


async def test_client_credentials_with_the_secret_in_basic():
    idp = Endpoint(granted())
    config = {**BASIC, "clientId": "m e:%", "scopes": ["a", "b"], "audience": "api", "resource": ["https://r.example"]}
    made = injector({"oauth2": config}, {"idp/secret": "s:+ é\n"}, {LABEL: idp})
    assert authorization(await sent(made)) == b"Bearer tok-1"
    assert idp.form == [("grant_type", "client_credentials"), ("scope", "a b"), ("audience", "api"),
                        ("resource", "https://r.example")]  # fmt: skip
    method, path, fields, body = idp.asked[0]
    assert (method, path) == (b"POST", b"/token")
    scheme, _, pair = fields.get(b"authorization").partition(b" ")
    assert (scheme, b64decode(pair)) == (b"Basic", b"m+e%3A%25:s%3A%2B+%C3%A9")  # RFC 6749 section 2.3.1
    assert b"client_secret" not in body
    made.close()


async def test_a_server_gets_the_client_id_beside_basic_if_it_asks_for_that():
    """Okta refuses it there, and the SDK of the Model Context Protocol wants it."""
    idp = Endpoint((401, {"error": "invalid_client"}), granted(expires_in=0.1), granted())
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: idp})
    assert authorization(await sent(made)) == b"Bearer tok-1"
    await until(lambda: len(idp.asked) > 2)
    assert [b"client_id=me" in body for _, _, _, body in idp.asked] == [False, True, True]
    made.close()


@pytest.mark.parametrize(
    ("second", "is_known"),
    [
        ((400, {"error": "invalid_grant"}), True),  # the first request has used the code up
        ((400, {"error": "invalid_client"}), False),
        ((503, b"later"), False),
    ],
)
async def test_a_client_whom_a_server_knows_by_its_id_stays_known(second, is_known):
    idp, requests = Endpoint((400, {"error": "invalid_request"}), second, granted()), TokenRequests()
    for _ in range(2):
        await requests.send(idp, "/token", [("code", "x")], "me", [(b"authorization", b"Basic eDp5")])
    assert [b"client_id=me" in body for _, _, _, body in idp.asked] == [False, True, is_known]


async def test_client_credentials_with_the_secret_in_the_form():
    idp = Endpoint(granted())
    made = injector({"oauth2": {**BASIC, "authentication": "ClientSecretPost"}}, SECRETS, {LABEL: idp})
    await sent(made)
    assert idp.form == [("grant_type", "client_credentials"), ("client_id", "me"), ("client_secret", "S3CR3T-CLIENT")]
    assert b"authorization" not in idp.asked[0][2]
    made.close()


@pytest.mark.parametrize(("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256")])
async def test_a_client_that_signs_who_it_is(key, algorithm):
    idp = Endpoint(granted())
    config = {**JWT, "authentication": "PrivateKeyJwt", "clientId": "me", "keyId": "k1"}
    made = injector({"oauth2": config}, {"idp/pem": pem(key)}, {LABEL: idp})
    await sent(made)
    form = dict(idp.form)
    assertion = form.pop("client_assertion")
    assert form == {
        "grant_type": "client_credentials", "client_id": "me",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }  # fmt: skip
    head, said = claims(assertion, key)
    assert head == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    assert abs(said.pop("iat") - time.time()) < 60
    assert 0 < said.pop("exp") - time.time() <= 300
    assert len(said.pop("jti")) == 32
    assert said == {"iss": "me", "sub": "me", "aud": "https://idp.example/token"}
    made.close()


async def test_a_client_that_is_known_by_its_certificate():
    """As Microsoft Entra wants it."""
    idp = Endpoint(granted())
    thumbprint = "A1bC2dE3fG4hI5jK6lM7nO8pQ9rS0tU1vW2xY3zA4bC"
    config = {**JWT, "authentication": "PrivateKeyJwt", "clientId": "me", "algorithm": "PS256"}
    made = injector(
        {"oauth2": {**config, "certificateThumbprint": thumbprint}}, {"idp/pem": pem(RSA_KEY)}, {LABEL: idp}
    )
    await sent(made)
    head = json.loads(decoded(dict(idp.form)["client_assertion"].split(".")[0]))
    assert head == {"alg": "PS256", "typ": "JWT", "x5t#S256": thumbprint}
    made.close()


async def test_the_jwt_bearer_grant():
    idp = Endpoint(granted())
    config = {**JWT, "grant": "JwtBearer", "issuer": "gw", "subject": "someone", "scopes": ["x"]}
    made = injector({"oauth2": config}, {"idp/pem": pem(RSA_KEY)}, {LABEL: idp})
    await sent(made)
    form = dict(idp.form)
    _, said = claims(form.pop("assertion"), RSA_KEY)
    assert form == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "x"}
    assert (said["iss"], said["sub"], said["aud"]) == ("gw", "someone", "https://idp.example/token")
    made.close()


async def test_a_token_of_the_platform_is_the_assertion_and_is_read_each_time(tmp_path, monkeypatch):
    """Azure workload identity: a projected token of the service account, which the platform replaces."""
    monkeypatch.setattr(refresher, "MARGIN_S", 0.0)
    monkeypatch.setattr(refresher, "SHORTEST_S", 0.0)
    file = tmp_path / "token"
    file.write_text("projected-1\n")
    azure = {**ENDPOINT, "path": "/tenant/oauth2/v2.0/token"}
    config = {
        "tokenEndpoint": azure, "authentication": "TokenFile", "clientId": "app", "tokenFile": str(file),
        "scopes": ["https://cognitiveservices.azure.com/.default"],
    }  # fmt: skip
    idp = Endpoint(granted(expires_in=0.2), granted("tok-2"))
    made = injector({"oauth2": config}, {}, {LABEL: idp})
    await sent(made)
    assert idp.asked[0][1] == b"/tenant/oauth2/v2.0/token"
    assert dict(idp.form) == {
        "grant_type": "client_credentials", "client_id": "app", "client_assertion": "projected-1",
        "scope": "https://cognitiveservices.azure.com/.default",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }  # fmt: skip
    file.write_text("projected-2\n")
    await until(lambda: len(idp.asked) > 1)
    assert dict(idp.form)["client_assertion"] == "projected-2"
    made.close()


async def test_a_token_is_fetched_once_for_all_and_kept():
    idp = Endpoint(granted(), granted("tok-2"))
    idp.opened = asyncio.Event()
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: idp})
    waiting = [asyncio.create_task(sent(made)) for _ in range(20)]
    await until(lambda: idp.asked)
    idp.opened.set()
    assert {authorization(x) for x in await asyncio.gather(*waiting)} == {b"Bearer tok-1"}
    x = exchange()
    assert made.backend_request(x) is None  # nothing waits any more
    assert len(idp.asked) == 1
    made.close()


async def failed(made) -> GatewayFault:
    with pytest.raises(GatewayFault) as caught:
        await sent(made)
    assert (caught.value.reason, caught.value.status) == (Reason.CREDENTIAL_MISSING, 503)
    assert "S3CR3T" not in f"{caught.value!r} {caught.value.detail} {caught.value.message}"
    made.close()
    return caught.value


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, {"error": "invalid_client", "error_description": "S3CR3T-CLIENT is wrong"}), "400 (invalid_client)"),
        ((400, {"error": "S3CR3T-CLIENT is wrong"}), "answered with 400 for"),
        ((400, {"error": ["invalid_client"]}), "answered with 400 for"),
        ((500, b"S3CR3T"), "answered with 500"),
        ((302, b""), "answered with 302"),  # a redirect is not followed
        ((200, b"S3CR3T"), "no JSON object"),
        ((200, b"[" * 100000), "no JSON object"),
        ((200, []), "no JSON object"),
        ((200, {"token": "S3CR3T"}), "no usable access_token"),
        (granted("S3CR3T\r\nX: y"), "no usable access_token"),
        (granted(token_type="mac"), "not a bearer token"),
        (granted(expires_in=-1), "expires_in"),
        (granted(expires_in="soon"), "expires_in"),
        (granted(expires_in=True), "expires_in"),
        (CallFailed(Reason.RESPONSE_TIMEOUT, "backend agents/idp did not answer within 15 s"), "did not answer"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_token_is_told_without_what_was_in_it(answer, said):
    assert said in (await failed(injector({"oauth2": BASIC}, SECRETS, {LABEL: Endpoint(answer)}))).detail


@pytest.mark.parametrize("life", [{"expires_in": "3600"}, {"expires_in": 1.5e3}, {"token_type": "bearer"}])
async def test_what_servers_write_differently_is_understood(life):
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: Endpoint(granted(**life))})
    assert authorization(await sent(made)) == b"Bearer tok-1"
    made.close()


async def test_an_answer_without_a_life_serves_for_as_long_as_is_assumed(monkeypatch):
    monkeypatch.setattr(refresher, "MARGIN_S", 0.0)
    idp = Endpoint((200, {"access_token": "tok"}), *[(500, b"")] * 20)
    made = injector({"oauth2": {**BASIC, "assumedLifeSeconds": 1}}, SECRETS, {LABEL: idp})
    assert authorization(await sent(made)) == b"Bearer tok"
    await until(lambda: not made._refresher.has_value and len(idp.asked) > 1)  # which of the two comes first is open
    assert "500" in (await failed(made)).detail
    made.close()


async def test_a_token_that_is_valid_for_days_is_not_used_longer_while_its_endpoint_is_away():
    idp = Endpoint(granted(expires_in=3 * 86400), *[(500, b"")] * 20)
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: idp})
    await sent(made)
    keeper = made._refresher
    keeper._failed("away")
    assert keeper.has_value
    keeper.expires_at = asyncio.get_running_loop().time() - 1  # three days later
    keeper._failed("away")
    assert not keeper.has_value
    made.close()


async def test_an_answer_without_a_life_is_asked_for_again_before_long():
    idp = Endpoint((200, {"access_token": "tok"}))
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: idp})
    await sent(made)
    assert made._refresher.retry_s <= 301
    made.close()


async def test_a_client_secret_goes_over_verified_tls_alone():
    idp = Endpoint(granted(), is_verified=False)
    assert "verified TLS" in (await failed(injector({"oauth2": BASIC}, SECRETS, {LABEL: idp}))).detail
    assert idp.asked == []
    lenient = {**BASIC, "tokenEndpoint": {**ENDPOINT, "allowPlaintext": True}}
    made = injector({"oauth2": lenient}, SECRETS, {LABEL: idp})
    await sent(made)
    made.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BASIC, "clientSecretRef"),
        ({**JWT, "authentication": "PrivateKeyJwt", "clientId": "me"}, "privateKeyRef"),
        ({**JWT, "grant": "JwtBearer"}, "privateKeyRef"),
        ({"tokenEndpoint": ENDPOINT, "authentication": "TokenFile", "clientId": "a", "tokenFile": "/no/file"}, "/no/"),
    ],
)
async def test_what_is_missing_is_named(config, said):
    idp = Endpoint(granted())
    assert said in (await failed(injector({"oauth2": config}, {}, {LABEL: idp}))).detail
    assert idp.asked == []


async def test_an_endpoint_that_status_tells_of_is_no_crash():
    assert "status of the object" in (await failed(injector({"oauth2": BASIC}, SECRETS))).detail


@pytest.mark.parametrize(
    "config",
    [
        {"tokenEndpoint": ENDPOINT},
        {**BASIC, "clientId": ""},
        {**BASIC, "authentication": "PrivateKeyJwt"},
        {**BASIC, "authentication": "None"},
        {**BASIC, "scopes": ["a b"]},
        {**BASIC, "tokenEndpoint": {**ENDPOINT, "path": "token"}},
        {**BASIC, "unknown": 1},
        {**JWT, "grant": "JwtBearer", "assertionAudience": ""},
        {"tokenEndpoint": ENDPOINT, "authentication": "TokenFile", "clientId": "a", "tokenFile": "relative"},
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(config):
    with pytest.raises(ValueError, match=r"config\.oauth2"):
        injector({"oauth2": config})


@pytest.mark.parametrize("text", ["S3CR3T", "", "-----BEGIN PRIVATE KEY-----\nS3CR3T\n-----END PRIVATE KEY-----"])
def test_a_key_that_is_none_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="private key in PEM") as caught:
        AssertionKey(SecretBytes(text.encode()))
    assert "S3CR3T" not in str(caught.value)


def test_nothing_shows_the_key():
    assert repr(AssertionKey(SecretBytes(pem(EC_KEY).encode()))) == "AssertionKey(ES256)"


async def test_fetches_are_in_metrics_and_failures_are_events(monkeypatch):
    monkeypatch.setattr(refresher, "MARGIN_S", 0.0)
    monkeypatch.setattr(refresher, "FIRST_RETRY_S", 0.01)
    metrics, notices = FilterMetrics(), EventAggregator()
    idp = Endpoint(granted(expires_in=60), (500, b"S3CR3T-TOKEN"), granted("tok-2"))
    made = injector({"oauth2": BASIC}, SECRETS, {LABEL: idp}, metrics=metrics, notices=notices)
    await sent(made)

    def read(name):
        return metrics.read()[name].values

    labels = ("inject", "Backend a/b")
    assert read("egress_credential_ready") == {labels: 1}
    assert 0 < read("egress_credential_expiry_timestamp_seconds")[labels] - time.time() <= 60
    made._refresher._start()
    await until(lambda: len(idp.asked) == 3)
    await until(lambda: made._refresher.error == "")
    assert read("egress_credential_fetches") == {(*labels, "ok"): 2, (*labels, "error"): 1}
    failed_, again = notices.take()
    assert (failed_.reason, again.reason) == ("CredentialFetchFailed", "CredentialFetched")
    assert failed_.message.startswith("filter inject: cannot fetch its credential: ")
    assert "answered with 500 for a token; the last one serves" in failed_.message
    assert "S3CR3T" not in failed_.message + again.message
    made.close()
