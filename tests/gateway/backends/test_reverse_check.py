"""The reverse check at a dial: what it lets through, what it says, and when it waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import ip_address
from typing import Any, cast

import pytest

from egressproxy.errors import Denied, Reason, UpstreamFault
from egressproxy.gateway.backends.reverse_check import check_addresses
from egressproxy.ir.policy import ReverseCheck
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.upstream.resolver import Resolver
from egressproxy.upstream.reverse_names import MAX_CHECKED, AddressNames

TARGET = Authority("a.example", 443)
GOOD, BELOW, OTHER, NONE, BROKEN = (ip_address(f"192.0.2.{number}") for number in range(1, 6))
NAMES = {
    GOOD: AddressNames(("x.example", "a.example")),
    BELOW: AddressNames(("lb.a.example",)),
    OTHER: AddressNames(("b.example",)),
    NONE: AddressNames(),
    BROKEN: AddressNames((), Reason.DNS_TIMEOUT, "silence"),
}


class FakeReverse:
    """Answers at once, or when `answer` is called."""

    def __init__(self, *, holds: bool = False) -> None:
        self.asked: list[tuple[IPAddress, str]] = []
        self.held: list[tuple[IPAddress, asyncio.Future[AddressNames]]] = []
        self._holds = holds

    def resolve(self, address: IPAddress, client: str = "") -> asyncio.Future[AddressNames]:
        self.asked.append((address, client))
        future: asyncio.Future[AddressNames] = asyncio.get_running_loop().create_future()
        self.held.append((address, future))
        if not self._holds:
            self.answer()
        return future

    def answer(self) -> None:
        for address, future in self.held:
            if not future.done():
                future.set_result(NAMES[address])


class Checks:
    def __init__(self, *, holds: bool = False) -> None:
        self.reverse = FakeReverse(holds=holds)
        self.counted: Counter[str] = Counter()
        self.x = Exchange("192.0.2.9:1", "ns/gw", "l", 0.0)

    async def __call__(self, check: ReverseCheck, *addresses: IPAddress, through: tuple[str, ...] = ()) -> Any:
        resolver = cast(Resolver, self)
        count = lambda result: self.counted.update([result])  # noqa: E731
        return await check_addresses(self.x, check, resolver, TARGET, addresses, through, count)


async def test_enforced_it_leaves_the_addresses_that_agree():
    check = Checks()
    assert await check(ReverseCheck.ENFORCE, OTHER, GOOD, NONE, BELOW, BROKEN) == (GOOD, BELOW)
    assert check.counted == {"agrees": 2, "differs": 2, "failed": 1}
    assert {client for _, client in check.reverse.asked} == {"192.0.2.9"}
    assert await check(ReverseCheck.ENFORCE, OTHER, through=("b.example",)) == (OTHER,)


async def test_where_none_agrees_it_is_a_denial_that_shows_names_to_the_log_alone():
    with pytest.raises(Denied) as caught:
        await Checks()(ReverseCheck.ENFORCE, OTHER, NONE)
    error = caught.value
    assert (error.status, error.reason) == (403, Reason.REVERSE_DNS_DENIED)
    assert error.detail == "192.0.2.3: its names are b.example; 192.0.2.4: it has no name"
    assert "b.example" not in error.message + error.remedy
    assert "192.0.2" not in error.message + error.remedy


async def test_where_the_names_are_not_known_it_is_a_failure():
    with pytest.raises(UpstreamFault) as caught:
        await Checks()(ReverseCheck.ENFORCE, OTHER, BROKEN)
    assert (caught.value.status, caught.value.reason) == (504, Reason.DNS_TIMEOUT)
    assert "silence" in caught.value.detail


async def test_no_more_addresses_than_so_many_are_asked_for_or_dialled():
    check = Checks()
    assert await check(ReverseCheck.ENFORCE, *([GOOD] * (MAX_CHECKED + 3))) == (GOOD,) * MAX_CHECKED
    assert len(check.reverse.asked) == MAX_CHECKED


@pytest.mark.parametrize(("address", "noted"), [(OTHER, [Reason.REVERSE_DNS_DENIED]), (GOOD, None)])
async def test_reported_it_waits_for_nothing_and_notes_what_it_finds(address: IPAddress, noted: list[Reason] | None):
    check = Checks(holds=True)
    assert await check(ReverseCheck.REPORT, address, *[address] * MAX_CHECKED) == (address,) * (MAX_CHECKED + 1)
    assert check.counted == {}
    check.reverse.answer()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert check.x.would_deny == noted
    assert sum(check.counted.values()) == MAX_CHECKED


async def test_a_resolver_that_closes_meanwhile_is_no_error():
    loop, faults = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    check = Checks(holds=True)
    await check(ReverseCheck.REPORT, OTHER)
    check.reverse.held[0][1].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (faults, check.counted) == ([], {})
