"""Writes that wait are asked for together, each against the version that its object has then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from egressproxy.kubeapi.read.objects import Objects
from egressproxy.kubeapi.write import write_queue
from egressproxy.kubeapi.write.write import Verb, Write, WriteRefused, Written
from egressproxy.kubeapi.write.write_queue import WriteQueue
from tests.admin.kit import Holder, State, entries


def write(name: str = "", verb: Verb = Verb.CREATE, body: bytes = b"{}") -> Write:
    return Write(verb, "", "v1", "ConfigMap", "configmaps", "default", name, body, "me")


def config_map(name: str) -> str:
    return f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}"


class Writable(State):
    """Answers when it may; `decide` says what becomes of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Holder(entries(config_map("a")))
        self.asked: list[list[Write]] = []
        self.may_answer = asyncio.Event()
        self.decide: Callable[[Write], Written | WriteRefused | None] = lambda each: Written(each.name, "", b"", True)

    async def write(self, writes: Sequence[Write]) -> Sequence[Written | WriteRefused | None]:
        self.asked.append([*writes])
        await self.may_answer.wait()
        return [self.decide(each) for each in writes]

    @property
    def names(self) -> list[list[str]]:
        return [[each.name for each in batch] for batch in self.asked]


@pytest.fixture
def state() -> Writable:
    return Writable()


@pytest.fixture
def queue(state: Writable) -> WriteQueue:
    return WriteQueue(state, Objects(state.sources))


async def asked(state: Writable, times: int) -> None:
    async with asyncio.timeout(20):
        while len(state.asked) < times:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.001)


async def test_what_comes_while_one_is_worked_out_is_asked_for_together(queue: WriteQueue, state: Writable):
    first = queue.put(write("first"))
    await asked(state, 1)
    others = [queue.put(write(name)) for name in ("b", "c", "d")]
    assert len(queue) == 4
    state.may_answer.set()
    assert [made.name for _, made in await asyncio.gather(first, *others)] == ["first", "b", "c", "d"]
    assert state.names == [["first"], ["b", "c", "d"]]
    assert len(queue) == 0


async def test_each_has_its_own_answer(queue: WriteQueue, state: Writable):
    state.decide = lambda each: (
        WriteRefused(422, "Invalid", "no") if each.name == "b" else Written(each.name, "", b"", True)
    )
    state.may_answer.set()
    found = await asyncio.gather(*(queue.put(write(name)) for name in "abc"), return_exceptions=True)
    assert [isinstance(each, WriteRefused) for each in found] == [False, True, False]


async def test_writes_to_one_object_go_one_after_the_other(queue: WriteQueue, state: Writable):
    state.may_answer.set()
    again = [queue.put(write("a", Verb.MERGE_PATCH)) for _ in range(3)]
    await asyncio.gather(*again, queue.put(write("b")), queue.put(write()), queue.put(write()))
    assert state.names == [["a", "b", "", ""], ["a"], ["a"]]


async def test_the_version_is_that_which_those_before_have_left(queue: WriteQueue, state: Writable):
    first, second = queue.put(write("a", Verb.REPLACE)), queue.put(write("a", Verb.REPLACE))
    new = queue.put(write("new", Verb.APPLY))
    await asked(state, 1)
    state.source.put([])
    state.source.put(entries(config_map("a").replace("}}", ", labels: {x: y}}}")))
    state.may_answer.set()
    versions = [(await each)[0].resource_version for each in (first, second, new)]
    assert versions[0] != versions[1]
    assert "" not in versions[:2]
    assert versions[2] == ""


async def test_one_that_has_to_wait_is_asked_for_again(queue: WriteQueue, state: Writable):
    state.decide = lambda each: Written(each.name, "", b"", True) if each.name == "a" or len(state.asked) > 1 else None
    state.may_answer.set()
    await asyncio.gather(*(queue.put(write(name)) for name in "abc"))
    assert state.names == [["a", "b", "c"], ["b", "c"]]


async def test_what_is_asked_for_together_is_bounded_in_size(
    queue: WriteQueue, state: Writable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_queue, "MAX_BYTES", 25)
    state.may_answer.set()
    await asyncio.gather(
        *(queue.put(write(name, body=b"x" * 10)) for name in "abcde"), queue.put(write("f", body=b"x" * 99))
    )
    assert state.names == [["a", "b"], ["c", "d"], ["e"], ["f"]]


async def test_a_defect_fails_those_that_were_asked_for_and_no_later_one(queue: WriteQueue, state: Writable):
    state.may_answer.set()
    state.decide = lambda each: 1 // 0  # type: ignore[return-value]
    (found,) = await asyncio.gather(queue.put(write("a")), return_exceptions=True)
    assert isinstance(found, ZeroDivisionError)
    state.decide = lambda each: Written(each.name, "", b"", True)
    assert (await queue.put(write("b")))[1].name == "b"
