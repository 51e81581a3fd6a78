"""Two real sockets joined: every byte in order, whoever is slow, and every way to end."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority
from egressproxy.net.loop import poller
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.splicing import Pipe
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.tunnel import socket_tunnel
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.protocols.tunnel.socket_tunnel import SocketTunnel
from tests.support.builds import skip_where_compiled
from tests.support.waiting import WAIT_S

skip_where_compiled()


class Joined(SocketTunnel):
    """A tunnel that keeps how it ended."""

    __slots__ = ("__weakref__", "result")

    def over(self) -> None:
        self.result.append((self.bytes_in, self.bytes_out, self.reason))


class Peer:
    """The far end of one side, which does not block."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = b""
        self.has_eof = False
        self.error: OSError | None = None

    def reads(self) -> None:
        try:
            while data := self.sock.recv(1 << 20):
                self.got += data
            self.has_eof = True
        except BlockingIOError:
            pass
        except OSError as error:
            self.error = error

    def resets(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class World:
    def __init__(self, *, guard: SniGuard | None = None, idle_s: float = 0.0, rest: bytes = b"") -> None:
        self.wheel = TimerWheel()
        self.client, one = self._pair()
        self.origin, other = self._pair()
        client = SocketTransport(poller(), one, asyncio.Protocol())
        client.start()
        parked = PendingProtocol()
        SocketTransport(poller(), other, parked).start()
        self.result: list[tuple[int, int, Reason]] = []
        self.tunnel = Joined(self.wheel, idle_s, guard, 10.0, holds_upstream=False)
        self.tunnel.result = self.result
        self.tunnel.start(client, rest, parked, client_has_ended=False)

    def _pair(self) -> tuple[Peer, socket.SocketType]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            fd, _ = server._accept()  # type: ignore[attr-defined]
        far.setblocking(False)
        near = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        near.setblocking(False)
        return Peer(far), near

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)
                self.client.reads()
                self.origin.reads()

    def close(self) -> None:
        self.client.sock.close()
        self.origin.sock.close()


async def test_octets_go_both_ways_and_are_counted():
    world = World(rest=b"early ")
    world.client.sock.send(b"question")
    await world.until(lambda: world.origin.got == b"early question")
    world.origin.sock.send(b"answer")
    await world.until(lambda: world.client.got == b"answer")
    world.client.sock.shutdown(socket.SHUT_WR)
    await world.until(lambda: world.origin.has_eof)
    world.origin.sock.send(b" and more")
    world.origin.sock.close()
    await world.until(lambda: world.client.has_eof)
    assert world.client.got == b"answer and more"
    assert world.result == [(14, 15, Reason.OK)]
    world.close()


@pytest.mark.parametrize("to", ["client", "origin"])
async def test_a_slow_reader_stops_the_other_side_and_loses_nothing(to: str):
    world = World()
    slow, quick = (world.client, world.origin) if to == "client" else (world.origin, world.client)
    sent = bytes(range(256)) * 65536
    rest = memoryview(sent)
    stalled = 0
    while stalled < 20:  # until the kernel and the tunnel take nothing more
        try:
            rest = rest[quick.sock.send(rest) :]
            stalled = 0
        except BlockingIOError:
            stalled += 1
            await asyncio.sleep(0.001)
    assert rest, "16 MiB are in flight"
    kept = world.tunnel.client.unsent if to == "client" else world.tunnel.upstream.unsent
    assert kept is not None
    assert len(kept) <= 256 * 1024
    while rest:
        await asyncio.sleep(0)
        slow.reads()
        with suppress(BlockingIOError):
            rest = rest[quick.sock.send(rest) :]
    quick.sock.shutdown(socket.SHUT_WR)
    await world.until(lambda: slow.has_eof)
    assert slow.got == sent
    slow.sock.close()
    await world.until(lambda: world.result)
    assert sum(world.result[0][:2]) == len(sent)
    world.close()


@pytest.mark.parametrize("who", ["client", "origin"])
async def test_a_reset_is_a_reset_for_the_other_side(who: str):
    world = World()
    one, other = (world.client, world.origin) if who == "client" else (world.origin, world.client)
    one.resets()
    await world.until(lambda: other.error is not None)
    assert isinstance(other.error, ConnectionResetError)
    assert [reason for _, _, reason in world.result] == [Reason.OK]
    world.close()


async def test_a_reset_behind_an_end_is_noticed():
    world = World()
    world.client.sock.shutdown(socket.SHUT_WR)
    await world.until(lambda: world.origin.has_eof)
    world.client.resets()
    await world.until(lambda: world.result)
    with pytest.raises(ConnectionError):
        world.origin.sock.send(b"x")
    world.close()


