"""What the process that asks the API server says to the gateway."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

from egressproxy.ir.backend import EndpointAddress
from egressproxy.kubernetes import messages
from egressproxy.kubernetes.process import _SourceProcess
from egressproxy.processes.workers.channel import FrameChannel
from tests.support.waiting import until

ADDRESSES = {("team/web", 80): (EndpointAddress(ip_address("10.0.0.1"), 8080),)}


class Source:
    client = None

    def __init__(self) -> None:
        self.found = dict(ADDRESSES)

        self.problem = "not yet"
        self.changed = asyncio.Event()

    def want(self, _keys: object, *, and_others: bool) -> None: ...
    def why_not_ready(self) -> str:
        return self.problem

    async def wait(self) -> None:
        await self.changed.wait()

    def take(self) -> bytes:
        return b""

    def relevant(self) -> list[Any]:
        return []

    def resource_versions(self) -> dict[str, str]:
        return {}

    def problems(self) -> list[str]:
        return []

    def every_endpoint(self) -> dict[Any, Any]:
        return self.found


async def test_addresses_among_objects_that_are_rejected_are_told_without_them():
    ours, theirs = socket.socketpair()
    told: list[Any] = []
    channel = FrameChannel(ours, lambda frame, _: told.append(messages.decode(frame)), lambda: None)
    process = _SourceProcess(theirs)
    process._source = source = Source()
    process._given = []
    rejected = messages.encode(messages.InService(b"", "it cannot be used", "Invalid"))
    for _ in range(3):  # the same is told once: a reload may follow each of them
        process._on_frame(rejected, [])
    source.found = {}
    process._on_frame(rejected, [])
    source.found = dict.fromkeys(ADDRESSES, ())
    process._on_frame(rejected, [])
    await until(lambda: len(told) == 2)
    assert told == [messages.Endpoints(ADDRESSES), messages.Endpoints(source.found)]
    channel.close()
    process._channel.close()


async def test_of_what_is_asked_for_only_the_last_is_answered():
    ours, theirs = socket.socketpair()
    told: list[Any] = []
    channel = FrameChannel(ours, lambda frame, _: told.append(messages.decode(frame)), lambda: None)
    process = _SourceProcess(theirs)
    process._source = source = Source()
    for number in range(5):
        process._on_frame(messages.encode(messages.Ask(number, (), False)), [])
        await asyncio.sleep(0)
    source.problem = ""
    source.changed.set()
    await until(lambda: bool(told))
    await asyncio.sleep(0.05)
    assert [each.number for each in told] == [4]
    channel.close()
    process._channel.close()
