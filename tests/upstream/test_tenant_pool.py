"""A pool in which no connection passes from one tenant to another, under every order of events."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, sampled_from

from egressproxy.errors import LimitExceeded
from egressproxy.upstream.pool import PoolTicket, TenantPool
from tests.support.properties import examples

TENANTS = ("a", "b", "c")


class Connection:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.leaves = False

    def is_leaving(self) -> bool:
        return self.leaves


def opened(pool: TenantPool[Connection], tenant: str) -> Connection:
    claim: PoolTicket[Connection] = PoolTicket("client", tenant)
    assert pool.may_open(claim)
    connection = Connection(tenant)
    pool.opened(claim, connection)
    return connection


def test_an_idle_connection_is_for_its_tenant_alone():
    pool: TenantPool[Connection] = TenantPool("p")
    one, two = opened(pool, "a"), opened(pool, "a")
    assert (pool.release(one, reusable=True), pool.release(two, reusable=True)) == (None, None)
    assert pool.take() is None
    assert pool.take_kept(PoolTicket("client", "b")) is None
    assert [pool.take_kept(PoolTicket("other", "a")) for _ in range(3)] == [two, one, None]
    assert (pool.open, pool.idle_count) == (2, 0)


class Incomparable(Connection):
    """Who looks at others on the way to this one compares them."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a connection is compared with another")


def test_of_a_thousand_idle_connections_none_is_looked_at_on_the_way_to_another():
    pool: TenantPool[Connection] = TenantPool("p", limit=2000)
    held = []
    for _ in range(1000):
        claim: PoolTicket[Connection] = PoolTicket("client", "a")
        assert pool.may_open(claim)
        held.append(Incomparable("a"))
        pool.opened(claim, held[-1])
    for connection in held:
        assert pool.release(connection, reusable=True) is None
    for _ in range(3):
        found = pool.take_kept(PoolTicket("client", "a"))
        assert found is held[-1]
        assert pool.release(found, reusable=True) is None
    assert pool.withdraw(held[500])
    assert pool.idle_count == 999


def test_nothing_is_left_of_tenants_that_come_and_go():
    pool: TenantPool[Connection] = TenantPool("p")
    for number in range(1000):
        connection = opened(pool, f"tenant-{number}")
        pool.release(connection, reusable=True)
        assert pool.take_kept(PoolTicket("client", f"tenant-{number}")) is connection
        pool.lost(connection)
    assert not any((pool._tenants, pool._idle, pool._idle_of))


def test_the_oldest_idle_connection_makes_room_for_another_tenant():
    loop = asyncio.new_event_loop()
    pool: TenantPool[Connection] = TenantPool("p", limit=2)
    for connection in [opened(pool, "a"), opened(pool, "b")]:
        pool.release(connection, reusable=True)
    claim: PoolTicket[Connection] = PoolTicket("client", "c")
    assert not pool.may_open(claim)
    given = pool.wait(claim, loop)
    surplus = pool.make_room()
    assert surplus is not None
    assert surplus.tenant == "a"
    pool.lost(surplus)
    assert given.result() is None, "the right to open one"
    assert (pool.open, pool.idle_count) == (2, 1)
    loop.close()


def test_what_is_given_back_while_others_wait_is_closed():
    loop = asyncio.new_event_loop()
    pool: TenantPool[Connection] = TenantPool("p", limit=1)
    connection = opened(pool, "a")
    given = pool.wait(PoolTicket("client", "b"), loop)
    assert pool.make_room() is None
    assert pool.release(connection, reusable=True) is connection
    assert not given.done()
    pool.lost(connection)
    assert given.result() is None
    loop.close()


def test_retiring_gives_the_idle_ones_of_all_tenants():
    pool: TenantPool[Connection] = TenantPool("p")
    both = [opened(pool, "a"), opened(pool, "b")]
    for connection in both:
        pool.release(connection, reusable=True)
    assert pool.withdraw(both[0])
    assert not pool.withdraw(both[0])
    assert pool.retire() == both[1:]
    for connection in both:
        pool.lost(connection)
    assert pool.is_empty


@settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
class Exchanges(RuleBasedStateMachine):
    """Exchanges that take, open, wait, give back and lose connections."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool: TenantPool[Connection] = TenantPool("p", limit=4, max_idle=2, share=3)
        self.busy: list[Connection] = []
        self.waiting: list[PoolTicket[Connection]] = []

    def teardown(self) -> None:
        self.loop.close()

    @rule(tenant=sampled_from(TENANTS), client=sampled_from(["x", "y"]))
    def asks(self, tenant: str, client: str) -> None:
        claim: PoolTicket[Connection] = PoolTicket(client, tenant)
        found = self.pool.take() or self.pool.take_kept(claim)
        if found is not None:
            assert found.tenant == tenant
            self.busy.append(found)
        elif self.pool.may_open(claim):
            self.opens(claim)
        else:
            try:
                self.pool.wait(claim, self.loop)
            except LimitExceeded:  # the queue is full of this client
                return
            self.waiting.append(claim)
            surplus = self.pool.make_room()
            if surplus is not None:
                self.pool.lost(surplus)
        self.serves_the_waiting()

    def opens(self, claim: PoolTicket[Connection]) -> None:
        connection = Connection(claim.tenant)
        self.pool.opened(claim, connection)
        self.busy.append(connection)

    def serves_the_waiting(self) -> None:
        for claim in [each for each in self.waiting if each.given is not None and each.given.done()]:
            self.waiting.remove(claim)
            assert claim.given is not None
            assert claim.given.result() is None
            self.opens(claim)

    @precondition(lambda self: self.busy)
    @rule(drawn=data(), reusable=sampled_from([True, True, False]))
    def ends(self, drawn, reusable: bool) -> None:
        connection = self.busy.pop(drawn.draw(sampled_from(range(len(self.busy)))))
        surplus = self.pool.release(connection, reusable=reusable)
        if surplus is not None:
            self.pool.lost(surplus)
        self.serves_the_waiting()

    @precondition(lambda self: self.waiting)
    @rule()
    def leaves(self) -> None:
        assert self.pool.leave(self.waiting.pop()) is None

    @invariant()
    def adds_up(self) -> None:
        assert self.pool.open == len(self.busy) + self.pool.idle_count <= 4
        assert self.pool.idle_count <= 2
        assert len(self.pool._tenants) == self.pool.open
        assert not self.waiting or self.pool.open > 0, "somebody waits for nobody"


TestExchanges = Exchanges.TestCase
