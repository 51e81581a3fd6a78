"""Real SDKs without a key: the right one reaches the provider, and none shows anywhere (the canary grep)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support import manifests as m
from tests.support import vault_server
from tests.support.canary import Canary
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins import ai, git, s3
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.vault_server import VaultServer
from tests.support.waiting import WAIT_S, wait_until

NEEDED = ("openai", "anthropic", "google.genai", "boto3", "hvac")
if any(importlib.util.find_spec(name.partition(".")[0]) is None for name in NEEDED):
    if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
        pytest.fail("an SDK is not installed: openai, anthropic, google-genai, boto3 and hvac are needed")
    pytest.skip("openai, anthropic, google-genai, boto3 and hvac are not all installed", allow_module_level=True)

import anthropic  # noqa: E402
import boto3  # noqa: E402
import jwt  # noqa: E402
import openai  # noqa: E402
from aiohttp.typedefs import Handler  # noqa: E402
from botocore.config import Config  # noqa: E402
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402
from google import genai  # noqa: E402
from google.genai import types  # noqa: E402

HOST = "provider.egress.test"
PROVIDERS = ("openai", "anthropic", "gemini")
#: Made anew for each run, so that no file of the checkout has them.
KEYS = {
    name: f"canary-{name}-{secrets.token_hex(12)}"
    for name in (
        *PROVIDERS,
        "aws",
        "client",
        "token",
        "basic",
        "query",
        "file",
        "command",
        "github",
        "vault",
        "secret-id",
    )
}
APP_KEY = rsa.generate_private_key(65537, 2048)
PLACEHOLDERS = {name: f"sk-egress-{name}-{secrets.token_hex(8)}" for name in PROVIDERS}
#: The SDK of Anthropic shows its key as a bearer token.
PLACES: dict[str, dict[str, Any]] = {"openai": {}, "anthropic": {}, "gemini": {"header": "x-goog-api-key"}}
QUESTION = [{"role": "user", "content": "three small words"}]


async def gemini(request: web.Request) -> web.StreamResponse:
    """generateContent and streamGenerateContent: what the user has said."""
    asked = await request.json()
    text = asked["contents"][-1]["parts"][0]["text"]

    def said(words: str) -> dict[str, Any]:
        content = {"role": "model", "parts": [{"text": words}]}
        return {"candidates": [{"content": content, "finishReason": "STOP"}]}

    if request.match_info["verb"] == "generateContent":
        return web.json_response(said(text))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in text.split():
        await response.write(f"data: {json.dumps(said(word + ' '))}\r\n\r\n".encode())
    return response


async def echo(request: web.Request) -> web.Response:
    """The whole head of the request, as the error of a careless provider has it; coded with gzip, in two pieces."""
    text = json.dumps({"error": {"message": str(dict(request.headers)) + request.path_qs, "type": "x"}}).encode()
    body = gzip.compress(text)
    return web.Response(status=401, body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})


async def token(request: web.Request) -> web.Response:
    form = await request.post()
    if form.get("client_secret") != KEYS["client"]:
        return web.json_response({"error": "invalid_client", "error_description": str(dict(form))}, status=401)
    return web.json_response({"access_token": KEYS["token"], "token_type": "Bearer", "expires_in": 3600})


async def installation_token(request: web.Request) -> web.Response:
    """As GitHub: for a token of the app that PyJWT accepts."""
    if request.method == "GET":
        return web.json_response({"id": 42})
    assertion = request.headers["authorization"].removeprefix("Bearer ")
    said = jwt.decode(assertion, APP_KEY.public_key(), ["RS256"], options={"require": ["iat", "exp", "iss"]})
    if said["iss"] != "Iv23li" or said["exp"] - said["iat"] > 600 or await request.json() != {"repositories": ["a"]}:
        return web.json_response({"message": "Bad credentials"}, status=401)
    expiry = datetime.now(UTC) + timedelta(hours=1)
    answer = {"token": KEYS["github"], "expires_at": expiry.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return web.json_response(answer, status=201)


def private(route: web.AbstractRouteDef) -> web.AbstractRouteDef:
    """A repository that asks for the installation token, as git shows it."""
    assert isinstance(route, web.RouteDef)
    served: Handler = route.handler  # type: ignore[assignment]
    shown = "Basic " + b64encode(f"x-access-token:{KEYS['github']}".encode()).decode()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != shown:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="GitHub"'})
        return await served(request)

    return web.route(route.method, "/private" + route.path, handler)


async def hello(request: web.Request) -> web.Response:
    return web.json_response({"hello": "there"})


def pem(key: rsa.RSAPrivateKey) -> str:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


def injecting(config: dict[str, Any]) -> list[m.Manifest]:
    return [{"name": "key", "type": f"{m.OURS}/CredentialInjector:v1", "config": config}]


class World:
    """A gateway before one provider of everything, with TLS; `get` asks without an SDK."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        pki = Pki(folder)
        (folder / "git").mkdir()
        self.vault = VaultServer(secret_id=KEYS["secret-id"], kv={"app": {"token": KEYS["vault"]}})
        tables = [
            ai.routes(), s3.routes(), map(private, git.routes(git.make_repository(folder / "git"))),
            vault_server.routes(self.vault),
            [
                web.post("/gemini/v1beta/models/{model}:{verb}", gemini), web.post("/token", token),
                web.route("*", "/echo{rest:.*}", echo), web.get("/hello", hello),
                web.get("/api/v3/repos/my-org/a/installation", installation_token),
                web.post("/api/v3/app/installations/42/access_tokens", installation_token),
            ],
        ]  # fmt: skip
        self.origin = stack.enter_context(OriginServer(tables, pki.server_context(HOST)))
        dns = stack.enter_context(NameServer({HOST: [self.origin.address]}))
        self.port = free_port()
        idp = {"group": m.OURS, "kind": "Backend", "name": "idp"}
        configs: dict[str, dict[str, Any]] = {
            name: {
                "secretRef": {"name": name}, "placeholder": PLACEHOLDERS[name], "require": "placeholder",
                "scrubResponses": True, "scrubAs": "Placeholder", "placeholderBodyBytes": 65536,
                "bind": {"hosts": [HOST]}, **PLACES[name],
            }
            for name in PROVIDERS
        }  # fmt: skip
        configs["oauth"] = {
            "oauth2": {
                "tokenEndpoint": {"backendRef": idp, "path": "/token"}, "clientId": "gw",
                "authentication": "ClientSecretPost", "clientSecretRef": {"name": "client"},
            }
        }  # fmt: skip
        configs["github"] = {
            "githubApp": {
                "backendRef": idp, "apiPath": "/api/v3", "clientId": "Iv23li", "privateKeyRef": {"name": "app"},
                "owner": "my-org", "repository": "a", "repositories": ["a"],
            },
            "basic": {"username": "x-access-token"},
        }  # fmt: skip
        configs["vault"] = {
            "vault": {
                "backendRef": idp, "path": "app", "key": "token",
                "appRole": {"roleId": "role-1", "secretIdRef": {"name": "secret-id"}},
            }
        }  # fmt: skip
        configs["basic"] = {"secretRef": {"name": "basic"}, "basic": {"username": "gw"}}
        configs["query"] = {"secretRef": {"name": "query"}, "query": "key"}
        configs["file"] = {"file": "key-file"}
        configs["command"] = {"command": {"argv": ["/bin/cat", str(folder / "printed")]}}
        configs["aws"] = {
            "aws": {
                "service": "s3", "region": "us-east-1",
                "accessKey": {
                    "accessKeyIdRef": {"name": "aws", "key": "id"},
                    "secretAccessKeyRef": {"name": "aws", "key": "secret"},
                },
            }
        }  # fmt: skip
        port = self.origin.tls_port
        objects = [
            m.gateway(m.http_listener(self.port)),
            m.policy(dns=dns.address, cidrs=["127.0.0.0/8"]),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            *(m.secret(name, {"token": KEYS[name]}) for name in (*PROVIDERS, "client", "basic", "query", "secret-id")),
            m.secret("app", {"pem": pem(APP_KEY)}),
            m.secret("aws", {"id": "AKIACANARY", "secret": KEYS["aws"]}),
            m.backend("idp", HOST, port, tls=True, ca="ca"),
            m.backend("plain", HOST, port, tls=True, ca="ca"),
            *(
                m.backend(name, HOST, port, tls=True, ca="ca", extensions=injecting(config))
                for name, config in configs.items()
            ),
            m.http_route("r", *(m.prefix_rule(f"/{name}", name, rewrite="/") for name in (*configs, "plain"))),
        ]
        (folder / "printed").write_text(KEYS["command"] + "\n")
        self.gateway = GatewayProcess(folder / "gateway", objects, arguments=["--log-level", "debug"])
        (self.gateway.config / "key-file").write_text(KEYS["file"] + "\n")
        stack.enter_context(self.gateway)
        self.collected: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def last(self, path: str) -> dict[str, str]:
        """The fields of the last request that came for this path."""
        return {name.lower(): value for name, value in self.origin.requests(path)[-1].fields}

    def get(self, path: str, **fields: str) -> tuple[int, str]:
        import urllib.error
        import urllib.request

        named = {name.replace("_", "-"): value for name, value in fields.items()}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(urllib.request.Request(self.url(path), headers=named), timeout=60) as answer:
                status, text = answer.status, f"{answer.headers}\n{answer.read().decode('latin-1')}"
        except urllib.error.HTTPError as refusal:
            status, body = refusal.code, refusal.read()
            body = gzip.decompress(body) if refusal.headers.get("content-encoding") == "gzip" else body
            text = f"{refusal.headers}\n{body.decode('latin-1')}"
        self.collected.append(text)
        return status, text

    def look(self) -> dict[str, str]:
        """The canary grep over all that was said so far."""
        canary = Canary(
            (*KEYS.values(), *self.vault.values),
            [self.url(f"/{name}/hello") for name in ("openai", "oauth", "aws", "plain")],
        )
        return canary.look(self.gateway, *self.collected)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        made = World(tmp_path_factory.mktemp("credentials"), stack)
        yield made
        made.look()


