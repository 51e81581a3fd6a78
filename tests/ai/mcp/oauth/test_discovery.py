"""Metadata, and tokens of the gateway's own: what is asked of whom, and what is refused."""

from __future__ import annotations

from base64 import b64decode

import pytest

from egressproxy.ai.mcp.oauth.config import parse_url
from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import RepeatRequest
from egressproxy.filters.credentials import refresher
from egressproxy.model.exchange import BackendOrigin
from egressproxy.telemetry.event_aggregator import EventAggregator
from tests.ai.mcp.oauth.kit import (
    ISSUER,
    LOGIN,
    OWN,
    RESOURCE,
    SERVERS,
    TOOLS,
    Login,
    Server,
    answered,
    exchange,
    made,
    sent,
    token,
    tools,
)
from tests.filters.credentials.kit import EC_KEY, claims, pem


@pytest.mark.parametrize(
    "text",
    ["http://login.example", "ftp://login.example", "https://a@login.example", "https://login.example/#x", "https://",
     "https://login.example/a b", "http://127.0.0.1.evil.example", "//login.example", "https://h/" + 2048 * "x", None],
)  # fmt: skip
def test_urls_of_http_and_other_strange_ones_are_refused(text):
    with pytest.raises(ValueError, match=r"URL|http"):
        parse_url(text)


@pytest.mark.parametrize("text", ["http://127.0.0.1:8000/x", "http://localhost", "http://[::1]:1", "https://a:8443/b"])
def test_urls_of_https_and_of_http_on_loopback_are_taken(text):
    assert parse_url(text).scheme == text.partition(":")[0]


async def test_one_token_serves_all_clients_and_is_for_the_resource():
    login, server = Login(token_endpoint_auth_methods_supported=["client_secret_basic"]), tools()
    filter = made(OWN, login, server)
    assert token(await sent(filter, exchange("/tools", (b"Authorization", b"Bearer of-the-client")))) == b"Bearer tok-1"
    assert token(await sent(filter, exchange(caller=""))) == b"Bearer tok-1"
    assert server.paths == ["/.well-known/oauth-protected-resource/mcp"]
    assert login.paths == ["/.well-known/oauth-authorization-server", "/token"]
    form, basic = login.forms[0]
    assert form == {"grant_type": "client_credentials", "resource": RESOURCE, "scope": "read"}
    assert b64decode(basic.partition(b" ")[2]) == b"gw:s3cret%3A%2B"
    filter.close()


async def test_the_gateway_signs_who_it_is():
    login = Login(token_endpoint_auth_methods_supported=["private_key_jwt"])
    config = {**OWN, "privateKeyRef": {"name": "oauth", "key": "pem"}, "scopes": ["write"]}
    del config["clientSecretRef"]
    filter = made(config, login, secrets={"oauth/pem": pem(EC_KEY)})
    await sent(filter)
    form, _ = login.forms[0]
    said = claims(form["client_assertion"], EC_KEY)[1]
    assert (said["iss"], said["sub"], said["aud"], form["scope"]) == ("gw", "gw", ISSUER, "write")
    filter.close()


