"""Places on connections that carry many exchanges: who gets one, who opens, who waits."""

from __future__ import annotations

import asyncio

import pytest

from egressproxy.errors import LimitExceeded, Reason, UpstreamFault
from egressproxy.upstream.pool import PoolTicket
from egressproxy.upstream.shared_pool import MOST, SharedPool


class Place:
    is_leaving = False

    def __init__(self, connection: Connection) -> None:
        assert connection.room > 0
        connection.active += 1
        self.connection = connection


class Connection:
    def __init__(self, most: int, *, is_new: bool = False) -> None:
        self.most = most
        self.active = 0
        self.is_new = is_new
        self.is_leaving = False

    @property
    def room(self) -> int:
        return 0 if self.is_leaving else (1 if self.is_new else self.most) - self.active


def claim(client: str = "c") -> PoolTicket[Place]:
    return PoolTicket(client)


def opened(pool: SharedPool[Place], most: int = 2, *, is_new: bool = False) -> Connection:
    assert pool.may_open(claim())
    connection = Connection(most, is_new=is_new)
    pool.opened(connection)
    return connection


def free(pool: SharedPool[Place], place: Place | None) -> None:
    assert place is not None
    place.connection.active -= 1
    pool.given_back(place)


def waiting(pool: SharedPool[Place], client: str = "c") -> asyncio.Future[Place | None]:
    return pool.wait(claim(client), asyncio.get_running_loop())


async def test_places_are_taken_on_the_oldest_connection_with_room():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    one, other = opened(pool), opened(pool)
    places = [pool.take(claim()) for _ in range(4)]
    assert [place.connection for place in places if place] == [one, one, other, other]
    assert pool.take(claim()) is None
    free(pool, places[0])
    assert (place := pool.take(claim())) is not None
    assert place.connection is one
    assert pool.counts() == (2, 0)


async def test_as_many_wait_for_a_dial_as_it_will_carry():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    assert pool.may_open(claim())
    assert not pool.may_open(claim())
    futures = [waiting(pool) for _ in range(MOST - 1)]  # and one for who opens it
    assert not any(future.done() for future in futures)
    pool.opened(Connection(MOST))
    pool.settle()
    assert all(future.done() for future in futures)


async def test_a_new_connection_is_expected_to_carry_more():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    connection = opened(pool, 3, is_new=True)
    assert pool.take(claim()) is not None
    assert not pool.may_open(claim())
    future = waiting(pool)
    assert not future.done()
    connection.is_new = False
    pool.settle()
    assert future.done()


async def test_one_more_than_a_dial_will_carry_opens_another():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    full = opened(pool, 2)
    assert all(pool.take(claim()) for _ in range(2))
    assert pool.may_open(claim())
    futures = [waiting(pool) for _ in range(3)]
    assert [future.done() for future in futures] == [True, False, False]  # the first in the queue opens it
    assert futures[0].result() is None
    assert pool.opening == 2
    assert full.active == 2


async def test_a_dial_that_failed_is_tried_by_the_next():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    assert pool.may_open(claim())
    future = waiting(pool)
    pool.failed()
    assert future.result() is None
    assert pool.opening == 1


async def test_those_who_wait_share_the_fault_and_not_the_error():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    assert pool.may_open(claim())
    future = waiting(pool)
    error = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, detail="x")
    pool.fail_all(error)
    pool.failed()
    found = future.exception()
    assert isinstance(found, UpstreamFault)
    assert found is not error
    assert (found.reason, found.message, found.status, found.detail) == (error.reason, "refused", 503, "x")
    assert pool.is_empty


async def test_clients_take_turns():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    opened(pool, 5)
    places = [pool.take(claim()) for _ in range(5)]
    assert pool.may_open(claim())
    greedy = [waiting(pool, "greedy") for _ in range(3)]
    other = waiting(pool, "other")
    free(pool, places[0])
    free(pool, places[1])
    assert greedy[0].done()
    assert other.done()
    assert not greedy[1].done()


async def test_a_client_has_its_share_and_others_go_by():
    pool: SharedPool[Place] = SharedPool("backend a", Place, limit=4, share=2)
    opened(pool, 10)
    assert pool.take(claim("greedy")) is not None
    assert pool.take(claim("greedy")) is not None
    assert pool.take(claim("greedy")) is None
    assert not waiting(pool, "greedy").done()
    assert waiting(pool, "other").done()


async def test_the_queue_is_bounded():
    pool: SharedPool[Place] = SharedPool("backend a", Place, limit=2, share=2)
    opened(pool, 10)
    assert all(pool.take(claim(name)) for name in "ab")
    futures = [waiting(pool, name) for name in "cd"]
    with pytest.raises(LimitExceeded):
        waiting(pool, "e")
    assert not any(future.done() for future in futures)


async def test_who_waits_too_long_is_told_and_who_leaves_gives_back_what_it_got():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    opened(pool, 5)
    place = next(iter([pool.take(claim()) for _ in range(5)]))
    assert pool.may_open(claim())
    late, gone = claim(), claim()
    future = pool.wait(late, asyncio.get_running_loop())
    pool.too_late(late)
    assert isinstance(future.exception(), LimitExceeded)
    assert pool.leave(late) is None
    pool.wait(gone, asyncio.get_running_loop())
    free(pool, place)
    given = pool.leave(gone)
    assert given is not None
    free(pool, given)
    assert (pool.counts(), len(pool.waiting)) == ((2, 0), 0)


async def test_a_destination_that_shares_nothing_lets_everybody_open():
    pool: SharedPool[Place] = SharedPool("backend a", Place)
    assert pool.may_open(claim())
    futures = [waiting(pool) for _ in range(3)]
    pool.let_all_open()
    assert [future.result() for future in futures] == [None] * 3
    assert pool.opening == 4


async def test_the_number_of_connections_is_bounded():
    pool: SharedPool[Place] = SharedPool("backend a", Place, limit=3, share=3)
    for _ in range(3):
        opened(pool, 0)  # which carry nothing
    assert not pool.may_open(claim())
