"""The states of a tunnel between two sockets, in every order of events: what happens is what the tables say.

The kernel is a fake (tests/support/fake_kernel). Every step is looked up in the tables (tests/conftest.py).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from, tuples

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.protocols.tunnel.socket_tunnel import SocketTunnel
from egressproxy.protocols.tunnel.tunnel import EndState, TunnelState
from tests.support.builds import skip_where_compiled
from tests.support.fake_kernel import FakePoller, FakeSocket
from tests.support.properties import examples

skip_where_compiled()


def client_hello(name: str) -> bytes:
    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


HELLO = client_hello("a.example")
#: What a client is told before its tunnel is there, of which it takes the first bytes only.
GREETING = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class Tunnel(SocketTunnel):
    """One that counts how often it has ended."""

    __slots__ = ("ends",)

    def over(self) -> None:
        self.ends += 1


class World:
    """A tunnel between a client and an upstream."""

    def __init__(self, guard: SniGuard | None, *, holds_upstream: bool, early: str = "") -> None:
        self.poller, self.wheel = FakePoller(), TimerWheel()
        self.client, self.upstream = FakeSocket(self.poller), FakeSocket(self.poller)
        self.said = {self.client: b"", self.upstream: b""}
        client = SocketTransport(self.poller, self.client, asyncio.Protocol())  # type: ignore[arg-type]
        client.start()
        pending = PendingProtocol()
        SocketTransport(self.poller, self.upstream, pending).start()  # type: ignore[arg-type]
        if early:
            self.client.room = 5
            client.write(GREETING)
            if early == "says":
                self.says(self.upstream, b"y" * 60)
            else:
                self.ends(self.upstream)
            self.upstream.handler.ready(self.upstream.fd, self.upstream.events())
        self.tunnel = Tunnel(self.wheel, 300.0, guard, 10.0, holds_upstream=holds_upstream)
        self.tunnel.ends = 0
        self.tunnel.start(client, b"", pending, client_has_ended=False)

    def says(self, sock: FakeSocket, data: bytes) -> None:
        if not sock.has_fin and not sock.is_reset:
            sock.incoming += data
            self.said[sock] += data

    def ends(self, sock: FakeSocket) -> None:
        sock.has_fin = True

    def resets(self, sock: FakeSocket) -> None:
        sock.is_reset = True
        sock.incoming = b""

    def takes(self, sock: FakeSocket) -> None:
        sock.room += 150

    def waits(self, _: FakeSocket) -> None:
        for _turn in range(15):
            self.wheel.advance(self.wheel.now + 1.0)

    def aborts(self, _: FakeSocket) -> None:
        self.tunnel.abort()

    def cuts(self, _: FakeSocket) -> None:
        self.tunnel.cut(Reason.INTERNAL)

    def no_memory(self, _: FakeSocket) -> None:
        self.poller.is_full = True

    def turn(self, _: FakeSocket) -> None:
        self.poller.turn()


Act = Callable[[World, FakeSocket], None]
SAYS: list[Act] = [lambda w, s: w.says(s, b"x" * 60), lambda w, s: w.says(s, HELLO), lambda w, s: w.says(s, HELLO[:99])]
RARE: list[Act] = [World.resets, World.waits, World.aborts, World.cuts, World.no_memory]
USUAL: list[Act] = [World.ends, World.takes, World.turn, World.turn]
STEPS = lists(tuples(booleans(), sampled_from([*SAYS, *SAYS, *USUAL * 6, *RARE])), min_size=4, max_size=30)
GUARDS = [None, *(partial(SniGuard, Authority("a.example", 443), must_be_tls=tls) for tls in (False, True))]


@settings(max_examples=examples(800))
@given(STEPS, sampled_from(GUARDS), booleans(), sampled_from(["", "says", "ends"]))
def test_whatever_happens_in_whatever_order_is_in_the_tables(
    steps: list[tuple[bool, Act]], guard: Callable[[], SniGuard] | None, holds: bool, early: str
):
    made = guard() if guard is not None else None
    holds = made is not None and made.must_be_tls and holds
    world = World(made, holds_upstream=holds, early=early)
    greeting = GREETING if early else b""
    tunnel = world.tunnel
    for is_client, act in steps:
        act(world, world.client if is_client else world.upstream)
        state = tunnel._state
        assert tunnel.is_over == (state == TunnelState.OVER) == bool(world.poller.ending or tunnel.ends)
        assert tunnel.ends == world.client.is_closed == world.upstream.is_closed
        assert tunnel.guard is not None or state != TunnelState.HELLO
        if not tunnel.ends:
            ended = tunnel.client._state, tunnel.upstream._state
            if not tunnel.is_over and not tunnel.holds_upstream:
                assert (state == TunnelState.DRAINING) == (ended == (EndState.ENDED, EndState.ENDED))
            assert tunnel.client._state != EndState.HELD, "only an upstream is held back"
        assert world.said[world.client].startswith(world.upstream.sent)
        if tunnel.error is None:  # else an alert is behind it
            assert (greeting + world.said[world.upstream]).startswith(world.client.sent)
            if world.client.is_shut:
                assert not tunnel.holds_upstream, "nothing is heard of the upstream yet"
                assert world.client.sent == greeting + world.said[world.upstream], "an end follows what was said"
        assert not (world.upstream.sent and made is not None and made.must_be_tls and world.upstream.sent[0] != 0x16)
    for sock in (world.client, world.upstream):
        world.ends(sock)
        sock.room = 1 << 20
    for _ in range(4):
        world.poller.turn()
    world.waits(world.client)
    world.poller.turn()
    assert tunnel.ends == 1


@settings(max_examples=examples(300))
@given(lists(tuples(booleans(), sampled_from([SAYS[0], World.takes, World.turn, World.ends])), max_size=25))
def test_without_a_reset_everything_arrives(steps: list[tuple[bool, Act]]):
    world = World(None, holds_upstream=False)
    for is_client, act in steps:
        act(world, world.client if is_client else world.upstream)
    for sock in (world.client, world.upstream):
        world.ends(sock)
        sock.room = 1 << 20
    for _ in range(4):
        world.poller.turn()
    assert world.upstream.sent == world.said[world.client]
    assert world.client.sent == world.said[world.upstream]
    assert (world.tunnel.ends, world.tunnel.reason) == (1, Reason.OK)