async def test_metadata_of_openid_connect_and_of_an_issuer_with_a_path():
    issuer = f"{ISSUER}/tenant"
    login = Login(issuer=issuer)
    document = login.documents.pop("/.well-known/oauth-authorization-server")
    login.documents["/tenant/.well-known/openid-configuration"] = document
    config = {**OWN, "authorizationServers": [{"url": issuer, "backendRef": LOGIN}]}
    filter = made(config, login, tools(authorization_servers=[issuer]))
    assert token(await sent(filter)) == b"Bearer tok-1"
    assert login.paths[:3] == [
        "/.well-known/oauth-authorization-server/tenant", "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ]  # fmt: skip
    filter.close()


async def test_a_server_without_metadata_has_the_first_authorization_server():
    login = Login()
    filter = made(OWN, login, Server(backend="agents/tools"))
    assert token(await sent(filter)) == b"Bearer tok-1"
    assert "scope" not in login.forms[0][0]
    filter.close()


@pytest.mark.parametrize(
    ("login", "server", "why"),
    [
        (Login(issuer="https://evil.example"), tools(), "names another issuer"),
        (Login(issuer=f"{ISSUER}/"), tools(), "names another issuer"),
        (Login(token_endpoint="https://169.254.169.254/token"), tools(), "none of authorizationServers"),
        (Login(token_endpoint="http://login.example/token"), tools(), "http:// is for loopback"),
        (Login(token_endpoint="https://login.example:8443/token"), tools(), "none of authorizationServers"),
        (Login(registration_endpoint="https://localhost/r"), tools(), "none of authorizationServers"),
        (Login(authorization_endpoint="javascript:alert(1)"), tools(), "authorization_endpoint"),
        (Login(filler="x" * 65536), tools(), "longer than 65536 bytes"),
        (Login(), tools(resource="https://other.example/mcp"), "of another resource: 'https://other.example/mcp'"),
        (Login(), tools(resource=f"{RESOURCE}2"), "of another resource"),
        (Login(), tools(authorization_servers=["https://evil.example"]), "names other authorization servers"),
        (Login(), tools(authorization_servers=7), "names no authorization server"),
        (Login(), Server({"/.well-known/oauth-protected-resource/mcp": (503, {})}), "answered with 503"),
        (Login(), Server({"/.well-known/oauth-protected-resource/mcp": b"[" * 60000}), "no JSON object"),
        (Server(), tools(), "has no metadata"),
        (Server({"/.well-known/oauth-authorization-server": (302, {})}), tools(), "answered with 302"),
        (Server(is_verified=False), tools(), "not reached over verified TLS"),
    ],
)  # fmt: skip
async def test_metadata_that_leads_elsewhere_or_is_wrong_is_refused(login, server, why):
    notices = EventAggregator()
    filter = made(OWN, login, server, notices=notices)
    with pytest.raises(GatewayFault) as refused:
        await sent(filter)
    assert (refused.value.reason, refused.value.status) == (Reason.CREDENTIAL_MISSING, 503)
    assert why in refused.value.detail
    assert {each.message.count("filter auth") for each in notices.take()} == {1}
    assert "/token" not in login.paths
    filter.close()


@pytest.mark.parametrize(
    "origin",
    [
        BackendOrigin("tools.example", 443, False),
        BackendOrigin("evil.example", 443, True, ("evil.example",)),
        BackendOrigin("tools.example", 443, True, ()),
    ],
)
async def test_a_token_goes_to_no_other_host(origin):
    login = Login()
    filter = made(OWN, login)
    x = exchange("/tools", (b"Authorization", b"Bearer of-the-client"), origin=origin)
    with pytest.raises(Denied):
        await sent(filter, x)
    assert (token(x), login.asked) == (None, [])
    with pytest.raises(Denied):
        filter.forecast(exchange(origin=origin))
    filter.close()


@pytest.mark.parametrize("path", ["/other/mcp", "/mcp2", "/mcp/../other", "/mcp/%2e%2e/other", "/", "/other?/mcp"])
async def test_a_token_goes_to_no_other_server_of_the_host(path):
    """The client says the path: of a host with many servers another one would get the gateway's token."""
    filter = made(OWN, login := Login())
    x = exchange(path)
    with pytest.raises(Denied, match="asked for a path") as refused:
        await sent(filter, x)
    assert (token(x), login.asked, refused.value.reason) == (None, [], Reason.CREDENTIAL_NOT_BOUND)
    assert "correct resource in the filter's config" in refused.value.remedy
    assert token(await sent(filter, exchange("/mcp/x?y"))) == b"Bearer tok-1"
    filter.close()


async def test_the_secret_of_a_client_is_shown_to_the_server_that_has_registered_it_alone():
    """The MCP server chooses by its metadata: another authorization server would get the secret of the first one."""
    second = {"url": "https://other.example", "backendRef": TOOLS}
    server = tools(authorization_servers=["https://other.example"])
    config = {**OWN, "authorizationServers": [*SERVERS, second]}
    filter = made(config, login := Login(), server)
    with pytest.raises(GatewayFault) as refused:
        await sent(filter)
    assert "add the one that you trust" in refused.value.detail
    assert (login.asked, len(server.asked)) == ([], 1)
    server.documents["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"].append(ISSUER)
    later = made(config, login, server)
    assert token(await sent(later)) == b"Bearer tok-1"
    filter.close()
    later.close()


async def test_a_loopback_resource_without_tls_is_on_this_machine():
    config = {**OWN, "resource": "http://127.0.0.1:1/mcp"}
    del config["metadataRef"]
    filter = made(config, Login())
    with pytest.raises(Denied) as refused:
        await sent(filter, exchange(origin=BackendOrigin("10.0.0.1", 1, False)))
    assert refused.value.reason is Reason.PLAINTEXT_CREDENTIAL
    filter.close()


async def test_a_refused_token_is_renewed_once_and_no_challenge_comes_back(monkeypatch):
    monkeypatch.setattr(refresher, "RENEWAL_S", 0.0)
    login = Login()
    filter = made(OWN, login)
    x = await sent(filter)
    challenge = (b"WWW-Authenticate", b'Bearer resource_metadata="https://tools.example/x"')
    with pytest.raises(RepeatRequest):
        await answered(filter, x, 401, challenge)
    x.request.fields.cut(filter._cut)
    assert token(await sent(filter, x)) == b"Bearer tok-2"
    with pytest.raises(GatewayFault) as refused:
        await answered(filter, x, 401, challenge)
    assert "refuses the token" in refused.value.detail
    other = await sent(filter)
    await answered(filter, other, 403, challenge)
    assert b"www-authenticate" not in other.response.fields
    filter.close()


async def test_a_server_that_refuses_every_token_does_not_cost_a_fetch_each_time():
    login = Login()
    filter = made(OWN, login)
    for _ in range(5):
        with pytest.raises(GatewayFault):
            await answered(filter, await sent(filter), 401)
    assert login.issued == 1
    filter.close()


async def test_clients_see_no_metadata_that_would_have_them_authorize_themselves():
    filter = made(OWN)
    asked = exchange("/.well-known/oauth-protected-resource/mcp", (b"X-Api-Key", b"k"), method="GET")
    assert filter.backend_request(asked).status == 404
    own = exchange("/.well-known/oauth-protected-resource/mcp", method="GET")
    own.client = "-"
    assert filter.backend_request(own) is None
    assert token(own) is None
    filter.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resource": "http://tools.example/mcp"}, "http://"),
        ({"authorizationServers": []}, "needs `authorizationServers`"),
        ({"clientId": ""}, "needs `clientId`"),
        ({"clientSecretRef": None}, "needs `clientSecretRef` or `privateKeyRef`"),
        ({"redirectUri": "https://gw.example/x"}, "`redirectUri` has no effect"),
        ({"privateKeyRef": {"name": "k"}}, "exclude each other"),
        ({"mode": "AuthorizationCode", "clientSecretRef": None}, "needs `redirectUri`"),
        ({"mode": "PassThrough"}, "`authorizationServers` has no effect"),
        ({"authorizationServers": [{**SERVERS[0], "url": "http://login.example"}]}, "http://"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_refused(change, why):
    config = {name: value for name, value in {**OWN, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=why):
        made(config)
