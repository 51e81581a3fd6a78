"""What is idle costs little, and what is slow is not waited for in memory: on a real gateway, with wide margins."""

from __future__ import annotations

import asyncio

from benchmarks.soak.clients import get
from benchmarks.trouble.crowd import Crowd, Reader, read_slowly
from benchmarks.trouble.measures import LARGE, PLAIN, SECURE, Settings, Stage, stage

HERE = Settings(1.0, 1, None)
READERS = 13  # by each of four ways
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
        readers = await asyncio.gather(*(asyncio.to_thread(reader, here, number) for number in range(4 * READERS)))
        broken = await read_slowly(list(readers), 3.0, 65536, 0.2)
        assert here.subject.resident_kib() - before < 4 * READERS * MIB
        assert broken == 0
        assert min(reader.octets for reader in readers) > 65536  # slow, and not stalled
        for each in readers:
            each.close()
        await here.until_empty()


def reader(here: Stage, number: int) -> Reader:
    """By turns: plain, TLS to the origin, TLS with the client, a tunnel."""
    subject = here.subject
    plain, secure = get(PLAIN, f"/octets/{LARGE}"), get(SECURE, f"/octets/{LARGE}")
    match number % 4:
        case 0:
            return Reader(subject.reverse, b"", plain, None)
        case 1:
            return Reader(subject.reverse, b"", secure, None)
        case 2:
            return Reader(subject.secure, b"", plain, (subject.client_context(), PLAIN))
        case _:
            return Reader(subject.forward, here.connect()[0], plain, None)
