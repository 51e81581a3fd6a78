"""An issuer of OpenID Connect on this machine: whoever comes is signed in at once, as `claims` say."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.tokens import TokenIssuer

CLIENT = "egressproxy-page"


class OidcIssuer:
    """`url` is known once it is started. A code is for one exchange, with its verifier and redirect URI (RFC 7636)."""

    def __init__(self, **claims: Any) -> None:
        self.claims = claims
        self.signs = TokenIssuer()
        self.codes: dict[str, tuple[str, str]] = {}
        self.says: dict[str, Any] = {}  # beside or in place of what its document has
        app = web.Application()
        app.add_routes([
            web.get("/.well-known/openid-configuration", self._document), web.get("/keys", self._keys),
            web.get("/authorize", self._authorize), web.post("/token", self._token),
        ])  # fmt: skip
        self._server = TestServer(app)

    async def __aenter__(self) -> OidcIssuer:
        await self._server.start_server()
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.signs.issuer = self.url
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    def token(self, **claims: Any) -> str:
        return self.signs.token("alice", **{"aud": [CLIENT], **self.claims, **claims})

    async def _document(self, _request: web.Request) -> web.Response:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        document = {"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in places.items()}}
        return web.json_response({**document, **self.says})

    async def _keys(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.signs.jwks())

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert (asked["code_challenge_method"], "openid" in asked["scope"]) == ("S256", True)
        code = f"code-{len(self.codes)}"
        self.codes[code] = (asked["code_challenge"], asked["redirect_uri"])
        back = urlencode({"code": code, "state": asked["state"]})
        raise web.HTTPFound(f"{asked['redirect_uri']}?{back}")

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        shown = (base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), form["redirect_uri"])
        if self.codes.pop(form["code"], None) != shown or form["client_id"] != CLIENT:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.token(), "token_type": "Bearer"})
