"""Tokens of each caller: allowed by its user, kept, refreshed, dropped, and of use to nobody else."""

from __future__ import annotations

import asyncio
import os
import stat
import time

import pytest

from egressproxy.ai.mcp.oauth import caller_tokens
from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import RepeatRequest, UnusableReference
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN
from egressproxy.telemetry.event_aggregator import EventAggregator
from egressproxy.telemetry.filter_meter import FilterMetrics
from tests.ai.mcp.oauth.kit import (
    ISSUER,
    RESOURCE,
    Login,
    answered,
    authorized,
    begun,
    by_code,
    exchange,
    made,
    page,
    sent,
    state_of,
    token,
)
from tests.support.waiting import until

KEY = "k" * 32
KEY_REF = {"encryptionKeyRef": {"name": "oauth", "key": "key"}}


async def refused(filter, caller="alice") -> Denied:
    x = exchange("/tools", (b"Authorization", b"Bearer of-the-client"), caller=caller)
    with pytest.raises(Denied) as caught:
        await sent(filter, x)
    assert caught.value.reason is Reason.AUTHORIZATION_REQUIRED
    assert token(x) is None
    return caught.value


def files(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".token")


async def test_the_user_allows_access_once_and_the_token_is_that_callers_alone(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    error = await refused(filter)
    assert (error.status, "open https://gw.example/tools/oauth in a browser" in error.message) == (403, True)
    await authorized(filter, login)
    x = await sent(filter, exchange("/tools", (b"Authorization", b"Bearer mine")))
    assert (token(x), CALLERS_OWN in x.state) == (b"Bearer tok-1", True)
    await refused(filter, "bob")
    await authorized(filter, login, "bob")
    assert token(await sent(filter, exchange(caller="bob"))) == b"Bearer tok-2"
    assert token(await sent(filter)) == b"Bearer tok-1"
    assert len(login.clients) == 2  # one client for each caller, so that each user is asked
    registered = login.clients["client-0"]
    assert registered["redirect_uris"] == ["https://gw.example/tools/oauth"]
    assert (registered["token_endpoint_auth_method"], registered["application_type"]) == ("none", "web")
    assert login.forms[0][0]["resource"] == RESOURCE
    filter.close()


async def test_nobodys_token_is_for_a_client_that_is_not_known(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    error = await refused(filter, "")
    assert "does not know this one" in error.message
    with pytest.raises(Denied):
        await page(filter, caller="")
    with pytest.raises(Denied):
        await page(filter, "code=c&state=s", caller="")
    assert login.asked == []
    filter.close()


async def test_what_another_caller_has_begun_is_of_no_use(tmp_path):
    """Mallory has Alice open a link: her own authorization, never Mallory's, comes of it."""
    login = Login()
    filter = made(by_code(tmp_path), login)
    query = login.allow(await begun(filter, "mallory"))
    assert (await page(filter, query, "alice")).status == 400
    assert login.issued == 0
    await refused(filter, "alice")
    await refused(filter, "mallory")
    filter.close()


async def test_a_state_is_used_once_and_ends(tmp_path, monkeypatch):
    login = Login()
    filter = made(by_code(tmp_path), login)
    query = login.allow(await begun(filter))
    assert (await page(filter, query)).status == 200
    assert (await page(filter, query)).status == 400
    late = login.allow(await begun(filter))
    now = time.time
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 601)
    assert (await page(filter, late)).status == 400
    assert login.issued == 1
    filter.close()


async def test_authorizations_under_way_are_bounded_and_the_gateway_registers_once(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    first = login.allow(await begun(filter))
    for _ in range(5):
        last = login.allow(await begun(filter))
    assert (await page(filter, first)).status == 400
    assert (await page(filter, last)).status == 200
    assert len(login.clients) == 1
    filter.close()


@pytest.mark.parametrize(
    ("supported", "more", "status"),
    [
        (True, {"iss": ISSUER}, 200),
        (False, {"iss": ISSUER}, 200),
        (False, {}, 200),
        (True, {}, 400),
        (False, {"iss": "https://evil.example"}, 400),
        (False, {"iss": f"{ISSUER}/"}, 400),
        (True, {"iss": "https://evil.example", "error": "<b>"}, 400),
        (False, {"error": "access_denied"}, 400),
    ],
)
async def test_an_answer_of_another_issuer_is_refused(tmp_path, supported, more, status):
    login = Login(authorization_response_iss_parameter_supported=supported)
    filter = made(by_code(tmp_path), login)
    query = login.allow(await begun(filter), **more)
    answer = await page(filter, query)
    assert (answer.status, login.issued) == (status, int(status == 200))
    assert b"<b>" not in answer.body
    assert (b"access_denied" in answer.body) is (more.get("error") == "access_denied")
    assert (await page(filter, query)).status == 400  # the state was used
    filter.close()


@pytest.mark.parametrize("query", ["code=c", "code=c&state=", "state=s&state=s&code=c", "%", "code=c&state=é", "x"])
async def test_answers_without_a_state_of_ours_are_refused(tmp_path, query):
    filter = made(by_code(tmp_path))
    await begun(filter)
    answer = await filter.backend_request(_browser(query))
    assert answer.status == 400
    filter.close()


def _browser(query):
    x = exchange("/tools/oauth", method="GET")
    x.request.path += b"?" + query.encode()
    return x


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256"])
async def test_a_server_without_pkce_by_s256_is_refused_before_anything_is_registered(tmp_path, methods):
    login = Login(code_challenge_methods_supported=methods)
    filter = made(by_code(tmp_path), login)
    with pytest.raises(GatewayFault) as caught:
        await begun(filter)
    assert ("S256" in caught.value.detail, login.clients) == (True, {})
    filter.close()


async def test_tokens_are_refreshed_before_they_end_by_one_request_at_a_time(tmp_path, monkeypatch):
    login = Login()
    metrics = FilterMetrics()
    filter, second = made(by_code(tmp_path), login, metrics=metrics), made(by_code(tmp_path), login)
    await authorized(filter, login)
    assert token(await sent(second)) == b"Bearer tok-1"  # another worker
    now = time.time
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3550)
    found = await asyncio.gather(*(sent(each) for each in (filter, second) * 4))
    assert {token(x) for x in found} == {b"Bearer tok-2"}
    assert [form["grant_type"] for form, _ in login.forms] == ["authorization_code", "refresh_token"]
    filter.close()
    second.close()


async def test_a_refresh_that_fails_for_now_leaves_the_token_that_is_valid(tmp_path, monkeypatch):
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    login.error = "temporarily_unavailable"
    now = time.time
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3550)
    assert token(await sent(filter)) == b"Bearer tok-1"
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3601)
    with pytest.raises(GatewayFault) as caught:
        await sent(filter)
    assert "temporarily_unavailable" in caught.value.detail
    login.error = "invalid_grant"  # revoked
    with pytest.raises(GatewayFault):
        await sent(filter)
    assert len(login.forms) == 3  # the server is not asked again at once
    monkeypatch.setattr(caller_tokens, "MAX_CACHED", 2)
    filter._tokens._failures.update(dict.fromkeys("ab", (0.0, "")))  # of callers that have not come again
    login.error = "temporarily_unavailable"
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3607)
    with pytest.raises(GatewayFault):
        await sent(filter)
    assert len(filter._tokens._failures) == 1
    login.error = "invalid_grant"
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3613)
    await refused(filter)
    filter.close()


