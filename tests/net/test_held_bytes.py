"""Who waits for room when a client holds too much, and who goes on."""

from __future__ import annotations

import asyncio

from egressproxy.net.held_bytes import ON_ITS_WAY, PROMISED, HeldBytes, Hold

LIMIT = 4 * PROMISED


def waiting(account: HeldBytes, names: str, went_on: list[str], size: int = PROMISED) -> list[Hold]:
    """One exchange for each name, each of which holds so much; those without room wait."""
    made = []
    for name in names:
        hold = Hold(((account, LIMIT),))
        hold.add(size)
        if not hold.has_room():
            hold.wait(lambda name=name: went_on.append(name), 1.0)
        made.append(hold)
    return made


async def test_who_waits_goes_on_in_order_as_far_as_there_is_room():
    account, went_on = HeldBytes(), list[str]()
    holds = waiting(account, "abcdefgh", went_on)
    assert [hold.is_waiting for hold in holds] == [False] * 4 + [True] * 4
    holds[0].release()
    await asyncio.sleep(0)
    assert went_on == []
    for hold in holds[1:4]:
        hold.release()
    await asyncio.sleep(0)
    assert went_on == ["e"], "and it is the oldest now; the others hold the rest"
    holds[4].release()
    await asyncio.sleep(0)
    assert went_on == ["e", "f", "g"]
    assert account.total == 3 * PROMISED


async def test_the_oldest_goes_on_whatever_is_held():
    account, went_on = HeldBytes(), list[str]()
    first, second, third = waiting(account, "abc", went_on, size=3 * LIMIT)
    assert first.has_room()
    assert not second.has_room()
    first.release()
    await asyncio.sleep(0)
    assert went_on == ["b"]
    second.release()
    third.release()
    assert (account.total, list(account._holds)) == (0, [])


async def test_of_a_client_and_a_connection_both_limits_hold():
    client, connection, other = HeldBytes(), HeldBytes(), HeldBytes()
    first = Hold(((client, LIMIT), (connection, 10)))
    second = Hold(((client, LIMIT), (connection, 10)))
    third = Hold(((client, LIMIT), (other, 10)))
    for hold in (first, second, third):
        hold.add(9)
    assert [hold.has_room() for hold in (first, second, third)] == [True, False, True]
    third.add(LIMIT)
    assert [hold.has_room() for hold in (first, second, third)] == [True, False, False], "not the oldest of its client"
    assert not third.is_beyond
    third.add(ON_ITS_WAY)
    assert third.is_beyond
    assert not first.is_beyond


async def test_without_a_limit_nobody_waits():
    hold = Hold(())
    hold.add(1 << 40)
    assert hold.has_room()
    hold.add(-5)
    hold.release()
    assert hold.size == 0


async def test_what_holds_nothing_more_wakes_nobody_twice():
    account, went_on = HeldBytes(), list[str]()
    holds = waiting(account, "abcdef", went_on)
    holds[5].release()
    holds[0].add(-PROMISED)
    await asyncio.sleep(0)
    assert went_on == ["e"]
    assert not holds[4].is_waiting


async def test_what_holds_nothing_is_not_the_oldest():
    account, went_on = HeldBytes(), list[str]()
    first, _, third = waiting(account, "abc", went_on, size=3 * LIMIT)
    first.add(-3 * LIMIT)
    await asyncio.sleep(0)
    assert went_on == []
    first.add(3 * LIMIT)
    first.release_request()
    await asyncio.sleep(0)
    assert went_on == ["b"]
    assert third.is_waiting


async def test_a_request_that_waits_goes_on_when_its_answer_comes_early():
    """It is found by nobody any more who has room, and the clock would end its answer."""
    account, went_on = HeldBytes(), list[str]()
    holds = waiting(account, "abcdef", went_on)
    holds[5].release_request()
    assert went_on == ["f"]
    assert not holds[5].is_waiting
