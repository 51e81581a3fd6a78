"""Keys that are fetched from their issuer: when, how often, and what holds when the issuer does not answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.calls import CallAnswer, CallFailed
from egressproxy.gateway.identity import authenticator, checked_credentials, key_source
from egressproxy.gateway.identity.authenticator import Authenticator
from egressproxy.gateway.identity.authenticators import Authenticators
from egressproxy.gateway.identity.checked_credentials import Verdict
from egressproxy.ir.gateway import KeyUrlIR
from egressproxy.ir.identity import IdentityIR, TokenIssuerIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.authority import read_key_uri
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import Hop, RequestHead
from egressproxy.model.work import at_once
from tests.support.tokens import AUDIENCE, TokenIssuer


class Issuer:
    """A FilterCall whose backend is the issuer; `answers` is what it says, `asked` how often it was."""

    backend = "identity/login.test"
    is_verified = True

    def __init__(self, issuer: TokenIssuer) -> None:
        self.answer: Callable[[], CallAnswer] = lambda: CallAnswer(200, Fields(), issuer.jwks().encode())
        self.asked = 0

    async def request(self, method: bytes, path: bytes, fields: Any = (), body: bytes = b"", **_: Any) -> CallAnswer:
        assert (method, path, body) == (b"GET", b"/keys?v=1", b"")
        self.asked += 1
        return self.answer()


class Tunnel:
    has_client = True


class Client:
    identity, identity_until = ANONYMOUS, inf
    tunnel: Tunnel | None = None
    verdict: Verdict | None = None

    def remember(self, verdict: Verdict) -> None:
        self.verdict = verdict


class Clock:
    """Of both modules, and moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s, real, wall = 0.0, key_source.monotonic, authenticator.time
        monkeypatch.setattr(key_source, "monotonic", lambda: real() + self.s)
        for module in (authenticator, checked_credentials):
            monkeypatch.setattr(module, "time", lambda: wall() + self.s)