async def test_a_refused_token_is_renewed_once_and_then_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(caller_tokens, "RENEWAL_S", 0.0)
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    x, other = await sent(filter), await sent(filter)
    for each in (x, other):  # both had the old one: one refresh serves both
        with pytest.raises(RepeatRequest):
            await answered(filter, each, 401)
    assert login.issued == 2
    assert token(await sent(filter)) == b"Bearer tok-2"
    monkeypatch.setattr(caller_tokens, "RENEWAL_S", 10.0)
    x = await sent(filter)
    with pytest.raises(Denied):
        await answered(filter, x, 401)
    await refused(filter)
    assert login.issued == 2
    filter.close()


async def test_tokens_end_by_the_callers_wish_in_every_worker(tmp_path):
    login = Login()
    filter, second = made(by_code(tmp_path), login), made(by_code(tmp_path), login)
    await authorized(filter, login)
    assert token(await sent(second)) == b"Bearer tok-1"
    assert (await page(filter, caller="bob", method="DELETE")).status == 404
    assert token(await sent(second)) == b"Bearer tok-1"
    assert (await page(filter, method="DELETE")).status == 204
    assert login.ended == ["ref-1"]
    await refused(second)
    filter.close()
    second.close()


async def test_a_caller_has_the_gateway_registered_anew_after_a_while(tmp_path, monkeypatch):
    login = Login()
    filter = made(by_code(tmp_path), login)
    await page(filter)
    assert (await page(filter, method="DELETE")).status == 404
    await page(filter)
    assert len(login.clients) == 1
    monkeypatch.setattr(caller_tokens, "REGISTERED_S", -1.0)
    assert (await page(filter, method="DELETE")).status == 404
    await page(filter)
    assert len(login.clients) == 2
    await authorized(filter, login)
    assert (await page(filter, method="DELETE")).status == 204
    assert len(login.ended) == 1
    await page(filter)
    assert len(login.clients) == 3
    filter.close()


