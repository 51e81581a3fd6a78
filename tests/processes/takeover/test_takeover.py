"""A process and its successor, both ends here, over a real socket. (Real processes: tests/e2e/test_restarts.py.)"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities, KilledIdentity
from egressproxy.net.file_lock import memory_file
from egressproxy.net.listening import peer_of
from egressproxy.processes.listening_sockets import ListeningSockets, Place
from egressproxy.processes.takeover import messages, predecessor, succession
from egressproxy.processes.takeover.messages import Conversation
from egressproxy.processes.takeover.predecessor import Predecessor
from egressproxy.processes.takeover.succession import Succession
from egressproxy.processes.takeover.wanted_lock import WantedLock
from egressproxy.processes.workers.data_plane import ConfigRefused, DataPlane
from egressproxy.processes.workers.kill_switch import KillSwitch
from egressproxy.telemetry.metrics import Metrics
from tests.support.net import free_port
from tests.support.waiting import WAIT_S, until

KILLED = KilledIdentities((KilledIdentity("agents/a", "leaks keys", 5.0),))


class Cutting:
    """A fleet that is told whom to cut."""

    def __init__(self) -> None:
        self.killed = KilledIdentities()
        self.changes: list[KillChange | None] = []

    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        self.killed = killed
        self.changes.append(change)
        return 0


class Owner:
    """The application: what it has, and what it was told."""

    def __init__(self) -> None:
        self.lock = memory_file("lock")
        self.taking = WantedLock()
        self.fleet = Cutting()
        self.kill_switch = KillSwitch(cast(DataPlane, self.fleet), Metrics("0"))
        self.successors: list[tuple[int, frozenset[Place]]] = []

    @property
    def is_frozen(self) -> bool:
        return self.taking.locked()

    def succeeded(self, pid: int, taken: frozenset[Place]) -> None:
        assert self.is_frozen
        assert self.kill_switch.turn.locked()
        self.successors.append((pid, taken))

    def succession(self, path: Path, sockets: ListeningSockets) -> Succession:
        return Succession(path, sockets, self.taking, self.kill_switch, lambda: self.lock, self.succeeded)


class World:
    """A process that serves one port and its path of succession."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = Owner()
        self.sockets = ListeningSockets()
        self.place = "127.0.0.1", free_port()
        self.serving = self.sockets.bind(*self.place)
        self.succession = self.owner.succession(path, self.sockets)
        self.succession.bind()
        self.succession.start()

    async def find(self) -> Predecessor:
        found = await Predecessor.find(self.path)
        assert found is not None
        return found

    def says(self) -> Conversation:
        """A successor of another release."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        return Conversation(sock)

    def close(self) -> None:
        self.succession.close()
        self.serving.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "takeover.sock")
    await made.owner.kill_switch.start(KILLED)
    yield made
    made.close()


async def nobody(change: KillChange) -> None:
    raise AssertionError(change)


async def heard(successor: Conversation, kind: str) -> dict[str, Any]:
    while True:
        said, fields, descriptors = await successor.next(WAIT_S)
        messages.close_all(descriptors)
        if said == kind:
            return fields


async def test_a_successor_gets_everything_and_the_old_one_drains_when_it_serves(world: World):
    before = await world.find()
    sockets = ListeningSockets()
    await before.switch(sockets)
    assert world.owner.is_frozen, "no reload meanwhile"
    assert before.killed.every == KILLED.every
    assert before.lock is not None
    assert os.fstat(before.lock).st_ino == os.fstat(world.owner.lock).st_ino
    own = Owner().succession(world.path, sockets)
    own.bind()
    with sockets.bind(*world.place) as sock, socket.create_connection(world.place):
        sock.accept()[0].close()
    assert world.owner.successors == []
    await before.serving(sockets.taken, nobody)
    assert world.owner.successors == [(os.getpid(), frozenset({world.place, (own.address, 0)}))]
    assert not world.owner.is_frozen
    assert world.path.exists()
    own.start()
    assert await Predecessor.find(world.path) is not None, "it is the one to ask now"

    before.kill(KillChange("agents/b", kills=True, why="w"))
    await until(lambda: len(world.owner.fleet.killed) == 2)
    assert world.owner.fleet.changes[-1] == KillChange("agents/b", kills=True, why="w")
    before.kill(KillChange("agents/unknown", kills=False))
    before.kill(KillChange("agents/a", kills=False))
    await until(lambda: len(world.owner.fleet.killed) == 1)
    with pytest.raises(NotAnswered, match=f"process {os.getpid()} serves in this one's place"):
        await world.owner.kill_switch.answer(KillChange("agents/c", kills=True))
    before.close()
    own.close()


async def test_a_successor_that_ends_before_it_serves_has_changed_nothing(world: World):
    before = await world.find()
    sockets = ListeningSockets()
    await before.switch(sockets)
    sockets.bind(f"unix://{world.path}", 0).close()
    before.close()
    await until(lambda: not world.owner.is_frozen)
    assert world.owner.successors == []
    again = await world.find()
    await again.switch(ListeningSockets())
    again.close()


async def test_a_second_successor_is_refused_while_the_first_has_the_turn(world: World):
    first = await world.find()
    with pytest.raises(ConfigRefused, match=r"keeps its place: another process takes it already"):
        await world.find()
    await first.switch(ListeningSockets())
    await first.serving([], nobody)
    assert len(world.owner.successors) == 1
    first.close()


async def test_a_successor_that_takes_too_long_is_told_and_the_old_one_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    before = await world.find()
    monkeypatch.setattr(succession, "SWITCH_S", 0.01)
    await before.switch(ListeningSockets())
    await until(lambda: not world.owner.is_frozen)
    with pytest.raises(ConfigRefused, match=r"keeps its place: it has not come to serve within 0\.01 s"):
        await before.serving([], nobody)
    assert world.owner.successors == []
    before.close()


async def test_the_kill_switch_does_not_wait_for_a_successor_which_follows(world: World):
    before = await world.find()
    await before.switch(ListeningSockets())
    changes = KillChange("agents/b", kills=True, why="w"), KillChange("agents/a", kills=False)
    for change in changes:
        async with asyncio.timeout(WAIT_S):
            await world.owner.kill_switch.answer(change)
    assert [each.name for each in world.owner.fleet.killed.every] == ["agents/b"]
    successor = Owner()
    await successor.kill_switch.start(before.killed)
    await before.serving([], successor.kill_switch.follow)
    assert [each.name for each in successor.fleet.killed.every] == ["agents/b"]
    assert world.owner.kill_switch.listeners == []
    before.close()


async def test_a_kill_reaches_every_process_that_still_drains(world: World):
    """Of three in a row the last one is told, and says it to the one before, which says it to the first."""
    first = KillSwitch(cast(DataPlane, fleet := Cutting()), Metrics("0"))
    passed: list[asyncio.Task[None]] = []
    world.owner.kill_switch.listeners.append(lambda change: passed.append(asyncio.create_task(first.follow(change))))
    before = await world.find()
    await before.switch(ListeningSockets())
    await before.serving([], nobody)
    before.kill(KillChange("agents/b", kills=True))
    await until(lambda: len(fleet.killed) == 1)
    before.close()


async def test_a_reload_does_not_wait_long_for_a_successor(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(succession, "HOLD_S", 0.01)
    before = await world.find()
    await before.switch(ListeningSockets())
    async with asyncio.timeout(WAIT_S), world.owner.taking:
        await before.wait_withdrawn()
    with pytest.raises(ConfigRefused, match=r"a reload or a write has waited for it for 0\.01 s"):
        await before.serving([], nobody)
    assert world.owner.successors == []
    before.close()


async def test_a_successor_that_says_nothing_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(succession, "QUIET_S", 0.01)
    hanging = world.says()
    hanging.say("hello", versions=[1])
    hanging.say("switch")
    assert (await heard(hanging, "withdrawn"))["why"] == "it has said nothing for 0.01 s"
    await until(lambda: not world.owner.is_frozen)
    assert world.owner.successors == []
    hanging.close()


async def test_a_successor_says_that_it_works(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predecessor, "WORKING_S", 0.0)
    one, other = socket.socketpair(socket.AF_UNIX)
    before, old = Predecessor(Conversation(one), Path("p")), Conversation(other)
    old.say("killed", identities=[])
    await before.switch(ListeningSockets())
    for _ in range(3):
        await heard(old, "working")
    old.say("withdrawn", why="w")
    with pytest.raises(ConfigRefused):
        await before.serving([], nobody)
    before.close()
    old.close()


async def test_a_predecessor_that_ends_in_the_midst_leaves_its_sockets(world: World):
    before = await world.find()
    sockets = ListeningSockets()
    await before.switch(sockets)
    world.close()
    with sockets.bind(*world.place) as sock, socket.create_connection(world.place):
        sock.accept()[0].close()
    await before.serving(sockets.taken, nobody)
    before.close()


async def test_a_path_that_nobody_serves_has_no_predecessor(tmp_path: Path):
    assert await Predecessor.find(tmp_path / "none.sock") is None
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(stale))
    assert await Predecessor.find(stale) is None
    made = Owner().succession(stale, ListeningSockets())
    made.bind()
    made.close()


async def test_a_process_of_another_user_neither_gives_nor_gets(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Conversation, "is_trusted", property(lambda each: each.peer_user == 4711))
    with pytest.raises(ConfigRefused, match="cannot be trusted"):
        await Predecessor.find(world.path)
    stranger = world.says()
    stranger.say("hello", versions=[1])
    with pytest.raises(EOFError):
        await stranger.next(WAIT_S)
    stranger.close()


def test_who_is_at_the_other_end_is_what_the_kernel_says():
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_of(one) == (os.getpid(), os.getuid())


async def test_the_path_is_for_this_user_alone(world: World):
    assert world.path.stat().st_mode & 0o777 == 0o600


async def test_another_release_may_say_more_and_speak_more(world: World):
    newer = world.says()
    newer.say("hello", versions=[1, 2], release="9.0", pid=1, mood="good")
    assert (await heard(newer, "hello"))["version"] == 1
    newer.say("weather", sky="blue")
    newer.say("switch", fast=True)
    assert (await heard(newer, "killed"))["identities"][0]["identity"] == "agents/a"
    newer.say("serving", places=[[*world.place]], more=1)
    await heard(newer, "done")
    assert world.owner.successors[0][1] == {world.place}
    newer.close()


@pytest.mark.parametrize("hello", [{"versions": [7]}, {}, {"versions": 1}])
async def test_a_release_with_no_version_in_common_is_refused(world: World, hello: dict[str, Any]):
    other = world.says()
    other.say("hello", release="9.0", **hello)
    assert "of 9.0, which have no way to do that: restart it" in (await heard(other, "refused"))["why"]
    other.close()


@pytest.mark.parametrize("places", [None, [1], [["127.0.0.1"]]])
async def test_what_does_not_say_what_it_serves_gets_no_place(world: World, places: Any):
    other = world.says()
    other.say("hello", versions=[1])
    other.say("switch")
    await heard(other, "killed")
    other.say("serving", places=places)
    await heard(other, "withdrawn")
    assert world.owner.successors == []
    other.close()


@pytest.mark.parametrize("frame", [b"[]", b"{", b'{"type": 5}', b"\xff"])
async def test_what_is_no_message_ends_the_conversation(world: World, frame: bytes):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        sock.connect(str(world.path))
        sock.sendall(struct.pack("!IB", len(frame), 0) + frame)
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""


async def test_who_is_out_of_service_has_to_be_known(world: World, monkeypatch: pytest.MonkeyPatch):
    def give(successor: Conversation) -> None:
        successor.say("killed", identities=[{"identity": "agents/a"}])

    monkeypatch.setattr(world.succession, "_send_state", give)
    before = await world.find()
    with pytest.raises(ConfigRefused, match="so nobody is served"):
        await before.switch(ListeningSockets())
    before.close()


async def test_those_out_of_service_are_kept_in_the_file_of_the_successor(tmp_path: Path):
    fleet = Cutting()
    switch = KillSwitch(cast(DataPlane, fleet), Metrics("0"), tmp_path)
    await switch.start(KILLED)
    assert fleet.killed.every == KILLED.every
    again = KillSwitch(cast(DataPlane, Cutting()), Metrics("0"), tmp_path)
    await again.start(KILLED)
    assert again.killed.every == KILLED.every