@pytest.fixture
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes went through the pipe, a number for each time."""
    sizes: list[int] = []
    take = Pipe.take

    def counted(pipe: Pipe, fd: int) -> int:
        size = take(pipe, fd)
        sizes.append(size)
        return size

    monkeypatch.setattr(Pipe, "take", counted)
    monkeypatch.setattr(socket_tunnel, "_can_splice", True)
    return sizes


async def carry(tunnels: list[World], octets: int) -> None:
    """Every client sends so many of its own kind, and ends; every origin reads them, in turn."""
    rests = [memoryview(bytes([number + 1]) * octets) for number in range(len(tunnels))]
    async with asyncio.timeout(WAIT_S):
        while not all(world.origin.has_eof or world.origin.error for world in tunnels):
            await asyncio.sleep(0)
            for number, world in enumerate(tunnels):
                with suppress(BlockingIOError, OSError):
                    rests[number] = rests[number][world.client.sock.send(rests[number]) :]
                if not rests[number]:
                    with suppress(OSError):
                        world.client.sock.shutdown(socket.SHUT_WR)
                world.origin.reads()


async def test_long_transfers_go_through_the_kernel_and_arrive_each_with_its_own(spliced: list[int]):
    tunnels = [World() for _ in range(4)]
    await carry(tunnels, 8 << 20)
    for number, world in enumerate(tunnels):
        assert world.origin.got == bytes([number + 1]) * (8 << 20)
        world.close()
    assert sum(spliced) > 8 << 20


async def test_a_reset_amid_long_transfers_leaves_nothing_to_the_others(spliced: list[int]):
    tunnels = [World() for _ in range(6)]
    loop = asyncio.get_running_loop()
    for number, world in enumerate(tunnels[::2]):
        loop.call_later(0.005 * (number + 1), (world.origin if number % 2 else world.client).resets)
    await carry(tunnels, 8 << 20)
    for number, world in enumerate(tunnels):
        assert world.origin.got.strip(bytes([number + 1])) == b""
        if number % 2:
            assert len(world.origin.got) == 8 << 20
        world.close()
    assert spliced


async def make_long(world: World) -> None:
    """The client sends until what it sends is to be spliced, and all of it arrives."""
    sent = 0
    async with asyncio.timeout(WAIT_S):
        while not (world.tunnel.client.is_long and len(world.origin.got) == sent):
            if not world.tunnel.client.is_long:
                with suppress(BlockingIOError):
                    sent += world.client.sock.send(b"x" * 200_000)
            await asyncio.sleep(0.001)
            world.origin.reads()
    world.origin.got = b""


@pytest.mark.parametrize("ends", [False, True])
async def test_an_urgent_octet_neither_stops_a_long_transfer_nor_ends_it(ends: bool, spliced: list[int]):
    world = World()
    await make_long(world)
    spliced.clear()
    world.client.sock.send(b"!", socket.MSG_OOB)
    world.client.sock.send(b"behind it")
    if ends:
        world.client.sock.shutdown(socket.SHUT_WR)
    await world.until(lambda: world.origin.has_eof if ends else world.origin.got)
    assert world.origin.got == b"behind it"
    assert len(spliced) < 5
    world.close()


async def test_what_a_defect_has_lost_does_not_look_whole(spliced: list[int], monkeypatch: pytest.MonkeyPatch):
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    world = World()
    await make_long(world)
    give = Pipe.give
    monkeypatch.setattr(Pipe, "give", lambda pipe, fd, size: give(pipe, fd, size + 1))
    world.client.sock.send(b"y" * 100_000)
    await world.until(lambda: world.origin.error and world.client.error)
    assert [reason for _, _, reason in world.result] == [Reason.INTERNAL]
    world.close()


async def test_what_an_error_has_left_in_the_pipe_reaches_nobody(spliced: list[int], monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    one, other = World(), World()
    await make_long(one)
    await make_long(other)

    def no_memory(*_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Pipe, "give", no_memory)
        one.client.sock.send(b"secret" * 10_000)
        await one.until(lambda: one.result)
    other.client.sock.send(b"y" * 100_000)
    await other.until(lambda: len(other.origin.got) >= 100_000)
    assert other.origin.got == b"y" * 100_000
    one.close()
    other.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES])
async def test_without_a_pipe_long_transfers_are_copied(code: int, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(code, "")

    monkeypatch.setattr(socket_tunnel, "_shared", None)
    monkeypatch.setattr(socket_tunnel, "_can_splice", True)
    monkeypatch.setattr(Pipe, "__init__" if code == errno.EMFILE else "take", refuse)
    world = World()
    await carry([world], 4 << 20)
    assert world.origin.got == b"\1" * (4 << 20)
    assert socket_tunnel._can_splice == (code == errno.EMFILE)
    world.close()


async def test_what_is_still_to_be_sent_is_waited_for_as_long_as_it_moves():
    world = World()
    world.tunnel.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    world.origin.sock.setblocking(True)
    await asyncio.get_running_loop().run_in_executor(None, world.origin.sock.sendall, b"x" * 100_000)
    world.origin.sock.shutdown(socket.SHUT_WR)
    world.client.sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.02)
    world.origin.sock.setblocking(False)
    await world.until(lambda: world.client.has_eof)
    assert len(world.client.got) == 100_000
    assert world.result == [(0, 100_000, Reason.OK)]
    world.close()


async def test_one_that_takes_nothing_of_the_rest_is_cut():
    world = World()
    await _filled(world.origin.sock)
    world.client.sock.shutdown(socket.SHUT_WR)
    world.origin.sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.05)
    if not world.tunnel.upstream.has_ended:  # its end is behind what nobody takes: then only activity is left to ask
        world.tunnel.abort()
    for _ in range(300):
        world.wheel.advance(world.wheel.now + 0.1)
    await asyncio.sleep(0.01)
    assert len(world.result) == 1
    world.close()


async def _filled(sock: socket.socket) -> None:
    """Until everything on the way is full, so that the rest cannot arrive: no more is taken in twenty turns."""
    sock.setblocking(False)
    turns = 0
    while turns < 20:
        turns += 1
        with suppress(BlockingIOError):
            while sock.send(b"x" * 65536):
                turns = 0
        await asyncio.sleep(0.001)


async def test_silence_ends_it_after_its_idle_time_and_octets_put_that_off():
    world = World(idle_s=30.0)
    for _ in range(200):
        world.wheel.advance(world.wheel.now + 0.1)
    world.client.sock.send(b".")
    await world.until(lambda: world.origin.got == b".")
    for _ in range(200):
        world.wheel.advance(world.wheel.now + 0.1)
    await asyncio.sleep(0.01)
    assert not world.result
    for _ in range(120):
        world.wheel.advance(world.wheel.now + 0.1)
    await world.until(lambda: world.result)
    assert world.result[0][2] is Reason.CLIENT_TIMEOUT
    world.close()


async def test_the_kernel_watches_over_a_tunnel_that_has_lived_for_a_minute():
    world = World()
    sock = world.tunnel.upstream.sock
    assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for _ in range(610):
        world.wheel.advance(world.wheel.now + 0.1)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    world.tunnel.abort()
    await world.until(lambda: world.result)
    world.close()


@pytest.mark.parametrize("cut", [50, 1000])
async def test_nothing_passes_before_the_guard_has_agreed(cut: int):
    guard = SniGuard(Authority("a.example", 443), must_be_tls=False)
    world = World(guard=guard)
    hello = _hello("b.example")
    for at in range(0, len(hello), cut):
        world.client.sock.send(hello[at : at + cut])
        await asyncio.sleep(0.002)
        world.origin.reads()
        assert world.origin.got == b""
        if world.result:
            break
    await world.until(lambda: (world.result and world.client.has_eof) or world.client.error)
    assert world.result[0][2] is Reason.SNI_MISMATCH
    assert world.origin.got == b""
    world.close()


def _hello(name: str) -> bytes:
    import ssl

    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


async def test_abort_is_a_reset_for_the_client():
    world = World()
    world.tunnel.abort()
    world.tunnel.abort()
    await world.until(lambda: world.client.error is not None and world.origin.has_eof)
    assert isinstance(world.client.error, ConnectionResetError)
    assert len(world.result) == 1
    world.close()


async def test_nothing_is_left_of_a_tunnel_that_has_ended():
    world = World(idle_s=60.0)
    gc.collect()
    gc.disable()
    try:
        left = weakref.ref(world.tunnel)
        world.client.sock.close()
        world.origin.sock.close()
        del world.tunnel
        async with asyncio.timeout(WAIT_S):
            while not world.result:  # noqa: ASYNC110   what is waited for is the kernel's
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


async def test_what_a_cut_leaves_behind_does_not_look_whole():
    world = World(idle_s=5.0)
    world.tunnel.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    await _filled(world.origin.sock)
    async with asyncio.timeout(WAIT_S):
        while not world.tunnel.client.unsent:  # noqa: ASYNC110   the kernel has to be full first
            await asyncio.sleep(0.001)
    for _ in range(100):
        world.wheel.advance(world.wheel.now + 0.1)
    await world.until(lambda: world.client.error is not None)
    assert [reason for _, _, reason in world.result] == [Reason.CLIENT_TIMEOUT]
    assert not world.client.has_eof
    world.close()


@pytest.mark.parametrize("is_read", [False, True])
async def test_an_answer_is_delivered_though_its_origin_is_reset_behind_its_end(is_read: bool):
    world = World()
    world.tunnel.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    world.tunnel.upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)  # all of it is with us
    answer = b"x" * (50_000 if is_read else 250_000)
    world.origin.sock.setblocking(True)
    await asyncio.get_running_loop().run_in_executor(None, world.origin.sock.sendall, answer)
    world.origin.sock.close()
    async with asyncio.timeout(WAIT_S):
        while not (world.tunnel.upstream.has_ended or world.tunnel.client.unsent):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for _ in range(3):  # what nobody asked for, as clients of HTTP/2 do: it is answered with a reset
        if not world.result:
            world.client.sock.send(b"window update")
        await asyncio.sleep(0.02)
    async with asyncio.timeout(WAIT_S):
        while not world.client.has_eof:
            await asyncio.sleep(0.001)
            world.client.reads()
            assert world.client.error is None
    assert world.client.got == answer
    world.client.sock.close()
    async with asyncio.timeout(WAIT_S):
        while not world.result:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert [reason for _, _, reason in world.result] == [Reason.OK]
