"""An MCP server of the SDK with its authorization server: python mcp_oauth_server.py PORT [AUDIENCE].

Whoever is asked allows. The client `machine` with the secret `s3cret` gets tokens of its own (client credentials).
Access tokens are valid for an hour, for the server's own URL as audience, and for AUDIENCE. `/revoke-all` ends those of
now. `/seen` lists what the server was shown as Authorization.
"""

import secrets
import sys
import time

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.auth import OAuthToken
from starlette.requests import Request
from starlette.responses import JSONResponse

port = int(sys.argv[1])
url = f"http://127.0.0.1:{port}"
audiences = [f"{url}/mcp", *sys.argv[2:]]
seen = []


class Provider(OAuthAuthorizationServerProvider):
    def __init__(self):
        self.clients, self.codes, self.refresh, self.access = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code, client_id=client.client_id, scopes=params.scopes or [], expires_at=time.time() + 60,
            code_challenge=params.code_challenge, redirect_uri=params.redirect_uri, resource=params.resource,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
        )  # fmt: skip
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refresh[refresh_token.token]
        return self._issue(client, scopes, audiences[0])

    async def load_access_token(self, token):
        found = self.access.get(token)
        return found if found is not None and found.resource in audiences else None

    async def revoke_token(self, token):
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _issue(self, client, scopes, asked):
        access, refresh = (secrets.token_hex(16) for _ in range(2))
        self.access[access] = AccessToken(token=access, client_id=client.client_id, scopes=scopes, resource=asked)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=scopes)
        return OAuthToken(access_token=access, expires_in=3600, refresh_token=refresh, scope=" ".join(scopes))


provider = Provider()
server = MCPServer(
    "guarded",
    auth_server_provider=provider,
    auth=AuthSettings(
        issuer_url=url,
        resource_server_url=f"{url}/mcp",
        validate_token_resource=False,  # `load_access_token` looks at the audience
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
    ),
)


@server.tool()
async def whoami() -> str:
    """Whose token came."""
    from mcp.server.auth.middleware.auth_context import get_access_token

    return get_access_token().client_id


@server.custom_route("/revoke-all", methods=["POST"])
async def revoke_all(request):
    provider.access.clear()
    return JSONResponse({})


@server.custom_route("/seen", methods=["GET"])
async def what_was_seen(request):
    return JSONResponse(seen)


app = server.streamable_http_app(
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False), json_response=True
)


async def own_token(request):
    """The grant that the SDK's authorization server does not know."""
    form = await request.form()
    if (form.get("client_id"), request.headers["authorization"]) != ("machine", "Basic bWFjaGluZTpzM2NyZXQ="):
        return JSONResponse({"error": "invalid_client"}, 401)
    access = secrets.token_hex(16)
    provider.access[access] = AccessToken(token=access, client_id="machine", scopes=[], resource=form["resource"])
    return JSONResponse({"access_token": access, "token_type": "Bearer", "expires_in": 3600})


async def watched(scope, receive, send):
    if scope["type"] == "http" and scope["path"] == "/token":
        body = b"".join([part async for part in Request(scope, receive).stream()])

        async def again():
            return {"type": "http.request", "body": body, "more_body": False}

        if b"client_credentials" in body:
            await (await own_token(Request(scope, again)))(scope, again, send)
            return
        receive = again
    if scope["type"] == "http" and scope["path"] == "/mcp":
        seen.append(dict(scope["headers"]).get(b"authorization", b"").decode())
    await app(scope, receive, send)


uvicorn.run(watched, host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=600)