class Lab:
    """`call` is that of the first issuer; there may be `others`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *others: TokenIssuer) -> None:
        self.issuer = TokenIssuer()
        issuers = (self.issuer, *others)
        calls = [Issuer(each) for each in issuers]
        self.call, waiting = calls[0], iter(calls)
        self.clock = Clock(monkeypatch)
        rules = tuple(
            TokenIssuerIR(
                each.issuer, (AUDIENCE,), key_host=("login.test", 443), key_path="/keys?v=1", service_accounts=True
            )
            for each in issuers
        )
        urls = tuple(KeyUrlIR(each.issuer, each.key_path, WeightedBackend(None)) for each in rules)
        made = at_once(Authenticators().of(IdentityIR(True, rules), urls, lambda _, __: next(waiting), is_forward=True))
        assert made is not None
        self.authenticator: Authenticator = made

    async def admits(self, token: str, client: Client | None = None) -> str:
        """The namespace, or why it is refused."""
        head = RequestHead(b"GET", b"/", Fields(), Hop(proxy_authorization=b"Bearer " + token.encode()))
        x = Exchange("10.0.0.1:5", "gw", "l", 0.0)
        try:
            checking = self.authenticator.admit(x, client or Client(), head)
            if checking is not None:
                await checking
        except GatewayError as error:
            return error.message if error.reason is Reason.CREDENTIALS_REFUSED else f"{error.reason}"
        return x.identity.namespace


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


UNKNOWN = "the token is signed with a key that its issuer does not have"
NO_KEYS = "the keys of the issuer of the token are not known here: try again, or ask who runs this gateway"


async def test_keys_are_fetched_with_the_first_token_and_once(lab: Lab):
    assert lab.call.asked == 0
    assert [await lab.admits(lab.issuer.token(jti=str(each))) for each in range(5)] == ["team"] * 5
    assert lab.call.asked == 1


async def test_a_new_key_is_fetched_at_once_and_unknown_ones_not_again_and_again(lab: Lab):
    await lab.admits(lab.issuer.token())
    lab.clock.s += key_source.PAUSE_S
    lab.issuer.add("two")
    assert await lab.admits(lab.issuer.token(kid="two")) == "team"
    assert lab.call.asked == 2
    for number in range(20):
        assert await lab.admits(lab.issuer.token(head={"kid": f"guess {number}"})) == UNKNOWN
    assert lab.call.asked == 2
    lab.clock.s += key_source.PAUSE_S
    assert await lab.admits(lab.issuer.token(head={"kid": "guess"})) == UNKNOWN
    assert lab.call.asked == 3


async def test_a_key_that_is_withdrawn_holds_no_more(lab: Lab):
    old, client = lab.issuer.token(), Client()
    assert await lab.admits(old, client) == "team"
    lab.issuer.add("two")
    del lab.issuer.keys["one"]
    assert await lab.admits(old, client) == "team", "nobody knows yet"
    lab.clock.s += key_source.REFRESH_S + 1
    await lab.admits(lab.issuer.token(kid="two"))
    assert await lab.admits(old, client) == UNKNOWN


async def test_a_key_that_one_issuer_withdraws_ends_no_tunnel_of_another(monkeypatch: pytest.MonkeyPatch):
    other = TokenIssuer("https://login.test")
    lab = Lab(monkeypatch, other)
    theirs, ours = Client(), Client()
    assert await lab.admits(other.token(), theirs) == "team"
    assert await lab.admits(lab.issuer.token(), ours) == "team"
    lab.issuer.add("two")
    del lab.issuer.keys["one"]
    lab.clock.s += key_source.REFRESH_S + 1
    await lab.admits(lab.issuer.token(kid="two"))
    theirs.tunnel = ours.tunnel = Tunnel()
    assert await lab.admits("", theirs) == "-", "who opened it is who asks, which the connection manager knows"
    assert "changed" in await lab.admits("", ours)


async def test_nobody_is_believed_for_longer_than_the_keys_are_fresh(lab: Lab):
    """Where all clients are known, somebody has to ask for the keys all the same."""
    token, client = lab.issuer.token(), Client()
    await lab.admits(token, client)
    lab.clock.s += key_source.REFRESH_S + 1
    assert await lab.admits(token, client) == "team"
    assert lab.call.asked == 2


async def test_the_last_keys_hold_while_the_issuer_is_away_and_not_for_ever(lab: Lab):
    def fails() -> CallAnswer:
        raise CallFailed(Reason.CONNECT_REFUSED, "away")

    await lab.admits(lab.issuer.token())
    lab.call.answer = fails
    lab.clock.s += key_source.MAX_AGE_S - 60
    far = {"exp": 4_000_000_000}
    assert await lab.admits(lab.issuer.token(**far)) == "team"
    lab.clock.s += 61
    assert await lab.admits(lab.issuer.token(**far, jti="2")) == NO_KEYS


async def test_a_check_that_began_before_a_key_was_withdrawn_says_nothing_behind_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    """Who shows the same token meanwhile does not wait for that check: its outcome would hold for minutes."""
    await lab.admits(lab.issuer.token(jti="first"))
    verify, begun, goes_on = lab.authenticator._credentials._verify, threading.Event(), threading.Event()
    assert verify is not None

    def slow(shown: Any, now: float) -> Any:
        found = verify(shown, now)
        begun.set()
        assert goes_on.wait(30)
        return found

    old = lab.issuer.token()
    monkeypatch.setattr(lab.authenticator._credentials, "_verify", slow)
    before = asyncio.create_task(lab.admits(old))
    assert await asyncio.to_thread(begun.wait, 30)
    monkeypatch.setattr(lab.authenticator._credentials, "_verify", verify)
    lab.issuer.add("two")
    del lab.issuer.keys["one"]
    lab.clock.s += key_source.REFRESH_S + 1
    assert await lab.admits(lab.issuer.token(kid="two")) == "team"
    behind = asyncio.create_task(lab.admits(old))
    await asyncio.sleep(0)
    goes_on.set()
    assert await before == "team", "it was right when it was asked"
    assert await behind == UNKNOWN
    assert await lab.admits(old) == UNKNOWN


@pytest.mark.parametrize(
    "answer",
    [
        CallAnswer(404, Fields(), b""),
        CallAnswer(302, Fields(b"\r\nLocation: http://169.254.169.254/"), b""),
        CallAnswer(200, Fields(), b"<html>"),
        CallAnswer(200, Fields(), json.dumps({"keys": [{"kty": "oct", "k": "AA"}]}).encode()),
        CallAnswer(200, Fields(), b" " * 300_000),
    ],
    ids=range(5),
)
async def test_an_answer_without_keys_refuses(lab: Lab, answer: CallAnswer):
    lab.call.answer = lambda: answer
    assert await lab.admits(lab.issuer.token()) == NO_KEYS


def test_what_a_url_may_be():
    assert read_key_uri("https://Login.example.com/keys?v=1") == (("login.example.com", 443), "/keys?v=1")
    assert read_key_uri("https://login.example.com:8443/") == (("login.example.com", 8443), "/")


@pytest.mark.parametrize(
    "text",
    [
        "http://a.example/keys", "https://a.example", "https://user@a.example/", "https://a.example/#f", "https://10.0.0.1/",
        "https://[::1]/", "https://a.example/a b", "https://a.example/a\r\nX: y", "file:///etc/passwd", "https:///keys",
        "https://2130706433/", "https://a.example:0x50/", "//a.example/", "",
    ],
)  # fmt: skip
def test_what_none_is(text: str):
    with pytest.raises(ValueError):
        read_key_uri(text)


async def test_a_key_that_is_withdrawn_while_a_request_waits_for_a_person(lab: Lab):
    """Nobody else has shown a token meanwhile: the keys are fetched before it goes on."""
    token, client = lab.issuer.token(), Client()
    assert await lab.admits(token, client) == "team"
    lab.clock.s += key_source.REFRESH_S + 1
    x = Exchange("10.0.0.1:5", "gw", "l", 0.0)
    goes_on = lab.authenticator.admit_again(x, client)
    assert goes_on is not None
    await goes_on
    assert x.identity.namespace == "team"
    lab.clock.s += key_source.REFRESH_S + 1
    lab.issuer.keys.clear()
    lab.issuer.add("another")
    refused = lab.authenticator.admit_again(x, client)
    assert refused is not None
    with pytest.raises(GatewayError, match=UNKNOWN):
        await refused
