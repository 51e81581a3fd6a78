"""What one client may have of what is bounded for all, and the order in which clients are served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from

from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import FairQueue, PerClientQuota, client_of, most_of, origin_of


@pytest.mark.parametrize(
    ("client", "origin"),
    [("10.0.0.9:1", "10.0.0.9"), ("[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64"), ("[fe80::1%eth0]:1", "fe80::/64")],
)
def test_one_host_has_an_address_or_an_ipv6_network(client: str, origin: str):
    assert origin_of(client) == origin


def test_an_exchange_is_of_the_address_that_it_came_from():
    assert client_of(Exchange("10.0.0.9:1", "gw", "l", 0.0)) == "10.0.0.9"


@pytest.mark.parametrize(("limit", "most"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (1000, 750)])
def test_one_client_gets_three_quarters_and_at_least_one(limit: int, most: int):
    assert most_of(limit) == most


def test_nobody_takes_more_than_a_share_and_all_no_more_than_the_limit():
    shares = PerClientQuota(3, 2)
    assert [shares.take(client) for client in "aaabb"] == [True, True, False, True, False]
    shares.give_back("a")
    assert shares.take("b")
    assert (shares.total, shares.of("a"), shares.of("b"), shares.of("c")) == (3, 1, 2, 0)


def test_what_is_added_is_counted_whatever_the_limit_says():
    shares = PerClientQuota(10, 6)
    shares.add("a", 7)
    assert shares.is_exceeded("a")
    assert not shares.is_exceeded("b")
    shares.add("b", 4)
    assert shares.is_exceeded("b"), "all have too much together"
    shares.give_back("a", 7)
    shares.give_back("b", 4)
    assert repr(shares) == "PerClientQuota(0 of 10, 0 clients)"


def test_clients_take_turns_and_the_first_of_a_client_comes_first():
    queue: FairQueue[str] = FairQueue(10, 10)
    for waiter in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.add(waiter[0], waiter)
    assert [queue.next() for _ in range(7)] == ["a1", "b1", "c1", "a2", "c2", "a3", None]
    assert not queue


def test_who_may_not_have_anything_keeps_its_turn():
    queue: FairQueue[str] = FairQueue(10, 10)
    for waiter in ("a1", "b1", "a2"):
        queue.add(waiter[0], waiter)
    assert queue.next(lambda client: client != "a") == "b1"
    assert queue.next(lambda client: client != "a") is None
    assert len(queue) == 2
    assert queue.next() == "a1"


def test_places_are_bounded_in_all_and_for_each_client():
    queue: FairQueue[int] = FairQueue(3, 2)
    assert [queue.add(client, 0) for client in "aaabb"] == [True, True, False, True, False]
    assert queue.remove("a", 0)
    assert not queue.remove("a", 1)
    assert not queue.remove("c", 0)
    assert queue.add("b", 0)
    queue.clear()
    assert (len(queue), list(queue)) == (0, [])
    assert not FairQueue(1, 0).add("a", 0)


@given(lists(sampled_from(["add a", "add b", "add c", "next", "remove"])), integers(1, 4))
def test_no_client_is_served_twice_before_another_that_waits(steps: list[str], share: int):
    queue: FairQueue[tuple[str, int]] = FairQueue(100, share)
    waiting: list[tuple[str, int]] = []
    skipped: dict[str, dict[str, int]] = {}  # by client that waits: how often others were served meanwhile
    for number, step in enumerate(steps):
        if step.startswith("add"):
            waiter = (step[-1], number)
            if queue.add(waiter[0], waiter):
                waiting.append(waiter)
                skipped.setdefault(waiter[0], {})
        elif step == "next":
            served = queue.next()
            assert (served is None) == (not waiting)
            if served is None:
                continue
            assert served == next(waiter for waiter in waiting if waiter[0] == served[0])
            waiting.remove(served)
            for client, others in skipped.items():
                others[served[0]] = others.get(served[0], 0) + 1
                assert client == served[0] or others[served[0]] == 1
            skipped.pop(served[0])
            if any(client == served[0] for client, _ in waiting):
                skipped[served[0]] = {}
        elif waiting:
            gone = waiting.pop()
            assert queue.remove(gone[0], gone)
            if all(client != gone[0] for client, _ in waiting):
                skipped.pop(gone[0])
        assert len(queue) == len(waiting)
        assert sorted(queue) == sorted(waiting)
