"""What a worker may ask of all workers. (Real workers: tests/e2e/processes/test_supervisor.py.)"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from egressproxy.model.admin_requests import MAX_PAGE, HoldDecision, HoldPage
from egressproxy.processes.workers.messages import Answered, Question
from egressproxy.processes.workers.supervisor import Supervisor
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.metrics import Metrics


class Stub:
    """A worker's handle: what it was asked and told."""

    def __init__(self) -> None:
        self.number = 1
        self.asked: list[Question] = []
        self.told: list[object] = []

    async def answer(self, question: Question) -> bytes:
        self.asked.append(question)
        return b"[]"

    def tell(self, message: object) -> None:
        self.told.append(message)


async def asked_by_a_worker(question: Question, monkeypatch: pytest.MonkeyPatch) -> Stub:
    supervisor = Supervisor(RunOptions(workers=2, access_log="off"), Metrics("1"))
    stub = Stub()
    monkeypatch.setattr(supervisor, "_serving", lambda: [stub])
    supervisor._asked_by(cast(Any, stub), 7, question)
    await asyncio.gather(*supervisor._answers)
    return stub


async def test_a_worker_may_ask_what_waits_of_one_client(monkeypatch: pytest.MonkeyPatch):
    stub = await asked_by_a_worker(Question("holds", (None, HoldPage(identity="agents/a"))), monkeypatch)
    assert stub.asked == [Question("holds", (None, HoldPage(MAX_PAGE, identity="agents/a")))]
    assert stub.told == [Answered(7, (b"[]",))]


@pytest.mark.parametrize(
    "question",
    [
        Question("set_killed", ((), 99)),
        Question("kill", ((), 99)),
        Question("holds", (HoldDecision("1-a", True), HoldPage())),
        Question("caches", (None,)),
        Question("decisions"),
        Question("holds"),
    ],
)
async def test_a_worker_may_ask_nothing_else(question: Question, monkeypatch: pytest.MonkeyPatch):
    stub = await asked_by_a_worker(question, monkeypatch)
    assert (stub.asked, stub.told) == ([], [])
