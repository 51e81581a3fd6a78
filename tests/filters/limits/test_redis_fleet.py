"""How much passes while a Redis is away, and when it is back: exactly, with a fake of it, and with a real one."""

import asyncio
import random

import pytest

from egressproxy.errors import LimitExceeded
from egressproxy.filters.limits import redis_store
from egressproxy.filters.limits.redis_link import RedisAway
from egressproxy.filters.limits.redis_scripts import LIVING, SETTLING, TAKING
from egressproxy.filters.limits.redis_store import FLEET_KEYS, SHARING_S, RedisFleet
from egressproxy.net.keyed_counters import KeyedCounters, OwnCounters
from tests.filters.limits.test_redis_store import DAY, Clock, Machine, run, sized
from tests.support.redis_server import redis_server

BYTES = {"type": "Bytes", "limit": 3000, "unit": "Day"}
HOUR = {"type": "Requests", "limit": 120, "unit": "Hour"}


@pytest.fixture
def redis():
    with redis_server() as server:
        yield server


class FakeRedis:
    """The scripts, in Python, on the clock of the test. `forgets` keeps replies back."""

    port = 0

    def __init__(self, clock):
        self.clock = clock
        self.values = {}
        self.machines = set()
        self.is_there = True
        self.runs, self.replies = True, True

    def run(self, words):
        count = int(words[2])
        keys, arguments = words[3 : 3 + count], words[3 + count :]
        if words[1] == LIVING.digest:
            self.machines.add(arguments[0])
            return len(self.machines)
        if words[1] == SETTLING.digest:
            self.values[keys[0]] = max(0.0, self.state(keys[0], arguments[0]) + float(arguments[1])), self.clock()
            return b"0"
        assert words[1] == TAKING.digest
        (key, _), (kind, amount, most, _) = keys, arguments
        value = self.state(key, kind)
        fits = value + float(amount) <= float(most) + 0.1
        if fits:
            value += float(amount)
            self.values[key] = value, self.clock()
        return [int(not fits), b"%.17g" % value, len(self.machines)]

    def state(self, key, kind):
        value, at = self.values.get(key, (0.0, 0.0))
        return max(0.0, value - (self.clock() - at) * 1e6) if kind == b"b" else value

    @property
    def value(self):
        """What is used of the only key."""
        ((value, _),) = self.values.values()
        return value


class FakeLink:
    """A RedisLink, that goes and comes back when the test says so."""

    is_beginning = False

    def __init__(self, there, greeting, on_state):
        self.redis, self.on_state = there, on_state
        self.greeting = greeting
        self.is_connected = False
        self.waiting = []

    @property
    def is_waiting(self):
        return bool(self.waiting)

    def connect(self):
        if self.redis.is_there:
            self.redis.run(self.greeting[-1])
            self.is_connected = True
            self.on_state("")

    def send(self, words):
        if not self.is_connected:
            raise RedisAway("away")
        future = asyncio.get_running_loop().create_future()
        reply = self.redis.run(words) if self.redis.runs else None
        if self.redis.replies:
            future.set_result(reply)
        else:
            self.waiting.append(future)
        return future

    def lose(self, error):
        self.cut()

    def cut(self):
        self.is_connected = False
        for future in self.waiting:
            future.set_exception(RedisAway("away"))
            future.exception()
        self.waiting.clear()
        self.on_state("away")

    def close(self):
        self.is_connected = False


class DataPlane:
    """Machines, and a fake of their Redis, on a clock that stands."""

    def __init__(self, monkeypatch, count, *entries):
        self.clock = Clock(stands=True).set(monkeypatch)
        self.redis = FakeRedis(self.clock)
        monkeypatch.setattr(
            redis_store, "RedisLink", lambda dial, greeting, timeout, on_state: FakeLink(self.redis, greeting, on_state)
        )
        self.machines = [Machine(self.redis, *entries) for _ in range(count)]

    def links(self):
        return [machine.store._link for machine in self.machines]

    async def go_away(self):
        self.redis.is_there = False
        for link in self.links():
            link.cut()
        await self.settle()

    async def come_back(self):
        self.redis.is_there = self.redis.runs = self.redis.replies = True
        for link in self.links():
            link.connect()
        await self.settle()

    async def settle(self):
        """Let what was replied be read."""
        for _ in range(3):
            await asyncio.sleep(0)


