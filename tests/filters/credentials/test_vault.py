"""Secrets of a Vault: what hvac asks over our call, how long a value serves, and what ends it."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from aiohttp import web

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.base import UnusableReference
from egressproxy.filters.calls import CallAnswer, CallFailed
from egressproxy.filters.credentials import vault
from egressproxy.filters.credentials.refresher import FetchError
from egressproxy.filters.credentials.token_config import Vault
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.secret import SecretBytes
from tests.filters.credentials.kit import exchange, injector, sent
from tests.support.vault_server import VaultServer, routes
from tests.support.waiting import until

hvac = pytest.importorskip("hvac")

from egressproxy.filters.credentials import vault_session  # noqa: E402

REF = {"group": "egressproxy.io", "kind": "Backend", "name": "vault"}
LABEL = "Backend vault"
KV = {"backendRef": REF, "path": "app", "key": "token"}
APP_ROLE = {"appRole": {"roleId": "role-1", "secretIdRef": {"name": "v", "key": "id"}}}
LEASED = {**APP_ROLE, "backendRef": REF, "engine": "Dynamic", "mount": "rabbitmq", "path": "creds/r", "key": "password"}
BY_TOKEN = {"tokenRef": {"name": "v", "key": "token"}}
SECRETS = {"v/id": "approle-secret-id", "v/token": "hvs.static-token"}


class Call:
    """A FilterCall to a VaultServer. `failure` is raised instead; `opened`: what answers wait for."""

    backend = "agents/vault"
    is_verified = True

    def __init__(self, server: VaultServer) -> None:
        self.server = server
        self.failure: Exception | None = None
        self.opened: asyncio.Event | None = None
        self.waiting = 0
        self.answer: CallAnswer | None = None

    async def request(self, method, path, fields=(), body=b"", *, timeout_s, x=None):
        assert threading.current_thread() is threading.main_thread()
        if self.opened is not None:
            self.waiting += 1
            await self.opened.wait()
        if self.failure is not None:
            raise self.failure
        if self.answer is not None:
            return self.answer
        named = {name.decode(): value.decode() for name, value in Fields.of(fields)}
        status, said = self.server.answer(method.decode(), path.decode(), named, body)
        return CallAnswer(status, Fields.of([(b"content-type", b"application/json")]), json.dumps(said).encode())


class Session:
    """A VaultSession on the clock of its server."""

    def __init__(self, server, config, monkeypatch, secret="approle-secret-id"):
        self.server, self.call = server, Call(server)
        monkeypatch.setattr(vault_session, "monotonic", lambda: server.now)
        settings = validated(Vault, json.dumps(config))
        loop = asyncio.get_running_loop()
        self.made = vault_session.VaultSession(self.call, loop, settings, SecretBytes(secret.encode()))

    async def fetch(self, after=0.0):
        self.server.now += after
        return await asyncio.to_thread(self.made.fetch)


@pytest.mark.parametrize(
    ("auth", "login"),
    [
        (APP_ROLE, ("POST", "/v1/auth/approle/login")),
        ({"kubernetes": {"role": "gw", "tokenFile": "FOLDER/jwt"}}, ("POST", "/v1/auth/kubernetes/login")),
        ({"tokenFile": "FOLDER/token"}, None),
        (BY_TOKEN, None),
    ],
    ids=("appRole", "kubernetes", "tokenFile", "tokenRef"),
)
@pytest.mark.parametrize(
    ("engine", "path"),
    [({}, "/v1/secret/data/app"), ({"engine": "KvV1", "mount": "kv"}, "/v1/kv/app")], ids=("KvV2", "KvV1"),
)  # fmt: skip
async def test_a_secret_by_each_way(tmp_path, auth, login, engine, path):
    server = VaultServer(namespace="team/a")
    (tmp_path / "jwt").write_text(server.jwt + "\n")
    (tmp_path / "token").write_text(server.static_token + "\n")
    written = json.loads(json.dumps(auth).replace("FOLDER", str(tmp_path)))
    config = {"vault": {**KV, **written, **engine, "namespace": "team/a"}, "header": "X-Key"}
    made = injector(config, SECRETS, {LABEL: Call(server)})
    x = await sent(made, exchange((b"x-key", b"of-the-client")))
    assert x.request.fields.get_all(b"x-key") == [b"kv-canary-1"]
    assert server.asked == [*([login] if login else []), ("GET", path)]
    made.close()


async def test_hvac_takes_nothing_of_the_environment(monkeypatch, tmp_path):
    for name, value in {
        "VAULT_TOKEN": "of-the-environment", "VAULT_ADDR": "http://elsewhere.test", "HTTPS_PROXY": "http://proxy.test",
        "VAULT_NAMESPACE": "theirs", "HOME": str(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / ".vault-token").write_text("of-the-home")
    server = VaultServer()
    session = Session(server, {**KV, **APP_ROLE}, monkeypatch)
    assert (await session.fetch()).value == b"kv-canary-1"


async def test_a_secret_of_kv_is_read_again_and_serves_for_a_while(monkeypatch):
    session = Session(VaultServer(), {**KV, **APP_ROLE, "refreshSeconds": 60, "staleSeconds": 600}, monkeypatch)
    fetched = await session.fetch()
    assert (fetched.life_s, fetched.refresh_s) == (600, 60)
    session.server.kv["app"]["token"] = "kv-canary-2"
    assert (await session.fetch(60)).value == b"kv-canary-2"
    logins = [asked for asked in session.server.asked if "login" in asked[1]]
    assert len(logins) == 1


async def test_a_lease_is_renewed_and_its_value_stays(monkeypatch):
    session = Session(VaultServer(), LEASED, monkeypatch)
    first = await session.fetch()
    assert (first.value, first.life_s) == (b"lease-canary-0", 600)
    again = await session.fetch(480)
    assert (again.value, again.life_s) == (b"lease-canary-0", 600)
    assert session.server.asked[-1] == ("PUT", "/v1/sys/leases/renew")


async def test_a_lease_that_cannot_be_renewed_any_more_gives_way_to_a_new_secret(monkeypatch):
    session = Session(VaultServer(max_lease_life=900), LEASED, monkeypatch)
    await session.fetch()
    assert (await session.fetch(240)).value == b"lease-canary-0"
    assert (await session.fetch(500)).value == b"lease-canary-1"  # 160 s were left of 900
    plain = Session(VaultServer(is_renewable=False), LEASED, monkeypatch)
    assert [(await plain.fetch(400)).value for _ in range(2)] == [b"lease-canary-0", b"lease-canary-1"]
    assert ("PUT", "/v1/sys/leases/renew") not in plain.server.asked


async def test_the_token_is_renewed_so_that_its_leases_live_on(monkeypatch):
    session = Session(VaultServer(token_life=1000, max_token_life=10**6, max_lease_life=10**6), LEASED, monkeypatch)
    await session.fetch()
    for _ in range(10):
        assert (await session.fetch(400)).value == b"lease-canary-0"
    assert ("POST", "/v1/auth/token/renew-self") in session.server.asked
    assert len(session.server.tokens) == 1


async def test_a_value_ends_with_the_token_and_a_new_login_reads_a_new_one(monkeypatch):
    """Vault revokes the leases of a token with it."""
    session = Session(VaultServer(token_life=300, max_token_life=300), LEASED, monkeypatch)
    assert (await session.fetch()).life_s == 300
    fetched = await session.fetch(240)
    assert (fetched.value, fetched.life_s) == (b"lease-canary-1", 300)
    assert len(session.server.tokens) == 2


async def test_a_login_that_fails_leaves_the_token_before_in_use(monkeypatch):
    session = Session(VaultServer(token_life=1000, max_token_life=1000), LEASED, monkeypatch)
    await session.fetch()
    session.server.secret_id = "another"
    fetched = await session.fetch(510)
    assert (fetched.value, fetched.life_s) == (b"lease-canary-0", 490)
    with pytest.raises(FetchError, match="for the login of the gateway"):
        await session.fetch(500)


async def test_a_revoked_token_is_replaced_once(monkeypatch):
    session = Session(VaultServer(), {**KV, **APP_ROLE}, monkeypatch)
    await session.fetch()
    session.server.tokens.clear()
    assert (await session.fetch(1)).value == b"kv-canary-1"
    by_token = Session(VaultServer(static_token="another"), {**KV, **BY_TOKEN}, monkeypatch, "hvs.static-token")
    with pytest.raises(FetchError, match="answered with 403 for the secret app, the gateway may not read it") as failed:
        await by_token.fetch()
    assert not failed.value.is_final
    assert len(by_token.server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "why", "is_final"),
    [
        (CallAnswer(404, Fields(), b'{"errors": []}'), "404 for the secret app, it does not exist", True),
        (CallAnswer(503, Fields(), b'{"errors": ["Vault is sealed canary"]}'), "answered with 503", False),
        (CallAnswer(307, Fields.of([(b"location", b"http://10.0.0.1/v1/x")]), b""), r"redirects \(307\)", False),
        (CallAnswer(200, Fields(), b"<html>canary"), "sent no answer of a Vault", False),
        (CallAnswer(200, Fields(), b'{"data": {"data": {"token": 5}}}'), "has no text as token", True),
        (CallAnswer(200, Fields(), b'{"data": {"data": {"canary": "x"}}}'), "has no text as token", True),
        (CallAnswer(204, Fields(), b""), "sent no answer of a Vault", False),
    ],
)
async def test_what_is_no_secret(monkeypatch, answer, why, is_final):
    session = Session(VaultServer(), {**KV, **BY_TOKEN}, monkeypatch, "hvs.static-token")
    session.call.answer = answer
    with pytest.raises(FetchError, match=why) as failed:
        await session.fetch()
    assert failed.value.is_final is is_final
    assert "canary" not in str(failed.value)
    assert "hvs" not in str(failed.value)


@pytest.mark.parametrize(
    ("token", "why"), [("canary\r\nX: y", "cannot be sent in a field"), ("canaryé", "does not hold a token")]
)
async def test_a_token_that_is_none(monkeypatch, token, why):
    session = Session(VaultServer(), {**KV, **BY_TOKEN}, monkeypatch, token)
    with pytest.raises(FetchError, match=why) as failed:
        await session.fetch()
    assert failed.value.is_final
    assert "canary" not in str(failed.value)
    assert session.server.asked == []


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_login_that_fails_ends_no_value(monkeypatch, status):
    session = Session(VaultServer(), {**KV, **APP_ROLE}, monkeypatch)
    session.call.answer = CallAnswer(status, Fields(), b'{"errors": ["canary approle-secret-id"]}')
    with pytest.raises(FetchError, match=f"answered with {status} for the login of the gateway$") as failed:
        await session.fetch()
    assert not failed.value.is_final


async def test_the_last_value_serves_while_the_vault_is_away(monkeypatch):
    call = Call(VaultServer())
    made = injector({"vault": {**KV, **APP_ROLE}}, SECRETS, {LABEL: call})
    await sent(made)
    call.failure = CallFailed(Reason.CONNECT_REFUSED, "backend agents/vault could not be asked: refused")
    made._refresher._start()  # what the timer does
    await until(lambda: made._refresher.error != "")
    assert "could not be asked" in made._refresher.error
    x = await sent(made)
    assert b"kv-canary-1" in x.request.fields.block
    made._refresher.expires_at = 0.0  # its end
    made._refresher._failed("away")
    with pytest.raises(GatewayFault) as failed:
        await sent(made)
    assert failed.value.reason is Reason.CREDENTIAL_MISSING
    made.close()


async def test_the_end_of_a_filter_does_not_wait_for_the_vault():
    call = Call(VaultServer())
    call.opened = asyncio.Event()
    made = injector({"vault": {**KV, **APP_ROLE}}, SECRETS, {LABEL: call})
    made._refresher._start()
    task = made._refresher._task
    await until(lambda: call.waiting)
    before = time.monotonic()
    made.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.get_running_loop().shutdown_default_executor()
    assert time.monotonic() - before < vault_session.TIMEOUT_S


@pytest.mark.parametrize(
    ("secrets", "backend", "why"),
    [
        ({}, "agents/vault", "the Secret v/id is missing"), (SECRETS, "agents/vault", "not reached over verified TLS"),
        (SECRETS, "-", "cannot be used: see the status"),
    ],
)  # fmt: skip
async def test_nothing_is_asked_without_secret_backend_or_tls(secrets, backend, why):
    call = Call(VaultServer())
    call.is_verified, call.backend = not secrets, backend
    made = injector({"vault": {**KV, **APP_ROLE}}, secrets, {LABEL: call})
    with pytest.raises(GatewayFault) as failed:
        await sent(made)
    assert why in failed.value.detail
    assert call.server.asked == []
    made.close()


def test_without_hvac_its_place_is_closed(monkeypatch):
    monkeypatch.setattr(vault, "find_spec", lambda name: None)
    with pytest.raises(UnusableReference, match=r"pip install 'egressproxy\[vault\]'"):
        injector({"vault": {**KV, **APP_ROLE}}, SECRETS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokenRef": {"name": "x"}}, "write one of `kubernetes`, `appRole`, `tokenFile` and `tokenRef`"),
        ({"path": "a/../b"}, "path"), ({"path": "/a"}, "path"), ({"mount": ".."}, "mount"), ({"path": "a?b"}, "path"),
        ({"namespace": "a\r\nX: y"}, "namespace"), ({"engine": "Transit"}, "engine"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_hold(change, why):
    with pytest.raises(ValueError, match=why):
        injector({"vault": {**KV, **APP_ROLE, **change}}, SECRETS)


async def test_the_server_of_these_tests_is_a_vault_for_hvac():
    """hvac as its users have it, over HTTP."""
    server = VaultServer()
    application = web.Application()
    application.add_routes(routes(server))
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]

    def ask():
        client = hvac.Client(f"http://{host}:{port}", token="")
        with pytest.raises(hvac.exceptions.Forbidden):
            client.secrets.kv.v2.read_secret_version("app", raise_on_deleted_version=True)
        with pytest.raises(hvac.exceptions.InvalidRequest):
            client.auth.approle.login("role-1", "wrong")
        client.auth.approle.login("role-1", server.secret_id)
        found = client.secrets.kv.v2.read_secret_version("app", raise_on_deleted_version=True)
        with pytest.raises(hvac.exceptions.InvalidPath):
            client.secrets.kv.v2.read_secret_version("none", raise_on_deleted_version=True)
        leased = client.read("rabbitmq/creds/r")
        renewed = client.sys.renew_lease(leased["lease_id"])
        token = client.auth.token.renew_self()["auth"]
        other = hvac.Client(f"http://{host}:{port}", token="")
        other.auth.kubernetes.login("gw", server.jwt)
        return found, leased, renewed, token, other.secrets.kv.v1.read_secret("app", mount_point="kv")

    found, leased, renewed, token, plain = await asyncio.to_thread(ask)
    await runner.cleanup()
    assert found["data"]["data"]["token"] == plain["data"]["token"] == "kv-canary-1"
    assert (leased["lease_duration"], renewed["lease_duration"], token["lease_duration"]) == (600, 600, 3600)
