"""Writes that wait for their turn: all that wait are asked for together, and each has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from egressproxy.kubeapi.read.objects import Objects, View
from egressproxy.kubeapi.service import ApiService
from egressproxy.kubeapi.write.write import Write, Written
from egressproxy.model.published_object import Key

#: Of the bodies that are asked for together.
MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    write: Write
    answer: asyncio.Future[tuple[Write, Written]]


class WriteQueue:
    """Belongs to the event loop. A write is measured against the version that those before it have left."""

    def __init__(self, service: ApiService, objects: Objects) -> None:
        self._service = service
        self._objects = objects
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, write: Write) -> asyncio.Future[tuple[Write, Written]]:
        """It is worked out even if nobody waits for the answer: the write and what became of it, or WriteRefused."""
        answer: asyncio.Future[tuple[Write, Written]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._waiting.append(_Waiting(write, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = _together(self._waiting)
                found: Sequence[tuple[Write, Written] | Exception | None]
                try:
                    view = await self._objects.view()
                    writes = [_at_version(each.write, view) for each in batch]
                    found = [
                        (write, result) if isinstance(result, Written) else result
                        for write, result in zip(writes, await self._service.write(writes), strict=True)
                    ]
                except Exception as error:
                    found = [error] * len(batch)
                self._answer(batch, found)
        finally:
            self._task = None

    def _answer(self, batch: Sequence[_Waiting], found: Sequence[tuple[Write, Written] | Exception | None]) -> None:
        for each, result in zip(batch, found, strict=True):
            if result is None:
                continue  # it waits on
            self._waiting.remove(each)
            if each.answer.done():
                continue  # the admin server has ended
            if isinstance(result, Exception):
                each.answer.set_exception(result)
            else:
                each.answer.set_result(result)


def _together(waiting: Sequence[_Waiting]) -> list[_Waiting]:
    """The first, and all others up to MAX_BYTES that are not for an object that one before them is for."""
    batch: list[_Waiting] = []
    named: set[Key] = set()
    size = 0
    for each in waiting:
        size += len(each.write.body)
        if batch and size > MAX_BYTES:
            break
        if each.write.name and each.write.key in named:
            continue
        named.add(each.write.key)
        batch.append(each)
    return batch


def _at_version(write: Write, view: View) -> Write:
    version = view.version_at(write.key)
    return replace(write, resource_version="" if version is None else str(version))


def _seen(answer: asyncio.Future[tuple[Write, Written]]) -> None:
    if not answer.cancelled():
        answer.exception()  # who asked was told, or has left