async def test_tokens_of_another_authorization_server_or_redirect_uri_are_not_used(tmp_path, monkeypatch):
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    moved = made(by_code(tmp_path, redirectUri="https://gw.example/other"), login)
    x = exchange("/other", method="GET")
    await moved.backend_request(x)
    assert len(login.clients) == 2  # registered anew
    other = made(by_code(tmp_path, resource="https://tools.example"), login)
    await refused(other)
    for each in (filter, moved, other):
        each.close()


async def test_files_are_for_the_gateway_alone_and_nothing_shows_a_token(tmp_path):
    login, notices, folder = Login(), EventAggregator(), tmp_path / "state"
    filter = made({**by_code(folder), **KEY_REF}, login, secrets={"oauth/key": KEY}, notices=notices)
    await authorized(filter, login)
    assert token(await sent(filter)) == b"Bearer tok-1"
    (file,) = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(text in file.read_bytes() for text in (b"tok-1", b"ref-1", b"alice"))
    shown = repr((vars(filter), filter._tokens.held("alice"), filter._tokens._cache, filter._client.registration))
    assert not any(text in shown for text in ("tok-1", "ref-1"))
    wrong = made({**by_code(folder), **KEY_REF}, login, secrets={"oauth/key": "x" * 32})
    with pytest.raises(GatewayFault, match="no token"):
        await sent(wrong)
    file.rename(file.with_name(filter._tokens._store._path("bob").name))  # bound to its name
    with pytest.raises(GatewayFault):
        await sent(filter, exchange(caller="bob"))
    with pytest.raises(UnusableReference, match="less than 32 bytes"):
        made({**by_code(folder), **KEY_REF}, secrets={"oauth/key": "short"})
    missing = made({**by_code(folder), **KEY_REF}, secrets={})
    with pytest.raises(GatewayFault):
        await sent(missing)
    for each in (filter, wrong, missing):
        each.close()


