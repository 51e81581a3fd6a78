"""What tests of McpAuthorization share: an authorization server as values, and filters that ask it."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from hashlib import sha256
from urllib.parse import parse_qs, parse_qsl, urlsplit

from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig
from egressproxy.ai.mcp.oauth.filter_type import MCP_AUTHORIZATION
from egressproxy.filters.base import FilterContext, Phase
from egressproxy.filters.calls import CallAnswer
from egressproxy.filters.validation import validated
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import BackendOrigin, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

ISSUER = "https://login.example"
RESOURCE = "https://tools.example/mcp"
REDIRECT = "https://gw.example/tools/oauth"
ORIGIN = BackendOrigin("tools.example", 443, True, ("tools.example",))
LOGIN = {"group": "egressproxy.io", "kind": "Backend", "name": "login"}
TOOLS = {**LOGIN, "name": "tools"}
SERVERS = [{"url": ISSUER, "backendRef": LOGIN}]
OWN = {
    "mode": "ClientCredentials", "resource": RESOURCE, "metadataRef": TOOLS, "authorizationServers": SERVERS,
    "clientId": "gw", "clientSecretRef": {"name": "oauth", "key": "secret"},
}  # fmt: skip


class Server:
    """A FilterCall of one host, whose documents are by path, and which keeps what it was asked."""

    def __init__(self, documents=(), backend="agents/x", is_verified=True):
        self.documents = dict(documents)
        self.asked = []
        self.backend, self.is_verified = backend, is_verified

    async def request(self, method, path, fields=(), body=b"", *, timeout_s, x=None):
        assert x is None
        assert 0 < timeout_s <= 15
        self.asked.append((method, path.decode(), Fields.of(fields), body))
        found = self.documents.get(path.decode(), (404, {}))
        if callable(found):
            found = found(Fields.of(fields), body)
        status, said = found if isinstance(found, tuple) else (200, found)
        return CallAnswer(status, Fields(), said if isinstance(said, bytes) else json.dumps(said).encode())

    @property
    def paths(self):
        return [path for _, path, _, _ in self.asked]


class Login(Server):
    """An authorization server: it registers clients, checks PKCE and resource, rotates refresh tokens, and revokes."""

    def __init__(self, **metadata):
        self.metadata = {
            "issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/authorize", "token_endpoint": f"{ISSUER}/token",
            "registration_endpoint": f"{ISSUER}/register", "revocation_endpoint": f"{ISSUER}/revoke",
            "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"],
            "scopes_supported": ["read", "offline_access"], **metadata,
        }  # fmt: skip
        documents = {
            "/.well-known/oauth-authorization-server": self.metadata, "/token": self._token,
            "/register": self._register, "/revoke": self._revoke,
        }  # fmt: skip
        super().__init__(documents, "agents/login")
        self.forms, self.clients, self.codes, self.refresh, self.ended = [], {}, {}, set(), []
        self.life_s, self.error, self.issued = 3600, None, 0

    def allow(self, url: str, **more: str) -> str:
        """What the browser is sent back with, by a user who allows."""
        place, asked = urlsplit(url), dict(parse_qsl(urlsplit(url).query, strict_parsing=True))
        assert f"{place.scheme}://{place.netloc}{place.path}" == self.metadata["authorization_endpoint"]
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        # OpenID Connect Core 1.0 section 11: a server ignores offline_access without this.
        assert ("offline_access" in asked["scope"].split()) == (asked.get("prompt") == "consent")
        assert asked["redirect_uri"] in self.clients[asked["client_id"]]["redirect_uris"]
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        given = {"code": code, "state": asked["state"], **more}
        return "&".join(f"{name}={value}" for name, value in given.items())

    def _register(self, _fields, body):
        client = f"client-{len(self.clients)}"
        self.clients[client] = json.loads(body)
        return 201, {"client_id": client}

    def _token(self, fields, body):
        form = {name: values[0] for name, values in parse_qs(body.decode(), strict_parsing=True).items()}
        self.forms.append((form, fields.get(b"authorization")))
        if self.error is not None:
            return 400, {"error": self.error}
        assert form["resource"] == RESOURCE
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"])
            digest = sha256(form["code_verifier"].encode()).digest()
            assert urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
            assert (form["client_id"], form["redirect_uri"]) == (asked["client_id"], asked["redirect_uri"])
        elif form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh:
                return 400, {"error": "invalid_grant"}
            self.refresh.remove(form["refresh_token"])
        self.issued += 1
        said = {"access_token": f"tok-{self.issued}", "token_type": "Bearer", "expires_in": self.life_s}
        if form["grant_type"] != "client_credentials":
            said["refresh_token"] = f"ref-{self.issued}"
            self.refresh.add(said["refresh_token"])
        return 200, said

    def _revoke(self, _fields, body):
        self.ended.append(dict(parse_qsl(body.decode()))["token"])
        return 200, {}


def tools(**metadata) -> Server:
    """The MCP server, with its metadata."""
    document = {"resource": RESOURCE, "authorization_servers": [ISSUER], "scopes_supported": ["read"], **metadata}
    return Server({"/.well-known/oauth-protected-resource/mcp": document}, "agents/tools")


def by_code(folder, **more):
    return {
        "mode": "AuthorizationCode", "resource": RESOURCE, "metadataRef": TOOLS, "authorizationServers": SERVERS,
        "redirectUri": REDIRECT, "stateFolder": str(folder), **more,
    }  # fmt: skip


def made(config, login=None, server=None, secrets=None, metrics=None, notices=None, source="Backend agents/tools"):
    """The filter of this config."""
    settings = validated(McpAuthorizationConfig, json.dumps(config))
    values = {"oauth/secret": "s3cret:+"} if secrets is None else secrets
    calls = {"Backend login": login or Login(), "Backend tools": server or tools()}
    meter = FilterMeter(FilterMetrics() if metrics is None else metrics, "auth", MCP_AUTHORIZATION.name)
    told = FilterNotices(EventAggregator() if notices is None else notices, "auth", "Backend agents/tools")
    context = FilterContext(
        settings, {label: SecretBytes(value.encode()) for label, value in values.items()}, "auth",
        source, source, "", Phase.BACKEND_REQUEST, calls=calls, meter=meter,
        notices=told,
    )  # fmt: skip
    return MCP_AUTHORIZATION.build(context)


def exchange(target="/tools", *lines, caller="alice", method="POST", origin=ORIGIN, scheme=b"https") -> Exchange:
    identity = CallerIdentity(name=caller, source="basic") if caller else CallerIdentity()
    x = Exchange("192.0.2.1:1", "agents/gw", "l", 0.0, identity)
    path, mark, query = target.partition("?")
    sent_as = "/mcp" if path == "/tools" else path  # by `path` of the backend's `mcp`
    x.request = RequestHead(method.encode(), f"{sent_as}{mark}{query}".encode(), Fields.of(lines))
    x.method, x.path, x.scheme = method.encode(), target.partition("?")[0].encode(), scheme
    x.authority = Authority("gw.example", 443 if scheme == b"https" else 80)
    x.backend, x.backend_is_secure, x.backend_origin = "agents/tools", origin.is_secure, origin
    x.upstream_host = b"tools.example"
    return x


async def sent(filter, x=None) -> Exchange:
    """The exchange as it goes to the server."""
    x = x or exchange()
    answer = filter.backend_request(x)
    assert (await answer if answer is not None else None) is None
    return x


def token(x) -> bytes | None:
    return x.request.fields.get(b"authorization")


async def answered(filter, x, status=200, *lines) -> None:
    x.response = ResponseHead(status, b"", Fields.of(lines))
    waiting = filter.backend_response(x)
    if waiting is not None:
        await waiting


async def page(filter, query="", caller="alice", method="GET"):
    """What a browser gets at the redirect URI."""
    target = "/tools/oauth" + (f"?{query}" if query else "")
    return await filter.backend_request(exchange(target, caller=caller, method=method))


async def begun(filter, caller="alice") -> str:
    answer = await page(filter, caller=caller)
    assert answer.status == 302
    return dict(answer.fields)[b"Location"].decode()


async def authorized(filter, login, caller="alice") -> None:
    answer = await page(filter, login.allow(await begun(filter, caller)), caller)
    assert (answer.status, b"Access is allowed" in answer.body) == (200, True)


def state_of(url: str) -> str:
    return re.search("state=([^&]+)", url)[1]
