"""Against a real Redis, and through its failures."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from egressproxy.ai.limits.qos_controller import QOS_CONTROLLER, quota
from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import FilterContext, Phase
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.filter_step import start
from egressproxy.filters.limits import memory_store, redis_store
from egressproxy.filters.limits import quota as quota_module
from egressproxy.filters.limits.qos_config import LimitEntry, QoSControllerConfig, StoreConfig
from egressproxy.filters.limits.quota import Held
from egressproxy.filters.limits.redis_store import SHARING_S
from egressproxy.filters.settings import CalledBackendRef, SecretRef
from egressproxy.filters.testing import exchange
from egressproxy.model.secret import SecretBytes
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.support.net import free_port
from tests.support.redis_server import PASSWORD, redis_server
from tests.support.waiting import until, wait_until

REF = CalledBackendRef("redis", port=6379)
SECRET = SecretRef("redis-password", "token")


class Clock:
    """The clock of limits: stands where it is, or goes with that of the machine."""

    def __init__(self, *, stands=False):
        self._begin = time.monotonic()
        self._stands = stands
        self._ahead_s = 0.0

    def __call__(self):
        return (self._begin if self._stands else time.monotonic()) + self._ahead_s

    def advance(self, seconds):
        self._ahead_s += seconds

    def set(self, monkeypatch):
        for module in (memory_store, quota_module, redis_store):
            monkeypatch.setattr(module, "monotonic", self)
        return self


@pytest.fixture
def clock(monkeypatch):
    return Clock().set(monkeypatch)


@pytest.fixture
def redis():
    with redis_server() as server:
        yield server


class Dial:
    """Opens connections to the Redis of the test."""

    def __init__(self, port):
        self.port, self.opened = port, 0

    async def open(self, protocol, *, timeout_s):
        self.opened += 1
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", self.port)
        except OSError:
            raise CallFailed(Reason.CONNECT_REFUSED, "refused") from None
        return transport


class Machine:
    """One machine of the fleet, with a QoSController of its own."""

    def __init__(self, redis, *entries, password=PASSWORD, timeout=2.0, on_failure="Local", phase=None, counters=None):
        store = StoreConfig(REF, secret_ref=SECRET, timeout=timeout, on_failure=on_failure)
        config = QoSControllerConfig(limits=tuple(LimitEntry(**entry) for entry in entries), store=store)
        self.notices = EventAggregator()
        self.dial = Dial(redis.port)
        context = FilterContext(
            config,
            {} if password is None else {SECRET.label: SecretBytes(password.encode())},
            "q",
            "s",
            "EgressPolicy a/p",
            phase=phase or Phase.REQUEST_HEADERS,
            calls={REF.label: self.dial},
            keyed=(counters or OwnCounters()).keyed,
            meter=FilterMeter(FilterMetrics(), "q", QOS_CONTROLLER.name),
            notices=FilterNotices(self.notices, "q", "EgressPolicy a/p"),
        )
        self.filter = quota(context)
        self.store = self.filter._store

    async def ask(self, identity="a/a"):
        """Whether a request passes; the error where it does not."""
        x = exchange("GET", "https://a.example/", identity=identity)
        try:
            waiting = self.filter.request_headers(x)
            if waiting is not None:
                await waiting
        except LimitExceeded as error:
            return error
        return None

    async def passed(self, tries, identity="a/a"):
        outcomes = await asyncio.gather(*(self.ask(identity) for _ in range(tries)))
        return outcomes.count(None)

    async def is_connected(self, wanted=True):
        await until(lambda: self.store._link is not None and self.store._link.is_connected is wanted)

    async def counts(self, machines):
        await until(lambda: self.store._fleet.machines == machines)

    def told(self):
        return [notice.reason for notice in self.notices.take()]


def run(machines, test):
    async def whole():
        try:
            return await test
        finally:
            for machine in machines:
                machine.filter.close()

    return asyncio.run(whole())


DAY = {"type": "Requests", "limit": 100, "unit": "Day", "per": ("Identity",)}
HOUR = {"type": "Requests", "limit": 70, "unit": "Hour", "per": ("Identity",)}


def test_a_fleet_passes_exactly_the_limit(redis):
    machines = [Machine(redis, DAY), Machine(redis, DAY), Machine(redis, DAY)]

    async def test():
        assert sum(await asyncio.gather(*(machine.passed(80) for machine in machines))) == 100
        assert sum(await asyncio.gather(*(machine.passed(80, "b/b") for machine in machines))) == 100

    run(machines, test())


def test_a_refused_request_counts_in_no_limit(redis):
    machine = Machine(redis, DAY, HOUR)

    async def test():
        assert await machine.passed(200) == 70
        error = await machine.ask()
        assert (error.reason, error.retry_after_s) == (Reason.REQUEST_RATE, 52)
        state = dict(error.fields)[b"RateLimit"]
        assert b'"requests-day-identity";r=30;' in state
        assert b'"requests-hour-identity";r=0;t=3600' in state

    run([machine], test())


def test_a_bucket_refills_on_the_clock_of_the_redis(redis):
    machine = Machine(redis, {"type": "Requests", "limit": 20, "unit": "Second"})

    async def test():
        began = time.monotonic()
        assert await machine.passed(20) == 20
        passed = 0
        while passed < 20:
            passed += await machine.passed(1)
        assert time.monotonic() - began > 0.9, "twenty more take a second"

    run([machine], test())


def test_what_is_settled_counts_for_all(redis):
    tokens = {"type": "Bytes", "limit": 1000, "unit": "Day"}
    first, second = Machine(redis, tokens), Machine(redis, tokens)

    async def test():
        x = exchange("POST", "https://a.example/")
        x.request.body = 900
        await first.filter.request_headers(x)
        big = exchange("POST", "https://a.example/")
        big.request.body = 200
        with pytest.raises(LimitExceeded):
            await second.filter.request_headers(big)
        x.bytes_in, x.bytes_out = 300, 0
        first.filter.complete(x)
        await first.filter.request_headers(exchange("GET", "https://a.example/"))  # behind the settlement
        await second.filter.request_headers(big)

    run([first, second], test())


def test_what_ends_behind_a_reload_is_settled_all_the_same(redis):
    """The filter is no longer in any snapshot, and an exchange in progress has it still."""
    tokens = {"type": "Bytes", "limit": 1000, "unit": "Day"}
    old, new = Machine(redis, tokens), Machine(redis, tokens)

    async def test():
        long, short, waits = (exchange("POST", "https://a.example/") for _ in range(3))
        long.request.body, short.request.body, waits.request.body = 100, 500, 10
        await old.filter.request_headers(long)
        await old.filter.request_headers(short)
        old.filter.close()
        long.bytes_in, short.bytes_in = 700, 200
        old.filter.complete(long)
        old.filter.complete(short)
        await old.filter.request_headers(waits)  # was read before the reload, and decided behind it
        await new.filter.request_headers(exchange("GET", "https://a.example/"))
        asked = exchange("POST", "https://a.example/")
        asked.request.body = 90  # 700, 200, 10 and 1 are taken
        with pytest.raises(LimitExceeded):
            await new.filter.request_headers(asked)
        asked.request.body = 89
        await new.filter.request_headers(asked)
        assert old.dial.opened == 2
        await until(lambda: old.store._link is None)

    run([new], test())


def test_what_was_not_taken_is_not_given_back(redis):
    """Another attempt, whose client leaves, or which is refused, while the Redis is asked."""
    tokens = {"type": "Bytes", "limit": 1000, "unit": "Day"}
    machine = Machine(redis, tokens, on_failure="Deny", phase=Phase.BACKEND_REQUEST)
    other = Machine(redis, tokens, phase=Phase.BACKEND_REQUEST)

    async def test():
        await other.filter.backend_request(sized(600))
        x = sized(100)
        await machine.filter.backend_request(x)
        leaving = asyncio.ensure_future(machine.filter.backend_request(x))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        x.bytes_in = 0
        await machine.filter.backend_request(sized(1))  # behind what is given back
        machine.filter.complete(x)
        await machine.filter.backend_request(sized(1))
        with pytest.raises(LimitExceeded):
            await other.filter.backend_request(sized(399))
        machine.store._link.close()
        await machine.is_connected(False)
        y = sized(1)
        y.keep(machine.filter._held, Held(None))
        with pytest.raises(LimitExceeded, match="their store is away"):
            machine.filter.backend_request(y)
        assert y.state.get(machine.filter._held).takes == []

    run([machine, other], test())


def sized(length, identity="-/-"):
    x = exchange("POST", "https://a.example/", identity=identity)
    x.request.body = length
    return x


def test_all_of_one_turn_of_the_loop_go_in_one_write(redis):
    machine = Machine(redis, DAY)

    async def test():
        await machine.passed(1)
        writes = []
        transport = machine.store._link._connection._transport
        real = transport.write
        machine.store._link._connection._transport = Spy(transport, lambda data: (writes.append(data), real(data)))
        assert await machine.passed(50) == 50
        assert len(writes) == 1
        assert machine.dial.opened == 1

    run([machine], test())


def test_a_new_connection_is_greeted_in_one_write(redis):
    """So that it is there after one round trip, however far away the Redis is."""
    machine = Machine(redis, DAY)
    writes = []
    real = machine.dial.open

    async def opened(protocol, *, timeout_s):
        transport = await real(protocol, timeout_s=timeout_s)
        protocol._transport = Spy(transport, lambda data: (writes.append(data), transport.write(data)))
        return transport

    machine.dial.open = opened

    async def test():
        machine.filter.in_service()
        await machine.is_connected()
        assert [b"AUTH" in data and data.count(b"LOAD") == 3 for data in writes[:1]] == [True]

    run([machine], test())


class Spy:
    def __init__(self, transport, write):
        self.transport, self.write = transport, write

    def __getattr__(self, name):
        return getattr(self.transport, name)


def test_while_a_redis_is_killed_each_machine_passes_its_share_and_pays_later(redis, clock):
    machines = [Machine(redis, DAY), Machine(redis, DAY)]

    async def test():
        for machine in machines:
            assert await machine.passed(20) == 20
        for machine in machines:
            machine.store._live()
            await machine.counts(2)
        await machines[0].ask("b/b")
        redis.kill()
        for machine in machines:
            await machine.is_connected(False)
        # Forty are spent, of which the first one knows twenty, and the other all: their shares are 40 and 30 at most.
        passed = [await machine.passed(90) for machine in machines]
        assert passed == [40, 30]
        assert [machine.told() for machine in machines] == [["LimitStoreBack", "LimitStoreAway"]] * 2
        redis.start()
        for machine in machines:
            await machine.is_connected()
        # What it knew is gone; what was taken without it is there.
        assert sum([await machine.passed(90) for machine in machines]) == 0, "their shares are used up"
        clock.advance(SHARING_S)
        assert sum([await machine.passed(90) for machine in machines]) == 100 - sum(passed)

    run(machines, test())


def test_a_redis_that_hangs_is_waited_for_once(redis):
    machine = Machine(redis, DAY, timeout=0.2)

    async def test():
        assert await machine.passed(10) == 10
        redis.hang()
        assert await machine.passed(50) == 50
        waiting = [machine.filter.request_headers(exchange("GET", "https://a.example/", identity="a/a")) for _ in "ab"]
        assert waiting == [None, None], "nobody waits a second time"
        assert await machine.passed(8) == 8
        assert machine.told()[-1] == "LimitStoreAway"
        redis.go_on()
        await machine.is_connected()
        assert await machine.passed(90) in range(0, 31), "those that were under way may have counted twice"

    run([machine], test())


def test_a_redis_that_is_slow_is_waited_for(redis):
    machines = [Machine(redis, DAY), Machine(redis, DAY)]

    async def test():
        for machine in machines:
            await machine.passed(10)
        redis.command("CLIENT", "PAUSE", "300", "ALL")
        assert sum(await asyncio.gather(*(machine.passed(90) for machine in machines))) == 80
        assert all(machine.store._link.is_connected for machine in machines)

    run(machines, test())


class FarTransport(asyncio.Transport):
    def __init__(self, transport):
        super().__init__()
        self._transport = transport
        self.abort = transport.abort

    def write(self, data):
        asyncio.get_running_loop().call_later(0.025, self._transport.write, data)


class FarDial(Dial):
    """To a Redis whose replies, and what is said to it, take 25 ms each."""

    async def open(self, protocol, *, timeout_s):
        loop = asyncio.get_running_loop()
        made, received = protocol.connection_made, protocol.data_received
        protocol.connection_made = lambda transport: made(FarTransport(transport))
        protocol.data_received = lambda data: loop.call_later(0.025, received, data)
        return await super().open(protocol, timeout_s=timeout_s)


def test_a_redis_that_is_far_away_lets_pass_the_whole_limit(redis):
    machines = [Machine(redis, DAY, timeout=5.0), Machine(redis, DAY, timeout=5.0)]
    for machine in machines:
        machine.dial = machine.store._dial = FarDial(redis.port)

    async def client(machine):
        passed = 0
        while await machine.ask() is None:
            passed += 1
        return passed

    async def test():
        assert sum(await asyncio.gather(*(client(machine) for machine in machines for _ in range(8)))) == 100
        assert [machine.dial.opened for machine in machines] == [1, 1]
        assert [machine.told() for machine in machines] == [["LimitStoreBack"]] * 2

    run(machines, test())


def test_a_script_that_was_flushed_is_sent_again(redis):
    machine = Machine(redis, DAY)

    async def test():
        assert await machine.passed(10) == 10
        redis.command("SCRIPT", "FLUSH")
        assert await machine.passed(10) == 10
        redis.command("FLUSHALL")
        assert await machine.passed(200) == 100, "what a Redis forgets is forgotten"

    run([machine], test())


@pytest.mark.parametrize(("on_failure", "passes"), [("Allow", 200), ("Deny", 0), ("Local", 100)])
def test_a_wrong_password_is_told_and_never_shown(redis, on_failure, passes):
    machine = Machine(redis, DAY, password="wrong-password", on_failure=on_failure)

    async def test():
        assert await machine.passed(200) == passes
        error = await machine.ask()
        if on_failure == "Deny":
            assert (error.status, error.retry_after_s) == (503, 1)
        (notice,) = machine.notices.take()
        assert notice.reason == "LimitStoreAway"
        assert "WRONGPASS" in notice.message
        assert "wrong-password" not in notice.message + repr(machine.store) + repr(machine.filter)

    run([machine], test())


def cluster_node():
    return redis_server(options=["--cluster-enabled", "yes", "--cluster-port", str(free_port())])


def test_a_cluster_of_one_node_counts():
    """All keys are in one slot, so that a script may take from several limits."""
    with cluster_node() as redis:
        assert redis.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"+OK"
        wait_until(lambda: redis.command("GET", "a") == b"$-1", "the cluster is not up")
        machines = [Machine(redis, DAY, HOUR), Machine(redis, DAY, HOUR)]

        async def test():
            assert sum(await asyncio.gather(*(machine.passed(60) for machine in machines))) == 70
            told = [notice.reason for machine in machines for notice in machine.notices.take()]
            assert told == ["LimitStoreBack"] * 2

        run(machines, test())


def test_a_node_of_a_larger_cluster_is_away_and_says_what_to_do():
    with cluster_node() as one, cluster_node() as other:
        slot = int(one.command("CLUSTER", "KEYSLOT", "{egressproxy}")[1:])
        one.command("CLUSTER", "MEET", "127.0.0.1", str(other.port), other.option("--cluster-port"))
        one.command("CLUSTER", "ADDSLOTSRANGE", "0", str(slot - 1))
        other.command("CLUSTER", "ADDSLOTSRANGE", str(slot), "16383")
        wait_until(lambda: one.command("GET", "{egressproxy}").startswith(b"-MOVED"), "the nodes do not meet")
        machine = Machine(one, DAY, on_failure="Deny")

        async def test():
            error = await machine.ask()
            assert error.status == 503
            await until(lambda: machine.dial.opened > 2)
            (notice,) = machine.notices.take()
            expected = "it is one of several nodes of a Redis Cluster: name a Redis that has all keys (MOVED)"
            assert (notice.reason, expected in notice.message) == ("LimitStoreAway", True)

        run([machine], test())


def test_a_primary_that_becomes_a_replica_is_away_until_it_is_one_again(redis):
    machine = Machine(redis, DAY, on_failure="Deny")

    async def test():
        assert await machine.passed(10) == 10
        machine.notices.take()
        with redis_server() as primary:
            redis.command("CONFIG", "SET", "masterauth", PASSWORD)
            redis.command("REPLICAOF", "127.0.0.1", str(primary.port))
            assert (await machine.ask()).status == 503
            await until(lambda: machine.dial.opened > 2)
            (notice,) = machine.notices.take()
            assert "it is a replica: name the primary (READONLY)" in notice.message
            redis.command("REPLICAOF", "NO", "ONE")
        await until(lambda: machine.store._link.is_connected)
        assert await machine.ask() is None

    run([machine], test())


def test_without_its_secret_it_is_away():
    machine = Machine(Dial(1), DAY, password=None)

    async def test():
        assert await machine.passed(200) == 100
        assert "password is not there" in machine.notices.take()[0].message

    run([machine], test())
    assert machine.dial.opened == 0


def test_a_client_that_leaves_gives_back_what_it_took(redis):
    machine = Machine(redis, DAY)

    async def test():
        await machine.passed(1)
        leaving = [asyncio.ensure_future(machine.ask()) for _ in range(40)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await machine.ask("b/b")  # its reply comes behind theirs
        await machine.ask("b/b")  # and this one behind what they gave back
        assert await machine.passed(200) == 99

    run([machine], test())


@pytest.mark.parametrize("is_repeated", [False, True], ids=["first attempt", "next attempt"])
def test_a_client_that_leaves_before_the_redis_is_asked_frees_its_place_and_gives_nothing_back(redis, is_repeated):
    tokens = {"type": "Bytes", "limit": 1000, "unit": "Day"}
    machine = Machine(redis, tokens, {"type": "Concurrency", "limit": 2}, phase=Phase.BACKEND_REQUEST)

    async def test():
        await machine.filter.backend_request(sized(600))
        x = sized(100)
        if is_repeated:
            await machine.filter.backend_request(x)
        waiting = machine.filter.backend_request(x)

        async def wait():
            await waiting

        leaving = start(SimpleNamespace(stats=SimpleNamespace(runs=1)), wait(), waiting)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        x.bytes_in = 0
        machine.filter.complete(x)
        await machine.filter.backend_request(sized(400))  # behind what may be given back
        (bytes_left, places_left) = (state.left for state in machine.filter.explain(sized(1)))
        assert (round(bytes_left), places_left) == (0, 0)

    run([machine], test())
