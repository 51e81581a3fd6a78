"""The pool as a value, and under every order of events that hypothesis can think of."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, data, sampled_from

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.upstream.pool import Pool, PoolTicket
from tests.support.properties import examples


class Connection:
    def __init__(self) -> None:
        self.is_lost = False
        self.leaves = False

    def is_leaving(self) -> bool:
        return self.leaves


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


def opened(pool: Pool[Connection], client: str = "c") -> Connection:
    claim: PoolTicket[Connection] = PoolTicket(client)
    assert pool.may_open(claim)
    connection = Connection()
    pool.opened(claim, connection)
    return connection


def may_open(pool: Pool[Connection], client: str = "c") -> bool:
    return pool.may_open(PoolTicket(client))


def waits(pool: Pool[Connection], loop: asyncio.AbstractEventLoop, client: str = "c") -> PoolTicket[Connection]:
    claim: PoolTicket[Connection] = PoolTicket(client)
    pool.wait(claim, loop)
    return claim


def given(claim: PoolTicket[Connection]) -> Connection | None:
    assert claim.given is not None
    assert claim.given.done(), "it waits"
    return claim.given.result()


def has_waited(claim: PoolTicket[Connection]) -> bool:
    return claim.given is not None and claim.given.done()


def test_the_connection_that_was_used_last_is_taken_first():
    pool: Pool[Connection] = Pool("p")
    one, two = opened(pool), opened(pool)
    assert pool.release(one, reusable=True) is None
    assert pool.release(two, reusable=True) is None
    assert pool.take() is two
    assert pool.take() is one
    assert pool.take() is None


def test_a_connection_that_is_closing_is_not_handed_out():
    pool: Pool[Connection] = Pool("p")
    one = opened(pool)
    pool.release(one, reusable=True)
    one.leaves = True
    assert pool.take() is None
    pool.lost(one)
    assert pool.open == 0


def test_a_pool_is_all_idle_while_nothing_is_in_use_and_nobody_waits(loop):
    pool: Pool[Connection] = Pool("p", limit=2)
    assert pool.is_all_idle
    one = opened(pool)
    assert not pool.is_all_idle, "it may still be being opened"
    pool.release(one, reusable=True)
    assert pool.is_all_idle
    two = opened(pool)
    assert not pool.is_all_idle
    pool.take()
    waiter = waits(pool, loop)
    pool.release(one, reusable=True)
    assert given(waiter) is one
    pool.release(one, reusable=True)
    pool.release(two, reusable=True)
    assert pool.is_all_idle
    waits(pool, loop)
    assert not pool.is_all_idle


def test_the_limit_holds_and_a_lost_connection_frees_its_place():
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    assert not may_open(pool)
    pool.lost(one)
    assert may_open(pool)


def test_a_full_queue_refuses_with_503(loop):
    pool: Pool[Connection] = Pool("p", limit=1, max_waiting=1)
    opened(pool)
    waits(pool, loop)
    with pytest.raises(LimitExceeded) as caught:
        waits(pool, loop)
    assert (caught.value.status, caught.value.reason) == (503, Reason.QUEUE_FULL)


def test_too_many_idle_connections_are_given_back_to_be_closed():
    pool: Pool[Connection] = Pool("p", max_idle=1)
    one, two = opened(pool), opened(pool)
    pool.release(one, reusable=True)
    assert pool.release(two, reusable=True) is two


def test_who_left_gives_on_what_was_given_to_him(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    first, second = waits(pool, loop), waits(pool, loop)
    pool.release(one, reusable=True)
    assert pool.leave(first) is one
    assert pool.release(one, reusable=True) is None
    assert given(second) is one


def test_the_right_to_open_is_passed_on_when_its_holder_has_left(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    first, second = waits(pool, loop), waits(pool, loop)
    pool.lost(one)
    assert given(first) is None
    assert pool.leave(first) is None
    assert given(second) is None
    assert pool.open == 1


# --- several clients -------------------------------------------------------------------------------------------------
def test_clients_take_turns_however_many_of_one_wait(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool, "busy")
    many = [waits(pool, loop, "busy") for _ in range(5)]
    other, third = waits(pool, loop, "other"), waits(pool, loop, "third")
    served = []
    for _ in range(7):
        pool.release(one, reusable=True)
        served += [claim for claim in (*many, other, third) if has_waited(claim) and claim not in served]
    assert served == [many[0], other, third, *many[1:]]


def test_one_client_has_no_more_than_its_share_of_the_queue(loop):
    pool: Pool[Connection] = Pool("p", limit=1, max_waiting=4, share=2)
    opened(pool)
    for _ in range(2):
        waits(pool, loop, "greedy")
    with pytest.raises(LimitExceeded):
        waits(pool, loop, "greedy")
    waits(pool, loop, "other")


def test_a_client_with_its_share_waits_while_others_open_connections(loop):
    pool: Pool[Connection] = Pool("p", limit=8, share=2)
    for _ in range(2):
        opened(pool, "greedy")  # before anything is scarce, nobody is counted
    held = [opened(pool, "greedy") for _ in range(2)]
    assert not may_open(pool, "greedy")
    waiter = waits(pool, loop, "greedy")
    other = opened(pool, "other")
    pool.release(other, reusable=True)
    assert not has_waited(waiter)
    assert pool.take() is None, "who asks without being counted gets none"
    assert pool.take_kept(PoolTicket("greedy")) is None
    assert pool.take_kept(PoolTicket("other")) is other
    pool.lost(held[0])
    assert given(waiter) is None


def test_an_idle_connection_goes_to_the_client_below_its_share(loop):
    pool: Pool[Connection] = Pool("p", limit=3, share=1)
    opened(pool, "greedy")
    two, three = opened(pool, "greedy"), opened(pool, "other")
    greedy, third = waits(pool, loop, "greedy"), waits(pool, loop, "third")
    pool.release(three, reusable=True)
    assert given(third) is three
    assert not has_waited(greedy)
    pool.release(two, reusable=True)
    assert given(greedy) is two


def test_counting_ends_when_nothing_is_scarce_any_more(loop):
    pool: Pool[Connection] = Pool("p", limit=4, share=2)
    one, two, three = (opened(pool) for _ in range(3))
    pool.release(one, reusable=True)
    assert pool.take() is None
    pool.lost(two)
    pool.lost(three)
    assert pool.take() is one
    assert not pool._held.total


def test_whoever_waits_too_long_is_told_so(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    late, other = waits(pool, loop), waits(pool, loop)
    pool.too_late(late)
    with pytest.raises(LimitExceeded) as caught:
        given(late)
    assert (caught.value.status, caught.value.reason) == (503, Reason.QUEUE_TIMEOUT)
    assert pool.leave(late) is None
    pool.release(one, reusable=True)
    assert given(other) is one
    pool.too_late(other)
    assert given(other) is one


def test_a_retired_pool_keeps_nothing():
    pool: Pool[Connection] = Pool("p")
    one, two = opened(pool), opened(pool)
    pool.release(one, reusable=True)
    assert pool.retire() == [one]
    assert pool.release(two, reusable=True) is two


def test_only_an_idle_connection_can_be_withdrawn():
    pool: Pool[Connection] = Pool("p")
    one, two = opened(pool), opened(pool)
    pool.release(one, reusable=True)
    assert pool.withdraw(one)
    assert not pool.withdraw(one)
    assert not pool.withdraw(two)
    assert pool.take() is None
    pool.lost(one)
    assert pool.open == 1


def test_its_state_can_be_read():
    pool: Pool[Connection] = Pool("p")
    opened(pool)
    assert repr(pool) == "Pool(p, open=1, idle=0, waiting=0)"
    assert not pool.is_empty


class Life(RuleBasedStateMachine):
    """Exchanges of two clients that take, open, wait, leave, release; connections that die at any moment."""

    LIMIT, SHARE = 6, 2

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool: Pool[Connection] = Pool("p", limit=self.LIMIT, max_idle=2, max_waiting=4, share=self.SHARE)
        self.busy: list[Connection] = []
        self.holders: dict[Connection, str] = {}  # of `busy`
        self.opening: list[PoolTicket[Connection]] = []
        self.closing: list[Connection] = []  # closed, and not yet reported as lost
        self.queue: list[PoolTicket[Connection]] = []

    def teardown(self) -> None:
        for claim in self.queue:
            self._leave(claim)
        known = [*self.busy, *self.closing]
        idle = [one for one in (*self.pool.idle, *self.pool.kept) if one not in known]  # each is lost once
        for connection in [*known, *idle]:
            connection.is_lost = connection.leaves = True
            self.pool.lost(connection)
        for claim in self.opening:
            self.pool.lost(claim)
        assert self.pool.open == 0
        assert self.pool.is_empty
        assert not self.pool._held.total
        assert not self.pool._holders
        self.loop.close()

    def _close(self, connection: Connection) -> None:
        connection.leaves = True
        self.closing.append(connection)

    def _release(self, connection: Connection, reusable: bool) -> None:
        surplus = self.pool.release(connection, reusable=reusable)
        if surplus is not None and not surplus.is_lost:
            self._close(surplus)

    def _leave(self, claim: PoolTicket[Connection]) -> None:
        assert claim.given is not None
        claim.given.cancel()
        connection = self.pool.leave(claim)
        if connection is not None:
            self._release(connection, True)

    def _take(self, connection: Connection, client: str) -> None:
        assert connection not in self.busy
        self.busy.append(connection)
        self.holders[connection] = client

    @rule(client=sampled_from("ab"))
    def ask(self, client: str) -> None:
        claim: PoolTicket[Connection] = PoolTicket(client)
        connection = self.pool.take() or self.pool.take_kept(claim)
        if connection is not None:
            assert not connection.is_leaving()
            self._take(connection, client)
        elif self.pool.may_open(claim):
            self.opening.append(claim)
        else:
            try:
                self.pool.wait(claim, self.loop)
            except LimitExceeded:
                return
            self.queue.append(claim)

    @precondition(lambda self: self.opening)
    @rule(choice=data(), works=booleans())
    def opening_ends(self, choice, works: bool) -> None:
        claim = self.opening.pop(choice.draw(_index(self.opening)))
        if works:
            connection = Connection()
            self.pool.opened(claim, connection)
            self._take(connection, claim.client)
        else:
            self.pool.lost(claim)

    @precondition(lambda self: self.busy)
    @rule(choice=data(), reusable=booleans())
    def release(self, choice, reusable: bool) -> None:
        connection = self.busy.pop(choice.draw(_index(self.busy)))
        self._release(connection, reusable)

    @precondition(lambda self: self.pool.idle or self.pool.kept)
    @rule(choice=data())
    def idle_closes(self, choice) -> None:
        idle = self.pool.idle + self.pool.kept
        connection = idle[choice.draw(_index(idle))]
        if connection not in self.closing:
            self._close(connection)

    @precondition(lambda self: self.closing)
    @rule(choice=data())
    def loss_is_reported(self, choice) -> None:
        connection = self.closing.pop(choice.draw(_index(self.closing)))
        connection.is_lost = True
        self.pool.lost(connection)

    @precondition(lambda self: self.queue)
    @rule(choice=data())
    def leave(self, choice) -> None:
        self._leave(self.queue.pop(choice.draw(_index(self.queue))))

    @precondition(lambda self: any(has_waited(claim) for claim in self.queue))
    @rule()
    def served(self) -> None:
        """Whoever was given something goes on; those of its client before it in the queue were given something, too."""
        for client in "ab":
            states = [has_waited(claim) for claim in self.queue if claim.client == client]
            assert states == sorted(states, reverse=True), "served in order"
        claim = next(claim for claim in self.queue if has_waited(claim))
        self.queue.remove(claim)
        connection = given(claim)
        if connection is None:
            self.opening.append(claim)
        else:
            self._take(connection, claim.client)

    @invariant()
    def everything_is_counted_once(self) -> None:
        results = [given(claim) for claim in self.queue if has_waited(claim)]
        rights = sum(one is None for one in results)
        held = [one for one in results if one is not None]
        idle = [one for one in (*self.pool.idle, *self.pool.kept) if one not in self.closing]
        hands = [*self.busy, *held, *self.closing, *idle]
        assert len(set(map(id, hands))) == len(hands), "no connection is in two hands"
        assert 0 <= self.pool.open <= self.LIMIT
        assert self.pool.open == len(hands) + len(self.opening) + rights

    @invariant()
    def nobody_holds_more_than_two_shares(self) -> None:
        for client in "ab":
            claims = [*self.opening, *(claim for claim in self.queue if has_waited(claim))]
            held = sum(claim.client == client for claim in claims)
            held += sum(self.holders[connection] == client for connection in self.busy)
            assert held <= 2 * self.SHARE

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for claim in self.queue:
            if not has_waited(claim) and self.pool._held.of(claim.client) < self.SHARE:
                assert self.pool.open == self.LIMIT
                assert not [one for one in self.pool.kept if not one.is_leaving()]


def _index(items):
    from hypothesis.strategies import integers

    return integers(0, len(items) - 1)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
