"""A token of a client, exchanged over real TLS by the real process: it reaches the token endpoint and nobody else."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support import manifests as m
from tests.support.canary import Canary
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.tokens import TokenIssuer

HOST = "origin.egress.test"
ISSUER = TokenIssuer()
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class AuthorizationServers:
    """The identity provider, and the server of the resource: each takes what is meant for it, and nothing else."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.tokens: dict[str, str] = {}

    async def identity_provider(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.asked.append(form)
        subject = str(form.get("subject_token"))
        expected = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "requested_token_type": ID_JAG,
            "audience": "https://auth.chat.example/", "subject_token": subject,
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        }  # fmt: skip
        if form != expected or request.headers.get("Authorization") != "Basic Z3c6Q0xJRU5ULVNFQ1JFVA==":
            return web.json_response({"error": "invalid_client"}, status=401)
        if subject not in self.tokens:
            return web.json_response({"error": "access_denied", "error_description": subject}, status=403)
        answer = {"issued_token_type": ID_JAG, "access_token": f"jag-{self.tokens[subject]}", "token_type": "N_A"}
        return web.json_response(answer | {"expires_in": 300})

    async def of_the_resource(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.asked.append(form)
        assertion = str(form.pop("assertion"))
        if form != {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "client_id": "gw-at-chat"}:
            return web.json_response({"error": "invalid_request"}, status=400)
        name = assertion.removeprefix("jag-")
        return web.json_response({"token_type": "Bearer", "access_token": f"access-{name}", "expires_in": 600})


async def echo(request: web.Request) -> web.Response:
    return web.json_response(request.headers.getall("Authorization", []))


def test_an_id_jag_by_the_real_process(tmp_path: Path):
    pki, servers, port = Pki(tmp_path), AuthorizationServers(), free_port()
    tables = [
        [
            web.post("/idp/token", servers.identity_provider), web.post("/chat/token", servers.of_the_resource),
            web.get("/api", echo),
        ]
    ]  # fmt: skip
    ann, bob, eve = (ISSUER.token(f"system:serviceaccount:team:{name}") for name in ("ann", "bob", "eve"))
    servers.tokens = {ann: "ann", bob: "bob"}
    with OriginServer(tables, pki.server_context(HOST)) as origin, NameServer({HOST: [origin.address]}) as dns:
        exchange = {
            "tokenEndpoint": {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "idp"}, "path": "/idp/token"},
            "clientId": "gw", "clientSecretRef": {"name": "client"}, "audience": ["https://auth.chat.example/"],
            "jwtBearer": {
                "tokenEndpoint": {
                    "backendRef": {"group": m.OURS, "kind": "Backend", "name": "chat"}, "path": "/chat/token",
                },
                "clientId": "gw-at-chat",
            },
        }  # fmt: skip
        extension = {
            "name": "x", "type": "egressproxy.io/CredentialInjector:v1", "config": {"tokenExchange": exchange},
        }  # fmt: skip
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(
                dns=dns.address, cidrs=["127.0.0.0/8"],
                identity={"token": {"issuers": [ISSUER.written], "exchangeAt": ["idp"]}},
            ),
            ISSUER.config_map, m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.secret("client", {"token": "CLIENT-SECRET"}),
            *(m.backend(name, HOST, origin.tls_port, tls=True, ca="ca") for name in ("idp", "chat")),
            m.backend("api", HOST, origin.tls_port, tls=True, ca="ca", extensions=[extension]),
            m.http_route("r", m.prefix_rule("/", "api")),
        ]  # fmt: skip
        arguments = ["--log-level", "debug"]
        with GatewayProcess(tmp_path / "gateway", objects, arguments=arguments) as gateway:

            def ask(token: str) -> tuple[int, str]:
                fields = {"Authorization": f"Bearer {token}"}
                request = urllib.request.Request(f"http://127.0.0.1:{port}/api", headers=fields)
                opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                try:
                    with opener.open(request, timeout=30) as answer:
                        return answer.status, answer.read().decode()
                except urllib.error.HTTPError as refusal:
                    return refusal.code, refusal.read().decode()

            for token, name in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
                assert ask(token) == (200, f'["Bearer access-{name}"]')
            status, said = ask(eve)
            assert (status, "credential_not_for_caller" in said) == (403, True)
            keys = (ann, bob, eve, "CLIENT-SECRET", "jag-ann", "jag-bob", "access-ann", "access-bob")
            Canary(keys, [f"http://127.0.0.1:{port}/api"]).look(gateway, said)
        shown = str(origin.requests("/api"))
        assert (shown.count("Bearer access-ann"), shown.count("Bearer access-bob")) == (2, 1)
        assert not any(secret in shown for secret in keys[:6])
