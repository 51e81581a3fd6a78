"""The transport over real sockets, on both loops: every way to send, to pause and to end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from egressproxy.net.loop import new_loop, poller
from egressproxy.net.sockets import READ_SIZE, SocketTransport
from tests.support.waiting import WAIT_S


@pytest.fixture
def run() -> Any:
    def runs(main: Any) -> Any:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asyncio.wait_for(main, WAIT_S))

    return runs


class Protocol(asyncio.Protocol):
    """Says what it hears."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.said: list[str] = []
        self.data = b""
        self.keeps = keeps
        self.error: Exception | None = None
        self.on_data: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.said.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.on_data()

    def eof_received(self) -> bool:
        self.said.append("eof")
        return self.keeps

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")
        self.error = exc

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")


class World:
    """A transport, its protocol, and the other end as a plain socket."""

    def __init__(self, *, keeps: bool = False, small: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname())
            fd, address = server._accept()  # type: ignore[attr-defined]
        self.sock = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        self.sock.setblocking(False)
        self.peer.setblocking(False)
        if small:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
            self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.protocol = Protocol(keeps=keeps)
        self.transport = SocketTransport(poller(), self.sock, self.protocol, address)
        self.transport.start()
        self.got = b""

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110   what is waited for is the kernel's
            await asyncio.sleep(0.001)

    async def said(self, *what: str) -> None:
        await self.until(lambda: len(self.protocol.said) >= len(what))
        await asyncio.sleep(0.01)
        assert self.protocol.said == list(what)

    def read(self) -> bool:
        """What the peer gets now; true once it has got the end."""
        with suppress(BlockingIOError):
            while data := self.peer.recv(1 << 20):
                self.got += data
            return True
        return False

    def resets(self) -> None:
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    async def close(self) -> None:
        self.peer.close()
        self.transport.abort()
        await asyncio.sleep(0)


def test_octets_go_both_ways(run: Any):
    async def main() -> None:
        world = World()
        world.peer.send(b"question")
        await world.until(lambda: world.protocol.data == b"question")
        world.transport.write(b"an")
        world.transport.writelines([b"s", bytearray(b"w"), b"", memoryview(b"er")])
        await world.until(lambda: world.read() or world.got == b"answer")
        assert world.transport.get_extra_info("peername") == world.peer.getsockname()
        assert world.transport.get_extra_info("sockname") == world.peer.getpeername()
        assert world.transport.get_extra_info("socket") is world.sock
        assert world.transport.get_extra_info("nothing") is None
        await world.close()
        await world.said("made", "lost")
        assert world.transport.get_extra_info("socket") is None

    run(main())


def test_an_end_closes_where_the_protocol_does_not_keep_it(run: Any):
    async def main() -> None:
        world = World()
        world.peer.send(b"last words")
        world.peer.shutdown(socket.SHUT_WR)
        await world.said("made", "eof", "lost")
        assert world.protocol.data == b"last words"
        assert world.protocol.error is None
        assert world.read()

    run(main())


def test_an_end_leaves_the_other_direction_open(run: Any):
    async def main() -> None:
        world = World(keeps=True)
        world.peer.shutdown(socket.SHUT_WR)
        await world.said("made", "eof")
        world.transport.write(b"answer")
        world.transport.write_eof()
        world.transport.write_eof()
        with pytest.raises(RuntimeError):
            world.transport.write(b"more")
        await world.until(world.read)
        assert world.got == b"answer"
        await world.said("made", "eof")
        world.transport.close()
        await world.said("made", "eof", "lost")

    run(main())


def test_our_end_leaves_the_peers_direction_open(run: Any):
    async def main() -> None:
        world = World()
        world.transport.write_eof()
        await world.until(world.read)
        world.peer.send(b"still here")
        await world.until(lambda: world.protocol.data == b"still here")
        await world.close()

    run(main())