def test_openai(world: World):
    client = openai.OpenAI(base_url=world.url("/openai/openai/v1"), api_key=PLACEHOLDERS["openai"], max_retries=0)
    whole = client.chat.completions.create(model="gpt-test", messages=QUESTION)
    assert whole.choices[0].message.content == "three small words"
    pieces = client.chat.completions.create(model="gpt-test", messages=QUESTION, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces).split() == ["three", "small", "words"]
    assert world.last("/openai/v1/chat/completions")["authorization"] == f"Bearer {KEYS['openai']}"
    assert PLACEHOLDERS["openai"] not in str(world.origin.requests("/openai/v1/chat/completions"))
    world.look()


def test_anthropic(world: World):
    url = world.url("/anthropic/anthropic")
    client = anthropic.Anthropic(base_url=url, api_key=PLACEHOLDERS["anthropic"], max_retries=0)
    asked: dict[str, Any] = {"model": "messages-test", "max_tokens": 50, "messages": QUESTION}
    assert client.messages.create(**asked).content[0].text == "three small words"
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream).split() == ["three", "small", "words"]
    seen = world.last("/anthropic/v1/messages")
    assert seen["authorization"] == f"Bearer {KEYS['anthropic']}"
    assert "x-api-key" not in seen
    world.look()


