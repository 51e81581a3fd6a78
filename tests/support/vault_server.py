"""A server that speaks the part of the API of a Vault that credentials need, as HashiCorp documents it.

Pure: `answer` takes a request and returns what is sent. `test_vault` shows hvac a loopback server of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = tuple[int, dict[str, Any]]
DENIED: Answer = 403, {"errors": ["permission denied"]}


@dataclass
class VaultServer:
    """`now` is its clock in seconds. `asked` are method and path of all requests, `values` all that is secret."""

    jwt: str = "service-account-token"
    secret_id: str = "approle-secret-id"
    static_token: str = "hvs.static-token"
    namespace: str = ""
    now: float = 0.0
    token_life: int = 3600
    max_token_life: int = 36000
    lease_life: int = 600
    max_lease_life: int = 6000
    is_renewable: bool = True
    kv: dict[str, Any] = field(default_factory=lambda: {"app": {"token": "kv-canary-1", "other": 3}})
    asked: list[tuple[str, str]] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    tokens: dict[str, list[float]] = field(default_factory=dict)  # begin and end of each
    leases: dict[str, list[Any]] = field(default_factory=dict)  # begin, end and token of each

    def answer(self, method: str, path: str, fields: Mapping[str, str], body: bytes) -> Answer:
        self.asked.append((method, path))
        said = json.loads(body) if body else {}
        if fields.get("x-vault-request") != "true":
            return 412, {"errors": ["missing 'X-Vault-Request' header"]}
        if fields.get("x-vault-namespace", "") != self.namespace:
            return DENIED
        if (method, path) == ("POST", "/v1/auth/kubernetes/login"):
            return self._login() if (said["role"], said["jwt"]) == ("gw", self.jwt) else DENIED
        if (method, path) == ("POST", "/v1/auth/approle/login"):
            if (said["role_id"], said["secret_id"]) != ("role-1", self.secret_id):
                return 400, {"errors": ["invalid role or secret ID"]}
            return self._login()
        token = fields.get("x-vault-token", "")
        times = self.tokens.get(token)
        if token != self.static_token and (times is None or times[1] <= self.now):
            return DENIED
        if (method, path) == ("POST", "/v1/auth/token/renew-self") and times is not None:
            times[1] = min(self.now + self.token_life, times[0] + self.max_token_life)
            return 200, {"auth": self._auth(token, times[1] - self.now)}
        if (method, path) == ("PUT", "/v1/sys/leases/renew"):
            return self._renewed(said["lease_id"])
        if method != "GET":
            return 405, {"errors": ["unsupported operation"]}
        return self._read(path, token)

    def _login(self) -> Answer:
        token = f"hvs.canary-{len(self.tokens)}"
        self.values.append(token)
        self.tokens[token] = [self.now, self.now + self.token_life]
        return 200, {"auth": self._auth(token, self.token_life)}

    def _auth(self, token: str, life: float) -> dict[str, Any]:
        return {"client_token": token, "accessor": "a", "policies": ["p"], "lease_duration": int(life),
                "renewable": self.is_renewable}  # fmt: skip

    def _renewed(self, lease: str) -> Answer:
        found = self.leases.get(lease)
        if found is None or found[1] <= self.now or self.tokens.get(found[2], [0, 0])[1] <= self.now:
            return 400, {"errors": ["lease not found"]}
        found[1] = min(self.now + self.lease_life, found[0] + self.max_lease_life)
        return 200, {"lease_id": lease, "lease_duration": int(found[1] - self.now), "renewable": True}

    def _read(self, path: str, token: str) -> Answer:
        plain = {"lease_id": "", "lease_duration": 0, "renewable": False}
        engine, _, name = path.removeprefix("/v1/").partition("/")
        if engine == "secret" and name.startswith("data/"):
            data = self.kv.get(name.removeprefix("data/"))
            if data is None:
                return 404, {"errors": []}
            return 200, {**plain, "data": {"data": data, "metadata": {"version": 1, "deletion_time": ""}}}
        if engine == "kv" and name in self.kv:
            return 200, {**plain, "lease_duration": 2764800, "data": self.kv[name]}
        if (engine, name) == ("rabbitmq", "creds/r"):
            lease = f"rabbitmq/creds/r/{len(self.leases)}"
            value = f"lease-canary-{len(self.leases)}"
            self.values.append(value)
            self.leases[lease] = [self.now, self.now + self.lease_life, token]
            return 200, {"lease_id": lease, "lease_duration": self.lease_life, "renewable": self.is_renewable,
                         "data": {"username": "u", "password": value}}  # fmt: skip
        return 404, {"errors": []}


def routes(server: VaultServer) -> list[web.AbstractRouteDef]:
    """The same over HTTP."""

    async def handler(request: web.Request) -> web.Response:
        fields = {name.lower(): value for name, value in request.headers.items()}
        status, said = server.answer(request.method, request.path, fields, await request.read())
        return web.json_response(said, status=status)

    return [web.route("*", "/v1/{path:.+}", handler)]
