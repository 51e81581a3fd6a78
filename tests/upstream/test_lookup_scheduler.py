"""Whose turn it is: the rules, without a question to anybody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.upstream import lookups
from egressproxy.upstream.lookups import Lookup, LookupScheduler
from tests.support.properties import examples


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four lookups at one time, three below a domain; of one client three, and two below a domain."""
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 4)
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_DOMAIN", 3)
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT", 3)
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN", 2)
    monkeypatch.setattr(lookups, "MAX_QUEUED", 12)
    monkeypatch.setattr(lookups, "MAX_QUEUED_OF_CLIENT", 6)


def asked(scheduler: LookupScheduler, *wishes: tuple[str, str]) -> list[Lookup]:
    """Those of these hosts and clients that begin at once; the others wait."""
    made = [Lookup(host, client, 0.0) for host, client in wishes]
    begun = [turn for turn in made if scheduler.begin(turn)]
    assert all(scheduler.wait(turn) for turn in made if turn not in begun)
    return begun


def begun_next(scheduler: LookupScheduler) -> list[str]:
    found = []
    while (turn := scheduler.next()) is not None:
        found.append(turn.host)
    return found


def test_a_domain_with_its_share_does_not_stand_in_the_way_of_others():
    scheduler: LookupScheduler = LookupScheduler()
    below = [(f"{letter}.slow.test", "one") for letter in "abcd"]
    begun = asked(scheduler, *below, ("a.third.x", "other"), ("a.fast.x", "one"), ("b.fast.x", "one"))
    assert [turn.host for turn in begun] == ["a.slow.test", "b.slow.test", "a.third.x", "a.fast.x"]
    scheduler.ended(begun[3])
    assert begun_next(scheduler) == ["b.fast.x"]
    scheduler.ended(begun[0])
    assert begun_next(scheduler) == ["c.slow.test"]
    scheduler.ended(begun[1])
    assert begun_next(scheduler) == ["d.slow.test"]


def test_a_name_that_gives_up_its_turn_hands_it_on():
    scheduler: LookupScheduler = LookupScheduler()
    full = asked(scheduler, ("a.slow.test", "one"), ("b.slow.test", "one"), ("x.a.a", "two"), ("x.b.b", "two"))
    third, fourth = Lookup("c.slow.test", "one", 0.0), Lookup("d.slow.test", "one", 0.0)
    assert scheduler.wait(third)
    assert scheduler.wait(fourth)
    scheduler.ended(full[0])
    newcomer = Lookup("y.c.c", "two", 0.0)
    assert scheduler.begin(newcomer), "it was faster"
    scheduler.leave(third)
    scheduler.ended(newcomer)
    assert begun_next(scheduler) == ["d.slow.test"]


def test_clients_that_give_up_are_not_searched_for_each_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_QUEUED", 2000)
    looks = [0]

    class Counting(LookupScheduler):
        __slots__ = ()

        def _may_ask_below(self, domain: str, client: str) -> bool:
            looks[0] += 1
            return super()._may_ask_below(domain, client)

    scheduler = Counting()
    asked(scheduler, *((f"{number}.slow.test", f"client-{number}") for number in range(2000)))
    waiting = [turn for own in scheduler._apart["slow.test"]._of.values() for turn in own]
    assert len(waiting) == 1997
    looks[0] = 0
    for turn in waiting:
        scheduler.leave(turn)
    assert looks[0] < 2000
    assert scheduler.waiting.total == 0


class Compared(Lookup):
    """Counts how often it was compared with another lookup."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return self is other

    __hash__ = Lookup.__hash__


def test_a_long_queue_is_not_searched_for_the_lookup_that_it_has_returned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_QUEUED", 2000)
    monkeypatch.setattr(lookups, "MAX_QUEUED_OF_CLIENT", 2000)
    scheduler: LookupScheduler = LookupScheduler()
    begun = asked(scheduler, *((f"{letter}.{letter}.x", "one") for letter in "abc"))
    for number in range(1000):
        assert scheduler.wait(Compared(f"x{number}.y{number}.x", "one", 0.0))
    Compared.times = 0
    scheduler.ended(begun[0])
    assert begun_next(scheduler) == ["x0.y0.x"]
    assert Compared.times == 0


def test_places_are_counted_for_each_client_that_waits():
    scheduler: LookupScheduler = LookupScheduler()
    asked(scheduler, *((f"{number}.{number}.x", "") for number in range(4)))
    shared = Lookup("shared.a.x", "one", 0.0)
    assert scheduler.wait(shared)
    scheduler.join(shared, "two")
    scheduler.join(shared, "two")
    assert (scheduler.waiting.of("one"), scheduler.waiting.of("two")) == (1, 1)
    assert all(scheduler.wait(Lookup(f"{number}.b.x", "one", 0.0)) for number in range(5))
    assert not scheduler.wait(Lookup("6.b.x", "one", 0.0))
    assert scheduler.has_its_share("one")
    assert not scheduler.has_its_share("two")
    scheduler.leave(shared)
    assert (scheduler.waiting.of("one"), scheduler.waiting.of("two")) == (5, 0)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from("aabcleen"), st.integers(0, 5), st.integers(0, 3)), max_size=80))
def test_nobody_is_forgotten_whatever_the_order(steps: list[tuple[str, int, int]]):
    scheduler: LookupScheduler = LookupScheduler()
    begun: list[Lookup] = []
    waiting: list[Lookup] = []

    def go_on() -> None:
        while (turn := scheduler.next()) is not None:
            waiting.remove(turn)
            begun.append(turn)

    for number, (step, which, client) in enumerate(steps):
        if step in "abc":  # one more name below one of three domains
            turn = Lookup(f"{number}.{step}.test", f"client-{client}", 0.0)
            if scheduler.begin(turn):
                begun.append(turn)
            elif scheduler.wait(turn):
                waiting.append(turn)
        elif step == "l" and waiting:  # one is too late
            scheduler.leave(waiting.pop(which % len(waiting)))
            go_on()
        elif step == "e" and begun:  # one has ended
            scheduler.ended(begun.pop(which % len(begun)))
            go_on()
        elif step == "n" and waiting:  # another client wants the same
            scheduler.join(waiting[which % len(waiting)], f"client-{client}")
        assert scheduler.asking.total == len(begun) <= 4
    while begun:
        scheduler.ended(begun.pop())
        go_on()
    assert not waiting, "whoever waits has a turn once others end"
    assert repr(scheduler) == "LookupScheduler(0 in progress, 0 wait)"
    assert (scheduler._of_domain, scheduler._apart, len(scheduler._queue)) == ({}, {}, 0)