@pytest.mark.parametrize("when", ["open", "half closed"])
def test_a_reset_is_told_as_an_error(run: Any, when: str):
    async def main() -> None:
        world = World(keeps=True)
        if when == "half closed":
            world.peer.shutdown(socket.SHUT_WR)
            await world.said("made", "eof")
        world.resets()
        await world.said(*(["made", "eof", "lost"] if when == "half closed" else ["made", "lost"]))
        assert isinstance(world.protocol.error, ConnectionError)

    run(main())


def test_a_reset_while_nothing_is_read_is_found_by_writing_or_by_reading_on(run: Any):
    async def main() -> None:
        for act in ("write", "read"):
            world = World()
            world.peer.send(b"unread")
            world.transport.pause_reading()
            world.resets()
            await world.said("made")
            if act == "write":
                world.transport.write(b"x")
                world.transport.write(b"x")
            else:
                world.transport.resume_reading()
            await world.said("made", "lost")
            assert isinstance(world.protocol.error, ConnectionError)

    run(main())


def test_a_write_that_fails_is_told_later_and_once(run: Any):
    async def main() -> None:
        world = World()
        world.transport.pause_reading()
        world.resets()
        await asyncio.sleep(0.01)
        world.transport.write(b"x")
        world.transport.write(b"x")
        assert world.protocol.said == ["made"]
        await world.said("made", "lost")
        assert world.protocol.error is not None
        assert world.transport.is_closing()
        world.transport.write(b"ignored")
        world.transport.close()
        world.transport.abort()
        await world.said("made", "lost")

    run(main())


@pytest.mark.parametrize("way", ["write", "writelines"])
def test_back_pressure_and_every_octet_in_order(run: Any, way: str):
    async def main() -> None:
        world = World(small=True)
        sent = bytes(range(256)) * 8192
        pieces = [sent[at : at + 100_000] for at in range(0, len(sent), 100_000)]
        if way == "write":
            for piece in pieces:
                world.transport.write(bytearray(piece))
        else:
            world.transport.writelines(pieces)
        assert world.protocol.said == ["made", "pause"]
        queued = world.transport.get_write_buffer_size()
        assert 0 < queued < len(sent)
        await world.until(lambda: world.read() or len(world.got) == len(sent))
        assert world.got == sent
        await world.said("made", "pause", "resume")
        assert world.transport.get_write_buffer_size() == 0
        await world.close()

    run(main())


def test_close_sends_what_is_queued_first(run: Any):
    async def main() -> None:
        world = World(small=True)
        sent = b"x" * 1_000_000
        world.transport.write(sent)
        world.transport.close()
        world.transport.close()
        assert world.transport.is_closing()
        await world.until(world.read)
        assert world.got == sent
        await world.said("made", "pause", "lost")
        assert world.protocol.error is None

    run(main())


def test_an_end_of_ours_follows_what_is_queued(run: Any):
    async def main() -> None:
        world = World(small=True, keeps=True)
        sent = b"x" * 1_000_000
        world.transport.write(sent)
        world.transport.write_eof()
        await world.until(world.read)
        assert world.got == sent
        assert not world.transport.is_closing()
        await world.close()

    run(main())


def test_abort_drops_what_is_queued(run: Any):
    async def main() -> None:
        world = World(small=True)
        world.transport.write(b"x" * 1_000_000)
        world.transport.close()
        world.transport.abort()
        assert world.protocol.said == ["made", "pause"]
        assert world.transport.get_write_buffer_size() == 0
        await world.said("made", "pause", "lost")
        with pytest.raises(ConnectionResetError):  # an end would make it look whole
            await world.until(world.read)
        assert len(world.got) < 1_000_000

    run(main())


def test_a_peer_that_leaves_with_octets_queued_for_it_is_an_error(run: Any):
    async def main() -> None:
        world = World(small=True, keeps=True)
        world.transport.write(b"x" * 1_000_000)
        world.transport.close()
        world.resets()
        await world.until(lambda: "lost" in world.protocol.said)
        assert isinstance(world.protocol.error, ConnectionError)

    run(main())


