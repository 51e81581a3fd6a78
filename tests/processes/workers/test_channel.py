"""Frames and descriptors over a pair of sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from egressproxy.processes.workers.channel import FrameChannel
from tests.support.waiting import WAIT_S


class End:
    """One end, and what came."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: asyncio.Queue[tuple[bytes, list[int]]] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.channel = FrameChannel(sock, lambda octets, found: self.frames.put_nowait((octets, found)), self.ended.set)

    async def next(self) -> tuple[bytes, list[int]]:
        return await asyncio.wait_for(self.frames.get(), WAIT_S)


def ends() -> tuple[End, End]:
    first, second = socket.socketpair()
    return End(first), End(second)


async def test_frames_come_whole_and_in_order_whatever_their_size():
    here, there = ends()
    sent = [b"", b"a", os.urandom(5_000_000), b"b" * 300_000, b"c"]
    for octets in sent:
        here.channel.send(octets)
    assert [(await there.next())[0] for _ in sent] == sent
    there.channel.send(b"back")
    assert await here.next() == (b"back", [])
    here.channel.close()
    there.channel.close()


async def test_descriptors_come_with_their_frame_and_may_be_closed_by_the_sender():
    here, there = ends()
    reading, writing = os.pipe()
    here.channel.send(b"x" * 1_000_000)  # the other end does not read yet: the rest waits
    for number in range(40):
        here.channel.send(b"%d" % number, [writing] if number % 2 else [])
    os.close(writing)
    await there.next()
    for number in range(40):
        octets, found = await there.next()
        assert octets == b"%d" % number
        assert len(found) == number % 2
        for descriptor in found:
            assert not os.get_inheritable(descriptor)
            os.write(descriptor, b".")
            os.close(descriptor)
    assert os.read(reading, 100) == b"." * 20
    assert os.read(reading, 1) == b"", "every copy is closed"
    os.close(reading)
    here.channel.close()
    there.channel.close()


async def test_what_was_sent_before_the_end_is_read_first():
    here, there = ends()
    here.channel.send(b"last words")
    here.channel.close()
    assert await there.next() == (b"last words", [])
    await asyncio.wait_for(there.ended.wait(), WAIT_S)
    assert there.channel.has_ended
    assert not here.ended.is_set(), "who closes it knows"
    there.channel.send(b"into the void")


async def test_a_frame_that_promises_descriptors_and_has_none_ends_the_channel():
    raw, sock = socket.socketpair()
    there = End(sock)
    raw.sendall(struct.pack("!IB", 1, 1) + b"x")
    await asyncio.wait_for(there.ended.wait(), WAIT_S)
    assert there.frames.empty()
    raw.close()


async def test_a_frame_that_cannot_be_understood_ends_the_channel_and_is_read_once():
    first, second = socket.socketpair()
    read: list[bytes] = []
    ended = asyncio.Event()

    def on_frame(octets: bytes, _found: list[int]) -> None:
        read.append(octets)
        if octets == b"bad":
            raise ValueError

    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context.get("exception")))
    channel = FrameChannel(first, on_frame, ended.set)
    other = End(second)
    for octets in (b"good", b"bad", b"later"):
        other.channel.send(octets)
    await asyncio.wait_for(ended.wait(), WAIT_S)
    assert read == [b"good", b"bad"]
    assert channel.has_ended
    assert [type(error) for error in errors] == [ValueError]
    other.channel.close()
