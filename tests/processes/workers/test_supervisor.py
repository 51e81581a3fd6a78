"""What a worker may ask of all workers. (Real workers: tests/e2e/processes/test_supervisor.py.)"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from egressproxy.errors import NotAnswered
from egressproxy.model.admin_requests import MAX_PAGE, HoldDecision, HoldPage
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, RouteChanges
from egressproxy.processes.workers.messages import Query, Reply
from egressproxy.processes.workers.supervisor import Supervisor
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.metrics import Metrics


class Stub:
    """A worker's handle: what it was asked and told."""

    def __init__(self, answer: object = b"[]", *, is_gone: bool = False) -> None:
        self.number = 1
        self.is_gone = is_gone
        self.reply = answer
        self.built: Configuration | None = None
        self.done: list[str] = []
        self.asked: list[Query] = []
        self.told: list[object] = []

    async def answer(self, question: Query) -> Any:
        self.asked.append(question)
        self.done.append(question.name)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def build(self, configuration: Configuration) -> None:
        self.built = configuration
        self.done.append("build")

    async def swap(self, _configuration: Configuration, _sockets: object) -> None:
        self.done.append("swap")

    def tell(self, message: object) -> None:
        self.told.append(message)


async def asked_by_a_worker(question: Query, monkeypatch: pytest.MonkeyPatch) -> Stub:
    supervisor = Supervisor(RunOptions(workers=2, access_log="off"), Metrics("1"))
    stub = Stub()
    monkeypatch.setattr(supervisor, "_serving", lambda: [stub])
    supervisor._asked_by(cast(Any, stub), 7, question)
    await asyncio.gather(*supervisor._answers)
    return stub


async def test_a_worker_may_ask_what_waits_of_one_client(monkeypatch: pytest.MonkeyPatch):
    stub = await asked_by_a_worker(Query("holds", (None, HoldPage(identity="agents/a"))), monkeypatch)
    assert stub.asked == [Query("holds", (None, HoldPage(MAX_PAGE, identity="agents/a")))]
    assert stub.told == [Reply(7, (b"[]",))]


@pytest.mark.parametrize(
    "question",
    [
        Query("set_killed", ((), 99)),
        Query("kill", ((), 99)),
        Query("holds", (HoldDecision("1-a", True), HoldPage())),
        Query("caches", (None,)),
        Query("decisions"),
        Query("holds"),
    ],
)
async def test_a_worker_may_ask_nothing_else(question: Query, monkeypatch: pytest.MonkeyPatch):
    stub = await asked_by_a_worker(question, monkeypatch)
    assert (stub.asked, stub.told) == ([], [])


ROUTES = RouteChanges(b"", ("agents/r",), 1)


@pytest.mark.parametrize(
    ("stub", "is_done"),
    [
        (Stub(1), True),
        (Stub(0), False),
        (Stub(NotAnswered("internal error"), is_gone=False), False),
        (Stub(NotAnswered("it ended"), is_gone=True), True),
    ],
)
async def test_routes_are_those_that_all_workers_took(stub: Stub, is_done: bool, monkeypatch: pytest.MonkeyPatch):
    supervisor = Supervisor(RunOptions(workers=2, access_log="off"), Metrics("1"))
    supervisor._routes = before = RouteChanges(b"", (), 1)
    monkeypatch.setattr(supervisor, "_serving", lambda: [Stub(1), stub])
    assert await supervisor.update_routes(ROUTES) is is_done
    assert supervisor._routes is (ROUTES if is_done else before)


async def test_a_fresh_worker_has_changed_routes_before_it_serves():
    supervisor = Supervisor(RunOptions(workers=2, access_log="off"), Metrics("1"))
    supervisor._current, supervisor._routes = Configuration(b"", {}, 1), ROUTES
    stub = Stub(1)
    await supervisor._bring_up(cast(Any, stub))
    assert stub.done == ["build", "update_routes", "swap"]
    assert stub.asked == [Query("update_routes", (ROUTES,))]
    with pytest.raises(ConfigRefused, match="has not taken the routes"):
        await supervisor._bring_up(cast(Any, Stub(0)))
