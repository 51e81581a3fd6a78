"""The pool as a value, and under every order of events that hypothesis can think of."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, data

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.upstream.pool import Pool


class Connection:
    def __init__(self) -> None:
        self.is_lost = False
        self.is_leaving = False


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


def opened(pool: Pool[Connection]) -> Connection:
    assert pool.may_open()
    return Connection()


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
    one.is_leaving = True
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
    waiter = pool.wait(loop)
    pool.release(one, reusable=True)
    assert waiter.result() is one
    pool.release(one, reusable=True)
    pool.release(two, reusable=True)
    assert pool.is_all_idle
    pool.wait(loop)
    assert not pool.is_all_idle


def test_the_limit_holds_and_a_lost_connection_frees_its_place():
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    assert not pool.may_open()
    pool.lost(one)
    assert pool.may_open()


def test_a_full_queue_refuses_with_503(loop):
    pool: Pool[Connection] = Pool("p", limit=1, max_waiting=1)
    opened(pool)
    pool.wait(loop)
    with pytest.raises(LimitExceeded) as caught:
        pool.wait(loop)
    assert (caught.value.status, caught.value.reason) == (503, Reason.QUEUE_FULL)


def test_too_many_idle_connections_are_given_back_to_be_closed():
    pool: Pool[Connection] = Pool("p", max_idle=1)
    one, two = opened(pool), opened(pool)
    pool.release(one, reusable=True)
    assert pool.release(two, reusable=True) is two


def test_who_left_gives_on_what_was_given_to_him(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    first, second = pool.wait(loop), pool.wait(loop)
    pool.release(one, reusable=True)
    given = pool.leave(first)
    assert given is one
    assert pool.release(given, reusable=True) is None
    assert second.result() is one


def test_the_right_to_open_is_passed_on_when_its_holder_has_left(loop):
    pool: Pool[Connection] = Pool("p", limit=1)
    one = opened(pool)
    first, second = pool.wait(loop), pool.wait(loop)
    pool.lost(one)
    assert first.result() is None
    assert pool.leave(first) is None
    assert second.result() is None
    assert pool.open == 1


def test_a_retired_pool_keeps_nothing():
    pool: Pool[Connection] = Pool("p")
    one, two = opened(pool), opened(pool)
    pool.release(one, reusable=True)
    assert pool.retire() == [one]
    assert pool.release(two, reusable=True) is two


def test_its_state_can_be_read():
    pool: Pool[Connection] = Pool("p")
    opened(pool)
    assert repr(pool) == "Pool(p, open=1, idle=0, waiting=0)"
    assert not pool.is_empty


class Life(RuleBasedStateMachine):
    """Exchanges that take, open, wait, leave, release; connections that die at any moment."""

    LIMIT = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool: Pool[Connection] = Pool("p", limit=self.LIMIT, max_idle=2, max_waiting=4)
        self.busy: list[Connection] = []
        self.opening = 0
        self.closing: list[Connection] = []  # closed, and not yet reported as lost
        self.queue: list[asyncio.Future[Connection | None]] = []

    def teardown(self) -> None:
        for future in self.queue:
            self._leave(future)
        idle = [one for one in self.pool.idle if one not in self.closing]  # each is lost once
        for connection in [*self.busy, *idle, *self.closing]:
            connection.is_lost = connection.is_leaving = True
            self.pool.lost(connection)
        for _ in range(self.opening):
            self.pool.lost()
        assert self.pool.open == 0
        assert self.pool.is_empty
        self.loop.close()

    def _close(self, connection: Connection) -> None:
        connection.is_leaving = True
        self.closing.append(connection)

    def _release(self, connection: Connection, reusable: bool) -> None:
        surplus = self.pool.release(connection, reusable=reusable)
        if surplus is not None and not surplus.is_lost:
            self._close(surplus)

    def _leave(self, future: asyncio.Future[Connection | None]) -> None:
        future.cancel()
        given = self.pool.leave(future)
        if given is not None:
            self._release(given, True)

    @rule()
    def ask(self) -> None:
        connection = self.pool.take()
        if connection is not None:
            assert connection not in self.busy
            assert not connection.is_leaving
            self.busy.append(connection)
        elif self.pool.may_open():
            self.opening += 1
        elif len(self.pool.waiting) < self.pool.max_waiting:
            self.queue.append(self.pool.wait(self.loop))

    @precondition(lambda self: self.opening)
    @rule(works=booleans())
    def opening_ends(self, works: bool) -> None:
        self.opening -= 1
        if works:
            self.busy.append(Connection())
        else:
            self.pool.lost()

    @precondition(lambda self: self.busy)
    @rule(choice=data(), reusable=booleans())
    def release(self, choice, reusable: bool) -> None:
        connection = self.busy.pop(choice.draw(_index(self.busy)))
        self._release(connection, reusable)

    @precondition(lambda self: self.pool.idle)
    @rule(choice=data())
    def idle_closes(self, choice) -> None:
        connection = self.pool.idle[choice.draw(_index(self.pool.idle))]
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

    @precondition(lambda self: any(future.done() for future in self.queue))
    @rule()
    def served(self) -> None:
        """Whoever was given something goes on; those before him in the queue were given something, too."""
        states = [future.done() for future in self.queue]
        assert states == sorted(states, reverse=True), "served in order"
        given = self.queue.pop(0).result()
        if given is None:
            self.opening += 1
        else:
            assert given not in self.busy
            self.busy.append(given)

    @invariant()
    def everything_is_counted_once(self) -> None:
        given = [future.result() for future in self.queue if future.done() and not future.cancelled()]
        rights = sum(one is None for one in given)
        held = [one for one in given if one is not None]
        hands = [*self.busy, *held, *self.closing, *(one for one in self.pool.idle if one not in self.closing)]
        assert len(set(map(id, hands))) == len(hands), "no connection is in two hands"
        assert 0 <= self.pool.open <= self.LIMIT
        assert self.pool.open == len(hands) + self.opening + rights


def _index(items):
    from hypothesis.strategies import integers

    return integers(0, len(items) - 1)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
