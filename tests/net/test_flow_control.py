"""Back-pressure, framing of bodies, and connections that are broken off."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from egressproxy.net.flow_control import COPY_LIMIT, HIGH_WATER, FlowControl, reset
from egressproxy.net.loop import new_loop
from tests.support.waiting import WAIT_S


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.calls: list[str] = []
        self.closing = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == HIGH_WATER

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def writelines(self, pieces: Any) -> None:
        self.written += b"".join(pieces)

    def get_extra_info(self, name: str) -> Any:
        return ("::1", 80, 0, 0) if name == "peername" else None


def flow() -> tuple[FlowControl, Transport]:
    made, transport = FlowControl(), Transport()
    made.connection_made(cast(asyncio.Transport, transport))
    return made, transport


def test_a_full_buffer_pauses_the_feeder_until_it_has_drained():
    one, _ = flow()
    two, transport = flow()
    one.feed_from(two)
    one.pause_writing()
    one.pause_writing()
    assert transport.calls == ["pause"]
    one.resume_writing()
    assert transport.calls == ["pause", "resume"]


def test_a_feeder_that_comes_while_the_buffer_is_full_is_paused_at_once():
    one, _ = flow()
    two, transport = flow()
    one.pause_writing()
    one.feed_from(two)
    assert transport.calls == ["pause"]


def test_a_closing_transport_is_left_alone():
    one, transport = flow()
    one.pause_reading()
    transport.closing = True
    one.resume_reading()
    one.pause_reading()
    assert transport.calls == ["pause"]


@pytest.mark.parametrize("size", [1, COPY_LIMIT, COPY_LIMIT + 1, 100_000])
async def test_chunks_are_framed_and_counted_whatever_their_size(size: int):
    one, transport = flow()
    one.sends_chunked = True
    one.send_body(b"x" * size)
    one.end_body(b"\r\nX-T: 1")
    one.flush()
    assert transport.written == b"%x\r\n" % size + b"x" * size + b"\r\n0\r\nX-T: 1\r\n\r\n"
    assert one.bytes_out == len(transport.written)


async def test_a_body_of_known_length_has_no_frame():
    one, transport = flow()
    one.send_body(b"abc")
    one.end_body(b"")
    one.flush()
    assert transport.written == b"abc"


async def test_what_is_sent_in_one_turn_goes_out_in_one_write_at_its_end():
    one, transport = flow()
    one.send(b"head")
    one.send_body(b"body")
    assert transport.written == b""
    await asyncio.sleep(0)
    assert (transport.written, transport.writes) == (b"headbody", 1)


async def test_more_than_a_little_goes_out_at_once_so_that_back_pressure_is_felt():
    one, transport = flow()
    one.send(b"x" * (COPY_LIMIT + 1))
    assert len(transport.written) == COPY_LIMIT + 1


async def test_what_is_forgotten_is_never_written():
    one, transport = flow()
    one.send(b"secret")
    one.forget_unflushed()
    await asyncio.sleep(0)
    assert transport.written == b""


def test_a_peer_is_named_with_brackets_around_ipv6():
    assert flow()[0].peer_name() == "[::1]:80"


def test_a_reset_is_an_error_for_the_peer_on_the_loop_of_production():
    async def go() -> None:
        made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(cast(asyncio.Transport, transport))

        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.settimeout(WAIT_S)
            reset(await made)
            with pytest.raises(ConnectionResetError):
                await loop.run_in_executor(None, client.recv, 1)
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(go())