async def test_a_file_of_another_caller_or_open_to_others_is_not_read(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    (file,) = files(tmp_path)
    store = filter._tokens._store
    os.link(file, store._path("bob"))
    with pytest.raises(GatewayFault) as caught:
        await sent(filter, exchange(caller="bob"))
    assert "of another caller" in caught.value.detail
    file.chmod(0o644)
    filter._tokens._cache.clear()
    with pytest.raises(GatewayFault) as caught:
        await sent(filter)
    assert "mode 0600" in caught.value.detail
    tmp_path.chmod(0o777)
    with pytest.raises(GatewayFault) as caught:
        await begun(filter)
    assert "others may write" in caught.value.detail
    tmp_path.chmod(0o700)
    filter.close()


async def test_explain_says_what_a_caller_gets(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    with pytest.raises(Denied, match="has to be allowed once"):
        filter.forecast(exchange())
    filter.forecast(exchange("/tools/oauth", method="GET"))
    await authorized(filter, login)
    filter.forecast(exchange())
    filter.close()


async def test_the_browser_brings_nothing_along_and_other_methods_do_nothing(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    answer = await page(filter)
    fields = dict(answer.fields)
    assert (fields[b"Referrer-Policy"], fields[b"Cache-Control"]) == (b"no-referrer", b"no-store")
    assert state_of(fields[b"Location"].decode()).encode() not in answer.body
    assert (await page(filter, method="POST")).status == 405
    filter.close()


async def test_a_browser_that_leaves_does_not_lose_what_was_begun(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    query = login.allow(await begun(filter))
    going = asyncio.create_task(page(filter, query))
    await until(lambda: filter._tokens._tasks)
    going.cancel()
    await until(lambda: filter._tokens.held("alice"))
    assert token(await sent(filter)) == b"Bearer tok-1"
    filter.close()


async def test_dropping_and_beginning_again_registers_the_gateway_once(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    for _ in range(3):
        await authorized(filter, login)
        assert (await page(filter, method="DELETE")).status == 204
    assert len(login.clients) == 1
    filter.close()


async def test_another_object_with_the_same_folder_and_resource_has_tokens_of_its_own(tmp_path):
    login = Login()
    filter, other = made(by_code(tmp_path), login), made(by_code(tmp_path), login, source="Backend evil/tools")
    await authorized(filter, login)
    await refused(other)
    filter.close()
    other.close()


LACKS = (b"WWW-Authenticate", b'Bearer error="insufficient_scope", scope="write files:read", resource_metadata="x"')


async def test_a_user_is_asked_again_for_scopes_that_a_token_lacks(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    x = await sent(filter)
    with pytest.raises(Denied, match="has to be allowed"):
        await answered(filter, x, 403, LACKS)
    assert token(await sent(filter)) == b"Bearer tok-1"  # for what it is enough for
    url = await begun(filter)
    assert "scope=read+offline_access+write+files%3Aread" in url
    assert login.clients["client-1"]["scope"] == "read offline_access write files:read"
    assert (await page(filter, login.allow(url))).status == 200
    assert token(await sent(filter)) == b"Bearer tok-2"
    filter.close()


async def test_a_token_is_refreshed_and_revoked_by_the_client_that_has_got_it(tmp_path, monkeypatch):
    """A server that asks for more, and a user who does not allow it, cost nobody the token that is there."""
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    with pytest.raises(Denied):
        await answered(filter, await sent(filter), 403, LACKS)
    await begun(filter)  # as another client, for the further scopes
    now = time.time
    monkeypatch.setattr(caller_tokens.time, "time", lambda: now() + 3550)
    assert token(await sent(filter)) == b"Bearer tok-2"
    assert login.forms[-1][0]["client_id"] == "client-0"
    assert (await page(filter, method="DELETE")).status == 204
    assert login.ended == ["ref-2"]
    filter.close()


async def test_an_operators_scopes_are_not_widened(tmp_path):
    login = Login()
    filter = made(by_code(tmp_path, scopes=["read"]), login)
    await authorized(filter, login)
    x = await sent(filter)
    await answered(filter, x, 403, LACKS)
    assert b"www-authenticate" not in x.response.fields
    assert "write" not in await begun(filter)
    filter.close()


async def test_clients_that_another_gateway_does_not_know_share_no_token(tmp_path):
    """They are known as that gateway: what one of their users allows would be for all of them."""
    login = Login()
    filter = made(by_code(tmp_path), login)
    x = exchange()
    x.identity = CallerIdentity(name="gateway-b", source="token", origin_client="10.0.0.1", origin_gateway="b/gw")
    with pytest.raises(Denied, match="does not know this one"):
        await sent(filter, x)
    x.identity = CallerIdentity(name="b/gw#ann", source="gateway", origin_client="10.0.0.1", origin_gateway="b/gw")
    with pytest.raises(Denied, match="has to be allowed once"):
        await sent(filter, x)
    filter.close()


async def test_what_one_caller_begins_at_once_is_bounded(tmp_path):
    """Each waits for the lock of the caller with a file open, also behind a client that has left."""
    login = Login()
    filter = made(by_code(tmp_path), login)
    async with filter._tokens._store.locked("alice"):
        before = len(os.listdir("/proc/self/fd"))
        going = [asyncio.create_task(page(filter)) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) - before <= caller_tokens.MAX_UNDER_WAY
        for each in going:
            each.cancel()
        refused = await asyncio.gather(*going, return_exceptions=True)
        assert any(isinstance(each, GatewayFault) and "under way" in each.detail for each in refused)
        with pytest.raises(GatewayFault):
            await page(filter)  # they go on
    await until(lambda: not filter._tokens._tasks)
    await begun(filter)
    filter.close()


async def test_a_client_that_leaves_while_scopes_are_kept_does_not_end_the_lock(tmp_path, monkeypatch):
    """Another worker could else write beside it, and a refresh token that has just been rotated be lost."""
    login = Login()
    filter = made(by_code(tmp_path), login)
    await authorized(filter, login)
    store, writing = filter._tokens._store, asyncio.Event()
    opened, write = asyncio.Event(), type(store).write

    async def slow(self, caller, entry):
        writing.set()
        await opened.wait()
        await write(self, caller, entry)

    monkeypatch.setattr(type(store), "write", slow)
    going = asyncio.create_task(answered(filter, await sent(filter), 403, LACKS))
    await writing.wait()
    going.cancel()
    await asyncio.wait([going])
    entered = asyncio.create_task(_entered(store))
    await asyncio.sleep(0.06)
    assert not entered.done()
    opened.set()
    assert (await entered)["scopes"] == ["write", "files:read"]
    filter.close()


async def _entered(store):
    async with store.locked("alice"):
        return store.read("alice")


@pytest.mark.parametrize(
    ("method", "loaded_as", "status"),
    [("GET", b"image", 403), ("GET", b"empty", 403), ("GET", b"iframe", 403), ("GET", b"document", 302),
     ("DELETE", b"empty", 404)],
)  # fmt: skip
async def test_what_another_page_only_loads_begins_nothing(tmp_path, method, loaded_as, status):
    """An image of a page elsewhere would begin and end an authorization unseen, at a server that asks only once."""
    filter = made(by_code(tmp_path))
    answer = await filter.backend_request(exchange("/tools/oauth", (b"Sec-Fetch-Dest", loaded_as), method=method))
    assert answer.status == status
    filter.close()
