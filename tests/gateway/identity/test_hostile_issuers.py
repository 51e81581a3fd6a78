"""Issuers that stall, say nothing, say too much, or something else than before: whom their tokens make known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.errors import Reason
from egressproxy.filters.calls import CallAnswer, CallFailed
from egressproxy.gateway.identity import key_source
from egressproxy.identity.key_sets import MAX_KEY_SET_BYTES, MAX_KEYS
from egressproxy.model.fields import Fields
from tests.gateway.identity.test_key_source import NO_KEYS, UNKNOWN, Client, Lab
from tests.support.tokens import TokenIssuer

FAR = {"exp": 4_000_000_000}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def answers(body: object, status: int = 200, fields: bytes = b"") -> Callable[[], CallAnswer]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda: CallAnswer(status, Fields(fields), text)


def fails() -> CallAnswer:
    raise CallFailed(Reason.RESPONSE_TIMEOUT, "backend identity/login.test did not answer within 5 s")


class Stalls:
    """Answers when it is told to."""

    def __init__(self, lab: Lab) -> None:
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self._request, self._call = lab.call.request, lab.call
        lab.call.request = self.request  # type: ignore[method-assign]

    async def request(self, *arguments: Any, **more: Any) -> CallAnswer:
        self._call.asked += 1
        self.is_asked.set()
        await self.goes_on.wait()
        self._call.asked -= 1
        return await self._request(*arguments, **more)


# --- nothing, too much, something else -------------------------------------------------------------------------------
BROKEN = [
    answers(b""),
    answers(b"[]"),
    answers({"keys": "all"}),
    answers({"keys": [1]}),
    answers(b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    answers(b'{"keys": [{"kty": ' + b"1" * 10_000 + b"}]}"),
    answers({"keys": [{"kty": "RSA", "n": "A" * 100_000, "e": "AQAB"}]}),
    answers({"keys": [{"kty": "EC", "crv": "P-256", "x": "A" * 43, "y": "B" * 43}]}),
    answers({"keys": [{"kty": ["RSA"]}] * (MAX_KEYS + 1)}),
    answers(b'{"keys": []' + b" " * MAX_KEY_SET_BYTES + b"}"),
    answers({"keys": []}, 302, b"\r\nLocation: https://other.example/keys"),
    answers({"keys": []}, 304),
    answers({"keys": []}, 500),
    fails,
]


@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
async def test_keys_from_before_hold_where_the_answer_cannot_be_used(lab: Lab, answer: Callable[[], CallAnswer]):
    assert await lab.admits(lab.issuer.token()) == "team"
    lab.call.answer = answer
    lab.clock.s += key_source.REFRESH_S + 1
    assert await lab.admits(lab.issuer.token(**FAR)) == "team"
    assert await lab.admits(lab.issuer.token(head={"kid": "new"})) == UNKNOWN
    assert lab.call.asked == 2
    assert await lab.admits(lab.issuer.token(**FAR, jti="2")) == "team"


@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
async def test_without_keys_from_before_nobody_is_known(lab: Lab, answer: Callable[[], CallAnswer]):
    lab.call.answer = answer
    for number in range(3):
        assert await lab.admits(lab.issuer.token(jti=str(number))) == NO_KEYS
    assert lab.call.asked == 1, "it is not asked for each of them"


@pytest.mark.parametrize(
    "keys", [[], [{"kty": "AKP", "alg": "ML-DSA-65", "pub": "AA"}], [{"kty": "EC", "crv": "P-256", "use": "enc"}]]
)
async def test_a_set_without_a_key_withdraws_all_of_them(lab: Lab, keys: list[Any]):
    token, client = lab.issuer.token(**FAR), Client()
    assert await lab.admits(token, client) == "team"
    lab.call.answer = answers({"keys": keys})
    lab.clock.s += key_source.REFRESH_S + 1
    await lab.admits(lab.issuer.token(jti="asks for the keys"))
    assert await lab.admits(token, client) == NO_KEYS
    lab.call.answer = answers(lab.issuer.jwks().encode())
    lab.clock.s += key_source.PAUSE_S
    assert await lab.admits(token, client) == "team", "they are back"


async def test_an_error_of_the_library_is_no_error_of_the_client(lab: Lab, caplog: pytest.LogCaptureFixture):
    (source,) = lab.authenticator._credentials._sources.values()

    def breaks(_: bytes) -> Any:
        raise RuntimeError("what a key says")

    source._read = breaks
    assert await lab.admits(lab.issuer.token()) == NO_KEYS
    assert "cannot be fetched: RuntimeError" in caplog.text
    assert "what a key says" not in caplog.text


@pytest.mark.parametrize("said", [{"alg": "ES384"}, {"alg": "none"}, {"use": "enc"}, {"key_ops": ["sign"]}, {"alg": 1}])
async def test_a_key_that_is_for_something_else_verifies_nothing(lab: Lab, said: dict[str, Any]):
    other = TokenIssuer(kid="other").jwk("other")
    lab.call.answer = answers({"keys": [{**lab.issuer.jwk("one"), **said}, other]})
    assert await lab.admits(lab.issuer.token()) == UNKNOWN


async def test_a_key_of_the_same_name_takes_the_place_of_the_one_before(lab: Lab):
    old, client = lab.issuer.token(**FAR), Client()
    assert await lab.admits(old, client) == "team"
    lab.issuer.add("one")
    lab.clock.s += key_source.REFRESH_S + 1
    await lab.admits(lab.issuer.token(jti="asks for the keys"))
    assert await lab.admits(old, client) == "the signature of the token is wrong"
    assert await lab.admits(lab.issuer.token(jti="2")) == "team"


# --- stalls and floods -----------------------------------------------------------------------------------------------
async def test_who_is_known_does_not_wait_for_an_issuer_that_stalls(lab: Lab):
    assert await lab.admits(lab.issuer.token()) == "team"
    stalls = Stalls(lab)
    lab.clock.s += key_source.REFRESH_S + 1
    async with asyncio.timeout(30):
        assert await lab.admits(lab.issuer.token(jti="2")) == "team"
    stalls.goes_on.set()


async def test_all_who_wait_are_served_by_one_fetch_and_one_that_leaves_takes_it_from_nobody(lab: Lab):
    stalls = Stalls(lab)
    waiting = [asyncio.create_task(lab.admits(lab.issuer.token(jti=str(each)))) for each in range(10)]
    await stalls.is_asked.wait()
    waiting[0].cancel()
    await asyncio.sleep(0)
    stalls.goes_on.set()
    assert await asyncio.gather(*waiting[1:]) == ["team"] * 9
    assert lab.call.asked == 1


async def test_a_flood_of_names_of_keys_asks_once_in_a_while(lab: Lab):
    await lab.admits(lab.issuer.token())
    for _ in range(3):
        lab.clock.s += key_source.PAUSE_S
        for number in range(50):
            assert await lab.admits(lab.issuer.token(head={"kid": f"k{number}"})) == UNKNOWN
    assert lab.call.asked == 4
    assert await lab.admits(lab.issuer.token(jti="2")) == "team"


async def test_a_rotation_whose_fetch_fails_is_found_with_the_next(lab: Lab):
    assert await lab.admits(lab.issuer.token()) == "team"
    lab.issuer.add("two")
    good, lab.call.answer = lab.call.answer, fails
    lab.clock.s += key_source.PAUSE_S
    new = lab.issuer.token(kid="two")
    assert await lab.admits(new) == UNKNOWN
    lab.call.answer = good
    assert await lab.admits(new) == UNKNOWN, "it was asked a moment ago"
    lab.clock.s += key_source.PAUSE_S
    assert await lab.admits(new) == "team"
    assert await lab.admits(lab.issuer.token(jti="2")) == "team", "the old one is still there"


async def test_a_fetch_that_fails_does_not_make_old_keys_younger(lab: Lab):
    assert await lab.admits(lab.issuer.token()) == "team"
    lab.call.answer = fails
    for _ in range(3):
        lab.clock.s += key_source.MAX_AGE_S / 3 + 1
        last = await lab.admits(lab.issuer.token(**FAR))
    assert last == NO_KEYS


async def test_keys_that_grow_too_old_while_one_is_checked_take_nothing_from_what_is_asked_next(lab: Lab):
    """The epoch is that behind `touch`: what is concluded now holds for a tunnel that is opened with it."""
    client = Client()
    await lab.admits(lab.issuer.token())
    lab.clock.s += key_source.MAX_AGE_S + 1
    assert await lab.admits(lab.issuer.token(**FAR), client) == "team"
    assert client.verdict is not None
    assert client.verdict.epoch.rules is lab.authenticator._credentials.rules