def test_google_genai(world: World):
    options = types.HttpOptions(base_url=world.url("/gemini/gemini"), api_version="v1beta")
    client = genai.Client(api_key=PLACEHOLDERS["gemini"], http_options=options)
    assert client.models.generate_content(model="gemini-test", contents="three small words").text == "three small words"
    pieces = client.models.generate_content_stream(model="gemini-test", contents="three small words")
    assert "".join(piece.text or "" for piece in pieces).split() == ["three", "small", "words"]
    seen = world.last("/gemini/v1beta/models/gemini-test:generateContent")
    assert seen["x-goog-api-key"] == KEYS["gemini"]
    world.look()


def test_boto3(world: World):
    client = boto3.client(
        "s3", endpoint_url=world.url("/aws/s3"), region_name="us-east-1", aws_access_key_id="anything",
        aws_secret_access_key="at-all",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )  # fmt: skip
    body = bytes(range(256)) * 1024
    client.put_object(Bucket="bucket", Key="folder/ob ject+1", Body=body)
    assert client.get_object(Bucket="bucket", Key="folder/ob ject+1")["Body"].read() == body
    for seen in world.origin.requests("/s3/bucket/folder/ob%20ject%2B1"):
        assert signed_by(seen, "AKIACANARY", KEYS["aws"]), seen
    assert len(world.origin.requests("/s3/bucket/folder/ob%20ject%2B1")) == 2
    world.look()


