"""What is idle costs little, and what is slow is not waited for in memory: on a real gateway, with wide margins."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from benchmarks.soak.clients import get
from benchmarks.trouble.crowd import Crowd, Reader, Sender, step_all
from benchmarks.trouble.measures import BODY, LARGE, PLAIN, SECURE, Settings, Stage, post, stage

HERE = Settings(1.0, 1, None)
EACH_WAY = 13
MIB = 1024


async def test_a_thousand_idle_clients_cost_less_than_20_kib_each():
    async with stage(HERE) as here:
        await here.warm_up()
        before = await here.resident_kib()
        crowd = Crowd(here.subject.forward)
        await crowd.open(1000, lambda _: [here.absolute()])
        assert (await here.subject.sample()).downstream >= 1000
        assert await here.resident_kib() - before < 1000 * 20
        crowd.close()
        await here.until_empty()


async def test_slow_readers_of_large_bodies_do_not_fill_the_memory():
    async with stage(HERE) as here:
        await here.warm_up()
        before = await here.resident_kib()
        numbers = range(4 * EACH_WAY)
        readers = await asyncio.gather(*(asyncio.to_thread(client, Reader, here, number) for number in numbers))
        broken = await step_all(readers, 3.0, 65536, 0.2)
        assert here.subject.resident_kib() - before < len(readers) * MIB
        assert broken == 0
        assert min(reader.octets for reader in readers) > 65536  # slow, and not stalled
        for reader in readers:
            reader.close()
        await here.until_empty()


async def test_bodies_for_origins_that_do_not_read_do_not_fill_the_memory():
    async with stage(HERE) as here:
        await here.warm_up()
        before = await here.resident_kib()
        numbers = range(4 * EACH_WAY)
        senders = await asyncio.gather(*(asyncio.to_thread(client, Sender, here, number) for number in numbers))
        await step_all(senders, 3.0, BODY, 0.1)
        assert here.subject.resident_kib() - before < len(senders) * MIB
        for sender in senders:
            sender.close()


C = TypeVar("C", Reader, Sender)


def client(kind: type[C], here: Stage, number: int) -> C:
    """By turns: plain, TLS to the origin, TLS with the client, a tunnel."""
    subject = here.subject
    host = SECURE if number % 4 == 1 else PLAIN
    request = get(host, f"/octets/{LARGE}") if kind is Reader else post(host, "/deaf", BODY)
    match number % 4:
        case 2:
            return kind(subject.secure, b"", (subject.client_context(), host), request)
        case 3:
            return kind(subject.forward, here.connect()[0], None, request)
        case _:
            return kind(subject.reverse, b"", None, request)