def test_nothing_comes_while_reading_is_paused(run: Any):
    async def main() -> None:
        world = World()
        world.transport.pause_reading()
        world.transport.pause_reading()
        world.peer.send(b"one")
        world.peer.shutdown(socket.SHUT_WR)
        await world.said("made")
        assert world.protocol.data == b""
        assert not world.transport.is_reading()
        world.transport.resume_reading()
        await world.said("made", "eof", "lost")
        assert world.protocol.data == b"one"
        world.transport.resume_reading()
        world.transport.pause_reading()

    run(main())


def test_a_pause_within_data_received_holds_at_once_even_if_the_end_is_known(run: Any):
    async def main() -> None:
        world = World()
        world.protocol.on_data = world.transport.pause_reading
        world.peer.send(b"x" * (2 * READ_SIZE))
        world.peer.shutdown(socket.SHUT_WR)
        await world.until(lambda: world.protocol.data)
        await world.said("made")
        size = len(world.protocol.data)
        assert size <= READ_SIZE
        world.protocol.on_data = lambda: None
        world.transport.resume_reading()
        await world.said("made", "eof", "lost")
        assert len(world.protocol.data) == 2 * READ_SIZE

    run(main())


def test_both_sides_paused_and_ended_cost_no_turns(run: Any):
    async def main() -> None:
        world = World(keeps=True)
        world.transport.pause_reading()
        world.transport.write_eof()
        world.peer.close()
        await asyncio.sleep(0.01)
        turns = 0
        real = world.transport.ready

        def counting(fd: int, events: int) -> None:
            nonlocal turns
            turns += 1
            real(fd, events)

        ours = poller()
        if ours._handlers[world.sock.fileno()] is not None:
            ours.hand_over(world.sock.fileno(), type("Counting", (), {"ready": staticmethod(counting)})())
        await asyncio.sleep(0.05)
        assert turns <= 1
        world.transport.resume_reading()
        await world.said("made", "eof")
        await world.close()

    run(main())


def test_the_protocol_may_change_on_the_way(run: Any):
    async def main() -> None:
        world = World()
        second = Protocol()
        world.protocol.on_data = lambda: world.transport.set_protocol(second)
        world.peer.send(b"a")
        await world.until(lambda: world.protocol.data)
        assert world.transport.get_protocol() is second
        world.peer.send(b"b")
        world.peer.close()
        await world.until(lambda: "lost" in second.said)
        assert (world.protocol.data, second.data) == (b"a", b"b")
        assert world.protocol.said == ["made"]

    run(main())


def test_a_protocol_that_closes_as_it_begins_hears_of_the_end(run: Any):
    class Refuses(Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.abort()
            assert self.said == ["made"]

    async def main() -> None:
        world = World()
        one = Refuses()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            fd, _ = server._accept()  # type: ignore[attr-defined]
            made = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
            SocketTransport(poller(), made, one).start()
            await world.until(lambda: one.said == ["made", "lost"])
        await world.close()

    run(main())


def test_a_detached_socket_is_left_alone(run: Any):
    async def main() -> None:
        world = World(small=True)
        world.transport.write(b"x" * 1_000_000)
        sock, unsent, _ = world.transport.detach()
        assert world.transport.is_closing()
        poller().leave(sock.fileno())
        world.transport.abort()
        world.transport.write(b"ignored")
        await world.until(lambda: world.read() or world.got)
        await asyncio.sleep(0.01)
        world.read()
        assert len(world.got) + len(unsent or b"") == 1_000_000
        assert world.protocol.said == ["made", "pause"]
        sock.close()
        await world.close()

    run(main())


def test_a_new_protocol_is_told_of_a_full_buffer_too(run: Any):
    async def main() -> None:
        world = World(small=True)
        world.transport.write(b"x" * 1_000_000)
        assert world.protocol.said == ["made", "pause"]
        heir = Protocol()
        world.transport.set_protocol(heir)
        world.transport.write(b"y")
        assert heir.said == ["pause"]
        await world.until(lambda: world.read() or heir.said == ["pause", "resume"])
        assert world.protocol.said == ["made", "pause"]
        await world.close()

    run(main())