async def each_asks(machines, times=1):
    """Each in turn: the last one knows all, the first one lacks what the others took since."""
    for _ in range(times):
        for machine in machines:
            assert await machine.ask() is None


@pytest.mark.parametrize("entry", [{**DAY, "limit": 120}, HOUR], ids=["Day", "Hour"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_fleet_passes_what_was_left_and_no_more(monkeypatch, entry, count):
    fleet = DataPlane(monkeypatch, count, entry)
    machines = fleet.machines

    async def test():
        await each_asks(machines, 10)
        await fleet.go_away()
        left = [120 - 10 * count + lacking for lacking in reversed(range(count))]  # as each machine knows
        away = [await machine.passed(200) for machine in machines]
        assert away == [each // count for each in left]
        fleet.redis.is_there = True
        for machine in machines:  # one after the other: the first ones know nothing of what the last ones took
            machine.store._link.connect()
            assert await machine.passed(200) == 0
        assert [await machine.passed(200) for machine in machines] == [0] * count
        fleet.clock.advance(SHARING_S)
        rest = 120 - 10 * count - sum(away) + (0.5 if entry is HOUR else 0)  # 120 in an hour: one in 30 seconds
        assert sum([await machine.passed(200) for machine in machines]) == max(0, int(rest))

    run(machines, test())


def test_a_bucket_refills_for_all_together_while_the_redis_is_away(monkeypatch):
    fleet = DataPlane(monkeypatch, 2, HOUR)

    async def test():
        await each_asks(fleet.machines, 10)
        await fleet.go_away()
        assert sum([await machine.passed(200) for machine in fleet.machines]) == 100
        fleet.clock.advance(1800)
        assert [await machine.passed(200) for machine in fleet.machines] == [30, 30], "60 in half an hour"

    run(fleet.machines, test())


def test_a_fleet_that_is_fresh_shares_from_its_first_exchange(monkeypatch):
    """No machine waits for its next sign of life to know the others."""
    fleet = DataPlane(monkeypatch, 2, DAY)

    async def test():
        await each_asks(fleet.machines)
        assert await fleet.machines[0].ask() is None
        await fleet.go_away()
        assert [await machine.passed(200) for machine in fleet.machines] == [48, 49]

    run(fleet.machines, test())


def test_machines_that_nobody_has_asked_yet_share(monkeypatch):
    """They say that they are there when their configuration is in service, and soon again."""
    fleet = DataPlane(monkeypatch, 2, DAY)

    async def test():
        for machine in fleet.machines:
            machine.filter.in_service()
        beats = [machine.store._heartbeat for machine in fleet.machines]
        loop = asyncio.get_running_loop()
        assert all(beat.when() - loop.time() <= 0.5 for beat in beats)
        fleet.machines[0].store._live()  # what that timer calls
        await fleet.settle()
        await fleet.go_away()
        assert [await machine.passed(200) for machine in fleet.machines] == [50, 50]

    run(fleet.machines, test())


def test_an_answer_longer_than_was_reserved_counts_in_the_share_as_often_as_there_are_machines(monkeypatch):
    """Reserved before the Redis went away, or while it is, told in the end."""
    fleet = DataPlane(monkeypatch, 2, BYTES)
    first, second = fleet.machines

    async def test():
        before = sized(100)
        await first.filter.request_headers(before)
        await second.filter.request_headers(sized(100))
        await first.filter.request_headers(sized(1))
        await fleet.go_away()
        meanwhile = sized(50)
        first.filter.request_headers(meanwhile)
        for x in (before, meanwhile):
            x.bytes_in = x.request.body + 300
            first.filter.complete(x)
        # Of 2,799 each has 1,399: 50, 300 and 300 of it are taken.
        with pytest.raises(LimitExceeded):
            first.filter.request_headers(sized(750))
        first.filter.request_headers(sized(749))

    run(fleet.machines, test())


def test_what_one_exchange_took_of_the_shares_of_others_is_waited_for(monkeypatch):
    fleet = DataPlane(monkeypatch, 2, {**BYTES, "per": ("Identity",)})
    machine = fleet.machines[0]

    async def test():
        for each in reversed(fleet.machines):
            await each.filter.request_headers(sized(1))
        await fleet.go_away()
        big = sized(2000, "b/b")
        machine.filter.request_headers(big)
        big.bytes_in = 1600
        machine.filter.complete(big)
        with pytest.raises(LimitExceeded):
            machine.filter.request_headers(sized(1, "b/b"))

    run(fleet.machines, test())


def test_a_worker_that_has_asked_nothing_yet_knows_the_share_of_its_machine():
    table = KeyedCounters(FLEET_KEYS)
    first, second = RedisFleet(table, 5.0), RedisFleet(table, 5.0)
    first.told(3, 10.0)
    assert (second.machines, second.is_sharing(10.0)) == (3, False)
    second.share(10.0)
    assert first.is_sharing(10.0 + SHARING_S - 0.1)
    first.told(1, 11.0)
    assert second.machines == 3, "a Redis that has lost its data has yet to hear of the others"
    first.told(4, 11.0)
    assert second.machines == 4
    assert not first.is_sharing(10.0 + SHARING_S)
    first.told(1, 10.0 + SHARING_S)
    assert RedisFleet(table, 30.0).machines == 1


def test_a_worker_that_is_back_gives_no_new_share_to_one_that_is_not(monkeypatch):
    """They count in the same memory, and the Redis knows only what the first one took."""
    counters = OwnCounters()
    fleet = DataPlane(monkeypatch, 1, DAY)
    fleet.machines += [Machine(fleet.redis, DAY, counters=counters) for _ in range(2)]
    _, first, second = fleet.machines

    async def test():
        await each_asks(fleet.machines, 10)
        await fleet.go_away()
        assert await second.passed(30) == 30
        fleet.redis.is_there = True
        first.store._link.connect()
        assert [await first.passed(1), await second.passed(1), await first.passed(200)] == [1, 1, 3]
        assert await second.passed(200) == 0, "70 were left, for two machines"

    run(fleet.machines, test())


def test_an_exchange_that_is_more_than_a_share_passes_where_all_is_left(monkeypatch):
    fleet = DataPlane(monkeypatch, 2, {**BYTES, "per": ("Identity",)})
    machine, other = fleet.machines

    def passes(length, identity="b/b"):
        try:
            machine.filter.request_headers(sized(length, identity))
        except LimitExceeded:
            return False
        return True

    async def test():
        await other.filter.request_headers(sized(1))
        await machine.filter.request_headers(sized(1))
        await fleet.go_away()
        assert [passes(3001), passes(2000), passes(1)] == [False, True, False]
        fleet.clock.advance(1)
        assert [passes(2000, "-/-"), passes(1000, "-/-")] == [False, True]

    run(fleet.machines, test())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_more_than_the_limit_is_taken_and_all_of_it_is_counted(monkeypatch, seed):
    """Reservations that become less, machines that come back at any time and in any order."""
    dice = random.Random(seed)
    fleet = DataPlane(monkeypatch, 3, BYTES)
    machines = fleet.machines
    held, took = [], 0

    async def some(asks):
        nonlocal took
        for _ in range(asks):
            machine = dice.choice(machines)
            x = sized(dice.randrange(1, 100))
            try:
                waiting = machine.filter.request_headers(x)
                if waiting is not None:
                    await waiting
                held.append((machine, x))
            except LimitExceeded:
                pass
            if held and dice.random() < 0.7:
                ending, y = held.pop(dice.randrange(len(held)))
                y.bytes_in = dice.randrange(y.request.body + 1)
                took += y.bytes_in
                ending.filter.complete(y)
                await fleet.settle()

    async def test():
        nonlocal took
        await some(dice.randrange(40))
        for machine in machines * 2:  # so that all know what is left, but for a few bytes
            await machine.filter.request_headers(sized(1))
            took += 1
        await fleet.go_away()
        await some(dice.randrange(300))
        fleet.redis.is_there = True
        for link in dice.sample(fleet.links(), 3):
            await some(dice.randrange(40))
            link.connect()
        await some(40)
        while held:
            machine, x = held.pop()
            x.bytes_in = x.request.body
            took += x.bytes_in
            machine.filter.complete(x)
        await fleet.settle()
        assert took <= 3000 + 2 * 3, "what a machine has not heard of the last bytes of the others"
        assert fleet.redis.value == took

    run(machines, test())


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("difference", [500, -500])
def test_what_was_being_settled_when_the_redis_went_is_never_counted_less(monkeypatch, runs, difference):
    fleet = DataPlane(monkeypatch, 1, BYTES)
    (machine,) = fleet.machines

    async def test():
        x = sized(600)
        await machine.filter.request_headers(x)
        fleet.redis.replies, fleet.redis.runs = False, runs
        x.bytes_in = 600 + difference
        machine.filter.complete(x)
        await fleet.go_away()
        await fleet.come_back()
        counted = {(500, True): 1600, (500, False): 1100, (-500, True): 100, (-500, False): 600}
        assert fleet.redis.value == counted[difference, runs]

    run([machine], test())


def test_a_payment_that_was_lost_is_paid_when_the_redis_is_back_again(monkeypatch):
    fleet = DataPlane(monkeypatch, 1, DAY)
    (machine,) = fleet.machines

    async def test():
        await each_asks([machine], 10)
        await fleet.go_away()
        assert await machine.passed(20) == 20
        fleet.redis.is_there, fleet.redis.runs, fleet.redis.replies = True, False, False
        machine.store._link.connect()
        await fleet.go_away()
        await fleet.come_back()
        assert fleet.redis.value == 30

    run([machine], test())


def test_what_was_taken_without_a_redis_is_paid_behind_a_reload(monkeypatch):
    fleet = DataPlane(monkeypatch, 1, DAY)
    (machine,) = fleet.machines

    async def test():
        await each_asks([machine], 10)
        await fleet.go_away()
        assert await machine.passed(20) == 20
        machine.filter.close()
        fleet.redis.is_there = True
        machine.store._link.connect()
        assert fleet.redis.value == 30

    run([machine], test())


def test_a_redis_that_is_stopped_lets_pass_what_was_left(redis):
    machines = [Machine(redis, DAY, timeout=1.0) for _ in range(3)]

    async def test():
        await each_asks(machines, 10)
        redis.hang()
        for machine in machines:
            machine.store._live()
        for machine in machines:
            await machine.is_connected(False)
        away = [await machine.passed(100) for machine in machines]
        assert away == [72 // 3, 71 // 3, 70 // 3]
        redis.go_on()
        for machine in machines:
            await machine.is_connected()
            assert await machine.passed(100) == 0
        for machine in machines:
            await until_paid(machine)
        clocks = Clock()
        clocks.advance(SHARING_S)
        with pytest.MonkeyPatch.context() as patch:
            clocks.set(patch)
            assert sum([await machine.passed(100) for machine in machines]) == 70 - sum(away)

    run(machines, test())


def test_what_is_under_way_when_a_redis_stops_passes_within_the_shares(redis):
    machines = [Machine(redis, DAY, timeout=1.0) for _ in range(2)]

    async def test():
        await each_asks(machines, 10)
        redis.hang()
        away = await asyncio.gather(*(machine.passed(100) for machine in machines))
        assert away == [81 // 2, 80 // 2]
        redis.go_on()
        for machine in machines:
            await machine.is_connected()
        assert await asyncio.gather(*(machine.passed(100) for machine in machines)) == [0, 0]

    run(machines, test())


async def until_paid(machine):
    """A reply comes behind all that was sent before."""
    await machine.store._link.send([b"PING"])
    assert not machine.store._owed
