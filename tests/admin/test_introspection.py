"""/explain, /decisions, /model, /cache and /reload at the admin address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from egressproxy.admin.introspection import MAX_AT_ONCE, VIEWS
from egressproxy.admin.server import AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange, NotKilled
from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from tests.admin.kit import State as PlainState
from tests.admin.kit import admin_server, ask, serving

MARK = "X-Egressproxy: 1\r\n"


class State(PlainState):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.under_way = self.most = 0
        self.acknowledged: list[str] = []
        self.refusal = ""
        self.purges: list[CachePurge | None] = []
        self.silent = ""
        self.shown: dict[str, object] = {}
        self.held = [(7.5, "a")]
        self.decided: list[HoldDecision | None] = []
        self.changes: list[KillChange | None] = []

    async def ask_one(self, name: str, *arguments: Any) -> bytes:
        found: bytes = await getattr(self, name)(*arguments)
        return found

    async def ask_all(self, name: str, *arguments: Any) -> Sequence[bytes]:
        found: Sequence[bytes] = await getattr(self, name)(*arguments)
        return found

    ask_some = ask_all

    async def holds(self, decision: HoldDecision | None, page: HoldPage) -> Sequence[bytes]:
        self.decided.append(decision)
        known = decision is not None and decision.id == "5e1f"
        every = [{"id": name, "leftSeconds": 2.0, "deadline": at, **self.shown} for at, name in self.held]
        of_workers = [[hold for hold in every if (hold["id"] in "bd") is is_first] for is_first in (True, False)]
        answers = []
        for mine in of_workers:
            behind = [hold for hold in mine if (hold["deadline"], hold["id"]) > page.after]
            shown, left = behind[: page.limit], len(behind[page.limit :])
            answers.append({"holds": shown, "waiting": len(mine), "behind": left, "decided": int(known)})
            known = False
        return [json.dumps(each).encode() for each in answers]

    async def kill_switch(self, change: KillChange | None) -> bytes:
        if self.silent:
            raise NotAnswered(self.silent)
        if change is not None and change.name == "one too many":
            raise ValueError("restore some")
        if change is not None and change.name == "bob" and not change.kills:
            raise NotKilled("nobody is out of service under the name bob")
        if change is not None and change.name == "full":
            raise OSError("it was not written: the disk is full")
        self.changes.append(change)
        return b'{"killed": [], "cut": 3}'

    async def caches(self, purge: CachePurge | None) -> Sequence[bytes]:
        if self.silent:
            raise NotAnswered(self.silent)
        self.purges.append(purge)
        known = {"filter": "cache", "from": "EgressPolicy a/p", "entries": 2, "bytes": 30, "hits": 4, "purged": 1}
        return [json.dumps([known]).encode(), json.dumps([known, {**known, "from": "Backend a/b"}]).encode()]

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        if not pairs:
            raise NotAnswered("url is missing")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        return json.dumps(pairs).encode()

    async def look_up(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        return await self.explain(pairs)

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
    for path in ("/explain?url=x", "/decisions", "/model", "/cache", "/kill-switch", "/live", *VIEWS):
        assert (await ask(made, path)).status == 404
    for path in ("/reload", "/cache/purge?all=1", "/kill-switch?kill=a"):
        assert (await ask(made, path, "POST", extra=MARK)).status == 405
    await made.stop()
    assert state.purges == []


async def test_caches_are_shown_and_purged_over_all_workers(admin: AdminServer, state: State):
    told = (await ask(admin, "/cache")).json()
    assert [each["from"] for each in told["caches"]] == ["Backend a/b", "EgressPolicy a/p"]
    assert [each["entries"] for each in told["caches"]] == [2, 4]
    assert (told["entries"], told["bytes"], told["hits"], told["purged"]) == (6, 90, 12, 3)
    assert state.purges == [None]
    assert (await ask(admin, "/cache/purge?route=a/r&path=/v1&identity=a/me", "POST", extra=MARK)).json() == told
    assert (await ask(admin, "/cache/purge?all=1", "POST", extra=MARK)).status == 200
    assert state.purges[1:] == [CachePurge("a/r", "/v1", "a/me"), CachePurge()]
    assert (await ask(admin, "/cache/purge?all=1")).status == 404  # GET purges nothing
    assert len(state.purges) == 3
    state.silent = "worker 2 did not answer"
    answer = await ask(admin, "/cache/purge?all=1", "POST", extra=MARK)
    assert (answer.status, answer.json()["message"]) == (503, "not all workers have answered: worker 2 did not answer")


@pytest.mark.parametrize(
    "query",
    ["", "?", "?all=0", "?all=1&path=/", "?all=1&all=1", "?route=", "?route=a", "?identity=a/b/c", "?path=v1", "?x=1"],
)
async def test_a_purge_says_which_answers(admin: AdminServer, state: State, query: str):
    assert (await ask(admin, f"/cache/purge{query}", "POST", extra=MARK)).status == 400
    assert state.purges == []


async def test_holds_are_shown_and_decided(admin: AdminServer, state: State):
    assert (await ask(admin, "/holds")).json() == {
        "holds": [{"id": "a", "leftSeconds": 2.0}], "waiting": 1, "continue": "", "decided": 0,
    }  # fmt: skip
    assert (await ask(admin, "/holds?approve=5e1f&by=alice", "POST", extra=MARK)).json()["decided"] == 1
    assert (await ask(admin, "/holds?deny=other", "POST", extra=MARK)).status == 404
    assert (await ask(admin, "/holds", "POST", extra=MARK)).status == 400
    assert state.decided[:2] == [None, HoldDecision("5e1f", approves=True, by="alice")]


async def test_holds_are_shown_page_by_page_those_first_that_are_denied_first(admin: AdminServer, state: State):
    state.held = [(1.5, "c"), (1.5, "d"), (2.25, "a"), (3.0, "b"), (3.0, "e")]
    pages, following = [], ""
    while True:
        page = (await ask(admin, f"/holds?limit=2{following and '&continue='}{following}")).json()
        assert page["waiting"] == 5
        pages.append("".join(hold["id"] for hold in page["holds"]))
        following = page["continue"]
        if not following:
            break
    assert pages == ["cd", "ab", "e"]
    for wrong in ("limit=0", "limit=501", "limit=x", "limit=-1", "limit=1&limit=2", "continue=x-y", "id=a"):
        assert (await ask(admin, f"/holds?{wrong}")).status == 400


async def test_what_is_in_a_request_is_shown_to_those_who_may_decide(
    admin: AdminServer, state: State, tmp_path: Path
):  # fmt: skip
    content = {"query": "a=1", "calls": [], "body": "b", "isCut": False}
    state.shown = {"path": "/pay", **content}
    assert (await ask(admin, "/holds")).json()["holds"][0]["body"] == "b"
    file = tmp_path / "token"
    file.write_text("0123456789abcdef")
    async with serving(admin_server(state, access=WriteAccess(file))) as guarded:
        assert (await ask(guarded, "/holds")).json()["holds"] == [{"id": "a", "leftSeconds": 2.0, "path": "/pay"}]
        told = await ask(guarded, "/holds", extra="Authorization: Bearer 0123456789abcdef\r\n")
        assert told.json()["holds"][0]["body"] == "b"


async def test_identities_are_killed_and_restored(admin: AdminServer, state: State):
    assert (await ask(admin, "/kill-switch")).json() == {"killed": [], "cut": 3}
    assert (await ask(admin, "/kill-switch?kill=alice&why=x", "POST", extra=MARK)).status == 200
    assert (await ask(admin, "/kill-switch?restore=alice", "POST", extra=MARK)).status == 200
    assert state.changes == [None, KillChange("alice", kills=True, why="x"), KillChange("alice", kills=False)]
    for query in ("", "?kill=", "?kill=a&restore=a", "?kill=one%20too%20many"):
        assert (await ask(admin, f"/kill-switch{query}", "POST", extra=MARK)).status == 400
    missing = await ask(admin, "/kill-switch?restore=bob", "POST", extra=MARK)
    assert (missing.status, missing.json()["message"]) == (404, "nobody is out of service under the name bob")
    unkept = await ask(admin, "/kill-switch?kill=full", "POST", extra=MARK)
    assert (unkept.status, unkept.json()["message"]) == (500, "it was not written: the disk is full")
    state.silent = "worker 2 did not answer"
    assert (await ask(admin, "/kill-switch?kill=alice", "POST", extra=MARK)).status == 503
    assert len(state.changes) == 3


@pytest.mark.parametrize("extra", ["", MARK + "Origin: http://evil.example\r\n", MARK + "Via: 1.1 front\r\n"])
@pytest.mark.parametrize("path", ["/cache/purge?all=1", "/holds?approve=5e1f", "/kill-switch?kill=a"])
async def test_who_may_not_write_changes_nothing(admin: AdminServer, state: State, path: str, extra: str):
    assert (await ask(admin, path, "POST", extra=extra)).status == 403
    assert (await ask(admin, path, "POST", host="evil.example", extra=MARK)).status == 403
    network = admin_server(state, "0.0.0.0", 0)
    await network.start()
    network.host = "127.0.0.1"
    assert (await ask(network, path, "POST", extra=MARK)).status == 403
    await network.stop()
    assert (state.purges, state.decided, state.changes) == ([], [], [])


@pytest.mark.parametrize("path", ["/holds", "/model", "/decisions"])
async def test_json_ends_with_its_line(path: str, admin: AdminServer):
    assert (await ask(admin, path)).body.endswith(b"}\n")
