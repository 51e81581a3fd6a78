"""Who may have which name looked up, and when: the rules, without a question to anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from egressproxy.upstream import lookups
from egressproxy.upstream.lookups import Lookup, PendingLookups


class Bench:
    """Lookups that end when the test says so."""

    def __init__(self) -> None:
        self.running: list[Lookup] = []
        self.late: list[str] = []
        self.lookups = PendingLookups(self._run, lambda lookup: self.late.append(lookup.host), timeout_s=60.0)

    async def _run(self, lookup: Lookup) -> None:
        """Nothing: `ends` is what ends it."""

    def wish(self, host: str, client: str = "") -> Lookup | None:
        found = self.lookups.start(host, client, 0.0)
        if found is not None:
            found.waiters.append(asyncio.get_running_loop().create_future())
        return found

    def under_way(self) -> list[str]:
        return [lookup.host for lookup in self.lookups.known.values() if lookup.task is not None]

    def ends(self, host: str) -> None:
        self.lookups.end(self.lookups.known[host])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.lookups.close()


async def test_beyond_the_bound_clients_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    for host, client in (("a.1", "a"), ("b.2", "a"), ("c.3", "a"), ("d.4", "b")):
        assert bench.wish(host, client)
    order = []
    while bench.under_way():
        (host,) = bench.under_way()
        order.append(host)
        bench.ends(host)
    assert order == ["a.1", "b.2", "d.4", "c.3"]
    assert (len(bench.lookups.known), repr(bench.lookups)) == (0, "PendingLookups(0 under way, 0 wait)")


async def test_a_client_with_its_share_waits_while_others_begin(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT", 1)
    for host, client in (("a.1", "a"), ("b.2", "a"), ("c.3", "b"), ("d.4", ""), ("e.5", "")):
        assert bench.wish(host, client)
    assert bench.under_way() == ["a.1", "c.3", "d.4", "e.5"], "our own wishes have no share"
    assert not bench.lookups.scheduler.has_its_share("a"), "it may wait"
    bench.lookups.scheduler.waiting.share = 1
    assert bench.wish("f.6", "a") is None
    assert bench.lookups.scheduler.has_its_share("a")
    assert not bench.lookups.scheduler.has_its_share("")
    bench.ends("c.3")
    assert "b.2" not in bench.under_way()
    bench.ends("a.1")
    assert "b.2" in bench.under_way()


async def test_below_one_domain_names_wait_and_leave_others_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_DOMAIN", 2)
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN", 1)
    for host, client in (("a.co.uk", "a"), ("b.co.uk", "a"), ("c.co.uk", "b"), ("d.co.uk", "c"), ("e.test", "a")):
        assert bench.wish(host, client)
    assert bench.under_way() == ["a.co.uk", "c.co.uk", "e.test"]
    bench.ends("c.co.uk")
    assert bench.under_way() == ["a.co.uk", "d.co.uk", "e.test"]
    bench.ends("d.co.uk")
    assert "b.co.uk" not in bench.under_way()
    bench.ends("a.co.uk")
    assert bench.under_way() == ["b.co.uk", "e.test"]


async def test_a_name_that_two_wish_for_begins_with_the_turn_of_either(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    for host in ("a.1", "b.2", "c.3"):
        bench.wish(host, "a")
    wanted = bench.lookups.known["c.3"]
    bench.lookups.scheduler.join(wanted, "b")
    bench.lookups.scheduler.join(wanted, "b")
    assert repr(bench.lookups) == "PendingLookups(1 under way, 3 wait)"
    bench.ends("a.1")
    bench.ends("b.2")
    assert bench.under_way() == ["c.3"]
    assert repr(bench.lookups) == "PendingLookups(1 under way, 0 wait)"


async def test_what_nobody_waits_for_any_more_does_not_begin(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    bench.wish("a.1")
    left = bench.wish("b.2")
    assert left
    left.waiters[0].cancel()
    bench.ends("a.1")
    assert len(bench.lookups.known) == 0


async def test_places_to_wait_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 0)
    bench.lookups.scheduler.waiting.limit = 1
    assert bench.wish("a.1", "a")
    assert bench.wish("b.2", "b") is None
    assert list(bench.lookups.known) == ["a.1"]
