"""/explain, /decisions, /model and /reload at the admin address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from egressproxy.admin.introspection import MAX_AT_ONCE
from egressproxy.admin.server import AdminServer, Surface
from egressproxy.errors import NotAnswered
from tests.admin.kit import admin_server
from tests.admin.test_server import State as PlainState
from tests.admin.test_server import ask

MARK = "X-Egressproxy: 1\r\n"


class State(PlainState):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.under_way = self.most = 0
        self.acknowledged: list[str] = []
        self.refusal = ""

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        if not pairs:
            raise NotAnswered("url is missing")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        return json.dumps(pairs).encode()

    async def decisions(self) -> Sequence[bytes]:
        return [json.dumps([{"time": time} for time in times]).encode() for times in ((5, 3, 1), (4, 2))]

    async def model(self) -> bytes:
        return b'{"model": {}}'

    async def reload(self, acknowledged: str) -> str:
        self.acknowledged.append(acknowledged)
        return self.refusal


@pytest.fixture
async def state() -> State:
    return State()


@pytest.fixture
async def admin(state: State) -> AsyncIterator[AdminServer]:
    made = admin_server(state, "127.0.0.1", 0)
    await made.start()
    yield made
    await made.stop()


async def test_a_question_is_passed_on_with_every_header(admin: AdminServer):
    answer = await ask(admin, "/explain?method=GET&url=http%3A%2F%2Fa%2F%3Fb%3Dc&header=A:%201&header=B:%202")
    assert answer.fields["content-type"] == "application/json"
    assert answer.json() == [["method", "GET"], ["url", "http://a/?b=c"], ["header", "A: 1"], ["header", "B: 2"]]


async def test_what_cannot_be_asked_is_a_status_object(admin: AdminServer):
    answer = await ask(admin, "/explain")
    assert answer.status == 400
    assert (answer.json()["kind"], answer.json()["message"]) == ("Status", "url is missing")


async def test_questions_under_way_are_bounded(admin: AdminServer, state: State):
    state.go.clear()
    asked = [asyncio.create_task(ask(admin, "/explain?url=x")) for _ in range(MAX_AT_ONCE + 2)]
    while state.under_way < MAX_AT_ONCE:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)
    state.go.set()
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * len(asked)
    assert state.most == MAX_AT_ONCE


async def test_decisions_of_all_workers_come_latest_first_and_as_many_as_one_keeps(admin: AdminServer):
    answer = await ask(admin, "/decisions")
    assert [each["time"] for each in answer.json()["decisions"]] == [5, 4, 3]


async def test_the_model_is_passed_on(admin: AdminServer):
    assert (await ask(admin, "/model")).json() == {"model": {}}


async def test_a_reload_is_asked_for_with_what_is_acknowledged(admin: AdminServer, state: State):
    assert (await ask(admin, "/reload?acknowledge=abc", "POST", extra=MARK)).json() == {"reloaded": True}
    state.refusal = "it would allow"
    answer = await ask(admin, "/reload", "POST", extra=MARK)
    assert (answer.status, answer.json()["message"]) == (409, "it would allow")
    assert state.acknowledged == ["abc", ""]


@pytest.mark.parametrize("extra", ["", MARK + "Origin: http://evil.example\r\n"])
async def test_a_web_page_reloads_nothing(admin: AdminServer, state: State, extra: str):
    assert (await ask(admin, "/reload", "POST", extra=extra)).status == 403
    assert (await ask(admin, "/reload", "POST", host="evil.example", extra=MARK)).status == 403
    assert state.acknowledged == []


async def test_an_address_of_the_network_reloads_nothing(state: State):
    made = admin_server(state, "0.0.0.0", 0)
    await made.start()
    made.host = "127.0.0.1"
    assert (await ask(made, "/reload", "POST", extra=MARK)).status == 403
    await made.stop()
    assert state.acknowledged == []


async def test_an_address_for_scrapers_answers_none_of_it(state: State):
    made = admin_server(state, "127.0.0.1", 0, Surface.METRICS)
    await made.start()
    for path in ("/explain?url=x", "/decisions", "/model"):
        assert (await ask(made, path)).status == 404
    assert (await ask(made, "/reload", "POST", extra=MARK)).status == 405
    await made.stop()