def signed_by(seen: Any, key_id: str, secret: str) -> bool:
    """Whether botocore, asked as the service itself would, has the same signature for what came."""
    from datetime import datetime
    from unittest import mock

    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    fields = {name.lower(): value for name, value in seen.fields}
    signed = fields["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    kept = {name: fields[name] for name in signed if name not in ("x-amz-date", "x-amz-content-sha256")}
    again = AWSRequest(seen.method, f"https://{fields['host']}{seen.target}", headers=kept)
    now = datetime.strptime(fields["x-amz-date"], "%Y%m%dT%H%M%SZ")
    signer = S3SigV4Auth(Credentials(key_id, secret), "s3", "us-east-1")
    with (
        mock.patch("botocore.auth.get_current_datetime", return_value=now, create=True),
        mock.patch.object(S3SigV4Auth, "payload", return_value=fields["x-amz-content-sha256"]),
    ):
        signer.add_auth(again)
    return again.headers["Authorization"] == fields["authorization"]


def test_git_clones_a_private_repository_without_a_credential(world: World, tmp_path: Path):
    """With the installation token of a GitHub App, which git never sees."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    for name in ("plain", "github"):
        asked = ["git", "clone", "--quiet", world.url(f"/{name}/private/git/project.git"), name]
        ended = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)
        assert (ended.returncode == 0) == (name == "github"), ended.stderr
        world.collected.append(ended.stdout + ended.stderr)
    assert (tmp_path / "github" / "README").read_text() == "a project\n"
    world.look()


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("oauth", "authorization", f"Bearer {KEYS['token']}"),
        ("file", "authorization", f"Bearer {KEYS['file']}"),
        ("command", "authorization", f"Bearer {KEYS['command']}"),
        ("vault", "authorization", f"Bearer {KEYS['vault']}"),
        ("basic", "authorization", None),
        ("query", "", None),
    ],
    ids=["oauth", "file", "command", "vault", "basic", "query"],
)
def test_the_other_sources_and_places(world: World, name: str, field: str, expected: str | None):
    status, _ = world.get(f"/{name}/hello?for={name}", Authorization="Bearer theirs")
    assert status == 200
    seen = next(each for each in reversed(world.origin.seen) if f"for={name}" in each.target)
    fields = {key.lower(): value for key, value in seen.fields}
    if expected is not None:
        assert fields[field] == expected
    if name == "query":
        assert seen.target.endswith(f"key={KEYS['query']}")
    assert "theirs" not in str(fields)
    world.look()


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_shows_the_key_in_a_coded_error_shows_the_placeholder(world: World, name: str):
    place = PLACES[name].get("header", "Authorization")
    value = PLACEHOLDERS[name] if PLACES[name] else f"Bearer {PLACEHOLDERS[name]}"
    status, text = world.get(f"/{name}/echo", **{place: value})
    assert status == 401
    assert PLACEHOLDERS[name] in text
    assert KEYS[name] in str(world.origin.requests("/echo")[-1].fields)
    world.look()


def test_a_foreign_key_is_refused_and_a_placeholder_elsewhere_is_an_event(world: World):
    client = openai.OpenAI(base_url=world.url("/openai/openai/v1"), api_key="sk-foreign", max_retries=0)
    with pytest.raises(openai.PermissionDeniedError, match="placeholder"):
        client.chat.completions.create(model="gpt-test", messages=QUESTION)
    tricked = openai.OpenAI(base_url=world.url("/plain/openai/v1"), api_key=PLACEHOLDERS["openai"], max_retries=0)
    before = len(world.origin.seen)
    with pytest.raises(openai.PermissionDeniedError, match="placeholder"):
        tricked.chat.completions.create(model="gpt-test", messages=QUESTION)
    assert len(world.origin.seen) == before
    pasted = [{"role": "user", "content": f"my key is {PLACEHOLDERS['openai']}"}]
    right = openai.OpenAI(base_url=world.url("/openai/openai/v1"), api_key=PLACEHOLDERS["openai"], max_retries=0)
    with pytest.raises(openai.APIError):
        right.chat.completions.create(model="gpt-test", messages=pasted)
    events = "/apis/events.k8s.io/v1/events"
    wait_until(lambda: "PlaceholderMisplaced" in world.gateway.admin(events)[1])
    assert world.gateway.metric("egress_denied_total", reason="placeholder_misplaced") >= 2
    world.look()


def test_the_canary_sees_what_it_has_to_see(world: World):
    """A grep that cannot find anything proves nothing."""
    texts = world.look()
    assert any("egress_requests_total" in text for text in texts.values())
    assert "/openai/v1/chat/completions" in texts["access log"]
    assert sum(len(text) for text in texts.values()) > 50000
    assert any(place.startswith("/apis/events.k8s.io") for place in texts)
    with pytest.raises(AssertionError, match="a key shows in collected 0"):
        Canary(KEYS.values()).look(world.gateway, f"Authorization: Bearer {KEYS['openai']}")
