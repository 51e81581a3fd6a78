"""The login of the admin page by OpenID Connect."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from egressproxy.admin.oidc import MAX_LOGINS, OidcLogin, is_safe
from egressproxy.admin.status import ApiError
from egressproxy.admin.write_access import WriteAccess
from tests.admin.kit import State, admin_server, ask, serving
from tests.admin.test_introspection import State as AdminState
from tests.support.oidc_issuer import CLIENT, OidcIssuer
from tests.support.tokens import TokenIssuer
from tests.support.waiting import until

ALICE = {"email": "Alice@example.com", "email_verified": True, "groups": ["staff"]}
REDIRECT = "http://gateway/ui"


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    async with OidcIssuer(**ALICE) as made:
        yield made


async def status(login: OidcLogin, token: str) -> int:
    """0 for one who may come in."""
    try:
        await login.check(token.encode("utf-8", "surrogateescape"))
    except ApiError as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, 0),
        ({"email_verified": False}, 403),
        ({"email_verified": None}, 403),
        ({"email": "mallory@example.com"}, 403),
        ({"email": None}, 403),
        ({"email": "mallory@example.com", "groups": ["operators"]}, 0),
        ({"email": None, "groups": ["alice@example.com"]}, 403),
        ({"email": "group:operators"}, 403),
        ({"azp": CLIENT}, 0),
        ({"aud": [CLIENT, "another client"], "azp": "another client"}, 401),
        ({"client_id": "another client"}, 401),
        ({"aud": ["another client"]}, 401),
        ({"exp": 1_000_000_000}, 401),
        ({"iss": "https://evil.example"}, 401),
    ],
    ids=str,
)
async def test_a_person_is_known_by_a_verified_address_or_a_group(
    issuer: OidcIssuer, claims: dict[str, Any], expected: int
):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com", "group:operators"])
    assert await status(login, issuer.token(**claims)) == expected


async def test_an_address_is_that_of_one_person(issuer: OidcIssuer):
    login = OidcLogin(issuer.url, CLIENT, ["Kate@example.com"])
    assert await status(login, issuer.token(email="kate@EXAMPLE.com")) == 0
    assert await status(login, issuer.token(email="\N{KELVIN SIGN}ate@example.com")) == 403


async def test_a_token_of_nobodys_is_refused(issuer: OidcIssuer):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    forged = TokenIssuer(issuer.url).token("alice", aud=[CLIENT], **ALICE)
    unsigned = issuer.signs.unsigned(aud=CLIENT, **ALICE)
    assert [await status(login, each) for each in (forged, unsigned, "a.b.c", "\udcff..")] == [401] * 4


@pytest.mark.parametrize(
    ("says", "allowed", "scope", "claims"),
    [
        ({}, "group:staff", "openid email profile", None),
        ({"scopes_supported": ["openid", "groups"]}, "a@b", "openid email profile", None),
        ({"scopes_supported": ["openid", "groups"]}, "group:staff", "openid email profile groups", None),
        ({"claims_parameter_supported": True}, "a@b", "openid email profile", ["email", "email_verified", "groups"]),
    ],
)
async def test_a_login_asks_for_what_the_issuer_can_put_into_an_id_token(
    issuer: OidcIssuer, says: dict[str, Any], allowed: str, scope: str, claims: list[str] | None
):
    issuer.says = says
    asked = await OidcLogin(issuer.url, CLIENT, [allowed]).settings()
    assert asked["scope"] == scope
    assert (list(json.loads(asked["claims"])["id_token"]) if "claims" in asked else None) == claims


async def test_a_token_without_any_name_is_told_from_a_person_who_may_not(issuer: OidcIssuer):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    with pytest.raises(ApiError, match="neither a verified email address nor groups"):
        await login.check(issuer.token(email_verified=False, groups=[]).encode())
    with pytest.raises(ApiError, match="this person is not allowed here"):
        await login.check(issuer.token(email_verified=False).encode())


async def test_the_log_says_why_an_issuer_gives_no_token(issuer: OidcIssuer, caplog: pytest.LogCaptureFixture):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    with pytest.raises(ApiError, match="sign in again"):
        await login.exchange("guessed", "verifier", REDIRECT)
    assert 'status 400, b\'{"error": "invalid_grant"}\'' in caplog.text


@pytest.mark.parametrize(
    "says",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": "file:///etc/x"},
        {"jwks_uri": "https://["},
        {"code_challenge_methods_supported": ["plain"]},
    ],
    ids=str,
)
async def test_an_issuer_that_says_something_else_is_not_believed(
    issuer: OidcIssuer, says: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.admin.oidc.PAUSE_S", 0.0)
    issuer.says = says
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    assert await status(login, issuer.token()) == 503
    issuer.says = {}
    assert await status(login, issuer.token()) == 0, "it is asked again"


@pytest.mark.parametrize("scheme", ["http:", "HTTP:", " http:", "ht\ttp:"])
async def test_an_issuer_of_another_machine_leads_to_nothing_on_this_one(monkeypatch: pytest.MonkeyPatch, scheme: str):
    """Else its document could have the gateway write to programs of this machine."""
    name = "https://login.example"
    document = {
        "issuer": name,
        "authorization_endpoint": f"{name}/a",
        "token_endpoint": f"{scheme}//127.0.0.1:15900/reload",
    }
    asked = []

    async def call(url: str, form: object = None) -> bytes:
        asked.append(url)
        return json.dumps(
            {**document, "jwks_uri": f"{name}/keys"} if "known" in url else TokenIssuer(name).jwks()
        ).encode()

    monkeypatch.setattr("egressproxy.admin.oidc._call", call)
    with pytest.raises(ApiError, match="does not answer"):
        await OidcLogin(name, CLIENT, ["a@b"]).settings()
    assert len(asked) == 1


async def test_an_issuer_that_is_silent_is_asked_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch):
    asked = 0
    goes_on = asyncio.Event()

    async def call(url: str, form: object = None) -> bytes:
        nonlocal asked
        asked += 1
        await goes_on.wait()
        raise OSError("silent")

    monkeypatch.setattr("egressproxy.admin.oidc._call", call)
    login = OidcLogin("https://login.example", CLIENT, ["a@b"])
    waiting = [asyncio.ensure_future(status(login, "a.b.c")) for _ in range(20)]
    await asyncio.sleep(0)
    waiting.pop(0).cancel()  # a client that leaves does not end it for the others
    await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.gather(*waiting) == [503] * 19
    assert await status(login, "a.b.c") == 503
    assert asked == 1, "not again before a pause"


async def test_strangers_end_no_more_than_a_few_logins_at_once(issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch):
    """Each opens a connection with TLS, on the event loop of the traffic."""
    login = OidcLogin(issuer.url, CLIENT, ["a@b"])
    await login.settings()
    goes_on = asyncio.Event()

    async def call(url: str, form: object = None) -> bytes:
        await goes_on.wait()
        return b"{}"

    monkeypatch.setattr("egressproxy.admin.oidc._call", call)
    asked = [asyncio.ensure_future(login.exchange("code", "verifier", REDIRECT)) for _ in range(MAX_LOGINS + 3)]
    await asyncio.sleep(0)
    goes_on.set()
    refused = [error.code for error in await asyncio.gather(*asked, return_exceptions=True)]  # type: ignore[union-attr]
    assert refused == [401] * MAX_LOGINS + [503] * 3


async def test_keys_that_are_known_need_no_answer_of_an_issuer_that_hangs(
    issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.admin.oidc.PAUSE_S", 0.0)
    monkeypatch.setattr("egressproxy.admin.oidc.REFRESH_S", 0.0)
    monkeypatch.setattr("egressproxy.admin.oidc.DUE_S", 0.01)
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    assert await status(login, issuer.token()) == 0

    async def hang(url: str, form: object = None) -> bytes:
        await asyncio.sleep(60)
        return b""

    monkeypatch.setattr("egressproxy.admin.oidc._call", hang)
    async with asyncio.timeout(5):
        assert await status(login, issuer.token()) == 0
        monkeypatch.setattr("egressproxy.admin.oidc.DUE_S", 60.0)
        login._tried_at -= 60.0
        assert await status(login, issuer.token()) == 0, "the first one alone has waited"


async def test_keys_that_are_new_are_fetched_and_those_from_before_hold_while_it_is_silent(
    issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.admin.oidc.PAUSE_S", 0.0)
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    assert await status(login, issuer.token()) == 0
    issuer.signs.add("two")
    assert await status(login, issuer.signs.token("alice", kid="two", aud=[CLIENT], **ALICE)) == 0
    monkeypatch.setattr("egressproxy.admin.oidc.REFRESH_S", 0.0)
    issuer.says = {"issuer": "silent"}
    assert await status(login, issuer.token()) == 0


async def test_a_key_that_is_withdrawn_is_believed_no_more_once_keys_are_due(
    issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.admin.oidc.PAUSE_S", 0.0)
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    stolen = issuer.token()
    assert await status(login, stolen) == 0
    issuer.signs = TokenIssuer(issuer.url)
    monkeypatch.setattr("egressproxy.admin.oidc.REFRESH_S", 0.0)
    assert await status(login, stolen) == 401


async def test_the_page_exchanges_a_code_and_reads_with_its_token(issuer: OidcIssuer):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com"])
    admin = admin_server(State(), "0.0.0.0", access=WriteAccess(None, login))
    await admin.start()
    admin.host = "127.0.0.1"
    offered = (await ask(admin, "/ui/oidc")).json()
    assert offered == {"authorize": f"{issuer.url}/authorize", "client_id": CLIENT, "scope": "openid email profile"}
    assert (await ask(admin, "/ui/oidc", "PUT")).status == 405
    challenge = base64.urlsafe_b64encode(hashlib.sha256(b"verifier").digest()).rstrip(b"=").decode()

    async def exchanged(
        verifier: str = "verifier", extra: str = "", mark: str = "X-Egressproxy: page\r\n", text: str = ""
    ) -> Any:
        issuer.codes["c"] = (challenge, REDIRECT)
        text = text or json.dumps({"code": "c", "verifier": verifier, "redirect_uri": REDIRECT})
        fields = f"{mark}{extra}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        return await ask(admin, "/ui/oidc", "POST", extra=fields, body=text)

    answer = await exchanged()
    assert answer.status == 200
    token = answer.json()["token"]
    assert (await ask(admin, "/live?x=1", extra=f"Authorization: Bearer {token}\r\n")).status == 400
    assert (await ask(admin, "/live?x=1", extra="Authorization: Bearer x.y.z\r\n")).status == 401
    assert (await ask(admin, "/live?x=1")).status == 401
    assert (await exchanged(verifier="guessed")).status == 401
    assert (await exchanged(extra="Origin: http://evil.example\r\n")).status == 403
    assert (await exchanged(mark="")).status == 403
    assert (await exchanged(verifier="x" * 9000)).status == 400
    assert (await exchanged(text="[" * 8000)).status == 400
    issuer.claims["groups"] = ["x" * 500] * 12
    answer = await exchanged()
    assert (answer.status, "and a request takes 8000" in answer.json()["message"]) == (403, True)
    issuer.claims.update(email="mallory@example.com", groups=["staff"])
    assert (await exchanged()).status == 403
    await admin.stop()


async def test_strangers_that_write_a_login_slowly_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.admin.connections.MAX_CONNECTIONS", 2)
    login = OidcLogin("https://login.example", CLIENT, ["a@b"])
    async with serving(admin_server(State(), "0.0.0.0", access=WriteAccess(None, login))) as admin:
        head = "POST /ui/oidc HTTP/1.1\r\nHost: a\r\nX-Egressproxy: page\r\nContent-Type: application/json\r\n"
        slow = [await asyncio.open_connection(admin.host, admin.port) for _ in range(2)]
        for _, writer in slow:
            writer.write(f"{head}Content-Length: 9\r\n\r\n{{".encode())
        open_ = admin._connections._open
        await until(lambda: sum(each._has_asked for each in open_) == 2)
        assert (await ask(admin, "/live")).status == 401
        for _, writer in slow:
            writer.close()


async def test_an_approval_is_that_of_the_person_who_signed_in_whatever_name_they_give(issuer: OidcIssuer):
    login = OidcLogin(issuer.url, CLIENT, ["alice@example.com", "group:staff"])
    state = AdminState()
    admin = admin_server(state, access=WriteAccess(None, login))
    await admin.start()
    for claims in ({}, {"email_verified": False}):
        extra = f"X-Egressproxy: page\r\nAuthorization: Bearer {issuer.token(**claims)}\r\n"
        assert (await ask(admin, "/holds?approve=5e1f&by=bob", "POST", extra=extra)).status == 200
    await admin.stop()
    assert [each.by for each in state.decided if each] == ["alice@example.com", f"{issuer.url}#alice"]


async def test_without_a_login_there_is_nothing_to_exchange(tmp_path: Path):
    admin = admin_server(State())
    await admin.start()
    assert [(await ask(admin, "/ui/oidc", method)).status for method in ("GET", "POST")] == [404, 404]
    await admin.stop()


async def test_beside_a_login_the_token_of_programs_holds(issuer: OidcIssuer, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("0123.4567.89abcdef")  # it may look like a JWT
    access = WriteAccess(file, OidcLogin(issuer.url, CLIENT, ["alice@example.com"]))
    for token in ("0123.4567.89abcdef", issuer.token()):
        request: Any = SimpleNamespace(headers=CIMultiDict({"Authorization": f"Bearer {token}"}), remote="10.0.0.9")
        await access.check(request)


@pytest.mark.parametrize(
    ("url", "expected"),
    [("https://login.example", True), ("http://127.0.0.1:1", True), ("http://login.example", False),
     ("https://", False), ("https://[", False), ("file:///x", False), ("login.example", False)],
)  # fmt: skip
def test_an_issuer_is_asked_by_tls(url: str, expected: bool):
    assert is_safe(url) is expected
